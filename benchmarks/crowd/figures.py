"""Pictures of the report: the world, before and after, and the trade-off in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..figures import plots, save_figure
from .answers import Runs
from .methods import CURVED, DEFAULT, METHODS, NONE
from .render import compose
from .run import Runner
from .tasks import TASKS, Question, Task
from .world import BY_NAME, PAINTERS, PLAIN, SUBJECTS

OURS, RIVAL = "#1b7f5c", "#b03030"
DPI = 90


def _strip(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures (32, 32, 3) in a row."""
    padding = ((0, 0), (0, 2), (0, 0))
    return np.concatenate([np.pad(p, padding, constant_values=255) for p in pictures], axis=1)


def _bytes(picture: np.ndarray) -> np.ndarray:
    return np.round((picture.transpose(1, 2, 0).clip(-1, 1) + 1) * 127.5).astype(np.uint8)


def _shown(pictures: Tensor, places: Sequence[int]) -> np.ndarray:
    return _strip([pictures[i].permute(1, 2, 0).numpy() for i in places])


def world_sheet(out: Path) -> Path:
    """All painters with one subject each, their names below; and all subjects."""
    columns = 8
    figure, panels = plots().subplots(6, columns, figsize=(12, 10.2))
    for i, painter in enumerate(PAINTERS):
        panel = panels.flat[i]
        panel.imshow(_bytes(compose(SUBJECTS[(5 * i + 3) % len(SUBJECTS)], painter, night=False)))
        panel.set_title(painter.name, fontsize=8)
    for panel in panels.flat:
        panel.axis("off")
    for panel in panels[5]:
        panel.remove()
    wide = figure.add_subplot(6, 1, 6)
    wide.imshow(_strip([_bytes(compose(subject, PLAIN, False)) for subject in SUBJECTS]))
    wide.set_title("the subjects, where no painter is named", fontsize=9)
    wide.axis("off")
    return save_figure(figure, out / "world.png", DPI)


def _groups(task: Task, questions: Sequence[Question], each: int) -> dict[str, list[int]]:
    places = task.neighbours()
    erased = [i for i, q in enumerate(questions) if q.role == "erased"]
    wanted = {"asked for what was erased": erased}
    kept = [i for i, q in enumerate(questions) if q.role == "kept"]
    for where, title in (("near", "kept, looks alike"), ("far", "kept, unlike")):
        wanted[title] = [i for i in kept if places.get(questions[i].concept) == where]
    if not wanted["kept, unlike"]:
        wanted["kept, others"] = [i for i in kept if places.get(questions[i].concept) != "near"]
    return {title: own[:: max(1, len(own) // each)][:each] for title, own in wanted.items() if own}


def before_after(runner: Runner, runs: Runs, task: Task, out: Path, each: int = 5) -> Path | None:
    """Rows: untouched, the best published setting, ours, on the same prompts and noise."""
    rival = runs.best(task.name, "published")
    if rival is None or runs.get(task.name, DEFAULT) is None:
        return None
    best = METHODS[rival["method"]]
    rows = {"before": NONE, f"best published:\n{best.label}": best}
    rows["ours (default)"] = METHODS[DEFAULT]
    groups = _groups(task, task.questions(runner.count), each)
    size = (5.4 * len(groups), 3.9)
    figure, panels = plots().subplots(len(rows), len(groups), figsize=size, squeeze=False)
    for line, (label, method) in zip(panels, rows.items(), strict=True):
        pictures = runner.pictures(task, method)
        for panel, (title, places) in zip(line, groups.items(), strict=True):
            panel.imshow(_shown(pictures, places), interpolation="bilinear")
            panel.set_xticks([])
            panel.set_yticks([])
            if method is NONE:
                panel.set_title(title, fontsize=14)
        line[0].set_ylabel(label, fontsize=12, rotation=0, ha="right", va="center")
    figure.suptitle(f"Erased: {_named(task)}", fontsize=15, y=1.0)
    figure.subplots_adjust(wspace=0.04, hspace=0.04)
    return save_figure(figure, out / f"pictures_{task.name}.png", DPI)


def _named(task: Task) -> str:
    names = [concept.target for concept in task.concepts]
    more = [] if len(names) <= 4 else [f"{names[2]} and {len(names) - 3} more"]
    return ", ".join([*names[:2], *more] if more else names)


def trade_off(runs: Runs, out: Path) -> Path | None:
    """One panel per task: what is still recognized of the erased and of the rest, every method."""
    tasks = [task for task in CURVED if runs.get(task, DEFAULT)]
    if not tasks:
        return None
    figure, panels = plots().subplots(1, len(tasks), figsize=(3.6 * len(tasks), 3.4), squeeze=False)
    for panel, task in zip(panels[0], tasks, strict=True):
        marks = (
            ("ours", "o-", OURS, "ours, by budget"),
            ("hard", "s--", "#6060a0", "null space, our rows"),
            ("published", "x", RIVAL, "as published"),
            ("lent", "+", "#c08030", "published methods, our rows"),
        )
        for group, mark, colour, label in marks:
            own = [r for r in runs.of_task(task) if METHODS[r["method"]].group == group]
            if group in ("ours", "hard"):
                own.sort(key=lambda r: r["drift"])
            points = ([100 * r[name] for r in own] for name in ("acc_e", "acc_r"))
            panel.plot(*points, mark, color=colour, label=label)
        ours = runs.get(task, DEFAULT)
        assert ours is not None
        point = (100 * ours["acc_e"], 100 * ours["acc_r"])
        panel.plot(*point, "o", ms=12, mfc="none", mec=OURS, label="the default")
        panel.set_title(TASKS[task].label, fontsize=10)
        panel.set_xlabel("erased, still recognised (%)", fontsize=8)
        panel.set_xlim(-3, 103)
        panel.set_ylim(-3, 103)
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("kept, recognised (%)", fontsize=8)
    panels[0][-1].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    return save_figure(figure, out / "trade_off.png", DPI)


def left_and_seen(cases: Sequence[Any], out: Path) -> Path | None:
    """What the certificate says is left, and to go, against what is seen, by kind."""
    from speed_erase.speed_ops.certificate.certificate import bars_of

    kinds = list(dict.fromkeys(case.kind for case in cases))
    if not kinds:
        return None
    shape = {"figsize": (4 * len(kinds), 5.6), "squeeze": False, "sharey": True}
    figure, panels = plots().subplots(2, len(kinds), **shape)
    measures = (("left", "left"), ("to_go", "way still to go"))
    for row, (measure, words) in zip(panels, measures, strict=True):
        for panel, kind in zip(row, kinds, strict=True):
            own = [case for case in cases if case.kind == kind]
            for gone, colour, label in ((True, OURS, "gone"), (False, RIVAL, "still seen")):
                part = [case for case in own if case.gone == gone]
                measured = [getattr(case, measure) for case in part]
                shares = [100 * case.seen for case in part]
                panel.plot(measured, shares, ".", color=colour, label=label)
            bar = bars_of(kind).erased if measure == "left" else bars_of(kind).arrived
            if bar is not None:
                panel.axvline(bar, color="#888888", linestyle=":", label="the bar for 'erased'")
            panel.set_title(kind, fontsize=10)
            panel.set_xlabel(f"{words}, by the certificate", fontsize=8)
            panel.set_ylim(-3, 103)
        row[0].set_ylabel("still recognised (% of pictures)", fontsize=8)
    panels[0][-1].legend(fontsize=7)
    figure.tight_layout()
    return save_figure(figure, out / "verdicts.png", DPI)


def drawn_and_meant(runner: Runner, task: Task, out: Path, each: int = 12) -> Path:
    """The untouched model's pictures above what the prompts mean."""
    questions = task.questions(runner.count)
    places = [i for i, q in enumerate(questions) if q.prompt.subject]
    places = places[:: max(1, len(questions) // each)][:each]
    pictures = runner.pictures(task, NONE)
    prompts = [questions[i].prompt for i in places]
    meant = [_bytes(compose(p.subject or "", BY_NAME[p.style], p.night)) for p in prompts]
    figure, panels = plots().subplots(2, 1, figsize=(12, 2.4))
    strips = {"drawn": _shown(pictures, places), "meant": _strip(meant)}
    for panel, (title, strip) in zip(panels, strips.items(), strict=True):
        panel.imshow(strip, interpolation="nearest")
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_ylabel(title, fontsize=9, rotation=0, ha="right", va="center")
    return save_figure(figure, out / "untouched.png", DPI)
