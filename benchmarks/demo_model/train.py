"""Train the demo's model: autoencoder, text encoder (`tune.py`), then the U-Net.

Prompts and images are encoded once, by the frozen others: a step then costs only the U-Net.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from speed_erase.speed_ops.demo.autoencoder import Autoencoder
from speed_erase.speed_ops.demo.packed_model import NARROW
from speed_erase.speed_ops.demo.unet import LATENT_CHANNELS, Residual, SpatialTransformer, UNet

from .. import training
from ..storage import load_tensors, save_tensors
from ..training import Log, add_noise, noise_steps
from .autoencoder import mean_error, new_autoencoder, refine_decoder, train_autoencoder
from .export import rounded_text
from .prompts import Prompt, training_prompts, training_weights
from .render import draw
from .text_encoder import TextEncoder
from .tune import tune
from .world import SCENES, STYLES

VARIANTS = 10
"""Images of each subject, painter and time of day that training knows."""


@dataclass(frozen=True)
class Plan(training.Plan):
    """The recipe of the model that is shipped."""

    steps: int = 2400
    batch: int = 16
    rate: float = 7e-4
    warmup: int = 60
    average: float = 0.998
    finish: float = 0.75
    """From this share of the steps on, plain empty scenes are drawn often: their prompts are almost
    the empty one, and the difference is learned last."""
    text_steps: int = 400
    autoencoder_steps: int = 800
    decoder_steps: int = 1200


def stored(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of a file, which is made first where it is missing."""
    if not path.exists():
        save_tensors(path, make())
    return load_tensors(path)


def autoencoder_stage(folder: Path, plan: Plan, log: Log) -> Autoencoder:
    """The trained autoencoder, from the folder if it is there."""

    def make() -> dict[str, Tensor]:
        trained = train_autoencoder(plan.seed, plan.autoencoder_steps, log)
        log(f"autoencoder error {mean_error(trained):.4f}")
        return trained.state_dict()

    model = new_autoencoder()
    model.load_state_dict(stored(folder / "autoencoder.safetensors", make))
    return model.requires_grad_(False).eval()


def refine_stage(folder: Path, plan: Plan, log: Log) -> None:
    """Trains the decoder further, unless the folder has it: the U-Net does not depend on it."""

    def make() -> dict[str, Tensor]:
        trained = autoencoder_stage(folder, plan, log)
        refined = refine_decoder(trained, plan.seed, plan.decoder_steps, log)
        log(f"autoencoder error {mean_error(refined):.4f}")
        return refined.state_dict()

    stored(folder / "refined.safetensors", make)


def text_stage(folder: Path, plan: Plan, log: Log) -> TextEncoder:
    """The tuned encoder, from the folder if it is there."""
    path, encoder = folder / "text_encoder.safetensors", TextEncoder()
    state = stored(path, lambda: tune(plan.seed, plan.text_steps, log).state_dict())
    encoder.load_state_dict(rounded_text(state))
    return encoder.requires_grad_(False).eval()


@torch.no_grad()
def encoded_scenes(autoencoder: Autoencoder, seed: int) -> Tensor:
    """Every scene by every painter by day and by night, (11, 13, 2, 10, 4, 16, 16)."""
    rng, latents = np.random.default_rng([seed, 9]), []
    for scene, style, night in itertools.product(SCENES, STYLES, (False, True)):
        images = np.stack([draw(scene, style, night, rng) for _ in range(VARIANTS)])
        latents.append(autoencoder.encode(torch.from_numpy(images) / 2 + 0.5).half())
    return torch.stack(latents).unflatten(0, (len(SCENES), len(STYLES), 2))


@torch.no_grad()
def start_from_identity(unet: UNet) -> None:
    """Initialize so that the untrained U-Net returns its input, which is right at high noise.

    The input convolution carries each channel as +x and -x, the last shortcut passes them on,
    every residual branch starts at zero, and the output takes silu(a) - silu(-a) = a.
    """
    for module in unet.modules():
        if isinstance(module, Residual | SpatialTransformer):
            branch = module.out_layers[3] if isinstance(module, Residual) else module.proj_out
            branch.weight.zero_()
            branch.bias.zero_()
    first, last = unet.input_blocks[0][0], unet.out[2]
    shortcut = unet.output_blocks[-1][0].skip_connection
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


class Trainer(training.Trainer):
    """Trains the U-Net on cached rows and latents."""

    plan: Plan

    def __init__(
        self, folder: Path, plan: Plan, rows: Tensor, prompts: list[Prompt], latents: Tensor
    ) -> None:
        self.rows, self.prompts, self.latents = rows, prompts, latents
        self.weights = training_weights(prompts)
        self.last_weights = training_weights(prompts, empty_scenes=6.0)
        torch.manual_seed(plan.seed)
        unet = UNet(NARROW)
        start_from_identity(unet)
        super().__init__(folder, plan, unet)

    def batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        plan = self.plan
        rng = np.random.default_rng([plan.seed, self.step])
        weights = self.weights if self.step < plan.finish * plan.steps else self.last_weights
        indices = rng.choice(len(self.prompts), size=plan.batch, p=weights)
        latents = self._latents([self.prompts[i] for i in indices], rng)
        noise = torch.from_numpy(rng.standard_normal(tuple(latents.shape), dtype=np.float32))
        steps = noise_steps(plan.batch, rng)
        indices = np.where(rng.random(plan.batch) < plan.empty, 0, indices + 1)
        return add_noise(latents, steps, noise), noise, steps, self.rows[indices].float()

    def _latents(self, prompts: list[Prompt], rng: np.random.Generator) -> Tensor:
        """A variant of each, (n, 4, 16, 16)."""
        variants = rng.integers(VARIANTS, size=len(prompts))
        pairs = zip(prompts, variants, strict=True)
        indices = [
            (SCENES.index(p.subject), STYLES.index(p.style), int(p.night), v) for p, v in pairs
        ]
        latents = [self.latents[index] for index in indices]
        return torch.stack(latents).float().contiguous(memory_format=torch.channels_last)


def train(folder: Path, plan: Plan) -> None:
    """All stages, from wherever the folder's files left off."""
    log = Log(folder)
    autoencoder = autoencoder_stage(folder, plan, log)
    path = folder / "latents.safetensors"
    latents = stored(path, lambda: {"latents": encoded_scenes(autoencoder, plan.seed)})["latents"]
    prompts, encoder = training_prompts(plan.seed), text_stage(folder, plan, log)
    texts = ["", *(prompt.text for prompt in prompts)]
    path = folder / "prompt_rows.safetensors"
    rows = stored(path, lambda: {"rows": encoder.encode(texts).half()})["rows"]
    Trainer(folder, plan, rows, prompts, latents).run(log)
    refine_stage(folder, plan, log)
