"""Erasing from the small world: its rows, its methods and its measures; and the whole thing in
short in ComfyUI.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from speed_erase.benchmarks.world.matrix import full_jobs, method_named, quick_jobs, sweep_jobs
from speed_erase.benchmarks.world.measures import (
    frechet,
    harmonic,
    image_change,
    judged,
    spearman,
    value_measures,
    wilson,
)
from speed_erase.benchmarks.world.methods import BARE, BOTH, METHODS, TARGETS
from speed_erase.benchmarks.world.rows import RowChoice, build, filled, retained_names
from speed_erase.benchmarks.world.tasks import HALF, TASKS, first_painters, neighbours
from speed_erase.benchmarks.world.text_encoder import LENGTH, padded, tokens
from speed_erase.benchmarks.world.truth import truth
from speed_erase.benchmarks.world.world import NIGHT_PHRASES, PAINTERS, STYLES
from speed_erase.speed_ops.text.tokens import Position

WIDTH = 256


class FakeText:
    """A causal encoder without weights: a row is the mean of random vectors of the tokens so far,
    its place added.
    """

    def token_ids(self, text: str) -> list[int]:
        return tokens(text)

    def rows(self, texts: Sequence[str]) -> torch.Tensor:
        return torch.stack([self._prompt(text) for text in texts])

    def _prompt(self, text: str) -> torch.Tensor:
        own = torch.stack([_vector(f"token {token}") for token in padded(text)])
        counted = own.cumsum(0) / torch.arange(1, LENGTH + 1)[:, None] ** 0.5
        places = torch.stack([_vector(f"place {place % 5}") for place in range(LENGTH)])
        return torch.nn.functional.normalize(counted + 0.3 * places, dim=1) * WIDTH**0.5


_KNOWN: dict[str, torch.Tensor] = {}


def _vector(name: str) -> torch.Tensor:
    if name not in _KNOWN:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
        _KNOWN[name] = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))
    return _KNOWN[name]


TEXT = FakeText()


def _weights() -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    return {key: torch.randn(40, WIDTH, generator=source) * 0.1 for key in ("a", "b")}


def test_a_filled_template_knows_where_the_words_end() -> None:
    prompt = filled("{painter}'s painting of a {subject}", "painter", "Orla Venn", subject="cup")
    assert (
        prompt.text == "Orla Venn's painting of a cup"
        and prompt.text[: prompt.subject_end] == "Orla Venn"
    )
    gone = filled("a {subject} {night}", "night", "", subject="cup")
    assert gone.text == "a cup" and gone.subject_end == 5


def test_rows_pair_off_and_probes_are_unseen() -> None:
    targets = TASKS["three"].targets
    rows = build(TEXT, targets, BOTH)
    assert rows.targets.names == tuple(t.words for t in targets)
    assert (
        rows.targets.groups == rows.anchors.groups
        and rows.targets.values.shape == rows.anchors.values.shape
    )
    assert rows.probes[0].names == rows.targets.names and set(rows.probes[0].groups) == {0, 1, 2}
    assert torch.cdist(rows.probes[0].values, rows.targets.values).min() > 1e-3
    assert rows.invariants.shape == (LENGTH, WIDTH)
    names = {words for words, _ in retained_names(targets)}
    assert (
        not names & {t.words for t in targets}
        and {p.name for p in PAINTERS} - {t.words for t in targets} <= names
    )
    assert set(rows.retain.names) == names


def test_each_side_is_chosen_alone() -> None:
    targets = TASKS["one"].targets
    bare, half, both = (build(TEXT, targets, choice) for choice in (BARE, TARGETS, BOTH))
    assert len(bare.targets.values) == 1 and len(bare.retain.values) == len(bare.retain.names)
    assert not any(bare.targets.in_context) and torch.equal(half.retain.values, bare.retain.values)
    assert torch.equal(half.targets.values, both.targets.values) and any(both.retain.in_context)
    fewer = build(TEXT, targets, RowChoice(positions=Position.EOS, templates=2))
    assert len(fewer.targets.values) < len(both.targets.values)


def test_the_implicit_concept_takes_all_rows_and_an_empty_anchor() -> None:
    (target,) = TASKS["implicit"].targets
    assert target.anchor == "" and not set(NIGHT_PHRASES[2:]) & set(target.also)
    rows = build(TEXT, (target,), BARE)
    assert len(rows.targets.values) > 2 * (LENGTH - 10)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_edits_and_stays_finite(name: str) -> None:
    method, weights = METHODS[name], _weights()
    edited = method.edit(weights, build(TEXT, TASKS["one"].targets, method.rows))
    moved = [not torch.equal(edited.weights[key], weights[key]) for key in weights]
    assert set(edited.weights) == set(weights) and all(
        torch.isfinite(w).all() for w in edited.weights.values()
    )
    assert not any(moved) if name == "none" else all(moved)
    if name.startswith("oce"):
        for key, weight in weights.items():
            assert torch.allclose(
                edited.weights[key].T @ edited.weights[key], weight.T @ weight, atol=1e-4
            )


def test_the_weights_tell_erased_from_kept() -> None:
    task, weights = TASKS["one"], _weights()
    questions = task.questions(12)
    scores = {}
    for name in ("none", "speed_few", "both"):
        method = METHODS[name]
        after = method.edit(weights, build(TEXT, task.targets, method.rows)).weights
        scores[name] = value_measures(TEXT, task.targets, questions, weights, after)
    assert scores["none"]["residual"] == pytest.approx(1) and scores["none"]["drift"] == 0
    assert scores["both"]["residual"] < 0.9 * scores["speed_few"]["residual"]
    assert scores["both"]["empty_drift"] < 1e-4


def test_questions_are_fixed_and_keep_the_sides_apart() -> None:
    for task in (*TASKS.values(), first_painters(8)):
        asked = task.questions(24)
        assert asked == task.questions(24)
        erased = {target.words for target in (*task.targets, *task.then)}
        assert not any(
            q.prompt.style in erased or q.prompt.subject in erased
            for q in asked
            if q.role == "kept"
        )
        assert {q.role for q in asked} >= {"erased", "kept"}
    assert {p.group for p in PAINTERS if p.name in HALF} == {
        "ember",
        "tide",
        "moss",
        "plum",
    } and len(HALF) == 6
    assert "Dario Fenwick" in neighbours("Orla Venn") and "Kaya Brandt" in neighbours("Orla Venn")


def test_the_matrix_names_every_run_once() -> None:
    jobs = [(task.name, method.name) for task, method in full_jobs()]
    assert len(jobs) == len(set(jobs)) and {(t.name, m.name) for t, m in quick_jobs()} <= set(jobs)
    points = [(job.task.name, job.method.name) for job in sweep_jobs()]
    assert len(points) == len(set(points))
    assert method_named("both.lam-1").settings["lam"] == 1.0


def test_a_weaker_edit_has_its_own_certificate() -> None:
    rows, weights = build(TEXT, TASKS["one"].targets, BOTH), _weights()
    left = [
        method_named(name).edit(weights, rows).certificate.concepts[0].probe_median
        for name in ("both.aim-0.3", "both.aim-0.8", "both")
    ]
    assert 1 > left[0] > left[1] > left[2]


def test_a_perfect_erasure_would_be_told_the_anchor() -> None:
    """Every erased prompt is reworded, nothing else is, and nothing of the target's name is left in
    it.
    """
    for name in ("three", "subject", "implicit", "again"):
        task = TASKS[name]
        words = {w for target in (*task.targets, *task.then) for w in (target.words, *target.also)}
        words |= set(NIGHT_PHRASES) if name == "implicit" else set()
        for question in task.questions(12):
            told = task.anchored(question.prompt)
            assert (told != question.prompt.text) == (question.role != "kept")
            assert question.role == "kept" or not any(w in told for w in words)


def test_what_chance_brings_back_is_not_held_against_the_certificate() -> None:
    runs = [
        {"task": "subject", "method": "none", "floor": {"tower": 0.2}, "acc_r": 1.0},
        *(
            {
                "task": "subject",
                "method": method,
                "certificate": {"by_concept": {"tower": ["erased", 0.2]}},
                "by_concept": {"tower": seen},
            }
            for method, seen in (("auto", 0.25), ("both", 0.35))
        ),
    ]
    found = truth(runs)
    assert found is not None
    assert [case.method for case in found.wrong] == ["both"]


def test_harmonic_mean_ranks_and_intervals() -> None:
    assert (
        harmonic(0.0, 1.0) == 1.0
        and harmonic(1.0, 1.0) == 0.0
        and harmonic(0.5, 0.5) == pytest.approx(0.5)
    )
    assert spearman([1, 2, 3, 4], [10, 20, 30, 90]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert np.isnan(spearman([1, 1, 1], [1, 2, 3]))
    low, high = wilson(1.0, 24)
    assert 0.8 < low < high <= 1.0


def test_frechet_distance_is_zero_for_the_same_and_grows() -> None:
    source = torch.Generator().manual_seed(0)
    features = torch.randn(300, 6, generator=source)
    assert frechet(features, features) == pytest.approx(0, abs=1e-6)
    assert frechet(features, features + 2) == pytest.approx(24, rel=1e-6)
    assert frechet(features, 3 * features) > 5


def test_the_judge_is_heard_and_changes_are_split() -> None:
    task = TASKS["one"]
    questions = task.questions(12)
    truth = torch.tensor([STYLES.index(q.prompt.style) for q in questions])
    erased = torch.tensor([q.role == "erased" for q in questions])

    class Fake:
        def judge(self, pictures: torch.Tensor) -> SimpleNamespace:
            seen = torch.where(pictures[:, 0, 0, 0] > 0, truth, torch.zeros_like(truth))
            blank = torch.zeros(len(seen), dtype=torch.long)
            return SimpleNamespace(
                style=seen, subject=blank, night=blank, features=pictures.flatten(1)[:, :5]
            )

    before = torch.full((len(questions), 3, 12, 12), 0.5)
    after = torch.where(erased[:, None, None, None], -before, before)
    scores = judged(Fake(), questions, after, before)
    assert (scores["acc_e"], scores["acc_r"], scores["h_o"]) == (0.0, 1.0, 1.0)
    assert scores["became"][0] == ("plain", int(erased.sum()))
    assert judged(Fake(), questions, before, before)["acc_e"] == 1.0, (
        "the negative control: nothing was erased"
    )
    change = image_change(questions, before, after)
    assert (
        change["erased"] == pytest.approx(1.0)
        and change["near"] == change["far"] == change["plain"] == 0.0
    )
