"""What a person or a machine sees: bars on a terminal, plain lines in a pipe, JSON for machines.

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
from collections.abc import Sequence
from contextlib import suppress
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
    """

    def __init__(self, *, quiet: bool = False, machine: bool = False, lines: bool = False) -> None:
        self.quiet, self.machine, self.lines = quiet, machine or lines, lines
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._bars = _make_bars() if terminal and not quiet and not self.machine else None
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
        """Writes a line of the result, for people. A line break inside it comes from a file, and is
        shown as an escape.
        """
        if not self.quiet and not self.machine:
            self.clear()
            write_result(visible(text))

    def page(self, text: str) -> None:
        """Writes several lines of the result."""
        for line in text.split("\n"):
            self.say(line)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Writes aligned columns: the first to the left, the others to the right."""
        if self.quiet or self.machine:
            return
        from rich.console import Console as Screen
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
        for index, title in enumerate(header):
            justify: Any = "right" if index else "left"
            table.add_column(Text(visible(title)), justify=justify, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(visible(cell)) for cell in row))
        drawing = io.StringIO()
        Screen(file=drawing, width=10_000, color_system=None).print(table)
        for line in drawing.getvalue().splitlines():
            self.say(line.rstrip())

    def note(self, text: str) -> None:
        """Writes something worth knowing in addition to the result."""
        if not self.quiet:
            self.clear()
            _write_aside(visible(f"Note: {advised(text)}"))

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
        if self._bars is not None:
            self._move_bar(title, done, total)
        elif stage != self._stage:
            self._stage, self._started = stage, time.perf_counter()
        elif done >= total > 0 and self._started:
            in_bytes = stage in ("hash", "write", "compare", "demo")
            amount = f"{total / 1e6:.0f} MB" if in_bytes else str(total)
            _write_aside(f"{title}: {amount}, {time.perf_counter() - self._started:.1f} s")
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


def _make_bars() -> Any:
    from rich.console import Console as Screen
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(bar_width=32),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Screen(stderr=True))


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
    """A duration in the largest unit that leaves two digits."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 10 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size_in_words(size: float) -> str:
    """A size in the unit that suits it."""
    for least, unit, name in ((1e9, 1e9, "GB"), (1e5, 1e6, "MB")):
        if size >= least:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1e3:.1f} kB"


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
