"""What became of every model of a fleet's run: one line of JSON each, appended when it happens.

A later line about a model replaces an earlier one. A killed run can leave half a line at the end,
which is ignored. Only one run at a time holds a ledger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import FileError
from ..files.atomic import output_folder, output_lock, write_bytes, write_error
from ..files.schema import load_json, read_bounded


@dataclass(frozen=True)
class LedgerEntry:
    """One model: `cleaned`, or `skipped` or `failed` with the reason in `detail`."""

    model: str
    """Path or URL."""
    status: str
    detail: str = ""
    code: str = ""
    """Error code of a failure."""
    stamp: str = ""
    """Changes when the model's file does."""
    job: str = ""
    """Hash of the job: another job on the same model is not done yet."""
    files: Mapping[str, str] = field(default_factory=dict)
    """{product: path or URL} of what was written."""
    seconds: float = 0.0
    machine: str = ""
    """The host that did it."""
    attempts: int = 1
    when: str = ""
    """Time of the line, UTC."""

    def line(self) -> bytes:
        """As it is in the file."""
        return json.dumps(asdict(self), ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


_TYPES = {"seconds": (int, float), "attempts": int, "files": dict}
_FIELDS: dict[str, Any] = {item.name: _TYPES.get(item.name, str) for item in fields(LedgerEntry)}
MAX_BYTES = 500_000_000


class Ledger:
    """Made by `open_ledger` or `read_ledger`."""

    def __init__(self, path: Path, entries: dict[str, LedgerEntry]) -> None:
        self.path = path
        self.entries = entries
        """{model: its latest entry}"""

    def add(self, entry: LedgerEntry) -> None:
        """Appends a line, unless it repeats the last one; it is on the disk when this returns."""
        earlier = self.entries.get(entry.model)
        names = ("status", "detail", "stamp", "job")
        if earlier and all(getattr(entry, name) == getattr(earlier, name) for name in names):
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
    """The ledger of earlier runs or a new one, locked for the block and rewritten if it has more
    lines than models or half a line at its end.
    """
    with output_folder(path.parent), output_lock(path.parent, path.name):
        entries, compact = _read(path)
        if not compact:
            write_bytes(path, b"".join(entry.line() for entry in entries.values()), force=True)
        yield Ledger(path, entries)


def read_ledger(path: Path) -> Ledger:
    """The ledger as it is now, without a lock."""
    return Ledger(path, _read(path)[0])


def _read(path: Path) -> tuple[dict[str, LedgerEntry], bool]:
    """{model: its latest entry}, and whether the file has exactly these lines."""
    content = read_bounded(path, MAX_BYTES) if path.exists() else b""
    if len(content) > MAX_BYTES:
        raise FileError(f"The ledger {path} is longer than any run needs. Move it away.")
    *lines, unfinished = content.split(b"\n")
    entries: dict[str, LedgerEntry] = {}
    for number, line in enumerate(lines, 1):
        try:
            values = load_json(line, "The line", MAX_BYTES)
            entry = LedgerEntry(**{name: values[name] for name in _FIELDS.keys() & values.keys()})
            if not all(isinstance(getattr(entry, name), kind) for name, kind in _FIELDS.items()):
                raise TypeError
            if not all(isinstance(location, str) for location in entry.files.values()):
                raise TypeError
        except (FileError, TypeError, AttributeError) as error:
            raise FileError(
                f"Line {number} of the ledger {path} cannot be read. Remove the line, or move the"
                " file away to check every model again."
            ) from error
        entries[entry.model] = entry
    return entries, not unfinished and len(lines) == len(entries)
