"""The text encoder of the small world: CLIP-L's shape and SD1.x's key names, three of its twelve
layers at work.

Why this shape: stock ComfyUI builds a CLIP-L of full size (12 layers, width 768). Our vocabulary is
tiny, so the first nine layers have zero output projections: exact identities, skipped here and
harmlessly computed there. The last three are trained, a quarter as wide inside; the checkpoint
repeats their inner channels (`repeat_channels`).

Why it is trained at all: a frozen random CLIP has no neighbors. Here related painters (same
palette, same texture) must lie near each other, as they do in a trained CLIP, or "the neighbor
survives" would be no test. `tune.py` says how. The final layer norm keeps unit weight, so each row
has norm sqrt(768) = 27.7, close to CLIP-L's 28.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speed_erase.speed_ops.demo.packed_model import token_table
from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH = 768, 12, 12, 49408, 77
ACTIVE_LAYERS = 3
NARROW = 4
"""A working layer has one of this many of CLIP-L's inner channels."""
_SCALE = NARROW / (WIDTH / HEADS) ** 0.5
"""Of the products of queries and keys: each channel counts `NARROW` times in the full layer."""
START, END = 49406, 49407


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner = WIDTH // NARROW
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, inner) for _ in range(3))
        self.out_proj = nn.Linear(inner, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        inner = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        heads = [values.unflatten(-1, (HEADS, -1)).transpose(1, 2) for values in inner]
        seen = F.scaled_dot_product_attention(*heads, is_causal=True, scale=_SCALE)
        return self.out_proj(seen.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner = 4 * WIDTH // NARROW
        self.fc1, self.fc2 = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.fc1(x)
        return self.fc2(inner * torch.sigmoid(1.702 * inner))  # CLIP-L's "quick" gelu


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer_norm1, self.self_attn = nn.LayerNorm(WIDTH), Attention()
        self.layer_norm2, self.mlp = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class TextEncoder(nn.Module):
    """Token ids (B, T) at positions (B, T) to rows (B, T, 768)."""

    def __init__(self) -> None:
        super().__init__()
        working = range(LAYERS - ACTIVE_LAYERS, LAYERS)
        self.text_model = nn.Module()
        self.text_model.embeddings = nn.Module()
        self.text_model.embeddings.token_embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.text_model.embeddings.position_embedding = nn.Embedding(LENGTH, WIDTH)
        self.text_model.encoder = nn.Module()
        self.text_model.encoder.layers = nn.ModuleDict({str(i): Layer() for i in working})
        self.text_model.final_layer_norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        model: Any = self.text_model
        places = torch.arange(ids.shape[1]) if positions is None else positions
        x = model.embeddings.token_embedding(ids) + model.embeddings.position_embedding(places)
        for layer in model.encoder.layers.values():
            x = layer(x)
        return model.final_layer_norm(x)

    @torch.no_grad()
    def encode(self, texts: Sequence[str], batch: int = 32) -> Tensor:
        """All 77 rows of each prompt, (n, 77, 768): what the cross attention reads."""
        ids = torch.tensor([padded(text) for text in texts])
        return torch.cat([self(part) for part in ids.split(batch)])


def new_encoder(seed: int) -> TextEncoder:
    """A random encoder at CLIP's scale on the packed model's table of tokens."""
    torch.manual_seed(seed)
    encoder = TextEncoder()
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith("token_embedding.weight"):
                parameter.copy_(token_table())
            elif "embedding" in name:
                parameter.normal_(0, 0.01)
            elif parameter.ndim == 2:
                scale = 0.5 if name.endswith(("out_proj.weight", "fc2.weight")) else 1.0
                parameter.normal_(0, parameter.shape[1] ** -0.5 * scale)
            elif name.endswith("bias"):
                parameter.zero_()
    return encoder


_tokenizer = functools.cache(ClipTokenizer.from_package)


def tokens(text: str) -> list[int]:
    """CLIP's byte-pair tokens of the text, without start and end."""
    return _tokenizer().token_ids(text)


def padded(text: str) -> list[int]:
    """The 77 ids SD1.x sees: start, text, end, and end again as padding."""
    inner = tokens(text)[: LENGTH - 2]
    return [START, *inner] + [END] * (LENGTH - 1 - len(inner))
