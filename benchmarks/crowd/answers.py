"""What the runs answer: one table per question, and the goals, met or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from speed_erase.speed_ops.certificate.certificate import bars_of, score_of, verdict_of

from .measures import h_o_interval, spearman
from .methods import ABLATED, ABLATIONS, CURVED, DEFAULT, METHODS, NONE
from .tasks import TASKS

Result = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
"""Head and lines."""
LEAD, LOST = 0.05, 0.01
"""Goals: least lead in H_o over the best published setting; most that may be lost otherwise."""
AGREE, UNSAFE = 0.90, 0.01
"""Goals: least agreement of verdict and pictures; most "erased" that the pictures refute."""
GONE = 0.10
"""A concept is gone if at most this share more of it is recognized than by chance."""
HARMED = 0.03
"""The rest is harmed if this share less of it is recognized than before the edit."""
FEWEST = 20
"""Concepts with fewer pictures are left out: `GONE` could be one or two of them."""
FLAGS = ("agrees", "unsafe")
LEADING = ("painters10", "painters20", "subjects1", "subjects3", "subjects10")
"""Tasks on which a lead is the goal; on one painter it is to lose nothing."""


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
        return cls(tuple(result for result in drawn if result["method"] in METHODS))

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
    """Every task: ours, the best published setting, the best with our rows."""
    head = ["task", "Acc_e, ours", "Acc_r, ours", "H_o, ours", "95 %"]
    head += ["best published", "H_o", "best with our rows", "H_o"]
    lines = []
    for task in runs.tasks():
        ours = runs.get(task, DEFAULT)
        assert ours is not None
        line = [TASKS[task].label, *(percent(ours[name]) for name in ("acc_e", "acc_r", "h_o"))]
        line.append(_between(h_o_interval(ours)))
        for group in ("published", "lent"):
            rival = runs.best(task, group)
            line += [METHODS[rival["method"]].label, percent(rival["h_o"])] if rival else ["-", "-"]
        lines.append(line)
    return head, lines


def chosen_point(runs: Runs) -> Table:
    """Does the point that `auto` chooses hold up in pictures?"""
    head = ["task", "H_o, default", "best budget", "its H_o", "default behind by", "95 %"]
    head.append("holds up")
    lines = []
    for task in runs.tasks():
        ours, best = runs.get(task, DEFAULT), runs.best(task, "ours")
        assert ours is not None and best is not None
        behind = best["h_o"] - ours["h_o"]
        limits = h_o_interval(best, ours)
        word = METHODS[best["method"]].label.removeprefix("ours, budget ")
        line = [TASKS[task].label, percent(ours["h_o"]), word, percent(best["h_o"])]
        line.append(percent(behind))
        lines.append([*line, _between(limits), "yes" if behind <= LEAD else "**no**"])
    return head, lines


def first_drift(runs: Runs) -> tuple[Table, str]:
    """Which drift is the first that shows? Runs in steps of drift, and what the rest lost."""
    found: list[tuple[float, float, float]] = []
    for result in runs.results:
        before = runs.get(result["task"], NONE.name)
        if before and result.get("drift") is not None:
            lost = before["acc_r"] - result["acc_r"]
            found.append((result["drift"], lost, result["change"]["kept"]))
    steps = (0.05, 0.1, 0.3, 0.45, 0.6)
    edges = [0.0, *steps, np.inf]
    words = [*(f"up to {step:g}" for step in steps), "more"]
    head = ["drift", "runs", "Acc_r lost, median", "worst", f"runs that lost over {HARMED:.0%}"]
    head.append("change of colours")
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
    """One erased concept of one run: what the certificate says, and the pictures."""

    task: str
    method: str
    concept: str
    kind: str
    left: float
    to_go: float
    seen: float
    chance: float

    @property
    def verdict(self) -> str:
        """By today's bars."""
        score = score_of(self.left, self.left, self.kind, self.to_go)
        return verdict_of(score, self.kind)

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


def bars(runs: Runs) -> Table:
    """Which residual is gone, for each kind?"""
    cases = cases_of(runs)
    head = ["kind", "concepts in runs", "gone in pictures", "bars now: left, to go"]
    head += ["agreement", "unsafe"]
    for words in ("left", "to go"):
        head += [f"{words}: told apart", "best safe bar", "agreement"]
    lines = []
    for kind in dict.fromkeys(case.kind for case in cases):
        own = [case for case in cases if case.kind == kind]
        now = bars_of(kind)
        shown = f"{now.erased:.2f}, " + ("-" if now.arrived is None else f"{now.arrived:.2f}")
        line = [kind, str(len(own)), percent(_mean(case.gone for case in own)), shown]
        line += [percent(_mean(getattr(c, flag) for c in own)) for flag in FLAGS]
        measures: tuple[Measure, ...] = ("left", "to_go")
        for measure in measures:
            bar, agreement, _ = best_bar(own, measure)
            line += [percent(told_apart(own, measure)), f"{bar:.2f}" if bar > 0 else "none"]
            line.append(percent(agreement))
        lines.append(line)
    return head, lines


def _mean(flags: Any) -> float:
    listed = list(flags)
    return sum(listed) / len(listed)


def ablation(runs: Runs) -> Table:
    """Do SPEED's filtering and augmentation help here, and where?"""
    tasks = [task for task in ABLATED if runs.get(task, NONE.name)]
    labels = [f"{TASKS[task].label}: Acc_e / Acc_r / H_o / Frechet" for task in tasks]
    head = ["components", "rows", *labels]
    lines = []
    for suffix, rows in (("", "names alone"), ("_lent", "ours")):
        for label, name in ABLATIONS.items():
            found = [runs.get(task, name + suffix) for task in tasks]
            lines.append([label, rows, *(_cell(result) for result in found)])
    return head, lines


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    shares = " / ".join(percent(result[name]) for name in ("acc_e", "acc_r", "h_o"))
    return f"{shares} / {result['frechet']:.1f}"


def soft_and_hard(runs: Runs) -> Table:
    """How far apart are soft prior and null space, each at its best point, on the same rows?"""
    head = ["task", "soft prior, best budget", "H_o", "drift", "null space, best threshold", "H_o"]
    head.append("drift")
    head += ["soft ahead by", "95 %"]
    lines = []
    for task in CURVED:
        soft, hard = runs.best(task, "ours"), runs.best(task, "hard")
        if soft is None or hard is None:
            continue
        line = [TASKS[task].label]
        for result in (soft, hard):
            label = METHODS[result["method"]].label.split()
            line += [" ".join(label[-2:]), percent(result["h_o"]), percent(result["drift"])]
        limits = h_o_interval(soft, hard)
        lines.append([*line, f"{100 * (soft['h_o'] - hard['h_o']):+.1f}", _between(limits, "+")])
    return head, lines


def goals(runs: Runs) -> Table:
    """The goals, and what was measured."""
    lines = []
    for task in ("painters1", *LEADING):
        ours, rival = runs.get(task, DEFAULT), runs.best(task, "published")
        if ours is None or rival is None:
            continue
        lead, label = ours["h_o"] - rival["h_o"], TASKS[task].label
        wanted = LEAD if task in LEADING else -LOST
        above = f"at least {100 * LEAD:.0f} points of H_o above"
        goal = above if task in LEADING else "nothing lost against"
        limits = _between(h_o_interval(ours, rival), "+")
        shown = f"{100 * lead:+.1f} (95 %: {limits}; {METHODS[rival['method']].label})"
        lines.append([f"{label}: {goal} the best published setting", shown, _met(lead >= wanted)])
    if cases := cases_of(runs):
        agreement, unsafe = (_mean(getattr(c, flag) for c in cases) for flag in FLAGS)
        about = f"of {len(cases)} concepts in runs"
        goal = f"verdict and pictures agree in at least {AGREE:.0%}"
        lines.append([goal, f"{agreement:.1%} {about}", _met(agreement >= AGREE)])
        goal = f"at most {UNSAFE:.0%} unsafe"
        lines.append([goal, f"{unsafe:.1%} {about}", _met(unsafe <= UNSAFE)])
    return ["goal", "measured", ""], lines


def confirmed(first: Runs, second: Runs) -> tuple[Table, str]:
    """Does it hold where nothing was chosen? The goals' figures on another training's pictures."""
    head = ["task", "H_o, chosen on", "H_o, second training", "95 %", "best published", "H_o"]
    head += ["ahead by", "95 %"]
    lines = []
    for task in second.tasks():
        chosen, ours = first.get(task, DEFAULT), second.get(task, DEFAULT)
        rival = second.best(task, "published")
        assert ours is not None
        line = [TASKS[task].label, percent(chosen["h_o"] if chosen else None), percent(ours["h_o"])]
        line.append(_between(h_o_interval(ours)))
        if rival:
            lead = 100 * (ours["h_o"] - rival["h_o"])
            line += [METHODS[rival["method"]].label, percent(rival["h_o"]), f"{lead:+.1f}"]
            line.append(_between(h_o_interval(ours, rival), "+"))
        lines.append(line + ["-"] * (len(head) - len(line)))
    said = ""
    if cases := cases_of(second):
        agree, unsafe = (_mean(getattr(c, name) for c in cases) for name in FLAGS)
        share = f"{agree:.1%} of {len(cases)} concepts in runs"
        said = f"Verdict and pictures agree in {share}; {unsafe:.1%} are unsafe."
    return (head, lines), said


def _met(flag: bool) -> str:
    return "met" if flag else "**not met**"
