"""Small random checkpoints that ComfyUI itself detects as SD1.5, SD2.1, SDXL's family, its refiner,
SD3 and PixArt.

Shapes come from ComfyUI's own modules on the meta device; values are tame, so that sampling stays
finite.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from text_pico import to_open_clip
from torch import Tensor

SHRUNK = {"num_hidden_layers": 3, "intermediate_size": 64}
"""What a shrunken text encoder has; `te_options` tells ComfyUI, which otherwise expects whole
ones.
"""
_VOCABULARY = 49408


def _layout(
    width: int, depths: list[int], outputs: list[int], middle: int, blocks: int = 1, **more: Any
) -> dict[str, Any]:
    """`blocks`: residual blocks a level."""
    levels = len(depths) // blocks
    counts = {"num_res_blocks": [blocks] * levels, "channel_mult": [1] * levels}
    tree = {
        "transformer_depth": depths,
        "transformer_depth_output": outputs,
        "transformer_depth_middle": middle,
    }
    return {
        "context_dim": width,
        "use_linear_in_transformer": width != 768,
        **counts,
        **tree,
        **more,
    }


_UNETS: dict[str, dict[str, Any]] = {
    "sd15": _layout(768, [1, 1], [1, 1, 1, 1], 1, num_heads=8),
    "sd15-tiny": _layout(768, [1], [0, 0], -2, num_heads=8),
    "sd21": _layout(1024, [1], [1, 1], 1, num_head_channels=64),
    "sdxl": _layout(
        2048,
        [0, 2, 5],
        [0] * 6,
        -2,
        num_head_channels=64,
        num_classes="sequential",
        adm_in_channels=2816,
    ),
    "sdxl-refiner": _layout(
        *(1280, [0, 0, 4, 4, 4, 4, 0, 0], [0] * 12, -2),
        blocks=2,
        model_channels=384,
        num_head_channels=64,
        num_classes="sequential",
        adm_in_channels=2560,
    ),
}
"""`sdxl` is KOALA's layout, which ComfyUI runs as SDXL; it knows the refiner by its channels and
depths alone.
"""

_ENCODERS = {
    "sd15": ("clip_l",),
    "sd15-tiny": ("clip_l",),
    "sd21": ("clip_h",),
    "sdxl": ("clip_l", "clip_g"),
    "sdxl-refiner": ("clip_g",),
}
_WIDTHS = {"clip_l": 768, "clip_h": 1024, "clip_g": 1280}
_PREFIXES = {
    ("sd15", "clip_l"): "cond_stage_model.transformer.",
    ("sd15-tiny", "clip_l"): "cond_stage_model.transformer.",
    ("sd21", "clip_h"): "cond_stage_model.model.",
    ("sdxl", "clip_l"): "conditioner.embedders.0.transformer.",
    ("sdxl", "clip_g"): "conditioner.embedders.1.model.",
    ("sdxl-refiner", "clip_g"): "conditioner.embedders.0.model.",
}


def te_options(shape: Mapping[str, int] = SHRUNK) -> dict[str, dict[str, int]]:
    """`te_model_options` with which ComfyUI loads the shrunken encoders."""
    return {f"{name}_model_config": dict(shape) for name in _WIDTHS}


def write(
    path: Path, family: str, dtype: torch.dtype = torch.float16, shrunk: bool = True, seed: int = 0
) -> Path:
    """A whole checkpoint: U-Net, text encoders (whole ones unless shrunk) and a TAESD in the place
    of the VAE.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"model.diffusion_model.{key}": value for key, value in unet(family, generator).items()
    }
    for name in _ENCODERS[family]:
        prefix = _PREFIXES[family, name]
        encoder = _encoder(_WIDTHS[name], shrunk, generator)
        if name == "clip_l":
            del encoder["text_projection.weight"]  # which such checkpoints do not have
        encoder = to_open_clip(encoder) if name != "clip_l" else encoder
        tensors |= {prefix + key: value for key, value in encoder.items()}
    tensors |= {f"first_stage_model.{key}": value for key, value in _vae(generator).items()}
    save_file({key: value.to(dtype).contiguous() for key, value in tensors.items()}, path)
    return path


def unet(family: str, generator: torch.Generator) -> dict[str, Tensor]:
    """A U-Net's tensors, keys relative to it."""
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
    from comfy.ops import disable_weight_init

    common = {
        "image_size": 32,
        "in_channels": 4,
        "out_channels": 4,
        "model_channels": 320,
        "legacy": False,
    }
    config = {**common, "use_spatial_transformer": True, "use_checkpoint": False, **_UNETS[family]}
    model = UNetModel(**config, dtype=torch.float32, device="meta", operations=disable_weight_init)
    return _values(model, generator, 0.03)


def sd3(path: Path, seed: int = 0) -> Path:
    """A diffusion model alone."""
    from comfy.ldm.modules.diffusionmodules.mmdit import OpenAISignatureMMDITWrapper
    from comfy.ops import disable_weight_init

    config = {
        "in_channels": 16,
        "depth": 1,
        "input_size": None,
        "adm_in_channels": 2048,
        "num_patches": 36864,
    }
    embedder = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 64}}
    model = OpenAISignatureMMDITWrapper(
        **config,
        context_embedder_config=embedder,
        pos_embed_max_size=192,
        dtype=torch.float32,
        device="meta",
        operations=disable_weight_init,
    )
    tensors = _values(model, torch.Generator().manual_seed(seed), 0.03)
    save_file(
        {f"model.diffusion_model.{key}": value.half() for key, value in tensors.items()}, path
    )
    return path


def pixart(path: Path) -> Path:
    """A diffusion model of a family that is refused: zeros in 8 bits."""
    from comfy.ldm.pixart.pixartms import PixArtMS
    from comfy.ops import disable_weight_init

    config = {"depth": 1, "micro_condition": False, "dtype": torch.float32, "device": "meta"}
    shapes = PixArtMS(**config, operations=disable_weight_init).state_dict()
    zeros = {
        key: torch.zeros(value.shape, dtype=torch.float8_e4m3fn) for key, value in shapes.items()
    }
    save_file({f"model.diffusion_model.{key}": value for key, value in zeros.items()}, path)
    return path


@lru_cache
def shared(family: str, dtype: torch.dtype = torch.float16, shrunk: bool = True) -> Path:
    """A checkpoint that is made once for all tests of a run and removed after it."""
    folder = Path(tempfile.mkdtemp(prefix="speed-mini-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"{family}.safetensors"
    alone = {"sd3": sd3, "pixart": pixart}
    return alone[family](path) if family in alone else write(path, family, dtype, shrunk)


def load(path: Path, **options: Any) -> tuple[Any, Any, Any]:
    """MODEL, CLIP and VAE as ComfyUI's loader makes them, text encoders shrunken."""
    import comfy.sd

    with torch.inference_mode():
        return comfy.sd.load_checkpoint_guess_config(
            str(path), te_model_options=te_options(), **options
        )[:3]


def _encoder(width: int, shrunk: bool, generator: torch.Generator) -> dict[str, Tensor]:
    layers, inner = (
        (SHRUNK["num_hidden_layers"], SHRUNK["intermediate_size"]) if shrunk else _whole(width)
    )

    def random(*shape: int, size: float = 0.01) -> Tensor:
        return torch.randn(*shape, generator=generator) * size

    out = {
        "text_model.embeddings.token_embedding.weight": random(_VOCABULARY, width, size=0.02),
        "text_model.embeddings.position_embedding.weight": random(77, width),
        "text_model.final_layer_norm.weight": torch.ones(width),
        "text_model.final_layer_norm.bias": torch.zeros(width),
        "text_projection.weight": random(width, width, size=width**-0.5),
    }
    shapes = {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    shapes |= {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
    for layer in range(layers):
        start = f"text_model.encoder.layers.{layer}"
        for norm in ("layer_norm1", "layer_norm2"):
            out[f"{start}.{norm}.weight"], out[f"{start}.{norm}.bias"] = (
                torch.ones(width),
                torch.zeros(width),
            )
        for module, shape in shapes.items():
            # CLIP's scale: blocks outweigh the token's own embedding, so that rows depend on the
            # whole prompt.
            size = width**-0.5 * (0.5 if module in ("self_attn.out_proj", "mlp.fc2") else 1.0)
            out[f"{start}.{module}.weight"] = random(*shape, size=size)
            out[f"{start}.{module}.bias"] = random(shape[0])
    return out


def _whole(width: int) -> tuple[int, int]:
    return {768: 12, 1024: 24, 1280: 32}[width], 4 * width


def _vae(generator: torch.Generator) -> dict[str, Tensor]:
    from comfy.taesd.taesd import TAESD

    with torch.device("meta"):
        model = TAESD()
    values = _values(model, generator, 0.03)
    return values | {"vae_scale": torch.tensor(1.0), "vae_shift": torch.tensor(0.0)}


def _values(model: torch.nn.Module, generator: torch.Generator, size: float) -> dict[str, Tensor]:
    """Random matrices and kernels, norms of one, biases of zero."""
    out = {}
    for key, value in model.state_dict().items():
        if value.ndim > 1:
            out[key] = torch.randn(value.shape, generator=generator) * size
        else:
            out[key] = (
                torch.ones(value.shape) if key.endswith("weight") else torch.zeros(value.shape)
            )
    return out
