"""A checked problem in, every layer's edit out: one layer at a time, then the adversarial rounds.

`LayerSolver` makes once what all layers share; then each layer gets its own null space and edit.
`Solver` goes through the layers of a model, and again for every adversarial round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import InputError, NoRoomError
from ..progress import Progress, Stopwatch
from .adversarial import Round, edited_moments, leak, leaking_rows, original_moment
from .closed_form import FreeRows, Span, erasing_rows, uce_rows
from .draws import generator, normal
from .edits import LayerEdit
from .null_space import KeptSpan, empty_span, lower_gram, span_of_gram, span_of_moment
from .prior import (
    PriorShift,
    RefinedPrior,
    RowShifts,
    augment_directed,
    augment_random,
    erase_gain,
    influence_filter,
    keep_only,
    smallest_directions,
)
from .problem import Problem, widen
from .rows import ErasePairs
from .settings import EraseSettings
from .soft_prior import SoftSpan, soft_span, soft_span_of_moment


@dataclass(frozen=True, eq=False)
class SolvedLayer:
    """A layer's edit and how it came about."""

    edit: LayerEdit
    kept: Tensor
    """`N` booleans: kept rows that shaped this layer's null space."""
    added: Tensor
    """Scalar: augmented rows that passed the filter."""
    room: int
    """Dimension of the null space before the invariants were taken out."""


def refines(settings: EraseSettings) -> bool:
    """Whether each layer has its own say in which kept rows shape its prior."""
    return settings.method == "speed" and (settings.ipf or settings.dpa or settings.rpa)


class LayerSolver:
    """Solves layers for one set of pairs, one retain set and one choice of settings."""

    def __init__(
        self,
        problem: Problem,
        pairs: ErasePairs,
        watch: Stopwatch,
        directions: dict[str, Tensor],
        span: Span | None = None,
    ) -> None:
        """`pairs`: the problem's own, or with further rows. `directions`: of layers seen before; it
        grows.

        `span`: what all kept rows leave to the edit, where it is known already.
        """
        settings, retain = problem.settings, problem.retain
        self.settings, self.watch, self.directions = settings, watch, directions
        self.retain, self.constraints = retain.values, problem.constraints
        many = len(pairs.targets) > retain.width
        if many:
            pairs = pairs.on_the_smaller_side()
        self.targets, change = pairs.mean_scaled()
        # held rows have no change: they shape the system and take no rank
        self.erased = pairs.erased_rows()
        self.change = change[self.erased]
        self.groups, self.concepts, self.weights = (
            retain.group_index(),
            len(retain.names),
            retain.weights(),
        )
        self.held = empty_span(self.targets)
        if (
            settings.iec
            and settings.method == "speed"
            and settings.prior != "null_space"
            and len(self.constraints)
        ):
            self.held = self.held.joined(self.constraints)
        self._span_for_all = span
        # As many rows as the embedding is wide: C* - C1 goes to the down side, once, and a layer's
        # `up` is W itself.
        baseline = settings.method in ("uce", "rece")
        self.leading = many and not baseline
        self._shared: tuple[Tensor, int] | None = None
        if baseline:
            with watch.part("closed form"):
                rows = uce_rows(
                    pairs.targets,
                    self.weights.sqrt()[:, None] * self.retain,
                    alpha=settings.erase_weight,
                    beta=settings.preserve_weight,
                    lam=settings.lam,
                )
            # UCE sums over concepts where SPEED takes the mean: the change goes in unscaled.
            self.change, self._shared = pairs.change[self.erased], (rows[self.erased], retain.width)
        # the edit is linear in it: further along the same way
        self.change = settings.aim * self.change
        self._free: FreeRows | None = None
        if self.leading and settings.mu == 0 and settings.lam > 0:
            free = FreeRows.of(self.targets, settings.lam)
            self._free = replace(free, rows=self._led(free.rows))
        self.refines = refines(settings)
        if self.refines and len(self.retain):
            with watch.part("prior filter"):
                self.gain = self._led(erase_gain(self.targets)[self.erased])
                self.response = self.gain @ self.retain.T  # n x N
                # Worth its N x N only where some layer may keep fewer rows than the embedding is
                # wide.
                small = len(self.retain) <= 2 * self.retain.shape[1] and not settings.rpa
                self.retain_gram = self.retain @ self.retain.T if small else None

    def solve(self, key: str, weight: Tensor) -> SolvedLayer:
        """The edit of one layer from its weight (`o x d`, working precision)."""
        everything = torch.ones(len(self.retain), dtype=torch.bool, device=weight.device)
        none = weight.new_zeros(())
        up = weight if self.leading else weight @ self.change.T  # aim W (C* - C1)
        if not self.refines or not len(self.retain):
            down, room = self._same_for_all_layers()
            return SolvedLayer(LayerEdit(up, down), everything, none, room)
        shift = PriorShift(self.gain, up)
        with self.watch.part("prior filter"):
            sizes = shift.of(self.response)
            kept = self._filter(sizes) if self.settings.ipf else everything
        span, added = self._refined_span(key, weight, shift, sizes, kept)
        return SolvedLayer(LayerEdit(up, self._down(span)), kept, added, span.room)

    def _filter(self, sizes: Tensor) -> Tensor:
        settings = self.settings
        return influence_filter(
            sizes, settings.filter_scale, self.groups, self.concepts, settings.filter_unit
        )

    def _refined_span(
        self, key: str, weight: Tensor, shift: PriorShift, sizes: Tensor, kept: Tensor
    ) -> tuple[Span, Tensor]:
        settings, chosen = self.settings, kept.nonzero().squeeze(1)
        if not len(chosen):
            return empty_span(self.retain), weight.new_zeros(())
        if settings.rpa:
            with self.watch.part("augmentation"):
                source = f"random augmentation of {key}"
                moment, added = augment_random(
                    shift,
                    self.retain[chosen],
                    self.weights[chosen],
                    lambda: generator(settings.seed, source),
                    times=settings.augmentations,
                    scale=settings.filter_scale,
                )
            return self._span_of_moment(moment), added
        with self.watch.part("augmentation"):
            prior = self._augmented(key, weight, shift, sizes, chosen)
        return self._span(prior), prior.added

    def _augmented(
        self, key: str, weight: Tensor, shift: PriorShift, sizes: Tensor, chosen: Tensor
    ) -> RefinedPrior:
        settings = self.settings
        if not settings.dpa or not settings.augmentations:
            return keep_only(chosen, self.weights, self.retain[:0])
        if key not in self.directions:
            self.directions[key] = smallest_directions(weight, settings.augment_rank)
        along = self.directions[key]
        shape = (len(self.retain), settings.augmentations, len(along))
        draws = normal(
            shape, generator(settings.seed, f"directed augmentation of {key}"), self.retain
        )
        own = RowShifts(chosen, self.response, sizes[chosen], self.weights[chosen])
        return augment_directed(shift, own, along, draws[chosen], scale=settings.filter_scale)

    def _span(self, prior: RefinedPrior) -> Span:
        """What the kept rows leave to the edit, found on the smaller side: Gram matrix or
        correlation matrix.
        """
        factor = prior.factor(self.retain)
        if self.settings.prior == "soft":
            with self.watch.part("soft prior"):
                return soft_span(factor, self.settings.softness, self.held)
        if self.settings.prior == "both":
            hard = self._null_space(prior, factor).joined(self.held.basis)
            with self.watch.part("soft prior"):
                return soft_span(factor, self.settings.softness, hard)
        return self._null_space(prior, factor)

    def _null_space(self, prior: RefinedPrior, factor: Tensor) -> KeptSpan:
        if len(factor) >= factor.shape[1]:
            return self._eigen(lower_gram(factor.T))
        with self.watch.part("null space"):
            if self.retain_gram is None:
                gram = factor @ factor.T
            else:
                gram = prior.gram(self.retain_gram, self.retain @ prior.directions.T)
            return span_of_gram(gram, factor, self.settings.threshold, self.settings.threshold_mode)

    def _span_of_moment(self, moment: Tensor) -> Span:
        if self.settings.prior == "null_space":
            return self._eigen(moment)
        held = (
            self.held
            if self.settings.prior == "soft"
            else self._eigen(moment).joined(self.held.basis)
        )
        with self.watch.part("soft prior"):
            return soft_span_of_moment(moment, self.settings.softness, held)

    def _eigen(self, moment: Tensor) -> KeptSpan:
        with self.watch.part("null space"):
            return span_of_moment(moment, self.settings.threshold, self.settings.threshold_mode)

    def _down(self, span: Span) -> Tensor:
        held = (
            self.settings.iec and self.settings.method == "speed" and not isinstance(span, SoftSpan)
        )
        constraints = self.constraints if held else self.constraints[:0]
        with self.watch.part("closed form"):
            if (
                self._free
                and isinstance(span, KeptSpan)
                and 2 * len(span.basis) < span.basis.shape[1]
            ):
                return self._free.outside(span.joined(constraints).basis)
            rows = erasing_rows(
                self.targets, span, constraints, self.settings.lam, self.settings.mu
            )
            return self._led(rows[self.erased])

    def _led(self, rows: Tensor) -> Tensor:
        """Rows that answer to W (C* - C1) as rows that answer to `up`."""
        return self.change.T @ rows if self.leading else rows

    def _same_for_all_layers(self) -> tuple[Tensor, int]:
        """Without refinement no layer has a say in the null space: it is found once for them
        all.
        """
        if self._shared is None:
            span = self.span_for_all()
            self._shared = (self._down(span), span.room)
        return self._shared

    def system(self, span: Span) -> tuple[Tensor, Tensor, Span]:
        """`n x d` twice, and what the edit may use: target rows with their change, zero for held
        ones.
        """
        change = torch.zeros_like(self.targets)
        change[self.erased] = self.change
        if isinstance(span, KeptSpan) and self.settings.iec and len(self.constraints):
            span = span.joined(self.constraints)
        return self.targets, change, span

    def span_for_all(self) -> Span:
        """What all kept rows together leave to the edit."""
        if self._span_for_all is None:
            if len(self.retain):
                everything = torch.arange(len(self.retain), device=self.retain.device)
                prior = keep_only(everything, self.weights, self.retain[:0])
                self.retain_gram = None
                self._span_for_all = self._span(prior)
            else:
                self._span_for_all = empty_span(self.targets)
        return self._span_for_all


MOST_WAYS, MOST_SIDES = 4, 3500
"""Layers solved at once, and the sides of their eigenproblems together. One of 2048 keeps all
threads busy alone.
"""
WORTH_A_ROUND = 0.01
"""A round that lowers the mean leak by less than this has found nothing worth its rank."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The edit of every layer and how it came about."""

    layers: dict[str, SolvedLayer]
    rounds: tuple[Round, ...]


class Solver:
    """Solves one problem on the layers of one model, read one at a time."""

    def __init__(
        self,
        problem: Problem,
        weights: Mapping[str, Tensor],
        watch: Stopwatch,
        progress: Progress,
        span: Span | None = None,
    ) -> None:
        """`span`: what all kept rows leave to the edit, where it is known already."""
        self.problem, self.weights, self.watch, self.progress, self.span = (
            problem,
            weights,
            watch,
            progress,
            span,
        )
        # they depend on the layer alone: found once for all rounds
        self.directions: dict[str, Tensor] = {}

    def solve(self) -> Solution:
        """The edit, refused where it would be noise."""
        settings = self.problem.settings
        try:
            solution = self._rounds()
        except torch.linalg.LinAlgError as fault:
            ridges = f"lam {settings.lam:g} and mu {settings.mu:g}"
            raise InputError(f"There is no stable edit with {ridges}: raise them.") from fault
        self._check_moved(solution.layers)
        return solution

    def load(self, key: str) -> Tensor:
        """`o x d`: one layer's weight in working precision."""
        return widen(self.weights[key], key, self.problem.targets.values)

    def _rounds(self) -> Solution:
        """The edit, then rounds of adding what still leaks and solving again from the original
        weights.
        """
        settings = self.problem.settings
        layers = self._layers(self.problem.pairs)
        wanted = (
            max(1, settings.adversarial_rounds)
            if settings.method == "rece"
            else settings.adversarial_rounds
        )
        if not wanted:
            return Solution(layers, ())
        with self.watch.part("adversarial"):
            original = original_moment(self.load(key) for key in self.weights)
        found: list[ErasePairs] = []
        rounds = [self._leaking(layers, original, 0, wanted)]
        for number in range(1, wanted + 1):
            found.append(rounds[-1][1])
            further = self._layers(self.problem.pairs.with_sets(found))
            rounds.append(self._leaking(further, original, number, wanted))
            falls = rounds[-1][0].mean_leak < rounds[-2][0].mean_leak - WORTH_A_ROUND
            if falls or settings.method == "rece":  # RECE as published keeps every round
                layers = further
            else:
                rounds[-1] = replace(rounds[-1][0], kept=False), rounds[-1][1]
            if not falls:
                break
        return Solution(layers, tuple(turn for turn, _ in rounds))

    def _check_moved(self, solved: Mapping[str, SolvedLayer]) -> None:
        """Refuses to hand out an edit that does nothing although the anchors differ from the
        targets.
        """
        pairs, lam = self.problem.pairs, self.problem.settings.lam
        for key, layer in solved.items():
            # NaN and Inf survive a sum
            if not bool(torch.isfinite(layer.edit.up.sum() + layer.edit.down.sum())):
                raise InputError(f"The edit of {key} is not finite: raise lam (now {lam:g}).")

        def moves(key: str) -> bool:
            edit, wanted = solved[key].edit, (self.load(key) @ pairs.change.T).abs().max()
            # Below this the target rows lie in the kept span to rounding: any edit would be noise.
            return bool((edit.up @ (edit.down @ pairs.targets.T)).abs().max() > 1e-9 * wanted)

        if bool((pairs.change != 0).any()) and not any(moves(key) for key in solved):
            raise NoRoomError(
                "The kept names and the empty prompt fill the embedding space: nothing can be"
                " erased without touching them. Keep fewer names, turn IPF on, or raise the"
                " threshold."
            )

    def _leaking(
        self, layers: Mapping[str, SolvedLayer], original: Tensor, number: int, wanted: int
    ) -> tuple[Round, ErasePairs]:
        """How much the edit leaks, and the rows that leak with their way to the anchors."""
        self.progress("adversarial", number, wanted + 1)
        fresh = self.problem.pairs.without_held()
        with self.watch.part("adversarial"):
            moments = edited_moments(
                original, self.load, {key: layer.edit for key, layer in layers.items()}
            )
            leaking = leaking_rows(moments, fresh.targets, self.problem.settings.adversarial_reg)
            size = leak(moments, fresh.targets, fresh.change, leaking)
        turn = Round(number, float(size.mean()), float(size.max()))
        return turn, replace(fresh, targets=leaking, change=fresh.targets + fresh.change - leaking)

    def _layers(self, pairs: ErasePairs) -> dict[str, SolvedLayer]:
        solver = LayerSolver(self.problem, pairs, self.watch, self.directions, self.span)
        solved: dict[str, SolvedLayer] = {}
        total = len(self.weights)
        self.progress("layers", 0, total)
        with closing(
            self._side_by_side(solver) if solver.refines else self._in_turn(solver)
        ) as found:
            for key, layer in found:
                solved[key] = layer
                self.progress("layers", len(solved), total)
        return solved

    def _in_turn(self, solver: LayerSolver) -> Generator[tuple[str, SolvedLayer]]:
        for key in self.weights:
            yield key, solver.solve(key, self.load(key))

    def _side_by_side(self, solver: LayerSolver) -> Generator[tuple[str, SolvedLayer]]:
        """Several layers at once where each has an eigenproblem of its own, which threads help
        little inside.
        """
        rows = self.problem.retain
        ways = min(ways_at_once(min(len(rows.values), rows.width)), len(self.weights))
        if ways < 2 or rows.values.device.type != "cpu":
            yield from self._in_turn(solver)
            return
        inference = torch.is_inference_mode_enabled()  # a thread does not inherit it

        def work(key: str, weight: Tensor) -> SolvedLayer:
            with torch.inference_mode(inference):
                return solver.solve(key, weight)

        begun: deque[tuple[str, Future[SolvedLayer]]] = deque()
        with threads_among(ways), self.watch.side_by_side(ways), ThreadPoolExecutor(ways) as pool:
            try:
                for key in self.weights:
                    # files are read in one thread only
                    begun.append((key, pool.submit(work, key, self.load(key))))
                    if len(begun) > ways:
                        yield begun[0][0], begun[0][1].result()
                        begun.popleft()
                for key, layer in begun:
                    yield key, layer.result()
            finally:
                pool.shutdown(cancel_futures=True)


def ways_at_once(side: int) -> int:
    """How many layers with an eigenproblem of this side are worth solving side by side here."""
    return min(MOST_WAYS, MOST_SIDES // max(1, side), torch.get_num_threads())


@contextmanager
def threads_among(ways: int) -> Iterator[None]:
    """Divides torch's threads among so many Python threads that start inside the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // ways))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
