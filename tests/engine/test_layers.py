"""Several layers at once: the same edits, in order, and nothing left behind when they are
stopped.
"""

from __future__ import annotations

import threading

import pytest
import torch
from problems import make, row_set, solve

from speed_erase import speed_ops
from speed_erase.speed_ops import EraseSettings, InputError, progress
from speed_erase.speed_ops.engine import layers, solver
from speed_erase.speed_ops.engine.edits import LayerEdit

FEW = EraseSettings()
"""The paper's settings: every layer has a null space of its own."""


@pytest.fixture
def threads():
    """Three threads for torch, which must be three again afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


@pytest.fixture
def workers(monkeypatch):
    """(Python thread, torch's threads in it) of every layer solved."""
    seen: list[tuple[int, int]] = []
    plain = layers.LayerSolver.solve

    def watched(self, key, weight):
        seen.append((threading.get_ident(), torch.get_num_threads()))
        return plain(self, key, weight)

    monkeypatch.setattr(layers.LayerSolver, "solve", watched)
    return seen


def test_layers_share_the_threads_and_come_back_in_order(threads, workers):
    problem = make(48, 2, 60, outs=(16, 32, 48, 64, 80, 96))
    together = solve(*problem.args(), FEW)
    assert {count for _, count in workers} == {1}
    assert threading.get_ident() not in {thread for thread, _ in workers}
    torch.set_num_threads(1)
    workers.clear()
    alone = solve(*problem.args(), FEW)
    assert {thread for thread, _ in workers} == {threading.get_ident()}, (
        "one thread has nothing to share"
    )
    torch.set_num_threads(3)
    assert list(together) == list(alone) == list(problem.weights)
    for key in alone:
        assert (together.delta(key) - alone.delta(key)).norm() <= 1e-9 * alone.delta(key).norm()


def test_where_all_layers_share_the_null_space_they_take_turns(threads, workers):
    solve(*make(48, 2, 60).args(), EraseSettings.preset("fixed"))
    assert {thread for thread, _ in workers} == {threading.get_ident()}


def test_a_large_eigenproblem_has_the_threads_for_itself(threads):
    assert [solver.parallel_layers(side) for side in (768, 1734, 2048, 4096)] == [3, 2, 1, 0]


def test_stopping_leaves_the_layers_that_have_not_begun(threads, workers, monkeypatch):
    problem = make(48, 2, 60, outs=(16,) * 24)
    told: list[tuple[int, int]] = []
    read: list[str] = []
    load = solver.Solver.load
    monkeypatch.setattr(
        solver.Solver, "load", lambda self, key: read.append(key) or load(self, key)
    )

    def stop(stage, done, total):
        if stage == "layers":
            told.append((done, total))
            if done == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(*problem.args(), FEW, progress=stop)
    assert told == [(0, 24), (1, 24), (2, 24)]
    assert len(workers) <= len(read) <= 2 + 2 * solver.MAX_PARALLEL_LAYERS < 24, (
        "weights wait in their file"
    )


def test_a_fault_in_one_layer_is_told_like_any_other(threads, monkeypatch):
    plain = layers.LayerSolver.solve

    def faulty(self, key, weight):
        if key == "layer3":
            raise torch.linalg.LinAlgError("not positive definite")
        return plain(self, key, weight)

    monkeypatch.setattr(layers.LayerSolver, "solve", faulty)
    with pytest.raises(InputError, match="no stable edit"):
        solve(*make(48, 2, 60, outs=(16,) * 6).args(), FEW)


def test_inference_mode_reaches_every_thread(threads):
    with torch.inference_mode():
        assert solve(*make(48, 2, 60).args(), FEW)["layer1"].down.is_inference()


def test_seconds_of_layers_side_by_side_add_up_to_those_that_passed(monkeypatch):
    clock = iter(range(0, 100, 10))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    watch = progress.Stopwatch()
    with watch.parallel(2), watch.part("null space"):
        pass
    with watch.part("null space"):
        pass
    assert watch.seconds == {"null space": 15}


def test_an_edit_wider_than_its_layer_is_measured_alike():
    """Terms that add nothing make the factors larger than the matrix, which is then measured as
    one.
    """
    problem = make(32, 3, 40, outs=(16, 48))
    weights, *rows = problem.args()
    erasure = solve(weights, *rows, FEW)

    def padded(edit: LayerEdit) -> LayerEdit:
        return edit.merged(
            LayerEdit(edit.up.new_zeros((len(edit.up), 40)), edit.down.new_ones((40, 32)))
        )

    stored = {key: padded(edit) for key, edit in erasure.edits.items()}
    wide = speed_ops.solve(weights, row_set(*rows), FEW, stored=stored).certificate
    slim = erasure.certificate
    for one, other in zip(slim.concepts, wide.concepts, strict=True):
        assert other.solved_median == pytest.approx(one.solved_median, rel=1e-9)
    for one, other in zip(slim.drift, wide.drift, strict=True):
        assert (other.mean, other.maximum) == pytest.approx((one.mean, one.maximum), rel=1e-9)
    for one, other in zip(slim.layers, wide.layers, strict=True):
        assert other.change == pytest.approx(one.change, rel=1e-9)
    assert max(part.mean for part in slim.drift) > 1e-3, (
        "negative control: there is drift to measure"
    )
