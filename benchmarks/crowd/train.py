"""Train the model of the crowded world on cached prompt rows; resumable and seeded.

Each step draws its prompts, pictures, noise and noise levels from a generator made of (seed, step),
so a resumed run goes on as if it had never stopped. A tenth of the prompts is empty, for guidance.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..world import train as world
from ..world.threads import ThreadChoice
from .model import PATCH, PatchModel
from .prompts import Prompt, training_prompts, training_weights
from .render import draw
from .text import CrowdText
from .world import SUBJECTS


@dataclass(frozen=True)
class Plan(world.Plan):
    """As the small world's, in larger batches."""

    steps: int = 6000
    batch: int = 32
    rate: float = 6e-4
    warmup: int = 200
    average: float = 0.999
    patch: int = PATCH


class Trainer(world.Trainer):
    """The small world's trainer on this world's model and pictures."""

    def __init__(self, folder: Path, plan: Plan, text: CrowdText) -> None:
        self.folder, self.plan, self.step = folder, plan, 0
        kinds = training_prompts(plan.seed)
        self.prompts: list[Prompt] = [prompt for own in kinds.values() for prompt in own]
        self.weights = training_weights(kinds)
        self.text = text
        torch.manual_seed(plan.seed)
        self.unet = PatchModel(plan.patch).to(memory_format=torch.channels_last)
        self.average = {
            key: value.detach().clone() for key, value in self.unet.state_dict().items()
        }
        self.optimiser = torch.optim.AdamW(
            self.unet.parameters(), lr=plan.rate, betas=(0.9, 0.99), weight_decay=0.01, fused=True
        )

    def save(self) -> None:
        super().save()
        self.text.save()

    def batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Noisy pictures, noise, steps and prompt rows of the current step; noise levels spread
        evenly.
        """
        count = self.plan.batch
        rng = np.random.default_rng([self.plan.seed, self.step])
        chosen = [
            self.prompts[i] for i in rng.choice(len(self.prompts), size=count, p=self.weights)
        ]
        drawn = [
            draw(p.subject or str(rng.choice(SUBJECTS)), p.style, p.night, rng) for p in chosen
        ]
        pictures = torch.from_numpy(np.stack(drawn)).contiguous(memory_format=torch.channels_last)
        noise = torch.from_numpy(rng.standard_normal(tuple(pictures.shape), dtype=np.float32))
        spread = ((rng.permutation(count) + rng.random(count)) / count) ** 0.7  # fewer at low noise
        steps = torch.from_numpy((spread * world.STEPS).astype(np.int64)).clamp(max=world.STEPS - 1)
        empty = rng.random(count) < self.plan.empty
        texts = [
            "" if nothing else prompt.text for prompt, nothing in zip(chosen, empty, strict=True)
        ]
        return world.add_noise(pictures, steps, noise), noise, steps, self.text.rows(texts)


def train(folder: Path, plan: Plan, text: CrowdText) -> None:
    """From wherever the folder's files left off to the last step."""
    log = world.Log(folder)
    trainer = Trainer(folder, plan, text)
    trainer.resume()
    begin = saved = time.monotonic()
    first, choice = trainer.step, ThreadChoice()
    losses: list[float] = []
    while trainer.step < plan.steps:
        threads, started = choice.begin(), time.monotonic()
        losses.append(trainer.advance()[0])
        choice.end(threads, time.monotonic() - started)
        if trainer.step % 50 == 0 or trainer.step == plan.steps:
            seconds = (time.monotonic() - begin) / (trainer.step - first)
            log(
                f"step {trainer.step} {seconds:.3f} s/step loss {np.mean(losses):.4f} threads"
                f" {threads}"
            )
            begin, first = time.monotonic(), trainer.step
            losses.clear()
        if time.monotonic() - saved > 60 * plan.save_minutes:
            trainer.save()
            saved = time.monotonic()
    trainer.save()
    log(f"done: {trainer.step} steps")
