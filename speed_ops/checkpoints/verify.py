"""Does a file do what its header says? The weights are measured again; nothing in the header is
taken on trust.

The difference between the file and its base is measured on the recipe's own prompts and held
against the header's certificate; every tensor that was not to be edited is compared byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..certificate.certificate import Certificate
from ..errors import Notice
from ..inputs import POOLED
from ..progress import Progress
from .claims import broken_claims, not_measured
from .erased_file import ErasedFile
from .measure import measure
from .notes import missing_encoders
from .text_setup import TextSetup


@dataclass(frozen=True)
class Verification:
    """The claims of a file and its measurement."""

    claimed: dict[str, Any]
    """The header's certificate."""
    measured: Certificate
    faults: tuple[str, ...]
    """Where file and header disagree, one sentence each; empty: the file does what it says."""
    notes: tuple[str, ...]


def verify_file(
    erased: ErasedFile, text: TextSetup, progress: Progress | None = None
) -> Verification:
    """Measures the difference between a file and its base on the recipe's own prompts.

    Args:
        erased: The file, as `open_erased` reads it.
        text: How text becomes embeddings; its clip skip is the recipe's, `erased.stored.clip_skip`.
        progress: Called as the work advances.
    """
    measured, claimed = measure(erased, text, progress), erased.provenance.certificate
    faults = [*erased.faults, *broken_claims(claimed, erased.recipe, measured)]
    if POOLED not in measured.other_inputs and erased.edits_input(POOLED):
        faults.append(
            Notice(
                f"The {POOLED} path is edited, but not all of its text encoders are here to"
                " measure it.",
                advice="give-text-encoder",
            )
        )
    missing = missing_encoders(erased.source, text)
    notes = (*erased.stored.notes, *missing, *not_measured(claimed))
    return Verification(claimed, measured, tuple(faults), notes)
