"""World c: the same names and prompts drawn by a transformer, trained as a rectified flow.

A prompt enters twice, as rows and as one pooled embedding. Training drops both for guidance, and
the pooled embedding alone as often as Stable Diffusion 3's training drops one of its encoders: so
the rows have to say everything, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from speed_erase.speed_ops.inputs import POOLED, TOKENS

from ..training import adam
from .model import GUIDANCE, Crowd, Plan, Trainer
from .prompts import Prompt
from .text import CrowdText
from .transformer import Transformer, levels_of, sample, to_colors, to_latents
from .wording import reworded

SHIFT = 1.0
"""Of the noise levels: 3 is for images of a thousand pixels along the side."""
ENTRY, SECOND = "context_embedder.weight", "y_embedder.mlp.0.weight"
"""Where the rows of a prompt enter, and where its pooled embedding does."""


class FlowCrowd(Crowd):
    """Our erasure edits both layers through which text enters; the rivals' scripts for such models
    edit the first.
    """

    file = "transformer.safetensors"
    steps = 8
    rivals_edit = (ENTRY,)

    def network(self) -> nn.Module:
        return Transformer()

    def edited(self, keys: Iterable[str]) -> dict[str, str]:
        return {ENTRY: TOKENS, SECOND: POOLED}

    @torch.no_grad()
    def sampled(self, texts: Sequence[str], noise: Tensor) -> Tensor:
        both = self.text.rows([*texts, ""]), self.text.pooled([*texts, ""])
        prompts, empty = (part[:-1] for part in both), (part[-1] for part in both)
        levels = levels_of(self.steps, SHIFT)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return sample(self.model, tuple(prompts), tuple(empty), noise, levels, GUIDANCE)


@dataclass(frozen=True)
class FlowPlan(Plan):
    """How world c's model was trained."""

    steps: int = 3500
    rate: float = 1.5e-3
    unpooled: float = 0.4
    """How often the pooled embedding alone is the empty prompt's."""


class FlowTrainer(Trainer):
    """Teaches the velocity, noise minus image, in half precision."""

    file = "transformer.safetensors"
    plan: FlowPlan

    def __init__(self, folder: Path, plan: FlowPlan, text: CrowdText) -> None:
        super().__init__(folder, plan, text)
        texts = sorted(("", *(prompt.text for prompt in self.prompts)), key=len)
        for start in range(0, len(texts), 512):  # of similar length: little padding
            text.rows(texts[start : start + 512])
        text.save()

    def sentences(self, seed: int) -> dict[str, list[Prompt]]:
        return reworded(super().sentences(seed))

    def network(self) -> nn.Module:
        return Transformer()

    def optimizers_for(self, named: list[tuple[str, nn.Parameter]]) -> list[torch.optim.Optimizer]:
        """Muon for the matrices of the blocks, Adam for the rest."""
        inner = [p for name, p in named if "joint_blocks" in name and p.ndim == 2]
        others = [p for name, p in named if not ("joint_blocks" in name and p.ndim == 2)]
        muon = torch.optim.Muon(inner, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        return [muon, adam(others)]

    def loss(self) -> Tensor:
        count = self.plan.batch
        rng = np.random.default_rng([self.plan.seed, self.step])
        prompts, images, noise = self.drawn(rng)
        levels = noise_levels(count, rng)
        empty = rng.random(count) < self.plan.empty
        texts = ["" if blank else p.text for p, blank in zip(prompts, empty, strict=True)]
        unpooled = rng.random(count) < self.plan.unpooled
        pooled = ["" if blank else text for text, blank in zip(texts, unpooled, strict=True)]
        noisy = torch.lerp(images, noise, levels[:, None, None, None])
        context = self.text.rows(texts), self.text.pooled(pooled)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            velocity = self.model(to_latents(noisy), levels, *context)
        return (to_colors(velocity.float()) - (noise - images)).square().mean()


def noise_levels(count: int, rng: np.random.Generator) -> Tensor:
    """Noise levels of a batch, spread evenly over a logit-normal distribution: few at the ends."""
    even = (rng.permutation(count) + rng.random(count)) / count
    normal = torch.special.ndtri(torch.from_numpy(even).clamp(1e-4, 1 - 1e-4))
    return torch.sigmoid(0.4 + 1.2 * normal).float()
