"""Runnable miniatures of SD3 and Flux: real keys and text widths, hardly any channels, a T5 of two
thin blocks.
"""

from __future__ import annotations

import string
from functools import lru_cache
from pathlib import Path

import mini
import pico
import torch
from safetensors.torch import save_file

WIDTH = 4096
DISTINCT = 1021
"""Different token embeddings in a table: enough to tell names apart, and quickly made."""
FAMILIES = ("sd3", "flux-dev", "flux-schnell")
T5_SHAPE = {"num_layers": 2, "d_ff": 24, "d_kv": 8, "num_heads": 2}
"""As ComfyUI is told of it."""
_SD3 = {
    "context_embedder.weight": (64, WIDTH),
    "context_embedder.bias": (64,),
    "y_embedder.mlp.0.weight": (64, 2048),
    "x_embedder.proj.weight": (64, 16, 2, 2),
    "pos_embed": (1, 16, 64),
    **{f"joint_blocks.0.{side}_block.attn.qkv.weight": (192, 64) for side in ("context", "x")},
    "final_layer.linear.weight": (64, 64),
}
_FLUX = {
    "txt_in.weight": (48, WIDTH),
    "txt_in.bias": (48,),
    "img_in.weight": (48, 64),
    "vector_in.in_layer.weight": (48, 768),
    "time_in.in_layer.weight": (48, 256),
    **{f"double_blocks.0.{side}_attn.qkv.weight": (144, 48) for side in ("img", "txt")},
    "double_blocks.0.img_attn.norm.key_norm.scale": (16,),
    "single_blocks.0.linear1.weight": (96, 48),
}
_SD3_FOLDER = {
    "context_embedder.weight": (64, WIDTH),
    "context_embedder.bias": (64,),
    "pos_embed.proj.weight": (64, 16, 2, 2),
    "time_text_embed.text_embedder.linear_1.weight": (64, 2048),
    **{f"transformer_blocks.0.attn.add_{name}_proj.weight": (64, 64) for name in "qkv"},
}
_FLUX_FOLDER = {
    "context_embedder.weight": (48, WIDTH),
    "context_embedder.bias": (48,),
    "x_embedder.weight": (48, 64),
    **{
        f"time_text_embed.{name}_embedder.linear_1.weight": (48, 768)
        for name in ("text", "guidance")
    },
    "single_transformer_blocks.0.attn.to_q.weight": (48, 48),
}


def model_shapes(family: str, prefix: str = "", folder: bool = False) -> pico.Shapes:
    """Keys and shapes of a diffusion model."""
    if folder:
        return {
            prefix + key: shape
            for key, shape in (_SD3_FOLDER if family == "sd3" else _FLUX_FOLDER).items()
        }
    shapes = dict(_SD3 if family == "sd3" else _FLUX)
    if family == "flux-dev":
        shapes["guidance_in.in_layer.weight"] = (48, 256)
    return {prefix + key: shape for key, shape in shapes.items()}


def write_dit(
    path: Path, family: str, prefix: str = "", dtype: torch.dtype = torch.float16
) -> pico.Tensors:
    """A single file without text encoders; returns what is in it."""
    content = pico.tensors(model_shapes(family, prefix), 3, dtype)
    save_file(content, path, metadata={"format": "pt", "modelspec.title": f"mini {family}"})
    return content


@lru_cache
def t5_tensors(vocabulary: int, seed: int = 5) -> pico.Tensors:
    """T5's encoder under transformers' names, in float32; the table's spectrum decays, as a trained
    one's does.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float) -> torch.Tensor:
        return scale * torch.randn(*shape, generator=generator)

    heads, inner, hidden = (
        T5_SHAPE["num_heads"],
        T5_SHAPE["num_heads"] * T5_SHAPE["d_kv"],
        T5_SHAPE["d_ff"],
    )
    table = random(DISTINCT, WIDTH, scale=1.0) * torch.arange(1, WIDTH + 1) ** -0.5
    out = {
        "shared.weight": table[torch.arange(vocabulary) % DISTINCT],
        "encoder.final_layer_norm.weight": 1 + random(WIDTH, scale=0.1),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": random(
            32, heads, scale=0.5
        ),
    }
    for layer in range(T5_SHAPE["num_layers"]):
        start = f"encoder.block.{layer}.layer."
        for norm in ("0.layer_norm", "1.layer_norm"):
            out[f"{start}{norm}.weight"] = 1 + random(WIDTH, scale=0.1)
        for name in "qkv":
            out[f"{start}0.SelfAttention.{name}.weight"] = random(inner, WIDTH, scale=WIDTH**-0.5)
        out[f"{start}0.SelfAttention.o.weight"] = random(WIDTH, inner, scale=0.02)
        for name in ("wi_0", "wi_1"):
            out[f"{start}1.DenseReluDense.{name}.weight"] = random(hidden, WIDTH, scale=WIDTH**-0.5)
        out[f"{start}1.DenseReluDense.wo.weight"] = random(WIDTH, hidden, scale=0.02)
    return out


def write_t5(
    path: Path, dtype: torch.dtype = torch.float16, vocabulary: int = 1024
) -> pico.Tensors:
    """T5 in a file of its own; returns what is in it."""
    content = {key: value.to(dtype) for key, value in t5_tensors(vocabulary).items()}
    save_file(content, path)
    return content


def to_scaled_fp8(tensors: pico.Tensors) -> pico.Tensors:
    """As the published fp8 files have it: matrices of 8 bits with a scale each, the rest in half
    precision.
    """
    out: pico.Tensors = {"scaled_fp8": torch.empty(2, dtype=torch.float8_e4m3fn)}
    for key, value in tensors.items():
        if (".SelfAttention." in key and "relative" not in key) or "DenseReluDense" in key:
            scale = value.abs().max() / 448
            out[key] = (value / scale).to(torch.float8_e4m3fn)
            out[key.removesuffix("weight") + "scale_weight"] = scale.float().reshape(1)
        else:
            out[key] = value.half()
    return out


def clip_tensors(name: str) -> pico.Tensors:
    """CLIP-L or CLIP-G under transformers' names, in half precision."""
    width, seed = {"clip_l": (768, 0), "clip_g": (1280, 1)}[name]
    return {
        key: value.half()
        for key, value in mini._text_tensors(width, seed, layers=3, distinct=DISTINCT).items()
    }


def write_tokenizer(folder: Path) -> Path:
    """A small tokenizer with T5's special tokens: single characters and pairs of letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    pairs = [
        first + second for first in string.ascii_lowercase for second in string.ascii_lowercase
    ]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    pieces += [(letter, -6.0) for letter in string.printable.strip()] + [
        (pair, -8.0) for pair in pairs
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
