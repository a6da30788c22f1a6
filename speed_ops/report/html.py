"""The report as one HTML file: the values that `report.html` shows, from an outcome."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from ..certificate.certificate import GROUPS, PLACES, bars_of, verdict_in_words
from ..certificate.warnings import fixed_text
from ..erase import Erasure
from ..errors import InputError
from ..files.redaction import Redactor, blanked, refuse_leaks
from .chart import plotted

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


class Named(Protocol):
    """What a page says of the model: a checkpoint has both, and a graph can tell them of a model
    without a file.
    """

    @property
    def path(self) -> Path:
        """Its last part is the model's name."""

    @property
    def size(self) -> int:
        """In bytes."""


def report_page(
    outcome: Erasure, model: Named, salt: str | None = None, drawn: Sequence[Drawn] = ()
) -> str:
    """The page for a file, with pictures if there are any; with a salt, one that certainly shows
    none of the names.
    """
    page = render(report_facts(outcome, model, salt), drawn)
    if salt is not None and outcome.recipe is not None:
        ours = render(_without_names(report_facts(outcome, model)))
        refuse_leaks(page, outcome.recipe.names, "The report", f"{ours} {fixed_text()}")
    return page


def report_facts(outcome: Erasure, model: Named, salt: str | None = None) -> dict[str, Any]:
    """Plain values for the report; with a salt, hashes in the place of names."""
    if outcome.recipe is None or outcome.rows is None or outcome.certificate is None:
        raise InputError(
            "An erasure from a file has no certificate for this model, so there is nothing to"
            " report."
        )
    recipe, rows = outcome.recipe, outcome.rows
    facts: dict[str, Any] = {
        "model": model.path.name or str(model.path),
        "family": outcome.architecture.title,
        "size": model.size,
        "base_hash": recipe.base_hash,
        "encoder_hash": recipe.encoder_hash,
        "package_version": recipe.package_version,
        "strength": outcome.strength,
        "clip_skip": recipe.rows.get("clip_skip"),
        "concepts": [vars(concept) for concept in recipe.concepts],
        "retain": [
            {
                "label": part.label,
                "own": part.names is not None,
                "names": len(part.names or ()) or None,
            }
            for part in recipe.retain
        ],
        "retain_count": len(rows.retain.names),
        "in_context": rows.in_context,
        "dropped": list(rows.dropped),
        "unusable": list(rows.unusable),
        "files": {product: path.name for product, path in outcome.files.items()},
        "certificate": outcome.certificate.to_json(),
    }
    return facts if salt is None else redacted_facts(facts, recipe.names, Redactor(salt))


def redacted_facts(
    facts: dict[str, Any], names: tuple[str, ...], redact: Redactor
) -> dict[str, Any]:
    """The values with hashes in the place of `names`, hidden where they stand and not in the
    finished text.
    """
    return facts | {
        "model": redact.text(facts["model"], names),
        "concepts": [
            one | {"target": redact(one["target"]), "anchor": redact(one["anchor"]), "aliases": ()}
            for one in facts["concepts"]
        ],
        "retain": [
            one | {"label": redact(one["label"]) if one["own"] else one["label"]}
            for one in facts["retain"]
        ],
        "dropped": [redact(name) for name in facts["dropped"]],
        "unusable": [redact.listed(name, names) for name in facts["unusable"]],
        "files": {product: redact.text(name, names) for product, name in facts["files"].items()},
        "certificate": redact.certificate(facts["certificate"], names, fixed_text()),
    }


def _without_names(facts: dict[str, Any]) -> dict[str, Any]:
    """The values of a page that shows our own words alone."""
    return facts | {
        "model": "",
        "concepts": [
            one | {"target": "", "anchor": "", "aliases": ()} for one in facts["concepts"]
        ],
        "retain": [one | {"label": "" if one["own"] else one["label"]} for one in facts["retain"]],
        "dropped": [""] * len(facts["dropped"]),
        "unusable": [""] * len(facts["unusable"]),
        "files": dict.fromkeys(facts["files"], ""),
        "certificate": blanked(facts["certificate"]),
    }


def render(facts: dict[str, Any], drawn: Sequence[Drawn] = ()) -> str:
    """The page; `facts` as made by `report_facts`."""
    certificate = facts["certificate"]
    page = {
        "model": facts["model"],
        "family": facts["family"],
        "size": (
            f"{facts['size'] / 1e9:.2f} GB"
            if facts["size"] >= 1e9
            else f"{facts['size'] / 1e6:.0f} MB"
        ),
        "strength": facts["strength"],
        "package_version": facts["package_version"],
        "tiles": _tiles(certificate),
        "drawn": [
            vars(one)
            | {when: b64encode(getattr(one, when)).decode() for when in ("before", "after")}
            for one in drawn
        ],
        "warnings": _warnings(facts),
        "facts": _facts(facts),
        "settings": list(certificate["settings"].items()),
        **_concepts(facts),
        **_drift(certificate["drift"]),
        **_layers(certificate["layers"]),
        "curve": curve_facts(certificate.get("curve")),
        "pooled": _pooled(certificate.get("pooled")),
    }
    return str(template(Path(__file__).with_name("report.html")).render(page))


@cache
def template(path: Path) -> Any:
    """A page template. Everything that is put in is escaped: names may hold anything."""
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


def _left(one: dict[str, Any]) -> float:
    """What is left of a concept where it counts: in unseen prompts if any were checked."""
    return float(one["probe_median"] if one["probe_median"] is not None else one["solved_median"])


def _to_go(one: dict[str, Any]) -> float:
    """How much of that is straight way to the anchor; all of it, for all that certificates of
    earlier releases say.
    """
    to_go = one.get("probe_to_go")
    return _left(one) if to_go is None else float(to_go)


def _tiles(certificate: dict[str, Any]) -> list[tuple[str, str]]:
    """Four numbers that say most of it."""
    kept = [part["p95"] for part in certificate["drift"] if part["group"] == "kept"]
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


def _concept_bars(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        _bar(
            one["name"],
            [(_left(one), f"v-{one['verdict']} astray"), (_to_go(one), f"v-{one['verdict']}")],
            f"{_left(one):.0%}",
            f"{one['name']}: {one['solved_median']:.1%} left in optimised prompts, {_left(one):.1%}"
            f" in unseen ones, {_to_go(one):.1%} of it straight way to go",
        )
        for one in results[:_SHOWN]
    ]


def _concepts(facts: dict[str, Any]) -> dict[str, Any]:
    results = facts["certificate"]["concepts"]
    anchors = [str(one["anchor"] or "(nothing)") for one in facts["concepts"]] + [""] * len(results)
    kinds = {str(one.get("kind", "")) for one in results}
    arrived, *others = {bars_of(kind).arrived for kind in kinds}
    return {
        "erased": sum(one["verdict"] == "erased" for one in results),
        "concepts": [
            {
                **one,
                "anchor": anchor,
                "shown": verdict_in_words(one["verdict"]),
                "words": _WORDS.get(one["verdict"], ""),
                "to_go": one.get("probe_to_go"),
            }
            for one, anchor in zip(results, anchors, strict=False)
        ],
        "concept_bars": _concept_bars(results),
        "marks": _marks(kinds),
        "way_known": any(one.get("probe_to_go") is not None for one in results),
        "arrived": None if others else arrived,
    }


def _pooled(part: dict[str, Any] | None) -> dict[str, Any] | None:
    """The pooled path, where it was edited: what is left of each concept there, drift and
    trade-off.
    """
    if part is None:
        return None
    change = max(layer["change"] for layer in part["layers"])
    marks = _marks({str(one.get("kind", "")) for one in part["concepts"]})
    own = {
        "bars": _concept_bars(part["concepts"]),
        "marks": marks,
        "change": change,
        "rank": part["layers"][0]["rank"],
    }
    return {**own, **_drift(part["drift"]), "curve": curve_facts(part.get("curve"))}


def _marks(kinds: set[str]) -> list[dict[str, Any]]:
    """Where the verdict turns, if that is the same for all concepts shown."""
    turns = {bars_of(kind) for kind in kinds}
    if len(turns) != 1:
        return []
    (bars,) = turns
    # The words stand on the outer sides of the two lines, which are too near each other for
    # anything between.
    return [
        {"at": bars.erased, "text": "erased below", "side": "left"},
        {"at": bars.stands, "text": f"{verdict_in_words('stands')} above", "side": "right"},
    ]


def curve_facts(curve: dict[str, Any] | None) -> dict[str, Any] | None:
    """The trade-off, in the units of the page's plot: shares of its width and height."""
    if curve is None:
        return None
    chosen, budget = curve["chosen"], curve["budget"]
    places = [(point["drift"], point["left"]) for point in (*curve["points"], chosen)]
    line, reach = plotted(places[:-1], places[-1], budget)
    return {
        "line": [(drift / reach, min(1.0, left)) for drift, left in line],
        "way": _way(curve["points"], reach),
        "chosen": (chosen["drift"] / reach, min(1.0, chosen["left"])),
        "words": f"this edit: {chosen['left']:.0%} left, drift {chosen['drift']:.1%}",
        "budget": None if budget is None else budget / reach,
        "ticks": [(share, f"{share * reach:.1%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)],
        "names": curve["names"],
        "unseen": curve["unseen"],
        "in_the_way": [(str(name), float(value)) for name, value in curve["in_the_way"]],
    }


def _way(points: list[dict[str, Any]], reach: float) -> list[tuple[float, float]]:
    """The part of the trade-off that is straight way to the anchor; none in certificates of earlier
    releases.
    """
    if any("to_go" not in point for point in points):
        return []
    near = [point for point in points if point["drift"] <= reach]
    return [(0.0, 1.0), *((point["drift"] / reach, min(1.0, point["to_go"])) for point in near)]


def _drift(parts: list[dict[str, Any]]) -> dict[str, Any]:
    bars, worst = [], []
    for part in parts:
        title = f"{GROUPS[part['group']]}, {PLACES[part['where']]}"
        sizes = [(part["maximum"], "d3"), (part["p95"], "d2"), (part["median"], "d1")]
        hint = (
            f"median {part['median']:.2%}, 95th percentile {part['p95']:.2%}, maximum"
            f" {part['maximum']:.2%}"
        )
        bars.append(_bar(f"{title} ({part['names']})", sizes, f"{part['p95']:.1%}", hint))
        listed = [(str(name), float(value)) for name, value in part["worst"][:_WORST_SHOWN]]
        if listed:
            rows = [_bar(name, [(value, "d2")], f"{value:.1%}") for name, value in listed]
            worst.append(
                {"title": title, "bars": rows, "limit": max(1e-9, *(value for _, value in listed))}
            )
    limit = max([0.05, *(part["maximum"] for part in parts)])
    return {"drift_bars": bars, "drift_limit": limit, "worst": worst}


def _layers(found: list[dict[str, Any]]) -> dict[str, Any]:
    names = [
        layer["key"].removeprefix("diffusion_model.").removesuffix(".weight") for layer in found
    ]
    rooms = sorted({layer["room"] for layer in found})
    return {
        "layers": [(name, layer["change"]) for name, layer in zip(names, found, strict=True)],
        "layer_limit": max([1e-9, *(layer["change"] for layer in found)]),
        "rank": max(layer["rank"] for layer in found),
        "room": str(rooms[0]) if len(rooms) == 1 else f"{rooms[0]} to {rooms[-1]}",
    }


def _warnings(facts: dict[str, Any]) -> list[str]:
    """What the certificate warns of, and what happened to the lists."""
    found = list(facts["certificate"]["warnings"])
    pooled = facts["certificate"].get("pooled") or {"warnings": ()}
    found += [f"Pooled path: {text}" for text in pooled["warnings"] if text not in found]
    if facts["dropped"]:
        found.append(
            f"Not kept, because they contain an erased concept: {', '.join(facts['dropped'][:20])}."
        )
    if facts["unusable"]:
        found.append(
            "Not kept, because they have no tokens or too many:"
            f" {', '.join(facts['unusable'][:20])}."
        )
    return found


def _facts(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    """Provenance, enough to repeat the run."""
    lists = ", ".join(
        part["label"] + (f" ({part['names']} names)" if part["names"] else "")
        for part in facts["retain"]
    )
    used = f"{facts['retain_count']} names used, {facts['in_context']} also in prompts"
    return [
        ("Model", facts["model"]),
        ("sha256", facts["base_hash"]),
        ("Text encoder sha256", facts["encoder_hash"]),
        ("Strength", f"{facts['strength']:g}"),
        (
            "CLIP skip",
            facts["clip_skip"] if facts["clip_skip"] is not None else "the model's default",
        ),
        ("Kept names", f"{lists or 'none'}; {used}"),
        (
            "Seconds",
            ", ".join(
                f"{name} {value:.1f}" for name, value in facts["certificate"]["seconds"].items()
            ),
        ),
        *((f"File: {product}", name) for product, name in facts["files"].items()),
    ]


def _bar(label: str, parts: list[tuple[float, str]], text: str, hint: str = "") -> dict[str, Any]:
    """One line of a bar chart; `parts`: (size, CSS class), the longest first."""
    return {"label": label, "parts": parts, "text": text, "hint": hint}
