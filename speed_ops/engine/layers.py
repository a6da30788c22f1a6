"""One layer at a time: from pairs, kept rows and a layer's weight to that layer's edit.

`LayerSolver` makes once what all layers share; then each layer gets its own null space and edit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..progress import Stopwatch
from .closed_form import FreeRows, Span, erasing_rows, uce_rows
from .draws import generator, normal, shuffle
from .edits import LayerEdit
from .null_space import KeptSpan, empty_span, lower_gram, span_of_gram, span_of_moment
from .pairs import ErasePairs
from .prior import (
    PriorShift,
    RefinedPrior,
    augment_directed,
    augment_random,
    erase_gain,
    filter_batches,
    influence_filter,
    keep_only,
    smallest_directions,
)
from .rows import Rows
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
    """Whether each layer decides for itself which kept rows shape its prior."""
    return settings.method == "speed" and (settings.ipf or settings.dpa or settings.rpa)


class LayerSolver:
    """Solves layers for one set of pairs, one retain set and one choice of settings."""

    def __init__(
        self,
        pairs: ErasePairs,
        retain: Rows,
        settings: EraseSettings,
        watch: Stopwatch,
        directions: dict[str, Tensor] | None = None,
        span: Span | None = None,
    ) -> None:
        """Computes what all layers share.

        Args:
            pairs: Targets with their change, and the constraints.
            retain: The kept rows that the edit is made with.
            settings: Every choice of the erasure.
            watch: Where the seconds go.
            directions: Least-changing directions of layers seen before; it grows.
            span: What all kept rows leave to the edit, where it is known already.
        """
        self.settings, self.watch = settings, watch
        self.directions = {} if directions is None else directions
        self.retain, self.constraints = retain.values, pairs.constraints
        self.groups, self.weights = retain.group_index(), retain.weights()
        self.names = len(retain.names)
        baseline = settings.method in ("uce", "rece")
        wide = len(pairs.targets) > pairs.targets.shape[1]
        if wide:
            pairs = pairs.reduced_to_width()
        self.targets, change = pairs.mean_scaled()
        # Held rows have no change: they shape the system and take no rank.
        self.erased = pairs.erased_rows()
        # UCE sums over concepts where SPEED takes the mean: there the change goes in unscaled.
        self.change = settings.overshoot * (pairs.change if baseline else change)[self.erased]
        # With as many rows as the embedding is wide, C* - C1 goes to the down side, once, and a
        # layer's `up` is W itself.
        self.fold_change = wide and not baseline
        self.held = empty_span(self.targets)
        holds = settings.iec and settings.method == "speed" and settings.prior == "soft"
        if holds and len(self.constraints):
            self.held = self.held.joined(self.constraints)
        self._span_for_all = span
        self._shared: tuple[Tensor, int] | None = None
        if baseline:
            with watch.part("closed form"):
                down = uce_rows(
                    pairs.targets,
                    self.weights.sqrt()[:, None] * self.retain,
                    alpha=settings.erase_weight,
                    beta=settings.preserve_weight,
                    lam=settings.lam,
                )
            self._shared = down[self.erased], retain.width
        self._free: FreeRows | None = None
        if self.fold_change and settings.mu == 0 and settings.lam > 0:
            free = FreeRows.of(self.targets, settings.lam)
            self._free = replace(free, rows=self._fold_change(free.rows))
        self.refines = refines(settings)
        if self.refines and len(self.retain):
            with watch.part("prior filter"):
                self.gain = self._fold_change(erase_gain(self.targets)[self.erased])
                self.response = self.gain @ self.retain.T  # n x N
                self.shuffle = shuffle(len(self.retain), settings.seed, self.retain)
                # Worth its N x N only where a layer may keep fewer rows than the embedding is wide.
                small = len(self.retain) <= 2 * self.retain.shape[1] and not settings.rpa
                self.retain_gram = self.retain @ self.retain.T if small else None

    def solve(self, key: str, weight: Tensor) -> SolvedLayer:
        """The edit of one layer from its weight (`o x d`, working precision)."""
        everything = torch.ones(len(self.retain), dtype=torch.bool, device=weight.device)
        zero = weight.new_zeros(())
        up = weight if self.fold_change else weight @ self.change.T  # overshoot W (C* - C1)
        if not self.refines or not len(self.retain):
            if self._shared is None:  # the null space is the same for all layers
                span = self.span_for_all()
                self._shared = (self._down(span), span.room)
            down, room = self._shared
            return SolvedLayer(LayerEdit(up, down), everything, zero, room)
        shift = PriorShift(self.gain, up)
        kept = everything
        if self.settings.ipf:
            with self.watch.part("prior filter"):
                kept = influence_filter(
                    shift.of(self.response), self.settings.filter_scale, self.groups, self.names
                )
        indices = kept.nonzero().squeeze(1)
        span, added = self._refined_span(key, weight, shift, indices)
        return SolvedLayer(LayerEdit(up, self._down(span)), kept, added, span.room)

    def span_for_all(self) -> Span:
        """What all kept rows together leave to the edit."""
        if self._span_for_all is None:
            self._span_for_all = empty_span(self.targets)
            if len(self.retain):
                everything = torch.arange(len(self.retain), device=self.retain.device)
                self.retain_gram = None
                prior = keep_only(everything, self.weights, self.retain.shape[1])
                self._span_for_all = self._span(prior)
        return self._span_for_all

    def system(self, span: Span) -> tuple[Tensor, Tensor, Span]:
        """`n x d` targets and their change (zero for held rows), and what the edit may use."""
        change = torch.zeros_like(self.targets)
        change[self.erased] = self.change
        if isinstance(span, KeptSpan) and self.settings.iec and len(self.constraints):
            span = span.joined(self.constraints)
        return self.targets, change, span

    def _refined_span(
        self, key: str, weight: Tensor, shift: PriorShift, indices: Tensor
    ) -> tuple[Span, Tensor]:
        """What the filtered and augmented kept rows leave to a layer's edit, and the rows added."""
        if not len(indices):
            return empty_span(self.retain), weight.new_zeros(())
        settings, weights = self.settings, self.weights[indices]
        if settings.rpa:
            with self.watch.part("augmentation"):
                moment, added = augment_random(
                    shift,
                    self.retain[indices],
                    weights,
                    lambda: generator(settings.seed, f"random augmentation of {key}"),
                    times=settings.augmentations,
                    scale=settings.filter_scale,
                )
            return self._span_of_moment(moment), added
        with self.watch.part("augmentation"):
            prior = keep_only(indices, self.weights, self.retain.shape[1])
            if settings.dpa and settings.augmentations:
                if key not in self.directions:
                    self.directions[key] = smallest_directions(weight, settings.augment_rank)
                directions = self.directions[key]
                shape = (len(self.retain), settings.augmentations, len(directions))
                source = generator(settings.seed, f"directed augmentation of {key}")
                prior = augment_directed(
                    shift,
                    indices,
                    weights,
                    self.response[:, indices],
                    directions,
                    normal(shape, source, self.retain)[indices],
                    filter_batches(indices, self.shuffle),
                    scale=settings.filter_scale,
                )
        return self._span(prior), prior.added

    def _span(self, prior: RefinedPrior) -> Span:
        """What the kept rows leave to the edit, from the smaller of Gram and correlation matrix."""
        factor = prior.factor(self.retain)
        if self.settings.prior == "soft":
            with self.watch.part("soft prior"):
                return soft_span(factor, self.settings.softness, self.held)
        if len(factor) >= factor.shape[1]:
            return self._span_of_moment(lower_gram(factor.T))
        with self.watch.part("null space"):
            if self.retain_gram is None:
                gram = factor @ factor.T
            else:
                gram = prior.gram(self.retain_gram, self.retain @ prior.directions.T)
            return span_of_gram(gram, factor, self.settings.threshold)

    def _span_of_moment(self, moment: Tensor) -> Span:
        if self.settings.prior == "soft":
            with self.watch.part("soft prior"):
                return soft_span_of_moment(moment, self.settings.softness, self.held)
        with self.watch.part("null space"):
            return span_of_moment(moment, self.settings.threshold)

    def _down(self, span: Span) -> Tensor:
        exact = self.settings.iec and self.settings.method == "speed"
        constraints = self.constraints if exact else self.constraints[:0]
        if isinstance(span, SoftSpan):
            constraints = constraints[:0]  # a soft prior holds them itself
        with self.watch.part("closed form"):
            narrow = isinstance(span, KeptSpan) and 2 * len(span.basis) < span.basis.shape[1]
            if self._free and narrow:
                assert isinstance(span, KeptSpan)
                return self._free.outside(span.joined(constraints).basis)
            rows = erasing_rows(
                self.targets, span, constraints, self.settings.lam, self.settings.mu
            )
            return self._fold_change(rows[self.erased])

    def _fold_change(self, rows: Tensor) -> Tensor:
        """Multiplies by (C* - C1)' so that `up` can be W."""
        return self.change.T @ rows if self.fold_change else rows
