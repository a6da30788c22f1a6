"""The path of an erasure, top to bottom.

    a job -> encode (`gather`) -> solve and certify (`solver`) -> an outcome

The nodes and the command line both call `erase`: only who encodes text, where weights are read from
and where the edit goes differ between the two. Who has embeddings instead of names calls `solve`
directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from .certificate.certificate import Certificate
from .certificate.forecast import Forecast, forecast
from .certificate.measure import certificate_at
from .embed import Gathered, gather, read_bare_names, read_concepts, reading
from .encoders.cache import CachedEncoder
from .encoders.encoder import TextEncoder
from .encoders.push import Push
from .engine.edits import LayerEdit
from .engine.problem import RowSet, prepare
from .engine.rows import Rows
from .engine.settings import EraseSettings
from .errors import InputError, NoRoomError
from .job import Job
from .models.architecture import Architecture, LayerKey
from .pooled import TextColumns, over_all_columns, text_columns_of
from .progress import Announce, Progress
from .recipe import Recipe
from .solver import Erasure as SolvedErasure
from .solver import solve
from .text.concept_list import Concept
from .text.retain_set import drop_targets


@dataclass(frozen=True, eq=False)
class EditableModel:
    """A model as an erasure sees it, wherever it comes from."""

    architecture: Architecture
    layers: tuple[LayerKey, ...]
    """All that may be edited, that of the pooled path among them."""
    stored: Mapping[str, Tensor]
    """{canonical key: whole weight}, as in effect, read one at a time."""
    push: Push | None = None
    """What it does to each row of text before those layers; None: they read the text encoder's
    output.
    """

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """{canonical key: `o x d`} of the layers that read a prompt row by row."""
        return TextColumns(
            self.stored, [layer.canonical for layer in self.layers if layer.kind != "pooled"]
        )

    @property
    def pooled(self) -> Mapping[str, Tensor]:
        """{canonical key: `o x pooled width`}: what the pooled path's layer has for text; empty
        where there is none.
        """
        path = self.architecture.pooled
        keys = [layer.canonical for layer in self.layers if layer.kind == "pooled"]
        return TextColumns(self.stored, keys, None if path is None else path.text_width)


def erases_pooled(job: Job, model: EditableModel, encoder: TextEncoder | CachedEncoder) -> bool:
    """Whether a job edits the pooled path: it is asked to, the model has one, and the encoder can
    speak for it.
    """
    plain = encoder.encoder if isinstance(encoder, CachedEncoder) else encoder
    return job.settings.pooled and len(model.pooled) > 0 and plain.pooled_width > 0


def erase(
    job: Job,
    model: EditableModel,
    encoder: TextEncoder | CachedEncoder,
    *,
    hold: Held | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Erasure:
    """Encodes, solves and certifies, at strength 1. `hold`: targets that were erased from the model
    before.

    `device`: where the edit is computed, and then handed back from to the CPU; None: where the rows
    are.
    """
    pools = erases_pooled(job, model, encoder)
    rows = gather(encoder, model.weights, job, progress, announce, pools=pools)
    encoder.close()  # SDXL's two take a gigabyte, which solving can use
    placed = rows if device is None else rows.to(device)
    held = hold or Held()
    erasure = _solved(model.weights, placed, job, held.rows, progress)
    edits, certificate, notes = dict(erasure.edits), erasure.certificate, []
    if placed.pooled is not None:
        still = None if progress is None else partial(_still, progress, len(edits))
        try:
            second = _solved(model.pooled, placed.pooled, job, held.pooled, still)
        except NoRoomError:
            notes.append(NO_POOLED_ROOM)
        else:
            for key, edit in second.edits.items():
                edits[key] = over_all_columns(edit, model.stored[key].shape[1])
            certificate = replace(certificate, pooled=second.certificate)
    return Erasure(
        edits={key: edit if device is None else edit.to("cpu") for key, edit in edits.items()},
        architecture=model.architecture,
        layers=model.layers,
        concepts=job.concepts,
        certificate=certificate,
        full_certificate=certificate,
        rows=rows,
        settings=erasure.settings,
        notes=tuple(notes),
    )


NO_POOLED_ROOM = (
    "The pooled embeddings of the kept names fill their space, so the pooled path was left as it"
    " is: keep fewer names, or use the preset auto."
)


@dataclass(frozen=True, eq=False)
class Held:
    """Targets of earlier erasures, to be held where those put them."""

    rows: Rows | None = None
    pooled: Rows | None = None
    """The pooled embeddings of those whose erasure edited the pooled path."""


def _solved(
    weights: Mapping[str, Tensor],
    rows: RowSet,
    job: Job,
    hold: Rows | None,
    progress: Progress | None,
) -> SolvedErasure:
    further = rows.judges([concept.kind for concept in job.concepts])
    further["hold"] = hold
    parts = rows.targets, rows.anchors, rows.retain, rows.invariants
    return solve(weights, *parts, job.settings, progress=progress, **further)


def _still(progress: Progress, count: int, *_: object) -> None:
    """Small work at the end, which has no bar of its own and can be stopped."""
    progress("certificate", count, count)


def at_strength(
    outcome: Erasure, strength: float, model: EditableModel, progress: Progress | None = None
) -> Erasure:
    """The outcome for an edit that is applied with another strength, its certificate measured at
    that strength.
    """
    whole, rows = outcome.full_certificate, outcome.rows
    if whole is None or rows is None or outcome.settings is None:
        return replace(outcome, strength=strength)
    certificate = _measured_at(
        strength, whole, outcome, rows, model.weights, outcome.row_edits, progress
    )
    if whole.pooled is not None and rows.pooled is not None:
        own = rows.pooled, model.pooled, outcome.pooled_edits
        certificate = replace(
            certificate, pooled=_measured_at(strength, whole.pooled, outcome, *own, progress)
        )
    return replace(outcome, strength=strength, certificate=certificate)


def _measured_at(
    strength: float,
    whole: Certificate,
    outcome: Erasure,
    rows: RowSet,
    weights: Mapping[str, Tensor],
    edits: Mapping[str, LayerEdit],
    progress: Progress | None,
) -> Certificate:
    assert outcome.settings is not None
    judges = rows.judges([concept.kind for concept in outcome.concepts])
    problem = prepare(rows.targets, rows.anchors, None, rows.invariants, outcome.settings, **judges)
    return certificate_at(strength, whole, weights, edits, problem, progress)


def predict(
    job: Job,
    model: EditableModel,
    encoder: TextEncoder | CachedEncoder,
    progress: Progress | None = None,
) -> Forecast:
    """What a job endangers: its kept names, bare, by how far an unprotected edit would move
    them.
    """
    retain, _ = drop_targets(job.retain, job.concepts)
    reader = reading(encoder)
    concepts = read_concepts(reader, job.concepts, job.plan, progress)
    everything = replace(job.plan, judges=0, considered=len(retain))
    names = read_bare_names(reader, retain, everything, job.settings, progress)
    return forecast(model.weights, concepts.targets, concepts.anchors, names.rows, job.settings)


@dataclass(frozen=True, eq=False)
class Erasure:
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
    def row_edits(self) -> dict[str, LayerEdit]:
        """Those of the layers that read a prompt row by row."""
        apart = {layer.canonical for layer in self.layers if layer.kind == "pooled"}
        return {key: edit for key, edit in self.edits.items() if key not in apart}

    @property
    def pooled_edits(self) -> dict[str, LayerEdit]:
        """That of the pooled path, as the engine sees it: of the columns that read text."""
        path, rest = self.architecture.pooled, self.row_edits
        found = {key: edit for key, edit in self.edits.items() if key not in rest}
        return (
            {}
            if path is None
            else {key: text_columns_of(edit, path.text_width) for key, edit in found.items()}
        )

    @property
    def targets(self) -> Held | None:
        """Rows that a later erasure must hold where this one put them; None for edits from a
        file.
        """
        if self.rows is None:
            return None
        pooled = self.rows.pooled if self.pooled_edits else None
        return Held(self.rows.targets, None if pooled is None else pooled.targets)

    def check_fits(self, architecture: Architecture, layers: Sequence[LayerKey]) -> None:
        """Refuses a model of another family or with other layers, by name."""
        if architecture.name != self.architecture.name:
            raise InputError(
                f"The erasure was made for {self.architecture.title}, but the model is"
                f" {architecture.title}: make one for this model with SPEED Erase or SPEED Apply"
                " Recipe."
            )
        shapes = {layer.canonical: layer.shape for layer in layers}
        for key, edit in self.edits.items():
            if shapes.get(key) != (edit.up.shape[0], edit.down.shape[1]):
                raise InputError(
                    f"The erasure edits {key}, which is missing from this model or has another"
                    " shape: make a new erasure for it."
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
        yield _not_kept(
            rows.dropped, "it contains an erased concept", "they contain an erased concept"
        )
    if rows.unusable:
        yield _not_kept(
            rows.unusable, "it has no tokens or too many", "they have no tokens or too many"
        )
    if rows.left_out:
        yield (
            f"{rows.left_out:,} names of the list were left out at this effort: ask for more to use"
            " them all."
        )
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
