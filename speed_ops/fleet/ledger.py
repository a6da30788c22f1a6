"""What became of every model of a fleet's run: one line of JSON each, written when it happens and
never changed.

A later line about a model replaces an earlier one. A run that is killed can leave half a line at
the end, which counts as not written; the next run leaves it out. Only one run at a time holds a
ledger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..checkpoints.save import output_folder
from ..errors import FileError
from ..files.atomic import write_bytes, write_error
from ..files.results import output_lock


@dataclass(frozen=True)
class Entry:
    """One model. `cleaned` is done; `skipped` and `failed` say why in `detail`."""

    model: str
    """Path or URL."""
    status: str
    detail: str = ""
    code: str = ""
    """Of a failure, for programs."""
    stamp: str = ""
    """Changes when the model's file does."""
    job: str = ""
    """Hash of what was asked for: another job on the same model is another matter."""
    files: Mapping[str, str] = field(default_factory=dict)
    """{product: path or URL} of what was written."""
    seconds: float = 0.0
    machine: str = ""
    """The host that did it."""
    attempts: int = 1
    when: str = ""
    """Time of the line, UTC."""

    def says_the_same(self, other: Entry | None) -> bool:
        """Whether a line about this would tell nothing new."""
        facts = ("status", "detail", "stamp", "job")
        return other is not None and all(
            getattr(self, name) == getattr(other, name) for name in facts
        )

    def line(self) -> bytes:
        """As the ledger has it."""
        return json.dumps(asdict(self), ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


_FIELDS = {item.name for item in fields(Entry)}


class Ledger:
    """Made by `open_ledger`."""

    def __init__(self, path: Path, entries: dict[str, Entry]) -> None:
        self.path = path
        self.entries = entries
        """The last word on each model."""

    def add(self, entry: Entry) -> None:
        """On the disk when this returns."""
        if entry.says_the_same(self.entries.get(entry.model)):
            return
        try:
            with self.path.open("ab") as handle:
                handle.write(entry.line())
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise write_error(self.path, error) from error
        self.entries[entry.model] = entry


@contextmanager
def open_ledger(path: Path) -> Iterator[Ledger]:
    """The ledger of earlier runs or a new one, ours until the end of the block.

    One with more lines than models, or with half a line at its end, is replaced by a short one.
    """
    with output_folder(path.parent), output_lock(path.parent, path.name):
        entries, whole = _read(path)
        if not whole:
            write_bytes(path, b"".join(entry.line() for entry in entries.values()), force=True)
        yield Ledger(path, entries)


def read_ledger(path: Path) -> Ledger:
    """What it says now; for those who write nothing."""
    return Ledger(path, _read(path)[0])


def _read(path: Path) -> tuple[dict[str, Entry], bool]:
    """The last word on each model, and whether the file says just that."""
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise FileError(f"Cannot read the ledger {path}: {error.strerror or error}.") from error
    *lines, rest = content.split(b"\n")
    entries: dict[str, Entry] = {}
    for number, line in enumerate(lines, 1):
        entry = _entry(line)
        if entry is None:
            raise FileError(
                f"Line {number} of the ledger {path} cannot be read: take it out, or move the file"
                " away; then every model is looked at anew."
            )
        entries[entry.model] = entry
    return entries, not rest and len(lines) == len(entries)


def _entry(line: bytes) -> Entry | None:
    try:
        value: Any = json.loads(line)
    except ValueError:
        return None
    known = (
        isinstance(value, dict)
        and isinstance(value.get("model"), str)
        and isinstance(value.get("status"), str)
    )
    if not known or not isinstance(value.get("files", {}), dict):
        return None
    return Entry(**{name: content for name, content in value.items() if name in _FIELDS})
