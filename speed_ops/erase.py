"""The path of an erasure, top to bottom.

    a job -> encode (`gather`) -> solve and certify (`solver`) -> an outcome

The nodes and the command line both call `erase`: only who encodes text, where weights are read from and where the edit
goes differ between the two. Who has embeddings instead of names calls `solve` directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from .certificate.certificate import Certificate
from .certificate.forecast import Forecast, forecast
from .certificate.measure import certificate_at
from .concepts.concept_list import Concept
from .concepts.retain_set import drop_targets
from .encoders.cache import CachedEncoder
from .encoders.encoder import TextEncoder
from .engine.edits import LayerEdit
from .engine.problem import prepare
from .engine.rows import Rows
from .engine.settings import EraseSettings
from .errors import InputError
from .files.recipe import Recipe
from .gather import Gathered, gather, read_bare_names, read_concepts, reading
from .job import Job
from .models.families import Architecture, LayerKey
from .progress import Announce, Progress
from .solver import solve


@dataclass(frozen=True, eq=False)
class EditableModel:
    """A model as an erasure sees it, wherever it comes from."""

    architecture: Architecture
    layers: tuple[LayerKey, ...]
    weights: Mapping[str, Tensor]
    """{canonical key: `o x d`}, the weights in effect, read one at a time."""


def erase(
    job: Job,
    model: EditableModel,
    encoder: TextEncoder | CachedEncoder,
    *,
    hold: Rows | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Outcome:
    """Encodes, solves and certifies, at strength 1. `hold`: targets that were erased from the model before.

    `device`: where the edit is computed, and then handed back from to the CPU; None: where the rows are.
    """
    rows = gather(encoder, model.weights, job, progress, announce)
    encoder.close()  # SDXL's two take a gigabyte, which solving can use
    placed = rows if device is None else rows.to(device)
    further = placed.judges(job.concepts)
    further["hold"] = hold
    erasure = solve(
        model.weights,
        placed.targets,
        placed.anchors,
        placed.retain,
        placed.invariants,
        job.settings,
        progress=progress,
        **further,
    )
    return Outcome(
        edits={key: edit if device is None else edit.to("cpu") for key, edit in erasure.edits.items()},
        architecture=model.architecture,
        layers=model.layers,
        concepts=job.concepts,
        certificate=erasure.certificate,
        full_certificate=erasure.certificate,
        rows=rows,
        settings=erasure.settings,
    )


def at_strength(
    outcome: Outcome, strength: float, weights: Mapping[str, Tensor], progress: Progress | None = None
) -> Outcome:
    """The outcome for an edit that is applied with another strength, its certificate measured at that strength."""
    whole, rows = outcome.full_certificate, outcome.rows
    if whole is None or rows is None or outcome.settings is None:
        return replace(outcome, strength=strength)
    judges = rows.judges(outcome.concepts)
    problem = prepare(rows.targets, rows.anchors, None, rows.invariants, outcome.settings, **judges)
    certificate = certificate_at(strength, whole, weights, outcome.edits, problem, progress)
    return replace(outcome, strength=strength, certificate=certificate)


def predict(
    job: Job, model: EditableModel, encoder: TextEncoder | CachedEncoder, progress: Progress | None = None
) -> Forecast:
    """What a job endangers: its kept names, bare, by how far an unprotected edit would move them."""
    retain, _ = drop_targets(job.retain, job.concepts)
    reader = reading(encoder)
    concepts = read_concepts(reader, job.concepts, job.plan, progress)
    everything = replace(job.plan, judges=0, considered=len(retain))
    names = read_bare_names(reader, retain, everything, job.settings, progress)
    return forecast(model.weights, concepts.targets, concepts.anchors, names.rows, job.settings)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a job returns: edits for one model, what is known about them, and what was written."""

    edits: dict[str, LayerEdit]
    """By canonical key; at strength 1."""
    architecture: Architecture
    layers: tuple[LayerKey, ...]
    concepts: tuple[Concept, ...] = ()
    strength: float = 1.0
    """What the edits are, or are to be, applied with."""
    certificate: Certificate | None = None
    """At that strength; None for a LoRA from a file that carries none."""
    full_certificate: Certificate | None = None
    """At strength 1."""
    rows: Gathered | None = None
    """What the text side gave; None for edits from a file."""
    settings: EraseSettings | None = None
    """As solved, with everything settled that `auto` chooses."""
    recipe: Recipe | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    """The file it was read from, if it was."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """What was written, by kind."""
    lora_error: float | None = None
    """Relative error of the stored LoRA against the exact edit."""
    rounding: float | None = None
    """Norm of what the written copy's own precision lost of the edit, relative to the edit."""
    seconds: float = 0.0

    @property
    def applied(self) -> dict[str, LayerEdit]:
        """The edits times the strength."""
        if self.strength == 1:
            return self.edits
        return {key: edit.scaled(self.strength) for key, edit in self.edits.items()}

    @property
    def targets(self) -> Rows | None:
        """Rows that a later erasure must hold where this one put them."""
        return self.rows.targets if self.rows is not None else None

    def check_fits(self, architecture: Architecture, layers: Sequence[LayerKey]) -> None:
        """Refuses a model of another family or with other layers, by name."""
        if architecture.name != self.architecture.name:
            raise InputError(
                f"The erasure was made for {self.architecture.title}, but the model is {architecture.title}: make one "
                "for this model with SPEED Erase or SPEED Apply Recipe."
            )
        shapes = {layer.canonical: layer.shape for layer in layers}
        for key, edit in self.edits.items():
            if shapes.get(key) != (edit.up.shape[0], edit.down.shape[1]):
                raise InputError(
                    f"The erasure edits {key}, which is missing from this model or has another shape: make a new "
                    "erasure for it."
                )

    def get_ram_usage(self) -> int:
        """Bytes held; ComfyUI asks for it when memory runs short."""
        return sum(edit.up.nbytes + edit.down.nbytes for edit in self.edits.values())

    def text(self) -> str:
        """The report for people: the certificate, what happened to the lists, and notes."""
        lines = [] if self.certificate is None else [self.certificate.text()]
        if self.strength != 1:
            lines.insert(0, f"At strength {self.strength:g}:")
        if self.rows is not None:
            lines += _about_lists(self.rows)
        return "\n".join([*lines, *self.notes])


def _about_lists(rows: Gathered) -> Iterator[str]:
    if rows.dropped:
        yield _not_kept(rows.dropped, "it contains an erased concept", "they contain an erased concept")
    if rows.unusable:
        yield _not_kept(rows.unusable, "it has no tokens or too many", "they have no tokens or too many")
    if rows.left_out:
        yield f"{rows.left_out:,} names of the list were left out at this effort: ask for more to use them all."
    inside = f"; {rows.in_context} names were also kept inside prompts" if rows.in_context else ""
    taken = f"in {sum(rows.seconds.values()):.1f} s"
    yield f"{rows.encoded} texts encoded and {rows.reused} read from the cache {taken}{inside}."


def _not_kept(names: Sequence[str], why_one: str, why_many: str) -> str:
    if len(names) == 1:
        return f"1 name was not kept because {why_one}: {names[0]}."
    return f"{len(names)} names were not kept because {why_many}: {_few(names)}."


def _few(items: Sequence[str]) -> str:
    shown = ", ".join(items[:5])
    return shown if len(items) <= 5 else f"{shown}, ..."
