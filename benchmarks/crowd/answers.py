"""What the runs answer: one table per question, and the goals, met or not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from speed_erase.speed_ops.certificate.certificate import bars_of, score_of, verdict_of

from .measures import h_o_interval, spearman
from .methods import ABLATIONS, CURVED, DEFAULT, METHODS, NONE
from .tasks import TASKS

Result = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
"""Head and lines."""
LEAD, NEAR, LOST = 0.05, 0.02, 0.01
"""Goals in H_o against the best released rival: the least lead with many names; the most that may
be behind on few subjects, figures and the theme; the most on one painter."""
UNSAFE = 0.01
"""Goal: the largest share of cases called "erased" that the images refute."""
GONE = 0.10
"""A concept is gone if at most this share more of it is recognized than by chance."""
HARMED = 0.03
"""The rest is harmed if this share less of it is recognized than before the edit."""
FEWEST = 20
"""Concepts with fewer pictures are left out: `GONE` could be one or two of them."""
FLAGS = ("agrees", "unsafe")
LEADING = ("painters10", "painters20", "subjects10")
NEARBY = ("subjects1", "subjects3", "people1", "people4", "characters3", "night", "composite")


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _between(limits: tuple[float, float], sign: str = "") -> str:
    return f"{100 * limits[0]:{sign}.1f} to {100 * limits[1]:{sign}.1f}"


@dataclass(frozen=True)
class Runs:
    """All results, by task and method."""

    results: tuple[Result, ...]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Runs:
        drawn = [result for result in results if "refused" not in result]
        known = (r for r in drawn if r["method"] in METHODS and r["task"] in TASKS)
        return cls(tuple(known))

    def get(self, task: str, method: str) -> Result | None:
        return next((r for r in self.results if (r["task"], r["method"]) == (task, method)), None)

    def of_task(self, task: str) -> list[Result]:
        return [result for result in self.results if result["task"] == task]

    def best(self, task: str, *groups: str) -> Result | None:
        """The highest H_o among groups of methods."""
        own = [result for result in self.of_task(task) if METHODS[result["method"]].group in groups]
        return max(own, key=lambda result: result["h_o"], default=None)

    def tasks(self) -> list[str]:
        """Tasks with a default and an untouched run."""
        return [task for task in TASKS if self.get(task, DEFAULT) and self.get(task, NONE.name)]


def glance(runs: Runs) -> Table:
    """Every task: ours, the best rival as released and the best with our rows; where a rival leads
    comes first.
    """
    head = ["task", "Acc_e", "Acc_r", "H_o", "best rival as released", "H_o", "our lead (95%)"]
    head += ["goal", "best rival, our rows", "H_o"]
    lines = []
    for task in runs.tasks():
        ours = runs.get(task, DEFAULT)
        assert ours is not None
        line = [TASKS[task].label, *(percent(ours[name]) for name in ("acc_e", "acc_r", "h_o"))]
        lead = math.inf
        for group in ("released", "lent"):
            rival = runs.best(task, group)
            line += [METHODS[rival["method"]].label, percent(rival["h_o"])] if rival else ["-", "-"]
            if group == "released":
                line += _lead(task, ours, rival) if rival else ["-", "-"]
                lead = ours["h_o"] - rival["h_o"] if rival else lead
        lines.append((lead, line))
    return head, [line for _, line in sorted(lines, key=lambda entry: entry[0])]


def goal_of(task: str) -> float:
    """The lead in H_o over the best released rival that was the goal."""
    return LEAD if task in LEADING else -NEAR if task in NEARBY else -LOST


def _lead(task: str, ours: Result, rival: Result) -> list[str]:
    """The lead over a rival, and whether it is what we aimed at."""
    lead = ours["h_o"] - rival["h_o"]
    shown = f"{100 * lead:+.1f} ({_between(h_o_interval(ours, rival), '+')})"
    goal = goal_of(task)
    return [shown, f"{100 * goal:+.0f}: {'met' if lead >= goal else '**not met**'}"]


def agreement(cases: Sequence[Case]) -> str:
    """How often verdict and images agree, and how often "erased" is wrong."""
    if not cases:
        return ""
    agree, unsafe = (_mean(getattr(case, flag) for case in cases) for flag in FLAGS)
    share = f"{agree:.1%} of {len(cases)} cases"
    return f"Verdict and images agree in {share}; {unsafe:.1%} are unsafe."


def by_limit(runs: Runs) -> tuple[Table, str]:
    """What is still recognized of the erased at each limit, and of the others at worst."""
    tasks = runs.tasks()
    head = ["limit", *(TASKS[task].label for task in tasks), "Acc_r, worst task"]
    limits = {METHODS[r["method"]].settings.drift_budget: r["method"] for r in _ours(runs)}
    lines = []
    for limit, method in sorted(limits.items()):
        found = [runs.get(task, method) for task in tasks]
        shown = [percent(result and result["acc_e"]) for result in found]
        worst = min(result["acc_r"] for result in found if result)
        mark = "**" if method == DEFAULT else ""
        lines.append([f"{mark}{limit:.2f}{mark}", *shown, percent(worst)])
    better = []
    for task in tasks:
        ours, best = runs.get(task, DEFAULT), runs.best(task, "ours")
        assert ours is not None and best is not None
        if best["h_o"] > ours["h_o"]:
            limit = METHODS[best["method"]].settings.drift_budget
            scores = f"{percent(best['h_o'])} at {limit:.2f}, {percent(ours['h_o'])} at the default"
            better.append(
                f"{TASKS[task].label} ({scores}; 95%: {_between(h_o_interval(best, ours))})"
            )
    said = "; ".join(better) or "none"
    return (head, lines), f"Tasks with a better H_o at another limit: {said}."


def _ours(runs: Runs) -> list[Result]:
    return [result for result in runs.results if METHODS[result["method"]].group == "ours"]


def first_drift(worlds: Sequence[Runs]) -> tuple[Table, str]:
    """Which drift is the first that shows? Runs in steps of drift, and what the others lost."""
    found: list[tuple[float, float, float]] = []
    for runs in worlds:
        for result in runs.results:
            before = runs.get(result["task"], NONE.name)
            if before and result.get("drift") is not None:
                lost = before["acc_r"] - result["acc_r"]
                found.append((result["drift"], lost, result["change"]["kept"]))
    steps = (0.05, 0.1, 0.3, 0.45, 0.6)
    edges = [0.0, *steps, np.inf]
    words = [*(f"up to {step:.2f}" for step in steps), "more"]
    head = ["drift", "runs", "Acc_r lost, median", "worst", f"runs that lost over {HARMED:.0%}"]
    head.append("change of colors")
    lines, first = [], ""
    for low, high, word in zip(edges, edges[1:], words, strict=False):
        step = np.array([run[1:] for run in found if low < run[0] <= high or run[0] == low == 0])
        if not len(step):
            lines.append([word, "0", *["-"] * 4])
            continue
        losses, changes = step.T
        first = first or (word if np.median(losses) > HARMED else "")
        shares = (np.median(losses), losses.max(), (losses > HARMED).mean(), changes.mean())
        lines.append([word, str(len(step)), *(percent(float(share)) for share in shares)])
    half = f"half of the runs lose more than {HARMED:.0%}"
    said = f"The first step in which {half}: {first or 'none'}."
    if len(found) > 2:
        rank = spearman([drift for drift, _, _ in found], [lost for _, lost, _ in found])
        if not np.isnan(rank):
            said += f" Rank correlation of drift and Acc_r lost over {len(found)} runs: {rank:.2f}."
    return (head, lines), said


@dataclass(frozen=True)
class Case:
    """One erased concept of one run: what was measured, and what its images show."""

    task: str
    method: str
    concept: str
    kind: str
    left: float
    to_go: float
    seen: float
    chance: float

    @property
    def score(self) -> float:
        """By today's marks; at most 1 is erased."""
        score = score_of(self.left, self.left, self.kind, self.to_go)
        assert score is not None
        return score

    @property
    def verdict(self) -> str:
        return verdict_of(self.score, self.kind)

    @property
    def gone(self) -> bool:
        return self.seen <= self.chance + GONE

    @property
    def agrees(self) -> bool:
        return (self.verdict == "erased") == self.gone

    @property
    def unsafe(self) -> bool:
        return self.verdict == "erased" and not self.gone


def cases_of(runs: Runs) -> list[Case]:
    """Every erased concept with a certificate and enough pictures; equal edits count once."""
    cases, counted = [], []
    for result in runs.results:
        before = runs.get(result["task"], NONE.name)
        same = result["task"], result.get("left"), result.get("to_go")
        if before is None or same in counted:  # two budgets that choose the same point
            continue
        counted.append(same)
        for concept, left in result.get("left", {}).items():
            if left is None or result["concept_counts"].get(concept, 0) < FEWEST:
                continue
            seen, chance = result["by_concept"][concept], before["chance"].get(concept, 0.0)
            kind, to_go = result["kinds"][concept], result["to_go"][concept]
            facts = (result["task"], result["method"], concept, kind, left, to_go, seen, chance)
            cases.append(Case(*facts))
    return cases


Measure = Literal["left", "to_go"]


def best_bar(cases: Sequence[Case], measure: Measure) -> tuple[float, float, float]:
    """(bar, agreement, unsafe share) of the bar that agrees most often with at most `UNSAFE`."""
    values = np.array([getattr(case, measure) for case in cases])
    gone = np.array([case.gone for case in cases])
    levels = np.unique(values)
    bars = [-0.01, *((levels[:-1] + levels[1:]) / 2), float(levels[-1]) + 0.01]
    scored = []
    for bar in bars:
        below = values <= bar
        scored.append((float((below == gone).mean()), float(bar), float((below & ~gone).mean())))
    safe = [entry for entry in scored if entry[2] <= UNSAFE]
    agreement, bar, unsafe = max(safe)
    return bar, agreement, unsafe


def told_apart(cases: Sequence[Case], measure: Measure) -> float | None:
    """How often a measure is lower for a concept that is gone than for another: 0.5 is chance."""
    gone = np.array([getattr(case, measure) for case in cases if case.gone])
    seen = np.array([getattr(case, measure) for case in cases if not case.gone])
    if not len(gone) or not len(seen):
        return None
    below = (gone[:, None] < seen).mean() + (gone[:, None] == seen).mean() / 2
    return float(below)


def bars(chosen: Sequence[Case], confirming: Sequence[Case]) -> Table:
    """Do verdicts and images agree, for each type, where the marks were chosen and elsewhere?"""
    head = ["type", "marks: remaining, distance"]
    for words in ("chosen", "confirming"):
        head += [f"cases, {words}", "agree", "unsafe", "remaining separates", "distance separates"]
    lines = []
    for kind in dict.fromkeys(case.kind for case in (*chosen, *confirming)):
        now = bars_of(kind)
        shown = f"{now.erased:.2f}, " + ("-" if now.arrived is None else f"{now.arrived:.2f}")
        line = [kind, shown]
        for cases in (chosen, confirming):
            own = [case for case in cases if case.kind == kind]
            if not own:
                line += ["0", "-", "-", "-", "-"]
                continue
            line += [str(len(own)), *(percent(_mean(getattr(c, f) for c in own)) for f in FLAGS)]
            line += [percent(told_apart(own, "left")), percent(told_apart(own, "to_go"))]
        lines.append(line)
    return head, lines


def verdicts(cases: Sequence[Case]) -> Table:
    """Each verdict, and how many of its concepts are gone in images or still recognized."""
    words = {"erased": "erased", "weakened": "weakened", "stands": "still there"}
    lines = []
    for verdict, word in words.items():
        gone = [case.gone for case in cases if case.verdict == verdict]
        lines.append([word, str(sum(gone)), str(len(gone) - sum(gone))])
    return ["verdict", "gone in images", "still recognized"], lines


def _mean(flags: Any) -> float:
    listed = list(flags)
    return sum(listed) / len(listed)


def ablation(runs: Runs) -> Table:
    """Do SPEED's filtering and augmentation help here, and where?"""
    tasks = [task for task in CURVED if runs.get(task, NONE.name)]
    labels = [TASKS[task].label for task in tasks]
    head = ["components", "rows", *labels]
    lines = []
    for suffix, rows in (("", "bare names"), ("_lent", "ours")):
        for label, name in ABLATIONS.items():
            found = [runs.get(task, name + suffix) for task in tasks]
            if not any(found):
                continue
            lines.append([label, rows, *(_cell(result) for result in found)])
    return head, lines


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    shares = "/".join(percent(result[name]) for name in ("acc_e", "acc_r", "h_o"))
    return f"{shares}/{result['frechet']:.1f}"


def soft_and_hard(runs: Runs) -> Table:
    """How far apart are soft prior and null space, each at its best point, on the same rows?"""
    head = ["task", "soft prior, best limit", "H_o", "drift", "null space, best threshold", "H_o"]
    head += ["drift", "soft prior ahead by", "95%"]
    lines = []
    for task in CURVED:
        soft, hard = runs.best(task, "ours"), runs.best(task, "hard")
        if soft is None or hard is None:
            continue
        line = [TASKS[task].label]
        for result in (soft, hard):
            label = METHODS[result["method"]].label.split()
            line += [label[-1], percent(result["h_o"]), f"{result['drift']:.2f}"]
        limits = h_o_interval(soft, hard)
        lines.append([*line, f"{100 * (soft['h_o'] - hard['h_o']):+.1f}", _between(limits, "+")])
    return head, lines


def recognized_by_world(worlds: Mapping[str, Runs]) -> Table:
    """Acc_e and Acc_r of the default, task by task and world by world."""
    head = ["erased", *worlds]
    lines = []
    for task in TASKS:
        results = [runs.get(task, DEFAULT) for runs in worlds.values()]
        if any(results):
            lines.append([TASKS[task].label, *(_erased_and_kept(result) for result in results)])
    return head, lines


def _erased_and_kept(result: Result | None) -> str:
    return f"{percent(result['acc_e'])} / {percent(result['acc_r'])}" if result else "-"


def agreement_by_world(worlds: Mapping[str, Runs]) -> Table:
    """How often verdict and images agree in each world, and what the verdict "erased" is worth."""
    head = ["world", "cases", "agree", "unsafe", '"erased" and gone', '"erased" but recognized']
    lines = []
    for world, runs in worlds.items():
        cases = cases_of(runs)
        if not cases:
            continue
        shares = (_mean(getattr(case, flag) for case in cases) for flag in FLAGS)
        called = [case.gone for case in cases if case.verdict == "erased"]
        counts = [str(sum(called)), str(len(called) - sum(called))]
        lines.append([world, str(len(cases)), *map(percent, shares), *counts])
    return head, lines


AIMED = (DEFAULT, "far_1.1", "aim_2", "far_2")


def aims(worlds: Mapping[str, Runs]) -> Table:
    """Acc_e and Acc_r of `auto` with other aims, by world and task, where two of them were run."""
    head = ["world", "task", *(METHODS[name].label for name in AIMED)]
    lines = []
    for world, runs in worlds.items():
        for task in TASKS:
            results = [runs.get(task, name) for name in AIMED]
            if sum(result is not None for result in results) > 1:
                cells = [_erased_and_kept(result) for result in results]
                lines.append([world, TASKS[task].label, *cells])
    return head, lines
