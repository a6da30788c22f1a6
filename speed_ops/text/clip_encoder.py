"""CLIP text encoding from a checkpoint's own weights: one encoder, or two side by side (SDXL)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..architectures import TextEncoder as EncoderRow
from ..errors import FileError, InputError
from .clip_tokenizer import END_TOKEN, START_TOKEN, ClipTokenizer
from .clip_tower import ClipTower
from .clip_weights import ClipWeights
from .encoder import Progress
from .encoder_weights import Tensors
from .streams import Stream

BATCH_TOKENS = 1536
"""Token rows a batch: enough to keep the matrix products efficient, few enough that a block takes under a second."""
STAGE = "encode"


class ClipTextEncoder:
    """A `TextEncoder` over the tensors of a checkpoint or diffusers folder.

    CLIP is causal, so a row does not depend on what follows: prompts run only as long as the rows asked for, batched
    with prompts of like length. Nothing is read from the file before the first prompt, except for the fingerprint.
    """

    def __init__(
        self,
        tensors: Tensors,
        rows: Sequence[EncoderRow],
        tokenizer: ClipTokenizer,
        clip_skip: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """`rows`: the family's encoders from the registry, in column order. `clip_skip`: as in ComfyUI, -1 is the
        last layer, -2 the one before; None is what the family was trained with."""
        self._towers = tuple(ClipTower(ClipWeights(tensors, row), clip_skip, torch.device(device)) for row in rows)
        lengths = {tower.weights.positions for tower in self._towers}
        if len(lengths) != 1:
            raise FileError(f"The text encoders take prompts of different lengths {sorted(lengths)}: not one model.")
        self.context_length = lengths.pop()
        self.width = sum(tower.width for tower in self._towers)
        self._tokenizer = tokenizer
        self.streams = (Stream(tokenizer.token_ids, self.context_length),)

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
        for batch in _batches(lengths):
            longest = max(lengths[i] for i in batch)
            parts = [tower.states(self._padded([texts[i] for i in batch], tower, longest)) for tower in self._towers]
            joined = torch.cat([part.cpu() for part in parts], dim=-1)
            for place, i in enumerate(batch):
                out[i] = joined[place, : lengths[i]].clone()
            done += len(batch)
            tick()
        return out

    def pooled(self, prompts: Sequence[str]) -> Tensor:
        """`prompts x pooled width`: the last encoder's pooled embedding, which SDXL's second text path reads."""
        texts = [self._checked_ids(prompt) for prompt in prompts]
        tower = self._towers[-1]
        tower.tick = lambda: None
        ends = torch.tensor([len(text) + 1 for text in texts], dtype=torch.long)
        longest = int(ends.max()) + 1 if len(texts) else 0
        return tower.pooled(self._padded(texts, tower, longest), ends).cpu()

    def _checked_ids(self, prompt: str) -> list[int]:
        ids = self.token_ids(prompt)
        if len(ids) > self.context_length - 2:
            raise InputError(
                f"'{prompt[:60]}' is {len(ids)} tokens long, but the text encoder takes {self.context_length - 2}: "
                "shorten it."
            )
        return ids

    def _padded(self, texts: Sequence[Sequence[int]], tower: ClipTower, length: int) -> Tensor:
        """`batch x length`: start, text, end and padding, cut to the rows that are needed."""
        pad = tower.weights.row.pad_token
        full = [[START_TOKEN, *text, END_TOKEN, *[pad] * self.context_length][:length] for text in texts]
        return torch.tensor(full, dtype=torch.long)


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
