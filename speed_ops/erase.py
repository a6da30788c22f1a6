"""The path of an erasure, top to bottom.

    a job -> encode (`gather`) -> solve (`engine`) -> certify (`certificate`) -> an outcome

`solve` takes embeddings and weights and returns an `Erasure`. `erase` takes a job, with names instead of embeddings,
and returns an `Outcome`. The nodes and the command line both call `erase`: only who encodes text, where weights are
read from and where the edit goes differ between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from .certificate.certificate import Certificate
from .certificate.forecast import Forecast, forecast
from .certificate.measure import certificate_at, certify
from .concepts.concept_list import Concept
from .concepts.retain_set import drop_targets
from .encoders.cache import CachedEncoder
from .encoders.encoder import TextEncoder
from .engine.auto import settle_rows, settle_threshold
from .engine.edits import LayerEdit
from .engine.problem import check_weights, prepare
from .engine.rows import Rows, join
from .engine.settings import EraseSettings
from .engine.solve import Solver
from .errors import InputError
from .files.recipe import Recipe
from .gather import Gathered, gather, read_bare_names, read_concepts, reading
from .job import Job
from .models.families import Architecture, LayerKey
from .progress import Progress, Stopwatch, silent


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
    progress: Progress | None = None,
) -> Outcome:
    """Encodes, solves and certifies, at strength 1. `hold`: targets that were erased from the model before."""
    rows = gather(encoder, model.weights, job, progress)
    encoder.close()  # SDXL's two take a gigabyte, which solving can use
    erasure = solve(
        model.weights,
        rows.targets,
        rows.anchors,
        rows.retain,
        rows.invariants,
        job.settings,
        hold=hold,
        probes=rows.probes,
        progress=progress,
    )
    return Outcome(
        edits=dict(erasure.edits),
        architecture=model.architecture,
        layers=model.layers,
        concepts=job.concepts,
        certificate=erasure.certificate,
        full_certificate=erasure.certificate,
        rows=rows,
        settings=erasure.settings,
    )


def solve(
    weights: Mapping[str, Tensor],
    targets: Tensor | Rows,
    anchors: Tensor | Rows,
    retain: Tensor | Rows | None = None,
    invariants: Tensor | None = None,
    settings: EraseSettings | None = None,
    *,
    target_names: Sequence[str] | None = None,
    retain_names: Sequence[str] | None = None,
    hold: Tensor | Rows | None = None,
    probes: tuple[Rows, Rows] | None = None,
    progress: Progress | None = None,
) -> Erasure:
    """Erases targets from the layers and says what that did.

    `weights`: {layer key: `o x d`}, read one at a time. `targets`, `anchors` (`n x d`) and `retain` (`N x d`): one
    concept a row, or `Rows` for several rows a concept. `invariants` (`k x d`): every row of the empty prompt, SOT
    first. `hold`: targets of an earlier erasure that `weights` already contain. `probes`: target and anchor rows in
    contexts that the edit is not made from, for the certificate. `progress(stage, done, total)` may raise to interrupt:
    nothing is half done.
    """
    settings = settle_rows(settings or EraseSettings(), len(targets.names if isinstance(targets, Rows) else targets))
    report, watch = progress or silent, Stopwatch()
    report("prepare", 0, 1)
    with watch.part("prepare"):
        problem = prepare(
            targets,
            anchors,
            retain,
            invariants,
            settings,
            target_names=target_names,
            retain_names=retain_names,
            hold=hold,
            probes=probes,
        )
        check_weights(weights, problem.targets.width)
        problem = settle_threshold(problem)
    report("prepare", 1, 1)
    solution = Solver(problem, weights, watch, report).solve()
    certificate = certify(solution, problem, weights, watch, report)
    edits = {key: layer.edit for key, layer in solution.layers.items()}
    return Erasure(edits, certificate, problem.settings, problem.targets, problem.anchors)


def at_strength(
    outcome: Outcome, strength: float, weights: Mapping[str, Tensor], progress: Progress | None = None
) -> Outcome:
    """The outcome for an edit that is applied with another strength, its certificate measured at that strength."""
    whole, rows = outcome.full_certificate, outcome.rows
    if whole is None or rows is None or outcome.settings is None:
        return replace(outcome, strength=strength)
    problem = prepare(rows.targets, rows.anchors, None, rows.invariants, outcome.settings, probes=rows.probes)
    certificate = certificate_at(strength, whole, weights, outcome.edits, problem, progress)
    return replace(outcome, strength=strength, certificate=certificate)


def predict(
    job: Job, model: EditableModel, encoder: TextEncoder | CachedEncoder, progress: Progress | None = None
) -> Forecast:
    """What a job endangers: its kept names, bare, by how far an unprotected edit would move them."""
    retain, _ = drop_targets(job.retain, job.concepts)
    reader = reading(encoder)
    concepts = read_concepts(reader, job.concepts, job.plan, progress)
    names = read_bare_names(reader, retain, progress)
    return forecast(model.weights, concepts.targets, concepts.anchors, names.rows, job.settings)


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
        """All edits balanced (see `LayerEdit.balanced`) and the largest relative error of any layer."""
        pairs = {key: edit.balanced(rank) for key, edit in self.edits.items()}
        edits = {key: edit for key, (edit, _) in pairs.items()}
        return replace(self, edits=edits), max(error for _, error in pairs.values())

    def scaled(self, strength: float) -> Erasure:
        """The erasure at another strength; the certificate still speaks of strength 1."""
        return replace(self, edits={key: edit.scaled(strength) for key, edit in self.edits.items()})


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
                raise InputError(f"The erasure edits {key}, which this model does not have in that shape: erase again.")

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
        yield f"{_count(rows.dropped, 'kept name')} dropped for containing a target: {_few(rows.dropped)}."
    if rows.unusable:
        yield f"{_count(rows.unusable, 'kept name')} unusable: {_few(rows.unusable)}."
    yield (
        f"{rows.encoded} texts encoded, {rows.reused} from the cache, {sum(rows.seconds.values()):.1f} s; "
        f"{rows.in_context} kept names in prompts."
    )


def _count(items: Sequence[str], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _few(items: Sequence[str]) -> str:
    shown = ", ".join(items[:5])
    return shown if len(items) <= 5 else f"{shown}, ..."


def erase_jointly(
    weights: Mapping[str, Tensor],
    earlier: Erasure,
    targets: Rows,
    anchors: Rows,
    retain: Tensor | Rows | None,
    invariants: Tensor | None,
    settings: EraseSettings,
    **options: Any,
) -> Erasure:
    """Erases the earlier and the new list together; `weights` are the ORIGINAL ones (see `original_weights`).

    The alternative is `erase_further`. With the same null space the two give the same model, because the held targets
    are exactly the quadratic that the first edit left behind.
    """
    both = join([earlier.targets, targets]), join([earlier.anchors, anchors])
    return solve(weights, *both, retain, invariants, settings, **options)


def erase_further(
    weights: Mapping[str, Tensor],
    earlier: Rows,
    targets: Rows,
    anchors: Rows,
    retain: Tensor | Rows | None,
    invariants: Tensor | None,
    settings: EraseSettings,
    **options: Any,
) -> Erasure:
    """Erases the new list alone from EDITED weights, the earlier targets held at their anchors; the edits add up."""
    return solve(weights, targets, anchors, retain, invariants, settings, hold=earlier, **options)
