"""The text encoder of the small world: CLIP-L's shape and SD1.x's key names, three of its twelve layers at work.

Why this shape: stock ComfyUI builds a CLIP-L of full size (12 layers, width 768). Our vocabulary is tiny, so the
first nine layers have zero output projections: exact identities, skipped here and harmlessly computed there. The
last three are trained.

Why it is trained at all: a frozen random CLIP has no neighbours. Here related painters (same palette, same texture)
must lie near each other, as they do in a trained CLIP, or "the neighbour survives" would be no test. `tune.py` says
how. The final layer norm keeps unit weight, so each row has norm sqrt(768) = 27.7, close to CLIP-L's 28.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH = 768, 12, 12, 49408, 77
ACTIVE_LAYERS = 3
START, END = 49406, 49407


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = [p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)]
        return self.out_proj(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

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


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embedding = nn.Embedding(LENGTH, WIDTH)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))


class TextModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.encoder, self.final_layer_norm = Embeddings(), Encoder(), nn.LayerNorm(WIDTH)


class TextEncoder(nn.Module):
    """Token ids (B, T) at positions (B, T) to rows (B, T, 768); all 77 for a prompt, fewer where only some matter."""

    def __init__(self) -> None:
        super().__init__()
        self.text_model = TextModel()

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        model = self.text_model
        places = torch.arange(ids.shape[1]) if positions is None else positions
        x = model.embeddings.token_embedding(ids) + model.embeddings.position_embedding(places)
        for layer in model.encoder.layers[LAYERS - ACTIVE_LAYERS :]:
            x = layer(x)
        return model.final_layer_norm(x)

    @torch.no_grad()
    def encode(self, texts: Sequence[str], batch: int = 32) -> Tensor:
        """All 77 rows of each prompt, (n, 77, 768): what the cross attention reads."""
        ids = torch.tensor([padded(text) for text in texts])
        return torch.cat([self(part) for part in ids.split(batch)])


def new_encoder(seed: int) -> TextEncoder:
    """A random encoder at CLIP's scale, its idle layers made identities."""
    torch.manual_seed(seed)
    encoder = TextEncoder()
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "embedding" in name:
                parameter.normal_(0, 0.02 if "token" in name else 0.01)
            elif parameter.ndim == 2:
                parameter.normal_(0, WIDTH**-0.5 * (0.5 if name.endswith(("out_proj.weight", "fc2.weight")) else 1.0))
            elif name.endswith("bias"):
                parameter.zero_()
        for layer in encoder.text_model.encoder.layers[: LAYERS - ACTIVE_LAYERS]:
            layer.self_attn.out_proj.weight.zero_()
            layer.mlp.fc2.weight.zero_()
    return encoder


@functools.cache
def _tokenizer() -> ClipTokenizer:
    return ClipTokenizer.from_package()


def tokens(text: str) -> list[int]:
    """CLIP's byte-pair tokens of the text, without start and end."""
    return _tokenizer().token_ids(text)


def padded(text: str) -> list[int]:
    """The 77 ids SD1.x sees: start, text, end, and end again as padding."""
    inner = tokens(text)[: LENGTH - 2]
    return [START, *inner] + [END] * (LENGTH - 1 - len(inner))
