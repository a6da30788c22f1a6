"""What people and programs read: bars and colors on a terminal, dense lines in a pipe, JSON.

Names, headers and paths come from files that anyone may have written: characters that a terminal
acts on, or that hide text, are shown as escapes. A stream that is closed, full or limited to an old
encoding never ends a run with a traceback.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import zip_longest
from types import TracebackType
from typing import Any

from ..errors import OutputError
from ..progress import TITLES, Stage
from .advice import advised


class Console:
    """Writes results to stdout; progress, notes and errors to stderr.

    Args:
        quiet: Write errors only.
        machine: Write one JSON value to stdout, and nothing else.
        lines: Write one JSON value per line to stdout, and nothing else.
        verbose: Also write measurements, and how long each stage takes.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        machine: bool = False,
        lines: bool = False,
        verbose: bool = False,
    ) -> None:
        self.quiet, self.machine, self.lines = quiet, machine or lines, lines
        self.verbose, self.decorated = verbose, _takes_marks(sys.stdout)
        watched = _is_watched(sys.stderr)
        self._bars = _make_bars() if watched and not quiet and not self.machine else None
        self._tasks: dict[str, Any] = {}
        self._stage: Stage | None = None
        self._started = self._reported = time.perf_counter()

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def say(self, text: str = "", mark: str = "") -> None:
        """Writes a line of the result, for people. A line break inside it comes from a file, and is
        shown as an escape.

        Args:
            text: The line.
            mark: What a terminal shows before it: a verdict, or a space to align the line.
        """
        if not self.quiet and not self.machine:
            self.clear()
            write_result(
                (_MARKS.get(mark, "  ") if mark and self.decorated else "") + visible(text)
            )

    def gap(self) -> None:
        """Writes an empty line on a terminal."""
        if self.decorated:
            self.say()

    def page(self, text: str) -> None:
        """Writes several lines of the result."""
        for line in text.split("\n"):
            self.say(line)

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: Collection[int] = (),
        marks: Sequence[str] = (),
        indent: str = "",
    ) -> None:
        """Writes aligned columns.

        Args:
            header: Titles of the columns; none if it is empty.
            rows: Their cells.
            right: Columns that are aligned to the right.
            marks: What a terminal shows before each row: see `say`.
            indent: Before each line.
        """
        if self.quiet or self.machine:
            return
        from rich.console import Console as Screen
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, 2, 0, 0),
            header_style="",
            show_header=bool(header),
        )
        for index in range(len(header) or max(map(len, rows), default=0)):
            justify: Any = "right" if index in right else "left"
            title = visible(header[index]) if header else ""
            table.add_column(Text(title), justify=justify, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(visible(cell)) for cell in row))
        drawing = io.StringIO()
        Screen(file=drawing, width=10_000, color_system=None).print(table)
        head = [""] * bool(header)
        for line, mark in zip_longest(drawing.getvalue().splitlines(), [*head, *marks]):
            self.say(indent + line.rstrip(), mark or "")

    def note(self, text: str) -> None:
        """Writes something worth knowing in addition to the result."""
        if not self.quiet:
            self.clear()
            announced = getattr(text, "code", "").startswith("encoding")
            _write_aside(visible(f"{'' if announced else 'Note: '}{advised(text)}"))

    def error(self, text: str) -> None:
        """Writes an error, even when quiet."""
        self.clear()
        _write_aside(visible_lines(f"speed-erase: {text}"))

    def fault(self, code: str, text: str) -> None:
        """Writes why it failed: a sentence for people, an object for machines."""
        self.error(text)
        self.result({"error": {"code": code, "message": text}})

    def result(self, value: Any) -> None:
        """Writes the complete result, for machines that read one value or lines."""
        if self.machine:
            # ASCII is the same in every encoding; DEL is the one control character left in it.
            text = json.dumps(value, indent=None if self.lines else 2, default=str)
            write_result(text.replace("\x7f", "\\u007f"))

    def part(self, value: Any) -> None:
        """Writes a part of the result, for machines that read lines."""
        if self.lines:
            self.result(value)

    def progress(self, stage: Stage, done: int, total: int) -> None:
        """Shows how far a stage is; called by everything that takes time.

        Args:
            stage: What is being done.
            done: Steps done.
            total: Steps of the stage.
        """
        if self.quiet or self.machine:
            return
        title = TITLES[stage]
        in_words = size_in_words if stage in _IN_BYTES else str
        if self._bars is not None:
            self._move_bar(title, done, total)
        elif not self.verbose:
            if time.perf_counter() - self._reported > _REPORT_EVERY:
                self._reported = time.perf_counter()
                _write_aside(f"{title}: {in_words(done)} of {in_words(total)}")
        elif stage != self._stage:
            self._stage, self._started = stage, time.perf_counter()
        elif done >= total > 0 and self._started:
            seconds = time.perf_counter() - self._started
            _write_aside(f"{title}: {in_words(total)}, {seconds:.1f} s")
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


_IN_BYTES: tuple[Stage, ...] = ("hash", "write", "compare", "demo")
_REPORT_EVERY = 60.0
"""Seconds after which a run without a terminal shows that it is alive."""
_MARKS = {
    "erased": "\x1b[32m✔\x1b[0m ",
    "weakened": "\x1b[33m▲\x1b[0m ",
    "stands": "\x1b[31m✘\x1b[0m ",
    "unproven": "\x1b[2m?\x1b[0m ",
}


_AGENTS = ("AI_AGENT", "CLAUDECODE", "CODEX_SANDBOX")
"""Variables that coding agents set. They read plain lines, as in a pipe."""


def _is_watched(stream: Any) -> bool:
    """Whether a stream is a terminal that a person looks at."""
    agent = any(name in os.environ for name in _AGENTS)
    return stream is not None and stream.isatty() and not agent


def _takes_marks(stream: Any) -> bool:
    """Whether a stream is a terminal that shows colors and our characters."""
    if not _is_watched(stream) or "NO_COLOR" in os.environ:
        return False
    if os.environ.get("TERM") == "dumb" or (os.name == "nt" and "WT_SESSION" not in os.environ):
        return False
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


def _make_bars() -> Any:
    from rich.console import Console as Screen
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(bar_width=32),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Screen(stderr=True), transient=True)


_CONTROL = re.compile(
    # control characters but the tab, invisible format characters, and bytes that are not UTF-8
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # letters and marks that show nothing
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]"
)


def visible(text: str) -> str:
    """A line in which everything that acts on a terminal, or hides in it, is shown as an escape."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """The same for text whose line breaks are meant."""
    return "\n".join(visible(line) for line in text.split("\n"))


def time_in_words(seconds: float) -> str:
    """A duration in the largest unit that leaves at least 2."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size_in_words(size: float) -> str:
    """A size in the unit that suits it."""
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB") if size >= 1e5 else (1e3, "kB")
    amount = size / unit
    return f"{amount:.{0 if amount >= 10 else 1}f} {name}"


def prepare_streams() -> None:
    """Lets stdout and stderr escape what their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def write_result(text: str) -> None:
    """Writes lines of the result to stdout; one that was closed from the start takes nothing."""
    try:
        _write(sys.stdout, text)
    except (OSError, ValueError) as error:
        _silence(sys.stdout)
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"Cannot write the result to standard output: {reason}.") from error


def _write_aside(text: str) -> None:
    """Writes to stderr. A reader that has gone is not a reason to stop."""
    try:
        _write(sys.stderr, text)
    except (OSError, ValueError):
        _silence(sys.stderr)


def _write(stream: Any, text: str) -> None:
    if stream is not None:
        stream.write(text + "\n")
        stream.flush()


def _silence(stream: Any) -> None:
    """Discards what is left in the buffer of a dead stream, or Python would complain about it at
    the end.
    """
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
