"""Encoders of several kinds as one: each has rows of its own below the others', in its own columns, zero elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from .encoder import Progress, TextEncoder


@dataclass(frozen=True)
class Part:
    """One of the encoders."""

    encoder: TextEncoder
    first_column: int = 0


class JoinedTextEncoder:
    """A `TextEncoder` made of others. SD3: CLIP in columns 0 to 2047, below it T5 in all 4096."""

    def __init__(self, parts: Sequence[Part], width: int) -> None:
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
            report = progress if part is self._parts[-1] else _waiting(progress)
            found = part.encoder.encode([prompts[i] for i in chosen], [rows[i] for i in chosen], report)
            for i, values in zip(chosen, found, strict=True):
                columns = slice(part.first_column, part.first_column + part.encoder.width)
                out[i][first : first + rows[i], columns] = values
        return out


def _waiting(progress: Progress | None) -> Progress | None:
    """Prompts are done when the last part, which is the slow one, has done them."""
    if progress is None:
        return None
    return lambda stage, done, total: progress(stage, 0, total)
