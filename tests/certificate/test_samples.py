"""The sample that a certificate measures: fair, the same every time, and everything where there is
little.
"""

from __future__ import annotations

import torch

from speed_erase.speed_ops import Rows
from speed_erase.speed_ops.certificate.measure import (
    MAX_NAME_ROWS,
    MEASURED_ROWS,
    MIN_CONCEPT_ROWS,
    sample_names,
    sample_pairs,
    thinned,
)


def rows(counts: list[tuple[int, int]]) -> Rows:
    """Names with (bare rows, rows in prompts); each row holds its own number."""
    groups = tuple(i for i, (bare, inside) in enumerate(counts) for _ in range(bare + inside))
    flags = tuple(flag for bare, inside in counts for flag in (False,) * bare + (True,) * inside)
    values = torch.arange(len(groups), dtype=torch.float64)[:, None].expand(-1, 3)
    return Rows(values, groups, tuple(f"name {i}" for i in range(len(counts))), flags)


def test_a_small_problem_is_measured_whole():
    small = rows([(1, MAX_NAME_ROWS)] * 5)
    names, places = sample_names(small, 0)
    assert torch.equal(names.values, small.values) and places.tolist() == list(
        range(len(small.values))
    )
    assert sample_pairs(small, small)[0] is small


def test_places_lead_to_the_rows_that_were_taken():
    for given in (
        rows([(1, 30)] * 40 + [(1, 0)] * 500),
        rows([(1, 0)] * 900),
        rows([(1, 30)] * 300),
    ):
        names, places = sample_names(given, 3)
        assert torch.equal(names.values[:, 0], places.to(torch.float64))
        assert MEASURED_ROWS <= len(places) < MEASURED_ROWS + 2 * (MAX_NAME_ROWS + 1)
        again, _ = sample_names(given, 3)
        assert again.names == names.names and sample_names(given, 4)[0].names != names.names


def test_half_of_the_rows_are_of_names_in_prompts():
    names, _ = sample_names(rows([(1, 30)] * 40 + [(1, 0)] * 500), 0)
    inside = {group for group, flag in zip(names.groups, names.in_context, strict=True) if flag}
    of_those = sum(group in inside for group in names.groups)
    assert abs(of_those - MEASURED_ROWS / 2) <= MAX_NAME_ROWS + 1


def test_a_name_gives_rows_from_its_first_to_its_last():
    found, places = thinned(rows([(1, 40)]))
    assert len(places) == 1 + MAX_NAME_ROWS
    assert places[1] == 1 and places[-1] >= 35 and found.in_context.count(True) == MAX_NAME_ROWS


def test_every_concept_is_measured_however_many_there_are():
    many = rows([(0, 12)] * 300)
    targets, anchors = sample_pairs(many, many)
    assert targets.groups == anchors.groups
    assert all(targets.groups.count(i) == MIN_CONCEPT_ROWS for i in range(300))
