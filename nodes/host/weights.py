"""A MODEL seen as {layer key: weight as it is in effect}, read one layer at a time and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import comfy.lora
import comfy.model_management
import comfy.model_patcher
import torch
from comfy.quant_ops import QuantizedTensor
from torch import Tensor

from ...speed_ops.erase import EditableModel
from ...speed_ops.errors import UnsupportedModelError
from ...speed_ops.models.detect import detect, layers
from ...speed_ops.models.families import GRAPH_FAMILIES, LayerKey
from ...speed_ops.models.keys import Which
from .progress import check_stop

TEXT_LAYERS = (".attn2.to_k.weight", ".attn2.to_v.weight")
"""How the keys end of the layers that read text embeddings."""

# Storage that keeps a small edit: 8 bits and less do not.
KEEPS_EDITS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def stored_weight(patcher: Any, key: str) -> Tensor:
    """The weight as loaded from the file, whatever clone of the model is patched in at the moment."""
    weight = comfy.model_patcher.get_key_weight(patcher.model, key)[0]
    if key in patcher.backup:
        weight = patcher.backup[key].weight
    if key in patcher.hook_backup:
        weight = patcher.hook_backup[key][0]
    return weight


def effective_weight(patcher: Any, key: str) -> Tensor:
    """`o x d` float32 on the CPU: the stored weight with every patch and wrapper of this clone applied, as a copy.

    Everything long reads weights one by one, so this is also where the stop button is heard.
    """
    check_stop()
    convert = comfy.model_patcher.get_key_weight(patcher.model, key)[2]
    stored = stored_weight(patcher, key)
    weight = comfy.model_management.cast_to_device(stored, torch.device("cpu"), torch.float32, copy=True)
    if convert is not None:
        weight = convert(weight, inplace=True)
    weight = weight.detach().to(torch.float32)
    if key in patcher.patches:
        weight = comfy.lora.calculate_weight(patcher.patches[key], weight, key)
    for function in getattr(patcher, "weight_wrapper_patches", {}).get(key, []):
        weight = function(weight)
    return weight


def keeps_edits(patcher: Any, key: str) -> bool:
    """Whether the layer is stored in a type that a small edit survives; fp8 and quantised layers are not."""
    stored = stored_weight(patcher, key)
    return stored.dtype in KEEPS_EDITS and not isinstance(stored, QuantizedTensor)


class EffectiveWeights(Mapping[str, Tensor]):
    """The layers of an erasure by key, each read when asked for: one in memory at a time."""

    def __init__(self, patcher: Any, keys: Sequence[str]) -> None:
        self._patcher = patcher
        self._keys = tuple(keys)
        self._last: tuple[str, Tensor] | None = None

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._keys:
            raise KeyError(key)
        if self._last is None or self._last[0] != key:
            self._last = (key, effective_weight(self._patcher, key))
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def open_model(patcher: Any, which: Which = "V") -> EditableModel:
    """Recognises the family from the model's own keys and shapes; anything else is refused by name."""
    if type(patcher).__name__.startswith("GGUF"):
        raise UnsupportedModelError(
            "This is a GGUF model, whose packed weights cannot be edited: erase on the fp16 checkpoint, save the LoRA, "
            "and load that LoRA on the GGUF model."
        )
    shapes = {key: tuple(value.shape) for key, value in patcher.model.state_dict().items()}
    _refuse_packed(patcher, [key for key in shapes if key.endswith(TEXT_LAYERS)])
    architecture = detect(shapes, GRAPH_FAMILIES)
    found = layers(architecture, shapes, which)
    if any(path.startswith("diffusion_model.") for path in getattr(patcher, "object_patches", {})):
        _refuse_replaced(patcher, found)
    return EditableModel(architecture, tuple(found), EffectiveWeights(patcher, [layer.canonical for layer in found]))


def _refuse_packed(patcher: Any, keys: Sequence[str]) -> None:
    """Only plain numbers, and ComfyUI's own quantised ones, can be read: others mean something else by their values."""
    for key in keys:
        stored = stored_weight(patcher, key)
        known = type(stored) in (Tensor, torch.nn.Parameter, QuantizedTensor)
        if not known or not stored.dtype.is_floating_point or stored.is_meta:
            kind = type(stored).__name__ if not known else str(stored.dtype).removeprefix("torch.")
            raise UnsupportedModelError(
                f"The weights of this model are packed by a quantiser ({kind}, at {key}): erase on the "
                "fp16 checkpoint, save the LoRA, and load that LoRA on this model."
            )


def _refuse_replaced(patcher: Any, found: Sequence[LayerKey]) -> None:
    """Another node has put its own module in the place of a layer: its weight is not the one that would be edited."""
    for path in patcher.object_patches:
        if any(layer.canonical.startswith(path + ".") for layer in found):
            raise UnsupportedModelError(
                f"Another node, probably a compiler or quantiser, has replaced '{path}' in this model: put this node "
                "before that one."
            )
