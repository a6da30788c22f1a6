"""From the caller's rows to checked ones in working precision, with names set aside to judge by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .draws import generator, permutation
from .pairs import check_pairs
from .rows import Rows, RowSet, canonical
from .settings import EraseSettings

WORK = torch.float64
"""Precision of the computation: float32 inverses would smear the edit's rank over hundreds of
directions."""
WITNESS_SHARE, MAX_WITNESSES, MIN_NAMES = 0.15, 60, 20
"""Kept names that `auto` sets aside where the caller gave none: a share of them, enough for a mean
that is good to a tenth. Lists shorter than the last number cannot spare any."""

_LABELS = {
    "targets": "target",
    "anchors": "anchor",
    "invariants": "invariant",
    "probes": "probe",
    "held_out": "held-out",
    "witnesses": "witness",
    "hold": "held",
}


def checked(rows: RowSet) -> RowSet:
    """The same rows in working precision on the targets' device; refuses what cannot be solved."""
    device, width = rows.targets.values.device, rows.width

    def widen_rows(values: Tensor, field: str) -> Tensor:
        label = _LABELS.get(field, field)
        wide = values.detach().to(device, WORK)
        if not bool(torch.isfinite(wide).all()):
            raise InputError(
                f"The {label} embeddings contain NaN or Inf: the text encoder is damaged or"
                " overflowed. Use an intact copy, or float32."
            )
        if len(wide) and wide.shape[1] != width:
            raise InputError(
                f"The {label} embeddings are {wide.shape[1]} wide, but the targets are {width}"
                " wide. Encode all with the same text encoder."
            )
        return wide if len(wide) else wide.new_zeros((0, width))

    rows = rows.map(widen_rows)
    pairs = torch.cat([rows.targets.values, rows.anchors.values])
    if len(rows.targets.values) > 1 and bool((pairs == pairs[0]).all()):
        raise InputError(
            "Every prompt has the same embedding: the text encoder is damaged. Use an intact copy."
        )
    check_pairs(rows.targets, rows.anchors)
    for label, pair in (("probe", rows.probes), ("trial", rows.trial)):
        if pair is None or _is_empty(pair):
            continue
        if pair[0].names != rows.targets.names or pair[0].groups != pair[1].groups:
            raise InputError(
                f"The {label} rows don't match the targets. Give them in the order of the targets,"
                " with a replacement row each."
            )
    optional = ("probes", "trial", "held_out", "witnesses", "hold")
    empty: dict[str, Any] = {name: None for name in optional if _is_empty(getattr(rows, name))}
    return replace(rows, **empty)


def prepare(rows: RowSet, settings: EraseSettings) -> RowSet:
    """Checked rows with the kept names in canonical order and some of them set aside."""
    rows = checked(rows)
    retain, held_out, witnesses = canonical(rows.retain), rows.held_out, rows.witnesses
    if held_out is None:
        count = round(settings.held_out * len(retain.names))
        retain, held_out = _set_aside(retain, count, settings.seed, "held-out names")
    witnesses_are_held_out = witnesses is not None
    if witnesses is None and settings.preset_name == "auto" and settings.prior == "soft":
        names = len(retain.names)
        count = min(MAX_WITNESSES, round(WITNESS_SHARE * names)) if names >= MIN_NAMES else 0
        retain, witnesses = _set_aside(retain, count, settings.seed, "witnesses")
        witnesses_are_held_out = witnesses is not None
        witnesses = witnesses or (None if _is_empty(retain) else retain)
    return replace(
        rows,
        retain=retain,
        held_out=held_out,
        witnesses=witnesses,
        witnesses_are_held_out=witnesses_are_held_out,
    )


def check_weights(weights: Mapping[str, Tensor], width: int) -> None:
    """Refuses a model without layers or with layers of another width, before any work is done."""
    if not weights:
        raise InputError(
            "There is no layer to edit: the model has none of the cross-attention layers you asked"
            " for."
        )
    for key in weights:
        shape = tuple(weights[key].shape)  # a name for the weight would hold it during the next
        if len(shape) != 2 or shape[1] != width:
            raise InputError(
                f"The layer {key} has shape {shape}, but the text embeddings are"
                f" {width} wide: the text encoder does not belong to this model."
            )


def widen(weight: Tensor, key: str, like: Tensor) -> Tensor:
    """One layer's weight in working precision on the device of the embeddings.

    Args:
        weight: `o x d`.
        key: The layer's key, for messages.
        like: Embeddings with the precision and device of the result.
    """
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


def _is_empty(rows: Rows | tuple[Rows, Rows] | None) -> bool:
    first = rows[0] if isinstance(rows, tuple) else rows
    return first is None or not len(first.values)


def _set_aside(names: Rows, count: int, seed: int, purpose: str) -> tuple[Rows, Rows | None]:
    """Splits off some names, chosen by the seed among the canonically ordered names."""
    if not count:
        return names, None
    aside = set(permutation(len(names.names), generator(seed, purpose))[:count])
    remaining = [concept for concept in range(len(names.names)) if concept not in aside]
    return names.take_concepts(remaining), names.take_concepts(sorted(aside))
