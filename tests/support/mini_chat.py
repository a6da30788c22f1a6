"""Small text encoders other than CLIP, their kinds of tokenizers, and models that read them, as
files.
"""

from __future__ import annotations

import io
import json
import string
from functools import lru_cache
from pathlib import Path

import mini_dit
import torch
from safetensors.torch import save_file

from speed_erase.speed_ops.models.families import by_name

WIDTH = 2560
_OUT = 24
_REFINER = {"context_refiner.0.attention.qkv.weight": (72, _OUT)}
_DOUBLE = {"double_blocks.0.img_attn.qkv.weight": (72, _OUT)}


def _linear(path: str, outputs: int, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{path}.weight": (outputs, width), f"{path}.bias": (outputs,)}


MODELS: dict[str, dict[str, tuple[int, ...]]] = {
    "z-image": {
        "cap_embedder.0.weight": (WIDTH,),
        **_linear("cap_embedder.1", _OUT, WIDTH),
        "cap_pad_token": (1, _OUT),
        **_REFINER,
    },
    "lumina-2": {
        "cap_embedder.0.weight": (2304,),
        **_linear("cap_embedder.1", _OUT, 2304),
        **_REFINER,
    },
    "qwen-image": {
        "txt_norm.weight": (3584,),
        **_linear("txt_in", _OUT, 3584),
        "transformer_blocks.0.attn.add_q_proj.weight": (_OUT, _OUT),
        "img_in.weight": (_OUT, 64),
    },
    "flux2-klein-4b": {
        "txt_in.weight": (_OUT, 3 * WIDTH),
        "double_stream_modulation_img.lin.weight": (72, _OUT),
        "img_in.weight": (_OUT, 128),
        **_DOUBLE,
    },
    "chroma": {
        **_linear("txt_in", _OUT, 4096),
        "distilled_guidance_layer.in_proj.weight": (_OUT, 16),
        **_DOUBLE,
    },
    "auraflow": {
        "cond_seq_linear.weight": (_OUT, 2048),
        "double_layers.0.attn.w1q.weight": (_OUT, _OUT),
    },
    "wan": {
        **_linear("text_embedding.0", 32, 4096),
        **_linear("text_embedding.2", 32, 32),
        "head.modulation": (1, 2, 32),
        **_linear("blocks.0.cross_attn.v", 32, 32),
        **_linear("blocks.0.cross_attn.k", 32, 32),
        **_linear("blocks.1.cross_attn.v", 32, 32),
        **_linear("blocks.1.cross_attn.k", 32, 32),
    },
    "ltxv": {
        **_linear("caption_projection.linear_1", 32, 4096),
        **_linear("caption_projection.linear_2", 32, 32),
        "adaln_single.emb.timestep_embedder.linear_1.bias": (32,),
        "patchify_proj.weight": (32, 16),
        **_linear("transformer_blocks.0.attn2.to_v", 32, 32),
        **_linear("transformer_blocks.0.attn2.to_k", 32, 32),
    },
}
"""What the command line reads of the model of each family."""
EDITED = {
    "z-image": ["cap_embedder.1"],
    "lumina-2": ["cap_embedder.1"],
    "qwen-image": ["txt_in"],
    "flux2-klein-4b": ["txt_in"],
    "chroma": ["txt_in"],
    "auraflow": ["cond_seq_linear"],
    "wan": ["blocks.0.cross_attn.v", "blocks.1.cross_attn.v"],
    "ltxv": ["transformer_blocks.0.attn2.to_v"],
}
_HEADS = {"qwen3": 16, "qwen25": 128, "gemma2": 256}
"""{kind: width of an attention head}."""


def write_model(path: Path, family: str) -> Path:
    """The diffusion model."""
    save_file({name: _random(name, shape) for name, shape in MODELS[family].items()}, path)
    return path


def write_encoder(path: Path, family: str) -> Path:
    """The text encoder, with its tokenizer where ComfyUI's files have it."""
    (row,) = by_name(family).encoders
    if row.causal:
        blocks = 3 if row.states == 1 else 12
        tensors = _chat_tensors(row.name.partition("_")[0], row.hidden_width, blocks)
    else:
        tensors = _t5_tensors(row.name, row.width)
    if row.name in ("umt5xxl", "gemma2_2b"):
        tensors["spiece_model"] = pieces(**_SPECIAL[row.name])
    save_file(tensors, path)
    return path


def _chat_tensors(kind: str, width: int, blocks: int) -> dict[str, torch.Tensor]:
    head = _HEADS[kind]
    block: dict[str, tuple[int, ...]] = {
        **{f"self_attn.{name}_proj.weight": (head, width) for name in "qkv"},
        "self_attn.o_proj.weight": (width, head),
        **{f"mlp.{name}_proj.weight": (32, width) for name in ("gate", "up")},
        "mlp.down_proj.weight": (width, 32),
        **{f"{name}_layernorm.weight": (width,) for name in ("input", "post_attention")},
    }
    if kind == "qwen3":
        block |= {f"self_attn.{name}_norm.weight": (head,) for name in "qk"}
    if kind == "qwen25":
        block |= {f"self_attn.{name}_proj.bias": (head,) for name in "qkv"}
    if kind == "gemma2":
        block |= {f"{name}_feedforward_layernorm.weight": (width,) for name in ("pre", "post")}
    shapes = {"embed_tokens.weight": (400, width), "norm.weight": (width,)}
    for number in range(blocks):
        shapes |= {f"layers.{number}.{name}": shape for name, shape in block.items()}
    return {f"model.{name}": _random(f"model.{name}", shape) for name, shape in shapes.items()}


def _t5_tensors(name: str, width: int) -> dict[str, torch.Tensor]:
    tensors = {
        key: value[..., :width] if value.shape[-1] == mini_dit.WIDTH else value
        for key, value in mini_dit.t5_tensors(1024).items()
    }
    tensors = {
        key: (value[:width] if value.shape[0] == mini_dit.WIDTH else value).half().contiguous()
        for key, value in tensors.items()
    }
    if name != "t5xxl":  # a table of distances in every block
        table = "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias.weight"
        tensors[table.format(1)] = tensors[table.format(0)].flip(0).contiguous()
    return tensors


def write_words(folder: Path, *more: str) -> Path:
    """Qwen's kind of tokenizer: a vocabulary of bytes and a few merges."""
    words = [*letters(), "Ġa", "us", "er", "user", "go", *more]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    merges = ["Ġ a", "u s", "e r", "us er", "g o"]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return folder


def write_tokenizer(folder: Path, family: str) -> Path | None:
    """The folder that the user names; None where the tokenizer is in the encoder's file."""
    (row,) = by_name(family).encoders
    if row.name.startswith("qwen"):
        return write_words(folder)
    if row.name == "t5xxl":
        return mini_dit.write_tokenizer(folder)
    if row.name == "pile_t5xl":
        folder.mkdir()
        model = pieces(**_SPECIAL[row.name]).numpy().tobytes()
        (folder / "tokenizer.model").write_bytes(model)
        return folder
    return None


_SPECIAL = {
    "umt5xxl": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "pile_t5xl": {"unk_id": 0, "bos_id": 1, "eos_id": 2},
    "gemma2_2b": {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
}


def letters() -> list[str]:
    """What Qwen's tokenizer spells bytes with."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(code) for code in (*shown, *range(256, 256 + 256 - len(shown)))]


@lru_cache
def pieces(**special: int) -> torch.Tensor:
    """A SentencePiece model of letters and pairs."""
    import sentencepiece

    text = iter(
        [" ".join(a + b for b in string.ascii_letters) for a in string.ascii_letters]
        + [" ".join(string.printable.split())]
    )
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=text,
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        character_coverage=1.0,
        num_threads=1,
        num_sub_iterations=1,
        minloglevel=2,
        **special,
    )
    return torch.ByteTensor(list(model.getvalue()))


def _random(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    if len(shape) == 1:
        return 1 + 0.1 * torch.rand(shape, generator=generator)
    return torch.randn(shape, generator=generator) * shape[-1] ** -0.5
