"""Carries a recipe out again, measures what a file has in its place, and compares the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..certificate.certificate import Certificate, ConceptResult
from ..certificate.measure import certificate_at
from ..engine.edits import LayerEdit
from ..engine.rows import RowSet
from ..engine.settings import EraseSettings
from ..erasure import Erasure
from ..errors import NoRoomError, Notice, SettingsError
from ..inputs import TOKENS
from ..progress import Progress
from ..solver import solve
from .claims import other_numbers

EDIT_TOLERANCE = 0.1
"""How far a layer's edit may be from the recipe's, relative to it, as a whole and in any direction:
text encoders in half precision and other processors round differently."""
ROUNDING = 2.0**-9
"""What bfloat16 rounds off a weight at most, relative to it."""
CHOICE_TOLERANCE = 0.1
"""How much more may be left of a concept, or moved of other names, by what a header records as the
choice of `auto` than by the choice made here: other processors choose a little differently."""
_CHOSEN = ("lam", "softness")
"""Settings that `auto` chooses by measurements."""
_LISTED = 5


@dataclass(frozen=True)
class Stored:
    """What a file holds of one text input."""

    edits: Mapping[str, LayerEdit]
    """Of all its layers."""
    strength: float
    """What the recipe's edit is multiplied by."""
    rounding: float
    """What number types round off a weight with its edit, relative to it; 0 for a LoRA."""
    record: object
    """The settings in the header's certificate, not trusted; None without any."""


def recompute(
    weights: Mapping[str, Tensor],
    rows: RowSet,
    settings: EraseSettings,
    stored: Stored,
    progress: Progress | None = None,
) -> tuple[Certificate | None, list[Notice]]:
    """The certificate of the stored edits, and where they are not the recipe's.

    Args:
        weights: {layer key: the base's weight}.
        rows: What the recipe erases and protects.
        settings: The recipe's.
        stored: The file's edits of all these layers, and how it holds them.
        progress: Called as the work advances.
    """
    try:
        erasure = solve(weights, rows, settings, stored=stored.edits, progress=progress)
    except NoRoomError:  # the protected names fill this input, and the recipe leaves it alone
        return None, list(_differences({}, stored, weights))
    faults: list[Notice] = []
    try:
        settings, choice = _recorded_choice(erasure, stored.record)
    except SettingsError as fault:
        choice = {}
        faults.append(Notice(f"The recorded report's settings: {fault}", code="certificate"))
    own = erasure.full_certificate
    if choice:
        edits = stored.edits
        erasure = solve(weights, rows, settings, stored=edits, choice=choice, progress=progress)
        faults += _worse_choice(own, erasure.full_certificate)
    faults += _differences(erasure.edits, stored, weights)
    faults += _other_effects(erasure, stored, weights)
    return erasure.certificate, faults


def _recorded_choice(erasure: Erasure, record: object) -> tuple[EraseSettings, dict[str, Any]]:
    """The settings with what a header records as the choice of `auto`; no choice where it is the
    one that was made here.
    """
    settings = erasure.settings
    assert settings is not None
    recorded = record if settings.preset_name == "auto" and isinstance(record, dict) else {}
    choice = {name: recorded[name] for name in _CHOSEN if name in recorded}
    other = settings.replace(**choice)
    return (settings, {}) if other == settings else (other, choice)


def _worse_choice(own: Certificate | None, recorded: Certificate | None) -> Iterator[Notice]:
    """Whether the recorded choice erases less, or moves other names more, than our own."""
    assert own is not None and recorded is not None
    pairs = [
        *(
            (_left(mine), _left(its))
            for mine, its in zip(own.concepts, recorded.concepts, strict=True)
        ),
        *((mine.mean, its.mean) for mine, its in zip(own.drift, recorded.drift, strict=True)),
    ]
    if any(its > mine + CHOICE_TOLERANCE for mine, its in pairs):
        text = "The header records a trade-off that `auto` does not choose for this recipe."
        yield Notice(text, code="choice")


def _left(concept: ConceptResult) -> float:
    """The residual in new prompts, or where none were given, in the concept's own."""
    return concept.solved_median if concept.probe_median is None else concept.probe_median


def _other_effects(
    erasure: Erasure, stored: Stored, weights: Mapping[str, Tensor]
) -> Iterator[Notice]:
    """Where the file does something else to a name than the recipe. Its edit may be near the
    recipe's as a whole, and leave out one of many concepts.
    """
    settings, full, rows = erasure.settings, erasure.full_certificate, erasure.rows[TOKENS]
    assert settings is not None and full is not None and erasure.certificate is not None
    expected = certificate_at(stored.strength, full, weights, erasure.edits, rows, settings)
    for text in islice(other_numbers(expected, erasure.certificate), 1):
        yield Notice(f"The file does something else than its recipe. {text}", code="edit")


def _differences(
    edits: Mapping[str, LayerEdit], stored: Stored, weights: Mapping[str, Tensor]
) -> Iterator[Notice]:
    """The layers whose edit is not the recipe's."""
    wrong = []
    for key, edit in stored.edits.items():
        delta = edit.delta().double()
        recipe = edits[key].scaled(stored.strength) if key in edits else None
        expected = recipe.delta().to(delta) if recipe else 0 * delta
        weight = weights[key].to(delta)
        if not _close(delta - expected, expected, stored.rounding * weight):
            wrong.append(key)
    if wrong:
        layers = f"{len(wrong)} of {len(stored.edits)} layers"
        listed = ", ".join(wrong[:_LISTED]) + (", ..." if len(wrong) > _LISTED else "")
        text = f"The recipe makes another edit of {layers}: {listed}."
        yield Notice(text, code="edit", keys=wrong[:_LISTED])


def _close(difference: Tensor, expected: Tensor, rounding: Tensor) -> bool:
    """Whether a difference is within `EDIT_TOLERANCE` and rounding: as a whole, and in any
    direction, so that no other edit fits into the tolerance of a large one. Rounding is noise,
    whose largest singular value is at most about its largest row and column together.
    """
    size = EDIT_TOLERANCE * expected.norm() + rounding.norm()
    if not bool(difference.norm() <= size):
        return False
    noise = rounding.norm(dim=0).amax() + rounding.norm(dim=1).amax()
    allowed = EDIT_TOLERANCE * _largest(expected) + noise
    return bool(difference.norm() <= allowed) or bool(_largest(difference) <= allowed)


def _largest(matrix: Tensor) -> Tensor:
    """The largest singular value."""
    side = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return torch.linalg.eigvalsh(side @ side.T)[-1].clamp(min=0).sqrt()
