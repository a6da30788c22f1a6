"""Putting low-rank edits onto a clone of a MODEL, with proof that ComfyUI took every one of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import comfy.sd
import torch
from torch import Tensor

from ...speed_ops.engine.edits import LayerEdit
from ...speed_ops.errors import UnsupportedModelError
from ...speed_ops.models.architecture import LayerKey
from ...speed_ops.models.detect import reads_text
from .weights import effective_weight, keeps_edits, stored_weight, takes_patches


def lora_state(edits: Mapping[str, LayerEdit], layers: Sequence[LayerKey]) -> dict[str, Tensor]:
    """The edits as a LoRA in memory (float32 on the CPU, balanced, kohya's names): what LORA_MODEL
    sockets carry.
    """
    names = {layer.canonical: layer.lora_base for layer in layers}
    return _state({key: (names[key], edit) for key, edit in edits.items()})


def with_edits(patcher: Any, edits: Mapping[str, LayerEdit], strength: float = 1.0) -> Any:
    """A clone that adds `strength` times the edits; the input model is unchanged.

    Layers whose storage would drown an edit (fp8, quantised) get it at every forward pass instead,
    in full precision.
    """
    if strength == 0:
        return patcher
    baked = {key: edit for key, edit in edits.items() if takes_patches(patcher, key)}
    clone = patcher.clone()
    if baked:
        state = _state({key: (key.removesuffix(".weight"), edit) for key, edit in baked.items()})
        clone = comfy.sd.load_lora_for_models(patcher, None, state, strength, 0)[0]
    for key, edit in edits.items():
        if key not in baked:
            clone.add_weight_wrapper(key, RuntimeEdit(edit, strength))
    refused = [
        key
        for key in baked
        if len(clone.patches.get(key, [])) != len(patcher.patches.get(key, [])) + 1
    ]
    if refused:
        raise UnsupportedModelError(
            f"ComfyUI accepted only {len(baked) - len(refused)} of {len(baked)} edits; one it"
            f" refused is {refused[0]}. Nothing was changed. Please report this, with the model and"
            " your ComfyUI version."
        )
    return clone


def edits_on(patcher: Any) -> dict[str, int]:
    """{layer key: patches and wrappers on it}."""
    parts = (patcher.patches, getattr(patcher, "weight_wrapper_patches", {}))
    return {key: sum(len(part.get(key, ())) for part in parts) for part in parts for key in part}


def only_text_layers(patcher: Any) -> bool:
    """Whether all that was added to the model's weights was added to layers that read text."""
    return all(reads_text(key) for key in edits_on(patcher))


class RuntimeEdit:
    """Adds an edit to a weight when a layer runs; moves to the device that the layer runs on."""

    def __init__(self, edit: LayerEdit, strength: float) -> None:
        balanced = edit.balanced()[0].to(torch.float32)
        self._up, self._down = balanced.up.cpu() * strength, balanced.down.cpu()

    def __call__(self, weight: Tensor) -> Tensor:
        """The edited weight; the stored one stays as it is."""
        up, down = self._up.to(weight.device), self._down.to(weight.device)
        return (weight.to(torch.float32) + up @ down).to(weight.dtype)

    def move_to(self, device: torch.device) -> int:
        """Called by ComfyUI when the layer moves; returns the bytes that came along."""
        self._up, self._down = self._up.to(device), self._down.to(device)
        return (self._up.nbytes + self._down.nbytes) if device.type != "cpu" else 0


def rounding_note(patcher: Any, edits: Mapping[str, LayerEdit]) -> str:
    """How much of the edit the model's storage type loses, as a sentence; empty where nothing is
    lost.
    """
    losses: dict[str, list[float]] = {}
    exact = 0
    for key, edit in edits.items():
        kind = stored_weight(patcher, key).dtype
        if not keeps_edits(patcher, key):
            exact += 1
        elif kind not in (torch.float32, torch.float64):
            losses.setdefault(str(kind).removeprefix("torch."), []).append(
                _loss(patcher, key, edit, kind)
            )
    lines = [
        f"Rounding to the model's own type, {kind}, loses {sum(values) / len(values):.1%} of the"
        f" edit (worst layer {max(values):.1%})."
        for kind, values in losses.items()
    ]
    if exact:
        lines.append(
            f"{exact} layers are stored in 8 bits or less, too coarse to store the edit. It is"
            " added in full precision whenever they run. Save it as a LoRA: a checkpoint of that"
            " type cannot hold it."
        )
    return "\n".join(lines)


def _loss(patcher: Any, key: str, edit: LayerEdit, kind: torch.dtype) -> float:
    """|what storage adds - what should be added| / |what should be added|."""
    before = effective_weight(patcher, key)
    wanted = edit.delta().to(torch.float32).cpu()
    added = (before + wanted).to(kind).float() - before.to(kind).float()
    size = float(edit.norm())
    return float((added - wanted).norm()) / size if size else 0.0


def _state(named: Mapping[str, tuple[str, LayerEdit]]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for base, edit in named.values():
        balanced = edit.balanced()[0].to(torch.float32)
        state[f"{base}.lora_up.weight"] = balanced.up.cpu().contiguous()
        state[f"{base}.lora_down.weight"] = balanced.down.cpu().contiguous()
        state[f"{base}.alpha"] = torch.tensor(float(balanced.rank))
    return state
