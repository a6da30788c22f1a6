"""An evaluation as one HTML file with its images: the values that `page.html` shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..certificate.certificate import verdict_in_words
from ..report.html import curve_facts, template
from .results import MEASURE_TITLES, Evaluation, GroupResult, ImagePair, ModelResult
from .setup import PaperTable

Thumbnail = Callable[[str], str]
"""Key of an image -> the image as a data URL."""
PROMPTS_SHOWN = 6
"""Prompts with images per group; those that went wrong come first."""
SEEDS_SHOWN = 4
_WORDS = {
    "erased": "the concept is gone from these pictures",
    "leaking": "the concept is still there",
    "preserved": "still what was asked for",
    "damaged": "no longer what was asked for",
    "unclear": "the original did not show it either, or there is no frame to judge",
    "unjudged": "no judge says what they show: look for yourself",
}
_WORST_FIRST = ("leaking", "damaged", "unclear", "unjudged", "erased", "preserved")


def evaluation_page(evaluation: Evaluation, thumbnail: Thumbnail) -> str:
    """The page."""
    erased = evaluation.erased
    groups = [(model, group) for model in erased for group in model.groups]
    columns = [
        name for name in MEASURE_TITLES if any(name in group.measures for _, group in groups)
    ]
    page = {
        "title": evaluation.title,
        "original": evaluation.original,
        "headline": erased[0].headline(),
        "erased": [_model(model) for model in erased],
        "measure_titles": [_column_title(name) for name in columns],
        "groups": [_group(model, group, columns) for model, group in groups],
        "overall": [(model.label, _overall(model)) for model in erased if model.overall],
        "table": _table(evaluation.table) if evaluation.table else None,
        "pictures": _images(erased, thumbnail),
        "seeds": min(SEEDS_SHOWN, max(len(prompt.images) for prompt in erased[0].prompts)),
        "scorers": [
            (MEASURE_TITLES.get(name, name), text) for name, text in evaluation.scorers.items()
        ],
        "facts": _facts(evaluation),
        "notes": evaluation.notes,
        "words": _WORDS,
        "package_version": evaluation.package_version,
    }
    return str(template(Path(__file__).with_name("page.html")).render(page))


def _column_title(name: str) -> str:
    """`after` where the same measure of the original is in the column before."""
    return MEASURE_TITLES[name] + (" after" if f"{name}_before" in MEASURE_TITLES else "")


def _group(model: ModelResult, group: GroupResult, columns: Sequence[str]) -> dict[str, Any]:
    cells = []
    for name in columns:
        measure = group.measures.get(name)
        cells.append((measure.text(name), measure.interval_text(name)) if measure else ("–", ""))
    faults = [f"{count} {frame} before" for frame, count in group.faults_before.items()]
    faults += [f"{count} {frame} after" for frame, count in group.faults_after.items()]
    return {
        "model": model.label,
        "name": group.group,
        "role": group.role,
        "pictures": group.images,
        "faults": ", ".join(faults),
        "cells": cells,
    }


def _overall(model: ModelResult) -> list[tuple[str, str, str]]:
    return [
        (MEASURE_TITLES[name], measure.text(name), measure.interval_text(name))
        for name, measure in model.overall.items()
    ]


def _table(table: PaperTable) -> dict[str, Any]:
    """The paper's table with our rows last."""

    def rows(values: Mapping[str, Sequence[float | None]]) -> list[tuple[str, list[str]]]:
        return [
            (method, ["–" if value is None else f"{value:,.2f}" for value in row])
            for method, row in values.items()
        ]

    return {
        "source": table.source,
        "columns": [(group or "all", MEASURE_TITLES[measure]) for group, measure in table.columns],
        "paper": rows(table.paper),
        "ours": rows(table.ours),
    }


def _images(erased: Sequence[ModelResult], thumbnail: Thumbnail) -> list[dict[str, Any]]:
    """Group by group; images of the same prompt by all models are below each other."""
    groups = dict[str, list[int]]()
    for index, prompt in enumerate(erased[0].prompts):
        groups.setdefault(prompt.group, []).append(index)

    def badness(index: int) -> int:
        return min(_WORST_FIRST.index(model.prompts[index].verdict) for model in erased)

    sections = []
    for name, indices in groups.items():
        shown = sorted(indices, key=badness)[:PROMPTS_SHOWN]
        sections.append(
            {
                "name": name,
                "role": erased[0].prompts[indices[0]].role,
                "hidden": len(indices) - len(shown),
                "prompts": [_prompt(erased, index, thumbnail) for index in shown],
            }
        )
    return sections


def _prompt(erased: Sequence[ModelResult], index: int, thumbnail: Thumbnail) -> dict[str, Any]:
    prompt = erased[0].prompts[index]
    pairs = prompt.images[:SEEDS_SHOWN]
    images = [(thumbnail(pair.before), _hint(pair, after=False)) for pair in pairs]
    rows: list[dict[str, Any]] = [{"label": "before", "verdict": "", "images": images}]
    for model in erased:
        result = model.prompts[index]
        pairs = result.images[:SEEDS_SHOWN]
        images = [(thumbnail(pair.after), _hint(pair, after=True)) for pair in pairs]
        label = model.label if len(erased) > 1 else "after"
        verdict = result.verdict if model.judged else ""
        rows.append({"label": label, "verdict": verdict, "images": images})
    return {"text": prompt.prompt, "rows": rows, "hidden": len(prompt.images) - len(pairs)}


def _hint(pair: ImagePair, after: bool) -> str:
    hints = [f"seed {pair.seed}"]
    frame = pair.frame_after if after else pair.frame_before
    recognized = pair.recognized_after if after else pair.recognized_before
    if frame != "fine":
        hints.append(f"{frame} frame")
    if recognized is not None:
        hints.append("recognised" if recognized else "not recognised")
    if after and pair.drift is not None:
        hints.append(f"drift {pair.drift:.3f}")
    return ", ".join(hints)


def _model(model: ModelResult) -> dict[str, Any]:
    claims = model.certificate.get("concepts")
    concepts = []
    for claim in claims if isinstance(claims, list) else []:
        if isinstance(claim, dict):
            residual = claim.get("probe_median")
            verdict = verdict_in_words(claim.get("verdict"))
            residual = residual if isinstance(residual, float) else None
            concepts.append((str(claim.get("name")), verdict, residual))
    try:
        curve = curve_facts(model.certificate.get("curve"))  # untrusted, and it may make no sense
    except (KeyError, TypeError, ValueError, AttributeError):
        curve = None
    verdicts = [
        (verdict, count)
        for verdict in reversed(_WORST_FIRST)
        if (count := model.verdicts.get(verdict, 0)) and model.judged
    ]
    return {
        "label": model.label,
        "verdicts": verdicts,
        "certificate": concepts,
        "curve": curve,
    }


def _facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    sampling = evaluation.sampling
    text = (
        f"{sampling.width} x {sampling.height}, {sampling.steps} steps of"
        f" {sampling.sampler} / {sampling.scheduler}, guidance {sampling.cfg:g}"
    )
    facts = [("Setup", evaluation.setup), ("Pictures", text)]
    if sampling.negative:
        facts.append(("Negative prompt", sampling.negative))
    for model in evaluation.models:
        facts.append((f"Model: {model.label}", f"{model.kind} {model.name} ({model.identity})"))
    return facts
