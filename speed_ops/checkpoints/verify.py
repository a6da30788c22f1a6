"""Does a file do what its header claims? The weights are measured again; nothing in the header is
taken on trust.

The difference between the file and its base is measured on the recipe's own prompts and compared
with the header's certificate; every tensor that was not to be edited is compared byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..certificate.certificate import Certificate
from ..certificate.measure import measure_edits
from ..embed import embed
from ..engine.auto import settle_rows
from ..engine.prepare import prepare
from ..erase import edited_inputs
from ..erasure import joined_certificate
from ..inputs import TOKENS
from ..progress import Progress
from .claims import broken_claims, claimed_section, not_measured, unmeasured_inputs
from .erased_file import ErasedFile
from .text_setup import TextSetup, missing_encoders


@dataclass(frozen=True)
class Verification:
    """The claims of a file and its measurement."""

    claimed: dict[str, Any]
    """The header's certificate."""
    measured: Certificate
    faults: tuple[str, ...]
    """Where file and header disagree, one sentence each; empty: the file does what it claims."""
    notes: tuple[str, ...]


def verify_file(
    erased: ErasedFile, text: TextSetup, progress: Progress | None = None
) -> Verification:
    """Measures every text input that the file edits, or claims to, and that can be encoded here.

    Args:
        erased: The file, as `open_erased` reads it.
        text: How text becomes embeddings; its clip skip is the recipe's, `erased.stored.clip_skip`.
        progress: Called as the work advances.
    """
    job, claimed = erased.stored.job, erased.provenance.certificate
    settings = settle_rows(job.settings, len(job.concepts))
    model, encoder = erased.source.model(settings.layers), text.encoder(erased.source)
    text_inputs = edited_inputs(job, model, encoder)
    rows, _ = embed(job, model.weights, encoder, text_inputs, progress)
    certificates: dict[str, Certificate | None] = {}
    for name in text_inputs:
        if name == TOKENS or erased.edits_input(name) or claimed_section(claimed, name):
            weights = model.inputs[name]
            edits = {key: erased.edit_of(key, weights[key].shape) for key in weights}
            prepared = prepare(rows[name], settings)
            certificates[name] = measure_edits(weights, edits, prepared, settings, progress)
    measured = joined_certificate(certificates)
    assert measured is not None
    faults = (
        *erased.faults,
        *broken_claims(claimed, erased.recipe, measured),
        *unmeasured_inputs(claimed, measured, erased.edits_input),
    )
    missing = missing_encoders(erased.source, text)
    notes = (*erased.stored.notes, *missing, *not_measured(claimed))
    return Verification(claimed, measured, faults, notes)
