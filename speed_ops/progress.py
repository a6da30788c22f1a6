"""Progress of work, where it may be interrupted, and how long each part took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal

Stage = Literal[
    "fingerprint",
    "empty prompt",
    "concepts",
    "probes",
    "retain names",
    "retain contexts",
    "encode",
    "prepare",
    "layers",
    "adversarial",
    "certificate",
    "leaks",
    "hash",
    "compare",
    "write",
    "demo",
    "draw",
    "judge",
]
"""What is being done, in the order of a run. An encoder reports `encode`; its caller replaces that
by the purpose."""
TITLES: dict[Stage, str] = {
    "fingerprint": "Reading the text encoder",
    "empty prompt": "Encoding the blank prompt",
    "concepts": "Encoding concepts",
    "probes": "Encoding new prompts",
    "retain names": "Encoding protected names",
    "retain contexts": "Encoding protected names in prompts",
    "encode": "Encoding",
    "prepare": "Preparing",
    "layers": "Editing layers",
    "adversarial": "Searching for leaks",
    "certificate": "Measuring",
    "leaks": "Trying phrases",
    "hash": "Hashing",
    "write": "Writing",
    "compare": "Comparing with the base",
    "demo": "Unpacking the demo model",
    "draw": "Generating",
    "judge": "Scoring images",
}
"""What people read while a stage runs."""
Progress = Callable[[Stage, int, int], None]
"""Called with (stage, done, total), often enough to stop work within a second: raising in it
interrupts.
"""


Announce = Callable[[str], None]
"""Told in a sentence, before long work, what is coming."""


def silent(stage: Stage, done: int, total: int) -> None:
    """Progress for callers that asked for none.

    Args:
        stage: What is being done.
        done: Steps done.
        total: Steps of the stage.
    """


def part_of(progress: Progress | None, stage: Stage, start: int, total: int) -> Progress | None:
    """Progress of a part, as progress of the whole.

    Args:
        progress: Called for the whole; None for no reports.
        stage: Stage of the whole, whatever stage the part reports.
        start: Steps done before the part.
        total: Steps of the whole.
    """
    if progress is None:
        return None
    return lambda _, done, __: progress(stage, start + done, total)


@dataclass
class Stopwatch:
    """Seconds spent in each part of the work."""

    seconds: dict[str, float] = field(default_factory=dict)
    _threads: int = 1
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time of the block to that part."""
        start = time.perf_counter()
        yield
        with self._lock:
            self.seconds[name] = (
                self.seconds.get(name, 0.0) + (time.perf_counter() - start) / self._threads
            )

    @contextmanager
    def parallel(self, threads: int) -> Iterator[None]:
        """Inside the block `threads` threads work at once: each counts its share of a second."""
        self._threads = threads
        try:
            yield
        finally:
            self._threads = 1
