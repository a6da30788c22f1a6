"""Is a file what its recipe makes of its base, and does it do what its header claims? Nothing in
the header is taken on trust.

The recipe is carried out again on the base. Each layer of the file must be the base plus that edit,
as far as number types hold it; every other tensor must be the base's. The certificate is computed
from the file's own weights and compared with the header's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..certificate.certificate import Certificate
from ..embed import embed
from ..engine.auto import settle_rows
from ..erase import edited_inputs
from ..erasure import joined_certificate
from ..errors import FileError, Notice
from ..inputs import INPUT_TITLES, TOKENS
from ..progress import Progress
from .claims import broken_claims, not_measured
from .erased_file import ErasedFile
from .recompute import ROUNDING, Stored, recompute
from .text_setup import TextSetup, missing_encoders

_LISTED = 5


@dataclass(frozen=True)
class Verification:
    """The claims of a file and its measurement."""

    claimed: dict[str, Any]
    """The header's certificate; empty for a file without a header of ours."""
    measured: Certificate
    faults: tuple[Notice, ...]
    """Where file, recipe and header disagree, one sentence each with its code; empty: verified."""
    notes: tuple[str, ...]


def verify_file(
    erased: ErasedFile,
    text: TextSetup,
    progress: Progress | None = None,
    *,
    strict: bool = False,
) -> Verification:
    """Computes and measures every text input that the recipe edits and that can be encoded here.

    Args:
        erased: The file, as `open_erased` reads it.
        text: How text becomes embeddings; its clip skip is the recipe's, `erased.stored.clip_skip`.
        progress: Called as the work advances.
        strict: Whether a concept that is not erased is a fault.
    """
    job, claimed = erased.stored.job, erased.provenance.certificate
    faults = list(erased.faults)
    settings = settle_rows(job.settings, len(job.concepts))
    workplace = text.workplace()
    model, encoder = erased.source.model(settings.layers), text.encoder(erased.source, workplace)
    text_inputs = edited_inputs(job, model, encoder)
    rows, _ = embed(job, model.weights, encoder, text_inputs, progress)
    encoder.close()
    certificates: dict[str, Certificate | None] = {}
    for name in text_inputs:
        weights = model.inputs[name]
        stored = Stored(
            {key: erased.edit_of(key, weights[key].shape) for key in weights},
            erased.strength,
            rounding=0.0 if erased.is_lora else ROUNDING,
            record=claimed.get("settings") if name == TOKENS else None,
        )
        certificates[name], found = recompute(weights, rows[name], settings, stored, progress)
        faults += found
    measured = joined_certificate(certificates)
    if measured is None:
        raise FileError("The protected names of this recipe leave nothing to erase in this model.")
    faults += [*_unmeasured(erased, text_inputs), *broken_claims(claimed, erased.recipe, measured)]
    remaining = [result.name for result in measured.concepts if result.verdict != "erased"]
    if strict and remaining:
        names = ", ".join(remaining[:_LISTED])
        faults.append(Notice(f"Not measured as erased: {names}.", code="not-erased"))
    missing = missing_encoders(erased.source, text)
    notes = (*erased.stored.notes, *missing, *not_measured(claimed), *workplace.notes)
    return Verification(claimed, measured, tuple(faults), notes)


def _unmeasured(erased: ErasedFile, measured: tuple[str, ...]) -> Iterator[Notice]:
    """A sentence for each text input that is edited, or claimed to be, and cannot be encoded
    here.
    """
    sections = erased.provenance.certificate.get("other_inputs")
    for name in INPUT_TITLES:
        claims = isinstance(sections, dict) and bool(sections.get(name))
        if name not in measured and (erased.edits_input(name) or claims):
            text = (
                f"The {name} input is edited, but not all of its text encoders are here to"
                " measure it."
            )
            yield Notice(text, code="unmeasured", advice="give-text-encoder")
