"""Where a header claims other numbers than were measured, one sentence each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..certificate.certificate import Certificate, ConceptResult
from ..errors import FileError, Notice
from ..files.schema import Fields, finite
from ..recipe import Recipe
from ..text.names import MAX_CONCEPTS, same_name_key

LEFT_TOLERANCE = 0.05
"""How far the share that is left of a concept may be from the claim: what half precision costs."""
DRIFT_TOLERANCE = 0.02
"""The same for side effects."""
RELATIVE_TOLERANCE = 0.05
"""What is allowed of large numbers instead."""
_NOT_MEASURED = {"curve": "the trade-off", "rounds": "leaks"}
_MAX_GROUPS = 20
_NUMBERS = {
    "concepts": (
        *("solved_median", "solved_worst", "probe_median", "probe_worst"),
        *("energy_lost", "probe_to_go"),
    ),
    "drift": ("median", "p95", "maximum", "mean"),
    "": ("sot_drift", "null_text_drift"),
}


def broken_claims(claimed: dict[str, Any], recipe: Recipe, measured: Certificate) -> list[Notice]:
    """Where a header's certificate is not the one that was measured.

    Args:
        claimed: The header's certificate; empty for a file without one.
        recipe: The header's recipe, whose names the claims must have.
        measured: The certificate of the file's own weights.
    """
    if not claimed:
        return []
    expected = measured.short()
    faults = list(_section(claimed, expected, recipe, "The recorded report"))
    sections = claimed.get("other_inputs")
    sections = sections if isinstance(sections, dict) else {}
    for name in {**sections, **expected["other_inputs"]}:
        title = f"The recorded report of the {str(name)[:40]} input"
        claim, fact = sections.get(name), expected["other_inputs"].get(name)
        if not isinstance(claim, dict) or fact is None:
            faults.append(f"{title} is missing, or about an input that the recipe leaves alone.")
        else:
            faults += _section(claim, fact, recipe, title)
    faults += _settings(claimed, recipe, expected["settings"])
    return [Notice(text, code="certificate") for text in faults]


def other_numbers(expected: Certificate, measured: Certificate) -> Iterator[str]:
    """Where a file measures otherwise than the recipe's own edit."""
    recipe, file = expected.short(), measured.short()
    for part, tolerance in (("concepts", LEFT_TOLERANCE), ("drift", DRIFT_TOLERANCE)):
        for claim, fact in zip(recipe[part], file[part], strict=True):
            yield from _numbers(claim, fact, part, fact.get("name", "Other names"), tolerance)
    yield from _numbers(recipe, file, "", "The empty prompt", DRIFT_TOLERANCE)


def not_measured(claimed: Mapping[str, Any]) -> list[str]:
    """What a header may contain that no measurement of the finished file can check."""
    topics = " and ".join(title for name, title in _NOT_MEASURED.items() if claimed.get(name))
    return [f"SPEED didn't measure {topics} in the header again."] if topics else []


def _section(
    claimed: Mapping[str, Any], expected: Mapping[str, Any], recipe: Recipe, title: str
) -> Iterator[str]:
    """Differences of one text input."""
    try:
        fields = Fields.of(claimed, title)
        claims = fields.objects("concepts", MAX_CONCEPTS)
        groups = fields.objects("drift", _MAX_GROUPS)
    except FileError as fault:
        yield str(fault)
        return
    yield from _numbers(claimed, expected, "", title, DRIFT_TOLERANCE)
    if claimed.get("layers") != expected["layers"]:
        yield f"{title} is about other layers than the recipe."
    if len(claims) != len(expected["concepts"]):
        yield f"{title} covers {len(claims)} concepts, the recipe {len(expected['concepts'])}."
        return
    for claim, stored, fact in zip(claims, recipe.concepts, expected["concepts"], strict=True):
        yield from _concept(claim.values, stored.target, fact, claim.title)
    places = [(str(group.values.get("group")), str(group.values.get("where"))) for group in groups]
    if sorted(places) != sorted((fact["group"], fact["where"]) for fact in expected["drift"]):
        yield f"{title} is about other groups of names than the recipe."
        return
    for fact in expected["drift"]:
        group = groups[places.index((fact["group"], fact["where"]))]
        yield from _numbers(group.values, fact, "drift", group.title, DRIFT_TOLERANCE)
        names = group.values.get("names")
        if abs(finite(names, math.inf) - fact["names"]) > max(
            1, RELATIVE_TOLERANCE * fact["names"]
        ):
            yield f"{group.title}: there are {fact['names']} names."
        listed, worst = _sizes(group.values), _sizes(fact)
        near = (_near(*sizes, DRIFT_TOLERANCE) for sizes in zip(listed, worst, strict=False))
        named = not recipe.has_names or _same_names(group.values.get("worst"), fact["worst"])
        if not (named and all(near)) or abs(len(listed) - len(worst)) > 1:
            yield f"{group.title}: other names moved most, or by another amount."


def _concept(
    claim: Mapping[str, Any], target: str, fact: Mapping[str, Any], title: str
) -> Iterator[str]:
    if same_name_key(str(claim.get("name"))) != same_name_key(target):
        yield f"{title} is about another concept than the recipe."
    if claim.get("kind") != fact["kind"]:
        yield f"{title} is judged as another type of concept than in the recipe."
    yield from _numbers(claim, fact, "concepts", title, LEFT_TOLERANCE)
    values = {
        name: None if claim.get(name) is None else finite(claim.get(name), math.inf)
        for name in _NUMBERS["concepts"]
    }
    required = {name: math.inf if values[name] is None else values[name] for name in _REQUIRED}
    result = ConceptResult(**{**values, **required, "name": "", "kind": fact["kind"]})  # type: ignore[arg-type]
    score = claim.get("score")
    same = score is None if result.score is None else finite(score, math.inf) == result.score
    if claim.get("verdict") != result.verdict or not same:
        yield f"{title} has another verdict or score than its own numbers give."


_REQUIRED = ("solved_median", "solved_worst", "energy_lost")


def _numbers(
    claim: Mapping[str, Any], fact: Mapping[str, Any], part: str, title: str, tolerance: float
) -> Iterator[str]:
    for name in _NUMBERS[part]:
        value, size = claim.get(name), fact[name]
        missing = size is None or value is None
        if (missing and size is not value) or not (missing or _near(value, size, tolerance)):
            shown = "nothing" if size is None else f"{size:.1%}"
            yield f"{title}: {name} is {str(value)[:20]}, but {shown} was measured."


def _near(claim: Any, fact: float, tolerance: float) -> bool:
    return abs(finite(claim, math.inf) - fact) <= max(tolerance, RELATIVE_TOLERANCE * abs(fact))


def _sizes(group: Mapping[str, Any]) -> list[Any]:
    """How far the most affected names moved, the first of them."""
    worst = group.get("worst")
    pairs = worst if isinstance(worst, (list, tuple)) else []
    return [
        pair[1] if isinstance(pair, (list, tuple)) and len(pair) == 2 else None for pair in pairs
    ]


def _same_names(claims: Any, worst: list[tuple[str, float]]) -> bool:
    """Whether each of the most affected names was affected that much; a name that just missed the
    list, as much as the last on it.
    """
    sizes = {same_name_key(name): size for name, size in worst}
    last = min(sizes.values(), default=0.0)
    try:
        return all(
            _near(size, sizes.get(same_name_key(name), last), DRIFT_TOLERANCE)
            for name, size in claims
        )
    except (TypeError, ValueError, AttributeError):
        return False


def _settings(
    claimed: Mapping[str, Any], recipe: Recipe, expected: Mapping[str, Any]
) -> Iterator[str]:
    if claimed.get("settings") != expected:
        yield "The recorded report was made with other settings than the recipe's."
    curve = claimed.get("curve")
    if isinstance(curve, dict) and curve.get("budget") not in (None, expected["drift_budget"]):
        yield "The recorded report has another side-effect limit than the recipe."
