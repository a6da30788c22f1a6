"""A pair of images per concept, before and after, from whatever can generate them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import SpeedError
from ..text.concept_list import Concept
from ..text.kinds import kind_of
from .album import data_url
from .backend import Backend, ModelKind, ModelRef
from .setup import ImageSpec, Sampling

SEED = 1
"""Of all images."""
MAX_DRAWN = 4
"""Concepts of which a model generates a pair."""
Drawing = tuple[Backend, Sampling]
"""What generates images, and how."""
ResultKind = Literal["checkpoint", "lora"]


@dataclass(frozen=True)
class Pair:
    """One prompt with a model before and after, as data URLs."""

    concept: str
    before: str
    after: str


def draw_pairs(
    original: Path,
    result: Path,
    kind: ResultKind,
    concepts: Sequence[Concept],
    labels: Sequence[str],
    drawings: Sequence[Drawing],
) -> tuple[tuple[Pair, ...], str]:
    """The pairs, or none and the reason.

    Args:
        original: The model.
        result: The erased model, or its LoRA.
        kind: Which of the two.
        concepts: What was erased.
        labels: What each concept is called in the result.
        drawings: The first that has both models generates the images.
    """
    before = _model(original, "checkpoint")
    after = _model(result, kind, before if kind == "lora" else None)
    reason = "Only the demo model generates images without a server."
    for backend, sampling in drawings:
        try:
            backend.check_models([before, after])
            pairs = []
            for concept, label in list(zip(concepts, labels, strict=False))[:MAX_DRAWN]:
                prompt = kind_of(concept.kind).probe_templates[0].fill(concept.target).text
                spec = ImageSpec(label, "erase", prompt, SEED)
                sides = [backend.generate(model, spec, sampling) for model in (before, after)]
                pairs.append(Pair(label, *(data_url(side.pixels) for side in sides)))
            return tuple(pairs), ""
        except SpeedError as fault:
            reason = str(fault)
    return (), reason


def _model(path: Path, kind: ModelKind, base: ModelRef | None = None) -> ModelRef:
    """A file of this machine, which a server has under the same name."""
    kind = "diffusers" if path.is_dir() else kind
    return ModelRef(path.name, kind, path.name, str(path), base=base, file=path)
