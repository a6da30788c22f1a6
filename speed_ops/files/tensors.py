"""Tensors and the bytes of a safetensors file: types, scales, hashes, and the one writer of tensor
files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..errors import FileError
from ..progress import Progress, Stage
from .atomic import atomic_write
from .header import DTYPE_BITS, TensorEntry, encode_header

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}

DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
EDITABLE = ("F16", "BF16", "F32", "F64")
"""Types that hold an edit; in 8 bits it would drown in rounding."""
_SCALES = ("scale_weight", "weight_scale")
"""What the scale is called instead of `weight`: the older name and ComfyUI's newer one."""
_SHIFTS = ("weight_zero_point", "zero_point", "weight_offset")
_NOTE = "comfy_quant"
_PLAIN_NOTE = {"format", "group_size", "block_size", "per_row", "full_precision_matrix_mult"}
"""What ComfyUI's note about a quantized layer contains if its numbers are only scaled, and not
rotated or packed as well.
"""
_LONGEST_NOTE = 2_000
_INSTEAD = (
    "Use the fp16, bf16, fp32 or fp8 file, make the LoRA with it, and load the LoRA on this model"
)


def from_bytes(content: bytearray, dtype: str, shape: tuple[int, ...], key: str) -> Tensor:
    """A tensor on these bytes.

    Args:
        content: The bytes; the tensor owns them.
        dtype: Type as the file names it.
        shape: The tensor's shape.
        key: The tensor's name, for messages.
    """
    if dtype not in TORCH_DTYPES:
        raise FileError(
            f"Tensor {key} is stored as {dtype}, which cannot be read here. Use the fp16, bf16 or"
            " fp32 file."
        )
    if not content:
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    return torch.frombuffer(content, dtype=TORCH_DTYPES[dtype]).reshape(shape)


def to_bytes(value: Tensor) -> bytes:
    """The bytes of a tensor in its own dtype, in the order of its elements."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def narrow(value: Tensor, dtype: torch.dtype, title: str) -> Tensor:
    """`value` rounded to nearest in `dtype`; refused where it is not finite, before or after.

    Args:
        value: The tensor.
        dtype: Type of the result.
        title: What messages call the tensor.
    """
    value = value.detach().cpu()
    if not torch.isfinite(value).all():
        raise FileError(
            f"{title} contains NaN or infinite values, so it was not written. Use an intact model."
        )
    narrowed = value.to(dtype)
    if not torch.isfinite(narrowed).all():
        name = str(dtype).removeprefix("torch.")
        raise FileError(
            f"{title} is too large for {name} (values up to {value.abs().max():.3g}). Save it in"
            " float32."
        )
    return narrowed


def read_scaled(
    read: Callable[[str], Tensor], present: Container[str], key: str
) -> tuple[Tensor, bool]:
    """A weight as it is stored, or, if it has 8 bits and a scale, in float32 with the scale
    multiplied in (then True). Refuses packed integers, and integers without a scale.

    Args:
        read: Reads a tensor by key.
        present: All keys of the file.
        key: The weight's key.
    """
    value, start = read(key), key.removesuffix("weight")
    if value.element_size() > 1 and value.dtype.is_floating_point:
        return value, False
    companions = [start + name for name in (*_SCALES, *_SHIFTS, _NOTE) if start + name in present]
    scale = companions[0] if companions and companions[0].endswith(_SCALES) else None
    if not value.dtype.is_floating_point:
        if value.dtype != torch.int8 or value.dim() < 2:
            kind = DTYPE_NAMES.get(value.dtype, str(value.dtype))
            raise FileError(
                f"Tensor {key} holds packed numbers ({kind}), which cannot be read here."
                f" {_INSTEAD}."
            )
        if scale is None:
            raise FileError(f"Tensor {key} holds 8-bit integers without their scale. {_INSTEAD}.")
        shifted = any(name.endswith(_SHIFTS) for name in companions)
        if shifted or (start + _NOTE in companions and not _is_plain(read(start + _NOTE))):
            raise FileError(
                f"Tensor {key} holds integers that are not only scaled, but changed otherwise."
                f" {_INSTEAD}."
            )
    if scale is None:
        return value, False
    return value.to(torch.float32) * _broadcast(read(scale), value, scale), True


def _is_plain(note: Tensor) -> bool:
    """Whether ComfyUI's note about a layer contains nothing but how it is scaled."""
    try:
        fields = json.loads(bytes(note.reshape(-1)[:_LONGEST_NOTE].tolist()))
    except (ValueError, TypeError, RecursionError):
        return False
    return (
        isinstance(fields, dict)
        and str(fields.get("format")).startswith("int8")
        and fields.keys() <= _PLAIN_NOTE
    )


def _broadcast(scale: Tensor, value: Tensor, key: str) -> Tensor:
    """A scale as it multiplies the weight: one for all, one per output, or one per block of an
    output.
    """
    if not scale.dtype.is_floating_point:
        raise FileError(f"Tensor {key} is a scale that is not a single number. {_INSTEAD}.")
    scale = scale.to(torch.float32)
    if scale.numel() == 1:
        return scale.reshape(())
    outputs, inputs = (*value.shape, 0, 0)[:2]
    if value.dim() == 2 and tuple(scale.shape) in ((outputs,), (outputs, 1)):
        return scale.reshape(outputs, 1)
    blocks = scale.shape[1] if scale.dim() == 2 else 0
    if value.dim() == 2 and blocks and scale.shape[0] == outputs and inputs % blocks == 0:
        return scale.repeat_interleave(inputs // blocks, dim=1)
    shapes = f"{tuple(scale.shape)} for a weight of {tuple(value.shape)}"
    raise FileError(f"Tensor {key} is a scale of an unknown form, {shapes}. {_INSTEAD}.")


Kinds = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name -> (type as the file names it, shape), in the order of the file."""


def kinds_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (DTYPE_NAMES[value.dtype], tuple(value.shape)) for name, value in tensors.items()}


def placed(kinds: Kinds) -> dict[str, TensorEntry]:
    """Where each tensor is: one after the other, without gaps."""
    entries: dict[str, TensorEntry] = {}
    position = 0
    for name, (dtype, shape) in kinds.items():
        size = math.prod(shape) * DTYPE_BITS[dtype] // 8
        entries[name] = TensorEntry(dtype, shape, position, position + size)
        position += size
    return entries


def write_tensors(
    path: Path,
    kinds: Kinds,
    values: Iterable[Tensor],
    metadata: Mapping[str, str],
    *,
    force: bool = False,
    progress: Progress | None = None,
    stage: Stage = "write",
) -> None:
    """A safetensors file, tensor by tensor; it appears under its name when it is complete.

    The same content gives the same bytes, which the reference library's writer does not promise.

    Args:
        path: Where to write.
        kinds: Name -> (type, shape), in the order of the file.
        values: The tensors, in the order of `kinds`.
        metadata: Values for the header.
        force: Replace an existing file.
        progress: Called with (`stage`, bytes done, all bytes) after each tensor.
        stage: What `progress` receives.
    """
    entries = placed(kinds)
    total = max((entry.end for entry in entries.values()), default=0)
    with atomic_write(path, force=force) as handle:
        handle.write(encode_header(entries, dict(metadata)))
        for entry, value in zip(entries.values(), values, strict=True):
            content = to_bytes(value)
            if len(content) != entry.end - entry.begin:
                raise FileError(f"A tensor for {path} has an unexpected size: nothing was written.")
            handle.write(content)
            if progress is not None:
                progress(stage, entry.end, total)


def tensors_hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in the order given, one tensor at a time."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(to_bytes(tensor))
    return digest.hexdigest()
