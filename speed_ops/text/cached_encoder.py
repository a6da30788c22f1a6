"""Rows on request: from the disk where they are known, from the encoder where they are not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .embedding_cache import EmbeddingCache, RowKey
from .encoder import Progress, RowRequest, TextEncoder, read_rows

FLUSH_TEXTS = 256
"""Texts encoded between two writes: what an interrupted run loses at most."""
FLUSH_BYTES = 2**28
"""Fewer texts where their whole prompts take more memory than this: 64 at Flux's 256 rows of 4096."""


class CachedEncoder:
    """A text encoder that remembers. It counts what it really encoded."""

    def __init__(self, encoder: TextEncoder, cache: EmbeddingCache | None = None) -> None:
        """Without a cache every text is encoded."""
        self.encoder = encoder
        self.cache = cache
        self.encoded = 0
        """Texts that went through the encoder."""
        self.reused = 0
        """Texts whose rows all came from the cache."""

    def rows(
        self, requests: Sequence[RowRequest], stage: str = "encode", progress: Progress | None = None
    ) -> list[Tensor]:
        """For each request its rows (`len(rows) x d`)."""
        wanted: dict[str, set[int]] = {}
        for request in requests:
            wanted.setdefault(request.text, set()).update(request.rows)
        known = self._recall(wanted)
        missing = [text for text, rows in wanted.items() if any((text, row) not in known for row in rows)]
        self.reused += len(wanted) - len(missing)
        # Shortest first, so that each slice holds prompts of like length.
        missing.sort(key=lambda text: (max(wanted[text]), text))
        count = self._texts_at_once()
        for start in range(0, len(missing), count):
            part = missing[start : start + count]
            known.update(self._encode(part, wanted, _shifted(progress, stage, start, len(missing))))
        if progress is not None:
            progress(stage, len(missing), len(missing))
        return [torch.stack([known[request.text, row] for row in request.rows]) for request in requests]

    def close(self) -> None:
        """Gives the encoder's memory back; the next text that is not known takes it again."""
        self.encoder.close()

    def _texts_at_once(self) -> int:
        whole = 4 * self.encoder.context_length * self.encoder.width
        return max(1, min(FLUSH_TEXTS, FLUSH_BYTES // whole))

    def _recall(self, wanted: dict[str, set[int]]) -> dict[RowKey, Tensor]:
        if self.cache is None:
            return {}
        keys = [(text, row) for text, rows in wanted.items() for row in rows]
        return self.cache.read(self.encoder.fingerprint, self.encoder.width, keys)

    def _encode(
        self, texts: Sequence[str], wanted: dict[str, set[int]], progress: Progress | None
    ) -> dict[RowKey, Tensor]:
        requests = [RowRequest(text, tuple(sorted(wanted[text]))) for text in texts]
        blocks = read_rows(self.encoder, requests, progress)
        fresh = {
            (request.text, row): block[place]
            for request, block in zip(requests, blocks, strict=True)
            for place, row in enumerate(request.rows)
        }
        self.encoded += len(texts)
        if self.cache is not None:
            self.cache.write(self.encoder.fingerprint, fresh)
        return fresh


def _shifted(progress: Progress | None, stage: str, start: int, total: int) -> Progress | None:
    """Progress of one slice as progress of the whole."""
    if progress is None:
        return None
    return lambda _, done, __: progress(stage, start + done, total)
