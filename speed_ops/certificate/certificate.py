"""The certificate: what was erased, what was protected and what remains, measured on the weights
without generating images.

A residual compares outputs: |(W + dW) c1 - W c*| / |W c1 - W c*|, 1 for an untouched target, 0 for
one that has become its replacement. It measures what remains of the target, so moving straight on
beyond the replacement does not count. Drift is |dW c0| / |W c0|. Cross attention reads every row of
a prompt, so rows that made the edit prove nothing: a concept counts as erased only in new prompts.

One quantity decides, `ConceptResult.score`, and every output shows that one.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch

from ..engine.auto import Traced, choose, preferred, reachable, spent
from ..engine.curve import Curve, CurvePoint
from ..engine.solver import Round
from ..errors import Notice
from ..inputs import INPUT_TITLES

MAX_HEADER_WARNINGS = 100
"""Warnings that a file's header holds; the report has them all."""
Verdict = Literal["erased", "weakened", "stands", "unproven"]


@dataclass(frozen=True)
class Bars:
    """Where a verdict turns, in residual in new prompts."""

    erased: float
    """Up to here a concept counts as erased."""
    stands: float
    """From here on it counts as still there; between the two it is weakened."""
    arrived: float | None = None
    """This close to the replacement it counts as erased, whatever else changed: images show only
    this distance.
    """


# From images of two small models (docs/research/image-tests). In the 12-painter test set, 308
# erasures, painters were in no image up to 0.48 and in half of them from 0.53; the subject was gone
# up to 0.25 and in half of its images from 0.32; the theme was gone up to 0.59. In the 40-painter
# test set, on a real text encoder, painters were gone up to 0.57, subjects were in a fifth of their
# images at 0.34, and the theme in a quarter of its at 0.47: so its bar is lower. By the distance to
# the replacement, painters were gone there up to 0.36 but for one, in a seventh of its images at
# 0.17 and a quarter at 0.22; subjects up to 0.14, but one was in a sixth of its images at 0.09; the
# theme was gone at 0.19. So 0.9% of the verdicts are unsafe there. A person or a character is
# recognized by its shape like an object; in images of people these bars are too strict rather than
# too loose.
BARS: dict[str, Bars] = {
    "style": Bars(0.48, 0.55, arrived=0.36),
    "object": Bars(0.28, 0.4, arrived=0.14),
    "person": Bars(0.28, 0.4, arrived=0.14),
    "character": Bars(0.28, 0.4, arrived=0.14),
    "theme": Bars(0.4, 0.75, arrived=0.19),
}
BARS_OF_ANY = Bars(0.35, 0.5)
"""For callers who give no kind."""


def bars_of(kind: str) -> Bars:
    """Where the verdict about a kind of concept turns."""
    return BARS.get(kind, BARS_OF_ANY)


@dataclass(frozen=True)
class ConceptResult:
    """One erased concept."""

    name: str
    solved_median: float
    """Residual on the rows that the edit was made from, median over layers."""
    solved_worst: float
    probe_median: float | None
    """Residual on rows in new prompts; None where none were given."""
    probe_worst: float | None
    energy_lost: float
    """Share of the change that compressing the concept's rows gave up."""
    kind: str = ""
    probe_to_go: float | None = None
    """The part of that residual along the line to the replacement; the rest is sideways."""
    score: float | None = field(init=False)
    """What remains, relative to the most that counts as erased: at most 1 is erased. None where
    nothing was tested.
    """
    verdict: Verdict = field(init=False)
    """Follows from the score alone; people read `verdict_in_words`."""

    def __post_init__(self) -> None:
        score = score_of(self.solved_median, self.probe_median, self.kind, self.probe_to_go)
        object.__setattr__(self, "score", score)
        object.__setattr__(self, "verdict", verdict_of(score, self.kind))

    @property
    def left(self) -> float:
        """The residual in new prompts, or where none were given, in the concept's own."""
        return self.solved_median if self.probe_median is None else self.probe_median


@dataclass(frozen=True)
class Drift:
    """How far a group of names moved. A name's drift is its median over layers."""

    group: str
    """kept, filtered or held_out."""
    where: str
    """bare or context."""
    names: int
    median: float
    p95: float
    maximum: float
    """That of the first name in `worst`."""
    worst: tuple[tuple[str, float], ...]
    """The names that moved most."""
    mean: float = 0.0
    """What the side-effect limit is about."""

    def times(self, size: float) -> Drift:
        """The drift of an edit that moves every name `size` times as far."""
        return replace(
            self,
            median=self.median * size,
            p95=self.p95 * size,
            maximum=self.maximum * size,
            mean=self.mean * size,
            worst=tuple((name, value * size) for name, value in self.worst),
        )


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
    warnings: tuple[Notice, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    curve: Curve | None = None
    """The trade-off, and the point on it that the edit is; at strength 1."""
    other_inputs: dict[str, Certificate] = field(default_factory=dict)
    """{text input: the same for it}, for edited inputs other than the prompt's rows. `sot_drift` is
    that of the empty prompt there."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for `json.dumps`."""
        values = asdict(self)
        values["warnings"] = [notice.to_json() for notice in self.warnings]
        values["other_inputs"] = {name: part.to_json() for name, part in self.other_inputs.items()}
        return values

    def short(self) -> dict[str, Any]:
        """What goes into a file's header: no per-layer and no per-token lists, and not more
        warnings than it has room for."""
        values = self.to_json()
        if (more := len(self.warnings) - MAX_HEADER_WARNINGS) > 0:
            last = Notice(f"And {more:,} more warnings.", code="more_warnings", count=more)
            values["warnings"] = [*values["warnings"][:MAX_HEADER_WARNINGS], last.to_json()]
        values["null_text_drift"] = max(self.null_text_drift, default=None)
        values["layers"] = len(self.layers)
        values["other_inputs"] = {
            name: {key: value for key, value in part.short().items() if key not in _ONLY_ONCE}
            for name, part in self.other_inputs.items()
        }
        return values

    @property
    def every_warning(self) -> tuple[Notice, ...]:
        """Its own warnings, and those of the other text inputs that differ from them."""
        others = [
            Notice(f"{INPUT_TITLES[name]}: {notice}", **notice.data, input=name)
            for name, part in self.other_inputs.items()
            for notice in part.warnings
            if notice not in self.warnings
        ]
        return (*self.warnings, *others)


_ONLY_ONCE = ("seconds", "settings", "other_inputs")
"""What a header does not repeat for other text inputs."""


def score_of(
    solved: float, probed: float | None, kind: str = "", to_go: float | None = None
) -> float | None:
    """What remains of a concept, relative to the most that counts as erased.

    Args:
        solved: Residual in the prompts that made the edit.
        probed: Residual in new prompts; None without any.
        kind: Kind of the concept, which sets the bars.
        to_go: Its part along the line to the replacement; None if unknown.
    """
    if probed is None:
        return None
    bars = bars_of(kind)
    score = max(solved, probed) / bars.erased
    if to_go is None or bars.arrived is None:
        return score
    return min(score, to_go / bars.arrived)


def verdict_of(score: float | None, kind: str = "") -> Verdict:
    """erased up to 1, then weakened, then still there; without new prompts, not tested."""
    if score is None:
        return "unproven"
    if score <= 1:
        return "erased"
    bars = bars_of(kind)
    return "weakened" if score < bars.stands / bars.erased else "stands"


class Alternative(NamedTuple):
    """Another point of the trade-off, with what remains of each concept in the report's prompts."""

    point: CurvePoint
    left: list[float]
    to_go: list[float]


@dataclass(frozen=True, eq=False)
class Alternatives:
    """What `auto` would choose for the same rows within other limits. Everything that a limit does
    not change is decomposed, so an answer takes a few products of small matrices.
    """

    candidates: tuple[Traced, ...]

    def within(self, limit: float, strength: float = 1.0) -> Alternative:
        """What a run with this limit would choose.

        Args:
            limit: The most drift to allow.
            strength: What the edit is to be applied with; the point is that at strength 1.
        """
        points = [choose(item.points, item.judge, limit) for item in self.candidates]
        point = preferred(points)
        reporter = self.candidates[points.index(point)].reporter
        left, to_go = reporter.remains(point.lam, strength)
        return Alternative(point, left.tolist(), to_go.tolist())

    def to(self, device: torch.device | str) -> Alternatives:
        """The same on another device."""
        return Alternatives(tuple(item.to(device) for item in self.candidates))


def point_within(curve: Curve, limit: float) -> CurvePoint:
    """The point that `auto` would choose within a limit."""
    chosen = curve.chosen
    fits = curve.budget is not None and spent(chosen) <= limit
    if limit == curve.budget or (fits and limit < (curve.budget or 0.0)):
        return chosen
    points = reachable(curve.points, limit)
    if points or fits:
        return preferred([*points, chosen] if fits else points)
    first = curve.points[0]
    share = min(1.0, limit / spent(first)) if spent(first) else 1.0
    return CurvePoint(  # edits that weak are nearly proportional to 1 / lam
        lam=first.lam / share if share else math.inf,
        left=1 - share * (1 - first.left),
        drift=share * first.drift,
        spread=share * first.spread,
        to_go=1 - share * (1 - first.to_go),
    )


def offer(curve: Curve, limit: float) -> tuple[float, float]:
    """What another limit would choose, as (drift, remaining), compared with what was chosen.

    `auto` accepts a little more residual for a shorter distance to the replacement, so neither
    alone says which edit is better. A stricter limit is shown by the one that gets worse, a looser
    limit by the one that gets better.
    """
    point, chosen = point_within(curve, limit), curve.chosen
    if curve.budget is None:
        return point.drift, point.left
    changes = (point.left - chosen.left, point.to_go - chosen.to_go)
    change = max(changes) if limit < curve.budget else min(changes)
    return point.drift, min(1.0, max(0.0, chosen.left + change))


def helped_by_more(curve: Curve) -> CurvePoint | None:
    """What twice the limit would choose, where that gets clearly nearer to the replacement."""
    if curve.budget is None:
        return None
    more = point_within(curve, 2 * curve.budget)
    return more if more.to_go < curve.chosen.to_go - CLEARLY else None


CLEARLY = 0.02
"""Twice what a point of the curve may be short of the best (`auto.WORTH_ITS_DRIFT`): less is not
worth mentioning.
"""
