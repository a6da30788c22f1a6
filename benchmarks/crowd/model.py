"""The model of the 40-painter test set, the package's small U-Net on patches of pixels; and its
training on cached prompt rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speed_erase.speed_ops.demo.unet import SIGNAL, UNet, sample
from speed_erase.speed_ops.inputs import TOKENS

from .. import training
from ..storage import load_tensors
from ..training import add_noise, noise_steps
from .judge import Judge, load_judge
from .prompts import Prompt, training_prompts, training_weights
from .render import SIZE, draw
from .text import CrowdText

WIDTH = 96
"""Channels of the U-Net: two cores train it and draw all pictures in an afternoon."""
PATCH = 4
"""Pixels along the side of a patch: the U-Net works on 8 x 8 of them, text enters at 4 x 4."""
STEPS, GUIDANCE, BATCH = 8, 3.0, 40
TO_K, TO_V = "attn2.to_k.weight", "attn2.to_v.weight"


class PatchModel(nn.Module):
    """Guesses the noise in pictures (B, 3, 32, 32) at steps (B,) under prompt rows (B, M, 768).

    The U-Net itself guesses "v" (Salimans and Ho, 2022): so it need not learn to copy its input.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unet = UNet(narrow=2, width=WIDTH)
        channels = 3 * PATCH * PATCH
        self.unet.input_blocks[0][0] = nn.Conv2d(channels, WIDTH, 3, padding=1)
        self.unet.out[2] = nn.Conv2d(WIDTH, channels, 3, padding=1)
        nn.init.zeros_(self.unet.out[2].weight)
        nn.init.zeros_(self.unet.out[2].bias)

    def forward(self, x: Tensor, steps: Tensor, context: Tensor) -> Tensor:
        guess = self.unet(F.pixel_unshuffle(x, PATCH), steps, context)
        guess = F.pixel_shuffle(guess, PATCH)
        signal = SIGNAL[steps.round().long()][:, None, None, None]
        return signal.sqrt() * guess + (1 - signal).sqrt() * x


class Crowd:
    """Text, model and judge of one folder."""

    file = "unet.safetensors"
    steps = STEPS
    rivals_edit: tuple[str, ...] = (TO_K, TO_V)
    """How the keys of these layers end."""

    def __init__(self, folder: Path, text: CrowdText, steps: int | None = None) -> None:
        self.folder, self.text, self.steps = folder, text, steps or self.steps
        self.model = self.network()
        self.model.load_state_dict(load_tensors(folder / self.file))
        self.model.requires_grad_(False).eval().to(memory_format=torch.channels_last)
        state = self.model.state_dict()
        self.layers = {k: v.clone() for k, v in state.items() if k.endswith(self.rivals_edit)}
        """The untouched weights that rivals edit: {key: `o` x 768}."""
        self.inputs = self.edited(state)
        """Those that our erasure edits, and which text input each of them reads."""
        self.original = {key: state[key].clone() for key in self.inputs}

    def network(self) -> nn.Module:
        """The model, untrained."""
        return PatchModel()

    def edited(self, keys: Iterable[str]) -> dict[str, str]:
        """{key of a layer: text input}."""
        return {key: TOKENS for key in keys if key.endswith(TO_V)}

    def sampled(self, texts: Sequence[str], noise: Tensor) -> Tensor:
        """Colors (n, 3, 32, 32) of prompts from noise."""
        rows, empty = self.text.rows(texts), self.text.rows([""])[0]
        return sample(self.model, rows, empty, noise, self.steps, GUIDANCE)

    @cached_property
    def judge(self) -> Judge:
        """Loaded when the first pictures are judged."""
        return load_judge(self.folder)

    def draw(
        self, texts: Sequence[str], seed: int, weights: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """One picture per prompt, (n, 3, 32, 32) bytes; the noise depends on seed and index."""
        source = torch.Generator().manual_seed(seed)
        noise = torch.randn(len(texts), 3, SIZE, SIZE, generator=source)
        edited = {key: value.float() for key, value in (weights or self.original).items()}
        untouched = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.model.load_state_dict(edited, strict=False)
        drawn = []
        for start in range(0, len(texts), BATCH):
            colors = self.sampled(texts[start : start + BATCH], noise[start : start + BATCH])
            drawn.append(((colors.clamp(-1, 1) + 1) * 127.5).round().byte())
        self.model.load_state_dict({key: untouched[key] for key in edited}, strict=False)
        return torch.cat(drawn)


def from_bytes(pictures: Tensor) -> Tensor:
    return pictures.float() / 127.5 - 1


@dataclass(frozen=True)
class Plan(training.Plan):
    """How the model of docs/research/image-tests was trained."""

    steps: int = 6000
    batch: int = 32
    rate: float = 6e-4
    warmup: int = 200
    average: float = 0.999


class Trainer(training.Trainer):
    """Draws its images while it trains."""

    def __init__(self, folder: Path, plan: Plan, text: CrowdText) -> None:
        kinds = self.sentences(plan.seed)
        self.prompts: list[Prompt] = [prompt for group in kinds.values() for prompt in group]
        self.chances = training_weights(kinds)
        self.text = text
        torch.manual_seed(plan.seed)
        super().__init__(folder, plan, self.network())

    def sentences(self, seed: int) -> dict[str, list[Prompt]]:
        """What is asked for, by kind."""
        return training_prompts(seed)

    def network(self) -> nn.Module:
        """The model, untrained."""
        return PatchModel()

    def save(self) -> None:
        super().save()
        self.text.save()

    def drawn(self, rng: np.random.Generator) -> tuple[list[Prompt], Tensor, Tensor]:
        """A batch of prompts, their images, and noise."""
        indices = rng.choice(len(self.prompts), size=self.plan.batch, p=self.chances)
        prompts = [self.prompts[i] for i in indices]
        subjects = (p.subject or str(rng.choice(p.among)) for p in prompts)
        drawn = [draw(s, p.style, p.night, rng) for s, p in zip(subjects, prompts, strict=True)]
        images = torch.from_numpy(np.stack(drawn)).contiguous(memory_format=torch.channels_last)
        noise = torch.from_numpy(rng.standard_normal(tuple(images.shape), dtype=np.float32))
        return prompts, images, noise

    def batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        count = self.plan.batch
        rng = np.random.default_rng([self.plan.seed, self.step])
        prompts, images, noise = self.drawn(rng)
        steps = noise_steps(count, rng)
        empty = rng.random(count) < self.plan.empty
        texts = ["" if blank else p.text for p, blank in zip(prompts, empty, strict=True)]
        return add_noise(images, steps, noise), noise, steps, self.text.rows(texts)
