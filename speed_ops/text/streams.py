"""The streams of a prompt: each tokenizer's tokens make a run of rows of their own.

CLIP families have one stream, whose columns may come from two encoders that read the same tokens. Where a second kind
of encoder adds its rows below (T5 in SD3), a name has rows in both streams, found by each tokenizer for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .tokens import Position, Prompt, RowKey, TokenSpan, locate, row_indices, row_key

StreamKey = tuple[int, RowKey]
"""First row of the stream, and what a row of it depends on."""


@dataclass(frozen=True)
class Stream:
    """Start token (or none), text, end token and padding, `length` rows from row `first` of the prompt on."""

    token_ids: Callable[[str], Sequence[int]]
    """Tokens of the literal text, without start and end tokens; no weights, embeddings or wildcards."""
    length: int
    first: int = 0
    start_token: bool = True
    causal: bool = True
    """Whether a row depends on the text before it alone (CLIP), and not on what follows (T5 does)."""

    def locate(self, prompt: Prompt) -> TokenSpan:
        """Where the name ends among this stream's tokens."""
        return locate(prompt, self.token_ids, self.length, self.start_token)

    def rows(self, positions: Position, span: TokenSpan) -> tuple[int, ...]:
        """Rows of the whole prompt that stand for `positions`, one for each flag."""
        return tuple(self.first + row for row in row_indices(positions, span, self.length, self.start_token))

    def rows_from_name(self, span: TokenSpan) -> range:
        """The last subject token and everything after it, but never the start token."""
        (own,) = self.rows(Position.LAST_SUBJECT, span)
        return range(max(own, self.first + self.start_token), self.first + self.length)

    def key(self, span: TokenSpan, row: int) -> StreamKey:
        """What a row depends on: the tokens up to it, or the whole text where the encoder is not causal."""
        own = row - self.first
        return self.first, row_key(span, own, self.start_token) if self.causal else (span.ids, own)
