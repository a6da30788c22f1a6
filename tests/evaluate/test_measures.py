"""The mathematics of an evaluation against formulas written differently, and verdicts at their
edges.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speed_erase.speed_ops.evaluate import measures


def by_square_root(one: np.ndarray, other: np.ndarray) -> float:
    """The Frechet distance as it is written in papers: a square root of the product of the
    covariances.
    """
    linalg = pytest.importorskip("scipy.linalg")
    first, second = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    root = np.real(linalg.sqrtm(first @ second))
    return float(((one.mean(0) - other.mean(0)) ** 2).sum() + np.trace(first + second - 2 * root))


@pytest.mark.parametrize(("count", "width"), [(400, 6), (60, 24)])
def test_the_frechet_distance_is_that_of_the_papers(count, width):
    rng = np.random.default_rng(3)
    one = rng.normal(size=(count, width)) @ rng.normal(size=(width, width))
    other = 0.7 * rng.normal(size=(count + 9, width)) @ rng.normal(size=(width, width)) + 1
    found = measures.frechet(one, other)
    assert found is not None and found.value == pytest.approx(by_square_root(one, other), rel=1e-6)
    assert found.count == count and found.low is None


def test_the_frechet_distance_with_fewer_pictures_than_features():
    """There the root of the product is what libraries get wrong; along the axes one can say what is
    right.
    """
    one, other = np.zeros((3, 50)), np.zeros((3, 50))
    one[:, 0], other[:, 0], other[:, 1] = [-1, 0, 1], [-2, 0, 2], 5
    found = measures.frechet(one, other)
    assert found is not None and found.value == pytest.approx(25 + (1 - 2) ** 2)
    same = measures.frechet(one, one)
    assert same is not None and same.value == pytest.approx(0, abs=1e-12)
    assert measures.frechet(one[:1], other) is None


def test_wilson_against_its_published_example():
    found = measures.share(81, 263)  # Newcombe 1998, method 3
    assert found is not None and found.interval == "wilson"
    assert (round(found.low, 4), round(found.high, 4)) == (0.2553, 0.3662)
    assert measures.share(0, 0) is None


@given(st.integers(1, 300).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_wilson_holds_its_value_and_stays_inside(pair):
    found = measures.share(*pair)
    assert found is not None and 0 <= found.low <= found.value <= found.high <= 1
    assert found.high > found.low


def test_bootstrap_is_the_same_every_time_and_covers_the_mean():
    values = np.random.default_rng(0).normal(5, 2, 200)
    first, second = measures.mean(values), measures.mean(values)
    assert first == second and first is not None and first.interval == "bootstrap"
    width = 2 * 1.96 * values.std() / np.sqrt(200)
    assert first.low < values.mean() < first.high and first.high - first.low == pytest.approx(
        width, rel=0.15
    )
    single = measures.mean([3.0])
    assert single is not None and single.value == 3 and single.low is None


def test_the_paper_s_harmonic_mean():
    """Rows of the paper's Table 2: Acc_e, Acc_r, H_o."""
    for erased, kept, overall in ((1.81, 89.09, 93.42), (60.76, 77.89, 52.19), (0.0, 20.92, 34.60)):
        assert 100 * measures.harmonic(erased / 100, kept / 100) == pytest.approx(overall, abs=0.02)
    assert measures.harmonic(1, 0.9) == 0 and measures.harmonic(0.1, 0) == 0
    found = measures.harmonic_measure([False] * 98 + [True] * 2, [True] * 90 + [False] * 10)
    assert found is not None and found.low < found.value < found.high
    assert measures.harmonic_measure([], [True]) is None


def test_faulty_frames_are_told_apart():
    picture = np.random.default_rng(0).integers(0, 255, (16, 16, 3)).astype(np.uint8)
    black = np.full((16, 16, 3), 3, np.uint8)
    assert measures.frame_state(picture) == "fine"
    assert measures.frame_state(black) == "black"
    assert measures.frame_state(np.full((16, 16, 3), 90, np.uint8)) == "flat"
    assert measures.frame_state(black, finite=False) == "not finite"


@pytest.mark.parametrize(
    ("before", "after", "erased", "kept"),
    [
        ("1111", "0000", "erased", "damaged"),
        ("1111", "1000", "erased", "damaged"),
        ("1111", "1100", "leaking", "preserved"),
        # what the original did not show proves nothing either way
        ("1100", "0011", "erased", "damaged"),
        ("0000", "1111", "unclear", "unclear"),
    ],
)
def test_verdicts_count_pictures_that_showed_it_before(before, after, erased, kept):
    sides = [[one == "1" for one in text] for text in (before, after)]
    assert measures.verdict_on_recognition("erase", *sides) == erased
    assert measures.verdict_on_recognition("keep", *sides) == kept


def test_drift_damages_from_its_bar_on():
    assert measures.verdict_on_drift([0.1, 0.2]) == "preserved"
    assert measures.verdict_on_drift([0.2, 0.3]) == "damaged"
    assert measures.verdict_on_drift([]) == "unclear"
