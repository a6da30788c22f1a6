"""Prompts to rows: what the rest of the program needs from a text encoder, whoever runs it.

`TextEncoder` is that need. `TowerEncoder` meets it with one tokenizer and one encoder or several side by side,
`JoinedTextEncoder` with encoders of several kinds: each has rows of its own below the others', in its own columns, zero
elsewhere.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ..errors import InputError
from ..progress import Progress
from ..prompts.requests import RowRequest
from ..prompts.tokens import Stream
from .tokenizers import LiteralTokenizer
from .tower import Tower


class TextEncoder(Protocol):
    """Turns prompts into the rows that the model's layers receive: those of its streams, one below the other."""

    @property
    def fingerprint(self) -> str:
        """Changes with everything that changes an embedding: weights, hidden layer, tokenizer, padding."""

    @property
    def width(self) -> int:
        """Width d of an embedding row."""

    @property
    def context_length(self) -> int:
        """Number of rows of a padded prompt, all streams together."""

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Which rows are whose, in the order of the rows; at least one."""

    def encode(self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None = None) -> list[Tensor]:
        """For each prompt its first `lengths[i]` rows of the padded sequence, as float32 on the CPU (`length x d`).

        Asking for fewer rows is how an encoder may save work; the rows are the same as of the whole sequence.
        """

    def close(self) -> None:
        """Gives its memory back; the next call to `encode` takes it again."""


def read_rows(encoder: TextEncoder, requests: Sequence[RowRequest], progress: Progress | None = None) -> list[Tensor]:
    """For each request its rows (`len(rows) x d`); a prompt asked for twice is encoded once."""
    needed: dict[str, int] = {}
    for request in requests:
        if not all(0 <= row < encoder.context_length for row in request.rows):
            raise InputError(f"Rows {request.rows} of '{request.text}' reach beyond {encoder.context_length} rows.")
        needed[request.text] = max(needed.get(request.text, 1), *(row + 1 for row in request.rows))
    encoded = encoder.encode(list(needed), list(needed.values()), progress)
    _refuse_unusable(encoded, list(needed), encoder.width)
    by_text = dict(zip(needed, encoded, strict=True))
    return [by_text[request.text][list(request.rows)] for request in requests]


def _refuse_unusable(encoded: Sequence[Tensor], prompts: Sequence[str], width: int) -> None:
    for rows, prompt in zip(encoded, prompts, strict=True):
        if rows.shape[1] != width:
            raise InputError(f"The text encoder gave rows of width {rows.shape[1]}, but said {width}.")
        if not torch.isfinite(rows).all():
            raise InputError(
                f"The text encoder gives NaN or Inf for '{prompt}': the checkpoint's text encoder is damaged or "
                "incomplete; load another one."
            )


@dataclass(frozen=True)
class EncoderPart:
    """One of the encoders."""

    encoder: TextEncoder
    first_column: int = 0


class JoinedTextEncoder:
    """A `TextEncoder` made of others. SD3: CLIP in columns 0 to 2047, below it T5 in all 4096."""

    def __init__(self, parts: Sequence[EncoderPart], width: int) -> None:
        """`parts` from the first row down, at least one; `width`: of the rows that the model receives."""
        self._parts = tuple(parts)
        self.width = width
        self._first_rows = [sum(part.encoder.context_length for part in parts[:n]) for n in range(len(parts))]
        self.context_length = sum(part.encoder.context_length for part in parts)
        self.streams = tuple(
            replace(stream, first=first + stream.first)
            for part, first in zip(parts, self._first_rows, strict=True)
            for stream in part.encoder.streams
        )

    @cached_property
    def fingerprint(self) -> str:
        """Hash over the parts' and their places."""
        places = [f"{part.first_column} {part.encoder.fingerprint}" for part in self._parts]
        return hashlib.sha256("\n".join([f"joined {self.width}", *places]).encode()).hexdigest()

    def close(self) -> None:
        """Gives the memory of all parts back."""
        for part in self._parts:
            part.encoder.close()

    def encode(self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None = None) -> list[Tensor]:
        """First `lengths[i]` rows of each prompt (`length x d`); a part is run for the prompts that reach into it."""
        out = [torch.zeros(length, self.width) for length in lengths]
        for part, first in zip(self._parts, self._first_rows, strict=True):
            rows = [min(length - first, part.encoder.context_length) for length in lengths]
            chosen = [i for i in range(len(prompts)) if rows[i] > 0]
            # Prompts are done when the last part, which is the slow one, has done them.
            report = progress if part is self._parts[-1] else _waiting(progress, len(chosen))
            found = part.encoder.encode([prompts[i] for i in chosen], [rows[i] for i in chosen], report)
            for i, values in zip(chosen, found, strict=True):
                columns = slice(part.first_column, part.first_column + part.encoder.width)
                out[i][first : first + rows[i], columns] = values
        return out


def _waiting(progress: Progress | None, total: int) -> Progress | None:
    """Reports that nothing is done yet."""
    return None if progress is None else lambda stage, *_: progress(stage, 0, total)


BATCH_TOKENS = 1536
"""Token rows a batch: enough to keep the matrix products efficient, few enough that a block of CLIP takes under a
second."""


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
                progress("encode", done, len(prompts))

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
