"""Prompts to rows. `TextEncoder` is what the program needs, in whatever host it runs.

`TowerEncoder` has one tokenizer, and one encoder or several side by side. `JoinedTextEncoder` is
made of several kinds: each has its own rows, below the others', in its own columns, zero elsewhere.
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
from torch.nn import functional

from ..devices import Workplace as Workplace
from ..errors import InputError
from ..inputs import POOLED
from ..progress import Progress
from ..text.requests import RowRequest
from ..text.tokens import Stream, long_name
from .tokenizers import LiteralTokenizer
from .tower import Tower


class RowFunction(Protocol):
    """What a model does to text before the edited layers, with its weights in effect."""

    width: int
    """Width of the rows that come out."""
    fingerprint: str
    """Changes with the weights."""

    def __call__(self, rows: Tensor, ids: Tensor | None = None) -> Tensor:
        """Rows as the encoder gives them (`n x d`) to those that the layers read."""


class RootMeanSquareNorm:
    """A `RowFunction` with the weight of a norm."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight, self._epsilon = weight.to(torch.float32), epsilon
        self.width = len(weight)
        digest = hashlib.sha256(self._weight.contiguous().numpy().tobytes())
        self.fingerprint = f"rms {epsilon} {digest.hexdigest()}"

    def __call__(self, rows: Tensor, ids: Tensor | None = None) -> Tensor:
        scale = torch.rsqrt(rows.square().mean(dim=-1, keepdim=True) + self._epsilon)
        return rows * scale * self._weight


class TwoLayerNetwork:
    """A `RowFunction` of two linear layers with a GELU between them."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """`layers`: weight and bias of each."""
        self._layers = [
            (weight.to(torch.float32), bias.to(torch.float32)) for weight, bias in layers
        ]
        self.width = len(self._layers[-1][0])
        total = hashlib.sha256()
        for weight, bias in self._layers:
            for values in (weight, bias):
                total.update(values.contiguous().numpy().data)
        self.fingerprint = f"network {total.hexdigest()}"

    def __call__(self, rows: Tensor, ids: Tensor | None = None) -> Tensor:
        first, second = self._layers
        hidden = functional.gelu(functional.linear(rows, *first), approximate="tanh")
        return functional.linear(hidden, *second)


Encoded = tuple[list[Tensor], list[Tensor]]
"""Rows of each prompt, and the pooled embedding of each if asked for."""


class TextEncoder(ABC):
    """Turns prompts into the rows that the model's layers receive: those of its streams, one below
    the other.
    """

    fingerprint: str
    """Changes with everything that changes a row: weights, hidden layer, tokenizer, padding."""
    width: int
    """Width d of an embedding row."""
    context_length: int
    """Number of rows of a padded prompt, all streams together."""
    streams: tuple[Stream, ...]
    """Which rows belong to which encoder, in the order of the rows; at least one."""
    pooled_width: int = 0
    """Width of the pooled embedding that the model reads, too; 0 if there is none."""
    pooled_fingerprint: str = ""
    """`fingerprint` of the pooled embeddings."""
    parts: tuple[TextEncoder, ...] = ()
    """The encoders that it is made of, if several."""

    @property
    def notes(self) -> list[str]:
        """What happened while encoding that a report should mention."""
        return list(dict.fromkeys(note for part in self.parts for note in part.notes))

    @abstractmethod
    def close(self) -> None:
        """Gives its memory back; the next call to `encode` takes it again."""

    @abstractmethod
    def _encoded(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None, pools: bool
    ) -> Encoded:
        """First `lengths[i]` rows of each prompt, and with `pools` the pooled embedding of each."""

    def encode(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None = None
    ) -> list[Tensor]:
        """For each prompt its first `lengths[i]` rows of the padded sequence, as float32 on the CPU
        (`length x d`).

        Asking for fewer rows is how an encoder may save work; the rows are the same as of the whole
        sequence.

        Args:
            prompts: Texts to encode.
            lengths: Number of rows for each prompt.
            progress: May raise to interrupt.
        """
        return self._encoded(prompts, lengths, progress, pools=False)[0]

    def encode_both(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None = None
    ) -> Encoded:
        """`encode`, and for each prompt its pooled embedding (`pooled width`), in one run.

        Args:
            prompts: Texts to encode.
            lengths: Number of rows for each prompt; 0 asks for the pooled embedding alone.
            progress: May raise to interrupt.
        """
        return self._encoded(prompts, lengths, progress, pools=True)


def input_width(encoder: TextEncoder, text_input: str) -> int:
    """Width of the rows that an encoder makes for a text input; 0 if it makes none."""
    return encoder.pooled_width if text_input == POOLED else encoder.width


def input_fingerprint(encoder: TextEncoder, text_input: str) -> str:
    """The encoder's fingerprint for the rows of a text input."""
    return encoder.pooled_fingerprint if text_input == POOLED else encoder.fingerprint


def equivalent_prompts(encoder: TextEncoder, prompts: int, names: int) -> float:
    """How many whole prompts take as long as these prompts and bare names.

    A name is a few tokens where a prompt is a context full of them; an encoder that is not causal
    runs both whole.

    Args:
        encoder: Encodes them.
        prompts: Number of whole prompts.
        names: Number of bare names.
    """
    return prompts + names / (10 if all(stream.causal for stream in encoder.streams) else 1)


def read_prompts(
    encoder: TextEncoder,
    requests: Sequence[RowRequest],
    progress: Progress | None = None,
    pools: bool = False,
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """For each request its rows (`len(rows) x d`), and with `pools` the pooled embedding of each
    text (`pooled width`); a prompt asked for twice is encoded once.

    Args:
        encoder: Encodes the prompts.
        requests: Prompts, and the rows to read from each.
        progress: May raise to interrupt.
        pools: Whether pooled embeddings are read; the encoder must have some.
    """
    lengths: dict[str, int] = {}
    for request in requests:
        if not all(0 <= row < encoder.context_length for row in request.rows):
            raise InputError(
                f"Rows {request.rows} of '{request.text}' reach beyond {encoder.context_length}"
                " rows."
            )
        length = max((row + 1 for row in request.rows), default=0)
        lengths[request.text] = max(lengths.get(request.text, 0), length)
    prompts, embeddings = list(lengths), list[Tensor]()
    if pools:
        blocks, embeddings = encoder.encode_both(prompts, list(lengths.values()), progress)
        _refuse_unusable([row[None] for row in embeddings], prompts, encoder.pooled_width)
    else:
        blocks = encoder.encode(prompts, list(lengths.values()), progress)
    _refuse_unusable(blocks, prompts, encoder.width)
    rows = dict(zip(prompts, blocks, strict=True))
    read = [rows[request.text][list(request.rows)] for request in requests]
    return read, dict(zip(prompts, embeddings, strict=False))


def _refuse_unusable(blocks: Sequence[Tensor], prompts: Sequence[str], width: int) -> None:
    for rows, prompt in zip(blocks, prompts, strict=True):
        if rows.shape[1] != width:
            raise InputError(
                f"The text encoder gave rows of width {rows.shape[1]}, but said {width}."
            )
        if not torch.isfinite(rows).all():
            raise InputError(
                f"The text encoder gives NaN or Inf for '{prompt}': the checkpoint's text encoder"
                " is damaged or incomplete. Load another one."
            )


@dataclass(frozen=True)
class EncoderPart:
    """One of the encoders of a model."""

    encoder: TextEncoder
    first_column: int = 0
    pooled_column: int = 0
    """Where its pooled embedding begins in the whole one."""
    rows_are_read: bool = True
    """False if the model reads only its pooled embedding (CLIP in Flux)."""


class JoinedTextEncoder(TextEncoder):
    """A `TextEncoder` made of others. SD3: CLIP in columns 0 to 2047, below it T5 in all 4096."""

    def __init__(self, parts: Sequence[EncoderPart], width: int, pooled_width: int = 0) -> None:
        """
        Args:
            parts: From the first row down.
            width: Width of the rows that the model receives, zero where no part fills them.
            pooled_width: The same of the pooled embedding.
        """
        self._parts = tuple(parts)
        self.parts = tuple(part.encoder for part in parts)
        self.width = width
        self.pooled_width = pooled_width if any(part.pooled_width for part in self.parts) else 0
        heights = [part.encoder.context_length if part.rows_are_read else 0 for part in parts]
        self._first_rows = [sum(heights[:n]) for n in range(len(parts))]
        self.context_length = sum(heights)
        self.streams = tuple(
            replace(stream, first=first + stream.first)
            for part, first in zip(parts, self._first_rows, strict=True)
            for stream in (part.encoder.streams if part.rows_are_read else ())
        )

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        parts = [part for part in self._parts if part.rows_are_read]
        if len(parts) == 1 and parts[0].encoder.width == self.width:
            return parts[0].encoder.fingerprint
        lines = [f"{part.first_column} {part.encoder.fingerprint}" for part in parts]
        return hashlib.sha256("\n".join([f"joined {self.width}", *lines]).encode()).hexdigest()

    @cached_property
    def pooled_fingerprint(self) -> str:  # type: ignore[override]
        parts = [part for part in self._parts if part.encoder.pooled_width]
        if len(parts) == 1 and parts[0].encoder.pooled_width == self.pooled_width:
            return parts[0].encoder.pooled_fingerprint
        lines = [f"{part.pooled_column} {part.encoder.pooled_fingerprint}" for part in parts]
        lines.insert(0, f"joined {self.pooled_width}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def _encoded(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None, pools: bool
    ) -> Encoded:
        # A part is run for the prompts that reach into it; those that pool, for every prompt.
        out = [torch.zeros(length, self.width) for length in lengths]
        pooled = [torch.zeros(self.pooled_width) for _ in prompts]
        for part, first in zip(self._parts, self._first_rows, strict=True):
            encoder = part.encoder
            pooling = pools and encoder.pooled_width > 0
            height = encoder.context_length if part.rows_are_read else 0
            rows = [max(0, min(length - first, height)) for length in lengths]
            indices = [i for i in range(len(prompts)) if pooling or rows[i] > 0]
            # Prompts are done when the last part, which is the slow one, has done them.
            report = progress if part is self._parts[-1] else _waiting(progress, len(indices))
            arguments = [prompts[i] for i in indices], [rows[i] for i in indices], report
            row_blocks, embeddings = (
                encoder.encode_both(*arguments) if pooling else (encoder.encode(*arguments), [])
            )
            for i, values in zip(indices, row_blocks, strict=True):
                columns = slice(part.first_column, part.first_column + encoder.width)
                out[i][first : first + rows[i], columns] = values
            for i, row in zip(indices, embeddings, strict=False):
                pooled[i][part.pooled_column : part.pooled_column + len(row)] = row
        return out, pooled


def _waiting(progress: Progress | None, total: int) -> Progress | None:
    """Reports that nothing is done yet."""
    return None if progress is None else lambda stage, *_: progress(stage, 0, total)


_USUAL_LENGTH = 48
"""Rows of a prompt without padding: a template, a context and a name."""
BATCH_TOKENS = 1536
"""Token rows per batch: large enough matrix products, and a block of CLIP in under a second."""


class TowerEncoder(TextEncoder):
    """A `TextEncoder` with one stream. Nothing is read from the file before the first prompt, but
    for the fingerprint.

    Prompts to a causal encoder run only as long as the rows asked for, batched with prompts of like
    length; others always run whole, without padding where the model does not read it.
    """

    workplace: Workplace | None = None
    """Where it runs, and the CPU once that has too little memory. None: on its towers' device, and
    the caller looks after memory.
    """

    def __init__(
        self,
        towers: Sequence[Tower],
        tokenizer: LiteralTokenizer,
        stream: Stream,
        ends: tuple[Sequence[int], Sequence[int]],
        pooling: Sequence[Tower] = (),
    ) -> None:
        """
        Args:
            towers: Encoders of the same tokens, in column order.
            tokenizer: Makes the tokens.
            stream: Their rows.
            ends: Tokens before a text, and after it. Where the stream has fewer rows before a text,
                the model does not receive the first ones.
            pooling: Those of the towers whose pooled embeddings, side by side, make the model's.
        """
        self._towers = tuple(towers)
        self._pooling = tuple(pooling) if all(tower.pooled_width for tower in pooling) else ()
        self._tokenizer = tokenizer
        self._ends = ends
        self._unread = len(ends[0]) - stream.before
        self.streams = (stream,)
        self.context_length = stream.length
        self.width = sum(tower.width for tower in self._towers)
        self.pooled_width = sum(tower.pooled_width for tower in self._pooling)

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """Hash of weights, hidden-layer rule and tokenizer."""
        total = hashlib.sha256(self._tokenizer.fingerprint.encode())
        for tower in self._towers:
            total.update(f"{tower.rule} {tower.digest()}\n".encode())
        return total.hexdigest()

    @cached_property
    def pooled_fingerprint(self) -> str:  # type: ignore[override]
        """Hash of all that, and of what only pooled embeddings depend on."""
        total = hashlib.sha256(f"pooled {self.fingerprint}\n".encode())
        for tower in self._pooling:
            total.update(f"{tower.row.name} {tower.pooled_digest()}\n".encode())
        return total.hexdigest()

    def close(self) -> None:
        """Gives its memory back; the next call to `encode` takes it again."""
        for tower in self._towers:
            tower.close()

    def trial(self) -> float:
        """About how many seconds a whole prompt takes, from one block of each tower."""
        length = self.context_length
        if not self.streams[0].padded:  # there it is only the most that a prompt may have
            length = min(length, _USUAL_LENGTH)
        return sum(
            tower.trial(self._padded([[]], tower, length)[0], BATCH_TOKENS // length)
            for tower in self._towers
        )

    def token_ids(self, text: str) -> list[int]:
        """Tokens of the literal text, without start and end tokens."""
        return self._tokenizer.token_ids(text)

    def _encoded(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None, pools: bool
    ) -> Encoded:
        if self.workplace is None:
            return self._run(prompts, lengths, progress, pools=pools)

        def work(device: torch.device) -> Encoded:
            for tower in self._towers:
                tower.move_to(device)
            return self._run(prompts, lengths, progress, pools=pools)

        return self.workplace.run(work)

    def _run(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None, pools: bool
    ) -> Encoded:
        pooling = self._pooling if pools else ()
        texts = [self._checked_ids(prompt) for prompt in prompts]
        out: list[Tensor] = [torch.empty(0, self.width)] * len(prompts)
        pooled: list[Tensor] = [torch.empty(0)] * len(prompts)
        done = 0

        def tick() -> None:
            if progress is not None:
                progress("encode", done, len(prompts))

        for tower in self._towers:
            tower.tick = tick
        # A pooled embedding is read at the end token.
        run = [
            max(length, self._end(text) + 1) if pooling else length
            for length, text in zip(lengths, texts, strict=True)
        ]
        if not self.streams[0].causal:
            run = [self._whole(text) for text in texts]
        for batch in _batches(run):
            batch_texts, longest = [texts[i] for i in batch], max(run[i] for i in batch)
            ends = torch.tensor([self._end(text) for text in batch_texts])
            rows, pooled_parts = [], []
            for tower in self._towers:
                ids, seen = self._padded(batch_texts, tower, longest)
                if tower in pooling:
                    states, at_end = tower.states_and_pooled(ids, ends)
                    pooled_parts.append(at_end.cpu())
                else:
                    states = tower.states(ids, seen)
                rows.append(states.cpu())
            joined = torch.cat(rows, dim=-1)[:, self._unread :]
            for position, i in enumerate(batch):
                out[i] = self._received(joined[position], batch_texts[position], lengths[i])
                if pooled_parts:
                    pooled[i] = torch.cat([part[position] for part in pooled_parts])
            done += len(batch)
            tick()
        return out, pooled

    def _end(self, text: Sequence[int]) -> int:
        """Row of the end token."""
        return len(text) + self.streams[0].before

    def _whole(self, text: Sequence[int]) -> int:
        """How many rows an encoder runs that is not causal."""
        stream = self.streams[0]
        return stream.length if stream.padded else self._end(text) + stream.after

    def _received(self, rows: Tensor, text: Sequence[int], length: int) -> Tensor:
        """The first rows of a prompt; padding that the model masks is zeros."""
        stream = self.streams[0]
        if stream.padding != "masked":
            return rows[:length].clone()
        received = torch.zeros(length, self.width)
        count = min(length, self._end(text) + stream.after)
        received[:count] = rows[:count]
        return received

    def _padded(
        self, texts: Sequence[Sequence[int]], tower: Tower, length: int
    ) -> tuple[Tensor, Tensor | None]:
        """`batch x length`: all tokens, cut to the rows that are needed, and which of them
        attention reads; None: all.
        """
        start, end = self._ends
        length += self._unread
        padding = [tower.row.pad_token] * length
        prompts = [[*start, *text, *end] for text in texts]
        ids = torch.tensor([[*prompt, *padding][:length] for prompt in prompts], dtype=torch.long)
        if not tower.row.masks_padding:
            return ids, None
        counts = torch.tensor([len(prompt) for prompt in prompts])
        return ids, (torch.arange(length) < counts[:, None]).long()

    def _checked_ids(self, prompt: str) -> list[int]:
        ids = self.token_ids(prompt)
        limit = self.context_length - 1 - self.streams[0].before
        if len(ids) > limit:
            raise InputError(long_name(prompt, len(ids), limit))
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
