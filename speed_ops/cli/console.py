"""What a person or a machine sees: bars on a terminal, plain lines in a pipe, JSON for machines.

Names, headers and paths come from files that anybody may have written. Nothing of them reaches a
terminal that could act on it or hide in it, and no stream that is closed, full or without our
characters ends a run with a traceback.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from types import TracebackType
from typing import Any

from ..errors import OutputError
from ..progress import TITLES, Stage


class Console:
    """Results go to stdout; progress, notes and errors to stderr.

    `machine`: stdout holds one JSON value only. `lines`: it holds one JSON value a line.
    """

    def __init__(self, *, quiet: bool = False, machine: bool = False, lines: bool = False) -> None:
        self.quiet, self.machine, self.lines = quiet, machine or lines, lines
        self._bars = None if quiet or self.machine or not _is_terminal() else _make_bars()
        self._tasks: dict[str, Any] = {}
        self._stage: Stage | None = None
        self._started = 0.0

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def say(self, text: str = "") -> None:
        """A line of the result, for people. Line breaks in it can only come from a file, and are
        spelled out.
        """
        if not self.quiet and not self.machine:
            self.clear()
            write_result(visible(text))

    def page(self, text: str) -> None:
        """Several lines of the result."""
        for line in text.split("\n"):
            self.say(line)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Aligned columns; the first to the left, the others to the right."""
        shown = [[visible(cell) for cell in line] for line in (header, *rows)]
        widths = [max(len(line[i]) for line in shown) for i in range(len(header))]
        for line in shown:
            cells = [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
            ]
            self.say("  ".join(cells).rstrip())

    def note(self, text: str) -> None:
        """Something worth knowing beside the result."""
        if not self.quiet:
            self.clear()
            _write_aside(visible(f"Note: {text}"))

    def error(self, text: str) -> None:
        """Said even when quiet."""
        self.clear()
        _write_aside("\n".join(visible(line) for line in f"speed-erase: {text}".split("\n")))

    def fault(self, code: str, text: str) -> None:
        """Why it failed: a sentence for people, an object for machines."""
        self.error(text)
        self.result({"error": {"code": code, "message": text}})

    def result(self, value: Any) -> None:
        """The whole result, for machines; in lines, the last of them."""
        if self.machine:
            write_result(
                json.dumps(
                    value, ensure_ascii=False, indent=None if self.lines else 2, default=str
                ),
                _in_json,
            )

    def part(self, value: Any) -> None:
        """A part of the result, for machines that read lines."""
        if self.lines:
            self.result(value)

    def progress(self, stage: Stage, done: int, total: int) -> None:
        """Given to everything that takes time."""
        if self.quiet or self.machine:
            return
        title = TITLES[stage]
        if self._bars is not None:
            self._move_bar(title, done, total)
        elif stage != self._stage:
            self._stage, self._started = stage, time.perf_counter()
        elif done >= total > 0 and self._started:
            _write_aside(
                f"{title}: {_amount(stage, total)}, {time.perf_counter() - self._started:.1f} s"
            )
            self._started = 0.0

    def clear(self) -> None:
        """Takes bars off the screen before anything else is written."""
        if self._bars is not None and self._tasks:
            self._bars.stop()
            self._bars, self._tasks = _make_bars(), {}

    def _move_bar(self, title: str, done: int, total: int) -> None:
        assert self._bars is not None
        if not self._tasks:
            self._bars.start()
        if title not in self._tasks:
            self._tasks[title] = self._bars.add_task(title, total=max(total, 1))
        self._bars.update(self._tasks[title], completed=done if total else 1, total=max(total, 1))


def _amount(stage: Stage, total: int) -> str:
    return f"{total / 1e6:.0f} MB" if stage in ("hash", "write", "compare", "demo") else str(total)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _make_bars() -> Any:
    """Rich's bars on stderr; None where rich is not installed."""
    try:
        from rich.console import Console as Screen
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(bar_width=32),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Screen(stderr=True))


_ODD = re.compile(r"[^\t -~]")
_ODD_IN_JSON = re.compile(r"[^\n -~]")
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that show nothing."""


def visible(text: str) -> str:
    """The line with all that acts on a terminal, or hides in it, spelled out: control and format
    characters.
    """
    return _ODD.sub(lambda found: found[0] if _shows(found[0]) else _spelled(found[0]), text)


@lru_cache(4096)
def _shows(char: str) -> bool:
    """Whether a character is what a reader sees, and no more."""
    # the latter select variants, and can carry a message
    if char in _BLANK or "\U000e0100" <= char <= "\U000e01ef":
        return False
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _spelled(char: str) -> str:
    """As a Python string would spell it; a byte of a name that is no UTF-8 as that byte."""
    number = ord(char)
    if 0xDC80 <= number <= 0xDCFF:
        number -= 0xDC00
    return (
        f"\\x{number:02x}"
        if number < 256
        else f"\\u{number:04x}"
        if number < 65536
        else f"\\U{number:08x}"
    )


_PLAIN = {
    "→": "->",
    "—": "-",
    "–": "-",
    "…": "...",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "×": "x",
    "ß": "ss",
}
_PLAIN |= {
    "ø": "o",
    "Ø": "O",
    "ł": "l",
    "Ł": "L",
    "đ": "d",
    "Đ": "D",
    "æ": "ae",
    "Æ": "AE",
    "œ": "oe",
    "Œ": "OE",
}


@lru_cache(4096)
def _in_text(char: str, encoding: str) -> str:
    """A character, or what comes closest to it in an encoding that lacks it."""
    bare = "".join(
        part for part in unicodedata.normalize("NFKD", char) if not unicodedata.combining(part)
    )
    return next(
        (one for one in (char, _PLAIN.get(char), bare) if one and _has(encoding, one)),
        _spelled(char),
    )


@lru_cache(4096)
def _in_json(char: str, encoding: str) -> str:
    """A character of a JSON text, escaped where a terminal could act on it: what is parsed stays
    the same.
    """
    if _shows(char) and _has(encoding, char):
        return char
    pair = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pair[i]:02x}{pair[i + 1]:02x}" for i in range(0, len(pair), 2))


def _has(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def write_result(text: str, spell: Callable[[str, str], str] = _in_text) -> None:
    """Lines of the result, in whatever encoding stdout has; one that was closed from the start
    takes nothing.
    """
    try:
        _write(sys.stdout, text, spell)
    except (OSError, ValueError) as error:
        _silence(sys.stdout)
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"Cannot write the result to standard output: {reason}.") from error


def _write_aside(text: str) -> None:
    """To stderr. That nobody reads it is no reason to stop."""
    try:
        _write(sys.stderr, text, _in_text)
    except (OSError, ValueError):
        _silence(sys.stderr)


def _write(stream: Any, text: str, spell: Callable[[str, str], str]) -> None:
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(_ODD_IN_JSON.sub(lambda found: spell(found[0], encoding), text) + "\n")
    stream.flush()


def _silence(stream: Any) -> None:
    """What is left in the buffer of a dead stream goes nowhere, or Python would complain of it at
    the end.
    """
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
