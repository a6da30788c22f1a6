"""A model as an erasure sees it: layers by text input, weights read one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .encoders.encoder import RowFunction
from .engine.edits import LayerEdit
from .inputs import POOLED, TOKENS
from .models.architecture import Architecture, LayerKey


@dataclass(frozen=True, eq=False)
class EditableModel:
    """A model as an erasure sees it, wherever it comes from."""

    architecture: Architecture
    layers: tuple[LayerKey, ...]
    """All that may be edited, for every text input."""
    stored: Mapping[str, Tensor]
    """{canonical key: weight with all its columns}, as in effect, read one at a time."""
    text_part: RowFunction | None = None
    """What the model does to text before those layers; None: nothing."""

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """{canonical key: `o x d`} of the layers that read a prompt row by row."""
        return self.inputs[TOKENS]

    @property
    def inputs(self) -> dict[str, Mapping[str, Tensor]]:
        """{text input: {canonical key: the columns that read it}}, token rows first."""

        def columns(count: int | None, key: str) -> Tensor:
            return self.stored[key][:, :count]

        return {
            name: LazyWeights(
                [layer.canonical for layer in self.layers if layer.text_input == name],
                partial(columns, self.architecture.text_columns(name)),
            )
            for name in (TOKENS, POOLED)
        }


class LazyWeights(Mapping[str, Tensor]):
    """Weights by canonical key, each read when asked for and not held."""

    def __init__(self, keys: Iterable[str], read: Callable[[str], Tensor]) -> None:
        self._keys, self._read = tuple(keys), read

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._keys:
            raise KeyError(key)
        return self._read(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def padded(edit: LayerEdit, width: int) -> LayerEdit:
    """The edit of the columns that read text as one of all columns, zero in the others."""
    return LayerEdit(edit.up, torch.nn.functional.pad(edit.down, (0, width - edit.down.shape[1])))
