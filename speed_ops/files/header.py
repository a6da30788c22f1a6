"""The header of a safetensors file, read strictly: what is accepted here is sound to the byte.

Layout: 8 bytes little-endian length n, n bytes of JSON (padded with spaces), then the tensors'
bytes without gaps. The JSON is one object: `__metadata__` holds strings, every other entry
`{"dtype", "shape", "data_offsets"}`.
"""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import FileError
from .schema import load_json, reading

MAX_HEADER_BYTES = 16_000_000
"""Many times what the largest models have. One character outside the basic plane makes Python keep
the text, and the string read from it, at four bytes per character: ten times this length at
worst."""
MAX_TENSORS = 200_000
_MAX_RANK = 16

DTYPE_BITS: dict[str, int] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(
        ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8
    ),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
PICKLE_SUFFIXES = (".ckpt", ".pt", ".pth", ".bin", ".pkl")
_FOREIGN = {
    b"GGUF": "is a GGUF file, whose weights are packed. Use the fp16, bf16 or fp32 safetensors"
    " file.",
    b"version": "is a Git LFS pointer, not the model itself. Run `git lfs pull` or download the"
    " file.",
    b"<": "is a web page, not a model. Download it again.",
}
"""First bytes of files that people take for a model; in a safetensors file they are a length."""
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor's bytes: `begin` and `end` count from the first byte after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _entry(name: str, value: object) -> TensorEntry:
    """Checks one description. A ValueError ends the sentence."""
    if not isinstance(value, dict) or value.keys() != {"data_offsets", "dtype", "shape"}:
        raise ValueError(
            f"tensor {name!r} must have dtype, shape and data_offsets, and nothing else"
        )
    dtype, shape, offsets = value["dtype"], _sizes(value["shape"]), _sizes(value["data_offsets"])
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"tensor {name!r} has the unknown type {str(dtype)[:40]!r}")
    if shape is None or len(shape) > _MAX_RANK:
        raise ValueError(f"tensor {name!r} has an impossible shape")
    if offsets is None or len(offsets) != 2:
        raise ValueError(f"tensor {name!r} has impossible offsets")
    size = offsets[1] - offsets[0]
    if size * 8 != math.prod(shape) * DTYPE_BITS[dtype]:
        raise ValueError(f"tensor {name!r} has {size} bytes, which do not fit its shape and type")
    return TensorEntry(dtype, shape, *offsets)


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("its metadata are not strings")
    for name, text in value.items():
        (name + text).encode()  # half a surrogate pair is a ValueError: no reader accepts it
    return value


def _sizes(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(item) is int and 0 <= item < 2**60 for item in value):
        return tuple(value)
    return None


def pickle_refusal(label: str) -> FileError:
    """The sentence for a pickle checkpoint, which can run any code when it is opened."""
    return FileError(
        f"{label} is a pickle checkpoint, and opening one can run code. Convert it to safetensors"
        " first (in ComfyUI: Load Checkpoint, then Save Checkpoint), and use the new file."
    )


@dataclass(frozen=True)
class Header:
    """A header that has been checked against its file."""

    entries: dict[str, TensorEntry]
    """In the order of the header."""
    metadata: dict[str, str]
    data_start: int
    """Offset of the first tensor byte in the file."""
    stamp: tuple[int, ...] = ()
    """Identity, size and time of the file when it was read; empty where there is none."""

    @property
    def data_size(self) -> int:
        """Bytes of all tensors together."""
        return max((entry.end for entry in self.entries.values()), default=0)

    def by_offset(self) -> list[tuple[str, TensorEntry]]:
        """The tensors in the order of their bytes."""
        return sorted(self.entries.items(), key=lambda item: (item[1].begin, item[1].end))


def read_header(path: Path | str, label: str = "") -> Header:
    """Reads and checks the header of a file that anyone may have written. Messages call it `label`,
    such as the URL that it was fetched from, or by its path.
    """
    path, label = Path(path), label or str(path)
    with reading(label):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{label} is not a file.")
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            start = handle.read(8)
            _refuse_start(start, size, path.suffix, label)
            length = int.from_bytes(start, "little")
            raw = handle.read(length)
    if len(raw) != length:
        raise _broken(label, "it became shorter while it was read")
    return replace(parse_header(raw, size - 8 - length, label), stamp=stamp_of(status))


def _refuse_start(start: bytes, size: int, suffix: str, label: str) -> None:
    """Refuses a file whose name or first 8 bytes show that it is something else, or not whole."""
    length = int.from_bytes(start, "little")
    plausible = length <= min(size - 8, MAX_HEADER_BYTES)
    if suffix.lower() in PICKLE_SUFFIXES or (not plausible and start.startswith(_PICKLES)):
        raise pickle_refusal(label)
    if plausible:
        return
    for foreign, sentence in _FOREIGN.items():
        if start.startswith(foreign):
            raise FileError(f"{label} {sentence}")
    if size < 8:
        raise _broken(label, f"it is only {size} bytes long. Download or copy it again")
    if length > size - 8:
        raise _broken(
            label,
            f"its header claims {length} bytes but the file has {size}: it is truncated or not a"
            " safetensors file. Download it again",
        )
    raise _broken(label, f"its header of {length} bytes is larger than any model needs")


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is replaced or written to."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def parse_header(raw: bytes, data_size: int, label: str) -> Header:
    """Checks a header.

    Args:
        raw: The JSON alone.
        data_size: Bytes of the file after the header.
        label: Path or URL of the file, for messages.
    """
    if raw[:1] != b"{":
        raise _broken(label, "its header is malformed: '{' is missing")
    values = load_json(
        raw, f"{label} cannot be used: its header", MAX_HEADER_BYTES, 3 * MAX_TENSORS + 10
    )
    try:
        metadata = _metadata(values.pop("__metadata__", {}))
        if len(values) > MAX_TENSORS:
            raise ValueError(f"more than {MAX_TENSORS} tensors")
        "".join(values).encode()
        entries = {name: _entry(name[:100], value) for name, value in values.items()}
    except ValueError as error:
        raise _broken(label, f"its header is malformed: {error}") from None
    header = Header(entries, metadata, 8 + len(raw))
    position = 0
    for name, entry in header.by_offset():
        if entry.begin != position:
            raise _broken(
                label, f"tensor {name[:100]!r} begins at byte {entry.begin} instead of {position}"
            )
        position = entry.end
    if position > data_size:
        raise _broken(label, f"it holds {data_size} of {position} bytes. Download or copy it again")
    if position < data_size:
        raise _broken(
            label, f"it holds {data_size - position} bytes more than its header describes"
        )
    return header


def encode_header(entries: dict[str, TensorEntry], metadata: dict[str, str]) -> bytes:
    """Length and JSON, padded so that the tensors begin at a multiple of 8 bytes."""
    content: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, entry in entries.items():
        content[name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (entry.begin, entry.end),
        }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise FileError(
            f"The header would be {len(text)} bytes long, too long to be read back. Shorten the"
            " metadata."
        )
    return len(text).to_bytes(8, "little") + text


def _broken(label: str, reason: str) -> FileError:
    return FileError(f"{label} cannot be used: {reason}.")
