"""The parts of the report, each a piece of HTML from plain values."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from ..certificate import ERASED_BELOW, STANDS_ABOVE
from .svg import Bar, Mark, bars, columns

_WORDS = {
    "erased": "gone, also in prompts that the solve never saw",
    "weakened": "weaker, but still there in prompts that the solve never saw",
    "stands": "still there",
    "unproven": "not checked in other prompts",
}
_GROUPS = {"kept": "Kept names", "filtered": "Filtered names", "held_out": "Held-out names"}
_SHOWN = 40


def headline(facts: dict[str, Any]) -> str:
    """What was done to which model, and whether it worked."""
    concepts = facts["certificate"]["concepts"]
    erased = sum(one["verdict"] == "erased" for one in concepts)
    size = f"{facts['size'] / 1e9:.2f} GB" if facts["size"] >= 1e9 else f"{facts['size'] / 1e6:.0f} MB"
    return (
        f"<header><p class='eyebrow'>Erasure certificate</p><h1>{erased} of {len(concepts)} "
        f"concept{'s' if len(concepts) != 1 else ''} erased</h1>"
        f"<p class='lead'>from <b>{escape(facts['model'])}</b> ({escape(facts['family'])}, {size})</p></header>"
    )


def tiles(facts: dict[str, Any]) -> str:
    """Four numbers that say most of it."""
    certificate = facts["certificate"]
    left = [
        one["probe_median"] if one["probe_median"] is not None else one["solved_median"]
        for one in certificate["concepts"]
    ]
    kept = [part for part in certificate["drift"] if part["group"] == "kept"]
    empty = max([certificate["sot_drift"] or 0.0, *certificate["null_text_drift"]])
    size = max((layer["change"] for layer in certificate["layers"]), default=0.0)
    found = [
        (f"{1 - max(left):.0%}", "of the weakest concept gone in unseen prompts"),
        (f"{max((part['p95'] for part in kept), default=0.0):.1%}", "drift of kept names (95th percentile)"),
        ("none" if empty < 1e-6 else f"{empty:.1%}", "drift of the empty prompt"),
        (f"{size:.1%}", "largest change of a layer's weights"),
    ]
    return "<div class='tiles'>" + "".join(f"<div><b>{a}</b><span>{b}</span></div>" for a, b in found) + "</div>"


def concepts(facts: dict[str, Any]) -> str:
    """How much of each concept is left, and the verdicts."""
    results, asked = facts["certificate"]["concepts"], facts["concepts"]
    rows = []
    for one in results[:_SHOWN]:
        seen = one["probe_median"] if one["probe_median"] is not None else one["solved_median"]
        hint = f"{one['name']}: {one['solved_median']:.1%} left on the rows solved for, {seen:.1%} in unseen prompts"
        rows.append(Bar(one["name"], ((seen, f"v-{one['verdict']}"),), f"{seen:.0%}", hint))
    marks = (Mark(ERASED_BELOW, "erased below"), Mark(STANDS_ABOVE, "stands above"))
    anchors = [str(one["anchor"] or "(nothing)") for one in asked] + [""] * len(results)
    table = "".join(_concept_row(one, anchor) for one, anchor in zip(results, anchors, strict=False))
    return _section(
        "What is left of each concept",
        "The share of the distance to its anchor that a concept still has, in prompts that the solve never saw. "
        "100 % is untouched, 0 % has become the anchor.",
        bars(rows, 1.0, marks, "What is left of each concept")
        + _more(len(results))
        + _table(("Concept", "becomes", "verdict", "", "left, solved", "left, unseen"), table),
    )


def _concept_row(one: dict[str, Any], anchor: str) -> str:
    verdict = escape(one["verdict"])
    unseen = "–" if one["probe_median"] is None else f"{one['probe_median']:.1%}"
    return (
        f"<tr><td>{escape(one['name'])}</td><td>{escape(anchor)}</td>"
        f"<td><span class='badge v-{verdict}'>{verdict}</span></td><td>{_WORDS.get(one['verdict'], '')}</td>"
        f"<td class='n'>{one['solved_median']:.1%}</td><td class='n'>{unseen}</td></tr>"
    )


def preservation(facts: dict[str, Any]) -> str:
    """How far retain names move, by group."""
    parts = facts["certificate"]["drift"]
    if not parts:
        return _section(
            "What was preserved", "No names were given to keep: nothing but the empty prompt is protected.", ""
        )
    limit = max(max(part["maximum"] for part in parts), 0.05)
    rows = [
        Bar(
            f"{_GROUPS[part['group']]}, {'in prompts' if part['where'] == 'context' else 'alone'} ({part['names']})",
            ((part["maximum"], "d3"), (part["p95"], "d2"), (part["median"], "d1")),
            f"{part['p95']:.1%}",
            f"median {part['median']:.2%}, 95th percentile {part['p95']:.2%}, maximum {part['maximum']:.2%}",
        )
        for part in parts
    ]
    legend = (
        "<p class='legend'><i class='d1'></i>median <i class='d2'></i>95th percentile <i class='d3'></i>maximum</p>"
    )
    note = (
        "Change of a name's outputs, relative to their size. Kept names were protected. Held-out names are on the same "
        "lists but were kept from the solve: they stand for everything that nobody listed."
    )
    return _section("What was preserved", note, legend + bars(rows, limit, (), "Drift of retain names") + _worst(parts))


def _worst(parts: Iterable[dict[str, Any]]) -> str:
    blocks = []
    for part in parts:
        listed = [(str(name), float(value)) for name, value in part["worst"][:8]]
        if listed:
            rows = [Bar(name, ((value, "d2"),), f"{value:.1%}") for name, value in listed]
            place = "in prompts" if part["where"] == "context" else "alone"
            chart = bars(rows, max(max(value for _, value in listed), 1e-9))
            blocks.append(f"<details><summary>{_GROUPS[part['group']]}, {place}: most moved</summary>{chart}</details>")
    return "".join(blocks)


def layers(facts: dict[str, Any]) -> str:
    """Where in the model the edit is."""
    found = facts["certificate"]["layers"]
    values = [
        (layer["key"].removeprefix("diffusion_model.").removesuffix(".weight"), layer["change"]) for layer in found
    ]
    rooms, ranks = [layer["room"] for layer in found], [layer["rank"] for layer in found]
    note = (
        f"{len(found)} layers, each changed by a matrix of rank {max(ranks)}; {_range(rooms)} dimensions "
        "of the embedding space were free for it. Height: size of the change relative to the layer's weights."
    )
    limit = max(max(value for _, value in values), 1e-9)
    return _section("Where the model was changed", note, columns(values, limit, "Change of each layer"))


def warnings(facts: dict[str, Any]) -> str:
    """What the certificate warns of, and what happened to the lists."""
    found = list(facts["certificate"]["warnings"])
    if facts["dropped"]:
        found.append(f"Dropped from the retain list for containing a target: {', '.join(facts['dropped'][:20])}.")
    if facts["unusable"]:
        found.append(f"Unusable retain names: {', '.join(facts['unusable'][:20])}.")
    if not found:
        return ""
    return (
        "<section class='warn'><h2>Worth knowing</h2><ul>"
        + "".join(f"<li>{escape(t)}</li>" for t in found)
        + "</ul></section>"
    )


def limits() -> str:
    """What no certificate of this kind can say."""
    return _section(
        "What this does not say",
        "",
        "<ul><li>Measured on the weights: no image was drawn. What is left is a share of the outputs of the layers "
        "that read the prompt, not a share of images.</li><li>Names are erased, not knowledge: textual inversion, "
        "fine-tuning or an image prompt may bring a concept back.</li><li>Preservation is proven for the names on the "
        "lists; the held-out names show what to expect of others.</li><li>A LoRA can be unloaded: to publish a model, "
        "use the cleaned checkpoint.</li></ul>",
    )


def facts_table(facts: dict[str, Any]) -> str:
    """Provenance and settings, enough to repeat the run."""
    lists = ", ".join(
        part["label"] + (f" ({part['names']} names)" if part["names"] else "") for part in facts["retain"]
    )
    rows = [
        ("Model", facts["model"]),
        ("sha256", facts["base_hash"]),
        ("Text encoder sha256", facts["encoder_hash"]),
        ("Strength", f"{facts['strength']:g}"),
        ("Clip skip", facts["clip_skip"] if facts["clip_skip"] is not None else "the family's own"),
        (
            "Retain lists",
            f"{lists or 'none'}; {facts['retain_count']} names used, {facts['in_context']} also in prompts",
        ),
        ("Seconds", ", ".join(f"{name} {value:.1f}" for name, value in facts["certificate"]["seconds"].items())),
        *((f"File: {product}", name) for product, name in facts["files"].items()),
    ]
    settings = facts["certificate"]["settings"].items()
    return _section(
        "How it was made",
        "",
        _table(
            (), "".join(f"<tr><td>{escape(str(a))}</td><td class='code'>{escape(str(b))}</td></tr>" for a, b in rows)
        )
        + "<details><summary>All settings</summary>"
        + _table(
            (),
            "".join(f"<tr><td>{escape(str(a))}</td><td class='code'>{escape(str(b))}</td></tr>" for a, b in settings),
        )
        + "</details>",
    )


def _section(title: str, note: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{f'<p>{escape(note)}</p>' if note else ''}{body}</section>"


def _table(header: Iterable[str], rows: str) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    first = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<div class='scroll'><table>{first}<tbody>{rows}</tbody></table></div>"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _more(count: int) -> str:
    return f"<p class='legend'>The first {_SHOWN} of {count} concepts are drawn.</p>" if count > _SHOWN else ""
