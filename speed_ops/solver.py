"""Embeddings and weights in, a certified erasure out: prepare, settle what `auto` chooses, edit the layers, measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .certificate.certificate import Certificate
from .certificate.measure import certify
from .engine.auto import settle, settle_rows
from .engine.edits import LayerEdit
from .engine.layers import Solver
from .engine.problem import check_weights, prepare
from .engine.rows import Rows, join
from .engine.settings import EraseSettings
from .progress import Progress, Stopwatch, silent


@dataclass(frozen=True, eq=False)
class Erasure(Mapping[str, LayerEdit]):
    """What the engine returns: edits by layer key, with the proof of what they do."""

    edits: dict[str, LayerEdit]
    certificate: Certificate
    settings: EraseSettings
    targets: Rows
    """What was erased, in the caller's order: needed to erase again without bringing it back."""
    anchors: Rows

    def __getitem__(self, key: str) -> LayerEdit:
        return self.edits[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.edits)

    def __len__(self) -> int:
        return len(self.edits)

    def delta(self, key: str) -> Tensor:
        """`o x d`: the dense edit of one layer."""
        return self[key].delta()

    def balanced(self, rank: int | None = None) -> tuple[Erasure, float]:
        """All edits balanced (see `LayerEdit.balanced`) and the largest relative error of any layer."""
        pairs = {key: edit.balanced(rank) for key, edit in self.edits.items()}
        edits = {key: edit for key, (edit, _) in pairs.items()}
        return replace(self, edits=edits), max(error for _, error in pairs.values())

    def scaled(self, strength: float) -> Erasure:
        """The erasure at another strength; the certificate still speaks of strength 1."""
        return replace(self, edits={key: edit.scaled(strength) for key, edit in self.edits.items()})


def solve(
    weights: Mapping[str, Tensor],
    targets: Tensor | Rows,
    anchors: Tensor | Rows,
    retain: Tensor | Rows | None = None,
    invariants: Tensor | None = None,
    settings: EraseSettings | None = None,
    *,
    target_names: Sequence[str] | None = None,
    retain_names: Sequence[str] | None = None,
    hold: Tensor | Rows | None = None,
    probes: tuple[Rows, Rows] | None = None,
    held_out: Rows | None = None,
    witnesses: Rows | None = None,
    trial: tuple[Rows, Rows] | None = None,
    kinds: Sequence[str] = (),
    progress: Progress | None = None,
) -> Erasure:
    """Erases targets from the layers and says what that did.

    `weights`: {layer key: `o x d`}, read one at a time. `targets`, `anchors` (`n x d`) and `retain` (`N x d`): one
    concept a row, or `Rows` for several rows a concept. `invariants` (`k x d`): every row of the empty prompt, SOT
    first. `hold`: targets of an earlier erasure that `weights` already contain. `probes`: target and anchor rows in
    contexts that the edit is not made from, for the certificate; `held_out`: names that it is not made with, for the
    same. `trial` and `witnesses`: the like for `auto` to choose by. Without them a share of the kept names serves.
    `kinds`: what kind of thing each target is (style, object, ...), which decides where its verdict turns.
    `progress(stage, done, total)` may raise to interrupt: nothing is half done.
    """
    settings = settle_rows(settings or EraseSettings(), len(targets.names if isinstance(targets, Rows) else targets))
    report, watch = progress or silent, Stopwatch()
    report("prepare", 0, 1)
    with watch.part("prepare"):
        problem = prepare(
            targets,
            anchors,
            retain,
            invariants,
            settings,
            target_names=target_names,
            retain_names=retain_names,
            hold=hold,
            probes=probes,
            held_out=held_out,
            witnesses=witnesses,
            trial=trial,
            kinds=kinds,
        )
        check_weights(weights, problem.targets.width)
    settled = settle(problem, weights, watch)
    problem = settled.problem
    report("prepare", 1, 1)
    solution = Solver(problem, weights, watch, report, settled.span).solve()
    certificate = certify(solution, problem, weights, watch, report, settled.curve)
    edits = {key: layer.edit for key, layer in solution.layers.items()}
    return Erasure(edits, certificate, problem.settings, problem.targets, problem.anchors)


def erase_jointly(
    weights: Mapping[str, Tensor],
    earlier: Erasure,
    targets: Rows,
    anchors: Rows,
    retain: Tensor | Rows | None,
    invariants: Tensor | None,
    settings: EraseSettings,
    **options: Any,
) -> Erasure:
    """Erases the earlier and the new list together; `weights` are the ORIGINAL ones (see `original_weights`).

    The alternative is `erase_further`. With the same null space the two give the same model, because the held targets
    are exactly the quadratic that the first edit left behind.
    """
    both = join([earlier.targets, targets]), join([earlier.anchors, anchors])
    return solve(weights, *both, retain, invariants, settings, **options)


def erase_further(
    weights: Mapping[str, Tensor],
    earlier: Rows,
    targets: Rows,
    anchors: Rows,
    retain: Tensor | Rows | None,
    invariants: Tensor | None,
    settings: EraseSettings,
    **options: Any,
) -> Erasure:
    """Erases the new list alone from EDITED weights, the earlier targets held at their anchors; the edits add up."""
    return solve(weights, targets, anchors, retain, invariants, settings, hold=earlier, **options)
