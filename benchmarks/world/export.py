"""Write the trained world as one SD1.x checkpoint that stock loaders read, sample and decode.

The VAE is a TAESD whose decoder is set by hand so that it enlarges each latent pixel to 8 x 8 and does nothing else:
the latent IS the picture, and a stock VAEDecode shows it. Its encoder is zero and unused.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .diffusion import COMFY_SCALE
from .storage import load_tensors, save_tensors

CHECKPOINT = "speed_world.safetensors"
_WIDTH = 64
_SHRINK = 0.05  # keeps the decoder's first tanh in its linear part


def export(folder: Path) -> Path:
    """Join U-Net (float32), text encoder (float16) and decoder into `folder/checkpoints/speed_world.safetensors`."""
    parts = {f"model.diffusion_model.{key}": value for key, value in load_tensors(folder / "unet.safetensors").items()}
    for key, value in load_tensors(folder / "text_encoder.safetensors").items():
        parts[f"cond_stage_model.transformer.{key}"] = value.half()
    parts |= {f"first_stage_model.{key}": value for key, value in decoder_weights().items()}
    path = folder / "checkpoints" / CHECKPOINT
    save_tensors(path, parts)
    return path


def decoder_weights() -> dict[str, Tensor]:
    """TAESD tensors: colour in [-1, 1] becomes (colour + 1) / 2 in three of 64 channels, then is only enlarged."""
    weights = _zeros()
    first, last = weights["taesd_decoder.1.weight"], weights["taesd_decoder.19.weight"]
    for colour in range(3):
        first[colour, colour, 1, 1] = 0.5 / _SHRINK
        weights["taesd_decoder.1.bias"][colour] = 0.5
        last[colour, colour, 1, 1] = 1.0
        for index in (7, 12, 17):
            weights[f"taesd_decoder.{index}.weight"][colour, colour, 1, 1] = 1.0
    weights["vae_scale"] = torch.tensor(COMFY_SCALE * _SHRINK)
    weights["vae_shift"] = torch.tensor(0.0)
    return weights


def _zeros() -> dict[str, Tensor]:
    """All tensors of a TAESD, zero: with zero convolutions its blocks pass on what is not negative."""
    weights: dict[str, Tensor] = {}

    def conv(name: str, inside: int, outside: int, bias: bool = True) -> None:
        weights[f"{name}.weight"] = torch.zeros(outside, inside, 3, 3)
        if bias:
            weights[f"{name}.bias"] = torch.zeros(outside)

    conv("taesd_encoder.0", 3, _WIDTH)
    conv("taesd_encoder.14", _WIDTH, 4)
    conv("taesd_decoder.1", 4, _WIDTH)
    conv("taesd_decoder.19", _WIDTH, 3)
    for index in (2, 6, 10):
        conv(f"taesd_encoder.{index}", _WIDTH, _WIDTH, bias=False)
    for index in (7, 12, 17):
        conv(f"taesd_decoder.{index}", _WIDTH, _WIDTH, bias=False)
    blocks = {"encoder": (1, 3, 4, 5, 7, 8, 9, 11, 12, 13), "decoder": (3, 4, 5, 8, 9, 10, 13, 14, 15, 18)}
    for side, indices in blocks.items():
        for index in indices:
            for layer in (0, 2, 4):
                conv(f"taesd_{side}.{index}.conv.{layer}", _WIDTH, _WIDTH)
    return weights
