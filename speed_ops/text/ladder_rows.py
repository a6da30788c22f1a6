"""The ladder's prompts as embedding rows: what the leak probe measures."""

from __future__ import annotations

from collections.abc import Sequence

from ..rows import Rows
from .cached_encoder import CachedEncoder
from .encoder import Progress, RowRequest
from .kinds import BARE
from .ladder import LadderPrompt
from .row_pairs import RowPair, paired_rows, read_pairs
from .tokens import IN_CONTEXT, Position


def ladder_rows(
    reader: CachedEncoder,
    prompts: Sequence[LadderPrompt],
    positions: Position = IN_CONTEXT,
    progress: Progress | None = None,
) -> tuple[Rows, Rows]:
    """Rows of each prompt, one group a prompt, and row by row those of the same template with the anchor."""
    encoder = reader.encoder
    pairs: list[RowPair] = []
    for group, item in enumerate(prompts):
        parts = [
            paired_rows(stream, stream.locate(item.prompt), stream.locate(item.anchor), positions)
            for stream in encoder.streams
        ]
        rows, anchor_rows = (tuple(row for part in side for row in part) for side in zip(*parts, strict=True))
        flags = (item.template is not BARE,) * len(rows)
        target, anchor = RowRequest(item.prompt.text, rows), RowRequest(item.anchor.text, anchor_rows)
        pairs.append(RowPair(target, anchor, group, flags))
    names = [item.prompt.text for item in prompts], [item.anchor.text for item in prompts]
    return read_pairs(reader, pairs, *names, "probe", progress)
