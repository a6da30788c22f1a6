"""Drawing pictures with ComfyUI's own samplers: what KSampler between an empty latent and a decoder would draw."""

from __future__ import annotations

from typing import Any

import comfy.sample
import comfy.samplers
import comfy.utils
import torch
from torch import Tensor

from .progress import check_stop, show_text

SAMPLERS: list[str] = list(comfy.samplers.KSampler.SAMPLERS)
SCHEDULERS: list[str] = list(comfy.samplers.KSampler.SCHEDULERS)
_LATENT_PIXELS = 8
"""Pixels of a picture for each of its latent; the channels are the model's own."""


class Sampler:
    """One setting of the sampler, for any number of pictures."""

    def __init__(self, clip: Any, vae: Any, widgets: dict[str, Any], pictures: int, hidden: Any = None) -> None:
        self._clip, self._vae, self._widgets, self._hidden = clip, vae, widgets, hidden
        self._pictures, self._drawn = pictures, 0
        self._bar = comfy.utils.ProgressBar(pictures * widgets["steps"])
        self._negative = self._encode(widgets["negative"])

    def draw(self, model: Any, prompt: str, seed: int) -> Tensor:
        """`height x width x 3` in 0 to 1."""
        check_stop()
        self._drawn += 1
        show_text(self._hidden, f"Drawing picture {self._drawn} of {self._pictures}")
        one, done = self._widgets, (self._drawn - 1) * self._widgets["steps"]
        shape = (1, 4, one["height"] // _LATENT_PIXELS, one["width"] // _LATENT_PIXELS)
        latent = comfy.sample.fix_empty_latent_channels(model, torch.zeros(shape))
        samples = comfy.sample.sample(
            model,
            comfy.sample.prepare_noise(latent, seed),
            *(one["steps"], one["cfg"], one["sampler_name"], one["scheduler"]),
            *(self._encode(prompt), self._negative, latent),
            callback=lambda step, *_: self._bar.update_absolute(done + step + 1),
            disable_pbar=True,
            seed=seed,
        )
        pictures = self._vae.decode(samples)  # of a video model with one more axis: its frames
        return pictures.reshape(-1, *pictures.shape[-3:])[0, ..., :3].clamp(0, 1).cpu().float()

    def _encode(self, text: str) -> Any:
        return self._clip.encode_from_tokens_scheduled(self._clip.tokenize(text))
