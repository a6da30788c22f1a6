"""Text encoding from a checkpoint's own weights: one tokenizer, and one encoder or several side by side."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..errors import InputError
from .encoder import Progress
from .literal_tokenizer import LiteralTokenizer
from .streams import Stream
from .tower import Tower

BATCH_TOKENS = 1536
"""Token rows a batch: enough to keep the matrix products efficient, few enough that a block of CLIP takes under a
second."""
STAGE = "encode"


class TowerEncoder(ABC):
    """A `TextEncoder` with one stream. Nothing is read from the file before the first prompt, but for the fingerprint.

    Prompts to a causal encoder run only as long as the rows asked for, batched with prompts of like length; others
    always run whole.
    """

    def __init__(self, towers: Sequence[Tower], tokenizer: LiteralTokenizer, stream: Stream) -> None:
        self._towers = tuple(towers)
        self._tokenizer = tokenizer
        self.streams = (stream,)
        self.context_length = stream.length
        self.width = sum(tower.width for tower in self._towers)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, hidden-layer rule and tokenizer."""
        total = hashlib.sha256(self._tokenizer.fingerprint.encode())
        for tower in self._towers:
            total.update(f"{tower.rule} {tower.digest()}\n".encode())
        return total.hexdigest()

    def close(self) -> None:
        """Gives its memory back; the next call to `encode` takes it again."""
        for tower in self._towers:
            tower.close()

    def token_ids(self, text: str) -> list[int]:
        """Tokens of the literal text, without start and end tokens."""
        return self._tokenizer.token_ids(text)

    def encode(self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None = None) -> list[Tensor]:
        """First `lengths[i]` rows of each prompt (`length x d`)."""
        texts = [self._checked_ids(prompt) for prompt in prompts]
        out: list[Tensor] = [torch.empty(0, self.width)] * len(prompts)
        done = 0

        def tick() -> None:
            if progress is not None:
                progress(STAGE, done, len(prompts))

        for tower in self._towers:
            tower.tick = tick
        run = lengths if self.streams[0].causal else [self.context_length] * len(prompts)
        for batch in _batches(run):
            longest = max(run[i] for i in batch)
            parts = [tower.states(self._padded([texts[i] for i in batch], tower, longest)) for tower in self._towers]
            joined = torch.cat([part.cpu() for part in parts], dim=-1)
            for place, i in enumerate(batch):
                out[i] = joined[place, : lengths[i]].clone()
            done += len(batch)
            tick()
        return out

    @abstractmethod
    def _tokens(self, text: Sequence[int], pad: int) -> list[int]:
        """A prompt's tokens with start and end, padded to at least the full length."""

    def _padded(self, texts: Sequence[Sequence[int]], tower: Tower, length: int) -> Tensor:
        """`batch x length`: all tokens, cut to the rows that are needed."""
        full = [self._tokens(text, tower.row.pad_token)[:length] for text in texts]
        return torch.tensor(full, dtype=torch.long)

    def _checked_ids(self, prompt: str) -> list[int]:
        ids = self.token_ids(prompt)
        room = self.context_length - 1 - self.streams[0].start_token
        if len(ids) > room:
            raise InputError(
                f"'{prompt[:60]}' is {len(ids)} tokens long, but the text encoder takes {room}: shorten it."
            )
        return ids


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices in batches of at most `BATCH_TOKENS` rows, shortest prompts first."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (len(batch) + 1) * lengths[i] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
