"""From the caller's tensors to a checked problem in working precision and canonical order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor

from ..errors import InputError
from .closed_form import constraint_rows
from .draws import generator, permutation
from .rows import ErasePairs, Rows, canonical, canonical_order, check_pairs, pair_up
from .settings import EraseSettings

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

WORK = torch.float64
"""Precision of the computation: float32 inverses would smear the edit's rank over hundreds of
directions.
"""


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything of an erasure but the layers' weights."""

    targets: Rows
    anchors: Rows
    pairs: ErasePairs
    """Targets, anchors and held rows, weighted and compressed."""
    retain: Rows
    """Kept rows that the edit is made with, in canonical order."""
    held_out: Rows | None
    """Kept names set aside to judge preservation on."""
    invariants: Tensor
    """`k x d`: all rows of the empty prompt, SOT first; `0 x d` if none were given."""
    constraints: Tensor
    """`k' x d`: the rows of C2."""
    probes: tuple[Rows, Rows] | None
    """Target and anchor rows in contexts that the edit is not made from."""
    settings: EraseSettings
    witnesses: Rows | None = None
    """Names whose drift `auto` chooses by."""
    spared: bool = False
    """Whether those were set aside from the edit, or are the kept names themselves because there
    are too few.
    """
    trial: tuple[Rows, Rows] | None = None
    """Target and anchor rows that `auto` chooses by, in contexts used for nothing else."""
    kinds: tuple[str, ...] = ()
    """What kind of thing each target is, for the verdict; empty where the caller said nothing."""


class Further(TypedDict, total=False):
    """What a caller may add to the rows of an erasure. Where names to judge by are missing, some
    kept ones serve.
    """

    target_names: Sequence[str] | None
    retain_names: Sequence[str] | None
    hold: Tensor | Rows | None
    """Targets of an earlier erasure that the weights already contain."""
    probes: tuple[Rows, Rows] | None
    """Target and anchor rows in contexts that the edit is not made from, for the certificate."""
    held_out: Rows | None
    """Names that the edit is not made with, for the certificate."""
    trial: tuple[Rows, Rows] | None
    """Like `probes`, for `auto` to choose by."""
    witnesses: Rows | None
    """Like `held_out`, for `auto` to choose by."""
    kinds: Sequence[str]
    """What kind of thing each target is (style, object, ...), which decides where its verdict
    turns.
    """


@dataclass(frozen=True, eq=False)
class RowSet:
    """All rows of an erasure, for one way in which text enters the model."""

    targets: Rows
    anchors: Rows
    """Row by row the anchor's counterpart of `targets`: same template, same position."""
    retain: Rows
    invariants: Tensor
    """`k x d`: all rows of the empty prompt, its start token first where there is one."""
    probes: tuple[Rows, Rows]
    """Targets and anchors in contexts that the rows above do not contain."""
    trial: tuple[Rows, Rows] | None
    """The like in still other contexts, for `auto` to choose by."""
    held_out: Rows | None
    """Names in contexts that the edit knows neither of; None: the engine sets some of `retain`
    aside.
    """
    witnesses: Rows | None
    """The like, for `auto` to choose by."""

    def to(self, device: torch.device | str) -> Self:
        """The same rows on another device: an edit is computed where its rows are."""

        def moved(rows: Rows) -> Rows:
            return rows.with_values(rows.values.to(device))

        return replace(
            self,
            targets=moved(self.targets),
            anchors=moved(self.anchors),
            retain=moved(self.retain),
            invariants=self.invariants.to(device),
            probes=(moved(self.probes[0]), moved(self.probes[1])),
            trial=None if self.trial is None else (moved(self.trial[0]), moved(self.trial[1])),
            held_out=None if self.held_out is None else moved(self.held_out),
            witnesses=None if self.witnesses is None else moved(self.witnesses),
        )

    def without_kept(self) -> Self:
        """Without the kept rows, which are the bulk: enough to measure what is left at another
        strength.
        """
        return replace(self, retain=self.retain.take_concepts([]), held_out=None, witnesses=None)

    def judges(self, kinds: Sequence[str]) -> Further:
        """What the edit of concepts of these kinds is chosen and judged by."""
        return {
            "probes": self.probes,
            "held_out": self.held_out,
            "trial": self.trial,
            "witnesses": self.witnesses,
            "kinds": kinds,
        }


WITNESS_SHARE, MOST_WITNESSES, FEWEST_NAMES = 0.15, 60, 20
"""Kept names that `auto` sets aside where the caller gave none: a share of them, enough for a mean
that is good to a tenth; from fewer names than the last none can be spared."""


def prepare(
    targets: Tensor | Rows,
    anchors: Tensor | Rows,
    retain: Tensor | Rows | None,
    invariants: Tensor | None,
    settings: EraseSettings,
    **further: Unpack[Further],
) -> Problem:
    """Checks the input, widens it, puts it into canonical order and sets names aside to judge
    by.
    """
    target_rows = _rows(targets, further.get("target_names"), "target")
    anchor_rows = _rows(anchors, further.get("target_names"), "anchor")
    width = target_rows.width
    if not isinstance(targets, Rows) and isinstance(anchors, Rows):
        raise InputError("Anchors come as grouped rows, so targets must too.")
    check_pairs(target_rows, anchor_rows)
    like = target_rows.values
    retained = _optional(retain, further.get("retain_names"), "retain", like)
    unchanged = like[:0] if invariants is None else _checked(invariants, "invariant").to(like)
    held = _optional(further.get("hold"), None, "held", like)
    aside = _optional(further.get("held_out"), None, "held-out", like)
    judges = _optional(further.get("witnesses"), None, "witness", like)
    for part, what in ((anchor_rows.values, "anchor"), (unchanged, "invariant")):
        _same_width(part, width, what)
    for rows, what in (
        (retained, "retain"),
        (held, "held"),
        (aside, "held-out"),
        (judges, "witness"),
    ):
        if rows is not None:
            _same_width(rows.values, width, what)
    kept = _nothing(like) if retained is None else canonical(retained)
    if aside is None:
        kept, aside = _set_aside(
            kept, round(settings.held_out * len(kept.names)), settings.seed, "held-out names"
        )
    spared = judges is not None
    if judges is None and settings.preset_name == "auto" and settings.prior != "null_space":
        count = min(MOST_WITNESSES, round(WITNESS_SHARE * len(kept.names)))
        kept, judges = _set_aside(
            kept, count if len(kept.names) >= FEWEST_NAMES else 0, settings.seed, "witnesses"
        )
        spared = judges is not None
        judges = judges or (kept if len(kept.names) else None)
    order = canonical_order(target_rows)
    with_held = _with_held(target_rows.take_rows(order), anchor_rows.values[order], held)
    pairs = pair_up(*with_held, settings.rows_per_concept, len(target_rows.names))
    return Problem(
        targets=target_rows,
        anchors=anchor_rows,
        pairs=pairs,
        retain=kept,
        held_out=aside,
        invariants=unchanged,
        constraints=constraint_rows(unchanged, settings.invariants, settings.seed),
        probes=_checked_pairs(further.get("probes"), target_rows, "probe"),
        settings=settings,
        witnesses=judges,
        spared=spared,
        trial=_checked_pairs(further.get("trial"), target_rows, "trial"),
        kinds=tuple(further.get("kinds", ())),
    )


def check_weights(weights: Mapping[str, Tensor], width: int) -> None:
    """Refuses a model without layers or with layers of another width, before any work is done."""
    if not weights:
        raise InputError(
            "There is no layer to edit: the model has none of the cross-attention layers you asked"
            " for."
        )
    for key, weight in weights.items():
        if weight.ndim != 2 or weight.shape[1] != width:
            raise InputError(
                f"The layer {key} has shape {tuple(weight.shape)}, but the text embeddings are"
                f" {width} wide: the text encoder does not belong to this model."
            )


def widen(weight: Tensor, key: str, like: Tensor) -> Tensor:
    """One layer's weight in working precision beside the embeddings."""
    wide = weight.to(like)
    # One NaN or Inf anywhere makes the sum NaN or Inf, and no sum of half or single precision
    # values overflows here.
    size = float(torch.linalg.vector_norm(wide, 1))
    if not math.isfinite(size):
        raise InputError(
            f"The layer {key} contains NaN or Inf: the model file is damaged. Use an intact copy."
        )
    if size == 0:
        raise InputError(
            f"The layer {key} contains only zeros: the model file is damaged. Use an intact copy."
        )
    return wide


def _rows(given: Tensor | Rows, names: Sequence[str] | None, what: str) -> Rows:
    if isinstance(given, Rows):
        return given.with_values(_checked(given.values, what))
    if given.ndim != 2:
        raise InputError(
            f"The {what} embeddings must be a matrix with one row each, but their shape is"
            f" {tuple(given.shape)}."
        )
    return Rows.single(_checked(given, what), names)


def _checked_pairs(
    given: tuple[Rows, Rows] | None, targets: Rows, what: str
) -> tuple[Rows, Rows] | None:
    if given is None or not len(given[0].values):
        return None
    rows = (_rows(given[0], None, f"{what} target"), _rows(given[1], None, f"{what} anchor"))
    if rows[0].names != targets.names or rows[0].groups != rows[1].groups:
        raise InputError(
            f"The {what} rows must belong to the targets, in their order, with an anchor row each."
        )
    return rows


def _optional(
    given: Tensor | Rows | None, names: Sequence[str] | None, what: str, like: Tensor
) -> Rows | None:
    if given is None or not len(given.values if isinstance(given, Rows) else given):
        return None
    rows = _rows(given, names, what)
    return rows.with_values(rows.values.to(like))


def _checked(values: Tensor, what: str) -> Tensor:
    wide = values.detach().to(WORK)
    if not bool(torch.isfinite(wide).all()):
        raise InputError(
            f"The {what} embeddings contain NaN or Inf: the text encoder is damaged or overflowed."
        )
    return wide


def _same_width(values: Tensor, width: int, what: str) -> None:
    if values.shape[1] != width:
        raise InputError(
            f"The {what} embeddings are {values.shape[1]} wide, but the targets are {width} wide: "
            "encode all of them with the same text encoder."
        )


def _nothing(like: Tensor) -> Rows:
    return Rows(like[:0], (), (), ())


def _with_held(targets: Rows, anchors: Tensor, held: Rows | None) -> tuple[Rows, Tensor]:
    """Earlier targets join as pairs whose change is zero: that holds their outputs where an earlier
    edit put them.
    """
    if held is None:
        return targets, anchors
    groups = targets.groups + tuple(group + len(targets.names) for group in held.groups)
    joined = Rows(
        torch.cat([targets.values, held.values]),
        groups,
        targets.names + held.names,
        targets.in_context + held.in_context,
    )
    return joined, torch.cat([anchors, held.values])


def _set_aside(names: Rows, count: int, seed: int, purpose: str) -> tuple[Rows, Rows | None]:
    """Some names apart from the others, chosen by the seed among the canonically ordered names."""
    if not count:
        return names, None
    aside = set(permutation(len(names.names), generator(seed, purpose))[:count])
    rest = [c for c in range(len(names.names)) if c not in aside]
    return names.take_concepts(rest), names.take_concepts(sorted(aside))
