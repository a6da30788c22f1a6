"""How fast the engine is, against the dense ways to the same edit and against the bare
eigenproblems.

    python -m benchmarks.solve --out docs/research/data             the whole table
    python -m benchmarks.solve --family sd1 --concepts 1 --names 1734
    python -m benchmarks.solve --presets --out docs/research/data   100 concepts by each preset
    python -m benchmarks.solve --growth --out docs/research/data    cost as the work grows

All ways are timed in one process, so that the ratios hold on a noisy machine. The engine is always
timed on all layers. A dense way that would take over two minutes is timed on one layer of each size
and scaled by the number of layers; the table marks it with ~. The released arithmetic is linear in
the number of names: where one layer alone is too long, it is timed at two smaller numbers and the
line is drawn through them, marked with ~~.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from torch import Tensor

from speed_erase.speed_ops import EraseSettings, RowSet, solve
from speed_erase.speed_ops.engine import layers as layer_solver
from speed_erase.speed_ops.engine.closed_form import constraint_rows
from speed_erase.speed_ops.engine.solver import divided_threads, parallel_layers

from .dense import released, written_well
from .figures import plots, save_figure
from .timing import (
    SHAPES,
    Problem,
    one_of_each_size,
    over_layers,
    peak_memory,
    problem,
    save,
    scaled,
    timed,
)

SETTINGS = EraseSettings()
LINE = {"sd1": (500, 1000), "sdxl": (128, 256)}
"""Numbers of names at which the released arithmetic is timed for its line, beyond WHOLE names."""
WHOLE = {"sd1": 2000, "sdxl": 100}
JUDGED = 1734
"""Names, at most, in the comparison of results: more of them only repeat it."""
CONCEPTS = (1, 3, 10, 30, 100, 300, 1000)
NAMES = (100, 300, 1000, 3000, 10_000, 20_000)
TAIL = 3
"""Points that an exponent is fitted to: the largest ones, where the cost is past its fixed part."""
PRESETS = ("auto", "fixed", "few", "multi")
SHORT, TURNS = 12.0, 3
"""An engine that takes fewer seconds than this runs this many times."""


@dataclass
class Row:
    """One line of the table; seconds for all layers."""

    family: str
    concepts: int
    names: int
    released: float
    released_how: str
    dense: float
    dense_how: str
    edit: float
    """The engine without its certificate: what the other columns compute too."""
    engine: float
    floor: float
    memory: float | None
    """Peak MB that the engine took beyond weights, embeddings and the edit itself."""
    error_released: float
    """Relative difference of one layer's edit to the float64 formulas, augmentation off."""
    error_dense: float
    error_engine: float


def measure(family: str, concepts: int, names: int) -> Row:
    """Times the four ways on one problem."""
    weights, rows = problem(family, concepts, names)
    turns, dense_how = take_turns(weights, rows)
    memory = engine_memory(family, concepts, names)
    edit, engine, floor, dense = (median(turn[i] for turn in turns) for i in range(4))
    slow, how = time_released(family, concepts, names)
    errors = accuracy(family, concepts, min(names, JUDGED))
    times = (slow, how, dense, dense_how, edit, engine, floor, memory)
    return Row(family, concepts, names, *times, *errors)


def take_turns(weights: dict[str, Tensor], rows: Problem) -> tuple[list[tuple[float, ...]], str]:
    """Seconds of the edit, with certificate, of the eigenproblems and of the dense way, and "~" if
    that one is scaled. They take turns, so that other work on the machine falls on all alike.
    """
    first = one_of_each_size(weights)
    systems = {key: eigenproblems({key: weight}, rows) for key, weight in first.items()}
    seconds = _engine_seconds(weights, rows)  # the libraries are warm by now
    short = seconds[1] < SHORT
    if short:
        systems = {key: eigenproblems({key: weight}, rows) for key, weight in weights.items()}
    turns = []
    for turn in range(TURNS if short else 1):
        seconds = _engine_seconds(weights, rows) if turn else seconds
        floor = _bare_seconds(systems, weights, min(len(rows[2]), rows[2].shape[1]))
        given = _with_constraints(rows)
        dense, shortened = over_layers(lambda w, g=given: written_well(w, *g, SETTINGS), weights)
        turns.append((*seconds, floor, dense))
    return turns, "~" if shortened else ""


def engine_memory(family: str, concepts: int, names: int) -> float | None:
    """Peak MB beyond weights, embeddings and edit, in a new process, where the kernel tells."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_memory_here, family, concepts, names).result()


def _memory_here(family: str, concepts: int, names: int) -> float | None:
    torch.set_grad_enabled(False)
    weights, rows = problem(family, concepts, names)
    with peak_memory() as memory:
        erasure = solve(weights, RowSet.of(*rows), SETTINGS)
    edits = erasure.edits.values()
    factors = {id(part): part.nbytes for edit in edits for part in (edit.up, edit.down)}
    return memory["peak"] - sum(factors.values()) / 2**20 if memory else None


def _bare_seconds(systems: dict[str, list[Tensor]], weights: dict[str, Tensor], side: int) -> float:
    """Seconds of the eigenproblems of all layers, as many at once as the engine solves."""
    ways = max(1, parallel_layers(side))
    with divided_threads(ways), ThreadPoolExecutor(ways) as pool:
        if len(systems) == len(weights):
            every = [system for found in systems.values() for system in found]
            return timed(lambda: list(pool.map(torch.linalg.eigh, every)))[0]
        seconds = {}
        for key, found in systems.items():
            took, _ = timed(lambda found=found: list(pool.map(torch.linalg.eigh, ways * found)))
            seconds[len(weights[key])] = took / ways
    return scaled(seconds, weights)


def _engine_seconds(weights: dict[str, Tensor], rows: Problem) -> tuple[float, float]:
    seconds, erasure = timed(lambda: solve(weights, RowSet.of(*rows), SETTINGS))
    return seconds - erasure.certificate.seconds["certificate"], seconds  # type: ignore[attr-defined]


def time_released(family: str, concepts: int, names: int) -> tuple[float, str]:
    """All layers where that is bearable, else one of each size, else a line through fewer names."""
    if names <= (WHOLE[family] if concepts == 1 else 100):
        weights, rows = problem(family, concepts, names)
        given = _with_constraints(rows)
        seconds, shortened = over_layers(lambda w: released(w, *given, SETTINGS), weights)
        return seconds, "~" if shortened else ""
    line = [(count, _released_layers(family, concepts, count)) for count in LINE[family]]
    (few, first), (more, second) = line
    return first + (second - first) * (names - few) / (more - few), "~~"


@cache
def _released_layers(family: str, concepts: int, names: int) -> float:
    weights, rows = problem(family, concepts, names)
    given, seconds = _with_constraints(rows), {}
    for weight in one_of_each_size(weights).values():
        seconds[len(weight)] = timed(lambda w=weight: released(w, *given, SETTINGS))[0]
    return scaled(seconds, weights)


def _with_constraints(rows: Problem) -> Problem:
    return (*rows[:3], constraint_rows(rows[3], SETTINGS.invariants, SETTINGS.seed))


@cache
def accuracy(family: str, concepts: int, names: int) -> tuple[float, float, float]:
    """Relative differences of the first layer's edit to the dense float64 result, without draws."""
    weights, rows = problem(family, concepts, names)
    weight = next(iter(weights.values()))
    wide = [part.double() for part in (weight, *rows)]
    fixed = constraint_rows(wide[4], SETTINGS.invariants, SETTINGS.seed)
    exact = written_well(*wide[:4], fixed, SETTINGS, False)
    ours = solve({"layer": weight}, RowSet.of(*rows), SETTINGS.replace(dpa=False)).delta("layer")
    single = (weight, *_with_constraints(rows))
    first, second = (way(*single, SETTINGS, False).double() for way in (released, written_well))
    return tuple(float((delta - exact).norm() / exact.norm()) for delta in (first, second, ours))  # type: ignore[return-value]


def eigenproblems(weights: dict[str, Tensor], rows: Problem) -> list[Tensor]:
    """The symmetric matrices whose spectra give the layers their null spaces, from the engine."""
    systems: list[Tensor] = []

    def recording(way):
        def span(matrix: Tensor, *rest):
            systems.append(matrix.clone())
            return way(matrix, *rest)

        return span

    with (
        mock.patch.object(layer_solver, "span_of_moment", recording(layer_solver.span_of_moment)),
        mock.patch.object(layer_solver, "span_of_gram", recording(layer_solver.span_of_gram)),
    ):
        solve(weights, RowSet.of(*rows), SETTINGS)
    return systems


HEAD = """\
| shapes | concepts | names | (a) released, f32 | (b) dense, f32 | (c) engine, f64 \
| with certificate | (d) eigenproblems | a/c | b/c | c/d | extra MB | error a | error b | error c |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


def table_line(r: Row) -> str:
    """A row in Markdown."""
    memory = f"{r.memory:.0f}" if r.memory is not None else "-"
    return (
        f"| {r.family} | {r.concepts} | {r.names} | {r.released_how}{r.released:.1f} s |"
        f" {r.dense_how}{r.dense:.2f} s | {r.edit:.2f} s | {r.engine:.2f} s | {r.floor:.2f} s |"
        f" {r.released / r.edit:.0f} | {r.dense / r.edit:.1f} | {r.edit / r.floor:.2f} |"
        f" {memory} | {r.error_released:.0e} | {r.error_dense:.0e} | {r.error_engine:.0e} |"
    )


def presets(out: Path | None) -> None:
    """100 concepts against 1,734 names by each preset: what users wait for after encoding."""
    results = []
    print("| shapes | preset | edit | certificate | in all |\n|---|---|---|---|---|")
    for family in SHAPES:
        for preset in PRESETS:
            settings = EraseSettings.preset(preset)
            weights, given = problem(family, 100, 1734)
            solve(one_of_each_size(weights), RowSet.of(*given), settings)
            rows = RowSet.of(*given)
            seconds, erasure = timed(lambda w=weights, r=rows, s=settings: solve(w, r, s))
            certificate = erasure.certificate.seconds["certificate"]  # type: ignore[attr-defined]
            edit = seconds - certificate
            print(f"| {family} | {preset} | {edit:.2f} s | {certificate:.2f} s | {seconds:.2f} s |")
            results.append({"family": family, "preset": preset, "edit": edit})
            results[-1] |= {"certificate": certificate, "all": seconds}
    if out is not None:
        save(out, "presets", results)


def growth(out: Path | None) -> None:
    """SD1.x shapes along both axes."""
    series = {"concepts": [(count, _seconds(count, 1734)) for count in CONCEPTS]}
    series["names"] = [(count, _seconds(10, count)) for count in NAMES]
    print("| axis | work | seconds |\n|---|---|---|")
    for axis, points in series.items():
        for count, seconds in points:
            print(f"| {axis} | {count} | {seconds:.2f} |")
        print(f"| {axis} | exponent of the last {TAIL} points | {exponent(points):.2f} |")
    if out is not None:
        save(out, "growth", series)
        _plot(series, out / "growth.png")


def exponent(points: list[tuple[int, float]]) -> float:
    """Slope of log seconds over log work, by least squares on the largest points."""
    logs = [(math.log(count), math.log(seconds)) for count, seconds in points[-TAIL:]]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return above / sum((x - mean_x) ** 2 for x, _ in logs)


def _seconds(concepts: int, names: int) -> float:
    weights, rows = problem("sd1", concepts, names)
    return timed(lambda: solve(weights, RowSet.of(*rows), EraseSettings()))[0]


def _plot(series: dict[str, list[tuple[int, float]]], path: Path) -> None:
    figure, axes = plots().subplots(1, 2, figsize=(9, 3.6), sharey=True)
    panels = {
        "concepts erased": ("1,734 protected names", (1, 1000)),
        "protected names": ("10 concepts erased", (100, 100_000)),
    }
    for axis, (label, (title, limits)), points in zip(
        axes, panels.items(), series.values(), strict=True
    ):
        axis.loglog(*zip(*points, strict=True), marker="o", color="#3b6fb6", clip_on=False)
        axis.set(xlabel=label, title=title, xlim=limits, ylim=(0.1, 100))
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter("{x:,g}")
        axis.grid(True, which="major", alpha=0.3)
    axes[0].set_ylabel("seconds, 16 layers of SD1.x, 2 cores")
    figure.tight_layout()
    save_figure(figure, path, 90)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--family", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--concepts", nargs="+", type=int, default=[1, 10, 100, 1000])
    parser.add_argument("--names", nargs="+", type=int, default=[100, 1734, 10_000])
    parser.add_argument("--presets", action="store_true", help="100 concepts by each preset")
    parser.add_argument("--growth", action="store_true", help="cost as the work grows")
    parser.add_argument("--out", type=Path, help="folder for JSON and plot")
    chosen = parser.parse_args()
    torch.set_grad_enabled(False)
    if chosen.growth or chosen.presets:
        (growth if chosen.growth else presets)(chosen.out)
        return
    print(HEAD)
    rows: list[Row] = []
    for size in itertools.product(chosen.family, chosen.concepts, chosen.names):
        rows.append(measure(*size))
        print(table_line(rows[-1]), flush=True)
        if chosen.out:
            save(chosen.out, "solve", [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
