"""What every reader of files shares: one sentence for a fault, and bounded pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import FileError

_CHUNK = 4 << 20


@contextmanager
def reading(label: Path | str) -> Iterator[None]:
    """Turns what the operating system refuses, or a path that no file can have, into a
    FileError.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"Cannot read {label}: {reason}.") from error


def open_to_read(path: Path, label: Path | str) -> BinaryIO:
    """Opens a file; messages call it `label`."""
    with reading(label):
        return path.open("rb")


def chunks(source: BinaryIO, size: int, label: Path | str) -> Iterator[bytes]:
    """The next bytes of an open file, piece by piece.

    Args:
        source: The open file.
        size: Number of bytes.
        label: What messages call the file.
    """
    while size > 0:
        with reading(label):
            chunk = source.read(min(_CHUNK, size))
        if not chunk:
            raise FileError(f"{label} became shorter while it was read.")
        yield chunk
        size -= len(chunk)
