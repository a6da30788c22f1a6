"""Training of a small diffusion model, resumable and seeded.

Each step draws from a generator made of (seed, step), so a resumed run continues as if it had never
stopped. A tenth of the prompts is empty, for classifier-free guidance.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from speed_erase.speed_ops.demo.unet import NOISE_LEVELS, SIGMAS, SIGNAL

from .storage import load_json, load_tensors, save_json, save_tensors

MOMENTS = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""What optimizers remember of a parameter."""


@dataclass(frozen=True)
class Plan:
    """How to train: the rate warms up, stays, and falls to zero after the share `hold`."""

    steps: int
    batch: int
    rate: float
    warmup: int
    average: float
    hold: float = 0.4
    empty: float = 0.1
    seed: int = 0
    save_minutes: float = 3.0

    def rate_at(self, step: int) -> float:
        fall = max(0.0, (step / self.steps - self.hold) / (1 - self.hold))
        warm = min(1.0, (step + 1) / self.warmup)
        return self.rate * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, fall)))

    def average_at(self, step: int) -> float:
        return min(self.average, (1 + step) / (10 + step))


class Log:
    """Writes a line to the screen and to training.log."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "training.log"

    def __call__(self, line: str) -> None:
        print(line, flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def loss_weights(steps: Tensor) -> Tensor:
    """Weights of the squared noise error: min-SNR (5) at low noise, more at high noise."""
    squared = SIGMAS[steps] ** 2
    return (5 * squared).clamp(max=1.0) * (1 + squared.clamp(max=30.0))


def add_noise(images: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
    signal = SIGNAL[steps][:, None, None, None]
    return signal.sqrt() * images + (1 - signal).sqrt() * noise


def noise_steps(count: int, rng: np.random.Generator) -> Tensor:
    """Noise levels of a batch, spread evenly, fewer at low noise."""
    levels = ((rng.permutation(count) + rng.random(count)) / count) ** 0.7
    return torch.from_numpy((levels * NOISE_LEVELS).astype(np.int64)).clamp(max=NOISE_LEVELS - 1)


class Trainer:
    """A model, its average and its optimizer. Subclasses build the model and define `batch`, or
    `loss` where the model guesses something else.
    """

    file = "unet.safetensors"
    """Of the averages."""

    def __init__(self, folder: Path, plan: Plan, model: nn.Module) -> None:
        self.folder, self.plan, self.step = folder, plan, 0
        self.model = model.to(memory_format=torch.channels_last)
        self.average = {key: value.detach().clone() for key, value in model.state_dict().items()}
        self.optimizers = self.optimizers_for(list(model.named_parameters()))

    def optimizers_for(self, named: list[tuple[str, nn.Parameter]]) -> list[torch.optim.Optimizer]:
        """One or several, which share the parameters."""
        return [adam([parameter for _, parameter in named])]

    def batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Noisy images, noise, steps and prompt rows of the current step."""
        raise NotImplementedError

    def loss(self) -> Tensor:
        """The weighted error of the current step."""
        noisy, noise, steps, context = self.batch()
        error = (self.model(noisy, steps, context) - noise).square().mean(dim=(1, 2, 3))
        return (loss_weights(steps) * error).mean()

    def advance(self) -> float:
        """Takes one step and returns the loss."""
        loss = self.loss()
        self.model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.plan.rate_at(self.step)
            optimizer.step()
        keep = self.plan.average_at(self.step)
        with torch.no_grad():
            for key, value in self.model.state_dict().items():
                self.average[key].lerp_(value, 1 - keep)
        self.step += 1
        return loss.item()

    def run(self, log: Log) -> None:
        """From the last save to the last step."""
        self.resume()
        begin = saved = time.monotonic()
        losses: list[float] = []
        while self.step < self.plan.steps:
            losses.append(self.advance())
            if self.step % 50 == 0 or self.step == self.plan.steps:
                seconds = (time.monotonic() - begin) / len(losses)
                log(f"step {self.step} {seconds:.3f} s/step loss {np.mean(losses):.4f}")
                begin = time.monotonic()
                losses.clear()
            if time.monotonic() - saved > 60 * self.plan.save_minutes:
                self.save()
                saved = time.monotonic()
        self.save()
        log(f"done: {self.step} steps")

    def save(self) -> None:
        state = {f"live.{key}": value for key, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for optimizer in self.optimizers:
                moments = optimizer.state.get(parameter, {})
                state |= {f"{kind}.{name}": value for kind, value in moments.items()}
        save_tensors(self.folder / self.file, self.average)
        save_tensors(self.folder / "training.safetensors", state)
        save_json(self.folder / "training.json", {"step": self.step, "plan": vars(self.plan)})

    def resume(self) -> None:
        """Continues from the last save, if there is one."""
        if not (self.folder / "training.json").exists():
            return
        stored = load_tensors(self.folder / "training.safetensors")
        self.step = load_json(self.folder / "training.json")["step"]
        live = {key[5:]: value for key, value in stored.items() if key.startswith("live.")}
        self.model.load_state_dict(live)
        self.average = load_tensors(self.folder / self.file)
        for optimizer in self.optimizers:
            owned = {id(each) for group in optimizer.param_groups for each in group["params"]}
            for name, parameter in self.model.named_parameters():
                kinds = [kind for kind in MOMENTS if f"{kind}.{name}" in stored]
                if id(parameter) in owned and kinds:
                    optimizer.state[parameter] = {
                        kind: _laid_out(stored[f"{kind}.{name}"], parameter) for kind in kinds
                    }


def adam(parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, betas=(0.9, 0.99), weight_decay=0.01, fused=True)


def _laid_out(stored: Tensor, parameter: nn.Parameter) -> Tensor:
    """A moment in the parameter's own memory layout: the fused optimizer goes by memory, not by
    index.
    """
    if stored.shape != parameter.shape:
        return stored
    return torch.empty_like(parameter).copy_(stored)
