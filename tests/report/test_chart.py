"""Charts: bounded in size, different for different results, safe with any name."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from speed_erase.speed_ops.certificate.certificate import (
    Certificate,
    ConceptResult,
    Drift,
    LayerFacts,
    verdict,
)
from speed_erase.speed_ops.certificate.forecast import Forecast
from speed_erase.speed_ops.engine.curve import Curve, CurvePoint
from speed_erase.speed_ops.report.chart import certificate_chart, forecast_chart
from speed_erase.speed_ops.report.html import curve_facts
from speed_erase.speed_ops.report.trade_off import trade_off, trade_off_from_json


def certificate(left: float, count: int = 1, name: str = "Van Gogh") -> Certificate:
    results = tuple(
        ConceptResult(f"{name} {i}", verdict(left, left), left, left, left, left, 0.0)
        for i in range(count)
    )
    drift = (Drift("kept", "bare", 10, 0.01, 0.02, 0.03, (("Monet", 0.03),)),)
    return Certificate(
        results, drift, 0.0, (0.0,), (LayerFacts("k", 1, 0, 5, 1, 0.1),), (), {"solve": 0.1}, ()
    )


def test_a_picture_of_bytes() -> None:
    picture = certificate_chart(certificate(0.1))
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    assert picture.min() < 100 and picture.max() == 255


def curve(left: float, budget: float | None = 0.1) -> Curve:
    points = tuple(
        CurvePoint(1.0 / n, 1.0 - 0.04 * n, 0.02 * n, 0.0, 1.0 - 0.05 * n) for n in range(1, 20)
    )
    return Curve(
        points, CurvePoint(0.5, left, 0.08, 0.001, left), budget, 32, True, (("Monet", 0.3),)
    )


def test_the_trade_off_is_drawn_below_with_the_chosen_point() -> None:
    plain = certificate_chart(certificate(0.1))
    low, high = (
        certificate_chart(replace(certificate(0.1), curve=curve(left))) for left in (0.2, 0.9)
    )
    assert low.shape == high.shape and low.shape[0] > plain.shape[0] + 200
    red = [np.argwhere((image[..., 0] > 180) & (image[..., 1] < 80)) for image in (low, high)]
    assert all(len(dot) > 60 for dot in red), "the dot"
    assert red[0][:, 0].mean() > red[1][:, 0].mean() + 100, "the less is left, the lower it is"
    assert certificate_chart(replace(certificate(0.1), curve=curve(0.2, None))).shape == low.shape


def test_more_left_means_a_longer_and_redder_bar() -> None:
    good, bad = certificate_chart(certificate(0.1)), certificate_chart(certificate(0.9))
    assert good.shape == bad.shape and not np.array_equal(good, bad)
    red = [int(((image[..., 0] > 180) & (image[..., 1] < 80)).sum()) for image in (good, bad)]
    assert red[1] > red[0] + 1000


def test_the_way_to_go_is_the_strong_part_of_a_bar() -> None:
    plain = certificate(0.9)
    half = tuple(replace(concept, probe_to_go=0.45) for concept in plain.concepts)
    strong = [
        int((certificate_chart(proof)[..., :] == (197, 48, 48)).all(axis=2).sum())
        for proof in (plain, replace(plain, concepts=half))
    ]
    assert strong[1] == pytest.approx(strong[0] / 2, rel=0.02)


def test_a_concept_of_which_nothing_is_left_comes_last() -> None:
    """Its 0.0 is a measurement, and not a missing one."""
    (weak,) = certificate(0.3, name="weak").concepts
    gone = replace(weak, name="gone", probe_median=0.0, solved_median=0.9)
    orders = [
        certificate_chart(replace(certificate(0.3), concepts=concepts))
        for concepts in ((weak, gone), (weak, replace(gone, solved_median=0.0)))
    ]
    assert np.array_equal(*orders)


def test_a_thousand_concepts_stay_one_screen() -> None:
    assert certificate_chart(certificate(0.2, 1000)).shape[0] < 1200


def test_any_name_can_be_drawn() -> None:
    for name in ("葛飾北斎", "🤖" * 40, "a" * 300, "", "x\ny"):
        assert certificate_chart(certificate(0.5, name=name)).size > 0


def test_a_forecast_shows_its_first_names_and_none_at_all() -> None:
    many = Forecast(
        tuple(f"n{i}" for i in range(50)), tuple(0.5 - i / 100 for i in range(50)), tuple(range(50))
    )
    assert forecast_chart(many).shape[0] < 700
    assert forecast_chart(Forecast((), (), ())).size > 0


def test_every_plot_of_a_trade_off_has_the_same_numbers() -> None:
    from_curve = trade_off(curve(0.2))
    assert trade_off_from_json(asdict(curve(0.2))) == from_curve
    assert from_curve.reach == pytest.approx(0.3) and from_curve.chosen in from_curve.left
    assert from_curve.left[0] == from_curve.to_go[0] == (0.0, 1.0)
    assert max(drift for drift, _ in from_curve.left) > from_curve.reach
    assert max(drift for drift, _ in from_curve.visible(from_curve.left)) <= from_curve.reach
    page = curve_facts(asdict(curve(0.2)))
    assert page is not None and page["chosen"] == pytest.approx((0.08 / 0.3, 0.2))
    assert page["ticks"][-1] == (1.0, "30.0%")
