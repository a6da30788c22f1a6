"""Charts: bounded in size, different for different results, and able to show any built-in name."""

from __future__ import annotations

from dataclasses import asdict, replace

import measured
import numpy as np
import pytest

from speed_erase.speed_ops.certificate.certificate import Certificate
from speed_erase.speed_ops.certificate.forecast import Forecast
from speed_erase.speed_ops.report import chart
from speed_erase.speed_ops.report.chart import (
    certificate_chart,
    font_for,
    forecast_chart,
    missing_characters,
)
from speed_erase.speed_ops.report.html import curve_facts
from speed_erase.speed_ops.report.trade_off import round_ticks, trade_off, trade_off_from_json
from speed_erase.speed_ops.text.retain_set import builtin_retain, builtin_retain_sets

RED, INK = (197, 48, 48), (32, 36, 44)
BARS_START = 250


def certificate(left: float, count: int = 1, name: str = "Van Gogh") -> Certificate:
    return measured.certificate([measured.concept(f"{name} {i}", left) for i in range(count)])


def pixels(image: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    """Where an image has exactly this color: rows of (y, x)."""
    return np.argwhere((image == color).all(axis=2))


def test_the_chart_is_an_image_of_bytes() -> None:
    image = certificate_chart(certificate(0.1))
    assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    assert image.min() < 100 and image.max() == 255


@pytest.mark.parametrize("name", builtin_retain_sets())
def test_every_built_in_name_can_be_shown(name: str) -> None:
    text = "".join(sorted(set("".join(builtin_retain(name).names))))
    assert not missing_characters(text, font_for(text, 13))


def test_a_missing_character_would_be_found() -> None:
    assert missing_characters("a葛é", font_for("a", 13)) == {"葛"}


def test_greek_and_cyrillic_names_can_be_shown() -> None:
    for name in ("Ελ Γκρέκο", "Илья Репин", "Trần Văn Cẩn", "Ștefan Luchian", "→ … – “x”"):
        assert not missing_characters(name, font_for(name, 16))


@pytest.mark.parametrize("left", [0.1, 0.47, 0.49, 0.9])
def test_a_bar_ends_left_of_the_mark_where_the_concept_is_erased(left: float) -> None:
    proof = certificate(left)
    (concept,) = proof.concepts
    image = certificate_chart(replace(proof, drift=()))
    colors = {"erased": (38, 139, 96), "weakened": (214, 158, 46), "stands": RED}
    end = pixels(image, colors[concept.verdict])[:, 1].max()
    mark = min(x for y, x in pixels(image, INK) if y == 60 and x > BARS_START)
    assert (end < mark) == (concept.verdict == "erased")


def test_the_trade_off_is_below_with_the_chosen_point() -> None:
    plain = certificate_chart(certificate(0.1))
    high, low = (
        certificate_chart(replace(certificate(0.1), curve=measured.curve(n))) for n in (2, 30)
    )
    assert low.shape == high.shape and low.shape[0] > plain.shape[0] + 200
    dots = [pixels(image, RED) for image in (high, low)]
    assert all(len(dot) > 60 for dot in dots)
    assert dots[1][:, 0].mean() > dots[0][:, 0].mean() + 40
    unlimited = certificate_chart(replace(certificate(0.1), curve=measured.curve(2, None)))
    assert unlimited.shape == low.shape


def test_the_least_erased_concept_comes_first_and_a_perfect_one_last() -> None:
    weak, gone = measured.concept("weak", 0.3), measured.concept("gone", 0.0)
    proofs = (measured.certificate(pair) for pair in ((weak, gone), (gone, weak)))
    assert np.array_equal(*map(certificate_chart, proofs))


def test_a_thousand_concepts_stay_small() -> None:
    assert certificate_chart(certificate(0.2, 1000)).shape[0] < 1200


def test_letters_without_a_font_are_written_as_codes_and_never_as_boxes(monkeypatch) -> None:
    with_font = certificate_chart(certificate(0.5, name="葛飾北斎"))
    monkeypatch.setattr(chart, "_OTHER_FONTS", ())
    font = chart.font_for("葛飾北斎 Hokusai", 13)
    text = chart.readable("葛飾北斎 Hokusai", font)
    assert text == "\\u845b\\u98fe\\u5317\\u658e Hokusai" and not chart.missing_characters(
        text, font
    )
    without = certificate_chart(certificate(0.5, name="葛飾北斎"))
    plain = certificate_chart(certificate(0.5, name="Hokusai"))
    assert without.shape[0] > plain.shape[0], "a note about the codes"
    assert with_font.shape[0] in (plain.shape[0], without.shape[0])


def test_any_name_can_be_given() -> None:
    for name in ("葛飾北斎", "🤖" * 40, "a" * 300, "", "x\ny"):
        assert certificate_chart(certificate(0.5, name=name)).size > 0


def test_a_forecast_shows_its_first_names_and_none_at_all() -> None:
    many = Forecast(
        tuple(f"n{i}" for i in range(50)), tuple(0.5 - i / 100 for i in range(50)), tuple(range(50))
    )
    assert forecast_chart(many).shape[0] < 700
    assert forecast_chart(Forecast((), (), ())).size > 0


@pytest.mark.parametrize("reach", [0.02, 0.0999, 0.135, 0.3, 0.45, 1.0, 7.3])
def test_axes_end_at_the_first_round_value(reach: float) -> None:
    ticks = round_ticks(reach)
    step = ticks[1]
    assert 3 <= len(ticks) <= 6 and ticks[0] == 0 and ticks[-2] < reach <= ticks[-1] + 1e-9
    assert f"{step:e}"[0] in "125" and float(f"{step:.0e}") == pytest.approx(step)


@pytest.mark.parametrize(("chosen", "budget"), [(5, 0.45), (10, 0.45), (20, 0.45), (10, None)])
def test_every_plot_has_the_same_numbers_and_ends_near_its_content(
    chosen: int, budget: float | None
) -> None:
    curve = measured.curve(chosen, budget)
    plot = trade_off(curve)
    assert trade_off_from_json(asdict(curve)) == plot
    content = max(plot.chosen[0], plot.shown_budget or 0.0)
    assert content < plot.reach <= max(3 * content, 0.02)
    assert plot.left[0] == plot.to_go[0] == (0.0, 1.0)
    shown = plot.visible(plot.left)
    assert shown[-1][0] == pytest.approx(plot.reach) and plot.chosen in shown
    page = curve_facts(asdict(curve))
    assert page is not None and page["chosen"] == (plot.chosen[0] / plot.reach, plot.chosen[1])
    assert page["ticks"][-1][0] == 1.0 and float(page["ticks"][-1][1]) == plot.reach
