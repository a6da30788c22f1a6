"""An erasure at another strength: the same edits, measured again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .certificate.certificate import Certificate
from .certificate.measure import certificate_at
from .engine.edits import LayerEdit
from .erasure import Erasure
from .inputs import TOKENS
from .model import EditableModel
from .progress import Progress


def at_strength(
    erasure: Erasure, strength: float, model: EditableModel, progress: Progress | None = None
) -> Erasure:
    """The erasure for an edit that is applied with another strength, its certificate measured at
    that strength.

    Args:
        erasure: What `erase` returned, or edits from a file.
        strength: What the edits are to be multiplied by.
        model: The layers before the edit.
        progress: May raise to interrupt.
    """
    full, settings = erasure.full_certificate, erasure.settings
    if full is None or settings is None or not erasure.rows:
        return replace(erasure, strength=strength)
    if strength == 1:
        return replace(erasure, strength=strength, certificate=full)
    certificates: dict[str, Certificate | None] = {}
    for name, rows in erasure.rows.items():
        weights = model.inputs[name]
        edits = {
            key: LayerEdit(erasure[key].up, erasure[key].down[:, : rows.width])
            for key in weights
            if key in erasure
        }
        part = full if name == TOKENS else full.other_inputs.get(name)
        if part is not None:
            certificates[name] = certificate_at(
                strength, part, weights, edits, rows, settings, progress
            )
    return replace(erasure, strength=strength, certificate=joined_certificate(certificates))


def joined_certificate(certificates: Mapping[str, Certificate | None]) -> Certificate | None:
    """One certificate for all text inputs."""
    first = certificates[TOKENS]
    others = {name: part for name, part in certificates.items() if name != TOKENS and part}
    return first and replace(first, other_inputs=others)
