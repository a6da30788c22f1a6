"""Seconds and memory of a piece of work, and problems of the shapes and spectra of real models."""

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
"""Seconds beyond which only one layer of each size is timed."""


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


SHAPES = {"sd1": (768, [320] * 5 + [640] * 5 + [1280] * 6)}
SHAPES["sdxl"] = (2048, [640] * 10 + [1280] * 60)
"""Width of the text embedding, and the outputs of each value layer."""
ENTRY = {"flux": (4096, [3072])}
"""The same of a model that all text enters through one layer."""

Problem = tuple[Tensor, Tensor, Tensor, Tensor]
"""Targets, anchors, retain names and the rows of the empty prompt."""


def embeddings(count: int, width: int, seed: int) -> Tensor:
    """Rows shaped like a text encoder's: a common part and a spectrum that falls by two decades."""
    source = torch.Generator().manual_seed(seed)
    turn = torch.randn(width, width, generator=source) / width**0.5
    rows = torch.randn(count, width, generator=source) * torch.logspace(0, -2, width) @ turn
    return 3 * rows + torch.randn(1, width, generator=source)


def problem(family: str, concepts: int, names: int) -> tuple[dict[str, Tensor], Problem]:
    """Weights of all layers, and the rows."""
    width, outs = (SHAPES | ENTRY)[family]
    source = torch.Generator().manual_seed(1)
    layers = [torch.randn(o, width, generator=source) / width**0.5 for o in outs]
    weights = {f"{i:02}.{len(layer)}": layer for i, layer in enumerate(layers)}
    rows = embeddings(2 * concepts + names + 77, width, 2)
    targets, anchors, retain, empty = rows.split([concepts, concepts, names, 77])
    return weights, (targets, anchors, retain, empty)
