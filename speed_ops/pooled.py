"""The pooled path: one embedding of the whole prompt, and the one layer that reads it.

SDXL, SD3 and Flux read a prompt twice: row by row, and pooled into one embedding. The same closed
form edits the layer that reads the latter, on the pooled embeddings of the very prompts whose rows
the other edit is made from. That layer may read more than text (SDXL's sizes): the engine sees the
text's columns alone, and its edit is zero in the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .encoders.cache import CachedEncoder
from .engine.edits import LayerEdit
from .engine.rows import Rows
from .text.concept_list import Concept
from .text.requests import KeptName, RowPair


class TextColumns(Mapping[str, Tensor]):
    """Some layers out of many, of each the columns that read text."""

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


def over_all_columns(edit: LayerEdit, width: int) -> LayerEdit:
    """The edit of the text's columns as one of the whole layer, zero in the others."""
    return LayerEdit(edit.up, torch.nn.functional.pad(edit.down, (0, width - edit.down.shape[1])))


def text_columns_of(edit: LayerEdit, count: int) -> LayerEdit:
    """An edit of the whole layer as the engine sees it."""
    return LayerEdit(edit.up, edit.down[:, :count])


def pooled_pairs(
    reader: CachedEncoder, concepts: Sequence[Concept], pairs: Sequence[RowPair]
) -> tuple[Rows, Rows]:
    """Targets and, one to one, anchors: one embedding for each prompt of the pairs."""
    found = {(pair.group, pair.target.text): pair for pair in pairs}.values()
    groups = tuple(pair.group for pair in found)
    context = tuple(all(pair.in_context) for pair in found)
    targets = _embeddings(reader, [pair.target.text for pair in found])
    anchors = _embeddings(reader, [pair.anchor.text for pair in found])
    names = (
        tuple(concept.target for concept in concepts),
        tuple(concept.anchor for concept in concepts),
    )
    return Rows(targets, groups, names[0], context), Rows(anchors, groups, names[1], context)


def pooled_names(reader: CachedEncoder, names: Sequence[KeptName]) -> Rows:
    """The kept names, each alone and in the prompts that it is kept in."""
    texts: dict[tuple[int, str], bool] = {}
    for group, name in enumerate(names):
        for flag, part in ((False, name.bare), (True, name.contexts)):
            for request in part:
                texts.setdefault((group, request.text), flag)
    values = _embeddings(reader, [text for _, text in texts])
    return Rows(
        values,
        tuple(group for group, _ in texts),
        tuple(name.name for name in names),
        tuple(texts.values()),
    )


def _embeddings(reader: CachedEncoder, texts: Sequence[str]) -> Tensor:
    return reader.pooled(texts) if texts else torch.empty(0, reader.encoder.pooled_width)
