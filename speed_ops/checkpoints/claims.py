"""Where a header claims more than was measured, one sentence each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..certificate.certificate import (
    Certificate,
    ConceptResult,
    Drift,
    score_of,
    verdict_in_words,
    verdict_of,
)
from ..certificate.summary import GROUPS, PLACES
from ..errors import Notice
from ..files.schema import finite
from ..inputs import INPUT_TITLES, TOKENS
from ..recipe import Recipe
from ..text.names import quoted, same_name_key

LEFT_TOLERANCE = 0.05
"""How much more of a concept may be left than was certified: what half precision costs an edit."""
DRIFT_TOLERANCE = 0.02
"""How much further kept names may move than was certified."""
_SETTLED = ("rows_per_concept", "threshold", "lam", "softness")
"""Settings that `auto` chooses: the certificate has its choice, the recipe what was asked for."""
_VERDICTS = ("erased", "weakened", "stands", "unproven")
"""The best first. Unproven is not better than any."""


def broken_claims(claimed: dict[str, Any], recipe: Recipe, measured: Certificate) -> list[str]:
    """Where the measurement is worse than the claim, or claim and recipe disagree.

    Args:
        claimed: The header's certificate.
        recipe: The header's recipe. Concepts are compared by their order, as it may have no names.
        measured: The certificate as measured here.
    """
    faults = list(_section_faults(claimed, recipe, measured))
    for name, certificate in measured.other_inputs.items():
        title = INPUT_TITLES[name]
        if section := claimed_section(claimed, name):
            faults += [f"{title}: {text}" for text in _section_faults(section, recipe, certificate)]
        else:
            faults.append(f"{title} is edited, and the certificate says nothing about it.")
    return [*faults, *_setting_faults(claimed, recipe)]


def unmeasured_inputs(
    claimed: dict[str, Any], measured: Certificate, is_edited: Callable[[str], bool]
) -> list[str]:
    """A sentence for each text input that is edited, or claimed to be, and was not measured.

    Args:
        claimed: The header's certificate.
        measured: The certificate as measured here.
        is_edited: Whether the file edits a text input.
    """
    return [
        Notice(
            f"The {name} path is edited, but not all of its text encoders are here to measure it.",
            advice="give-text-encoder",
        )
        for name in INPUT_TITLES
        if name not in (TOKENS, *measured.other_inputs)
        and (is_edited(name) or claimed_section(claimed, name))
    ]


def not_measured(claimed: dict[str, Any]) -> list[str]:
    """What a header may contain that no measurement of the finished file can check."""
    titles = {"curve": "the trade-off", "rounds": "leaks"}
    topics = " and ".join(title for name, title in titles.items() if claimed.get(name))
    return [f"What the header says about {topics} was not measured again."] if topics else []


def claimed_section(claimed: dict[str, Any], name: str) -> dict[str, Any]:
    """What the header's certificate claims about another text input; empty if nothing."""
    sections = claimed.get("other_inputs")
    section = sections.get(name) if isinstance(sections, dict) else None
    return section if isinstance(section, dict) else {}


def _section_faults(
    claimed: dict[str, Any], recipe: Recipe, measured: Certificate
) -> Iterator[str]:
    yield from _concept_faults(_list(claimed, "concepts"), recipe, measured)
    yield from _drift_faults(_list(claimed, "drift"), measured.drift)
    empty = {
        "sot_drift": measured.sot_drift or 0.0,
        "null_text_drift": max(measured.null_text_drift, default=0.0),
    }
    for name, drift in empty.items():
        if drift > (bound := finite(claimed.get(name))) + DRIFT_TOLERANCE:
            yield f"The empty prompt moves by {drift:.1%}; the certificate says {bound:.1%}."
    count = len(measured.layers)
    if "layers" in claimed and claimed["layers"] != count:
        layers = str(claimed["layers"])[:40]
        yield f"The certificate is about {layers} layers, the recipe about {count}."


def _concept_faults(
    claims: list[dict[str, Any]], recipe: Recipe, measured: Certificate
) -> Iterator[str]:
    if len(claims) != len(measured.concepts):
        count = len(measured.concepts)
        yield f"The certificate covers {len(claims)} concepts, the recipe {count}."
        return
    for claim, stored, result in zip(claims, recipe.concepts, measured.concepts, strict=True):
        name = quoted(result.name)
        if same_name_key(str(claim.get("name"))) != same_name_key(stored.target):
            yield f"The certificate speaks of another concept in the place of {name}."
        if claim.get("kind", result.kind) != result.kind:
            yield f"The certificate judges {name} as another kind of concept than the recipe."
        for field, text in _SHARES.items():
            share, bound = getattr(result, field), finite(claim.get(field), -math.inf)
            if share is not None and share > bound + LEFT_TOLERANCE:
                wording = "does not say" if bound == -math.inf else f"says {bound:.0%}"
                yield f"{name}: {share:.0%} {text}; the certificate {wording}."
        best, label = _best_verdict(claim, result), claim.get("verdict")
        if label not in _VERDICTS or _VERDICTS.index(label) < _VERDICTS.index(best):
            words = verdict_in_words(label)[:40]
            yield f"The certificate calls {name} {words}, but it is {verdict_in_words(best)}."


_SHARES = {
    "probe_median": "is left in unseen prompts",
    "probe_to_go": "of the way is still to go in unseen prompts",
    "solved_median": "is left in the prompts we optimised",
    "probe_worst": "is left in unseen prompts, in the worst layer",
    "solved_worst": "is left in the prompts we optimised, in the worst layer",
    "energy_lost": "of the edit was lost by compressing rows",
}


def _best_verdict(claim: dict[str, Any], result: ConceptResult) -> str:
    """The best verdict that the claim's own numbers allow, and the measurement with the tolerance
    in its favour.

    Bars are those of the kind that the recipe gives.
    """
    solved, probed = (
        finite(claim.get(name), math.inf) for name in ("solved_median", "probe_median")
    )
    to_go = finite(claim.get("probe_to_go"), math.inf)
    median = None if claim.get("probe_median") is None else probed
    allowed = verdict_of(score_of(solved, median, result.kind, to_go), result.kind)
    measured = [
        None if share is None else share - LEFT_TOLERANCE
        for share in (result.probe_median, result.probe_to_go)
    ]
    score = score_of(result.solved_median - LEFT_TOLERANCE, measured[0], result.kind, measured[1])
    lenient = verdict_of(score, result.kind)
    return max(allowed, lenient, key=_VERDICTS.index)


_GROUPS = {"kept": ("kept", "filtered"), "held_out": ("held_out",)}
"""Kept and filtered names are one group here: which was which is not stored."""
_SIZES = {"median": "median", "p95": "95th percentile", "maximum": "maximum", "mean": "mean"}


def _drift_faults(claims: list[dict[str, Any]], measured: tuple[Drift, ...]) -> Iterator[str]:
    claimed = [str((claim.get("group"), claim.get("where"))) for claim in claims]
    expected = {str((group, drift.where)) for drift in measured for group in _GROUPS[drift.group]}
    if len(set(claimed)) != len(claimed) or not expected.issuperset(claimed):
        yield "The certificate speaks of names that the recipe does not give, or twice of the same."
    for drift in measured:
        names = f"the {GROUPS[drift.group].lower()} ({PLACES[drift.where]})"
        matches = [
            claim
            for claim in claims
            if claim.get("group") in _GROUPS[drift.group] and claim.get("where") == drift.where
        ]
        if not matches:
            yield f"The certificate says nothing about {names}."
            continue
        if any(finite(claim.get("names"), math.inf) > drift.names for claim in matches):
            yield f"The certificate speaks of more names than there are among {names}."
        for field, text in _SIZES.items():
            bound, size = max(finite(claim.get(field)) for claim in matches), getattr(drift, field)
            if size > bound + DRIFT_TOLERANCE:
                yield (
                    f"The {text} drift of {names} is {size:.1%}; the certificate says {bound:.1%}."
                )
        listed = max((size for claim in matches for size in _listed(claim)), default=0.0)
        if drift.worst and drift.worst[0][1] > listed + DRIFT_TOLERANCE:
            yield (
                f"One of {names} moves by {drift.worst[0][1]:.1%}; the certificate lists none that"
                " far."
            )


def _setting_faults(claimed: dict[str, Any], recipe: Recipe) -> Iterator[str]:
    settings, stored = claimed.get("settings"), recipe.settings
    settled = _SETTLED if stored.get("preset_name") == "auto" else ()
    for name, value in settings.items() if isinstance(settings, dict) else ():
        if name in stored and name not in settled and value != stored[name]:
            ours, theirs = str(stored[name])[:40], str(value)[:40]
            yield f"The certificate was made with {name} {theirs}, the recipe says {ours}."
    curve = claimed.get("curve")
    budget = curve.get("budget") if isinstance(curve, dict) else None
    if budget is not None and budget != stored.get("drift_budget", budget):
        ours, theirs = str(stored["drift_budget"])[:40], str(budget)[:40]
        yield f"The certificate names a budget of {theirs}, the recipe {ours}."


def _listed(claim: dict[str, Any]) -> list[float]:
    """The drift of each name that a claim lists."""
    worst = claim.get("worst")
    pairs = worst if isinstance(worst, list) else []
    return [finite(pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2]


def _list(values: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = values.get(name)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
