"""A small Qwen3, Qwen's kind of tokenizer, and a Z-Image that reads them, as files."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

WIDTH = 2560
_OUTPUTS = 24
_MODEL = {
    "cap_embedder.0.weight": (WIDTH,),
    "cap_embedder.1.weight": (_OUTPUTS, WIDTH),
    "cap_embedder.1.bias": (_OUTPUTS,),
    "cap_pad_token": (1, _OUTPUTS),
    "context_refiner.0.attention.qkv.weight": (72, _OUTPUTS),
}
_BLOCK = {
    "input_layernorm": (WIDTH,),
    "post_attention_layernorm": (WIDTH,),
    "self_attn.q_proj": (32, WIDTH),
    "self_attn.k_proj": (16, WIDTH),
    "self_attn.v_proj": (16, WIDTH),
    "self_attn.o_proj": (WIDTH, 32),
    "self_attn.q_norm": (16,),
    "self_attn.k_norm": (16,),
    "mlp.gate_proj": (32, WIDTH),
    "mlp.up_proj": (32, WIDTH),
    "mlp.down_proj": (WIDTH, 32),
}


def write_z_image(path: Path) -> Path:
    """What the command line reads of the model."""
    save_file({name: _random(name, shape) for name, shape in _MODEL.items()}, path)
    return path


def write_qwen(path: Path, blocks: int = 3) -> Path:
    """The text encoder."""
    shapes = {"embed_tokens": (300, WIDTH), "norm": (WIDTH,)}
    for block in range(blocks):
        shapes |= {f"layers.{block}.{name}": shape for name, shape in _BLOCK.items()}
    names = {f"model.{name}.weight": shape for name, shape in shapes.items()}
    save_file({name: _random(name, shape) for name, shape in names.items()}, path)
    return path


def letters() -> list[str]:
    """What the bytes are spelled with."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(code) for code in (*shown, *range(256, 256 + 256 - len(shown)))]


def write_words(folder: Path, *more: str) -> Path:
    """A vocabulary of bytes and a few merges."""
    words = [*letters(), "Ġa", "us", "er", "user", "go", *more]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    merges = ["Ġ a", "u s", "e r", "us er", "g o"]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return folder


def _random(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    if len(shape) == 1:
        return 1 + 0.1 * torch.rand(shape, generator=generator)
    return torch.randn(shape, generator=generator) * shape[-1] ** -0.5
