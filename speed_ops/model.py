"""A model as an erasure sees it: layers by text input, weights read one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .engine.edits import LayerEdit
from .inputs import POOLED, TOKENS
from .models.architecture import Architecture, LayerKey

if TYPE_CHECKING:
    from .encoders.push import Push


@dataclass(frozen=True, eq=False)
class EditableModel:
    """A model as an erasure sees it, wherever it comes from."""

    architecture: Architecture
    layers: tuple[LayerKey, ...]
    """All that may be edited, for every text input."""
    stored: Mapping[str, Tensor]
    """{canonical key: weight with all its columns}, as in effect, read one at a time."""
    push: Push | None = None
    """What the model does to each row of text before those layers; None: nothing."""

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """{canonical key: `o x d`} of the layers that read a prompt row by row."""
        return self.inputs[TOKENS]

    @property
    def inputs(self) -> dict[str, Mapping[str, Tensor]]:
        """{text input: {canonical key: the columns that read it}}, token rows first."""
        return {
            name: TextColumns(
                self.stored,
                [layer.canonical for layer in self.layers if layer.text_input == name],
                self.architecture.text_columns(name),
            )
            for name in (TOKENS, POOLED)
        }


class TextColumns(Mapping[str, Tensor]):
    """Some layers out of many, each cut to the columns that read text."""

    def __init__(
        self, weights: Mapping[str, Tensor], keys: Iterable[str], count: int | None = None
    ) -> None:
        """`count`: how many of the columns, from the first on; None: all."""
        self._weights, self._keys, self._count = weights, tuple(keys), count

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._keys:
            raise KeyError(key)
        return self._weights[key][:, : self._count]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def padded(edit: LayerEdit, width: int) -> LayerEdit:
    """The edit of the columns that read text as one of all columns, zero in the others."""
    return LayerEdit(edit.up, torch.nn.functional.pad(edit.down, (0, width - edit.down.shape[1])))
