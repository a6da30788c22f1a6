"""The certificate of an edit that is already there: at another strength, or read back from a file.

The solve is not repeated. Its rows are gathered again and the edit at hand is measured on them, so the result speaks of
the weights and not of what a header claims about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from .certificate import Certificate, Drift, LayerFacts
from .erase import Progress
from .erasure import Erasure, LayerEdit
from .layer_solver import SolvedLayer, Stopwatch
from .measuring import Measurer
from .problem import prepare, widen
from .settings import EraseSettings
from .text.gather import Gathered


def measure_edits(
    weights: Mapping[str, Tensor],
    edits: Mapping[str, LayerEdit],
    gathered: Gathered,
    settings: EraseSettings,
    progress: Progress | None = None,
    facts: Mapping[str, LayerFacts] | None = None,
) -> Certificate:
    """What `edits` do to the ORIGINAL `weights`. Every retain name counts as kept; `facts`: the solve's, if known."""
    problem = prepare(
        gathered.targets, gathered.anchors, gathered.retain, gathered.invariants, settings, probes=gathered.probes
    )
    measurer, watch = Measurer(problem), Stopwatch()
    kept = torch.ones(len(problem.retain.values), dtype=torch.bool)
    for done, (key, edit) in enumerate(edits.items()):
        if progress:
            progress("certificate", done, len(edits))
        room = facts[key].room if facts else problem.targets.width
        with watch.stage("certificate"):
            weight = widen(weights[key], key, problem.targets.values)
            wide = LayerEdit(edit.up.to(weight), edit.down.to(weight))
            measurer.measure(key, weight, SolvedLayer(wide, kept, torch.tensor(0), room))
    if progress:
        progress("certificate", len(edits), len(edits))
    return measurer.certificate([], watch.seconds)


def certificate_at(
    strength: float,
    weights: Mapping[str, Tensor],
    erasure: Erasure,
    gathered: Gathered,
    progress: Progress | None = None,
) -> Certificate:
    """The certificate of an erasure scaled by `strength`: drift is proportional to it, what is erased is not."""
    whole = erasure.certificate
    if strength == 1:
        return whole
    facts = {fact.key: fact for fact in whole.layers}
    scaled = {key: edit.scaled(strength) for key, edit in erasure.edits.items()}
    measured = measure_edits(weights, scaled, gathered, erasure.settings, progress, facts)
    size = abs(strength)
    return replace(
        whole,
        concepts=measured.concepts,
        drift=tuple(_scaled(part, size) for part in whole.drift),
        sot_drift=None if whole.sot_drift is None else whole.sot_drift * size,
        null_text_drift=tuple(value * size for value in whole.null_text_drift),
        layers=tuple(replace(fact, change=fact.change * size) for fact in whole.layers),
        warnings=measured.warnings,
    )


def _scaled(part: Drift, size: float) -> Drift:
    worst = tuple((name, value * size) for name, value in part.worst)
    return replace(part, median=part.median * size, p95=part.p95 * size, maximum=part.maximum * size, worst=worst)
