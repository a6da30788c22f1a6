"""A MODEL as {layer key: effective weight}, read one layer at a time and never changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import comfy.lora
import comfy.model_management
import comfy.model_patcher
import comfy.utils
import torch
from comfy.quant_ops import QuantizedTensor
from torch import Tensor

from ...speed_ops.devices import Workplace
from ...speed_ops.errors import UnsupportedModelError
from ...speed_ops.model import EditableModel
from ...speed_ops.models.architecture import LayerKey
from ...speed_ops.models.detect import detect, layers, reads_text, second_layer
from .beside import bypass_loras, bypass_patches, runtime_factors
from .progress import check_stop

CPU = torch.device("cpu")
# Storage that keeps a small edit: 8 bits and less do not.
KEEPS_EDITS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def stored_weight(patcher: Any, key: str) -> Tensor:
    """The weight as loaded from the file, even while a clone is patched in."""
    weight = comfy.model_patcher.get_key_weight(patcher.model, key)[0]
    if key in patcher.backup:
        weight = patcher.backup[key].weight
    if key in patcher.hook_backup:
        weight = patcher.hook_backup[key][0]
    return weight


def effective_weight(patcher: Any, key: str, device: torch.device = CPU) -> Tensor:
    """A copy of the stored weight with every patch, wrapper and LoRA of this clone, and all that is
    added when the layer runs: `o x d` float32 on a device.

    Long work reads weights one by one, so this also checks the stop button.

    Args:
        patcher: ComfyUI's patcher of the model.
        key: The layer's key.
        device: Where the copy is made. What is stored there already does not leave it.
    """
    check_stop()
    convert = comfy.model_patcher.get_key_weight(patcher.model, key)[2]
    stored, unpack = stored_weight(patcher, key), ggml_dequantizer(patcher, key)
    if unpack is not None:
        weight = unpack(stored, device)
    else:
        weight = comfy.model_management.cast_to_device(stored, device, torch.float32, copy=True)
    if convert is not None:
        weight = convert(weight, inplace=True)
    weight = weight.detach().to(torch.float32)
    if key in patcher.patches:
        weight = comfy.lora.calculate_weight(patcher.patches[key], weight, key)
    for function in getattr(patcher, "weight_wrapper_patches", {}).get(key, []):
        weight = function(weight)
    scale = _input_scale(patcher, key)
    if scale is not None:
        weight = weight * scale.to(weight)
    beside = bypass_patches(patcher, key)
    if beside:
        weight = comfy.lora.calculate_weight(beside, weight, key)
    for up, down in runtime_factors(patcher).get(key, []):
        weight = weight + up.to(weight) @ down.to(weight)
    return weight


def _input_scale(patcher: Any, key: str) -> Tensor | None:
    """What a quantized layer multiplies each column of its input by, before the weight."""
    layer, _, leaf = key.rpartition(".")
    if leaf != "weight":
        return None
    return getattr(comfy.utils.get_attr(patcher.model, layer), "pre_quant_scale", None)


def edits_on(patcher: Any) -> dict[str, int]:
    """{layer key: number of patches, wrappers, LoRAs and runtime edits on it}."""
    counts: Counter[str] = Counter()
    wrappers = getattr(patcher, "weight_wrapper_patches", {})
    for changes in (patcher.patches, wrappers, bypass_loras(patcher), runtime_factors(patcher)):
        counts.update({key: len(items) for key, items in changes.items()})
    return counts


def raw_weight(patcher: Any, key: str, value: Tensor) -> Tensor:
    """The stored bytes behind a key of a state dict, to hash them.

    Args:
        patcher: ComfyUI's patcher of the model.
        key: The key.
        value: What the state dict has there, for keys such as scales that are not parameters.
    """
    try:
        stored = stored_weight(patcher, key)
    except AttributeError:
        stored = value
    packed = getattr(stored, "_qdata", None)
    return (stored if packed is None else packed).detach().as_subclass(Tensor)


def ggml_dequantizer(patcher: Any, key: str) -> Callable[[Tensor, torch.device], Tensor] | None:
    """Turns the stored weight of a GGUF layer into numbers on a device, without patches; else
    None.
    """
    layer = comfy.utils.get_attr(patcher.model, key.rpartition(".")[0])
    if not hasattr(layer, "is_ggml_quantized"):
        return None

    def unpack(stored: Tensor, device: torch.device) -> Tensor:
        # Another tensor over the same bytes, because the layer would add the patches of the clone
        # that is loaded at the moment.
        plain = stored.as_subclass(type(stored))
        plain.__dict__.update(stored.__dict__, patches=[])
        return layer.get_weight(plain, torch.float32).to(device, torch.float32, copy=True)

    return unpack


def is_packed(patcher: Any, key: str) -> bool:
    """Whether a weight must be unpacked: by ComfyUI's quantizer, or as part of a GGUF model."""
    return isinstance(stored_weight(patcher, key), QuantizedTensor) or _is_ggml(patcher, key)


def _is_ggml(patcher: Any, key: str) -> bool:
    """Whether a layer of a GGUF model holds packed bytes; some hold plain numbers."""
    layer = comfy.utils.get_attr(patcher.model, key.rpartition(".")[0])
    return hasattr(layer, "is_ggml_quantized") and bool(layer.is_ggml_quantized())


def takes_patches(patcher: Any, key: str) -> bool:
    """Whether a patch has its full effect: the layer's type keeps it, or it is added after
    unpacking (GGUF). Rounding would remove it from fp8 and quantized layers.
    """
    return keeps_edits(patcher, key) or _is_ggml(patcher, key)


def keeps_edits(patcher: Any, key: str) -> bool:
    """Whether the layer is stored in a type that a small edit survives."""
    return stored_weight(patcher, key).dtype in KEEPS_EDITS and not is_packed(patcher, key)


class EffectiveWeights(Mapping[str, Tensor]):
    """The layers of an erasure by key. Each is read on access; one is in memory at a time."""

    def __init__(self, patcher: Any, keys: Sequence[str], workplace: Workplace) -> None:
        self._patcher, self._workplace = patcher, workplace
        self._keys = tuple(keys)
        self._last: tuple[str, Tensor] | None = None

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._keys:
            raise KeyError(key)
        device = self._workplace.device
        if self._last is None or self._last[0] != key or self._last[1].device != device:
            self._last = None  # first, so that there are never two
            self._last = (key, effective_weight(self._patcher, key, device))
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def open_model(patcher: Any, which: str = "V", workplace: Workplace | None = None) -> EditableModel:
    """Recognizes the family by the model's keys and shapes. Refuses all others.

    Args:
        patcher: ComfyUI's patcher of the model.
        which: Which layers are opened: `V` or `KV`.
        workplace: Where weights are read to; None: to the CPU.
    """
    workplace = workplace or Workplace()
    _refuse_isolation(patcher)
    _refuse_relatives(patcher)
    shapes = _logical_shapes(patcher)
    _refuse_packed(patcher, [key for key in shapes if reads_text(key)])
    architecture = detect(shapes)
    second = second_layer(architecture, shapes)
    editable = [*layers(architecture, shapes, which), *([second] if second else [])]
    _refuse_replaced(patcher, editable)
    weights = EffectiveWeights(patcher, [layer.canonical for layer in editable], workplace)
    return EditableModel(architecture, tuple(editable), weights)


def _logical_shapes(patcher: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the numbers: the state dict has bytes where a GGUF or 4-bit weight is packed."""
    state = patcher.model.state_dict()
    shapes: dict[str, tuple[int, ...]] = {}
    for key, value in state.items():
        is_stand_in = value.is_meta and not key.endswith(".temp.weight")
        is_packed = key.endswith(".weight") and f"{key[:-7]}.comfy_quant" in state
        from_layer = is_stand_in or is_packed
        shapes[key] = tuple((stored_weight(patcher, key) if from_layer else value).shape)
    return shapes


_RELATIVES = {"MingImage": "Ming-Image", "ZImagePixelSpace": "Z-Image in pixel space"}
"""ComfyUI's classes of models whose keys may be those of a family, but which read other text."""


def _refuse_relatives(patcher: Any) -> None:
    """Refuses a relative of a family that ComfyUI recognizes by more than its keys."""
    for kind in type(patcher.model).__mro__:
        if title := _RELATIVES.get(kind.__name__):
            raise UnsupportedModelError(
                f"This is {title}, which reads text in another way than the model that it was made"
                " from. SPEED can't edit it."
            )


def _refuse_isolation(patcher: Any) -> None:
    """Refuses a stand-in for a model that lives in another process: its weights are not here."""
    if not isinstance(patcher.model, torch.nn.Module):
        raise UnsupportedModelError(
            "ComfyUI runs SPEED in a separate process, where it can't read the model's weights."
            " Start ComfyUI without --use-process-isolation."
        )


def _refuse_packed(patcher: Any, keys: Sequence[str]) -> None:
    """Refuses weights that are packed in a way that cannot be unpacked here."""
    for key in keys:
        stored = stored_weight(patcher, key)
        if isinstance(stored, QuantizedTensor) or ggml_dequantizer(patcher, key) is not None:
            continue
        plain = type(stored) in (Tensor, torch.nn.Parameter)
        if not plain or not stored.dtype.is_floating_point or stored.is_meta:
            kind = str(stored.dtype).removeprefix("torch.") if plain else type(stored).__name__
            raise UnsupportedModelError(
                f"The weights of this model are packed by a quantizer ({kind}, at {key}). Erase on"
                " the fp16 checkpoint, save the LoRA, and load that LoRA on this model."
            )


def _refuse_replaced(patcher: Any, editable: Sequence[LayerKey]) -> None:
    """Refuses a layer that another node has replaced: its weight, and so the edit, is not used."""
    for path in getattr(patcher, "object_patches", {}):
        holds_edits = any(layer.canonical.startswith(f"{path}.") for layer in editable)
        # A wrapper around the whole model still runs its layers.
        if holds_edits and path != "diffusion_model":
            raise UnsupportedModelError(
                f"Another node, probably a compiler or quantizer, has replaced '{path}' in this"
                " model. Put this node before that one."
            )
