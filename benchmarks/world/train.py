"""Train the world's model: autoencoder, text encoder (`tune.py`), then the U-Net on their frozen
results.

Freezing the others lets all prompts and pictures be encoded once (77 x 768 rows, 4 x 16 x 16
latents): a step then costs only the U-Net. Each step draws its prompts, pictures, noise and noise
levels from a generator made of (seed, step), so a resumed run continues as if it had never stopped.
A tenth of the prompts is empty, for classifier-free guidance.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from speed_erase.speed_ops.demo.autoencoder import Autoencoder
from speed_erase.speed_ops.demo.packed_model import NARROW
from speed_erase.speed_ops.demo.sampler import SIGMAS, SIGNAL, STEPS
from speed_erase.speed_ops.demo.unet import LATENT_CHANNELS, Residual, SpatialTransformer, UNet

from .autoencoder import mean_error, new_autoencoder, refine_decoder, train_autoencoder
from .export import rounded_text
from .prompts import Prompt, training_prompts, training_weights
from .render import draw
from .storage import load_json, load_tensors, save_json, save_tensors
from .text_encoder import TextEncoder
from .threads import ThreadChoice
from .tune import tune
from .world import SCENES, STYLES

VARIANTS = 10
"""Pictures of each subject, painter and time of day that training knows."""


@dataclass(frozen=True)
class Plan:
    """How long and how: `steps` of `batch` pictures; the rate warms up, stays, and falls to zero
    over the last 60 %.
    """

    steps: int = 2400
    batch: int = 16
    rate: float = 7e-4
    warmup: int = 60
    hold: float = 0.4
    average: float = 0.998
    empty: float = 0.1
    finish: float = 0.75
    """From this part of the steps on, plain empty scenes are drawn often: to the text encoder their
    prompts are almost the empty one, which stands for everything, and the difference is learnt
    last."""
    seed: int = 0
    text_steps: int = 400
    autoencoder_steps: int = 800
    decoder_steps: int = 1200
    save_minutes: float = 3.0

    def rate_at(self, step: int) -> float:
        fall = max(0.0, (step / self.steps - self.hold) / (1 - self.hold))
        return (
            self.rate
            * min(1.0, (step + 1) / self.warmup)
            * 0.5
            * (1 + math.cos(math.pi * min(1.0, fall)))
        )

    def average_at(self, step: int) -> float:
        return min(self.average, (1 + step) / (10 + step))


def autoencoder_stage(folder: Path, plan: Plan, log: Log) -> Autoencoder:
    """The trained autoencoder: from the folder if it is there, else trained now."""
    path = folder / "autoencoder.safetensors"
    if not path.exists():
        trained = train_autoencoder(plan.seed, plan.autoencoder_steps, log)
        log(f"autoencoder error {mean_error(trained):.4f}")
        save_tensors(path, trained.state_dict())
    model = new_autoencoder()
    model.load_state_dict(load_tensors(path))
    return model.requires_grad_(False).eval()


def refine_stage(folder: Path, plan: Plan, log: Log) -> None:
    """The autoencoder with its decoder trained further, if it is not there yet: the U-Net does not
    depend on it.
    """
    path = folder / "refined.safetensors"
    if not path.exists():
        refined = refine_decoder(
            autoencoder_stage(folder, plan, log), plan.seed, plan.decoder_steps, log
        )
        log(f"autoencoder error {mean_error(refined):.4f}")
        save_tensors(path, refined.state_dict())


def text_stage(folder: Path, plan: Plan, log: Log) -> TextEncoder:
    """The tuned encoder: from the folder if it is there, else trained now."""
    path = folder / "text_encoder.safetensors"
    if not path.exists():
        encoder = tune(plan.seed, plan.text_steps, log)
        save_tensors(path, encoder.state_dict())
    encoder = TextEncoder()
    encoder.load_state_dict(rounded_text(load_tensors(path)))
    return encoder.requires_grad_(False).eval()


def cached_rows(folder: Path, encoder: TextEncoder, prompts: list[Prompt], log: Log) -> Tensor:
    """Rows of the empty prompt and of every training prompt, (1 + n, 77, 768) half precision,
    encoded once.
    """
    path = folder / "prompt_rows.safetensors"
    if not path.exists():
        begin = time.monotonic()
        save_tensors(
            path, {"rows": encoder.encode(["", *(prompt.text for prompt in prompts)]).half()}
        )
        log(f"encoded {len(prompts)} prompts in {time.monotonic() - begin:.0f}s")
    return load_tensors(path)["rows"]


def cached_latents(folder: Path, autoencoder: Autoencoder, seed: int, log: Log) -> Tensor:
    """Latents of every scene by every painter by day and by night, (11, 13, 2, 10, 4, 16, 16),
    encoded once.
    """
    path = folder / "latents.safetensors"
    if not path.exists():
        begin, rng = time.monotonic(), np.random.default_rng([seed, 9])
        parts = []
        for scene, style, night in itertools.product(SCENES, STYLES, (False, True)):
            drawn = torch.from_numpy(
                np.stack([draw(scene, style, night, rng) for _ in range(VARIANTS)])
            )
            with torch.no_grad():
                parts.append(autoencoder.encode(drawn / 2 + 0.5).half())
        latents = torch.stack(parts).unflatten(0, (len(SCENES), len(STYLES), 2))
        save_tensors(path, {"latents": latents})
        log(f"encoded {len(parts) * VARIANTS} pictures in {time.monotonic() - begin:.0f}s")
    return load_tensors(path)["latents"]


class Log:
    """A line to the screen and to training.log."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "training.log"

    def __call__(self, line: str) -> None:
        print(line, flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def loss_weights(steps: Tensor) -> Tensor:
    """Weights of the squared noise error: min-SNR (5) at low noise, 1 + sigma^2 up to 30 at high
    noise.

    At high noise even a wrong picture is a small error of the noise; but there the prompt decides
    palette and shape.
    """
    squared = SIGMAS[steps] ** 2
    return (5 * squared).clamp(max=1.0) * (1 + squared.clamp(max=30.0))


def add_noise(latents: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
    signal = SIGNAL[steps][:, None, None, None]
    return signal.sqrt() * latents + (1 - signal).sqrt() * noise


@torch.no_grad()
def start_from_identity(unet: UNet) -> None:
    """Initialise so that the untrained U-Net returns its input: right at high noise, where x is
    nearly all noise.

    The input convolution carries each latent channel as +x and -x, the last shortcut passes them
    on, every residual branch starts at zero, and the output takes silu(a) - silu(-a) = a. Saves the
    first half hour of learning to copy.
    """
    for module in unet.modules():
        if isinstance(module, Residual):
            module.out_layers[3].weight.zero_()
            module.out_layers[3].bias.zero_()
        elif isinstance(module, SpatialTransformer):
            module.proj_out.weight.zero_()
            module.proj_out.bias.zero_()
    first, shortcut, last = (
        unet.input_blocks[0][0],
        unet.output_blocks[-1][0].skip_connection,
        unet.out[2],
    )
    width = len(first.weight)
    group = width // 32
    # a pair in each group
    carried = [group * latent + place for latent in range(LATENT_CHANNELS) for place in (0, 1)]
    shortcut.weight[carried] = 0.0
    last.weight.mul_(0.1)
    last.bias.zero_()
    for latent in range(LATENT_CHANNELS):
        for sign, place in ((1.0, 0), (-1.0, 1)):
            row = group * latent + place
            first.weight[row].zero_()
            first.weight[row, latent, 1, 1] = sign
            first.bias[row] = 0.0
            shortcut.weight[row, width + row] = 1.0
            shortcut.bias[row] = 0.0
            last.weight[:, row].zero_()
            # undoes the norm: 2 of its channels are busy
            last.weight[latent, row, 1, 1] = sign * (2 / group) ** 0.5
    unet.out[0].weight[carried] = 1.0


class Trainer:
    """The U-Net, its running average and the optimiser, with everything needed to stop and go
    on.
    """

    def __init__(
        self, folder: Path, plan: Plan, rows: Tensor, prompts: list[Prompt], latents: Tensor
    ) -> None:
        self.folder, self.plan, self.rows, self.prompts, self.latents = (
            folder,
            plan,
            rows,
            prompts,
            latents,
        )
        self.weights, self.last_weights = (
            training_weights(prompts),
            training_weights(prompts, empty_scenes=6.0),
        )
        torch.manual_seed(plan.seed)
        self.unet = UNet(NARROW)
        start_from_identity(self.unet)
        self.unet.to(memory_format=torch.channels_last)
        self.average = {
            key: value.detach().clone() for key, value in self.unet.state_dict().items()
        }
        self.optimiser = torch.optim.AdamW(
            self.unet.parameters(), lr=plan.rate, betas=(0.9, 0.99), weight_decay=0.01, fused=True
        )
        self.step = 0

    def batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Noisy latents, noise, steps and prompt rows of the current step; noise levels spread
        evenly.
        """
        plan = self.plan
        rng = np.random.default_rng([plan.seed, self.step])
        weights = self.weights if self.step < plan.finish * plan.steps else self.last_weights
        chosen = rng.choice(len(self.prompts), size=plan.batch, p=weights)
        pictures = self._pictures([self.prompts[i] for i in chosen], rng)
        noise = torch.from_numpy(rng.standard_normal(tuple(pictures.shape), dtype=np.float32))
        # fewer at low noise
        spread = ((rng.permutation(plan.batch) + rng.random(plan.batch)) / plan.batch) ** 0.7
        steps = torch.from_numpy((spread * STEPS).astype(np.int64)).clamp(max=STEPS - 1)
        chosen = np.where(rng.random(plan.batch) < plan.empty, 0, chosen + 1)
        return add_noise(pictures, steps, noise), noise, steps, self.rows[chosen].float()

    def _pictures(self, prompts: list[Prompt], rng: np.random.Generator) -> Tensor:
        """A variant of each, (n, 4, 16, 16)."""
        variants = rng.integers(VARIANTS, size=len(prompts))
        places = [(SCENES.index(p.subject), STYLES.index(p.style), int(p.night)) for p in prompts]
        found = [
            self.latents[(*place, variant)] for place, variant in zip(places, variants, strict=True)
        ]
        return torch.stack(found).float().contiguous(memory_format=torch.channels_last)

    def advance(self) -> tuple[float, np.ndarray]:
        """One step; returns the weighted loss and the plain error in four bands of noise, low to
        high.
        """
        noisy, noise, steps, context = self.batch()
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
        bands = np.array(
            [error.detach()[steps * 4 // STEPS == band].mean().item() for band in range(4)]
        )
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
        self.unet.load_state_dict(
            {key[5:]: value for key, value in stored.items() if key.startswith("live.")}
        )
        self.average = load_tensors(self.folder / "unet.safetensors")
        for name, parameter in self.unet.named_parameters():
            if f"first.{name}" in stored:
                count, first, second = (
                    stored[f"{kind}.{name}"] for kind in ("count", "first", "second")
                )
                # In the parameter's own memory layout: the fused optimiser goes by memory, not by
                # index.
                first, second = (
                    torch.empty_like(parameter).copy_(moment) for moment in (first, second)
                )
                self.optimiser.state[parameter] = {
                    "step": count,
                    "exp_avg": first,
                    "exp_avg_sq": second,
                }


def train(folder: Path, plan: Plan) -> None:
    """All stages, from wherever the folder's files left off."""
    log = Log(folder)
    latents = cached_latents(folder, autoencoder_stage(folder, plan, log), plan.seed, log)
    encoder = text_stage(folder, plan, log)
    prompts = training_prompts(plan.seed)
    trainer = Trainer(folder, plan, cached_rows(folder, encoder, prompts, log), prompts, latents)
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
            log(
                f"step {trainer.step} {seconds:.2f} s/step loss {loss:.4f} bands {bands} threads"
                f" {threads}"
            )
            losses.clear()
        if time.monotonic() - saved > 60 * plan.save_minutes:
            trainer.save()
            saved = time.monotonic()
    trainer.save()
    refine_stage(folder, plan, log)
    log(f"done: {trainer.step} steps")
