"""The summary never contradicts what was measured."""

from __future__ import annotations

import itertools

import measured
import pytest

from speed_erase.speed_ops.certificate.certificate import BARS, ConceptResult
from speed_erase.speed_ops.certificate.summary import LEVEL_WORDS, details, level_of, summarize
from speed_erase.speed_ops.certificate.verdicts import VERDICT_WORDS, decimals


@pytest.mark.parametrize("kind", BARS)
def test_a_concept_is_erased_where_its_score_is_at_most_one_and_nowhere_else(kind: str) -> None:
    shares = (0.0, 0.1, 0.2, 0.36, 0.48, 0.5, 0.8, 1.2)
    for solved, left, to_go in itertools.product(shares, shares, (None, *shares)):
        concept = ConceptResult("a", solved, solved, left, left, 0.0, kind, to_go)
        assert (concept.verdict == "erased") == (concept.score <= 1)


def test_the_most_affected_name_has_the_largest_drift() -> None:
    groups = [
        measured.drift("kept", 0.02, (("Monet", 0.04), ("Manet", 0.03))),
        measured.drift("held_out", 0.09, (("Posada", 0.5), ("Whiteread", 0.1))),
    ]
    summary = summarize(measured.certificate([measured.concept("a", 0.1)], groups))
    assert summary.side_effects is not None and summary.unlisted is not None
    assert summary.side_effects.most_affected[0] == ("Posada", max(g.maximum for g in groups))
    assert summary.protected is not None and summary.protected.most_affected[0][0] == "Monet"
    assert summary.side_effects.level == summary.unlisted.level == level_of(0.09)
    assert summary.side_effects.worst_level == "small"


def test_the_least_erased_concept_decides() -> None:
    concepts = [measured.with_verdict(name, name) for name in ("erased", "stands", "weakened")]
    summary = summarize(measured.certificate(concepts), ["art", "", "art"])
    assert summary.verdict == "stands" and summary.concepts[0][0].name == "stands"
    assert summary.counts == {"erased": 1, "stands": 1, "weakened": 1}
    lines = list(summary.lines())
    assert len(lines) == 4 and lines[0].endswith(VERDICT_WORDS["stands"])


def test_a_hundred_concepts_are_a_few_lines() -> None:
    many = measured.certificate([measured.concept(f"c{i}", 0.1) for i in range(100)])
    assert len(list(summarize(many).lines())) <= 8
    assert len(list(details(many))) > 100


def test_without_names_there_are_no_side_effects_to_show() -> None:
    summary = summarize(measured.certificate([measured.concept("a", 0.1)], ()))
    assert summary.side_effects is summary.protected is summary.unlisted is None


def test_levels_rise_with_drift() -> None:
    levels = [level_of(drift) for drift in (0.0, 0.099, 0.1, 0.299, 0.3, 0.599, 0.6, 2.0)]
    assert list(dict.fromkeys(levels)) == list(LEVEL_WORDS)


def test_a_number_shows_on_which_side_of_a_mark_it_is() -> None:
    assert [decimals(value, 0.1, 0.3) for value in (0.04, 0.098, 0.1, 0.0997)] == [
        *("0.04", "0.098", "0.10", "0.0997")
    ]
    for value in (0.9951, 0.9996, 1.004, 1.0004, 0.5, 1.0):
        shown = float(decimals(value, 1.0))
        assert (shown > 1, shown < 1) == (value > 1, value < 1)
