"""A checked problem in, every layer's edit out: the closed form layer by layer, then the adversarial rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import InputError
from ..progress import Progress, Stopwatch
from .adversarial import Round, edited_moments, leak, leaking_rows, original_moment
from .layers import LayerSolver, SolvedLayer
from .problem import Problem, widen
from .rows import ErasePairs

WORTH_A_ROUND = 0.01
"""A round that lowers the mean leak by less than this has found nothing worth its rank."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The edit of every layer and how it came about."""

    layers: dict[str, SolvedLayer]
    rounds: tuple[Round, ...]


class Solver:
    """Solves one problem on the layers of one model, read one at a time."""

    def __init__(self, problem: Problem, weights: Mapping[str, Tensor], watch: Stopwatch, progress: Progress) -> None:
        self.problem, self.weights, self.watch, self.progress = problem, weights, watch, progress
        self.directions: dict[str, Tensor] = {}  # they depend on the layer alone: found once for all rounds

    def solve(self) -> Solution:
        """The edit, refused where it would be noise."""
        settings = self.problem.settings
        try:
            solution = self._rounds()
        except torch.linalg.LinAlgError as fault:
            ridges = f"lam {settings.lam:g} and mu {settings.mu:g}"
            raise InputError(f"The closed form has no stable solution with {ridges}: raise them.") from fault
        _check_moved(self.problem, solution.layers)
        return solution

    def load(self, key: str) -> Tensor:
        """`o x d`: one layer's weight in working precision."""
        return widen(self.weights[key], key, self.problem.targets.values)

    def _rounds(self) -> Solution:
        """The edit, then rounds of adding what still leaks and solving again from the original weights."""
        settings = self.problem.settings
        layers = self._layers(self.problem.pairs)
        wanted = max(1, settings.adversarial_rounds) if settings.method == "rece" else settings.adversarial_rounds
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

    def _leaking(
        self, layers: Mapping[str, SolvedLayer], original: Tensor, number: int, wanted: int
    ) -> tuple[Round, ErasePairs]:
        """How much the edit leaks, and the rows that leak with their way to the anchors."""
        self.progress("adversarial", number, wanted + 1)
        fresh = self.problem.pairs.without_held()
        with self.watch.part("adversarial"):
            moments = edited_moments(original, self.load, {key: layer.edit for key, layer in layers.items()})
            leaking = leaking_rows(moments, fresh.targets, self.problem.settings.adversarial_reg)
            size = leak(moments, fresh.targets, fresh.change, leaking)
        turn = Round(number, float(size.mean()), float(size.max()))
        return turn, replace(fresh, targets=leaking, change=fresh.targets + fresh.change - leaking)

    def _layers(self, pairs: ErasePairs) -> dict[str, SolvedLayer]:
        solver = LayerSolver(self.problem, pairs, self.watch, self.directions)
        solved = {}
        for done, key in enumerate(self.weights):
            self.progress("layers", done, len(self.weights))
            solved[key] = solver.solve(key, self.load(key))
        self.progress("layers", len(self.weights), len(self.weights))
        return solved


def _check_moved(problem: Problem, solved: Mapping[str, SolvedLayer]) -> None:
    """Refuses to hand out an edit that does nothing although the anchors differ from the targets."""
    for key, layer in solved.items():
        if not bool(torch.isfinite(layer.edit.up).all() & torch.isfinite(layer.edit.down).all()):
            raise InputError(f"The edit of {key} is not finite: raise lam, which is {problem.settings.lam:g}.")
    wanted = problem.pairs.change.abs().max()
    # Below this the target rows lie in the kept span to rounding: any edit would be noise.
    reach = max(float((layer.edit.down @ problem.pairs.targets.T).abs().max()) for layer in solved.values())
    if float(wanted) > 0 and reach < 1e-9:
        raise InputError(
            "The kept names and the empty prompt fill the embedding space: nothing can be erased without touching "
            "them. Keep fewer names, switch IPF on, or raise the threshold."
        )
