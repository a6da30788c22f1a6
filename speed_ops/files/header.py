"""The header of a safetensors file, read strictly: what is accepted here is sound to the byte.

Layout: 8 bytes little-endian length n, n bytes of JSON (padded with spaces), then the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import FileError
from .header_text import TensorEntry, walk
from .not_safetensors import refuse_other_formats

MAX_HEADER_BYTES = 16_000_000
"""Many times what the largest models have. One character outside the basic plane makes Python keep the text, and the
string read from it, at four bytes a character: ten times this length at the worst."""


@dataclass(frozen=True)
class Header:
    """A header that has been checked against its file."""

    entries: dict[str, TensorEntry]
    """In the order of the header."""
    metadata: dict[str, str]
    data_start: int
    """Offset of the first tensor byte in the file."""

    @property
    def data_size(self) -> int:
        """Bytes of all tensors together."""
        return max((entry.end for entry in self.entries.values()), default=0)

    def by_offset(self) -> list[tuple[str, TensorEntry]]:
        """The tensors in the order of their bytes."""
        return sorted(self.entries.items(), key=lambda item: (item[1].begin, item[1].end))


def read_header(path: Path | str) -> Header:
    """Read and check the header of a file that anybody may have written."""
    path = Path(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileError(f"{path} is not a file.")
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            start = handle.read(8)
            length = int.from_bytes(start, "little")
            refuse_other_formats(path, start, plausible=length <= min(size - 8, MAX_HEADER_BYTES))
            if size < 8:
                raise _broken(path, f"it is only {size} bytes long; download or copy it again")
            if length > size - 8:
                raise _broken(
                    path, f"its header claims {length} bytes, the file has {size}: it is truncated or no safetensors"
                )
            if length > MAX_HEADER_BYTES:
                raise _broken(path, f"its header of {length} bytes is larger than any model needs")
            raw = handle.read(length)
    except FileNotFoundError:
        raise FileError(f"There is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise FileError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    if len(raw) != length:
        raise _broken(path, "it became shorter while it was read")
    return parse_header(raw, size - 8 - length, path)


def parse_header(raw: bytes, data_size: int, path: Path) -> Header:
    """Check `raw` (the JSON alone) for a file that holds `data_size` bytes after it; `path` is for messages."""
    try:
        entries, metadata = walk(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise _broken(path, "its header is not text") from None
    except (ValueError, IndexError) as error:
        raise _broken(path, f"its header is not as it should be: {error}") from None
    header = Header(entries, metadata, 8 + len(raw))
    position = 0
    for name, entry in header.by_offset():
        if entry.begin != position:
            raise _broken(path, f"tensor {name[:100]!r} begins at byte {entry.begin} instead of {position}")
        position = entry.end
    if position > data_size:
        raise _broken(path, f"it holds {data_size} of {position} bytes: download or copy it again")
    if position < data_size:
        raise _broken(path, f"it holds {data_size - position} bytes more than its header describes")
    return header


def encode_header(entries: dict[str, TensorEntry], metadata: dict[str, str]) -> bytes:
    """Length and JSON, padded so that the tensors begin at a multiple of 8 bytes; order of `entries` kept."""
    content: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, entry in entries.items():
        content[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (entry.begin, entry.end)}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise FileError(f"The header would be {len(text)} bytes long, too long to be read back: shorten the metadata.")
    return len(text).to_bytes(8, "little") + text


def _broken(path: Path, reason: str) -> FileError:
    return FileError(f"{path} cannot be used: {reason}.")
