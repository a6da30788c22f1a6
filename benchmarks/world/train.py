"""Train the world's model: text encoder first (`tune.py`), then the U-Net on its frozen rows; resumable and seeded.

Freezing the encoder lets all prompts be encoded once (77 x 768 rows each, half precision): a step then costs only the
U-Net. Each step draws its prompts, pictures, noise and noise levels from a generator made of (seed, step), so a resumed
run continues as if it had never stopped. A tenth of the prompts is empty, for classifier-free guidance.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .diffusion import STEPS, add_noise, loss_weights
from .prompts import Prompt, training_prompts, training_weights
from .render import draw
from .storage import load_json, load_tensors, save_json, save_tensors
from .text_encoder import TextEncoder
from .threads import ThreadChoice
from .tune import tune
from .unet import UNet, rest_wide_blocks, start_from_identity
from .world import SUBJECTS


@dataclass(frozen=True)
class Plan:
    """How long and how: `steps` of `batch` pictures; the rate warms up, stays, and falls to zero over the last 60 %.

    Two of the three blocks at full resolution rest for the first `rest` of the steps (1: always), a third of the cost.
    """

    steps: int = 1120
    batch: int = 16
    rate: float = 4e-4
    warmup: int = 100
    hold: float = 0.4
    rest: float = 1.0
    average: float = 0.998
    empty: float = 0.1
    shrink: int = 1
    """Pictures are averaged over squares of this side: 3 leaves little but the palette, for a ninth of the cost."""
    seed: int = 0
    text_steps: int = 180
    save_minutes: float = 3.0

    def rate_at(self, step: int) -> float:
        fall = max(0.0, (step / self.steps - self.hold) / (1 - self.hold))
        return self.rate * min(1.0, (step + 1) / self.warmup) * 0.5 * (1 + math.cos(math.pi * min(1.0, fall)))

    def average_at(self, step: int) -> float:
        return min(self.average, (1 + step) / (10 + step))


def text_stage(folder: Path, plan: Plan, log: Log) -> TextEncoder:
    """The tuned encoder: from the folder if it is there, else trained now."""
    path = folder / "text_encoder.safetensors"
    if not path.exists():
        encoder = tune(plan.seed, plan.text_steps, log)
        save_tensors(path, encoder.state_dict())
    encoder = TextEncoder()
    encoder.load_state_dict(load_tensors(path))
    return encoder.requires_grad_(False).eval()


def cached_rows(folder: Path, encoder: TextEncoder, prompts: list[Prompt], log: Log) -> Tensor:
    """Rows of the empty prompt and of every training prompt, (1 + n, 77, 768) half precision, encoded once."""
    path = folder / "prompt_rows.safetensors"
    if not path.exists():
        begin = time.monotonic()
        save_tensors(path, {"rows": encoder.encode(["", *(prompt.text for prompt in prompts)]).half()})
        log(f"encoded {len(prompts)} prompts in {time.monotonic() - begin:.0f}s")
    return load_tensors(path)["rows"]


class Log:
    """A line to the screen and to training.log."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "training.log"

    def __call__(self, line: str) -> None:
        print(line, flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _pictures(prompts: list[Prompt], rng: np.random.Generator) -> Tensor:
    drawn = [draw(p.subject or str(rng.choice(SUBJECTS)), p.style, p.night, rng) for p in prompts]
    return torch.from_numpy(np.stack(drawn)).contiguous(memory_format=torch.channels_last)


class Trainer:
    """The U-Net, its running average and the optimiser, with everything needed to stop and go on."""

    def __init__(self, folder: Path, plan: Plan, rows: Tensor, prompts: list[Prompt]) -> None:
        self.folder, self.plan, self.rows, self.prompts = folder, plan, rows, prompts
        self.weights = training_weights(prompts)
        torch.manual_seed(plan.seed)
        self.unet = UNet()
        start_from_identity(self.unet)
        self.unet.to(memory_format=torch.channels_last)
        self.average = {key: value.detach().clone() for key, value in self.unet.state_dict().items()}
        self.optimiser = torch.optim.AdamW(
            self.unet.parameters(), lr=plan.rate, betas=(0.9, 0.99), weight_decay=0.01, fused=True
        )
        self.step = 0

    def batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Noisy pictures, noise, steps and prompt rows of the current step; noise levels spread evenly."""
        plan = self.plan
        rng = np.random.default_rng([plan.seed, self.step])
        chosen = rng.choice(len(self.prompts), size=plan.batch, p=self.weights)
        pictures = torch.nn.functional.avg_pool2d(_pictures([self.prompts[i] for i in chosen], rng), plan.shrink)
        noise = torch.from_numpy(rng.standard_normal(tuple(pictures.shape), dtype=np.float32))
        spread = ((rng.permutation(plan.batch) + rng.random(plan.batch)) / plan.batch) ** 0.7  # fewer at low noise
        steps = torch.from_numpy((spread * STEPS).astype(np.int64)).clamp(max=STEPS - 1)
        chosen = np.where(rng.random(plan.batch) < plan.empty, 0, chosen + 1)
        return add_noise(pictures, steps, noise), noise, steps, self.rows[chosen].float()

    def advance(self) -> tuple[float, np.ndarray]:
        """One step; returns the weighted loss and the plain error in four bands of noise, low to high."""
        noisy, noise, steps, context = self.batch()
        rest_wide_blocks(self.unet, self.step < self.plan.rest * self.plan.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = self.plan.rate_at(self.step)
        error = (self.unet(noisy, steps, context) - noise).square().mean(dim=(1, 2, 3))
        loss = (loss_weights(steps) * error).mean()
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.unet.parameters(), 1.0)
        self.optimiser.step()
        keep = self.plan.average_at(self.step)
        with torch.no_grad():
            for key, value in self.unet.state_dict().items():
                self.average[key].lerp_(value, 1 - keep)
        self.step += 1
        bands = np.array([error.detach()[steps * 4 // STEPS == band].mean().item() for band in range(4)])
        return loss.item(), bands

    def save(self) -> None:
        moments = {}
        for name, parameter in self.unet.named_parameters():
            if state := self.optimiser.state.get(parameter):
                moments |= {
                    f"first.{name}": state["exp_avg"],
                    f"second.{name}": state["exp_avg_sq"],
                    f"count.{name}": state["step"],
                }
        live = {f"live.{key}": value for key, value in self.unet.state_dict().items()}
        save_tensors(self.folder / "unet.safetensors", self.average)
        save_tensors(self.folder / "training.safetensors", live | moments)
        save_json(self.folder / "training.json", {"step": self.step, "plan": vars(self.plan)})

    def resume(self) -> None:
        """Go on from the last save, if there is one."""
        if not (self.folder / "training.json").exists():
            return
        stored = load_tensors(self.folder / "training.safetensors")
        self.step = load_json(self.folder / "training.json")["step"]
        self.unet.load_state_dict({key[5:]: value for key, value in stored.items() if key.startswith("live.")})
        self.average = load_tensors(self.folder / "unet.safetensors")
        for name, parameter in self.unet.named_parameters():
            if f"first.{name}" in stored:
                count, first, second = (stored[f"{kind}.{name}"] for kind in ("count", "first", "second"))
                self.optimiser.state[parameter] = {"step": count, "exp_avg": first, "exp_avg_sq": second}


def train(folder: Path, plan: Plan) -> None:
    """Both stages, from wherever the folder's files left off."""
    log = Log(folder)
    encoder = text_stage(folder, plan, log)
    prompts = training_prompts(plan.seed)
    trainer = Trainer(folder, plan, cached_rows(folder, encoder, prompts, log), prompts)
    trainer.resume()
    begin, saved, first = time.monotonic(), time.monotonic(), trainer.step
    losses: list[tuple[float, np.ndarray]] = []
    choice = ThreadChoice()
    while trainer.step < plan.steps:
        threads, started = choice.begin(), time.monotonic()
        losses.append(trainer.advance())
        choice.end(threads, time.monotonic() - started)
        if trainer.step % 20 == 0:
            seconds = (time.monotonic() - begin) / (trainer.step - first)
            begin, first = time.monotonic(), trainer.step
            bands = " ".join(f"{value:.4f}" for value in np.nanmean([b for _, b in losses], axis=0))
            loss = np.mean([value for value, _ in losses])
            log(f"step {trainer.step} {seconds:.2f} s/step loss {loss:.4f} bands {bands} threads {threads}")
            losses.clear()
        if time.monotonic() - saved > 60 * plan.save_minutes:
            trainer.save()
            saved = time.monotonic()
    trainer.save()
    log(f"done: {trainer.step} steps")
