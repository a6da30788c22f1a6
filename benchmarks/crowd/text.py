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

from ..encoders import pooled_of, without_padding
from ..rivals import Reader
from ..storage import save_tensors


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
        length = self.encoder.context_length
        return torch.stack([_padded(known, length) for known in self._read(texts)])

    def _read(self, texts: Sequence[str]) -> list[Tensor]:
        """The rows of each text without padding, halves."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        length = self.encoder.context_length
        encoded = self.encoder.encode(missing, [length] * len(missing))
        for text, rows in zip(missing, encoded, strict=True):
            self._known[text] = without_padding(rows.half()).clone()
        return [self._known[text] for text in texts]

    def pooled(self, texts: Sequence[str]) -> Tensor:
        """One embedding per prompt, (n, 768): see `pooled_of`."""
        return torch.stack([pooled_of(known.float()) for known in self._read(texts)])

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
