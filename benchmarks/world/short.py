"""A world of two painters that is learnt in a minute: enough to see in pictures whether an erasure erases.

The text encoder stays random: there are no neighbours to keep apart, and its training would take the longest. The
pictures shrink to 4 x 4 pixels: the palette is all that is asked for.
"""

from __future__ import annotations

from pathlib import Path

from .export import export
from .prompts import TEMPLATES, Prompt, sentence
from .storage import save_tensors
from .text_encoder import new_encoder
from .train import Plan, Trainer
from .world import SUBJECTS

PAINTERS = ("Orla Venn", "Tibor Quill")
"""One paints red, the other blue: no judge is needed to tell them apart."""


def short_plan(steps: int = 250) -> Plan:
    """Small batches of small pictures; the average must not hold on to the first steps."""
    return Plan(steps=steps, batch=8, warmup=15, rate=1e-3, average=0.95, shrink=3)


def short_prompts() -> list[Prompt]:
    """Three sentences of four subjects by each of the two."""
    return [sentence(t, s, name) for t in TEMPLATES[:3] for s in SUBJECTS[:4] for name in PAINTERS]


def train_short(folder: Path, plan: Plan | None = None) -> Path:
    """Trains and exports; the checkpoint's path."""
    plan, prompts = plan or short_plan(), short_prompts()
    encoder = new_encoder(plan.seed).eval()
    save_tensors(folder / "text_encoder.safetensors", encoder.state_dict())
    rows = encoder.encode(["", *(prompt.text for prompt in prompts)])
    trainer = Trainer(folder, plan, rows, prompts)
    while trainer.step < plan.steps:
        trainer.advance()
    trainer.save()
    return export(folder)
