"""The certificate of an erased file, measured again on the prompts of its recipe."""

from __future__ import annotations

import torch

from ..certificate.certificate import Certificate
from ..certificate.measure import measure_edits
from ..embed import embed
from ..engine.auto import settle_rows
from ..engine.edits import LayerEdit
from ..engine.prepare import prepare
from ..erase import edited_inputs
from ..inputs import TOKENS
from ..progress import Progress
from ..strength import joined_certificate
from .erased_file import ErasedFile
from .text_setup import TextSetup


def measure(erased: ErasedFile, text: TextSetup, progress: Progress | None = None) -> Certificate:
    """What the weights do, for every text input that the file edits and that can be encoded here.

    Args:
        erased: The file and its base.
        text: How text becomes embeddings.
        progress: Called as the work advances.
    """
    job, source = erased.stored.job, erased.source
    settings = settle_rows(job.settings, len(job.concepts))
    model, encoder = source.model(settings.layers), text.encoder(source)
    text_inputs = edited_inputs(job, model, encoder)
    rows, _ = embed(job, model.weights, encoder, text_inputs, progress)
    certificates: dict[str, Certificate | None] = {}
    for name in text_inputs:
        weights = model.inputs[name]
        if name == TOKENS or erased.edits_input(name):
            edits = {key: _of_width(erased.edits.get(key), weights[key].shape) for key in weights}
            prepared = prepare(rows[name], settings)
            certificates[name] = measure_edits(weights, edits, prepared, settings, progress)
    measured = joined_certificate(certificates)
    assert measured is not None
    return measured


def _of_width(edit: LayerEdit | None, shape: torch.Size) -> LayerEdit:
    """The edit of the columns that are measured; the zero edit where there is none."""
    if edit is not None:
        return LayerEdit(edit.up, edit.down[:, : shape[1]])
    return LayerEdit(
        torch.zeros(shape[0], 1, dtype=torch.float64), torch.zeros(1, shape[1], dtype=torch.float64)
    )
