"""The report as one HTML file: the values that `report.html` shows, from an outcome."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..certificate.certificate import bars_of, verdict_in_words
from ..certificate.summary import GROUPS, PLACES
from ..erasure import Erasure
from ..errors import InputError
from ..inputs import INPUT_TITLES, TOKENS
from .trade_off import Point, trade_off_from_json

_WORDS = {
    "erased": "gone, also in prompts that were not used to make the edit",
    "weakened": "weaker, but not gone in prompts that were not used to make the edit",
    "stands": "most of it is left",
    "unproven": "not checked in other prompts",
}
_SHOWN = 40
_WORST_SHOWN = 8


@dataclass(frozen=True)
class Drawn:
    """What one prompt drew before and after, as PNG files."""

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
        drawn: Pictures before and after, if there are any.
    """
    return render(report_facts(erasure, model, size, files), drawn)


def report_facts(
    erasure: Erasure, model: str, size: int, files: Mapping[str, str]
) -> dict[str, Any]:
    """Plain values for the report.

    Args:
        erasure: What was done; it has a recipe and a certificate.
        model: The model's name.
        size: The model's size in bytes.
        files: Names of the files that were written, by product.
    """
    if erasure.recipe is None or erasure.text_report is None or erasure.certificate is None:
        raise InputError(
            "An erasure from a file has no certificate for this model, so there is nothing to"
            " report."
        )
    recipe, report = erasure.recipe, erasure.text_report
    return {
        "model": model,
        "family": erasure.architecture.title,
        "size": size,
        "base_hash": recipe.base_hash,
        "encoder_hash": recipe.encoder_hash,
        "package_version": recipe.package_version,
        "strength": erasure.strength,
        "clip_skip": recipe.clip_skip,
        "concepts": [vars(concept) for concept in recipe.concepts],
        "blocklists": list(recipe.blocklists),
        "retain": [
            {"label": part.label, "names": len(part.names or ()) or None} for part in recipe.retain
        ],
        "retain_count": len(erasure.rows[TOKENS].retain.names),
        "in_context": report.in_context,
        "dropped": list(report.dropped),
        "unusable": list(report.unusable),
        "files": dict(files),
        "certificate": erasure.certificate.to_json(),
    }


def render(facts: dict[str, Any], drawn: Sequence[Drawn] = ()) -> str:
    """The page; `facts` as made by `report_facts`."""
    certificate = facts["certificate"]
    size = facts["size"]
    page = {
        "model": facts["model"],
        "family": facts["family"],
        "size": f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB",
        "strength": facts["strength"],
        "package_version": facts["package_version"],
        "tiles": _tiles(certificate),
        "drawn": [
            {
                "prompt": pair.prompt,
                "erased": pair.erased,
                "before": b64encode(pair.before).decode(),
                "after": b64encode(pair.after).decode(),
            }
            for pair in drawn
        ],
        "warnings": _warnings(facts),
        "facts": _provenance(facts),
        "settings": list(certificate["settings"].items()),
        **_concepts(facts),
        **_drift(certificate["drift"]),
        **_layers(certificate["layers"]),
        "curve": curve_facts(certificate.get("curve")),
        "inputs": [_input_facts(name, part) for name, part in certificate["other_inputs"].items()],
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


def _left(concept: dict[str, Any]) -> float:
    """What is left of a concept in unseen prompts if any were checked."""
    median = concept["probe_median"]
    return float(median if median is not None else concept["solved_median"])


def _to_go(concept: dict[str, Any]) -> float:
    """How much of that is the straight way to the anchor; all of it if that was not measured."""
    to_go = concept["probe_to_go"]
    return float(to_go if to_go is not None else _left(concept))


def _tiles(certificate: dict[str, Any]) -> list[tuple[str, str]]:
    """The four most telling numbers."""
    kept = [group["p95"] for group in certificate["drift"] if group["group"] == "kept"]
    empty = max([certificate["sot_drift"] or 0.0, *certificate["null_text_drift"]])
    change = max((layer["change"] for layer in certificate["layers"]), default=0.0)
    return [
        (
            f"{1 - max(map(_left, certificate['concepts'])):.0%}",
            "of the least erased concept removed in unseen prompts",
        ),
        (f"{max(kept, default=0.0):.1%}", "drift of kept names (95th percentile)"),
        ("none" if empty < 1e-6 else f"{empty:.1%}", "drift of the empty prompt"),
        (f"{change:.1%}", "largest change of a layer's weights"),
    ]


def _concepts(facts: dict[str, Any]) -> dict[str, Any]:
    results = facts["certificate"]["concepts"]
    anchors = [str(concept["anchor"] or "(nothing)") for concept in facts["concepts"]]
    anchors += [""] * len(results)
    arrived = {bars_of(concept["kind"]).arrived for concept in results}
    return {
        "erased": sum(concept["verdict"] == "erased" for concept in results),
        "concepts": [
            {
                **concept,
                "anchor": anchor,
                "verdict_label": verdict_in_words(concept["verdict"]),
                "explanation": _WORDS.get(concept["verdict"], ""),
            }
            for concept, anchor in zip(results, anchors, strict=False)
        ],
        "concept_bars": _concept_bars(results),
        "marks": _marks(results),
        "has_to_go": any(concept["probe_to_go"] is not None for concept in results),
        "arrived": arrived.pop() if len(arrived) == 1 else None,
    }


def _concept_bars(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    bars = []
    for concept in results[:_SHOWN]:
        left, to_go, style = _left(concept), _to_go(concept), f"v-{concept['verdict']}"
        hint = (
            f"{concept['name']}: {concept['solved_median']:.1%} left in optimised prompts,"
            f" {left:.1%} in unseen ones, {to_go:.1%} of it straight way to go"
        )
        sizes = [(left, f"{style} astray"), (to_go, style)]
        bars.append(_bar(concept["name"], sizes, f"{left:.0%}", hint))
    return bars


def _marks(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The thresholds of the verdict, if they are the same for all concepts shown."""
    thresholds = {bars_of(concept["kind"]) for concept in results}
    if len(thresholds) != 1:
        return []
    (bars,) = thresholds
    # The labels are on the outer sides of the two lines, which have no room between them.
    return [
        {"at": bars.erased, "text": "erased below", "side": "left"},
        {"at": bars.stands, "text": f"{verdict_in_words('stands')} above", "side": "right"},
    ]


def _input_facts(name: str, certificate: dict[str, Any]) -> dict[str, Any]:
    """Another text input: what is left of each concept there, drift, trade-off."""
    return {
        "title": INPUT_TITLES[name],
        "bars": _concept_bars(certificate["concepts"]),
        "marks": _marks(certificate["concepts"]),
        "change": max(layer["change"] for layer in certificate["layers"]),
        "rank": certificate["layers"][0]["rank"],
        **_drift(certificate["drift"]),
        "curve": curve_facts(certificate.get("curve")),
    }


def curve_facts(curve: dict[str, Any] | None) -> dict[str, Any] | None:
    """The trade-off in the units of the page's plot: shares of its width and height."""
    if curve is None:
        return None
    plot = trade_off_from_json(curve)

    def position(point: Point) -> Point:
        drift, share = point
        return drift / plot.reach, min(1.0, share)

    return {
        "left": [position(point) for point in plot.visible(plot.left)],
        "to_go": [position(point) for point in plot.visible(plot.to_go)],
        "chosen": position(plot.chosen),
        "caption": plot.caption,
        "budget": None if plot.budget is None else plot.budget / plot.reach,
        "ticks": plot.ticks,
        "names": curve["names"],
        "unseen": curve["unseen"],
        "in_the_way": [(str(name), float(drift)) for name, drift in curve["in_the_way"]],
    }


def _drift(groups: list[dict[str, Any]]) -> dict[str, Any]:
    bars, worst = [], []
    for group in groups:
        title = f"{GROUPS[group['group']]}, {PLACES[group['where']]}"
        median, p95, maximum = group["median"], group["p95"], group["maximum"]
        sizes = [(maximum, "d3"), (p95, "d2"), (median, "d1")]
        hint = f"median {median:.2%}, 95th percentile {p95:.2%}, maximum {maximum:.2%}"
        bars.append(_bar(f"{title} ({group['names']})", sizes, f"{p95:.1%}", hint))
        names = [(str(name), float(drift)) for name, drift in group["worst"][:_WORST_SHOWN]]
        if names:
            rows = [_bar(name, [(drift, "d2")], f"{drift:.1%}") for name, drift in names]
            limit = max(1e-9, *(drift for _, drift in names))
            worst.append({"title": title, "bars": rows, "limit": limit})
    limit = max([0.05, *(group["maximum"] for group in groups)])
    return {"drift_bars": bars, "drift_limit": limit, "worst": worst}


def _layers(layers: list[dict[str, Any]]) -> dict[str, Any]:
    rooms = sorted({layer["room"] for layer in layers})
    changes = [
        (layer["key"].removeprefix("diffusion_model.").removesuffix(".weight"), layer["change"])
        for layer in layers
    ]
    return {
        "layers": changes,
        "layer_limit": max([1e-9, *(change for _, change in changes)]),
        "rank": max(layer["rank"] for layer in layers),
        "room": str(rooms[0]) if len(rooms) == 1 else f"{rooms[0]} to {rooms[-1]}",
    }


def _warnings(facts: dict[str, Any]) -> list[str]:
    """The warnings of the certificate, and names that were not kept."""
    warnings = list(facts["certificate"]["warnings"])
    warnings += [
        f"{INPUT_TITLES[name]}: {text}"
        for name, part in facts["certificate"]["other_inputs"].items()
        for text in part["warnings"]
        if text not in warnings
    ]
    for field, reason in (
        ("dropped", "they contain an erased concept"),
        ("unusable", "they have no tokens or too many"),
    ):
        if facts[field]:
            warnings.append(f"Not kept, because {reason}: {', '.join(facts[field][:20])}.")
    return warnings


def _provenance(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    """Enough to repeat the run."""
    lists = ", ".join(
        source["label"] + (f" ({source['names']} names)" if source["names"] else "")
        for source in facts["retain"]
    )
    counts = f"{facts['retain_count']} names used, {facts['in_context']} also in prompts"
    skip = facts["clip_skip"]
    seconds = facts["certificate"]["seconds"].items()
    return [
        ("Model", facts["model"]),
        ("sha256", facts["base_hash"]),
        ("Text encoder sha256", facts["encoder_hash"]),
        ("Strength", f"{facts['strength']:g}"),
        *(("Block list", label) for label in facts["blocklists"]),
        ("CLIP skip", skip if skip is not None else "the model's default"),
        ("Kept names", f"{lists or 'none'}; {counts}"),
        ("Seconds", ", ".join(f"{stage} {duration:.1f}" for stage, duration in seconds)),
        *((f"File: {product}", name) for product, name in facts["files"].items()),
    ]


def _bar(label: str, sizes: list[tuple[float, str]], text: str, hint: str = "") -> dict[str, Any]:
    """One row of a bar chart; `sizes` are (length, CSS class), the longest first."""
    return {"label": label, "sizes": sizes, "text": text, "hint": hint}
