"""Curves and before/after pictures of the report, small PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .matrix import sweep_jobs
from .methods import METHODS
from .run import Runner
from .sheet import to_bytes
from .storage import load_json, write_whole
from .tasks import TASKS, Question
from .world import PLAIN

DEFAULTS = {
    "threshold": "0.01",
    "lam": "0.05",
    "rows_per_concept": "8",
    "templates": "5",
    "retain_templates": "5",
    "positions": "all four",
    "augmentations": "0",
    **{f"auto lam, {task}": "0.1" for task in ("half", "subject", "implicit")},
}
"""The point of each curve that the preset has: `context`, which the curves vary, or `auto` where a curve says so."""


def _plots() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> Path:
    write_whole(path, lambda part: figure.savefig(part, format="png", dpi=80, bbox_inches="tight"))
    _plots().close(figure)
    return path


def curves(runner: Runner, out: Path) -> Path | None:
    """One panel a curve: residual and drift by the weights, H_o where pictures exist, the default marked."""
    points: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for job in sweep_jobs():
        if job.curve == "concepts":
            continue
        stored = _stored(runner, job.task.name, job.method.name)
        if stored:
            points.setdefault(job.curve, []).append((job.at, stored))
    if not points:
        return None
    columns = 3
    rows = -(-len(points) // columns)
    figure, panels = _plots().subplots(rows, columns, figsize=(13, 2.6 * rows), squeeze=False)
    for panel in panels.flat[len(points) :]:
        panel.axis("off")
    for panel, (curve, found) in zip(panels.flat, points.items(), strict=False):
        places = range(len(found))
        panel.plot(places, [r["values"]["residual"] for _, r in found], "o-", label="erased: residual", color="#b03030")
        panel.plot(places, [r["values"]["drift"] for _, r in found], "s-", label="kept: drift", color="#3060a0")
        seen = [(i, r["h_o"]) for i, (_, r) in enumerate(found) if "h_o" in r]
        if seen:
            panel.plot(*zip(*seen, strict=True), "k*", label="H_o of pictures")
        labels = [at for at, _ in found]
        if DEFAULTS.get(curve) in labels:
            panel.axvline(labels.index(DEFAULTS[curve]), color="#888888", linestyle=":", label="default")
        panel.set_xticks(list(places), labels, fontsize=7, rotation=20)
        panel.set_title(curve, fontsize=9)
        panel.set_ylim(0, 1.05)
    panels.flat[0].legend(fontsize=7)
    figure.tight_layout()
    return _save(figure, out / "curves.png")


def _stored(runner: Runner, task: str, method: str) -> dict[str, Any] | None:
    for path in (runner.folder / f"{task}__{method}.json", runner.folder / "values" / f"{task}__{method}.json"):
        if path.exists():
            return load_json(path)
    return None


def concept_curve(results: Sequence[dict[str, Any]], out: Path) -> Path | None:
    """H_o of pictures against the number of erased painters."""
    numbers: dict[str, list[tuple[int, float]]] = {}
    known = {"one": 1, "three": 3, "half": 6}
    for result in results:
        count = (
            known.get(result["task"]) or int(result["task"].removeprefix("first") or 0)
            if (result["task"] in known or result["task"].startswith("first"))
            else None
        )
        if count and result["method"] in ("auto", "speed_multi", "speed_few", "uce_both") and "h_o" in result:
            numbers.setdefault(result["label"], []).append((count, 100 * result["h_o"]))
    numbers = {label: sorted(points) for label, points in numbers.items() if len(points) > 1}
    if not numbers:
        return None
    figure, panel = _plots().subplots(figsize=(6, 3))
    for label, points in numbers.items():
        panel.plot(*zip(*points, strict=True), "o-", label=label)
    panel.set_xlabel("painters erased")
    panel.set_ylabel("H_o")
    panel.set_ylim(0, 102)
    panel.legend(fontsize=7)
    return _save(figure, out / "concepts.png")


def before_after(
    runner: Runner,
    task: str,
    methods: Sequence[str],
    out: Path,
    each: int = 4,
    labels: Mapping[str, str] | None = None,
) -> Path | None:
    """Rows: untouched, then methods. Columns: the erased painter, a neighbour, a far painter, no painter.

    `labels` names the rows in words of their own, in larger letters: for a picture that stands alone.
    """
    chosen = TASKS[task]
    done = [name for name in ("none", *methods) if runner.path(chosen, METHODS[name]).exists()]
    if len(done) < 2:
        return None
    groups = _groups(chosen.questions(runner.count), each)
    figure, panels = _plots().subplots(
        len(done), len(groups), figsize=(3 * len(groups), 0.95 * len(done)), squeeze=False
    )
    for line, name in zip(panels, done, strict=True):
        pictures = runner.pictures(chosen, METHODS[name])
        for panel, (title, places) in zip(line, groups.items(), strict=True):
            panel.imshow(_strip(pictures[places]), interpolation="nearest")
            panel.set_xticks([])
            panel.set_yticks([])
            if name == done[0]:
                panel.set_title(title, fontsize=9)
        label = labels[name] if labels else "\n".join(METHODS[name].label.split(", ")[:2])
        line[0].set_ylabel(label, fontsize=9 if labels else 6, rotation=0, ha="right", va="center")
    return _save(figure, out / (f"glance_{task}.png" if labels else f"pictures_{task}.png"))


def _groups(questions: Sequence[Question], each: int) -> dict[str, list[int]]:
    from .tasks import neighbours

    erased = [i for i, q in enumerate(questions) if q.role == "erased"]
    near = set().union(*(neighbours(questions[i].prompt.style) for i in erased), set())
    kept = [i for i, q in enumerate(questions) if q.role == "kept"]
    styled = [i for i in kept if questions[i].prompt.style != PLAIN.name]
    groups = {
        "the erased painter" if len({questions[i].prompt.style for i in erased}) == 1 else "erased": erased[
            :: max(1, len(erased) // each)
        ],
        "painters of the same palette or texture": [i for i in styled if questions[i].prompt.style in near],
        "other painters": [i for i in styled if questions[i].prompt.style not in near],
        "no painter": [i for i in kept if questions[i].prompt.style == PLAIN.name],
    }
    return {title: places[:each] for title, places in groups.items() if places}


def _strip(pictures: Tensor) -> Any:
    import numpy as np

    framed = np.pad(to_bytes(torch.as_tensor(pictures)), ((0, 0), (0, 0), (0, 1), (0, 0)), constant_values=255)
    return np.concatenate(list(framed), axis=1)
