"""A MODEL seen as {layer key: weight as it is in effect}, read one layer at a time and never
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import comfy.lora
import comfy.model_management
import comfy.model_patcher
import comfy.utils
import torch
from comfy.quant_ops import QuantizedTensor
from torch import Tensor

from ...speed_ops.encoders.push import Push
from ...speed_ops.errors import UnsupportedModelError
from ...speed_ops.model import EditableModel
from ...speed_ops.models.architecture import Architecture, LayerKey
from ...speed_ops.models.detect import detect, layers, pooled_layer, reads_text
from .progress import check_stop

# Storage that keeps a small edit: 8 bits and less do not.
KEEPS_EDITS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def stored_weight(patcher: Any, key: str) -> Tensor:
    """The weight as loaded from the file, whatever clone of the model is patched in at the
    moment.
    """
    weight = comfy.model_patcher.get_key_weight(patcher.model, key)[0]
    if key in patcher.backup:
        weight = patcher.backup[key].weight
    if key in patcher.hook_backup:
        weight = patcher.hook_backup[key][0]
    return weight


def effective_weight(patcher: Any, key: str) -> Tensor:
    """`o x d` float32 on the CPU: the stored weight with every patch and wrapper of this clone
    applied, as a copy.

    Everything long reads weights one by one, so this is also where the stop button is heard.
    """
    check_stop()
    convert = comfy.model_patcher.get_key_weight(patcher.model, key)[2]
    stored = stored_weight(patcher, key)
    unpack = unpacks(patcher, key)
    if unpack is not None:
        weight = unpack(stored)
    else:
        weight = comfy.model_management.cast_to_device(
            stored, torch.device("cpu"), torch.float32, copy=True
        )
    if convert is not None:
        weight = convert(weight, inplace=True)
    weight = weight.detach().to(torch.float32)
    if key in patcher.patches:
        weight = comfy.lora.calculate_weight(patcher.patches[key], weight, key)
    for function in getattr(patcher, "weight_wrapper_patches", {}).get(key, []):
        weight = function(weight)
    return weight


def raw_weight(patcher: Any, key: str, shown: Tensor) -> Tensor:
    """The bytes behind a key of a state dict as they are stored, to hash them. `shown`: what the
    state dict has there, which is all there is of scales that stand beside a weight."""
    try:
        stored = stored_weight(patcher, key)
    except AttributeError:
        stored = shown
    packed = getattr(stored, "_qdata", None)
    return (stored if packed is None else packed).detach().as_subclass(Tensor)


def unpacks(patcher: Any, key: str) -> Callable[[Tensor], Tensor] | None:
    """How a layer of a GGUF model gives its stored weight as numbers, without patches; None for all
    others.
    """
    layer = comfy.utils.get_attr(patcher.model, key.rpartition(".")[0])
    if not hasattr(layer, "is_ggml_quantized"):
        return None

    def unpack(stored: Tensor) -> Tensor:
        # Another tensor over the same bytes: the layer would add the patches of whichever clone is
        # loaded.
        plain = stored.as_subclass(type(stored))
        plain.__dict__.update(stored.__dict__, patches=[])
        return layer.get_weight(plain, torch.float32).to("cpu", torch.float32, copy=True)

    return unpack


def is_packed(patcher: Any, key: str) -> bool:
    """Whether a weight is stored as something that must be unpacked: by ComfyUI's quantiser, or in
    a GGUF model.
    """
    stored = stored_weight(patcher, key)
    return isinstance(stored, QuantizedTensor) or _is_ggml(patcher, key)


def _is_ggml(patcher: Any, key: str) -> bool:
    """Whether a layer of a GGUF model holds packed bytes; some hold plain numbers."""
    layer = comfy.utils.get_attr(patcher.model, key.rpartition(".")[0])
    return hasattr(layer, "is_ggml_quantized") and bool(layer.is_ggml_quantized())


def takes_patches(patcher: Any, key: str) -> bool:
    """Whether a patch on the layer acts in full: stored in a type that a small edit survives, or,
    as in a GGUF model, added after unpacking. In fp8 and quantised layers it would be lost to
    rounding."""
    return keeps_edits(patcher, key) or _is_ggml(patcher, key)


def keeps_edits(patcher: Any, key: str) -> bool:
    """Whether the layer is stored in a type that a small edit survives."""
    return stored_weight(patcher, key).dtype in KEEPS_EDITS and not is_packed(patcher, key)


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


def open_model(patcher: Any, which: str = "V") -> EditableModel:
    """Recognises the family from the model's own keys and shapes; anything else is refused by
    name.
    """
    shapes = {
        key: tuple(_logical(patcher, key, value).shape)
        for key, value in patcher.model.state_dict().items()
    }
    _refuse_packed(patcher, [key for key in shapes if reads_text(key)])
    architecture = detect(shapes)
    pooled = pooled_layer(architecture, shapes)
    found = [*layers(architecture, shapes, which), *([pooled] if pooled else [])]
    if any(path.startswith("diffusion_model.") for path in getattr(patcher, "object_patches", {})):
        _refuse_replaced(patcher, found)
    weights = EffectiveWeights(patcher, [layer.canonical for layer in found])
    return EditableModel(architecture, tuple(found), weights, _push(patcher, architecture, shapes))


def _logical(patcher: Any, key: str, value: Tensor) -> Tensor:
    """The weight behind a key of the state dict: of a GGUF model it shows stand-ins, in the shape
    of their bytes.
    """
    return (
        stored_weight(patcher, key) if value.is_meta and not key.endswith(".temp.weight") else value
    )


def _push(patcher: Any, architecture: Architecture, shapes: Mapping[str, Any]) -> Push | None:
    rule = architecture.push
    if rule is None:
        return None
    names = [f"{path}.{part}" for path in rule.paths for part in ("weight", "bias")]
    present = [name for name in names if f"diffusion_model.{name}" in shapes]
    return Push(
        rule, {name: effective_weight(patcher, f"diffusion_model.{name}") for name in present}
    )


def _refuse_packed(patcher: Any, keys: Sequence[str]) -> None:
    """Only numbers that somebody here can unpack are read: others mean something else by their
    values.
    """
    for key in keys:
        stored = stored_weight(patcher, key)
        if isinstance(stored, QuantizedTensor) or unpacks(patcher, key) is not None:
            continue
        known = type(stored) in (Tensor, torch.nn.Parameter)
        if not known or not stored.dtype.is_floating_point or stored.is_meta:
            kind = type(stored).__name__ if not known else str(stored.dtype).removeprefix("torch.")
            raise UnsupportedModelError(
                f"The weights of this model are packed by a quantiser ({kind}, at {key}): erase on"
                " the fp16 checkpoint, save the LoRA, and load that LoRA on this model."
            )


def _refuse_replaced(patcher: Any, found: Sequence[LayerKey]) -> None:
    """Another node has put its own module in the place of a layer: its weight is not the one that
    would be edited.
    """
    for path in patcher.object_patches:
        if any(layer.canonical.startswith(path + ".") for layer in found):
            raise UnsupportedModelError(
                f"Another node, probably a compiler or quantiser, has replaced '{path}' in this"
                " model: put this node before that one."
            )
