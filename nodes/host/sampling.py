"""Images from ComfyUI's samplers, and CLIP features of images and texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import comfy.sample
import comfy.samplers
import comfy.utils
import torch
from torch import Tensor

from ...speed_ops.errors import InputError, Notice
from .progress import check_stop, show_text

SAMPLERS: list[str] = list(comfy.samplers.KSampler.SAMPLERS)
SCHEDULERS: list[str] = list(comfy.samplers.KSampler.SCHEDULERS)
_IMAGES_AT_ONCE = 8
_PROJECTION = "text_projection.weight"
_USABLE = (1e-4, 1.0)
"""Range of the standard deviation of a trained projection; CLIP's is near 0.01."""


class Sampler:
    """Generates what KSampler would from an empty latent, with the same settings each time."""

    def __init__(
        self, clip: Any, vae: Any, widgets: dict[str, Any], total: int, hidden: Any = None
    ) -> None:
        self._clip, self._vae, self._widgets, self._hidden = clip, vae, widgets, hidden
        self._total, self._started = total, 0
        self._bar = comfy.utils.ProgressBar(total * widgets["steps"])
        self._negative = self._encode(widgets["negative"])

    def generate(self, model: Any, prompt: str, seed: int) -> Tensor:
        """`height x width x 3` in 0 to 1.

        Args:
            model: ComfyUI's MODEL.
            prompt: The prompt.
            seed: Seed of the noise.
        """
        check_stop()
        self._started += 1
        text = f"Generating image {self._started} of {self._total}"
        notice = Notice(text, code="generating", done=self._started, total=self._total)
        show_text(self._hidden, notice)
        widgets, done = self._widgets, (self._started - 1) * self._widgets["steps"]
        # The VAE decides how many pixels make one of the latent's, the model on its channels.
        pixels = self._vae.spacial_compression_encode()
        shape = (1, 4, widgets["height"] // pixels, widgets["width"] // pixels)
        latent = comfy.sample.fix_empty_latent_channels(model, torch.zeros(shape))
        samples = comfy.sample.sample(
            model,
            comfy.sample.prepare_noise(latent, seed),
            widgets["steps"],
            widgets["cfg"],
            widgets["sampler_name"],
            widgets["scheduler"],
            self._encode(prompt),
            self._negative,
            latent,
            callback=lambda step, *_: self._bar.update_absolute(done + step + 1),
            disable_pbar=True,
            seed=seed,
        )
        images = self._vae.decode(samples)  # of a video model with one more axis: its frames
        return images.reshape(-1, *images.shape[-3:])[0, ..., :3].clamp(0, 1).cpu().float()

    def _encode(self, text: str) -> Any:
        return self._clip.encode_from_tokens_scheduled(self._clip.tokenize(text))


def image_features(clip_vision: Any, images: Tensor) -> Tensor:
    """CLIP's features (n x d) of images (n x height x width x 3, in 0 to 1)."""
    rows = []
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        check_stop()
        batch = images[start : start + _IMAGES_AT_ONCE, ..., :3]
        rows.append(clip_vision.encode_image(batch)["image_embeds"])
    return torch.cat(rows).double()


def text_features(clip: Any, texts: Sequence[str]) -> Tensor:
    """CLIP's features (n x d) of texts, in the same space as those of images.

    They need a projection that diffusion models do not use. If a file has none, ComfyUI leaves it
    uninitialized.
    """
    from .inversions import literal

    weights = [
        value
        for name, value in clip.cond_stage_model.named_parameters()
        if name.endswith(_PROJECTION)
    ]
    deviation = float(weights[0].detach().float().std()) if weights else 0.0
    if not _USABLE[0] < deviation < _USABLE[1]:  # false for NaN also
        raise InputError(
            "This CLIP can't compare texts with images, because it lacks a projection. Load the"
            " text encoder from a separate file, such as clip_l.safetensors."
        )
    rows = []
    for text in texts:
        check_stop()
        # asks for the second value: the embedding of the whole text
        rows.append(clip.encode_from_tokens(clip.tokenize(literal(text)), True)[1])
    return torch.cat(rows).double()
