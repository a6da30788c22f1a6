"""Embeddings and weights in, a certified erasure out: prepare, settle, edit the layers, measure.

If you have names and a model instead of embeddings, call `erase.erase`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from .certificate.certificate import Alternatives
from .certificate.measure import certify
from .engine.auto import Settled, settle, settle_rows
from .engine.edits import LayerEdit
from .engine.pairs import pair_up
from .engine.prepare import check_weights, prepare
from .engine.rows import RowSet
from .engine.settings import EraseSettings
from .engine.solver import Solver
from .erasure import Erasure
from .inputs import TOKENS
from .progress import Progress, Stopwatch, silent


def solve(
    weights: Mapping[str, Tensor],
    rows: RowSet,
    settings: EraseSettings | None = None,
    *,
    stored: Mapping[str, LayerEdit] | None = None,
    choice: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Erasure:
    """Erases targets from the layers and measures what that did.

    Args:
        weights: {layer key: `o x d`}, read one at a time.
        rows: What to erase, what it becomes, and what must stay; `RowSet.of` makes one from plain
            matrices.
        settings: Every choice; the paper's few-concept values if none are given.
        stored: Edits that a file holds: the certificate is theirs, and that of the computed ones
            is the result's `full_certificate`.
        choice: What `auto` chose when they were made; nothing is chosen again then.
        progress: Called with (stage, done, total). It may raise to interrupt: nothing is half done.
    """
    settings = settle_rows(settings or EraseSettings(), len(rows.targets.names))
    report, watch = progress or silent, Stopwatch()
    report("prepare", 0, 1)
    with watch.part("prepare"):
        rows = prepare(rows, settings)
        check_weights(weights, rows.width)
        pairs = pair_up(rows, settings)
    if choice:
        settled = Settled(settings.replace(**choice))
    else:
        settled = settle(rows, pairs, settings, weights, watch)
    settings = settled.settings
    report("prepare", 1, 1)
    solver = Solver(rows, pairs, settings, weights, watch, report, settled.span)
    layers = solver.solve()
    certificate_of = partial(
        certify,
        rows=rows,
        settings=settings,
        weights=weights,
        energy_lost=pairs.energy_lost,
        rounds=solver.rounds,
        curve=settled.curve,
        watch=watch,
        progress=report,
    )
    certificate, full = certificate_of(layers), None
    if stored:
        full = certificate
        held = {key: _like(stored[key], layer.edit) for key, layer in layers.items()}
        certificate = certificate_of(
            {key: replace(layer, edit=held[key]) for key, layer in layers.items()}
        )
    return Erasure(
        edits={key: layer.edit for key, layer in layers.items()},
        certificate=certificate,
        settings=settings,
        rows={TOKENS: rows},
        full_certificate=full,
        alternatives=Alternatives(settled.candidates) if settled.candidates else None,
    )


def _like(edit: LayerEdit, other: LayerEdit) -> LayerEdit:
    """An edit in the precision and on the device of another."""
    return LayerEdit(edit.up.to(other.up), edit.down.to(other.down))
