"""Text encoders of the benchmarks, each as the engine's own `TextEncoder`.

mpnet and SmolLM2 cannot be had everywhere: their folders are named with a flag, `SPEED_MPNET` or
`SPEED_SMOLLM2`, and they are left out where they are not found.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from speed_erase.speed_ops.demo.packed_model import (
    FILE,
    TEXT,
    iter_tensors,
    text_encoder_layout,
    unpacked,
)
from speed_erase.speed_ops.encoders.clip import ClipTextEncoder
from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.progress import Progress
from speed_erase.speed_ops.text.tokens import Stream

CLIP_SIZE = 28.0
"""Root mean square length of CLIP-L's rows, to which all others are scaled."""
WIDTH = 768
DEPTH = 12
MIDDLE_LAYER = 20
"""Of SmolLM2's 30 layers."""
SEED = 2503


class ScaledEncoder:
    """A `TextEncoder` around a function from prompts to all their rows, scaled to CLIP's size."""

    def __init__(
        self, name: str, rows: Callable[[Sequence[str]], Sequence[Tensor]], stream: Stream
    ):
        self.fingerprint, self.width = name, WIDTH
        self.pooled_fingerprint, self.pooled_width = f"{name} mean", WIDTH
        self.context_length, self.streams = stream.length, (stream,)
        self._rows = rows
        prompts = ["a painting of a harbour", "two dogs in the snow"]
        sample = torch.cat([values[1:] for values in rows(prompts)])
        self._scale = CLIP_SIZE / float(sample.square().sum(dim=1).mean().sqrt())

    def encode(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None = None
    ) -> list[Tensor]:
        out: list[Tensor] = []
        for start in range(0, len(prompts), 32):
            out += [self._scale * values for values in self._rows(prompts[start : start + 32])]
        return [values[:length] for values, length in zip(out, lengths, strict=True)]

    def encode_both(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        whole = self.encode(prompts, [self.context_length] * len(prompts), progress)
        rows = [values[:length] for values, length in zip(whole, lengths, strict=True)]
        return rows, [pooled_of(values) for values in whole]

    def close(self) -> None:
        """Nothing to free."""


def pooled_of(rows: Tensor) -> Tensor:
    """The direction of the mean of a prompt's rows (`L x d`) to the end token, at CLIP's size.

    Of mpnet this is what it was trained for: the embedding of the sentence.
    """
    return CLIP_SIZE * torch.nn.functional.normalize(without_padding(rows).mean(dim=0), dim=0)


def without_padding(rows: Tensor) -> Tensor:
    """The rows up to the end token, which later ones repeat."""
    differs = (rows != rows[-1]).any(dim=1).nonzero()
    return rows[: int(differs[-1]) + 2 if len(differs) else 1]


def mpnet(folder: Path | None = None) -> ScaledEncoder | None:
    """all-mpnet-base-v2: a real encoder, trained on web text, bidirectional; harsher than CLIP."""
    source = folder or os.environ.get("SPEED_MPNET")
    if not source or not (Path(source) / "model.safetensors").exists():
        return None
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    model: Any = AutoModel.from_pretrained(source).eval()
    length = 40

    @torch.no_grad()
    def rows(texts: Sequence[str]) -> list[Tensor]:
        cut = {"padding": True, "truncation": True, "max_length": length}
        batch = tokenizer(list(texts), return_tensors="pt", **cut)
        states = model(**batch).last_hidden_state
        counts = batch["attention_mask"].sum(dim=1).tolist()
        # It has no padding rows of its own: the end token's row replaces them.
        pairs = zip(states, counts, strict=True)
        return [torch.cat([s[:n], s[n - 1 : n].expand(length - n, -1)]) for s, n in pairs]

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    return ScaledEncoder("mpnet", rows, Stream(ids, length, causal=False))


def smollm2(folder: Path | None = None) -> ScaledEncoder | None:
    """SmolLM2-135M: a causal language model, the nearest thing to CLIP and to the encoders of newer
    families. The rows of a middle layer, because the last ones only predict the next token; zeros
    make them as wide as CLIP's. Padding is the end token, read like any other.
    """
    source = folder or os.environ.get("SPEED_SMOLLM2")
    if not source or not (Path(source) / "model.safetensors").exists():
        return None
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    model: Any = AutoModel.from_pretrained(source).eval()
    model.layers = model.layers[:MIDDLE_LAYER]
    length, start, end = 40, tokenizer.bos_token_id, tokenizer.eos_token_id

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.no_grad()
    def rows(texts: Sequence[str]) -> list[Tensor]:
        batch = [[start, *ids(text)[: length - 2]] for text in texts]
        padded = torch.tensor([part + [end] * (length - len(part)) for part in batch])
        states = model(input_ids=padded).last_hidden_state
        return list(torch.nn.functional.pad(states, (0, WIDTH - states.shape[2])))

    return ScaledEncoder("smollm2", rows, Stream(ids, length, causal=True))


def _clip_l(tensors: dict[str, Tensor]) -> ClipTextEncoder:
    return ClipTextEncoder(tensors, by_name("sd1").encoders, ClipTokenizer.from_package())


def demo_clip() -> ScaledEncoder:
    """The demo model's encoder: CLIP-L's shape, three layers trained on a small vocabulary."""
    tensors = iter_tensors(unpacked(load_file(FILE)))
    encoder = _clip_l(dict(itertools.takewhile(lambda entry: entry[0].startswith(TEXT), tensors)))
    stream = encoder.streams[0]

    def rows(texts: Sequence[str]) -> list[Tensor]:
        return encoder.encode(texts, [stream.length] * len(texts))

    return ScaledEncoder("living", rows, stream)


def random_clip(depth: int = DEPTH) -> ClipTextEncoder:
    """CLIP-L of full width with random weights.

    The spectrum of its token embeddings decays as in a trained one: names share most directions.
    """
    generator = torch.Generator().manual_seed(SEED)
    layout = text_encoder_layout(depth)
    tensors = {TEXT + key: _random_tensor(key, shape, generator).half() for key, shape in layout}
    return _clip_l(tensors)


def _random_tensor(key: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Weights that keep activations at their size; norms are the identity, biases are zero."""
    if len(shape) == 1:
        is_scale = key.endswith("weight") and "norm" in key
        return torch.ones(shape) if is_scale else torch.zeros(shape)
    values = torch.randn(shape, generator=generator)
    if key.endswith("token_embedding.weight"):
        return _with_spectrum(values, generator)
    if key.endswith("position_embedding.weight"):
        return 0.1 * values
    values /= math.sqrt(shape[1])
    # What a block adds is small enough that a token stays recognizable in its row.
    return values * 0.3 if key.endswith(("out_proj.weight", "fc2.weight")) else values


def _with_spectrum(values: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of unit variance, whose deviation along random orthogonal directions falls like k^-0.5.

    In double precision: how many threads add up the products must not show in the result.
    """
    width = values.shape[1]
    scale = torch.arange(1, width + 1, dtype=torch.float64) ** -0.5
    rotation = torch.linalg.qr(torch.randn(width, width, generator=generator).double()).Q
    scaled = (scale * math.sqrt(width) / scale.norm())[:, None] * rotation
    return (values.double() @ scaled).float()


def available(mpnet_folder: Path | None) -> dict[str, Any]:
    """Every encoder that is here, by name."""
    every = {"random CLIP-L": random_clip(), "demo model": demo_clip()}
    every["mpnet"] = mpnet(mpnet_folder)
    return {name: encoder for name, encoder in every.items() if encoder is not None}
