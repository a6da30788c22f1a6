"""Pictures: drawn with ComfyUI's own samplers, and what CLIP makes of them and of texts, to compare
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import comfy.sample
import comfy.samplers
import comfy.utils
import torch
from torch import Tensor

from ...speed_ops.errors import InputError
from .progress import check_stop, show_text
from .text import literal

SAMPLERS: list[str] = list(comfy.samplers.KSampler.SAMPLERS)
SCHEDULERS: list[str] = list(comfy.samplers.KSampler.SCHEDULERS)
_LATENT_PIXELS = 8
"""Pixels of a picture for each of its latent; the channels are the model's own."""
_PICTURES_AT_ONCE = 8
_PROJECTION = "text_projection.weight"
_USABLE = (1e-4, 1.0)
"""Spread of the values of a trained projection lies between: those of CLIP are near 0.01. NaN lies
nowhere.
"""


class Sampler:
    """One setting of the sampler, for any number of pictures: what KSampler would draw from an
    empty latent.
    """

    def __init__(
        self, clip: Any, vae: Any, widgets: dict[str, Any], pictures: int, hidden: Any = None
    ) -> None:
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


def picture_features(clip_vision: Any, images: Tensor) -> Tensor:
    """Pictures (n x height x width x 3, in 0 to 1) in the space that CLIP shares between pictures
    and texts: n x d.
    """
    rows = []
    for start in range(0, len(images), _PICTURES_AT_ONCE):
        check_stop()
        rows.append(
            clip_vision.encode_image(images[start : start + _PICTURES_AT_ONCE, ..., :3])[
                "image_embeds"
            ]
        )
    return torch.cat(rows).double()


def text_features(clip: Any, texts: Sequence[str]) -> Tensor:
    """Texts in the space that CLIP shares between pictures and texts: n x d.

    That space begins behind a projection that diffusion models do not use. Where a file has none,
    ComfyUI leaves whatever was in memory in its place.
    """
    weights = [
        value
        for name, value in clip.cond_stage_model.named_parameters()
        if name.endswith(_PROJECTION)
    ]
    spread = float(weights[0].detach().float().std()) if weights else 0.0
    if not _USABLE[0] < spread < _USABLE[1]:
        raise InputError(
            "This CLIP has no projection for comparing texts with pictures, as in Stable Diffusion"
            " checkpoints: load the text encoder from a file of its own, such as"
            " clip_l.safetensors."
        )
    rows = []
    for text in texts:
        check_stop()
        rows.append(clip.encode_from_tokens(clip.tokenize(literal(text)), return_pooled=True)[1])
    return torch.cat(rows).double()
