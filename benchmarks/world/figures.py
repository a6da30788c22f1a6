"""Curves and before/after pictures of the report, small PNG files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .matrix import sweep_jobs
from .measures import concept_of
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
    **{f"auto aim, {task}": "1.1" for task in ("half", "subject", "implicit")},
}
"""The point of each curve that the preset has: `context`, which the curves vary, or `auto` where a
curve says so.
"""


def plots() -> Any:
    """pyplot, without a window."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path, dpi: int = 80) -> Path:
    """A PNG of 256 colours: a third of the size; single pixels of a picture change by a few per
    cent.
    """
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, bbox_inches="tight")
    image = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    write_whole(path, lambda part: image.save(part, format="PNG", optimize=True))
    plots().close(figure)
    return path


Points = dict[str, list[tuple[str, dict[str, Any]]]]


def curve_points(runner: Runner) -> Points:
    """The stored results of each curve, in its order."""
    points: Points = {}
    for job in sweep_jobs():
        stored = _stored(runner, job.task.name, job.method.name)
        if stored and job.curve != "concepts":
            points.setdefault(job.curve, []).append((job.at, stored))
    return points


def curves(points: Points, out: Path) -> Path | None:
    """One panel a curve: residual and drift by the weights, H_o where pictures exist, the preset's
    own point marked.
    """
    if not points:
        return None
    columns = 4
    rows = -(-len(points) // columns)
    figure, panels = plots().subplots(rows, columns, figsize=(14, 2.5 * rows), squeeze=False)
    for panel in panels.flat[len(points) :]:
        panel.axis("off")
    for panel, (curve, found) in zip(panels.flat, points.items(), strict=False):
        _curve(panel, curve, found)
    panels.flat[0].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    return save(figure, out / "curves.png")


def _curve(panel: Any, curve: str, found: list[tuple[str, dict[str, Any]]]) -> None:
    places = range(len(found))
    lines = {name: [r["values"][name] for _, r in found] for name in ("residual", "drift")}
    panel.plot(places, lines["residual"], "o-", label="erased: residual", color="#b03030")
    panel.plot(places, lines["drift"], "s-", label="kept: drift", color="#3060a0")
    top = 1.3 * max(*lines["residual"], *lines["drift"])
    for place, (_, result) in enumerate(found):
        if "h_o" in result:
            shown = f"H_o {100 * result['h_o']:.0f}"
            panel.text(place, 0.97 * top, shown, fontsize=6, ha="center", va="top")
    labels = [at for at, _ in found]
    if DEFAULTS.get(curve) in labels:
        panel.axvline(
            labels.index(DEFAULTS[curve]), color="#888888", linestyle=":", label="the preset's own"
        )
    panel.set_xticks(list(places), labels, fontsize=7, rotation=20)
    panel.tick_params(axis="y", labelsize=7)
    panel.set_title(curve, fontsize=9)
    panel.set_xlim(-0.4, len(found) - 0.6)
    panel.set_ylim(0, top)


def _stored(runner: Runner, task: str, method: str) -> dict[str, Any] | None:
    for path in (
        runner.folder / f"{task}__{method}.json",
        runner.folder / "values" / f"{task}__{method}.json",
    ):
        if path.exists():
            return load_json(path)
    return None


def concept_curve(results: Sequence[dict[str, Any]], out: Path) -> Path | None:
    """H_o of the pictures, and Frechet distance of the kept ones, against the number of erased
    painters.
    """
    known = {"one": 1, "three": 3, "half": 6}
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for result in results:
        task = result["task"]
        count = int(task.removeprefix("first")) if task.startswith("first") else known.get(task)
        if count and result["method"] in ("auto", "speed_multi", "uce_both") and "h_o" in result:
            lines.setdefault(result["label"], []).append(
                (count, 100 * result["h_o"], result["frechet_kept"])
            )
    lines = {label: sorted(points) for label, points in lines.items() if len(points) > 1}
    if not lines:
        return None
    figure, panels = plots().subplots(1, 2, figsize=(11, 3))
    for place, (panel, title) in enumerate(
        zip(panels, ("H_o", "Frechet distance of the kept"), strict=True), 1
    ):
        for label, points in lines.items():
            panel.plot(
                [point[0] for point in points],
                [point[place] for point in points],
                "o-",
                label=label,
            )
        panel.set_xlabel("painters erased, of 12")
        panel.set_title(title, fontsize=9)
        panel.set_ylim(bottom=0)
    panels[0].legend(fontsize=7, loc="lower right")
    return save(figure, out / "concepts.png")


def before_after(
    runner: Runner,
    task: str,
    methods: Sequence[str],
    out: Path,
    each: int = 4,
    labels: Mapping[str, str] | None = None,
) -> Path | None:
    """Rows: untouched, then methods. Columns: the erased painter, a neighbour, a far painter, no
    painter; or what else was erased, and the rest.

    `labels` names the rows in words of their own, in larger letters: for a picture that stands
    alone.
    """
    chosen = TASKS[task]
    done = [name for name in ("none", *methods) if runner.path(chosen, METHODS[name]).exists()]
    if len(done) < 2:
        return None
    groups = _groups(chosen.questions(runner.count), each)
    figure, panels = plots().subplots(
        len(done),
        len(groups),
        figsize=(12 if len(groups) == 2 else 3 * len(groups), 0.95 * len(done)),
        squeeze=False,
    )
    for line, name in zip(panels, done, strict=True):
        pictures = runner.pictures(chosen, METHODS[name])
        for panel, (title, places) in zip(line, groups.items(), strict=True):
            panel.imshow(_strip(pictures[places]), interpolation="nearest")
            panel.set_xticks([])
            panel.set_yticks([])
            if name == done[0]:
                panel.set_title(title, fontsize=9)
        own = {"auto": "SPEED, rows in context\n(auto: the default)"}
        label = (
            labels[name]
            if labels
            else own.get(name, "\n".join(METHODS[name].label.split(", ")[:2]))
        )
        line[0].set_ylabel(label, fontsize=9 if labels else 6, rotation=0, ha="right", va="center")
    return save(figure, out / (f"glance_{task}.png" if labels else f"pictures_{task}.png"))


def _groups(questions: Sequence[Question], each: int) -> dict[str, list[int]]:
    from .tasks import neighbours

    erased = [i for i, q in enumerate(questions) if q.role == "erased"]
    kept = [i for i, q in enumerate(questions) if q.role == "kept"]
    first = questions[erased[0]]
    if first.head != "style":
        sides = {f"{concept_of(first)}: erased": erased, "everything else": kept}
        return {
            title: places[:: max(1, len(places) // (2 * each))][: 2 * each]
            for title, places in sides.items()
        }
    near = set().union(*(neighbours(questions[i].prompt.style) for i in erased), set())
    styled = [i for i in kept if questions[i].prompt.style != PLAIN.name]
    groups = {
        (
            "the erased painter"
            if len({questions[i].prompt.style for i in erased}) == 1
            else "erased"
        ): erased[:: max(1, len(erased) // each)],
        "painters of the same palette or texture": [
            i for i in styled if questions[i].prompt.style in near
        ],
        "other painters": [i for i in styled if questions[i].prompt.style not in near],
        "no painter": [i for i in kept if questions[i].prompt.style == PLAIN.name],
    }
    return {title: places[:each] for title, places in groups.items() if places}


def _strip(pictures: Tensor) -> Any:
    import numpy as np

    framed = np.pad(
        to_bytes(torch.as_tensor(pictures)), ((0, 0), (0, 0), (0, 1), (0, 0)), constant_values=255
    )
    return np.concatenate(list(framed), axis=1)
