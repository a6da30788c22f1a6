"""What the text side needs from a text encoder, whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..errors import InputError
from .streams import Stream

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total), often enough to stop work within a second: raising in it interrupts."""


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


@dataclass(frozen=True)
class RowRequest:
    """Some rows of one prompt."""

    text: str
    rows: tuple[int, ...]
    """Row indices, not necessarily sorted or distinct."""


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


def full_prompt(encoder: TextEncoder, prompt: str) -> Tensor:
    """All rows of one padded prompt (`context_length x d`)."""
    return read_rows(encoder, [RowRequest(prompt, tuple(range(encoder.context_length)))])[0]


def _refuse_unusable(encoded: Sequence[Tensor], prompts: Sequence[str], width: int) -> None:
    for rows, prompt in zip(encoded, prompts, strict=True):
        if rows.shape[1] != width:
            raise InputError(f"The text encoder gave rows of width {rows.shape[1]}, but said {width}.")
        if not torch.isfinite(rows).all():
            raise InputError(
                f"The text encoder gives NaN or Inf for '{prompt}': the checkpoint's text encoder is damaged or "
                "incomplete; load another one."
            )
