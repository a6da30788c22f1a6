"""From the caller's tensors to a checked problem in working precision and canonical order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .closed_form import constraint_rows
from .draws import generator, permutation
from .rows import ErasePairs, Rows, canonical, canonical_order, check_pairs, pair_up
from .settings import EraseSettings

WORK = torch.float64
"""Precision of the computation: float32 inverses would smear the edit's rank over hundreds of directions."""


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


def prepare(
    targets: Tensor | Rows,
    anchors: Tensor | Rows,
    retain: Tensor | Rows | None,
    invariants: Tensor | None,
    settings: EraseSettings,
    *,
    target_names: Sequence[str] | None = None,
    retain_names: Sequence[str] | None = None,
    hold: Tensor | Rows | None = None,
    probes: tuple[Rows, Rows] | None = None,
) -> Problem:
    """Checks the input, widens it, puts it into canonical order and sets the held-out names aside."""
    target_rows = _rows(targets, target_names, "target")
    anchor_rows = _rows(anchors, target_names, "anchor")
    width = target_rows.width
    if not isinstance(targets, Rows) and isinstance(anchors, Rows):
        raise InputError("Anchors come as grouped rows, so targets must too.")
    check_pairs(target_rows, anchor_rows)
    like = target_rows.values
    retained = _optional(retain, retain_names, "retain", like)
    unchanged = like[:0] if invariants is None else _checked(invariants, "invariant").to(like)
    held = _optional(hold, None, "held", like)
    for part, what in ((anchor_rows.values, "anchor"), (unchanged, "invariant")):
        _same_width(part, width, what)
    for rows, what in ((retained, "retain"), (held, "held")):
        if rows is not None:
            _same_width(rows.values, width, what)
    kept, aside = _hold_out(canonical(retained), settings) if retained is not None else (None, None)
    checked = None
    if probes is not None:
        checked = (_rows(probes[0], None, "probe target"), _rows(probes[1], None, "probe anchor"))
        if checked[0].names != target_rows.names or checked[0].groups != checked[1].groups:
            raise InputError("The probe rows must belong to the targets, in their order, with an anchor row each.")
    order = canonical_order(target_rows)
    with_held = _with_held(target_rows.take_rows(order), anchor_rows.values[order], held)
    pairs = pair_up(*with_held, settings.rows_per_concept, len(target_rows.names))
    return Problem(
        targets=target_rows,
        anchors=anchor_rows,
        pairs=pairs,
        retain=kept if kept is not None else _nothing(like),
        held_out=aside,
        invariants=unchanged,
        constraints=constraint_rows(unchanged, settings.invariants, settings.seed),
        probes=checked,
        settings=settings,
    )


def check_weights(weights: Mapping[str, Tensor], width: int) -> None:
    """Refuses a model without layers or with layers of another width, before any work is done."""
    if not weights:
        raise InputError("There is no layer to edit: the model has none of the cross-attention layers you asked for.")
    for key, weight in weights.items():
        if weight.ndim != 2 or weight.shape[1] != width:
            raise InputError(
                f"The layer {key} has shape {tuple(weight.shape)}, but the text embeddings are {width} wide: "
                "the text encoder does not belong to this model."
            )


def widen(weight: Tensor, key: str, like: Tensor) -> Tensor:
    """One layer's weight in working precision beside the embeddings."""
    wide = weight.to(like)
    # One NaN or Inf anywhere makes the sum NaN or Inf, and no sum of half or single precision values overflows here.
    if not bool(torch.isfinite(wide.sum())):
        raise InputError(f"The layer {key} contains NaN or Inf: the model file is damaged. Use an intact copy.")
    return wide


def _rows(given: Tensor | Rows, names: Sequence[str] | None, what: str) -> Rows:
    if isinstance(given, Rows):
        return given.with_values(_checked(given.values, what))
    if given.ndim != 2:
        raise InputError(
            f"The {what} embeddings must be a matrix with one row each, but their shape is {tuple(given.shape)}."
        )
    return Rows.single(_checked(given, what), names)


def _optional(given: Tensor | Rows | None, names: Sequence[str] | None, what: str, like: Tensor) -> Rows | None:
    if given is None or not len(given.values if isinstance(given, Rows) else given):
        return None
    rows = _rows(given, names, what)
    return rows.with_values(rows.values.to(like))


def _checked(values: Tensor, what: str) -> Tensor:
    wide = values.detach().to(WORK)
    if not bool(torch.isfinite(wide).all()):
        raise InputError(f"The {what} embeddings contain NaN or Inf: the text encoder is damaged or overflowed.")
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
    """Earlier targets join as pairs whose change is zero: that holds their outputs where an earlier edit put them."""
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


def _hold_out(retain: Rows, settings: EraseSettings) -> tuple[Rows, Rows | None]:
    """Sets a share of the names aside, chosen by the seed among the canonically ordered names."""
    count = round(settings.held_out * len(retain.names))
    if not count:
        return retain, None
    shuffled = permutation(len(retain.names), generator(settings.seed, "held-out names"))
    aside = set(shuffled[:count])
    return (
        retain.take_concepts([c for c in range(len(retain.names)) if c not in aside]),
        retain.take_concepts(sorted(aside)),
    )
