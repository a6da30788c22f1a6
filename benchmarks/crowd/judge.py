"""The judge: a small network that names painter, subject and night, trained on renderings that are
roughened far beyond the training world. Its features serve the Frechet distance as a fallback.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..storage import load_tensors, save_json, save_tensors
from .render import draw
from .world import DEPICTED, STYLES

FEATURES, SEED = 128, 1
HEADS = ("subject", "style", "night")


@dataclass(frozen=True)
class Verdict:
    """Class indices (n,) of subject, style and night, and the features (n, 128)."""

    subject: Tensor
    style: Tensor
    night: Tensor
    features: Tensor


class Judge(nn.Module):
    """Pictures (n, 3, 32, 32) in [-1, 1] to logits of subject, style and night, and features."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inside, outside in ((3, 32), (32, 64), (64, 96), (96, 128)):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        self.trunk = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4, FEATURES), nn.ReLU())
        sizes = (len(DEPICTED), len(STYLES), 2)
        self.subject, self.style, self.night = (nn.Linear(FEATURES, size) for size in sizes)

    def forward(self, colors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        features = self.trunk(colors)
        return self.subject(features), self.style(features), self.night(features), features

    @torch.no_grad()
    def judge(self, colors: Tensor) -> Verdict:
        parts = [self.eval()(part) for part in colors.split(256)]
        subject, style, night, features = (torch.cat(part) for part in zip(*parts, strict=True))
        return Verdict(subject.argmax(1), style.argmax(1), night.argmax(1), features)


def examples(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`count` renderings with their labels, combinations equally likely, a quarter at night."""
    subject, style = rng.integers(len(DEPICTED), size=count), rng.integers(len(STYLES), size=count)
    night = (rng.random(count) < 0.25).astype(np.int64)
    labels = (subject, style, night)
    drawn = [draw(DEPICTED[a], STYLES[b], bool(c), rng) for a, b, c in zip(*labels, strict=True)]
    return torch.from_numpy(np.stack(drawn)), *map(torch.from_numpy, labels)


def roughen(colors: Tensor, generator: torch.Generator) -> Tensor:
    """What a diffusion model might do to a picture: shift, grain, blur, light and contrast."""
    count = len(colors)

    def amount(low: float, high: float, size: int = 1) -> Tensor:
        return low + (high - low) * torch.rand(count, size, 1, 1, generator=generator)

    down, right = (int(torch.randint(-1, 2, (1,), generator=generator)) for _ in range(2))
    colors = torch.roll(colors, (down, right), dims=(2, 3))
    soft = F.avg_pool2d(F.pad(colors, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    colors = torch.lerp(colors, soft, amount(0.0, 0.7))
    colors = colors * amount(0.8, 1.15) + amount(-0.10, 0.10) + amount(-0.05, 0.05, 3)
    grain = torch.randn(colors.shape, generator=generator) * amount(0.0, 0.2)
    return (colors + grain).clamp(-1, 1)


def train_judge(
    folder: Path, steps: int = 1500, batch: int = 128, pool: int = 16000, fresh: int = 4000
) -> dict:
    """Train, save with its accuracy on `fresh` renderings, clean and roughened, and return that."""
    rng, generator = np.random.default_rng(SEED), torch.Generator().manual_seed(SEED)
    torch.manual_seed(SEED)
    colors, *labels = examples(pool, rng)
    model = Judge()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(steps):
        chosen = torch.randint(pool, (batch,), generator=generator)
        outputs = model.train()(roughen(colors[chosen], generator))
        pairs = zip(outputs[:3], labels, strict=True)
        loss = sum(F.cross_entropy(output, truth[chosen]) for output, truth in pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    scores = accuracy(model, SEED + 1, fresh)
    save_tensors(folder / "judge.safetensors", model.state_dict())
    save_json(folder / "judge.json", scores)
    return scores


def accuracy(model: Judge, seed: int, count: int) -> dict:
    """Shares of right verdicts on fresh pictures, as drawn and roughened."""
    colors, *labels = examples(count, np.random.default_rng(seed))
    scores: dict = {"pictures": count}
    rough = roughen(colors, torch.Generator().manual_seed(seed))
    for kind, seen in (("clean", colors), ("rough", rough)):
        verdict = model.judge(seen)
        for head, truth in zip(HEADS, labels, strict=True):
            scores[f"{kind}_{head}"] = (getattr(verdict, head) == truth).float().mean().item()
    return scores


def load_judge(folder: Path) -> Judge:
    model = Judge()
    model.load_state_dict(load_tensors(folder / "judge.safetensors"))
    return model.eval()
