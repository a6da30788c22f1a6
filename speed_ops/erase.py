"""An erasure, top to bottom.

    a job -> rows (`embed`) -> edits and their certificate (`solve`) -> an erasure

The nodes and the command line both call `erase`; they differ only in who encodes text, where
weights are read from and where the edit goes. If you already have embeddings, call `solve`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .certificate.forecast import Forecast, forecast
from .devices import Workplace
from .embed import embed, embed_bare
from .embedder import AnyEncoder, ensure_cached
from .engine.rows import Rows, RowSet
from .erasure import Erasure, at_strength, joined_certificate
from .errors import NoRoomError
from .inputs import TOKENS
from .job import Job
from .model import EditableModel, padded
from .progress import Announce, Progress
from .solver import solve


def erase(
    job: Job,
    model: EditableModel,
    encoder: AnyEncoder,
    *,
    strength: float = 1.0,
    hold: Mapping[str, Rows] | None = None,
    workplace: Workplace | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Erasure:
    """Encodes, solves and certifies.

    Args:
        job: What to erase, what to keep and how.
        model: The layers to edit.
        encoder: Turns prompts into rows.
        strength: What the edit is to be applied with; the certificate is measured there.
        hold: {text input: targets that were erased from the model before}.
        workplace: Where the edit is computed; None: on the CPU. It comes back on the CPU.
        progress: May raise to interrupt: nothing is half done.
        announce: Receives a sentence before long work.
    """
    job = job.prompted(model.architecture.prompting)
    workplace, text_inputs = workplace or Workplace(), edited_inputs(job, model, encoder)
    rank = _ranking(job, model, workplace)
    rows, text_report = embed(job, model.weights, encoder, text_inputs, progress, announce, rank)
    encoder.close()  # SDXL's two take a gigabyte, which solving can use
    erasures: dict[str, Erasure] = {}
    notes: list[str] = []
    for name in text_inputs:
        row_set = replace(rows[name], hold=(hold or {}).get(name))
        report = progress if name == TOKENS or progress is None else partial(_as_last, progress)
        work = partial(_solved_on, rows=row_set, weights=model.inputs[name], job=job, report=report)
        try:
            erasures[name] = workplace.run(
                work, row_set.bytes_to_solve + _layer_bytes(model, row_set)
            )
        except NoRoomError:
            if name == TOKENS:
                raise
            notes.append(NO_ROOM.format(name=name))
    widths = {layer.canonical: layer.shape[1] for layer in model.layers}
    erasure = Erasure(
        edits={
            key: padded(edit, widths[key])
            for solved in erasures.values()
            for key, edit in solved.edits.items()
        },
        certificate=joined_certificate(
            {name: solved.certificate for name, solved in erasures.items()}
        ),
        settings=erasures[TOKENS].settings,
        alternatives=erasures[TOKENS].alternatives,
        rows={name: solved.rows[TOKENS] for name, solved in erasures.items()},
        family=model.architecture,
        layers=model.layers,
        concepts=job.concepts,
        text_report=text_report,
        notes=tuple(notes),
    )
    erasure = replace(erasure, full_certificate=erasure.certificate)
    return workplace.run(lambda device: at_strength(erasure, strength, model, progress, device))


def _ranking(job: Job, model: EditableModel, workplace: Workplace) -> Callable[[RowSet], Forecast]:
    """`forecast` of a model's layers, computed at a workplace."""

    def rank(rows: RowSet) -> Forecast:
        return workplace.run(
            lambda device: forecast(model.weights, rows.to(device), job.settings),
            rows.bytes_to_solve,
        )

    return rank


def _solved_on(
    device: torch.device,
    rows: RowSet,
    weights: Mapping[str, Tensor],
    job: Job,
    report: Progress | None,
) -> Erasure:
    """An erasure that is computed on a device, and on the CPU when it is done."""
    solved = solve(weights, rows.to(device), job.settings, progress=report)
    return replace(
        solved,
        edits={key: edit.to("cpu") for key, edit in solved.edits.items()},
        rows={TOKENS: solved.rows[TOKENS].to("cpu")},
        alternatives=solved.alternatives and solved.alternatives.to("cpu"),
    )


def _layer_bytes(model: EditableModel, rows: RowSet) -> int:
    """About how much memory all edits take, and one layer at work."""
    shapes = [layer.shape for layer in model.layers]
    rank = min(len(rows.targets.values), rows.width)
    heights = sum(height for height, _ in shapes)
    return 8 * (rank * heights + 4 * max(height * width for height, width in shapes))


NO_ROOM = (
    "The {name} embeddings of the protected names fill their space, so SPEED left the {name} text"
    " input as it is. Protect fewer names, or use the preset auto."
)


def predict(
    job: Job,
    model: EditableModel,
    encoder: AnyEncoder,
    progress: Progress | None = None,
    workplace: Workplace | None = None,
) -> Forecast:
    """What a job endangers: its kept names, bare, by how far an unprotected edit would move them.

    Args:
        job: What to erase and what to keep.
        model: The layers to edit.
        encoder: Turns prompts into rows.
        progress: May raise to interrupt.
        workplace: Where to rank them; None: on the CPU.
    """
    job = job.prompted(model.architecture.prompting)
    rows = embed_bare(job, encoder, progress)
    return _ranking(job, model, workplace or Workplace())(rows)


def edited_inputs(job: Job, model: EditableModel, encoder: AnyEncoder) -> tuple[str, ...]:
    """The text inputs that a job edits: those the settings ask for, the model has and the encoder
    can encode.

    Args:
        job: What to erase and how.
        model: The layers to edit.
        encoder: Turns prompts into rows.
    """
    reader = ensure_cached(encoder)
    return tuple(
        name
        for name, weights in model.inputs.items()
        if name == TOKENS
        or (job.settings.edits_input(name) and len(weights) > 0 and reader.width_of(name) > 0)
    )


def _as_last(progress: Progress, *_: object) -> None:
    """Small work at the end, which has no bar of its own and can be interrupted."""
    progress("certificate", 1, 1)
