"""What a person or a machine sees: bars on a terminal, plain lines in a pipe, one JSON value for machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from ..progress import Stage

_TITLES: dict[Stage, str] = {
    "fingerprint": "Reading the text encoder",
    "empty prompt": "Encoding the empty prompt",
    "concepts": "Encoding concepts",
    "probes": "Encoding unseen prompts",
    "retain names": "Encoding kept names",
    "retain contexts": "Encoding kept names in prompts",
    "encode": "Encoding",
    "prepare": "Preparing",
    "layers": "Editing layers",
    "adversarial": "Searching for leaks",
    "certificate": "Measuring",
    "leaks": "Trying phrases",
    "hash": "Hashing",
    "write": "Writing",
    "compare": "Comparing with the base",
    "demo": "Making the demo checkpoint",
}


class Console:
    """Results go to stdout; progress, notes and errors to stderr. `machine`: stdout holds one JSON value only."""

    def __init__(self, *, quiet: bool = False, machine: bool = False) -> None:
        self.quiet, self.machine = quiet, machine
        self._bars = None if quiet or machine or not _is_terminal() else _make_bars()
        self._tasks: dict[str, Any] = {}
        self._stage: Stage | None = None
        self._started = 0.0

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def say(self, text: str = "") -> None:
        """A line of the result, for people."""
        if not self.quiet and not self.machine:
            self.clear()
            _write(sys.stdout, text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Aligned columns; the first to the left, the others to the right."""
        widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
        for line in (header, *rows):
            cells = [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
            ]
            self.say("  ".join(cells).rstrip())

    def note(self, text: str) -> None:
        """Something worth knowing beside the result."""
        if not self.quiet:
            self.clear()
            _write(sys.stderr, f"Note: {text}")

    def error(self, text: str) -> None:
        """Said even when quiet."""
        self.clear()
        _write(sys.stderr, f"speed-erase: {text}")

    def result(self, value: Any) -> None:
        """The whole result, for machines."""
        if self.machine:
            _write(sys.stdout, json.dumps(value, ensure_ascii=False, indent=2, default=str))

    def progress(self, stage: Stage, done: int, total: int) -> None:
        """Given to everything that takes time."""
        if self.quiet or self.machine:
            return
        title = _TITLES[stage]
        if self._bars is not None:
            self._move_bar(title, done, total)
        elif stage != self._stage:
            self._stage, self._started = stage, time.perf_counter()
        elif done >= total > 0 and self._started:
            _write(sys.stderr, f"{title}: {_amount(stage, total)}, {time.perf_counter() - self._started:.1f} s")
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


def _write(stream: Any, text: str) -> None:
    """A line, in whatever encoding the stream has: a name must not break the report of its erasure."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding, "replace") + "\n")
    stream.flush()
