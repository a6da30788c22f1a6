"""Tiny random CLIP text encoders with real key names and the real vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from speed_erase.speed_ops.encoders.clip import ClipTextEncoder
from speed_erase.speed_ops.encoders.encoder import TextEncoder, read_prompts
from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer
from speed_erase.speed_ops.models.architecture import FamilyEncoder
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.text.requests import RowRequest

WIDTH = 128
INNER = 192
VOCABULARY = 49408
FAMILIES = ("sd1", "sd2", "sdxl", "sdxl-refiner")


def encoder_tensors(
    layers: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """One encoder under transformers' names, `text_model.` first."""
    return {key: tensor.to(dtype) for key, tensor in _random_tensors(layers, seed).items()}


@lru_cache
def _random_tensors(layers: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.1

    out = {
        "text_model.embeddings.token_embedding.weight": random(VOCABULARY, WIDTH),
        "text_model.embeddings.position_embedding.weight": random(77, WIDTH),
        "text_model.final_layer_norm.weight": 1 + random(WIDTH),
        "text_model.final_layer_norm.bias": random(WIDTH),
        "text_projection.weight": random(WIDTH, WIDTH),
    }
    shapes = {"mlp.fc1": (INNER, WIDTH), "mlp.fc2": (WIDTH, INNER)}
    shapes |= {f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
    for layer in range(layers):
        start = f"text_model.encoder.layers.{layer}"
        for norm in ("layer_norm1", "layer_norm2"):
            out[f"{start}.{norm}.weight"] = 1 + random(WIDTH)
            out[f"{start}.{norm}.bias"] = random(WIDTH)
        for module, shape in shapes.items():
            out[f"{start}.{module}.weight"] = random(*shape)
            out[f"{start}.{module}.bias"] = random(shape[0])
    return out


def to_open_clip(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights as OpenCLIP spells them."""
    renames = (
        ("text_model.embeddings.token_embedding.weight", "token_embedding.weight"),
        ("text_model.embeddings.position_embedding.weight", "positional_embedding"),
        ("text_model.final_layer_norm", "ln_final"),
        ("text_model.encoder.layers", "transformer.resblocks"),
        ("layer_norm1", "ln_1"),
        ("layer_norm2", "ln_2"),
        ("mlp.fc1", "mlp.c_fc"),
        ("mlp.fc2", "mlp.c_proj"),
        ("self_attn.out_proj", "attn.out_proj"),
    )
    out: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        if key == "text_projection.weight":
            out["text_projection"] = tensor.T.contiguous()
        elif ".q_proj." in key:
            stacked = torch.cat([tensors[key.replace("q_proj", f"{name}_proj")] for name in "qkv"])
            new = key.replace("text_model.encoder.layers", "transformer.resblocks")
            out[new.replace("self_attn.q_proj.", "attn.in_proj_")] = stacked
        elif ".k_proj." not in key and ".v_proj." not in key:
            for old, new in renames:
                key = key.replace(old, new)
            out[key] = tensor
    return out


def checkpoint_tensors(
    family: str, layers: int = 3, dtype: torch.dtype = torch.float32, layout: str = "single"
) -> dict[str, torch.Tensor]:
    """All text encoders of a family, as a single file (`single`) or as a diffusers folder
    (`folder`) has them.
    """
    out: dict[str, torch.Tensor] = {}
    for seed, row in enumerate(by_name(family).encoders):
        tensors = encoder_tensors(layers, seed, dtype)
        if layout == "folder":
            out |= {f"{row.folder}/{key}": value for key, value in tensors.items()}
        else:
            spelled = to_open_clip(tensors) if row.naming == "open_clip" else tensors
            out |= {row.prefixes[0] + key: value for key, value in spelled.items()}
    return out


def encoder_rows(family: str) -> tuple[FamilyEncoder, ...]:
    """The registry's rows of a family."""
    return by_name(family).encoders


def tiny_encoder(
    family: str = "sd1", clip_skip: int | None = None, **options: object
) -> ClipTextEncoder:
    """A working encoder of a few layers."""
    tensors = checkpoint_tensors(family, **options)  # type: ignore[arg-type]
    path = by_name(family).second_input
    pooled = () if path is None else path.encoders
    return ClipTextEncoder(
        tensors, encoder_rows(family), ClipTokenizer.from_package(), clip_skip, pooled=pooled
    )


def read_rows(encoder: TextEncoder, requests: Sequence[RowRequest]) -> list[torch.Tensor]:
    """The rows of each request, as the encoder gives them."""
    return read_prompts(encoder, requests)[0]


def full_prompt(encoder: TextEncoder, prompt: str) -> torch.Tensor:
    """All rows of one padded prompt (`context_length x d`)."""
    return read_rows(encoder, [RowRequest(prompt, tuple(range(encoder.context_length)))])[0]
