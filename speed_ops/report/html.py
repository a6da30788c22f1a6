"""The report as one HTML file: the values that `report.html` shows, from an erasure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..certificate.certificate import Certificate, ConceptResult
from ..certificate.summary import (
    GROUPS,
    LEVEL_WORDS,
    PLACES,
    Summary,
    advice_in_words,
    concept_title,
    details,
)
from ..certificate.verdicts import decimals, verdict_in_words
from ..erasure import Erasure
from ..errors import InputError
from ..inputs import INPUT_TITLES
from .trade_off import Point, TradeOff, trade_off, trade_off_from_json

SCORE_REACH = 2.0
"""Scores up to here have bars of different length; the mark, 1, is in the middle."""
_SHOWN = 40


@dataclass(frozen=True)
class Drawn:
    """What one prompt generated before and after, as PNG files."""

    group: str
    prompt: str
    erased: bool
    """Whether the prompt asks for something that was erased."""
    before: bytes
    after: bytes


def report_page(
    erasure: Erasure,
    model: str,
    size: int,
    files: Mapping[str, str] = MappingProxyType({}),
    drawn: Sequence[Drawn] = (),
) -> str:
    """The page for one erasure.

    Args:
        erasure: What was done; it has a recipe and a certificate.
        model: The model's name.
        size: The model's size in bytes.
        files: Names of the files that were written, by product.
        drawn: Images before and after, if there are any.
    """
    certificate, summary, recipe = erasure.certificate, erasure.summary(), erasure.recipe
    if certificate is None or summary is None or recipe is None:
        raise InputError(
            "An erasure from a file was not measured on this model, so there is nothing to report."
            " Erase again from the recipe."
        )
    effects = summary.side_effects
    page = {
        "model": model,
        "family": erasure.architecture.title,
        "size": f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB",
        "strength": erasure.strength,
        "package_version": recipe.package_version,
        "headline": _headline(summary),
        "tiles": _tiles(summary),
        "drawn": [
            {
                "prompt": pair.prompt,
                "erased": pair.erased,
                "before": b64encode(pair.before).decode(),
                "after": b64encode(pair.after).decode(),
            }
            for pair in drawn
        ],
        "style": erasure.text_report.style if erasure.text_report is not None else "",
        "concepts": [_concept(*pair) for pair in summary.concepts],
        "concept_bars": [_concept_bar(concept) for concept, _ in summary.concepts[:_SHOWN]],
        "score_reach": SCORE_REACH,
        "effects": effects,
        "effect_words": "" if effects is None else LEVEL_WORDS[effects.level],
        "worst_words": "" if effects is None else effects.worst_words,
        "affected": [] if effects is None else _name_bars(effects.most_affected),
        "affected_limit": 0.1 if effects is None else max(0.1, *_values(effects.most_affected)),
        "why": summary.why,
        "advice": advice_in_words(summary.advice),
        "warnings": list(_warnings(erasure, summary)),
        "curve": None if certificate.curve is None else _curve_facts(trade_off(certificate.curve)),
        "in_the_way": [name for name, _ in certificate.curve.in_the_way]
        if certificate.curve
        else [],
        "groups": list(_groups(certificate)),
        "inputs": [_input_facts(name, part) for name, part in certificate.other_inputs.items()],
        "details": list(details(certificate)),
        **_layers(certificate),
        "facts": list(_provenance(erasure, certificate, model, files)),
        "settings": list(certificate.settings.items()),
    }
    return str(template(Path(__file__).with_name("report.html")).render(page))


@cache
def template(path: Path) -> Any:
    """A page template. Every inserted value is escaped: names may hold anything."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader([path.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    pages.filters["percent"] = lambda value, digits: f"{value:.{digits}%}"
    pages.filters["shortened"] = lambda text, limit: (
        text if len(text) <= limit else text[: limit - 1] + "…"
    )
    return pages.get_template(path.name)


def _headline(summary: Summary) -> str:
    """Is it gone?"""
    total, erased = sum(summary.counts.values()), summary.counts.get("erased", 0)
    if total == 1:
        concept, replacement = summary.concepts[0]
        title = concept_title(concept.name, replacement)
        return f"{title}: {verdict_in_words(concept.verdict)}"
    return f"{erased:,} of {total:,} concepts erased"


def _tiles(summary: Summary) -> list[tuple[str, str]]:
    """The three answers."""
    total, erased = sum(summary.counts.values()), summary.counts.get("erased", 0)
    effects = summary.side_effects
    words = "no names measured" if effects is None else LEVEL_WORDS[effects.level]
    blank = "unchanged" if summary.blank_prompt_unchanged else "changed"
    return [(f"{erased:,} of {total:,}", "erased"), (words, "other names"), (blank, "blank prompt")]


def _concept(concept: ConceptResult, replacement: str | None) -> dict[str, Any]:
    return {
        "name": concept.name,
        "replacement": "hidden" if replacement is None else replacement or "(nothing)",
        "verdict": concept.verdict,
        "words": verdict_in_words(concept.verdict),
    }


def _concept_bar(concept: ConceptResult) -> dict[str, Any]:
    words = verdict_in_words(concept.verdict)
    hint = f"{concept.name}: {words}"
    if concept.score is not None:
        hint += f", score {decimals(concept.score, 1.0)} (erased up to 1)"
    return _bar(concept.name, [(concept.score or 0.0, f"v-{concept.verdict}")], words, hint)


def _name_bars(names: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [_bar(name, [(drift, "d2")], f"{drift:.2f}") for name, drift in names]


def _values(names: Sequence[tuple[str, float]]) -> list[float]:
    return [drift for _, drift in names] or [0.0]


def _groups(certificate: Certificate) -> Iterator[dict[str, Any]]:
    """Each group of names, with those that moved most."""
    for group in certificate.drift:
        yield {
            "title": f"{GROUPS[group.group]}, {PLACES[group.where]} ({group.names:,})",
            "bars": _name_bars(group.worst),
            "limit": max(0.1, *_values(group.worst)),
        }


def _input_facts(name: str, certificate: Certificate) -> dict[str, Any]:
    """Another text input: its concepts and its trade-off."""
    ranked = sorted(certificate.concepts, key=lambda item: -(item.score or 0.0))
    return {
        "title": INPUT_TITLES[name],
        "bars": [_concept_bar(concept) for concept in ranked[:_SHOWN]],
        "curve": None if certificate.curve is None else _curve_facts(trade_off(certificate.curve)),
    }


def curve_facts(curve: dict[str, Any] | None) -> dict[str, Any] | None:
    """The same for a trade-off in plain values."""
    return None if curve is None else _curve_facts(trade_off_from_json(curve))


def _curve_facts(plot: TradeOff) -> dict[str, Any]:
    """The trade-off in the units of the page's plot: shares of its width and height."""

    def position(point: Point) -> Point:
        drift, share = point
        return drift / plot.reach, min(1.0, share)

    return {
        "left": [position(point) for point in plot.visible(plot.left)],
        "to_go": [position(point) for point in plot.visible(plot.to_go)],
        "chosen": position(plot.chosen),
        "limit": plot.budget,
        "limit_at": None if plot.shown_budget is None else plot.shown_budget / plot.reach,
        "ticks": plot.ticks,
    }


def _layers(certificate: Certificate) -> dict[str, Any]:
    changes = [
        (layer.key.removeprefix("diffusion_model.").removesuffix(".weight"), layer.change)
        for layer in certificate.layers
    ]
    return {"layers": changes, "layer_limit": max([1e-9, *(change for _, change in changes)])}


def _warnings(erasure: Erasure, summary: Summary) -> Iterator[str]:
    """Everything worth knowing but the reason, which the report shows by itself."""
    assert erasure.certificate is not None
    yield from (notice for notice in erasure.certificate.every_warning if notice != summary.why)
    if erasure.text_report is not None:
        yield from erasure.text_report.lines()
    yield from erasure.notes


def _provenance(
    erasure: Erasure, certificate: Certificate, model: str, files: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """Enough to repeat the run."""
    recipe = erasure.recipe
    assert recipe is not None
    lists = ", ".join(
        source.label + (f" ({len(source.names):,} names)" if source.names else "")
        for source in recipe.retain
    )
    yield "Model", model
    yield "sha256", recipe.base_hash
    yield "Text encoder sha256", recipe.encoder_hash
    yield "Strength", f"{erasure.strength:g}"
    yield from (("Block list", label) for label in recipe.blocklists)
    yield "CLIP skip", "the model's default" if recipe.clip_skip is None else recipe.clip_skip
    yield "Protected names", lists or "none"
    stages = (f"{stage} {duration:.1f}" for stage, duration in certificate.seconds.items())
    yield "Seconds", ", ".join(stages)
    yield from ((f"File: {product}", name) for product, name in files.items())


def _bar(label: str, sizes: list[tuple[float, str]], text: str, hint: str = "") -> dict[str, Any]:
    """One row of a bar chart; `sizes` are (length, CSS class), the longest first."""
    return {"label": label, "sizes": sizes, "text": text, "hint": hint}
