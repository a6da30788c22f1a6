"""Low-rank edits on a clone of a MODEL, with proof that ComfyUI took every one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import comfy.sd
import torch
from torch import Tensor

from ...speed_ops.devices import Workplace
from ...speed_ops.engine.edits import LayerEdit
from ...speed_ops.errors import InputError, Notice, UnsupportedModelError
from ...speed_ops.models.architecture import LayerKey
from ...speed_ops.models.detect import reads_text
from .beside import add_runtime_edits
from .weights import edits_on, effective_weight, keeps_edits, stored_weight, takes_patches

if TYPE_CHECKING:
    from ...speed_ops.erasure import Erasure
    from ...speed_ops.model import EditableModel


def check_fits(erasure: Erasure, model: EditableModel) -> None:
    """Refuses a model of another family, or one whose layers the erasure does not fit."""
    made_for = erasure.architecture
    if model.architecture.name != made_for.name:
        raise InputError(
            f"The erasure was made for {made_for.title}, but the model is"
            f" {model.architecture.title}. Make one for this model with SPEED Erase or Rerun"
            " Recipe."
        )
    shapes = {layer.canonical: layer.shape for layer in model.layers}
    for key, edit in erasure.edits.items():
        if shapes.get(key) != (edit.up.shape[0], edit.down.shape[1]):
            raise InputError(
                f"The erasure edits {key}, which is missing from this model or has another shape."
                " Make one for this model with SPEED Erase or Rerun Recipe."
            )


def lora_state(edits: Mapping[str, LayerEdit], layers: Sequence[LayerKey]) -> dict[str, Tensor]:
    """The value of a LORA_MODEL socket: the balanced edits in kohya's names, float32."""
    names = {layer.canonical: layer.lora_base for layer in layers}
    return _state({names[key]: edit for key, edit in edits.items()})


def with_edits(patcher: Any, edits: Mapping[str, LayerEdit], strength: float) -> Any:
    """A clone that adds `strength` times the edits; the input model is unchanged.

    Layers whose storage is too coarse for an edit (fp8, quantized) get it at every forward pass
    instead, in full precision.

    Args:
        patcher: ComfyUI's MODEL.
        edits: {layer key: edit}.
        strength: Factor on the edits.
    """
    baked = {key: edit for key, edit in edits.items() if takes_patches(patcher, key)}
    clone = patcher.clone()
    if baked:
        state = _state({key.removesuffix(".weight"): edit for key, edit in baked.items()})
        clone = comfy.sd.load_lora_for_models(patcher, None, state, strength, 0)[0]
    at_runtime = {key: edit for key, edit in edits.items() if key not in baked}
    if at_runtime:
        add_runtime_edits(clone, at_runtime, strength)
    refused = [
        key
        for key in baked
        if len(clone.patches.get(key, [])) != len(patcher.patches.get(key, [])) + 1
    ]
    if refused:
        raise UnsupportedModelError(
            f"ComfyUI accepted only {len(baked) - len(refused)} of {len(baked)} edits and refused"
            f" {refused[0]}, so SPEED changed nothing. Please report this, with the model and your"
            " ComfyUI version."
        )
    return clone


def only_text_layers(patcher: Any) -> bool:
    """Whether only layers that read text were changed."""
    return all(reads_text(key) for key in edits_on(patcher))


def rounding_notes(
    patcher: Any, edits: Mapping[str, LayerEdit], workplace: Workplace
) -> Iterator[Notice]:
    """How much of the edit is lost to the model's storage type.

    Args:
        patcher: ComfyUI's MODEL.
        edits: {layer key: edit}.
        workplace: Where that is computed.
    """
    rounded: dict[torch.dtype, list[str]] = {}
    exact = 0
    for key in edits:
        kind = stored_weight(patcher, key).dtype
        if not keeps_edits(patcher, key):
            exact += 1
        elif kind not in (torch.float32, torch.float64):
            rounded.setdefault(kind, []).append(key)
    for kind, keys in rounded.items():

        def losses(device: torch.device, kind: torch.dtype = kind, keys: Any = keys) -> list[float]:
            shares = [_loss(patcher, key, edits[key].to(device), kind) for key in keys]
            return torch.stack(shares).tolist()  # type: ignore[no-any-return]

        values, name = workplace.run(losses), str(kind).removeprefix("torch.")
        mean, worst = sum(values) / len(values), max(values)
        yield Notice(
            f"Rounding to {name}, the type of the model, loses {mean:.1%} of the edit (worst layer"
            f" {worst:.1%}).",
            code="rounding",
            dtype=name,
            mean=mean,
            worst=worst,
        )
    if exact:
        yield Notice(
            f"{exact} layers are stored in 8 bits or less, too coarse to store the edit. SPEED adds"
            " it in full precision whenever they run. Save it as a LoRA, because a checkpoint of"
            " that type can't store it.",
            code="stored_too_coarse",
            layers=exact,
        )


def _loss(patcher: Any, key: str, edit: LayerEdit, kind: torch.dtype) -> Tensor:
    """|what storage adds - what should be added| / |what should be added|, where the edit is."""
    before = effective_weight(patcher, key, edit.up.device)
    delta = edit.delta().to(torch.float32)
    stored = (before + delta).to(kind).float() - before.to(kind).float()
    norm = delta.norm()
    return (stored - delta).norm() / norm.clamp(min=torch.finfo(norm.dtype).tiny)


def _state(edits: Mapping[str, LayerEdit]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for base, edit in edits.items():
        balanced = edit.balanced().to(torch.float32)
        state[f"{base}.lora_up.weight"] = balanced.up.cpu().contiguous()
        state[f"{base}.lora_down.weight"] = balanced.down.cpu().contiguous()
        state[f"{base}.alpha"] = torch.tensor(float(balanced.rank))
    return state
