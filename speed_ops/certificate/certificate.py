"""The certificate: what was erased, what was kept and what still stands, measured on the weights
without sampling.

A residual compares outputs: |(W + dW) c1 - W c*| / |W c1 - W c*|, 1 for an untouched target, 0 for
one that has become its anchor. It says what is left of the target, so the way that a row went
straight on beyond its anchor is taken off: a stronger edit leaves no more of it. Drift is |dW c0| /
|W c0|. A concept counts as erased only on rows in contexts that were not optimised for: cross
attention reads every row of a prompt, so the rows that the edit was made from prove nothing by
themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..engine.auto import knee, preferred
from ..engine.curve import Curve, CurvePoint
from ..engine.solver import Round
from ..inputs import INPUT_TITLES

MAX_HEADER_WARNINGS = 100
"""Warnings that a file's header holds; the report has them all."""
Verdict = Literal["erased", "weakened", "stands", "unproven"]


@dataclass(frozen=True)
class Bars:
    """Where a verdict turns, in residual on unseen contexts."""

    erased: float
    """Up to here a concept counts as erased."""
    stands: float
    """From here on it counts as standing; between the two it is weakened."""
    arrived: float | None = None
    """With no more of the straight way to go it counts as erased, whatever went astray: pictures
    show the way alone.
    """


# From images of two small models (docs/proof). In the tidy world, 308 erasures, painters were
# in no picture up to 0.48 and in half of them from 0.53; the subject was gone up to 0.25 and in
# half of its pictures from 0.32; the implied idea was gone up to 0.59. In the crowded world, on a
# real text encoder, painters were gone up to 0.57, subjects were in a fifth of their pictures at
# 0.34, and the implied idea in a quarter of its at 0.47: so its bar is lower. By the way still to
# go, painters were gone there up to 0.36 but for one, in a seventh of its pictures at 0.17 and a
# quarter at 0.22; subjects up to 0.14, but one was in a sixth of its pictures at 0.09; the implied
# idea was gone at 0.19. So 0.9 % of the verdicts are unsafe there. A person or a character is told
# by its shape like an object; no picture has judged one yet.
BARS: dict[str, Bars] = {
    "style": Bars(0.48, 0.55, arrived=0.36),
    "object": Bars(0.28, 0.4, arrived=0.14),
    "person": Bars(0.28, 0.4, arrived=0.14),
    "character": Bars(0.28, 0.4, arrived=0.14),
    "implicit": Bars(0.4, 0.75, arrived=0.19),
}
BARS_OF_ANY = Bars(0.35, 0.5)
"""For callers who say nothing of the kind."""


def bars_of(kind: str) -> Bars:
    """Where the verdict about a kind of concept turns."""
    return BARS.get(kind, BARS_OF_ANY)


@dataclass(frozen=True)
class ConceptResult:
    """One erased concept."""

    name: str
    verdict: Verdict
    """erased, weakened, stands, or unproven where no unseen context was given; people read
    `verdict_in_words`.
    """
    solved_median: float
    """Residual on the rows that the edit was made from, median over layers."""
    solved_worst: float
    probe_median: float | None
    """Residual on rows in other contexts."""
    probe_worst: float | None
    energy_lost: float
    """Share of the change that compressing the concept's rows gave up."""
    kind: str = ""
    probe_to_go: float | None = None
    """How much of that residual is straight way to the anchor; the rest went sideways. None also
    before it was measured.
    """

    @property
    def left(self) -> float:
        """What is left of the concept: in unseen prompts, or where none were given, in its own."""
        return self.solved_median if self.probe_median is None else self.probe_median


@dataclass(frozen=True)
class Drift:
    """How far a group of kept names moved, over names and layers."""

    group: str
    """kept, filtered or held_out."""
    where: str
    """bare or context."""
    names: int
    median: float
    p95: float
    maximum: float
    worst: tuple[tuple[str, float], ...]
    """The names that moved most, by their median over layers."""
    mean: float = 0.0
    """What the budget is about."""


@dataclass(frozen=True)
class LayerFacts:
    """What the edit is in one layer."""

    key: str
    kept: int
    added: int
    room: int
    """Dimensions left for erasing: those of the null space, or of a soft prior, part ones added
    up.
    """
    rank: int
    change: float
    """|dW| / |W|."""


@dataclass(frozen=True)
class Certificate:
    """Serialises to JSON and prints as a short text."""

    concepts: tuple[ConceptResult, ...]
    drift: tuple[Drift, ...]
    sot_drift: float | None
    null_text_drift: tuple[float, ...]
    """Drift of each row of the empty prompt after SOT, largest over layers."""
    layers: tuple[LayerFacts, ...]
    rounds: tuple[Round, ...]
    seconds: dict[str, float]
    warnings: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    curve: Curve | None = None
    """The trade-off, and the point on it that the edit is; at strength 1."""
    other_inputs: dict[str, Certificate] = field(default_factory=dict)
    """{text input: the same for it}, for edited inputs other than the prompt's rows. `sot_drift` is
    that of the empty prompt there."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for `json.dumps`."""
        return asdict(self)

    def short(self) -> dict[str, Any]:
        """What goes into a file's header: no per-layer and no per-token lists, and not more
        warnings than it has room for."""
        values = self.to_json()
        if (more := len(self.warnings) - MAX_HEADER_WARNINGS) > 0:
            values["warnings"] = [
                *self.warnings[:MAX_HEADER_WARNINGS],
                f"And {more:,} more warnings.",
            ]
        values["null_text_drift"] = max(self.null_text_drift, default=None)
        values["layers"] = len(self.layers)
        values["other_inputs"] = {
            name: {key: value for key, value in part.short().items() if key not in _ONLY_ONCE}
            for name, part in self.other_inputs.items()
        }
        return values

    @property
    def every_warning(self) -> tuple[str, ...]:
        """Its own warnings, and those of the other text inputs that differ from them."""
        others = [
            f"{INPUT_TITLES[name]}: {text}"
            for name, part in self.other_inputs.items()
            for text in part.warnings
            if text not in self.warnings
        ]
        return (*self.warnings, *others)

    def text(self) -> str:
        """A few lines for people."""
        return describe(self)


_ONLY_ONCE = ("seconds", "settings", "other_inputs")
"""What a header does not repeat for other text inputs."""


def verdict(
    solved: float, probed: float | None, kind: str = "", to_go: float | None = None
) -> Verdict:
    """erased, weakened or stands by the unseen contexts; without any, nothing is proven.

    Args:
        solved: Share of the concept left in the prompts that made the edit.
        probed: Share left in unseen prompts; None without any.
        kind: Kind of the concept, which sets the limits.
        to_go: Share of the straight way to the anchor still to go; None if unknown.
    """
    if probed is None:
        return "unproven"
    left, bars = max(solved, probed), bars_of(kind)
    if to_go is not None and bars.arrived is not None and to_go <= bars.arrived:
        return "erased"
    return "erased" if left <= bars.erased else "weakened" if left < bars.stands else "stands"


def point_within(curve: Curve, drift: float) -> CurvePoint | None:
    """The point of the curve that `auto` would prefer within a drift; None where it has none
    there.
    """
    limit = min(drift, knee(curve.points))
    points = [point for point in curve.points if point.drift <= limit]
    return preferred(points) if points else None


def helped_by_more(curve: Curve) -> CurvePoint | None:
    """What twice the budget would choose, where that gets clearly nearer to the anchor."""
    more = None if curve.budget is None else point_within(curve, 2 * curve.budget)
    return more if more is not None and more.to_go < curve.chosen.to_go - CLEARLY else None


CLEARLY = 0.02
"""Twice what a point of the curve may be short of the best (`auto.WORTH_ITS_DRIFT`): less is not
worth a word.
"""
VERDICT_WORDS: dict[str, str] = {
    "erased": "erased",
    "weakened": "weakened",
    "stands": "still there",
    "unproven": "unproven",
}
"""Stored verdict -> the words that people read."""
GROUPS: dict[str, str] = {
    "kept": "Kept names",
    "filtered": "Filtered names",
    "held_out": "Held-out names",
}
"""What people call the groups of names whose drift is measured."""
PLACES: dict[str, str] = {"bare": "alone", "context": "in prompts"}
"""What people call the places where it is measured."""
_LISTED = 12  # concepts printed one by one; longer lists are summed up


def verdict_in_words(stored: object) -> str:
    """A stored verdict for people; anything else that a header may hold, as it is."""
    return VERDICT_WORDS.get(str(stored), str(stored))


def describe(certificate: Certificate) -> str:
    """A short report: verdicts, what was preserved, the model's invariants, warnings."""
    lines = _concepts(certificate.concepts) + [_drift(summary) for summary in certificate.drift]
    if certificate.sot_drift is not None:
        worst = max([certificate.sot_drift, *certificate.null_text_drift])
        lines.append(f"Empty prompt: drift at most {worst:.1e}.")
    rooms = [layer.room for layer in certificate.layers]
    room = f"{max(rooms)}" if min(rooms) == max(rooms) else f"{min(rooms)} to {max(rooms)}"
    ranks = {layer.rank for layer in certificate.layers}
    lines.append(
        f"{len(rooms)} layer{'s' if len(rooms) != 1 else ''}, rank {max(ranks)}, "
        f"room for {room} dimensions, "
        f"{sum(certificate.seconds.values()):.2f} s."
    )
    if certificate.curve is not None:
        lines.append(_trade_off(certificate.curve))
    if certificate.rounds:
        leaks = " -> ".join(f"{round_.mean_leak:.0%}" for round_ in certificate.rounds)
        dropped = (
            ""
            if certificate.rounds[-1].kept
            else " (the last round did not lower the leak enough and was dropped)"
        )
        lines.append(f"Adversarial rounds: leak {leaks}{dropped}.")
    for name, part in certificate.other_inputs.items():
        lines += input_lines(name, part)
    return "\n".join(lines + [f"Warning: {text}" for text in certificate.every_warning])


def input_lines(name: str, certificate: Certificate) -> list[str]:
    """Another text input, after what is reported about the prompt's rows."""
    worst = max(certificate.concepts, key=lambda concept: concept.left)
    mean = sum(concept.left for concept in certificate.concepts) / len(certificate.concepts)
    left = f"{mean:.0%} left"
    if len(certificate.concepts) > 1:
        left += f" on average, at most {worst.left:.0%} ({worst.name})"
    lines = [
        f"{INPUT_TITLES[name]}: {left}.",
        *(f"  {_drift(summary)}" for summary in certificate.drift),
    ]
    if certificate.sot_drift is not None:
        lines.append(f"  Empty prompt: drift at most {certificate.sot_drift:.1e}.")
    if certificate.curve is not None:
        lines.append(f"  {_trade_off(certificate.curve)}")
    return lines


SHOWN_DRIFTS = (0.05, 0.1, 0.2, 0.3, 0.45)
"""Where the trade-off is told in words."""


def _trade_off(curve: Curve) -> str:
    """What could be had for how much drift."""
    point = curve.chosen
    budget = "" if curve.budget is None else f" of a budget of {curve.budget:.0%}"
    judges = f"{curve.names} names" + (
        " set aside" if curve.unseen else ", the kept ones themselves"
    )
    words = (
        f"Trade-off: {point.left:.0%} left for a drift of {point.drift:.1%}{budget} (judged on"
        f" {judges}), "
    )
    words += f"and {point.to_go:.0%} of the straight way to the anchor still to go."
    within = [(drift, point_within(curve, drift)) for drift in SHOWN_DRIFTS]
    offers = [f"{point.left:.0%} for {drift:.0%}" for drift, point in within if point is not None]
    return f"{words} Otherwise: {', '.join(offers)}." if offers else words


def _concepts(concepts: tuple[ConceptResult, ...]) -> list[str]:
    if len(concepts) <= _LISTED:
        return [_concept(concept) for concept in concepts]
    counts: dict[str, int] = {}
    for concept in concepts:
        counts[concept.verdict] = counts.get(concept.verdict, 0) + 1
    listed = ", ".join(
        f"{count} {verdict_in_words(name)}" for name, count in sorted(counts.items())
    )
    weakest = sorted(concepts, key=lambda concept: -concept.left)[:5]
    return [
        f"{len(concepts)} concepts: {listed}. Least erased:",
        *[_concept(concept) for concept in weakest],
    ]


def _concept(concept: ConceptResult) -> str:
    words = verdict_in_words(concept.verdict)
    solved = f"{1 - concept.solved_median:.0%} removed in the prompts we optimised"
    if concept.probe_median is None:
        return f"{concept.name}: {words} ({solved}; not checked in other prompts)."
    to_go = concept.probe_to_go
    way = (
        ""
        if to_go is None
        else f", where {1 - to_go:.0%} of the straight way to the anchor is gone"
    )
    return (
        f"{concept.name}: {words} ({solved}, {1 - concept.probe_median:.0%} in unseen"
        f" prompts{way})."
    )


def _drift(summary: Drift) -> str:
    worst = ", ".join(f"{name} {value:.1%}" for name, value in summary.worst[:3])
    drift = (
        f"drift median {summary.median:.1%}, 95th percentile {summary.p95:.1%}, maximum"
        f" {summary.maximum:.1%}"
    )
    group = f"{GROUPS[summary.group]} ({PLACES[summary.where]}, {summary.names})"
    return f"{group}: {drift}; moved most: {worst}."
