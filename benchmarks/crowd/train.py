"""Train the model of the crowded world on cached prompt rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .. import training
from ..training import Log, add_noise, noise_steps
from .model import PatchModel
from .prompts import Prompt, training_prompts, training_weights
from .render import draw
from .text import CrowdText
from .world import SUBJECTS


@dataclass(frozen=True)
class Plan(training.Plan):
    """How the model of docs/proof was trained."""

    steps: int = 6000
    batch: int = 32
    rate: float = 6e-4
    warmup: int = 200
    average: float = 0.999


class Trainer(training.Trainer):
    """Draws its images while it trains."""

    def __init__(self, folder: Path, plan: Plan, text: CrowdText) -> None:
        kinds = training_prompts(plan.seed)
        self.prompts: list[Prompt] = [prompt for group in kinds.values() for prompt in group]
        self.weights = training_weights(kinds)
        self.text = text
        torch.manual_seed(plan.seed)
        super().__init__(folder, plan, PatchModel())

    def save(self) -> None:
        super().save()
        self.text.save()

    def batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        count = self.plan.batch
        rng = np.random.default_rng([self.plan.seed, self.step])
        indices = rng.choice(len(self.prompts), size=count, p=self.weights)
        prompts = [self.prompts[i] for i in indices]
        subjects = (p.subject or str(rng.choice(SUBJECTS)) for p in prompts)
        drawn = [draw(s, p.style, p.night, rng) for s, p in zip(subjects, prompts, strict=True)]
        images = torch.from_numpy(np.stack(drawn)).contiguous(memory_format=torch.channels_last)
        noise = torch.from_numpy(rng.standard_normal(tuple(images.shape), dtype=np.float32))
        steps = noise_steps(count, rng)
        empty = rng.random(count) < self.plan.empty
        texts = ["" if blank else p.text for p, blank in zip(prompts, empty, strict=True)]
        return add_noise(images, steps, noise), noise, steps, self.text.rows(texts)


def train(folder: Path, plan: Plan, text: CrowdText) -> None:
    """From wherever the folder's files left off to the last step."""
    Trainer(folder, plan, text).run(Log(folder))
