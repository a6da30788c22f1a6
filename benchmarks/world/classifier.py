"""The judge: a small network that names subject, painter and night from a picture's colours, never from its mask.

Trained on the renderer's pictures with grain, blur, light and contrast varied well beyond the training world, so that
samples of a diffusion model are judged fairly. Its 96 features before the heads serve the Frechet distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .render import draw
from .storage import load_tensors, save_json, save_tensors
from .world import STYLES, SUBJECTS

FEATURES = 96


@dataclass(frozen=True)
class Verdict:
    """Class indices (n,) of subject, style and night, and the features (n, 96)."""

    subject: Tensor
    style: Tensor
    night: Tensor
    features: Tensor


class Classifier(nn.Module):
    """Colours (n, 3, 12, 12) to logits of subject, style and night, and features."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(48, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 36, FEATURES), nn.ReLU(),
        )  # fmt: skip
        self.subject, self.style, self.night = (nn.Linear(FEATURES, n) for n in (len(SUBJECTS), len(STYLES), 2))

    def forward(self, colours: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        features = self.trunk(colours)
        return self.subject(features), self.style(features), self.night(features), features

    @torch.no_grad()
    def judge(self, pictures: Tensor) -> Verdict:
        """Verdict on pictures (n, 4 or 3, 12, 12) in [-1, 1]; values outside are clipped as a picture file would."""
        subject, style, night, features = self.eval()(pictures[:, :3].clamp(-1, 1))
        return Verdict(subject.argmax(1), style.argmax(1), night.argmax(1), features)


def examples(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`count` rendered colours with their labels, every combination equally likely, a quarter of them night."""
    subject, style = rng.integers(len(SUBJECTS), size=count), rng.integers(len(STYLES), size=count)
    night = (rng.random(count) < 0.25).astype(np.int64)
    drawn = [draw(SUBJECTS[a], STYLES[b], bool(c), rng)[:3] for a, b, c in zip(subject, style, night, strict=True)]
    return torch.from_numpy(np.stack(drawn)), *(torch.from_numpy(labels) for labels in (subject, style, night))


def roughen(colours: Tensor, generator: torch.Generator) -> Tensor:
    """What a diffusion model might do to a picture: grain, blur, light and contrast."""
    count = len(colours)

    def amount(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, 1, generator=generator)

    soft = F.avg_pool2d(F.pad(colours, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    colours = torch.lerp(colours, soft, amount(0.0, 0.5))
    colours = colours * amount(0.8, 1.15) + amount(-0.12, 0.12)
    grain = torch.randn(colours.shape, generator=generator) * amount(0.0, 0.22)
    return (colours + grain).clamp(-1, 1)


def train_classifier(folder: Path, seed: int = 1, steps: int = 1200, batch: int = 128) -> dict[str, float]:
    """Train, save with its held-out accuracies (clean and roughened), and return them."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    pool = examples(20000, rng)
    model = Classifier()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    for _ in range(steps):
        chosen = torch.randint(len(pool[0]), (batch,), generator=generator)
        outputs = model.train()(roughen(pool[0][chosen], generator))
        loss = sum(F.cross_entropy(out, labels[chosen]) for out, labels in zip(outputs[:3], pool[1:], strict=True))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    scores = held_out_accuracy(model, seed + 1)
    save_tensors(folder / "classifier.safetensors", model.state_dict())
    save_json(folder / "classifier.json", scores)
    return scores


def held_out_accuracy(model: Classifier, seed: int, count: int = 4000) -> dict[str, float]:
    """Shares of right verdicts on fresh pictures, as drawn and roughened."""
    colours, *labels = examples(count, np.random.default_rng(seed))
    scores = {}
    for kind, seen in (("clean", colours), ("rough", roughen(colours, torch.Generator().manual_seed(seed)))):
        verdict = model.judge(seen)
        for head, truth in zip(("subject", "style", "night"), labels, strict=True):
            scores[f"{kind}_{head}"] = (getattr(verdict, head) == truth).float().mean().item()
    return scores


def load_classifier(folder: Path) -> Classifier:
    model = Classifier()
    model.load_state_dict(load_tensors(folder / "classifier.safetensors"))
    return model.eval()
