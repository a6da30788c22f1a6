"""Prepared rows in, every layer's edit out: layer by layer, then the adversarial rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import InputError, NoRoomError
from ..progress import Progress, Stopwatch
from .closed_form import Span
from .curve import stable
from .edits import LayerEdit
from .layers import LayerSolver, SolvedLayer
from .pairs import ErasePairs
from .prepare import widen
from .rows import RowSet
from .settings import EraseSettings

MAX_PARALLEL_LAYERS, MAX_EIGEN_ROWS = 4, 3500
"""Layers solved at once, and the sizes of their eigenproblems together. One of 2048 keeps all
threads busy alone."""
MIN_ROUND_GAIN = 0.01
"""A round that lowers the mean leak by less than this is not worth its rank."""


@dataclass(frozen=True)
class Round:
    """The leak before an adversarial round (round 0: after the first edit)."""

    number: int
    mean_leak: float
    worst_leak: float
    kept: bool = True
    """False for a last round that lowered the leak too little: its edit was dropped."""


class Solver:
    """Solves one set of pairs on the layers of one model, read one at a time."""

    def __init__(
        self,
        rows: RowSet,
        pairs: ErasePairs,
        settings: EraseSettings,
        weights: Mapping[str, Tensor],
        watch: Stopwatch,
        progress: Progress,
        span: Span | None = None,
    ) -> None:
        """Nothing is computed yet.

        Args:
            rows: Prepared rows.
            pairs: Their targets and anchors, paired and compressed.
            settings: Every choice, with nothing left for `auto`.
            weights: {layer key: `o x d`}, read one at a time.
            watch: Where the seconds go.
            progress: May raise to interrupt.
            span: What all kept rows leave to the edit, where it is known already.
        """
        self.rows, self.pairs, self.settings, self.weights = rows, pairs, settings, weights
        self.watch, self.progress, self.span = watch, progress, span
        # they depend on the layer alone: found once for all rounds
        self.directions: dict[str, Tensor] = {}
        self.rounds: tuple[Round, ...] = ()
        """The adversarial rounds of the last `solve`."""

    def solve(self) -> dict[str, SolvedLayer]:
        """The edit of every layer; refuses one that would be noise."""
        try:
            layers = self._solve_rounds()
        except torch.linalg.LinAlgError as error:
            ridges = f"lam {self.settings.lam:g} and mu {self.settings.mu:g}"
            raise InputError(f"There is no stable edit with {ridges}. Raise them.") from error
        self._check_moved(layers)
        return layers

    def load(self, key: str) -> Tensor:
        """`o x d`: one layer's weight in working precision."""
        return widen(self.weights[key], key, self.rows.targets.values)

    def _solve_rounds(self) -> dict[str, SolvedLayer]:
        """The edit, then rounds of adding what leaks and solving from the original weights."""
        settings = self.settings
        layers = self._solve_layers(self.pairs)
        count = settings.adversarial_rounds
        if settings.method == "rece":
            count = max(1, count)
        if not count:
            return layers
        with self.watch.part("adversarial"):
            weights = (self.load(key) for key in self.weights)
            zero = self.pairs.targets.new_zeros(())
            original = sum((weight.T @ weight for weight in weights), start=zero)
        sets: list[ErasePairs] = []
        rounds: list[Round] = []
        round_, leaking = self._leaking(layers, original, 0, count)
        rounds.append(round_)
        for number in range(1, count + 1):
            sets.append(leaking)
            candidate = self._solve_layers(self.pairs.with_sets(sets))
            round_, leaking = self._leaking(candidate, original, number, count)
            helps = round_.mean_leak < rounds[-1].mean_leak - MIN_ROUND_GAIN
            kept = helps or settings.method == "rece"  # RECE as published keeps every round
            rounds.append(replace(round_, kept=kept))
            if kept:
                layers = candidate
            if not helps:
                break
        self.rounds = tuple(rounds)
        return layers

    def _check_moved(self, layers: Mapping[str, SolvedLayer]) -> None:
        """Refuses an edit that does nothing although the anchors differ from the targets."""
        pairs, lam = self.pairs, self.settings.lam
        # NaN and Inf survive a sum
        sums = [layer.edit.up.sum() + layer.edit.down.sum() for layer in layers.values()]
        for key, finite in zip(layers, torch.stack(sums).isfinite().tolist(), strict=True):
            if not finite:
                raise InputError(f"The edit of {key} is not finite. Raise lam (now {lam:g}).")

        def moves(key: str) -> bool:
            edit, change = layers[key].edit, (self.load(key) @ pairs.change.T).abs().max()
            # Below this the target rows lie in the kept span to rounding: any edit would be noise.
            return bool((edit.up @ (edit.down @ pairs.targets.T)).abs().max() > 1e-9 * change)

        if bool((pairs.change != 0).any()) and not any(moves(key) for key in layers):
            raise NoRoomError(
                "The protected names and the blank prompt fill the embedding space: nothing can be"
                " erased without touching them. Protect fewer names, turn IPF on, or raise the"
                " threshold."
            )

    def _leaking(
        self, layers: Mapping[str, SolvedLayer], original: Tensor, number: int, count: int
    ) -> tuple[Round, ErasePairs]:
        """How much the edit leaks, and the rows that leak with their change to the anchors."""
        self.progress("adversarial", number, count + 1)
        pairs = self.pairs.without_held()
        with self.watch.part("adversarial"):
            edits = {key: layer.edit for key, layer in layers.items()}
            reg = self.settings.adversarial_reg
            leaking, size = find_leaks(original, self.load, edits, pairs.targets, pairs.change, reg)
        round_ = Round(number, stable(float(size.mean())), stable(float(size.max())))
        change = pairs.targets + pairs.change - leaking
        return round_, replace(pairs, targets=leaking, change=change)

    def _solve_layers(self, pairs: ErasePairs) -> dict[str, SolvedLayer]:
        solver = LayerSolver(
            pairs, self.rows.retain, self.settings, self.watch, self.directions, self.span
        )
        layers: dict[str, SolvedLayer] = {}
        total = len(self.weights)
        self.progress("layers", 0, total)
        results = self._solve_parallel(solver) if solver.refines else self._solve_in_turn(solver)
        with closing(results):
            for key, layer in results:
                layers[key] = layer
                self.progress("layers", len(layers), total)
        return layers

    def _solve_in_turn(self, solver: LayerSolver) -> Generator[tuple[str, SolvedLayer]]:
        for key in self.weights:
            yield key, solver.solve(key, self.load(key))

    def _solve_parallel(self, solver: LayerSolver) -> Generator[tuple[str, SolvedLayer]]:
        """Several layers at once where each has an eigenproblem: threads help little inside."""
        retain = self.rows.retain
        count = min(parallel_layers(min(len(retain.values), retain.width)), len(self.weights))
        if count < 2 or retain.values.device.type != "cpu":
            yield from self._solve_in_turn(solver)
            return
        inference = torch.is_inference_mode_enabled()  # a thread does not inherit it

        def work(key: str, weight: Tensor) -> SolvedLayer:
            with torch.inference_mode(inference):
                return solver.solve(key, weight)

        pending: deque[tuple[str, Future[SolvedLayer]]] = deque()
        with divided_threads(count), self.watch.parallel(count), ThreadPoolExecutor(count) as pool:
            try:
                for key in self.weights:
                    # files are read in one thread only
                    pending.append((key, pool.submit(work, key, self.load(key))))
                    if len(pending) > count:
                        yield pending[0][0], pending[0][1].result()
                        pending.popleft()
                for key, layer in pending:
                    yield key, layer.result()
            finally:
                pool.shutdown(cancel_futures=True)


def parallel_layers(size: int) -> int:
    """How many layers with an eigenproblem of this size are worth solving in parallel here."""
    return min(MAX_PARALLEL_LAYERS, MAX_EIGEN_ROWS // max(1, size), torch.get_num_threads())


@contextmanager
def divided_threads(count: int) -> Iterator[None]:
    """Divides torch's threads among `count` Python threads that start inside the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // count))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def find_leaks(
    original: Tensor,
    load: Callable[[str], Tensor],
    edits: Mapping[str, LayerEdit],
    targets: Tensor,
    change: Tensor,
    reg: float,
) -> tuple[Tensor, Tensor]:
    """Embeddings that still draw the targets (the paper's "w/ AT", after RECE), and how much so.

    With W_i the original and V_i the edited weight of layer i, the embedding nearest to the
    target's old output is

        c~ = argmin_c sum_i |V_i c - W_i c1|^2 + reg |c|^2
           = (sum_i V_i'V_i + reg I)^-1 (sum_i V_i'W_i) c1.

    Returns c~ for each target row (`n x d`), and how much of the way from the anchor's output back
    to the target's it still goes (`n`, 0 to 1).

    Args:
        original: `d x d`, sum of W'W.
        load: Returns a layer's ORIGINAL weight by key.
        edits: By layer key.
        targets: `n x d`, the target rows.
        change: `n x d`, from each target to its anchor.
        reg: Ridge, as a share of the mean diagonal of W'W.
    """
    # sums of V'V and V'W: V = W + up down differs from W by low-rank terms only
    edited, crossed = original.clone(), original.clone()
    for key, edit in edits.items():
        back = load(key).T @ edit.up  # d x r: W' up
        cross = back @ edit.down  # W' delta
        edited += cross + cross.T + edit.down.T @ (edit.up.T @ edit.up) @ edit.down
        crossed += cross.T
    ridged = edited.clone()
    ridged.diagonal().add_(reg * original.diagonal().mean())
    leaking = torch.cholesky_solve(crossed @ targets.T, torch.linalg.cholesky(ridged)).T
    missing = (
        ((leaking @ edited) * leaking).sum(dim=1)
        - 2 * ((leaking @ crossed) * targets).sum(dim=1)
        + ((targets @ original) * targets).sum(dim=1)
    )
    total = ((change @ original) * change).sum(dim=1)
    share = (missing.clamp(min=0) / total.clamp(min=torch.finfo(total.dtype).tiny)).sqrt()
    return leaking, (1 - share).clamp(min=0)
