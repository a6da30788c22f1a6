"""A LoRA that carries a concept, without it: the same solve, with the LoRA's own change in place of
the model's weight.

A LoRA adds D = up down to a layer. The edit of D is D M for some M, so the result has the LoRA's
rank, and only `down` changes. Layers that read no text are copied as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from ..certificate.stored_edits import certify_edits, effects_on_names
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

MAX_LIMIT = 10.0
"""Largest side-effect limit that a solve takes."""


@dataclass(frozen=True)
class CleanedLora:
    """What cleaning a LoRA did."""

    erasure: Erasure
    """Its certificate is measured on the factors as they are stored: concepts on what the LoRA
    adds, side effects as in `effects_on_names`.
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
        rows = next(iter(stored.rows.values()))
        drift = effects_on_names(made, rows, source.model("KV").weights, model.weights)
        certificate = replace(alone.certificate, drift=drift, warnings=())
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
    return replace(stored, certificate=certify_edits(stored.edits, rows, settings, weights))


def _drift(erasure: Erasure) -> float:
    """Of the names that judge it."""
    summary = erasure.summary()
    effects = None if summary is None else summary.side_effects
    return 0.0 if effects is None else effects.mean
