"""A LoRA that carries a concept, without it: the same solve, with the LoRA's own change in place of
the model's weight.

A LoRA adds D = up down to a layer. The edit of D is D M for some M, so the result has the LoRA's
rank, and only `down` changes. Layers that read no text are copied as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..certificate.certificate import Drift
from ..certificate.measure import MAX_WORST, certify
from ..engine.layers import SolvedLayer
from ..engine.rows import join, per_concept
from ..erase import erase
from ..erasure import Erasure
from ..errors import FileError
from ..files.lora import read_lora
from ..files.lora_copy import absorbed, change_size
from ..job import Job
from ..model import EditableModel, LazyWeights
from ..progress import Announce, Progress
from .source import ModelSource
from .text_setup import TextSetup

ABOUT = 0.5
"""A LoRA is about a name if it adds at least this share of what it adds to the concept."""
MAX_LIMIT = 10.0
"""Largest side-effect limit that a solve takes."""


@dataclass(frozen=True)
class CleanedLora:
    """What cleaning a LoRA did."""

    erasure: Erasure
    """Its certificate is measured on the factors as they are stored: concepts on what the LoRA
    adds, side effects as in `side_effects_of`.
    """
    tensors: Mapping[str, Tensor]
    """What changes in the file, by key."""
    editable: float
    """Share of the LoRA's change, squared, in layers that were edited."""
    outside: tuple[str, ...]
    """Its other layers."""


def clean_lora(
    lora: Path,
    base: Path,
    job: Job,
    text: TextSetup,
    *,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> CleanedLora:
    """Computes a LoRA without the concepts. Nothing is written.

    Args:
        lora: The LoRA.
        base: A model of its family, for the text encoder and the names of layers.
        job: What to erase and what to protect.
        text: How text becomes embeddings.
        progress: Called as the work advances.
        announce: Receives a sentence before long work.
    """
    source = ModelSource.open(base)
    available = source.every_layer("KV")
    content = read_lora(lora, available)
    edits = {key: edit for key, edit in content.edits.items() if float(edit.norm()) > 0}
    layers = tuple(layer for layer in available if layer.canonical in edits)
    weights = LazyWeights(edits, lambda key: edits[key].delta())
    model = EditableModel(source.architecture, layers, weights)
    if not model.weights:
        raise FileError(f"{lora} changes nothing in the layers that read a prompt.")
    workplace = text.workplace()
    encoder = text.encoder(source, workplace)

    def solved(job: Job) -> tuple[Erasure, dict[str, Tensor], float]:
        """The edit, what it makes of the file, and by how much the LoRA alone overstates drift."""
        erasure = erase(
            job, model, encoder, workplace=workplace, progress=progress, announce=announce
        )
        tensors, made = absorbed(lora, content, erasure.edits)
        stored = replace(erasure, edits=made)
        alone = _measured(stored, model.weights)
        whole = _measured(stored, _Sum(source.model("KV").weights, model.weights))
        ratio = _drift(alone) / (_drift(whole) or 1.0)
        assert alone.certificate is not None
        drift = side_effects_of(stored, source.model("KV").weights, model.weights)
        certificate = replace(alone.certificate, drift=(drift,), warnings=())
        return replace(erasure, certificate=certificate), tensors, ratio

    # What a LoRA adds to other names is next to nothing, so a limit relative to it would stop any
    # edit. The limit is meant for the model with the LoRA.
    erasure, tensors, ratio = solved(job)
    if ratio > 1:
        limit = min(job.settings.drift_budget * ratio, MAX_LIMIT)
        erasure, tensors, _ = solved(
            replace(job, settings=replace(job.settings, drift_budget=limit))
        )
    return CleanedLora(
        erasure,
        tensors,
        sum(float(edits[key].norm()) ** 2 for key in erasure.edits) / change_size(lora),
        content.unmatched,
    )


def side_effects_of(
    stored: Erasure, base: Mapping[str, Tensor], added: Mapping[str, Tensor]
) -> Drift:
    """How far every listed name moved, those set aside to judge by included.

    A name that the LoRA is about moved relative to what the LoRA adds to it: a weak LoRA changes
    little of the model, and can still lose all that it does for a name. Other names moved relative
    to the model with the LoRA.

    Args:
        stored: The edits as they are stored, with its rows.
        base: Weights of the model.
        added: What the LoRA adds to them.
    """
    rows = next(iter(stored.rows.values()))
    judges = [rows.witnesses if rows.witnesses_are_held_out else None, rows.held_out]
    listed = join([rows.retain, *(part for part in judges if part is not None)])
    names, index, values = listed.labels(), listed.group_index(), listed.values.double()
    targets = rows.targets.values.double()
    layers = []
    for key, edit in stored.edits.items():
        own = added[key].double()
        change = edit.up @ edit.down[:, : rows.width]

        def squares(matrix: Tensor) -> Tensor:
            return per_concept((values @ matrix.T).square().sum(dim=1), index, len(names))

        whole = base[key].double() + own
        moved, adds, size = squares(change), squares(own), squares(whole).clamp(min=1e-30)
        usual = (targets @ own.T).norm() / (targets @ whole.T).norm()
        is_about = adds / size >= (ABOUT * usual) ** 2
        layers.append((moved / torch.where(is_about, adds, size)).sqrt())
    drift = torch.stack(layers).median(dim=0).values
    ordered, order = drift.sort(descending=True)
    worst = tuple((names[i], float(drift[i])) for i in order[:MAX_WORST].tolist())
    quantiles = drift.quantile(torch.tensor([0.5, 0.95]).double()).tolist()
    where = "context" if any(listed.in_context) else "bare"
    return Drift(
        "kept", where, len(names), *quantiles, float(ordered[0]), worst, float(drift.mean())
    )


class _Sum(Mapping[str, Tensor]):
    """Two layers' weights added up, one at a time."""

    def __init__(self, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        self._first, self._second = first, second

    def __getitem__(self, key: str) -> Tensor:
        return self._first[key].double() + self._second[key].double()

    def __iter__(self) -> Iterator[str]:
        return iter(self._second)

    def __len__(self) -> int:
        return len(self._second)


def _measured(stored: Erasure, weights: Mapping[str, Tensor]) -> Erasure:
    """The same with a certificate of its edits on layers with these weights."""
    rows, settings = next(iter(stored.rows.values())), stored.settings
    assert settings is not None
    kept = torch.ones(len(rows.retain.values), dtype=torch.bool)
    layers = {
        key: SolvedLayer(
            replace(stored.edits[key], down=stored.edits[key].down[:, : rows.width]),
            kept,
            kept.sum() * 0,
            rows.width,
        )
        for key in weights
        if key in stored.edits
    }
    return replace(stored, certificate=certify(layers, rows, settings, weights))


def _drift(erasure: Erasure) -> float:
    """Of the names that judge it."""
    summary = erasure.summary()
    effects = None if summary is None else summary.side_effects
    return 0.0 if effects is None else effects.mean
