"""What is added to the output of a layer instead of its weight: edits of layers that are stored too
coarsely to hold them, and LoRAs that ComfyUI loaded in bypass mode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from comfy.patcher_extension import WrappersMP
from torch import Tensor
from torch.nn.functional import linear

from ...speed_ops.engine.edits import LayerEdit
from ...speed_ops.errors import UnsupportedModelError
from ...speed_ops.files.tensors import tensors_hash

_OURS, _BYPASS = "speed_erase", "bypass_lora"
"""Slots of a patcher: that of our wrapper, and that of the injections of bypass LoRAs."""


class RuntimeEdits:
    """Adds `up(down x)` to what layers compute, during each forward pass of the model.

    The layer itself runs as it is, so a quantized one keeps its fast matmul. Nothing stays on the
    modules, which all clones share, between the passes.
    """

    def __init__(self, factors: Mapping[str, list[tuple[Tensor, Tensor]]]) -> None:
        """`factors`: {layer key: (up, down) of each edit}."""
        self.factors = factors
        self._placed: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        self._is_first_pass = True

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """Called by ComfyUI around each forward pass of the model."""
        with self._on(executor.class_obj):
            output = executor(*args, **kwargs)
        if self._is_first_pass and not self._placed:
            logging.getLogger("speed_erase").warning(
                "The edit was not used: another node runs its own copy of the model's layers. Put"
                " SPEED Erase directly before the sampler."
            )
        self._is_first_pass = False
        return output

    @contextmanager
    def _on(self, model: torch.nn.Module) -> Iterator[None]:
        replaced: list[tuple[torch.nn.Module, Any]] = []
        try:
            for key in self.factors:
                layer = model.get_submodule(key.removesuffix(".weight"))
                before = layer.__dict__.get("forward")
                # ComfyUI calls a wrapper twice where hooks bring it along once more.
                if getattr(before, "adds", None) is not self:
                    replaced.append((layer, before))
                    layer.forward = self._with_edits(key, layer.forward)
            yield
        finally:
            for layer, before in reversed(replaced):
                if before is None:
                    del layer.forward
                else:
                    layer.forward = before

    def _with_edits(self, key: str, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def edited(rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            output = forward(rows, *args, **kwargs)
            for up, down in self._on_device(key, rows):
                output = output + linear(linear(rows, down), up)
            return output

        edited.adds = self  # type: ignore[attr-defined]
        return edited

    def _on_device(self, key: str, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        place = (key, rows.device, rows.dtype)
        if place not in self._placed:
            self._placed[place] = [
                (up.to(rows.device, rows.dtype), down.to(rows.device, rows.dtype))
                for up, down in self.factors[key]
            ]
        return self._placed[place]


def runtime_factors(patcher: Any) -> Mapping[str, list[tuple[Tensor, Tensor]]]:
    """{layer key: (up, down) of each edit} that is added when the layers run."""
    wrappers = patcher.wrappers.get(WrappersMP.APPLY_MODEL, {}).get(_OURS, [])
    return wrappers[0].factors if wrappers else {}


def add_runtime_edits(patcher: Any, edits: Mapping[str, LayerEdit], strength: float) -> None:
    """Adds edits to those that are added when the layers of this patcher run.

    Args:
        patcher: A clone that no one else holds.
        edits: {layer key: edit}.
        strength: Factor on the edits.
    """
    factors = {key: list(pairs) for key, pairs in runtime_factors(patcher).items()}
    for key, edit in edits.items():
        balanced = edit.balanced().to(torch.float32)
        pair = (balanced.up.cpu() * strength, balanced.down.cpu())
        factors.setdefault(key, []).append(pair)
    patcher.remove_wrappers_with_key(WrappersMP.APPLY_MODEL, _OURS)
    patcher.add_wrapper_with_key(WrappersMP.APPLY_MODEL, _OURS, RuntimeEdits(factors))


def bypass_loras(patcher: Any) -> dict[str, list[tuple[Any, float]]]:
    """{layer key: (adapter, strength)} of LoRAs that were loaded in bypass mode."""
    loras: dict[str, list[tuple[Any, float]]] = {}
    for injection in getattr(patcher, "injections", {}).get(_BYPASS, []):
        cells = [cell.cell_contents for cell in injection.inject.__closure__ or ()]
        manager = next((cell for cell in cells if hasattr(cell, "adapters")), None)
        if manager is None:
            raise _unreadable("another kind of injection")
        for path, (adapter, strength) in manager.adapters.items():
            loras.setdefault(f"{path}.weight", []).append((adapter, strength))
    return loras


def bypass_patches(patcher: Any, key: str) -> list[tuple[Any, ...]]:
    """The bypass LoRAs of a layer as the patches that have the same effect. Refuses other adapters
    than LoRAs, which may do more than add to the weight.
    """
    patches: list[tuple[Any, ...]] = []
    for adapter, strength in bypass_loras(patcher).get(key, []):
        if getattr(adapter, "name", "") != "lora" or adapter.weights[4] is not None:
            raise _unreadable(type(adapter).__name__)
        patches.append((strength, adapter, 1.0, None, None))
    return patches


def bypass_id(patcher: Any) -> str:
    """Names the bypass LoRAs of a patcher; ComfyUI gives a clone that has them no new id."""
    loras = bypass_loras(patcher)
    if not loras:
        return ""
    strengths = {key: [strength for _, strength in items] for key, items in loras.items()}
    factors = (
        (f"{key} {i} {j}", value)
        for key, items in sorted(loras.items())
        for i, (adapter, _) in enumerate(items)
        for j, value in enumerate(adapter.weights)
        if isinstance(value, Tensor)
    )
    return f"{tensors_hash(factors)} {sorted(strengths.items())}"


def _unreadable(kind: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"This model has a LoRA in bypass mode whose effect SPEED can't compute ({kind}). Load that"
        " LoRA without bypass, or after this node."
    )
