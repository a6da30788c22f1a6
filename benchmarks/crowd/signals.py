"""Which measure of an edit ranks edits as their images do, whatever the method?

For stored runs, each edit is made again and measured on prompts that no method saw. Outputs are
taken relative to the replacement's in the same prompt, so that only what names a concept counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speed_erase.speed_ops.certificate.measure import residuals

from ..storage import load_json, save_json
from .answers import GONE
from .measures import spearman
from .methods import METHODS, NONE, Method, TaskRows
from .model import Crowd
from .prompts import HELD_OUT_FIGURE_TEMPLATES, HELD_OUT_TEMPLATES, with_article
from .run import Runner
from .tasks import TASKS, Task
from .world import CHARACTERS, PAINTERS, PEOPLE, SUBJECTS

FIGURES = (*PEOPLE, *CHARACTERS)
NAMES: dict[str, Sequence[str]] = {
    "style": [painter.name for painter in PAINTERS],
    "object": SUBJECTS,
    "person": FIGURES,
    "character": FIGURES,
}
"""Names among which a concept has to be recognized."""
RIDGE = 0.1
"""Of the mean variance within a name, added to every direction."""
MEASURES = ("remaining", "distance", "weighted")


def prompts_for(kind: str, name: str) -> list[str]:
    """Prompts for a name that neither training nor any edit has seen."""
    words = {"a": with_article(name), "s": name, "p": name}
    if kind == "style":
        subjects = ("cat", "star", "house", "cup")
        return [
            template.format(**words | {"a": with_article(subject)})
            for template in HELD_OUT_TEMPLATES
            for subject in subjects
        ]
    plain = (
        HELD_OUT_FIGURE_TEMPLATES
        if kind in ("person", "character")
        else ("a big {s}", "{a} on a hill", "look at the {s}")
    )
    pairs = [(t, p) for t in HELD_OUT_TEMPLATES for p in ("Paul Klee", "Egon Schiele")]
    by_painters = [template.format(**words | {"p": painter}) for template, painter in pairs]
    return [*(template.format(**words) for template in plain), *by_painters]


def measured(crowd: Crowd, task: Task, edited: dict[str, Tensor]) -> dict[str, Any]:
    """Each erased concept by every measure, and how far other names moved; medians over layers."""
    kind = task.concepts[0].kind
    anchor = task.concepts[0].anchor
    names = NAMES[kind]
    erased = {concept.target for concept in task.concepts}
    texts = {name: prompts_for(kind, name) for name in (*names, anchor)}
    rows = {name: crowd.text.rows(prompts).mean(dim=1) for name, prompts in texts.items()}
    values: dict[str, dict[str, list[float]]] = {}
    drifts = []
    for key, original in crowd.original.items():
        weight, change = original.double(), (edited[key] - original).double()
        replaced = rows[anchor].double() @ weight.T
        before = torch.stack([rows[name].double() @ weight.T - replaced for name in names])
        moved = torch.stack([rows[name].double() @ change.T for name in names])
        separates = _separation(before)
        for index, name in enumerate(names):
            if name in erased:
                own = values.setdefault(name, {measure: [] for measure in MEASURES})
                shares = _shares(before[index], moved[index], separates)
                for measure, share in zip(MEASURES, shares, strict=True):
                    own[measure].append(share)
            else:
                size = (rows[name].double() @ weight.T).norm(dim=1)
                drifts.append(float((moved[index].norm(dim=1) / size).mean()))
    medians = {
        name: {measure: float(np.median(shares)) for measure, shares in own.items()}
        for name, own in values.items()
    }
    return {"concepts": medians, "drift": float(np.mean(drifts))}


def _separation(before: Tensor) -> Tensor:
    """`o x o`: inverse of the variance within names (names x prompts x o): it weighs directions by
    how well they tell one name from others.
    """
    inside = (before - before.mean(dim=1, keepdim=True)).flatten(0, 1)
    within = inside.T @ inside / len(inside)
    ridge = RIDGE * within.diagonal().mean() * torch.eye(len(within), dtype=within.dtype)
    return torch.linalg.inv(within + ridge)


def _shares(before: Tensor, moved: Tensor, separates: Tensor) -> tuple[float, float, float]:
    """Remaining, distance to the replacement, and the same weighted by what separates names.

    Args:
        before: `n x o`, outputs relative to the replacement's.
        moved: `n x o`, what the edit adds.
        separates: `o x o`, weights of directions.
    """
    total = before.square().sum()
    left, distance = (part.sum() for part in residuals(-before, before + moved))
    direction = separates @ before.mean(dim=0)
    weighted = ((before + moved).mean(dim=0) @ direction) / (before.mean(dim=0) @ direction)
    return float((left / total).sqrt()), float((distance / total).sqrt()), float(weighted)


def measure_runs(runner: Runner, tasks: Sequence[str], methods: Sequence[str]) -> list[dict]:
    """Measures stored runs, each once; the results are stored next to the runs."""
    folder = runner.folder / "signals"
    for name in tasks:
        task, rows = TASKS[name], TaskRows(TASKS[name], runner.crowd)
        for method in (METHODS[method] for method in methods):
            path = folder / f"{name}__{method.name}.json"
            if path.exists() or not runner.path(task, method).exists():
                continue
            result = load_json(runner.path(task, method))
            if "refused" not in result:
                entry = _entry(runner, task, method, rows, result)
                save_json(path, entry)
                runner.log(f"{name} {method.name}")
    return [load_json(path) for path in sorted(folder.glob("*.json"))]


def _entry(
    runner: Runner, task: Task, method: Method, rows: TaskRows, result: dict[str, Any]
) -> dict[str, Any]:
    before = load_json(runner.path(task, NONE))
    edited = rows.edit(method).weights
    entry = measured(runner.crowd, task, edited) | {"task": task.name, "method": method.name}
    entry["lost"] = before["acc_r"] - result["acc_r"]
    for concept, own in entry["concepts"].items():
        own["seen"] = result["by_concept"][concept]
        own["gone"] = own["seen"] <= before["chance"][concept] + GONE
    return entry


def separation(entries: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How often each measure is lower for a concept that is gone than for another (0.5 is chance),
    and the rank correlation of drift with how many other images were lost.
    """
    cases = [own for entry in entries for own in entry["concepts"].values()]
    shares = {}
    for measure in MEASURES:
        gone, seen = (
            np.array([case[measure] for case in cases if case["gone"] == flag])
            for flag in (True, False)
        )
        lower = (gone[:, None] < seen).mean() + (gone[:, None] == seen).mean() / 2
        shares[measure] = float(lower)
    shares["drift"] = spearman([e["drift"] for e in entries], [e["lost"] for e in entries])
    return shares | {"cases": len(cases), "edits": len(entries)}
