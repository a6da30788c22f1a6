"""One layer at a time: what all layers share is made once here, then each layer gets its own null space and edit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..progress import Stopwatch
from .closed_form import erasing_rows, uce_rows
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
from .problem import Problem
from .rows import ErasePairs


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


class LayerSolver:
    """Solves layers for one set of pairs, one retain set and one choice of settings."""

    def __init__(self, problem: Problem, pairs: ErasePairs, watch: Stopwatch, directions: dict[str, Tensor]) -> None:
        """`pairs`: the problem's own, or with further rows. `directions`: of layers seen before; it grows."""
        settings, retain = problem.settings, problem.retain
        self.settings, self.watch, self.directions = settings, watch, directions
        self.retain, self.constraints = retain.values, problem.constraints
        self.targets, change = pairs.mean_scaled()
        self.erased = pairs.erased_rows()  # held rows have no change: they shape the system and take no rank
        self.change = change[self.erased]
        self.groups, self.concepts, self.weights = retain.group_index(), len(retain.names), retain.weights()
        self._shared: tuple[Tensor, int] | None = None
        baseline = settings.method in ("uce", "rece")
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
        self.change = settings.aim * self.change  # the edit is linear in it: further along the same way
        self.refines = (
            not baseline and settings.method != "null_space" and (settings.ipf or settings.dpa or settings.rpa)
        )
        if self.refines and len(self.retain):
            with watch.part("prior filter"):
                self.gain = erase_gain(self.targets)[self.erased]
                self.response = self.gain @ self.retain.T  # n x N
                # Worth its N x N only where some layer may keep fewer rows than the embedding is wide.
                small = len(self.retain) <= 2 * self.retain.shape[1] and not settings.rpa
                self.retain_gram = self.retain @ self.retain.T if small else None

    def solve(self, key: str, weight: Tensor) -> SolvedLayer:
        """The edit of one layer from its weight (`o x d`, working precision)."""
        everything = torch.ones(len(self.retain), dtype=torch.bool, device=weight.device)
        none = weight.new_zeros(())
        up = weight @ self.change.T  # aim W (C* - C1)
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
        return influence_filter(sizes, settings.filter_scale, self.groups, self.concepts, settings.filter_unit)

    def _refined_span(
        self, key: str, weight: Tensor, shift: PriorShift, sizes: Tensor, kept: Tensor
    ) -> tuple[KeptSpan, Tensor]:
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
            return self._eigen(moment), added
        with self.watch.part("augmentation"):
            prior = self._augmented(key, weight, shift, sizes, chosen)
        return self._span(prior), prior.added

    def _augmented(self, key: str, weight: Tensor, shift: PriorShift, sizes: Tensor, chosen: Tensor) -> RefinedPrior:
        settings = self.settings
        if not settings.dpa or not settings.augmentations:
            return keep_only(chosen, self.weights, self.retain[:0])
        if key not in self.directions:
            self.directions[key] = smallest_directions(weight, settings.augment_rank)
        along = self.directions[key]
        shape = (len(self.retain), settings.augmentations, len(along))
        draws = normal(shape, generator(settings.seed, f"directed augmentation of {key}"), self.retain)
        own = RowShifts(chosen, self.response[:, chosen], sizes[chosen], self.weights[chosen])
        return augment_directed(shift, own, along, draws[chosen], scale=settings.filter_scale)

    def _span(self, prior: RefinedPrior) -> KeptSpan:
        """The eigenproblem on the smaller side: of the kept rows' Gram matrix, or of the correlation matrix."""
        factor = prior.factor(self.retain)
        if len(factor) >= factor.shape[1]:
            moment = lower_gram(factor.T)
            del factor  # with many names larger than all that the eigenproblem needs
            return self._eigen(moment)
        with self.watch.part("null space"):
            if self.retain_gram is None:
                gram = factor @ factor.T
            else:
                gram = prior.gram(self.retain_gram, self.retain @ prior.directions.T)
            return span_of_gram(gram, factor, self.settings.threshold, self.settings.threshold_mode)

    def _eigen(self, moment: Tensor) -> KeptSpan:
        with self.watch.part("null space"):
            return span_of_moment(moment, self.settings.threshold, self.settings.threshold_mode)

    def _down(self, span: KeptSpan) -> Tensor:
        constraints = (
            self.constraints if self.settings.iec and self.settings.method == "speed" else self.constraints[:0]
        )
        with self.watch.part("closed form"):
            return erasing_rows(self.targets, span, constraints, self.settings.lam, self.settings.mu)[self.erased]

    def _same_for_all_layers(self) -> tuple[Tensor, int]:
        """Without refinement no layer has a say in the null space: one solve serves them all."""
        if self._shared is None:
            if len(self.retain):
                everything = torch.arange(len(self.retain), device=self.retain.device)
                prior = keep_only(everything, self.weights, self.retain[:0])
                self.retain_gram = None
                span = self._span(prior)
            else:
                span = empty_span(self.targets)
            self._shared = (self._down(span), span.room)
        return self._shared
