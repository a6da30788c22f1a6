"""Is a file what its recipe makes of its base, and does it do what its header claims? Nothing in
the header is taken on trust.

The recipe is carried out again on the base. Each layer of the file must be the base plus that edit,
as far as number types hold it; every other tensor must be the base's. The certificate is computed
from the file's own weights and compared with the header's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..certificate.certificate import Certificate
from ..embed import embed
from ..engine.auto import settle_rows
from ..engine.edits import LayerEdit
from ..engine.settings import EraseSettings
from ..erase import edited_inputs
from ..erasure import Erasure, joined_certificate
from ..errors import NoRoomError, Notice, SettingsError
from ..inputs import INPUT_TITLES, TOKENS
from ..model import EditableModel
from ..progress import Progress
from ..solver import solve
from .claims import broken_claims, not_measured
from .erased_file import ErasedFile
from .text_setup import TextSetup, missing_encoders

EDIT_TOLERANCE = 0.1
"""How far a layer's edit may be from the recipe's, relative to it: text encoders in half precision
and other processors round differently."""
ROUNDING = 2.0**-9
"""What bfloat16 rounds off a weight at most, relative to it."""
_CHOSEN = ("lam", "softness")
"""Settings that `auto` chooses by measurements: the header has its choice."""
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
    model, encoder = erased.source.model(settings.layers), text.encoder(erased.source)
    text_inputs = edited_inputs(job, model, encoder)
    rows, _ = embed(job, model.weights, encoder, text_inputs, progress)
    encoder.close()
    certificates: dict[str, Certificate | None] = {}
    for name in text_inputs:
        weights = model.inputs[name]
        stored = {key: erased.edit_of(key, weights[key].shape) for key in weights}
        try:
            solved = solve(
                weights,
                rows[name],
                settings,
                stored=stored,
                choice=_choice(settings, claimed) if name == TOKENS else None,
                progress=progress,
            )
        except SettingsError as fault:
            faults.append(Notice(f"The certificate's settings: {fault}", code="certificate"))
            solved = solve(weights, rows[name], settings, stored=stored, progress=progress)
        except NoRoomError:
            if name == TOKENS:
                raise
            solved = Erasure({})
        certificates[name] = solved.certificate
        faults += _edit_faults(solved.edits, stored, model, erased.strength)
    measured = joined_certificate(certificates)
    assert measured is not None
    faults += [*_unmeasured(erased, text_inputs), *broken_claims(claimed, erased.recipe, measured)]
    remaining = [result.name for result in measured.concepts if result.verdict != "erased"]
    if strict and remaining:
        names = ", ".join(remaining[:_LISTED])
        faults.append(Notice(f"Not measured as erased: {names}.", code="not-erased"))
    missing = missing_encoders(erased.source, text)
    notes = (*erased.stored.notes, *missing, *not_measured(claimed))
    return Verification(claimed, measured, tuple(faults), notes)


def _choice(settings: EraseSettings, claimed: Mapping[str, Any]) -> dict[str, float]:
    """What `auto` chose when the file was made, if the header records it: a choice by measurements
    can turn out otherwise on another processor.
    """
    recorded = claimed.get("settings")
    if settings.preset_name != "auto" or not isinstance(recorded, dict):
        return {}
    return {name: recorded[name] for name in _CHOSEN if name in recorded}


def _edit_faults(
    edits: Mapping[str, LayerEdit],
    stored: Mapping[str, LayerEdit],
    model: EditableModel,
    strength: float,
) -> Iterator[Notice]:
    """A sentence where layers are not the base plus the recipe's edit."""
    wrong = []
    for key, edit in stored.items():
        delta, weight = edit.delta().double(), model.stored[key]
        expected = edits[key].delta().to(delta) * strength if key in edits else 0 * delta
        allowed = EDIT_TOLERANCE * expected.norm() + ROUNDING * weight.double().norm()
        if not bool((delta - expected).norm() <= allowed):
            wrong.append(key)
    if wrong:
        layers = f"{len(wrong)} of {len(stored)} layers"
        listed = ", ".join(wrong[:_LISTED]) + (", ..." if len(wrong) > _LISTED else "")
        text = f"The recipe makes another edit of {layers}: {listed}."
        yield Notice(text, code="edit", keys=wrong[:_LISTED])


def _unmeasured(erased: ErasedFile, measured: tuple[str, ...]) -> Iterator[Notice]:
    """A sentence for each text input that is edited, or claimed to be, and cannot be encoded
    here.
    """
    sections = erased.provenance.certificate.get("other_inputs")
    for name in INPUT_TITLES:
        claims = isinstance(sections, dict) and bool(sections.get(name))
        if name not in measured and (erased.edits_input(name) or claims):
            text = (
                f"The {name} path is edited, but not all of its text encoders are here to measure"
                " it."
            )
            yield Notice(text, code="unmeasured", advice="give-text-encoder")
