"""Text encoders that can write: newer ComfyUI lets Qwen and Gemma answer a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import comfy.model_management
import torch

from ...speed_ops.text.concept_list import Concept
from ...speed_ops.text.written import SEED, questions, read_answers
from .progress import HostProgress

MAX_CONCEPTS = 8
"""Concepts that the encoder is asked about; each takes three answers."""
_SAMPLING = {
    "do_sample": True, "max_length": 200, "temperature": 0.7, "top_k": 64, "top_p": 0.95,
    "min_p": 0.05, "repetition_penalty": 1.05, "seed": SEED,
}  # fmt: skip
"""ComfyUI's own choices for Generate Text."""
_FAULTS = (
    *(RuntimeError, ValueError, TypeError, AttributeError, LookupError, NotImplementedError),
    comfy.model_management.OOM_EXCEPTION,
)
"""What a text encoder that cannot write may raise; never what stops a run."""


def can_write(clip: Any) -> bool:
    """Whether a text encoder of this CLIP answers questions."""
    model = clip.cond_stage_model
    towers = (getattr(module, "transformer", None) for module in model.children())
    writes = any(callable(getattr(tower, "generate", None)) for tower in towers)
    return writes and all(callable(getattr(host, "generate", None)) for host in (clip, model))


def written_phrases(
    clip: Any, concepts: Sequence[Concept], progress: HostProgress
) -> tuple[dict[Concept, Mapping[str, str]], list[str]]:
    """{concept: {phrase: what it is}}, and a sentence per concept; nothing from a CLIP that can't
    write.

    Args:
        clip: ComfyUI's CLIP.
        concepts: What to ask about.
        progress: Shows how far it is, and stops when the user does.
    """
    if not can_write(clip):
        return {}, []
    phrases: dict[Concept, Mapping[str, str]] = {}
    notes = []
    asked = concepts[:MAX_CONCEPTS]
    for concept in asked:
        answers = {}
        for label, question in questions(concept).items():
            progress("draw", len(phrases), len(asked))
            try:
                answers[label] = _answer(clip, question)
            except _FAULTS as fault:
                notes.append(f"The text encoder wrote no phrases ({type(fault).__name__}).")
                return phrases, notes
        written = read_answers(concept, answers)
        phrases[concept] = written.phrases
        notes.append(
            f"The text encoder wrote {len(written.phrases)} usable phrases in {written.lines} lines"
            f" about '{concept.target}' (seed {SEED})."
        )
    if len(concepts) > MAX_CONCEPTS:
        notes.append(f"It was asked about the first {MAX_CONCEPTS} of {len(concepts)} concepts.")
    return phrases, notes


def _answer(clip: Any, question: str) -> str:
    """What the text encoder writes, with the template that its family answers in."""
    tokens = clip.tokenize(question, image=None, skip_template=False, min_length=1, thinking=False)
    with torch.no_grad():
        return str(clip.decode(clip.generate(tokens, **_SAMPLING)))
