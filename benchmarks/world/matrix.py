"""Which runs make the proof: tasks by methods, sweeps and attacks, and their short versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from speed_erase.speed_ops.text.tokens import IN_CONTEXT, Position

from .attacks import Attack
from .methods import METHODS, Method, speed, varied
from .rows import RowChoice
from .tasks import TASKS, Task, first_painters

QUICK = 18
"""Pictures of each side in a short run."""

Jobs = list[tuple[Task, Method]]

OURS = ("targets", "both", "auto", "both_at1", "both_at3")
RIVALS = (
    "uce_bare",
    "uce_both",
    "rece_bare",
    "rece_both",
    "null_bare",
    "null_both",
    "oce_bare",
    "oce_both",
    "oce_hard",
)
PAPER = ("abl2_bare", "abl3_bare", "abl4_bare", "speed_few", "speed_multi")
OTHER_TASKS = ("subject", "replace", "implicit")


@dataclass(frozen=True)
class SweepJob:
    """One point of a curve; `pictures` where the judge should confirm it."""

    curve: str
    at: str
    task: Task
    method: Method
    pictures: bool


def task_named(name: str) -> Task:
    """A task of the table, or `firstN`."""
    if name.startswith("first"):
        return first_painters(int(name.removeprefix("first")))
    return TASKS[name]


def method_named(name: str) -> Method:
    """A method of the table, or a point of a curve by its name."""
    if name in METHODS:
        return METHODS[name]
    return {job.method.name: job.method for job in sweep_jobs()}[name]


def full_jobs() -> Jobs:
    """Everything; first what matters most, so that a matrix that is stopped early says something
    already.
    """
    main = (
        "none",
        "auto",
        "both",
        "speed_few",
        "uce_both",
        "targets",
        "uce_bare",
        "speed_multi",
        "rece_both",
        "oce_hard",
        "both_at1",
    )
    few = ("none", "auto", "both", "speed_few", "uce_both")
    every = (*OURS, *RIVALS, *PAPER)
    jobs = [(TASKS[task], METHODS[name]) for task in ("half", "one", "three") for name in main]
    jobs += [(TASKS[task], METHODS[name]) for task in (*OTHER_TASKS, "one_b") for name in few]
    # where the pictures tell methods apart
    harder = ("uce_bare", "rece_bare", "null_bare", "oce_hard")
    jobs += [(TASKS[task], METHODS[name]) for task in ("subject", "implicit") for name in harder]
    jobs += [(TASKS["implicit"], IMPLICIT), *((TASKS["again"], method) for method in AGAIN)]
    jobs += [(TASKS[task], method) for task in ("subject", "implicit") for method in MORE_ROWS]
    jobs += [(TASKS[task], METHODS[name]) for task in ("half", "one") for name in every]
    return list({(task.name, method.name): (task, method) for task, method in jobs}.values())


def quick_jobs() -> Jobs:
    """About ten minutes on two quiet cores."""
    names = ("none", "auto", "speed_few", "uce_bare", "uce_both", "targets")
    return [(TASKS["one"], METHODS[name]) for name in names] + [
        (TASKS["three"], METHODS[n]) for n in names[:3]
    ]


def sweep_jobs(quick: bool = False) -> list[SweepJob]:
    """Every point of every curve on three painters; pictures where marked, none in a short
    version.
    """
    jobs = [
        SweepJob(curve, at, TASKS["three"], method, pictures and not quick)
        for curve, at, method, pictures in _points()
    ]
    if quick:
        return jobs
    for task in ("half", "subject", "implicit"):
        for value in (0.02, 0.05, 0.1, 0.2, 0.3):
            method = varied("auto", f"lam-{value:g}", lam=value)
            jobs.append(SweepJob(f"auto lam, {task}", f"{value:g}", TASKS[task], method, False))
        for value in (1.0, 1.1, 1.25, 1.5):
            method = varied("auto", f"aim-{value:g}", overshoot=value)
            jobs.append(SweepJob(f"auto aim, {task}", f"{value:g}", TASKS[task], method, True))
    return jobs + [
        SweepJob("concepts", str(n), first_painters(n), METHODS[name], n in (8, 11))
        for n in (1, 2, 4, 6, 8, 11)
        for name in ("none", "auto", "speed_multi", "uce_both")
    ]


def attack_jobs(quick: bool = False) -> list[tuple[Task, Method, dict[str, Attack]]]:
    """Methods under attack on one painter: from the name within three radii, and from an innocent
    prompt.
    """
    radii = {f"name, radius {radius:g}": Attack(radius=radius) for radius in (0.1, 0.2, 0.3)}
    every = radii | {"art, radius 0.3": Attack(words="art")}
    middle = {name: attack for name, attack in radii.items() if attack.radius == 0.2}
    if quick:
        return [(TASKS["one"], METHODS[name], middle) for name in ("both", "both_at3")]
    jobs = [(TASKS["one"], METHODS[name], every) for name in ("both", "both_at3")]
    jobs += [(TASKS["one"], METHODS[name], radii) for name in ("auto", "auto_at3", "auto_at3_more")]
    return jobs + [
        (TASKS["one"], METHODS[name], middle)
        for name in ("both_at1", "uce_both", "rece_both", "speed_few")
    ]


IMPLICIT = speed("implicit", "SPEED as published (implicit)", RowChoice(side="bare"), "implicit")
MORE_ROWS = tuple(
    varied("auto", f"rows_per_concept-{count}", rows_per_concept=count) for count in (4, 32)
)
"""A shape or an idea has more sides than a palette: how many rows does it take?"""
AGAIN = (
    METHODS["none"],
    varied("both", "jointly"),
    varied("both", "further"),
)


def _points() -> Iterator[tuple[str, str, Method, bool]]:
    """(curve, value, method, whether pictures confirm it)."""

    def point(
        curve: str,
        value: Any,
        pictures: bool = False,
        rows: dict[str, Any] | None = None,
        **changes: Any,
    ):
        at = f"{value:g}" if isinstance(value, float) else str(value)
        return curve, at, varied("both", f"{curve}-{at}", rows, **changes), pictures

    for value in (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 1.0):
        yield point("threshold", value, value in (1e-4, 1e-1), threshold=value)
    for value in (1e-4, 1e-3, 5e-3, 1e-2, 2e-2, 5e-2):
        yield point("relative", value, value == 5e-2, threshold=value, threshold_mode="relative")
    for value in (0.01, 0.05, 0.3, 1.0, 3.0):
        yield point("lam", value, value == 3.0, lam=value)
    for value in (1, 2, 4, 8, 16, 32):
        yield point("rows_per_concept", value, value == 1, rows_per_concept=value)
    for value in ("concept", "row"):
        yield point("ipf", value, value == "concept", ipf=True, filter_unit=value)
        yield point("ipf_dpa", value, value == "concept", ipf=True, dpa=True, filter_unit=value)
    for value in (0.5, 2.0):
        yield point("filter_scale", value, ipf=True, filter_scale=value)
    for value in (0, 3, 10, 30):
        yield point("augmentations", value, False, dpa=value > 0, augmentations=value)
    for value in (1, 4, 16):
        yield point("augment_rank", value, dpa=True, augment_rank=value)
    for value in (0, 1, 2, 3, 5, 9):
        yield point("templates", value, value == 1, rows={"templates": value})
    for value in (0, 1, 2, 5, 9):
        yield point("retain_templates", value, value == 1, rows={"retain_templates": value})
    # what lies between untouched and erased, to calibrate the certificate's bars
    for value in (0.3, 0.5, 0.65, 0.8):
        yield point("overshoot", value, True, overshoot=value)
    for name, chosen in POSITIONS.items():
        rows = {"positions": chosen, "retain_positions": chosen}
        yield point("positions", name, name in ("last", "eos", "last+eos"), rows=rows)


POSITIONS = {
    "last": Position.LAST_SUBJECT,
    "eos": Position.EOS,
    "first pad": Position.FIRST_PAD,
    "last pad": Position.LAST_PAD,
    "last+eos": Position.LAST_SUBJECT | Position.EOS,
    "all but last pad": Position.LAST_SUBJECT | Position.EOS | Position.FIRST_PAD,
    "all four": IN_CONTEXT,
}
