"""The certificate tells the truth: also, and above all, where an edit did not do what it was made
for.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from problems import embeddings, row_set, solve

from speed_erase.speed_ops import EraseSettings, Rows
from speed_erase.speed_ops.certificate import measure
from speed_erase.speed_ops.certificate.certificate import (
    BARS,
    MAX_HEADER_WARNINGS,
    score_of,
    verdict_of,
)
from speed_erase.speed_ops.certificate.forecast import forecast
from speed_erase.speed_ops.certificate.summary import details, summarize
from speed_erase.speed_ops.errors import Notice

WIDTH, TEMPLATES, NAMES = 256, 6, 30


class Language:
    """A toy causal encoder: a row is a common part, the name's own part and, in context, the
    template's way with it.
    """

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.common = embeddings(1, WIDTH, self.generator)
        # Each position of a prompt carries the name in directions of its own: what a bare row
        # cannot show.
        self.positions = [self._turn() for _ in range(4)]
        self.templates = [0.1 * self._rows(1) for _ in range(2 * TEMPLATES)]

    def _rows(self, count: int) -> torch.Tensor:
        return torch.randn(count, WIDTH, generator=self.generator, dtype=torch.float64)

    def _turn(self) -> torch.Tensor:
        return torch.linalg.qr(self._rows(WIDTH))[0]

    def words(self, count: int) -> torch.Tensor:
        """`count x d`: what makes each name: a few traits that names share, and something of its
        own.
        """
        return self._rows(count) * (torch.arange(WIDTH) < 12) + 0.15 * self._rows(count)

    def bare(self, word: torch.Tensor) -> torch.Tensor:
        return self.common + word[None]

    def context(self, word: torch.Tensor, templates: range) -> torch.Tensor:
        return torch.cat(
            [
                self.common + self.templates[t] + word[None] @ turn
                for t in templates
                for turn in self.positions
            ]
        )


def grouped(words: torch.Tensor, names: list[str], make, in_context: bool) -> Rows:
    parts = [make(word) for word in words]
    groups = tuple(i for i, part in enumerate(parts) for _ in part)
    return Rows(torch.cat(parts), groups, tuple(names), (in_context,) * len(groups))


@pytest.fixture(scope="module")
def world():
    language = Language()
    weights = {
        f"layer{i}": torch.randn(o, WIDTH, generator=language.generator).double()
        for i, o in enumerate((64, 128))
    }
    targets, anchor, kept = language.words(2), language.words(1)[0], language.words(NAMES)
    names, kept_names = ["one", "two"], [f"kept {i}" for i in range(NAMES)]
    seen, unseen = range(TEMPLATES), range(TEMPLATES, 2 * TEMPLATES)

    def rows(words, labels, templates=None):
        if templates is None:
            return grouped(words, labels, language.bare, False)
        return grouped(words, labels, lambda word: language.context(word, templates), True)

    anchors = anchor[None].expand(2, -1)
    invariants = language.common.expand(5, -1) + 0.01 * language._rows(5)
    return {
        "weights": weights,
        "invariants": invariants,
        "bare": (rows(targets, names), rows(anchors, names), rows(kept, kept_names)),
        "context": (
            rows(targets, names, seen),
            rows(anchors, names, seen),
            rows(kept, kept_names, seen),
        ),
        "probes": (rows(targets, names, unseen), rows(anchors, names, unseen)),
    }


def run(world, which: str, settings: EraseSettings, probes: bool = True):
    targets, anchors, retain = world[which]
    return solve(
        world["weights"],
        targets,
        anchors,
        retain,
        world["invariants"],
        settings,
        probes=world["probes"] if probes else None,
    )


PAPER = EraseSettings(threshold=1e-2, lam=0.01)


def verdict(solved, probed, kind="", to_go=None):
    return verdict_of(score_of(solved, probed, kind, to_go), kind)


def codes(certificate):
    return {notice.code for notice in certificate.warnings}


def test_the_papers_single_row_is_not_called_erased_where_the_target_stands_in_context(world):
    certificate = run(world, "bare", PAPER).certificate
    for concept in certificate.concepts:
        assert concept.solved_median < 0.05, "on its own rows the edit looks perfect"
        assert concept.probe_median > 0.7 and concept.verdict == "stands"
    assert "bare_names_only" in codes(certificate)
    summary = summarize(certificate)
    assert summary.verdict == "stands" and summary.why.code == "bare_names_only"
    assert summary.advice[0] == "use_auto"


def test_rows_in_context_on_both_sides_are_erased_and_say_so(world):
    settings = EraseSettings(
        rows="context", threshold=1e-2, lam=1e-3, ipf=False, dpa=False, rows_per_concept=24
    )
    certificate = run(world, "context", settings).certificate
    assert [concept.verdict for concept in certificate.concepts] == ["erased", "erased"]
    assert not codes(certificate) & {"bare_names_only", "settings_too_weak"}
    summary = summarize(certificate)
    assert summary.verdict == "erased" and summary.why is None
    assert all(concept.score <= 1 for concept, _ in summary.concepts)


def test_without_unseen_contexts_nothing_is_proven(world):
    certificate = run(world, "bare", PAPER, probes=False).certificate
    assert {concept.verdict for concept in certificate.concepts} == {"unproven"}
    assert summarize(certificate).verdict == "unproven"
    assert {concept.score for concept in certificate.concepts} == {None}
    assert verdict(0.0, None) == "unproven" and verdict(0.9, 0.1) == "stands"
    assert verdict(0.1, None, "style", 0.0) == "unproven"


@pytest.mark.parametrize("kind", BARS)
def test_a_concept_whose_way_is_gone_counts_as_erased_whatever_went_astray(kind):
    bars = BARS[kind]
    assert verdict(0.0, 0.9, kind, bars.arrived) == "erased"
    assert verdict(0.0, 0.9, kind, bars.arrived + 0.01) != "erased"
    assert verdict(0.0, 0.9, kind) == "stands"
    assert verdict(0.0, bars.erased, kind, bars.erased) == "erased"


def test_going_beyond_the_anchor_leaves_no_more_of_the_target(world):
    """Only the way straight on is free: what goes astray counts, and falling short counts as
    before.
    """
    targets, anchors, _ = world["bare"]
    for aim in (0.5, 1.0, 1.5):
        erasure = run(world, "bare", PAPER.replace(overshoot=aim))
        layers = []
        for key, weight in world["weights"].items():
            wanted = (anchors.values - targets.values) @ weight.T
            got = targets.values @ erasure.delta(key).T
            along = (got * wanted).sum(dim=1, keepdim=True) / wanted.square().sum(
                dim=1, keepdim=True
            )
            left = along.clamp(max=1) * wanted + (got - along * wanted) - wanted
            layers.append(left.norm(dim=1) / wanted.norm(dim=1))
        for i, concept in enumerate(erasure.certificate.concepts):
            assert concept.solved_median == pytest.approx(
                float(torch.stack(layers)[:, i].median()), rel=1e-6, abs=1e-6
            )
            assert (concept.solved_median > 0.4) == (aim == 0.5)


def test_what_is_left_is_way_to_go_and_what_went_astray():
    source = torch.Generator().manual_seed(0)
    wanted = torch.randn(3, 8, generator=source, dtype=torch.float64)
    aside = torch.randn(3, 8, generator=source, dtype=torch.float64)
    size = wanted.square().sum(dim=1)
    aside -= (aside * wanted).sum(dim=1, keepdim=True) / size[:, None] * wanted
    # short of the anchor, beside it, beyond it
    ahead = torch.tensor([0.3, 0.0, -0.2], dtype=torch.float64)
    left, to_go = measure.residuals(wanted, aside - ahead[:, None] * wanted)
    assert torch.allclose(to_go, size * ahead.clamp(min=0).square())
    assert torch.allclose(left, to_go + aside.square().sum(dim=1))


def test_residual_and_drift_are_what_they_say(world):
    """Recomputed from the dense edit, in the open."""
    erasure = run(world, "bare", PAPER.replace(held_out=0.2))
    targets, anchors, retain = world["bare"]
    left, moved = [], []
    for key, weight in world["weights"].items():
        edited = weight + erasure.delta(key)
        wanted = (anchors.values - targets.values) @ weight.T
        missing = targets.values @ edited.T - anchors.values @ weight.T
        left.append(missing.norm(dim=1) / wanted.norm(dim=1))
        drift = (retain.values @ erasure.delta(key).T).norm(dim=1) / (
            retain.values @ weight.T
        ).norm(dim=1)
        moved.append(drift)
    table = torch.stack(left)
    for i, concept in enumerate(erasure.certificate.concepts):
        assert concept.solved_worst == pytest.approx(float(table[:, i].max()), abs=1e-6)
        assert concept.solved_median == pytest.approx(float(table[:, i].median()), abs=1e-6)
    drifts = {(part.group, part.where): part for part in erasure.certificate.drift}
    aside = drifts["held_out", "bare"]
    by_name = dict(zip(retain.names, torch.stack(moved).median(dim=0).values.tolist(), strict=True))
    assert aside.names == round(0.2 * NAMES)
    for name, value in aside.worst:
        assert value == pytest.approx(by_name[name], rel=1e-4)
    in_solve = drifts["kept", "bare"].names
    assert (
        in_solve <= NAMES - aside.names and drifts["filtered", "bare"].names <= NAMES - aside.names
    )
    assert aside.maximum >= aside.p95 >= aside.median > 0
    for part in erasure.certificate.drift:
        assert part.maximum == part.worst[0][1], "the most affected name has the maximum"


def test_held_out_names_are_really_held_out(world):
    """The same seed sets the same names aside, and the solve equals one that never had them."""
    settings = PAPER.replace(held_out=0.3, ipf=False, dpa=False)
    erasure = run(world, "bare", settings)
    targets, anchors, retain = world["bare"]
    aside = {
        name
        for part in erasure.certificate.drift
        if part.group == "held_out"
        for name, _ in part.worst
    }
    assert len(aside) == 9
    rest = retain.take_concepts([i for i, name in enumerate(retain.names) if name not in aside])
    without = solve(
        world["weights"],
        targets,
        anchors,
        rest,
        world["invariants"],
        settings.replace(held_out=0.0),
    )
    for key in erasure:
        assert torch.allclose(erasure.delta(key), without.delta(key), atol=1e-10)


def test_invariants_are_reported_row_by_row(world):
    exact = run(world, "bare", PAPER.replace(invariants="span")).certificate
    loose = run(world, "bare", PAPER.replace(iec=False)).certificate
    assert (
        len(exact.null_text_drift) == 4
        and max(exact.null_text_drift) < 1e-9
        and exact.sot_drift < 1e-9
    )
    assert max(loose.null_text_drift) > 1e-6, "negative control"


def test_a_retain_name_that_fights_the_target_is_named(world):
    targets, anchors, retain = world["bare"]
    close = torch.cat([retain.values, targets.values[:1] + 1e-3])
    names = (*retain.names, "almost one")
    rows = Rows(close, tuple(range(len(names))), names, (False,) * len(names))
    certificate = solve(
        world["weights"], targets, anchors, rows, world["invariants"], PAPER
    ).certificate
    (rival,) = (notice for notice in certificate.warnings if notice.code == "rival")
    assert (rival.data["name"], rival.data["concept"]) == ("almost one", "one")
    assert "rival" not in codes(run(world, "bare", PAPER).certificate)


def test_a_nearly_full_null_space_is_said(world):
    targets, anchors, _ = world["bare"]
    many = embeddings(WIDTH - 10, WIDTH, torch.Generator().manual_seed(1))
    settings = EraseSettings(threshold=1e-12, ipf=False, dpa=False)
    tight = solve(
        world["weights"], targets, anchors, many, world["invariants"], settings
    ).certificate
    assert tight.layers[0].room == 10
    (full,) = (notice for notice in tight.warnings if notice.code == "null_space_full")
    assert full.data["room"] == 10


def test_it_serialises(world):
    certificate = run(world, "context", EraseSettings(rows="context", held_out=0.1)).certificate
    whole = json.loads(json.dumps(certificate.to_json()))
    assert whole["concepts"][0]["name"] == "one" and len(whole["layers"]) == 2
    assert whole["settings"]["held_out"] == 0.1
    assert {"prepare", "prior filter", "null space", "closed form", "certificate"} <= set(
        whole["seconds"]
    )
    short = json.dumps(certificate.short())
    assert json.loads(short)["layers"] == 2 and len(short) < len(json.dumps(whole))
    assert len(list(details(certificate))) < 20


def test_a_header_holds_so_many_warnings_and_counts_the_rest(world):
    certificate = run(world, "bare", PAPER).certificate
    many = replace(
        certificate,
        warnings=tuple(Notice(f"{i}", code="rival") for i in range(MAX_HEADER_WARNINGS + 7)),
    )
    short = many.short()["warnings"]
    assert (
        len(short) == MAX_HEADER_WARNINGS + 1
        and short[-1]["code"] == "more_warnings"
        and short[-1]["data"] == {"count": 7}
    )
    kept = certificate.short()["warnings"]
    assert kept == [notice.to_json() for notice in certificate.warnings]


def test_bare_and_context_rows_of_one_name_are_reported_apart(world):
    (targets, anchors, bare), context = world["bare"], world["context"][2]
    both = Rows(
        torch.cat([bare.values, context.values]),
        bare.groups + context.groups,
        bare.names,
        bare.in_context + context.in_context,
    )
    certificate = solve(
        world["weights"], targets, anchors, both, world["invariants"], PAPER.replace(ipf=False)
    ).certificate
    assert {(part.group, part.where) for part in certificate.drift} == {
        ("kept", "bare"),
        ("kept", "context"),
    }


def test_adversarial_rounds_report_a_falling_leak(world):
    settings = EraseSettings(
        threshold=1e-2, lam=0.01, ipf=False, dpa=False, adversarial_rounds=3, adversarial_reg=1e-3
    )
    rounds = run(world, "bare", settings).certificate.rounds
    assert rounds[0].number == 0 and len(rounds) >= 2
    assert rounds[-1].mean_leak < rounds[0].mean_leak
    assert all(0 <= turn.mean_leak <= turn.worst_leak <= 1 for turn in rounds)


def test_rounds_stop_when_the_leak_no_longer_falls(world):
    """A ridge so strong that no embedding leaks: the first look ends it."""
    settings = EraseSettings(ipf=False, dpa=False, adversarial_rounds=10, adversarial_reg=1e3)
    erasure = run(world, "bare", settings)
    assert len(erasure.certificate.rounds) == 2
    # The round that changed nothing is dropped with its rank: the edit is the one before it.
    plain = run(world, "bare", settings.replace(adversarial_rounds=0))
    assert [turn.kept for turn in erasure.certificate.rounds] == [True, False]
    for key, edit in plain.items():
        assert erasure[key].rank == edit.rank and torch.equal(erasure.delta(key), edit.delta())


def test_the_forecast_names_what_an_unprotected_edit_would_move(world):
    """Names and shifts are those of the dense eq. 5, worst first."""
    targets, anchors, retain = world["bare"]
    weights = {"layer1": world["weights"]["layer1"]}
    ahead = forecast(weights, row_set(targets, anchors, retain))
    weight = weights["layer1"].numpy()
    delta = oracle.delta_erase(
        weight, targets.values.numpy().T, anchors.values.numpy().T, np.full(2, 0.5)
    )
    columns = retain.values.numpy().T
    shift = np.linalg.norm(delta @ columns, axis=0) / np.linalg.norm(weight @ columns, axis=0)
    assert list(ahead.order) == np.argsort(-shift).tolist()
    assert np.allclose(ahead.shifts, np.sort(shift)[::-1], rtol=1e-5)
    assert ahead.names[0] == retain.names[ahead.order[0]] and ahead.shifts[0] > ahead.shifts[-1]
