"""The numbers of a trade-off's plot: the chart, the page and the UI show the same ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.curve import Curve

Point = tuple[float, float]
"""(drift, share)."""
_MIN_REACH = 0.02
_STEPS = 5


@dataclass(frozen=True)
class TradeOff:
    """Lines from no edit at all, at drift 0, to the freest one."""

    left: tuple[Point, ...]
    """What remains of the concepts; the chosen edit is one of the points."""
    to_go: tuple[Point, ...]
    """Their distance to the replacement, which is what images show."""
    chosen: Point
    budget: float | None

    @property
    def reach(self) -> float:
        """The end of the axis, a round value: the curve goes on to edits that are far too free."""
        return round_ticks(self._content)[-1]

    @property
    def _content(self) -> float:
        """How far the axis must go: beyond the edit, and to the limit where that is near."""
        content = max(_MIN_REACH, 1.5 * self.chosen[0])
        near = self.budget is not None and self.budget < 2 * content
        return max(content, self.budget or 0.0) if near else content

    @property
    def shown_budget(self) -> float | None:
        """The limit, unless it is beyond the axis."""
        return self.budget if self.budget is not None and self.budget <= self.reach else None

    def visible(self, line: Iterable[Point]) -> list[Point]:
        """The points of a line up to the end of the axis."""
        points: list[Point] = []
        for drift, share in line:
            if drift > self.reach:
                before, start = points[-1]
                part = (self.reach - before) / (drift - before)
                return [*points, (self.reach, start + part * (share - start))]
            points.append((drift, share))
        return points

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Labels of the axis by their share of its length."""
        return [(tick / self.reach, f"{tick:g}") for tick in round_ticks(self._content)]


def round_ticks(reach: float) -> list[float]:
    """At most six values from 0, in steps of 1, 2 or 5 times a power of ten; the last is the first
    one that is not below `reach`.
    """
    power = 10.0 ** math.floor(math.log10(reach / _STEPS))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * _STEPS >= reach)
    return [round(step * index, 10) for index in range(math.ceil(reach / step - 1e-9) + 1)]


def trade_off(curve: Curve) -> TradeOff:
    """The plot of a curve."""
    points = [(point.drift, point.left, point.to_go) for point in curve.points]
    return _trade_off(points, (curve.chosen.drift, curve.chosen.left), curve.budget)


def trade_off_from_json(curve: dict[str, Any]) -> TradeOff:
    """The plot of a curve in plain values, as a certificate stores it."""
    points = [(point["drift"], point["left"], point["to_go"]) for point in curve["points"]]
    chosen = curve["chosen"]
    return _trade_off(points, (chosen["drift"], chosen["left"]), curve["budget"])


def _trade_off(
    points: Sequence[tuple[float, float, float]], chosen: Point, budget: float | None
) -> TradeOff:
    left = sorted({*((drift, left) for drift, left, _ in points), chosen})
    to_go = sorted((drift, to_go) for drift, _, to_go in points)
    return TradeOff(((0.0, 1.0), *left), ((0.0, 1.0), *to_go), chosen, budget)
