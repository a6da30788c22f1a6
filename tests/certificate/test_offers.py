"""What another side-effect limit would give never contradicts what was chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from speed_erase.speed_ops.certificate.certificate import offer, point_within
from speed_erase.speed_ops.engine.auto import choose, spent
from speed_erase.speed_ops.engine.curve import Curve, CurvePoint

LIMITS = (0.001, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 2.0)
TINY = 1e-9


class StoredJudge:
    """Points between the stored ones by interpolation, and weaker ones in proportion to 1 / lam."""

    def __init__(self, points: Sequence[CurvePoint]) -> None:
        self.points = points[::-1]

    def at(self, lam: float) -> CurvePoint:
        log = [math.log(point.lam) for point in self.points]
        left, drift, spread, to_go = (
            float(np.interp(math.log(lam), log, [getattr(point, name) for point in self.points]))
            for name in ("left", "drift", "spread", "to_go")
        )
        share = min(1.0, self.points[-1].lam / lam)
        return CurvePoint(
            lam, 1 - share * (1 - left), share * drift, share * spread, 1 - share * (1 - to_go)
        )


shares = st.floats(0, 1)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Any curve of growing drift; what remains may rise and fall."""
    count = draw(st.integers(2, 12))
    drifts = sorted(draw(st.lists(st.floats(0.001, 3), min_size=count, max_size=count)))
    points = []
    for index, drift in enumerate(drifts):
        left, part, spread = draw(shares), draw(shares), draw(st.floats(0, 0.05))
        points.append(CurvePoint(10.0**-index, left, drift, spread * drift, left * part))
    budget = draw(st.sampled_from(LIMITS))
    chosen = choose(tuple(points), cast(Any, StoredJudge(points)), budget)
    return Curve(tuple(points), chosen, budget, 9, True, ())


SIDEWAYS = (
    CurvePoint(1, 0.30, 0.08, 0, 0.2),
    CurvePoint(0.1, 0.33, 0.29, 0, 0.1),
)
"""The stronger edit leaves a little more, but is nearer to the replacement."""


@given(curves())
@example(Curve(SIDEWAYS, SIDEWAYS[1], 0.3, 9, True, ()))
def test_a_stricter_limit_never_looks_better_than_the_chosen_edit(curve: Curve) -> None:
    assert curve.budget is not None
    chosen = curve.chosen
    assert offer(curve, curve.budget) == (chosen.drift, chosen.left)
    for limit in LIMITS:
        drift, left = offer(curve, limit)
        if limit < curve.budget and left < chosen.left - TINY:
            assert drift > chosen.drift - TINY


@given(curves())
def test_what_a_limit_offers_is_within_it(curve: Curve) -> None:
    for limit in LIMITS:
        point = point_within(curve, limit)
        assert spent(point) <= limit + TINY or point == curve.chosen


def test_a_stricter_limit_counts_the_distance_to_the_replacement() -> None:
    drift, left = offer(Curve(SIDEWAYS, SIDEWAYS[1], 0.3, 9, True, ()), 0.1)
    assert (drift, left) == (0.08, 0.33 + (0.2 - 0.1))
