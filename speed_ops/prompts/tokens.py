"""Which token rows stand for a name in a prompt.

A prompt of `n` text tokens reaches a CLIP-fed model as `context_length` rows: row 0 is the start token, rows `1..n` the
text, row `n + 1` the end token, and the rest padding. In a causal encoder every row from the name on knows the name, so
end and padding rows carry it too; the paper edits the last subject token alone. T5 has no start token (all rows are one
earlier) and is not causal: there every row knows the name.

Each tokenizer's tokens make a run of rows of their own, a stream. CLIP families have one stream, whose columns may come
from two encoders that read the same tokens. Where a second kind of encoder adds its rows below (T5 in SD3), a name has
rows in both streams, found by each tokenizer for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Flag, auto

from ..concepts.kinds import Prompt
from ..errors import InputError, SettingsError

RowKey = tuple[tuple[int, ...], int]
"""Text tokens up to a row, and how many end and padding tokens follow them."""


class Position(Flag):
    """Rows of one prompt; combine with `|`."""

    LAST_SUBJECT = auto()
    """The last token of the name (the paper's row)."""
    EOS = auto()
    """The end token."""
    FIRST_PAD = auto()
    """The first padding row."""
    LAST_PAD = auto()
    """The last padding row: the last of the context."""
    ALL = auto()
    """Every row after the start token (the paper's rule for implicit concepts)."""


IN_CONTEXT = Position.LAST_SUBJECT | Position.EOS | Position.FIRST_PAD | Position.LAST_PAD
"""The rows that erased a style on a model that draws, where the last subject token alone did not."""


@dataclass(frozen=True)
class TokenSpan:
    """A tokenised prompt."""

    ids: tuple[int, ...]
    """Text tokens, without start and end."""
    subject: int
    """How many of them there are up to the last subject token: its row where row 0 is the start token. 0: no text."""


def locate(
    prompt: Prompt, token_ids: Callable[[str], Sequence[int]], context_length: int, start_token: bool = True
) -> TokenSpan:
    """Finds the last subject token by tokenising the prompt up to the end of the name.

    Where the last word runs into what follows (a name that ends in punctuation before `'s`), the two token lists part
    inside that word; the first token that differs is then the one the name ends in.
    """
    ids = tuple(token_ids(prompt.text))
    room = context_length - 1 - start_token
    if len(ids) > room:
        shown = prompt.text if len(prompt.text) <= 60 else prompt.text[:57] + "..."
        raise InputError(f"'{shown}' is {len(ids)} tokens long, but the text encoder takes {room}: shorten the name.")
    if prompt.subject_end == len(prompt.text):
        return TokenSpan(ids, len(ids))
    head = tuple(token_ids(prompt.text[: prompt.subject_end]))
    shared = 0
    while shared < min(len(head), len(ids)) and head[shared] == ids[shared]:
        shared += 1
    return TokenSpan(ids, shared if shared == len(head) else min(shared + 1, len(ids)))


def row_indices(positions: Position, span: TokenSpan, context_length: int, start_token: bool = True) -> tuple[int, ...]:
    """Rows of the prompt that stand for `positions`, one for each flag in the order of `Position`.

    Rows are not merged where two flags meet, so that a target's rows and its anchor's pair off one to one. A prompt
    without text has its first row for the last subject token.
    """
    if not positions:
        raise SettingsError("No token position was chosen: choose at least one, such as the last subject token.")
    end = len(span.ids) + start_token
    if positions & Position.ALL:
        return tuple(range(int(start_token), context_length))
    if positions & (Position.FIRST_PAD | Position.LAST_PAD) and end + 1 >= context_length:
        raise InputError(f"A prompt of {len(span.ids)} tokens has no padding row: shorten the name.")
    places = {
        Position.LAST_SUBJECT: max(0, span.subject - 1 + start_token),
        Position.EOS: end,
        Position.FIRST_PAD: end + 1,
        Position.LAST_PAD: context_length - 1,
    }
    return tuple(row for flag, row in places.items() if positions & flag)


def row_key(span: TokenSpan, row: int, start_token: bool = True) -> RowKey:
    """What a row of a causal encoder depends on: the tokens up to it. Rows with equal keys are the same row."""
    tokens = row + 1 - start_token
    return span.ids[:tokens], max(0, tokens - len(span.ids))


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
