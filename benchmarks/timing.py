"""Seconds and memory of a piece of work, and of work that repeats layer by layer."""

from __future__ import annotations

import ctypes
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .storage import save_json

LONG = 120.0
"""Seconds beyond which layers are not all timed: one of each size stands for its like."""


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Seconds and result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def one_of_each_size(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The first layer of each number of outputs."""
    first = {len(weight): (key, weight) for key, weight in reversed(weights.items())}
    return dict(first.values())


def scaled(per_size: dict[int, float], weights: dict[str, Tensor]) -> float:
    """Seconds of all layers from those of one layer of each size."""
    counts = Counter(len(weight) for weight in weights.values())
    return sum(per_size[size] * count for size, count in counts.items())


def over_layers(work: Callable[[Tensor], object], weights: dict[str, Tensor]) -> tuple[float, bool]:
    """Seconds of all layers, and whether they are scaled from one of each size."""
    per_size = {len(w): timed(lambda w=w: work(w))[0] for w in one_of_each_size(weights).values()}
    whole = scaled(per_size, weights)
    if whole > LONG:
        return whole, True
    return sum(timed(lambda w=w: work(w))[0] for w in weights.values()), False


def save(folder: Path, name: str, rows: Any) -> None:
    """Rows as JSON, with the versions they were made with."""
    machine = {"torch": torch.__version__, "python": platform.python_version()}
    machine["threads"] = torch.get_num_threads()
    save_json(folder / f"{name}.json", {"machine": machine, "rows": rows})


@contextmanager
def peak_memory() -> Iterator[dict[str, float]]:
    """Peak resident MB above the start, where the kernel tells (Linux)."""
    found: dict[str, float] = {}
    try:
        _status("VmRSS")
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)  # what the allocator still holds would be used first and not be seen
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
    except OSError:
        yield found
        return
    yield found
    found["peak"] = _status("VmHWM") - before


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise OSError(name)
