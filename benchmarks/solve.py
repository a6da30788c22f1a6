"""How fast the engine is, against the dense ways to the same edit and against the bare eigenproblems.

    python -m benchmarks.solve --out docs/benchmarks            the whole table
    python -m benchmarks.solve --family sd1 --concepts 1 --names 1734
    python -m benchmarks.solve --growth --out docs/benchmarks   cost as the work grows

All four are timed in one process, so that the ratios hold on a noisy machine. Runs of (a) that would take over two
minutes are timed on one layer of each size and scaled by the number of layers; the table marks them with ~.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from speed_erase.speed_ops import EraseSettings, solve
from speed_erase.speed_ops.invariants import constraint_rows

from .dense import released, written_well

SHAPES = {"sd1": (768, [320] * 5 + [640] * 5 + [1280] * 6), "sdxl": (2048, [640] * 10 + [1280] * 60)}
LONG = 120.0  # seconds beyond which the slow way is timed on one layer of each size


@dataclass
class Row:
    """One line of the table; seconds for all layers."""

    family: str
    concepts: int
    names: int
    released: float
    scaled: bool
    dense: float
    engine: float
    floor: float
    certificate: float
    memory: float | None
    """Peak MB that the engine took beyond weights and embeddings."""
    error_released: float
    """Relative difference of one layer's edit to the float64 formulas, augmentation off."""
    error_dense: float
    error_engine: float


def embeddings(count: int, width: int, seed: int) -> Tensor:
    """Rows shaped like a text encoder's: a common part and a spectrum that falls by two decades."""
    source = torch.Generator().manual_seed(seed)
    turn = torch.randn(width, width, generator=source) / width**0.5
    rows = torch.randn(count, width, generator=source) * torch.logspace(0, -2, width) @ turn
    return 3 * rows + torch.randn(1, width, generator=source)


def problem(family: str, concepts: int, names: int) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """Weights and (targets, anchors, retain, invariants)."""
    width, outs = SHAPES[family]
    source = torch.Generator().manual_seed(1)
    weights = {f"{i:02}.{o}": torch.randn(o, width, generator=source) / width**0.5 for i, o in enumerate(outs)}
    rows = embeddings(2 * concepts + names + 77, width, 2)
    return weights, rows.split([concepts, concepts, names, 77])


def measure(family: str, concepts: int, names: int, settings: EraseSettings) -> Row:
    """Times the four ways on one problem."""
    weights, rows = problem(family, concepts, names)
    solve({k: weights[k] for k in list(weights)[:1]}, *rows, settings)  # warm the libraries up
    with peak_memory() as memory:
        engine, erasure = timed(lambda: solve(weights, *rows, settings))
    with recorded_eigenproblems() as systems:
        solve(weights, *rows, settings)
    floor = sum(timed(lambda matrix=matrix: torch.linalg.eigh(matrix))[0] for matrix in systems)
    c2 = constraint_rows(rows[3], settings.invariants, settings.seed)
    single = (*rows[:3], c2)
    dense = sum(timed(lambda w=w: written_well(w, *single, settings))[0] for w in weights.values())
    slow, scaled = time_released(weights, single, settings)
    errors = accuracy(next(iter(weights.values())), rows, c2, settings)
    proof = erasure.certificate.seconds["certificate"]
    return Row(family, concepts, names, slow, scaled, dense, engine, floor, proof, memory.get("peak"), *errors)


def time_released(weights: dict[str, Tensor], rows: tuple[Tensor, ...], settings: EraseSettings) -> tuple[float, bool]:
    """All layers where that is bearable, else one of each size times their number."""
    counts = Counter(len(weight) for weight in weights.values())
    first = {len(weight): weight for weight in weights.values()}
    per_size = {size: timed(lambda w=w: released(w, *rows, settings))[0] for size, w in first.items()}
    whole = sum(per_size[size] * count for size, count in counts.items())
    if whole > LONG:
        return whole, True
    return sum(timed(lambda w=w: released(w, *rows, settings))[0] for w in weights.values()), False


def accuracy(
    weight: Tensor, rows: tuple[Tensor, ...], c2: Tensor, settings: EraseSettings
) -> tuple[float, float, float]:
    """Relative differences to the dense float64 result, without draws."""
    exact_c2 = constraint_rows(rows[3].double(), settings.invariants, settings.seed)
    wide = [*(part.double() for part in (weight, *rows[:3])), exact_c2]
    exact = written_well(*wide, settings, augment=False)
    ours = solve({"layer": weight}, *rows, settings.but(dpa=False)).delta("layer")
    single = (weight, *rows[:3], c2)
    others = [way(*single, settings, augment=False).double() for way in (released, written_well)]
    return tuple(float((delta - exact).norm() / exact.norm()) for delta in (*others, ours))  # type: ignore[return-value]


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Seconds and result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


@contextmanager
def recorded_eigenproblems():
    """Collects the large symmetric matrices that the engine decomposes: the floor decomposes them again, alone."""
    systems: list[Tensor] = []
    eigh = torch.linalg.eigh

    def recording(matrix: Tensor):
        if len(matrix) > 200:
            systems.append(matrix.clone())
        return eigh(matrix)

    with mock.patch("torch.linalg.eigh", recording):
        yield systems


@contextmanager
def peak_memory():
    """Peak resident MB above the start, where the kernel tells (Linux)."""
    found: dict[str, float] = {}
    reset = Path("/proc/self/clear_refs")
    try:
        reset.write_text("5")
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


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| shapes | concepts | names | (a) released, f32 | (b) dense, f32 | (c) engine, f64 | (d) eigenproblems "
        "| a/c | b/c | c/d | extra MB | error a | error b | error c |",
        "|" + "---|" * 14,
    ]
    for r in rows:
        mark = "~" if r.scaled else ""
        memory = f"{r.memory:.0f}" if r.memory is not None else "-"
        lines.append(
            f"| {r.family} | {r.concepts} | {r.names} | {mark}{r.released:.1f} s | {r.dense:.2f} s | {r.engine:.2f} s |"
            f" {r.floor:.2f} s | {r.released / r.engine:.0f} | {r.dense / r.engine:.1f} | {r.engine / r.floor:.2f} |"
            f" {memory} | {r.error_released:.0e} | {r.error_dense:.0e} | {r.error_engine:.0e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--concepts", nargs="+", type=int, default=[1, 10, 100, 1000])
    parser.add_argument("--names", nargs="+", type=int, default=[100, 1734, 10_000])
    parser.add_argument("--growth", action="store_true", help="cost against the number of concepts and of names")
    parser.add_argument("--out", type=Path, help="folder for the table, JSON and plot")
    chosen = parser.parse_args()
    torch.set_grad_enabled(False)
    if chosen.growth:
        from .growth import run

        run(chosen.out)
        return
    rows = []
    for family in chosen.family:
        for concepts in chosen.concepts:
            for names in chosen.names:
                rows.append(measure(family, concepts, names, EraseSettings()))
                print(table(rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(rows))
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        machine = {"torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads()}
        content = {"machine": machine, "rows": [asdict(row) for row in rows]}
        (chosen.out / "solve.json").write_text(json.dumps(content, indent=1) + "\n")
        (chosen.out / "solve.md").write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
