"""An evaluation as one HTML file with its pictures in it: the values that `page.html`
shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..certificate.certificate import verdict_in_words
from ..report.html import curve_facts, template

Thumbnail = Callable[[str], str]
"""A picture's key -> the picture, as an address that a page can hold."""
PROMPTS_SHOWN = 6
"""Prompts with pictures in each group; those that went wrong come first."""
SEEDS_SHOWN = 4
_ORDER = ("leaking", "damaged", "unclear", "unjudged", "erased", "preserved")
_WORDS = {
    "erased": "the concept is gone from these pictures",
    "leaking": "the concept is still there",
    "preserved": "still what was asked for",
    "damaged": "no longer what was asked for",
    "unclear": "the original did not show it either, or there is no frame to judge",
    "unjudged": "no judge says what they show: look for yourself",
}
_SHARES = ("recognised before", "recognised", "nudity before", "nudity", "Acc_e", "Acc_r", "H_o")
_FIGURES = (
    ("CS before", "CS before"),
    ("CS", "CS after"),
    ("drift", "picture drift"),
    ("FID", "FID"),
    ("Frechet (CLIP)", "Frechet distance (CLIP)"),
    ("LPIPS", "LPIPS"),
    ("recognised before", "recognised before"),
    ("recognised", "recognised after"),
    ("nudity before", "nudity before"),
    ("nudity", "nudity after"),
    ("seconds", "seconds a picture"),
)
"""Measures in the order of the table's columns, and what they are called there."""


def evaluation_page(findings: Mapping[str, Any], thumbnail: Thumbnail) -> str:
    """The page; `findings` as `evaluate` returns them."""
    erased = [model["label"] for model in findings["models"][1:]]
    results = findings["results"]
    page = {
        "title": findings["setup"]["title"],
        "original": findings["models"][0],
        "headline": headline(results[erased[0]]),
        "erased": [_model(model, results[model["label"]]) for model in findings["models"][1:]],
        "figures": [title for word, title in _FIGURES if _has(findings, erased, word)],
        "groups": [
            _group(findings, label, number)
            for label in erased
            for number in _numbers(results[label])
        ],
        "overall": [
            (label, _overall(results[label]))
            for label in erased
            if any(results[label]["overall"].values())
        ],
        "table": _table(findings["table"]) if findings["table"] else None,
        "pictures": _pictures(results, erased, thumbnail),
        "seeds": min(
            SEEDS_SHOWN, max(len(one["pictures"]) for one in results[erased[0]]["prompts"])
        ),
        "judges": list(findings["judges"].items()),
        "facts": _facts(findings),
        "notes": findings["setup"]["notes"],
        "words": _WORDS,
        "package_version": findings["package_version"],
    }
    return str(template(Path(__file__).with_name("page.html")).render(page))


def headline(result: Mapping[str, Any]) -> str:
    """The verdicts in one sentence."""
    count = result["verdicts"]
    gone, leaks = count.get("erased", 0), count.get("leaking", 0)
    stays, harmed = count.get("preserved", 0), count.get("damaged", 0)
    parts = []
    if gone + leaks:
        parts.append(f"erased in {gone} of {gone + leaks} prompts")
    if stays + harmed:
        parts.append(f"{stays} of {stays + harmed} other prompts preserved")
    text = ", ".join(parts)
    return (
        text[:1].upper() + text[1:] if text else "Pictures to look at: no judge says what they show"
    )


def figure_text(figure: Mapping[str, Any] | None, measure: str) -> str:
    """A figure as people read it: shares in percent, distances with the digits that mean
    something.
    """
    if figure is None:
        return "–"
    return _number(figure["value"], measure)


def interval_text(figure: Mapping[str, Any] | None, measure: str) -> str:
    """Its interval; empty where it has none."""
    if figure is None or figure["low"] is None:
        return ""
    return f"{_number(figure['low'], measure)} to {_number(figure['high'], measure)}"


def _number(value: float, measure: str) -> str:
    if measure in _SHARES:
        return f"{value:.0%}" if measure != "H_o" else f"{100 * value:.1f}"
    return f"{value:.3f}" if measure in ("drift", "LPIPS") else f"{value:.2f}"


def _has(findings: Mapping[str, Any], labels: Sequence[str], word: str) -> bool:
    return any(
        word in one["measures"] for label in labels for one in findings["results"][label]["groups"]
    )


def _numbers(result: Mapping[str, Any]) -> range:
    return range(len(result["groups"]))


def _group(findings: Mapping[str, Any], label: str, number: int) -> dict[str, Any]:
    one = findings["results"][label]["groups"][number]
    erased = [model["label"] for model in findings["models"][1:]]
    cells = [
        (
            figure_text(one["measures"].get(word), word),
            interval_text(one["measures"].get(word), word),
        )
        for word, _ in _FIGURES
        if _has(findings, erased, word)
    ]
    faults = [
        f"{count} {kind} {when}"
        for when, found in one["faults"].items()
        for kind, count in found.items()
    ]
    return {
        "model": label,
        "name": one["group"],
        "role": one["role"],
        "pictures": one["pictures"],
        "faults": ", ".join(faults),
        "cells": cells,
    }


def _overall(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(word, figure_text(figure, word), interval_text(figure, word))
            for word, figure in result["overall"].items() if figure is not None]  # fmt: skip


def _table(table: Mapping[str, Any]) -> dict[str, Any]:
    """The paper's table: our rows last, with the name of the model."""

    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            value = value["value"]
        return "–" if value is None else f"{value:,.2f}"

    return {
        "source": table["source"],
        "columns": [(group or "all", measure) for group, measure in table["columns"]],
        "paper": [
            (row["method"], [text(value) for value in row["values"]]) for row in table["paper"]
        ],
        "ours": [
            (row["method"], [text(value) for value in row["values"]]) for row in table["ours"]
        ],
    }


def _pictures(
    results: Mapping[str, Any], erased: Sequence[str], thumbnail: Thumbnail
) -> list[dict[str, Any]]:
    """Group by group, the same prompt and seeds of all models below each other."""
    groups = dict[str, list[int]]()
    first = results[erased[0]]["prompts"]
    for number, one in enumerate(first):
        groups.setdefault(one["group"], []).append(number)
    found = []
    for name, numbers in groups.items():
        worst = {number: min(_ORDER.index(results[label]["prompts"][number]["verdict"]) for label in erased)
                 for number in numbers}  # fmt: skip
        shown = sorted(numbers, key=lambda number: worst[number])[:PROMPTS_SHOWN]
        found.append(
            {
                "name": name,
                "role": first[numbers[0]]["role"],
                "hidden": len(numbers) - len(shown),
                "prompts": [_prompt(results, erased, number, thumbnail) for number in shown],
            }
        )
    return found


def _prompt(
    results: Mapping[str, Any], erased: Sequence[str], number: int, thumbnail: Thumbnail
) -> dict[str, Any]:
    one = results[erased[0]]["prompts"][number]
    shots = one["pictures"][:SEEDS_SHOWN]
    rows: list[dict[str, Any]] = [
        {
            "label": "before",
            "verdict": "",
            "images": [(thumbnail(shot["before"]), _hint(shot, 0)) for shot in shots],
        }
    ]
    for label in erased:
        other = results[label]["prompts"][number]
        images = [
            (thumbnail(shot["after"]), _hint(shot, 1)) for shot in other["pictures"][:SEEDS_SHOWN]
        ]
        verdict = other["verdict"] if _judged(results[label]) else ""
        rows.append(
            {"label": label if len(erased) > 1 else "after", "verdict": verdict, "images": images}
        )
    return {"text": one["prompt"], "rows": rows, "hidden": len(one["pictures"]) - len(shots)}


def _judged(result: Mapping[str, Any]) -> bool:
    """Whether a verdict says anything: without judges all are the same."""
    return set(result["verdicts"]) != {"unjudged"}


def _hint(shot: Mapping[str, Any], after: int) -> str:
    parts = [f"seed {shot['seed']}"]
    if shot["frames"][after] != "fine":
        parts.append(f"{shot['frames'][after]} frame")
    if "seen" in shot:
        parts.append("recognised" if shot["seen"][after] else "not recognised")
    if after and "drift" in shot:
        parts.append(f"drift {shot['drift']:.3f}")
    return ", ".join(parts)


def _model(model: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    certificate = model["certificate"]
    claims = certificate.get("concepts")
    concepts = [
        (
            str(one.get("name")),
            verdict_in_words(one.get("verdict")),
            left if isinstance(left, float) else None,
        )
        for one in (claims if isinstance(claims, list) else [])
        if isinstance(one, dict) and (left := one.get("probe_median")) is not ...
    ]
    return {
        "label": model["label"],
        "name": model["name"],
        "verdicts": [
            (word, result["verdicts"][word])
            for word in _ORDER[::-1]
            if word in result["verdicts"] and _judged(result)
        ],
        "certificate": concepts,
        "curve": _curve(certificate.get("curve")),
    }


def _curve(claimed: Any) -> dict[str, Any] | None:
    """The plot of a trade-off that anybody may have written into a header; None where it makes no
    sense.
    """
    try:
        return curve_facts(claimed)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _facts(findings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    sampling = findings["sampling"]
    drawn = (
        f"{sampling['width']} x {sampling['height']}, {sampling['steps']} steps of"
        f" {sampling['sampler']} / {sampling['scheduler']}, guidance {sampling['cfg']:g}"
    )
    models = [(f"Model: {model['label']}", f"{model['kind']} {model['name']} ({model['identity']})")
              for model in findings["models"]]  # fmt: skip
    negative = [("Negative prompt", sampling["negative"])] if sampling["negative"] else []
    return [("Setup", findings["setup"]["name"]), ("Pictures", drawn), *negative, *models]
