"""What `evaluate` writes and prints: the page, the JSON file and the measures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ..evaluate.page import evaluation_page
from ..evaluate.results import MEASURE_TITLES, Evaluation, ModelResult
from ..files.atomic import write_bytes
from .console import Console


def write_results(
    evaluation: Evaluation, folder: Path, thumbnail: Callable[[str], str], console: Console
) -> None:
    """Writes the page and the JSON file, and prints the measures.

    Args:
        evaluation: The results.
        folder: Where the files go.
        thumbnail: Key of an image -> a small copy as a data URL.
        console: Where the measures are shown.
    """
    page, data = folder / "report.html", folder / "evaluation.json"
    value = evaluation.to_json()
    write_bytes(data, json.dumps(value, indent=1, ensure_ascii=False).encode(), force=True)
    write_bytes(page, evaluation_page(evaluation, thumbnail).encode(), force=True)
    for model in evaluation.erased:
        _show(model, console)
    for name, text in evaluation.scorers.items():
        console.say(f"{MEASURE_TITLES.get(name, name)}: {text}")
    console.say(f"report  {page}")
    console.say(f"data    {data}")
    console.result({**value, "report": str(page), "data": str(data)})


def _show(model: ModelResult, console: Console) -> None:
    console.say(f"{model.label}: {model.headline()}.")
    names = list(dict.fromkeys(name for group in model.groups for name in group.measures))
    rows = []
    for group in model.groups:
        measures = group.measures
        cells = [measures[name].text(name) if name in measures else "–" for name in names]
        rows.append((group.group, group.role, str(group.images), *cells))
    titles = [MEASURE_TITLES[name] for name in names]
    console.table(("Group", "role", "pictures", *titles), rows)
    frames = [
        (*group.faults_before.values(), *group.faults_after.values()) for group in model.groups
    ]
    if faults := sum(map(sum, frames)):
        console.say(f"{faults} black, flat or broken frames were counted apart.")
    for name, measure in model.overall.items():
        console.say(f"{MEASURE_TITLES[name]} {measure.text(name)} ({measure.interval_text(name)})")
