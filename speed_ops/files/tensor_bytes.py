"""Between tensors and the bytes of a safetensors file."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import FileError

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


def from_bytes(content: bytearray, dtype: str, shape: tuple[int, ...], key: str) -> Tensor:
    """The tensor these bytes are; it owns `content`."""
    if dtype not in TORCH_DTYPES:
        raise FileError(
            f"Tensor {key} is stored as {dtype}, which cannot be read here: use the fp16, bf16 or fp32 file."
        )
    if not content:
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    return torch.frombuffer(content, dtype=TORCH_DTYPES[dtype]).reshape(shape)


def to_bytes(value: Tensor) -> bytes:
    """The bytes of a tensor in its own dtype, in the order of its elements."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def narrow(value: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """`value` rounded to nearest in `dtype`; refused where it is not finite, before or after."""
    value = value.detach().cpu()
    if not torch.isfinite(value).all():
        raise FileError(f"{what} holds NaN or infinite values and was not written.")
    narrowed = value.to(dtype)
    if not torch.isfinite(narrowed).all():
        name = str(dtype).removeprefix("torch.")
        raise FileError(f"{what} is too large for {name} (values to {value.abs().max():.3g}): save it in float32.")
    return narrowed
