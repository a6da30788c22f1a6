"""Images of the page: the 40 painters, before and after, and the trade-off."""

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
from .world import CHARACTERS, PAINTERS, PEOPLE, PLAIN, SUBJECTS

OURS, RIVAL = "#1b7f5c", "#b03030"
HIGHEST = 4
"""End of the axis of scores; higher ones are at the edge."""
DPI = 90


def _strip(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures (32, 32, 3) in a row."""
    padding = ((0, 0), (0, 2), (0, 0))
    return np.concatenate([np.pad(p, padding, constant_values=255) for p in pictures], axis=1)


def _bytes(picture: np.ndarray) -> np.ndarray:
    return np.round((picture.transpose(1, 2, 0).clip(-1, 1) + 1) * 127.5).astype(np.uint8)


def _shown(pictures: Tensor, places: Sequence[int]) -> np.ndarray:
    return _strip([pictures[i].permute(1, 2, 0).numpy() for i in places])


def label_of(number: int) -> str:
    """A1 to E8: icons are labeled by their place on the sheet."""
    return f"{'ABCDE'[number // 8]}{number % 8 + 1}"


def painters_sheet(out: Path) -> Path:
    """All painters with one subject each, labeled by place; and all subjects."""
    columns = 8
    figure, panels = plots().subplots(7, columns, figsize=(12, 11.9))
    for i, painter in enumerate(PAINTERS):
        panel = panels.flat[i]
        panel.imshow(_bytes(compose(SUBJECTS[(5 * i + 3) % len(SUBJECTS)], painter, night=False)))
        panel.set_title(label_of(i), fontsize=10)
    for panel in panels.flat:
        panel.axis("off")
    rows = {"subjects": SUBJECTS, "people and characters": (*PEOPLE, *CHARACTERS)}
    for line, (title, names) in enumerate(rows.items(), 5):
        for panel in panels[line]:
            panel.remove()
        wide = figure.add_subplot(7, 1, line + 1)
        wide.imshow(_strip([_bytes(compose(name, PLAIN, False)) for name in names]))
        wide.set_title(f"the {title}, without a painter", fontsize=10)
        wide.axis("off")
    return save_figure(figure, out / "painters.png", DPI)


def _groups(task: Task, questions: Sequence[Question], each: int) -> dict[str, list[int]]:
    places = task.neighbors()
    erased = [i for i, q in enumerate(questions) if q.role == "erased"]
    wanted = {"prompts for what was erased": erased}
    kept = [i for i, q in enumerate(questions) if q.role == "kept"]
    for where, title in (("near", "protected, similar"), ("far", "protected, different")):
        wanted[title] = [i for i in kept if places.get(questions[i].concept) == where]
    if not wanted["protected, different"]:
        wanted["protected, others"] = [
            i for i in kept if places.get(questions[i].concept) != "near"
        ]
    return {title: own[:: max(1, len(own) // each)][:each] for title, own in wanted.items() if own}


def before_after(runner: Runner, runs: Runs, task: Task, path: Path, each: int = 5) -> Path | None:
    """Rows: original, the best rival as released, ours, on the same prompts and noise."""
    rival = runs.best(task.name, "released")
    if rival is None or runs.get(task.name, DEFAULT) is None:
        return None
    best = METHODS[rival["method"]]
    rows = {
        "original": NONE,
        best.label.replace(", ", ",\n"): best,
        "SPEED (default)": METHODS[DEFAULT],
    }
    groups = _groups(task, task.questions(runner.count), each)
    pictures = {label: runner.pictures(task, method) for label, method in rows.items()}
    strips = {
        label: [_shown(images, places) for places in groups.values()]
        for label, images in pictures.items()
    }
    return strips_figure(strips, list(groups), path)


def strips_figure(strips: dict[str, list[np.ndarray]], titles: Sequence[str], path: Path) -> Path:
    """Strips of images, one row per model and one column per group of prompts."""
    size = (5.4 * len(titles), 3.9)
    figure, panels = plots().subplots(len(strips), len(titles), figsize=size, squeeze=False)
    for line, (label, own) in zip(panels, strips.items(), strict=True):
        for panel, strip in zip(line, own, strict=True):
            panel.imshow(strip, interpolation="bilinear")
            panel.set_xticks([])
            panel.set_yticks([])
        line[0].set_ylabel(label, fontsize=14, rotation=0, ha="right", va="center")
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title, fontsize=14)
    figure.subplots_adjust(wspace=0.04, hspace=0.04)
    return save_figure(figure, path, DPI)


def trade_off(runs: Runs, out: Path) -> Path | None:
    """One panel per task: what is still recognized of the erased and of the rest, every method."""
    tasks = [task for task in CURVED if runs.get(task, DEFAULT)]
    if not tasks:
        return None
    figure, panels = plots().subplots(1, len(tasks), figsize=(3.3 * len(tasks), 4.0), squeeze=False)
    for panel, task in zip(panels[0], tasks, strict=True):
        marks = (
            ("ours", "o-", OURS, "SPEED, stricter to looser limit"),
            ("hard", "s--", "#6060a0", "null space, our rows"),
            ("released", "x", RIVAL, "rivals as released"),
            ("lent", "+", "#c08030", "rivals, our rows"),
        )
        for group, mark, color, label in marks:
            own = [r for r in runs.of_task(task) if METHODS[r["method"]].group == group]
            if group in ("ours", "hard"):
                own.sort(key=lambda r: r["drift"])
            points = ([100 * r[name] for r in own] for name in ("acc_e", "acc_r"))
            panel.plot(*points, mark, color=color, label=label, clip_on=False)
        ours = runs.get(task, DEFAULT)
        assert ours is not None
        point = (100 * ours["acc_e"], 100 * ours["acc_r"])
        style = {"ms": 13, "mfc": "none", "mec": OURS, "label": "the default", "clip_on": False}
        panel.plot(*point, "o", **style)
        panel.set_title(TASKS[task].label, fontsize=12, pad=12)
        _percent_axis(panel.xaxis, "erased, still recognized (%)")
        _percent_axis(panel.yaxis, "others, recognized (%)")
        panel.grid(alpha=0.3)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=11, loc="lower center", ncol=3, frameon=False)
    figure.tight_layout(rect=(0, 0.15, 1, 1))
    return save_figure(figure, out / "trade_off.png", DPI)


def _percent_axis(axis: Any, label: str) -> None:
    """0 to 100 in steps of 25."""
    axis.set_ticks(range(0, 101, 25))
    axis.axes.set(**{f"{axis.axis_name}lim": (0, 100)})
    axis.set_label_text(label, fontsize=11)


def score_and_seen(cases: Sequence[Any], out: Path) -> Path | None:
    """The score that decides, against the share of images that still show the concept, by type."""
    kinds = list(dict.fromkeys(case.kind for case in cases))
    if not kinds:
        return None
    shape = {"figsize": (3.8 * len(kinds), 3.9), "squeeze": False}
    figure, panels = plots().subplots(1, len(kinds), **shape)
    for panel, kind in zip(panels[0], kinds, strict=True):
        for gone, color, label in ((True, OURS, "gone in images"), (False, RIVAL, "still seen")):
            own = [case for case in cases if case.kind == kind and case.gone == gone]
            scores = [min(case.score, HIGHEST) for case in own]
            shares = [100 * case.seen for case in own]
            panel.plot(scores, shares, ".", ms=7, color=color, label=label, clip_on=False)
        panel.axvline(1, color="#666666", linestyle=":", label="erased up to here")
        panel.set_title(kind, fontsize=12)
        panel.set_xlim(0, HIGHEST)
        panel.set_xticks(range(HIGHEST + 1))
        panel.set_xlabel("score", fontsize=11)
        _percent_axis(panel.yaxis, "still recognized (% of images)")
        panel.grid(alpha=0.3)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=11, loc="lower center", ncol=3, frameon=False)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    return save_figure(figure, out / "verdicts.png", DPI)
