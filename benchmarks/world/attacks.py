"""White-box attack: embeddings optimised by gradient against the edited U-Net (textual inversion,
weights in hand).

The attacker owns the edited weights and pictures of the erased painter. He adds offsets to the rows
of the prompt from the painter's name on and lowers the denoising loss on those pictures. It
succeeds where the judge then recognises the painter in samples, with subjects that the attack did
not train on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speed_erase.speed_ops.demo.sampler import STEPS
from speed_erase.speed_ops.text.kinds import Prompt
from speed_erase.speed_ops.text.tokens import locate

from .model import World
from .render import draw
from .rows import filled
from .text_encoder import LENGTH
from .train import add_noise, loss_weights
from .world import STYLES, SUBJECTS

TEMPLATE = "a {subject} in the style of {painter}"


@dataclass(frozen=True)
class Attack:
    """How hard the attacker tries; `words` stand where the name was ("art": an innocent prompt, or
    the name itself).
    """

    steps: int = 40
    batch: int = 8
    rate: float = 0.1
    radius: float = 0.3
    """Largest offset as a share of a row's norm. The names of two painters lie about 0.6 apart: an
    attacker who may go that far can simply spell a kept neighbour, and no erasure that keeps
    neighbours withstands him."""
    words: str | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class AttackResult:
    """Share of pictures recognised as the erased painter before and after the optimisation, and the
    losses.
    """

    before: float
    after: float
    first_loss: float
    last_loss: float
    size: float
    """Norm of the offset over the norm of the rows that it is added to."""


def prompt_for(painter: str, subject: str, words: str | None) -> Prompt:
    """The attacked prompt and where the name ends in it."""
    return filled(TEMPLATE, "painter", words or painter, subject=subject)


def attacked_rows(
    world: World, painter: str, subjects: list[str], attack: Attack, offset: Tensor
) -> Tensor:
    """Rows (n, 77, d) with the offset (2, d) added: its first row at the name's end, its second on
    all rows after.
    """
    prompts = [prompt_for(painter, subject, attack.words) for subject in subjects]
    rows = world.text.rows([prompt.text for prompt in prompts])
    moved = []
    for prompt, own in zip(prompts, rows, strict=True):
        place = locate(prompt, world.text.token_ids, LENGTH).subject
        moved.append(
            torch.cat(
                [own[:place], own[place : place + 1] + offset[:1], own[place + 1 :] + offset[1:]]
            )
        )
    return torch.stack(moved)


def optimise(
    world: World, painter: str, weights: Mapping[str, Tensor], attack: Attack
) -> tuple[Tensor, list[float]]:
    """The offset (2, d) that lowers the denoising loss on the renderer's pictures of the painter,
    and the losses.
    """
    unet = world.use(weights)
    rng = np.random.default_rng([attack.seed, 17])
    empty = world.text.rows([""])[0]
    limit = attack.radius * float(empty[-1].norm())
    offset = torch.zeros(2, empty.shape[-1], requires_grad=True)
    optimiser = torch.optim.Adam([offset], lr=attack.rate)
    losses = []
    for step in range(attack.steps):
        subjects = [str(s) for s in rng.choice(SUBJECTS[:6], size=attack.batch)]
        pictures = world.encode(
            torch.from_numpy(np.stack([draw(s, painter, False, rng) for s in subjects]))
        )
        noise = torch.from_numpy(rng.standard_normal(pictures.shape, dtype=np.float32))
        # High noise decides palette and layout: that is where a style is drawn or not.
        times = torch.from_numpy(rng.integers(STEPS // 4, STEPS, size=attack.batch))
        guess = unet(
            add_noise(pictures, times, noise),
            times,
            attacked_rows(world, painter, subjects, attack, offset),
        )
        error = (guess - noise).square().mean(dim=(1, 2, 3))
        loss = (loss_weights(times) * error).mean()
        optimiser.zero_grad()
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = attack.rate * (1 - step / attack.steps)
        optimiser.step()
        with torch.no_grad():
            offset.mul_((limit / offset.norm(dim=1, keepdim=True).clamp(min=1e-9)).clamp(max=1.0))
        losses.append(loss.item())
    world.use(None)
    return offset.detach(), losses


def success(
    world: World,
    painter: str,
    weights: Mapping[str, Tensor],
    attack: Attack,
    offset: Tensor,
    count: int,
) -> float:
    """Share of samples, with subjects the attack never used, that the judge takes for the
    painter's.
    """
    subjects = [SUBJECTS[6 + i % (len(SUBJECTS) - 6)] for i in range(count)]
    pictures = world.draw_rows(attacked_rows(world, painter, subjects, attack, offset), 77, weights)
    return float((world.judge.judge(pictures).style == STYLES.index(painter)).float().mean())


def run_attack(
    world: World, painter: str, weights: Mapping[str, Tensor], attack: Attack, count: int = 24
) -> AttackResult:
    """Optimise and sample."""
    nothing = torch.zeros(2, world.text.rows([""]).shape[-1])
    before = success(world, painter, weights, attack, nothing, count)
    offset, losses = optimise(world, painter, weights, attack)
    after = success(world, painter, weights, attack, offset, count)
    part = max(1, attack.steps // 6)
    size = float(offset[1].norm()) / float(world.text.rows([""])[0, -1].norm())
    return AttackResult(
        before, after, float(np.mean(losses[:part])), float(np.mean(losses[-part:])), size
    )
