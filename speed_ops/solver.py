"""Embeddings and weights in, a certified erasure out: prepare, settle what `auto` chooses, edit the
layers, measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .certificate.certificate import Certificate
from .certificate.measure import certify
from .engine.auto import settle, settle_rows
from .engine.edits import LayerEdit
from .engine.layers import Solver
from .engine.problem import Further, check_weights, prepare
from .engine.rows import Rows, join
from .engine.settings import EraseSettings
from .progress import Progress, Stopwatch, silent

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
        """All edits balanced (see `LayerEdit.balanced`) and the largest relative error of any
        layer.
        """
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
    progress: Progress | None = None,
    **further: Unpack[Further],
) -> Erasure:
    """Erases targets from the layers and says what that did.

    `weights`: {layer key: `o x d`}, read one at a time. `targets`, `anchors` (`n x d`) and `retain`
    (`N x d`): one concept a row, or `Rows` for several rows a concept. `invariants` (`k x d`):
    every row of the empty prompt, SOT first. `further`: names, rows to judge by and more, see
    `Further`. `progress(stage, done, total)` may raise to interrupt: nothing is half done.
    """
    settings = settle_rows(
        settings or EraseSettings(), len(targets.names if isinstance(targets, Rows) else targets)
    )
    report, watch = progress or silent, Stopwatch()
    report("prepare", 0, 1)
    with watch.part("prepare"):
        problem = prepare(targets, anchors, retain, invariants, settings, **further)
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
    *rest: Any,
    **options: Any,
) -> Erasure:
    """Erases the earlier and the new list together; `weights` are the ORIGINAL ones (see
    `original_weights`).

    The alternative is `erase_further`. With the same null space the two give the same model,
    because the held targets are exactly the quadratic that the first edit left behind. `rest` and
    `options` as for `solve`.
    """
    both = join([earlier.targets, targets]), join([earlier.anchors, anchors])
    return solve(weights, *both, *rest, **options)


def erase_further(
    weights: Mapping[str, Tensor],
    earlier: Rows,
    targets: Rows,
    anchors: Rows,
    *rest: Any,
    **options: Any,
) -> Erasure:
    """Erases the new list alone from EDITED weights, the earlier targets held at their anchors; the
    edits add up.

    `rest` and `options` as for `solve`.
    """
    return solve(weights, targets, anchors, *rest, hold=earlier, **options)
