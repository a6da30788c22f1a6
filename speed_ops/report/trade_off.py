"""The numbers of a trade-off's plot: the picture, the page and the screen draw the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.curve import Curve

Point = tuple[float, float]
"""(drift, share)."""
_MIN_REACH = 0.05


@dataclass(frozen=True)
class TradeOff:
    """Lines from no edit at all, at drift 0, to the freest one."""

    left: tuple[Point, ...]
    """What is left of the concepts; the chosen edit is one of the points."""
    to_go: tuple[Point, ...]
    """How much of that is the straight way to the anchor."""
    chosen: Point
    budget: float | None

    @property
    def reach(self) -> float:
        """The drift at the end of the axis: the curve goes on to edits that are far too free."""
        return max(_MIN_REACH, 3 * max(self.chosen[0], self.budget or 0.0))

    def visible(self, line: Iterable[Point]) -> list[Point]:
        """The points of a line up to the end of the axis."""
        return [point for point in line if point[0] <= self.reach]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Labels of the axis by their share of its length."""
        return [(share, f"{share * self.reach:.1%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]

    @property
    def caption(self) -> str:
        """Labels the chosen point."""
        drift, left = self.chosen
        return f"this edit: {left:.0%} left, drift {drift:.1%}"


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
