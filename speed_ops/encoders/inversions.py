"""Textual inversions as words of CLIP: the vectors of a file become tokens after all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import FileError
from ..files.checkpoint import Checkpoint


@dataclass(frozen=True, eq=False)
class Inversion:
    """One file: `embedding:name` in a prompt stands for its vectors."""

    name: str
    vectors: Mapping[str, Tensor]
    """{encoder: `n x d`, as many for each}; an empty name is for any encoder of that width."""

    @classmethod
    def read(cls, path: Path) -> Inversion:
        """From a safetensors file of any trainer; the file's name is the inversion's."""
        file = Checkpoint.open(path)
        keys = [
            key for key, shape in file.shapes.items() if len(shape) in (1, 2) and 0 not in shape
        ]
        named = {key: key for key in keys if key.startswith("clip_")}
        if not named and len(keys) == 1:
            named = {"": keys[0]}
        vectors = {
            encoder: file.read(key).reshape(-1, file.shapes[key][-1]).float()
            for encoder, key in named.items()
        }
        counts = {len(rows) for rows in vectors.values()}
        if len(counts) != 1 or any(not torch.isfinite(rows).all() for rows in vectors.values()):
            raise FileError(
                f"{path} is not a textual inversion that can be read. Give a safetensors file with"
                " its vectors."
            )
        return cls(path.stem, vectors)

    @property
    def count(self) -> int:
        """How many tokens it takes."""
        return len(next(iter(self.vectors.values())))

    def rows_for(self, encoder: str, width: int) -> Tensor:
        """The vectors of one encoder."""
        rows = self.vectors.get(encoder, self.vectors.get(""))
        if rows is None or rows.shape[1] != width:
            raise FileError(
                f"The textual inversion '{self.name}' has no vectors of width {width} for"
                f" {encoder}. Use one that was made for this model."
            )
        return rows


def extended(table: Tensor, inversions: Sequence[Inversion], encoder: str) -> Tensor:
    """A table of token embeddings with the vectors of inversions below it.

    Args:
        table: `vocabulary x d`.
        inversions: In the order of their tokens.
        encoder: Whose table it is.
    """
    rows = [inversion.rows_for(encoder, table.shape[1]) for inversion in inversions]
    return torch.cat([table, *(part.to(table) for part in rows)])


def token_numbers(inversions: Sequence[Inversion], first: int) -> dict[str, tuple[int, ...]]:
    """{name: its tokens}, counted from the end of the vocabulary.

    Args:
        inversions: In the order of their tokens.
        first: Size of the vocabulary.
    """
    numbers: dict[str, tuple[int, ...]] = {}
    for inversion in inversions:
        if inversion.name in numbers:
            raise FileError(f"Two textual inversions are called '{inversion.name}'. Rename one.")
        numbers[inversion.name] = tuple(range(first, first + inversion.count))
        first += inversion.count
    return numbers
