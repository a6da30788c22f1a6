"""What the edit guarantees, whatever the problem."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make, solve

from speed_erase.speed_ops import EraseSettings, Rows, apply_edits, merge
from speed_erase.speed_ops.engine.edits import LayerEdit
from speed_erase.speed_ops.engine.null_space import (
    KeptSpan,
    empty_span,
    span_of_gram,
    span_of_moment,
)
from speed_erase.speed_ops.engine.prior import smallest_directions

problems = st.builds(
    make,
    width=st.integers(16, 48),
    concepts=st.integers(1, 5),
    retain=st.integers(0, 60),
    seed=st.integers(0, 10**6),
    invariants=st.integers(1, 4),
)
switches = st.builds(
    EraseSettings,
    ipf=st.booleans(),
    dpa=st.booleans(),
    iec=st.booleans(),
    invariants=st.sampled_from(["paper", "span"]),
    threshold=st.sampled_from([0.02, 0.1, 0.5]),
    lam=st.sampled_from([1e-3, 0.05, 1.0]),
    augmentations=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
several = settings(max_examples=40, deadline=None)


def outputs(rows: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    return rows @ delta.T


@several
@given(problems, switches)
def test_rank_is_the_number_of_concepts(problem, chosen):
    erasure = solve(*problem.args(), chosen)
    for key in problem.weights:
        assert torch.linalg.matrix_rank(erasure.delta(key), rtol=1e-9) <= len(problem.targets)
        assert erasure[key].rank == len(problem.targets)


@several
@given(problems, switches)
def test_invariants_keep_their_outputs(problem, chosen):
    """(delta) C2 = 0 to 1e-9; and without the constraint it is not, so the test can fail."""
    erasure = solve(*problem.args(), chosen.replace(iec=True, invariants="span"))
    free = solve(*problem.args(), chosen.replace(iec=False, ipf=False, dpa=False, threshold=1e6))
    for key, weight in problem.weights.items():
        size = outputs(problem.invariants, weight).norm()
        assert outputs(problem.invariants, erasure.delta(key)).norm() < 1e-9 * size
        assert outputs(problem.invariants, free.delta(key)).norm() > 1e-6 * size


@several
@given(problems)
def test_retain_rows_inside_the_kept_span_do_not_move(problem):
    """A retain set that spans little is kept exactly; the targets still move."""
    retain = problem.retain[:5]
    chosen = EraseSettings(ipf=False, dpa=False, threshold=1e-9, lam=0.01)
    if len(retain):
        erasure = solve(
            problem.weights, problem.targets, problem.anchors, retain, problem.invariants, chosen
        )
        for key, weight in problem.weights.items():
            delta = erasure.delta(key)
            assert outputs(retain, delta).norm() < 1e-9 * outputs(retain, weight).norm()
            assert (
                outputs(problem.targets, delta).norm()
                > 1e-4 * outputs(problem.targets, weight).norm()
            )


@several
@given(problems, switches)
def test_a_target_that_is_its_anchor_is_left_alone(problem, chosen):
    erasure = solve(
        problem.weights,
        problem.targets,
        problem.targets,
        problem.retain,
        problem.invariants,
        chosen,
    )
    for key in problem.weights:
        assert torch.count_nonzero(erasure.delta(key)) == 0
    assert any(n.code == "replacement_too_similar" for n in erasure.certificate.warnings)


@several
@given(problems, switches, st.randoms(use_true_random=False))
def test_no_order_changes_anything(problem, chosen, random):
    """Targets, retain names and layers shuffled, names given or not: the same edit."""
    first = solve(*problem.args(), chosen)

    def shuffled(count: int) -> torch.Tensor:
        return torch.tensor(random.sample(range(count), count), dtype=torch.long)

    pick, keep = shuffled(len(problem.targets)), shuffled(len(problem.retain))
    layers = dict(reversed(problem.weights.items()))
    second = solve(
        layers,
        problem.targets[pick],
        problem.anchors[pick],
        problem.retain[keep],
        problem.invariants,
        chosen,
    )
    for key in problem.weights:
        assert (first.delta(key) - second.delta(key)).norm() <= 1e-9 * first.delta(key).norm()


def test_names_in_another_order_give_the_same_draws():
    problem = make(32, 2, 50)
    names = [f"name {i}" for i in range(50)]
    order = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    first = solve(*problem.args(), EraseSettings(), retain_names=names)
    second = solve(
        problem.weights,
        problem.targets,
        problem.anchors,
        problem.retain[order],
        problem.invariants,
        EraseSettings(),
        retain_names=[names[i] for i in order.tolist()],
    )
    other_seed = solve(*problem.args(), EraseSettings(seed=1), retain_names=names)
    for key in problem.weights:
        size = first.delta(key).norm()
        assert (first.delta(key) - second.delta(key)).norm() <= 1e-9 * size
        assert (first.delta(key) - other_seed.delta(key)).norm() > 1e-6 * size, (
            "negative control: draws matter"
        )


@pytest.mark.parametrize("preset", ["few", "multi", "auto"])
def test_what_is_stored_does_not_depend_on_the_number_of_threads(preset):
    problem = make(96, 4, 200, outs=(64, 160))
    before, chosen = torch.get_num_threads(), EraseSettings.preset(preset)
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(solve(*problem.args(), chosen))
    finally:
        torch.set_num_threads(before)
    first, *others = results
    for other in others:
        stored, expected = (erasure.certificate.short() for erasure in (other, first))
        assert stored | {"seconds": {}} == expected | {"seconds": {}}
        for key, edit in first.items():
            pair = edit.balanced().to(torch.float16), other[key].balanced().to(torch.float16)
            assert torch.equal(pair[0].up, pair[1].up) and torch.equal(pair[0].down, pair[1].down)


@several
@given(problems, st.floats(-2, 2))
def test_strength_is_linear(problem, strength):
    erasure = solve(*problem.args(), EraseSettings())
    edited = apply_edits(problem.weights, erasure, strength)
    for key, weight in problem.weights.items():
        expected = weight + strength * erasure.delta(key)
        assert torch.allclose(edited[key], expected, rtol=0, atol=1e-12)
        assert torch.allclose(
            erasure[key].scaled(strength).delta(), strength * erasure.delta(key), atol=1e-12
        )


def test_strength_zero_returns_the_very_same_weights():
    problem = make()
    weights = {key: weight.half() for key, weight in problem.weights.items()}
    edited = apply_edits(weights, solve(*problem.args(), EraseSettings()), 0.0)
    assert all(torch.equal(edited[key], weights[key]) for key in weights)


def test_the_objective_has_no_lower_point():
    """Eq. 10: inside the feasible edits the gradient vanishes at the solution."""
    problem = make(24, 3, 6)
    chosen = EraseSettings(ipf=False, dpa=False, threshold=1e-9, invariants="span", lam=0.3)
    erasure = solve(*problem.args(), chosen)
    kept = torch.linalg.qr(torch.cat([problem.retain, problem.invariants]).T)[0]
    for key, weight in problem.weights.items():
        delta = erasure.delta(key).clone().requires_grad_()
        missing = (weight + delta) @ problem.targets.T - weight @ problem.anchors.T
        loss = missing.square().sum() / len(problem.targets) + chosen.lam * delta.square().sum()
        (slope,) = torch.autograd.grad(loss, delta)
        feasible = slope - slope @ kept @ kept.T
        assert feasible.norm() < 1e-9 * slope.norm()


@several
@given(st.integers(3, 30), st.integers(1, 40), st.integers(0, 10**6), st.floats(0.01, 2))
def test_the_projector_is_one(width, rows, seed, threshold):
    """Symmetric, idempotent, the same from either side of the factor, and empty for an empty retain
    set.
    """
    factor = (
        torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        / rows**0.5
    )
    identity = torch.eye(width, dtype=torch.float64)
    span = span_of_moment(factor.T @ factor, threshold)
    projector = span.remove(identity)
    assert torch.allclose(projector, projector.T, atol=1e-10)
    assert torch.allclose(projector @ projector, projector, atol=1e-10)
    assert span.room == round(float(projector.trace()))
    other = span_of_gram(factor @ factor.T, factor, threshold)
    assert torch.allclose(other.remove(identity), projector, atol=1e-8)
    assert torch.equal(empty_span(identity).remove(identity), identity)


@pytest.mark.parametrize(
    ("out", "width", "count"), [(70, 100, 1), (100, 70, 3), (200, 90, 2), (8, 12, 1)]
)
def test_smallest_directions_are_the_svds(out, width, count):
    weight = torch.randn(
        out, width, generator=torch.Generator().manual_seed(out), dtype=torch.float64
    )
    found = smallest_directions(weight, count)
    expected = torch.linalg.svd(weight, full_matrices=False)[2][-count:]
    assert torch.allclose(
        (found * expected).sum(dim=1).abs(), torch.ones(count, dtype=torch.float64), atol=1e-12
    )


def test_smallest_directions_of_a_degenerate_layer():
    """A layer with a dead output has no Cholesky factor: the SVD answers, and the direction does
    not change outputs.
    """
    weight = torch.randn(80, 120, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight[3] = 0
    found = smallest_directions(weight, 1)
    assert torch.isfinite(found).all() and (weight @ found.T).norm() < 1e-12


@several
@given(problems)
def test_half_precision_keeps_the_balanced_edit(problem):
    """The round trip through fp16 loses less than 1e-3 of the edit."""
    for edit in solve(*problem.args(), EraseSettings(lam=1e-3)).values():
        balanced, exact = edit.balanced(), edit.delta()
        assert (balanced.delta() - exact).norm() < 1e-7 * exact.norm()
        stored = balanced.to(torch.float16).to(torch.float64).delta()
        assert (stored - exact).norm() < 1e-3 * exact.norm()


def test_merging_adds():
    one, two = (solve(*make(24, n, 10).args(), EraseSettings()) for n in (1, 3))
    both = merge(one, two)
    for key in one:
        assert both[key].rank == 4
        assert torch.allclose(both[key].delta(), one.delta(key) + two.delta(key), atol=1e-12)


def test_results_do_not_share_memory_with_what_was_given():
    problem = make()
    erasure = solve(*problem.args(), EraseSettings())
    before = erasure.delta("layer0").clone()
    for tensor in (problem.targets, problem.retain, *problem.weights.values()):
        tensor.zero_()
    assert torch.equal(erasure.delta("layer0"), before)


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EraseSettings().lam = 2.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        LayerEdit(torch.zeros(1, 1), torch.zeros(1, 1)).up = torch.ones(1, 1)
    assert KeptSpan(torch.zeros(0, 4)).room == 4


def test_rows_are_compressed_within_a_concept_only():
    """Eight rows to three: rank three a concept, the energy lost stated, and nothing lost when the
    limit is wide.
    """
    problem = make(48, 16, 10)
    groups = tuple(i // 8 for i in range(16))
    targets = Rows(problem.targets, groups, ("a", "b"), (True,) * 16)
    anchors = targets.with_values(problem.anchors)

    def run(limit: int):
        chosen = EraseSettings(rows_per_concept=limit, ipf=False, dpa=False)
        return solve(problem.weights, targets, anchors, problem.retain, problem.invariants, chosen)

    narrow, exact, wide = run(3), run(8), run(100)
    assert narrow["layer0"].rank == 6 and exact["layer0"].rank == 16
    assert all(0 < concept.energy_lost < 1 for concept in narrow.certificate.concepts)
    assert all(concept.energy_lost == 0 for concept in wide.certificate.concepts)
    assert torch.allclose(exact.delta("layer0"), wide.delta("layer0"), atol=1e-12)
    dull = targets.with_values(
        problem.targets[:1].expand(16, -1) * torch.arange(1, 17, dtype=torch.float64)[:, None]
    )
    same = solve(
        problem.weights,
        dull,
        dull.with_values(dull.values * 0.5),
        problem.retain,
        problem.invariants,
        EraseSettings(rows_per_concept=1, ipf=False, dpa=False),
    )
    assert all(concept.energy_lost < 1e-12 for concept in same.certificate.concepts), (
        "collinear rows need only one"
    )
