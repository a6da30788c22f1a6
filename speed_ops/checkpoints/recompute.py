"""Carries a recipe out again, measures what a file has in its place, and compares the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ..certificate.certificate import Certificate
from ..engine.edits import LayerEdit
from ..engine.rows import RowSet
from ..engine.settings import EraseSettings
from ..errors import NoRoomError, Notice, SettingsError
from ..progress import Progress
from ..solver import solve

EDIT_TOLERANCE = 0.1
"""How far a layer's edit may be from the recipe's, relative to it: text encoders in half precision
and other processors round differently."""
ROUNDING = 2.0**-9
"""What bfloat16 rounds off a weight at most, relative to it."""
_CHOSEN = ("lam", "softness")
"""Settings that `auto` chooses by measurements."""
_LISTED = 5


def recompute(
    weights: Mapping[str, Tensor],
    rows: RowSet,
    settings: EraseSettings,
    stored: Mapping[str, LayerEdit],
    strength: float,
    record: object,
    progress: Progress | None = None,
) -> tuple[Certificate | None, list[Notice]]:
    """The certificate of the stored edits, and where they are not the recipe's.

    Args:
        weights: {layer key: the base's weight}.
        rows: What the recipe erases and protects.
        settings: The recipe's.
        stored: The file's edits of all these layers.
        strength: What the recipe's edit is multiplied by.
        record: The settings in the header's certificate, not trusted; None without any.
        progress: Called as the work advances.
    """
    faults: list[Notice] = []
    # A choice by measurements can turn out otherwise on another processor: the header has it.
    choice: dict[str, Any] = {}
    if settings.preset_name == "auto" and isinstance(record, dict):
        choice = {name: record[name] for name in _CHOSEN if name in record}
    try:
        settings.replace(**choice)
    except SettingsError as fault:
        choice = {}
        faults.append(Notice(f"The recorded report's settings: {fault}", code="certificate"))
    try:
        erasure = solve(weights, rows, settings, stored=stored, choice=choice, progress=progress)
        edits, certificate = erasure.edits, erasure.certificate
    except NoRoomError:  # the protected names fill this input, and the recipe leaves it alone
        edits, certificate = {}, None
    return certificate, [*faults, *_differences(edits, stored, weights, strength)]


def _differences(
    edits: Mapping[str, LayerEdit],
    stored: Mapping[str, LayerEdit],
    weights: Mapping[str, Tensor],
    strength: float,
) -> Iterator[Notice]:
    wrong = []
    for key, edit in stored.items():
        delta = edit.delta().double()
        expected = edits[key].delta().to(delta) * strength if key in edits else 0 * delta
        allowed = EDIT_TOLERANCE * expected.norm() + ROUNDING * weights[key].double().norm()
        if not bool((delta - expected).norm() <= allowed):
            wrong.append(key)
    if wrong:
        layers = f"{len(wrong)} of {len(stored)} layers"
        listed = ", ".join(wrong[:_LISTED]) + (", ..." if len(wrong) > _LISTED else "")
        text = f"The recipe makes another edit of {layers}: {listed}."
        yield Notice(text, code="edit", keys=wrong[:_LISTED])
