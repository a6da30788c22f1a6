"""Which token rows stand for a name in a prompt.

A prompt of `n` text tokens reaches a CLIP-fed model as `context_length` rows: row 0 is the start
token, rows `1..n` the text, row `n + 1` the end token, and the rest padding. In a causal encoder
every row from the name on knows the name, so end and padding rows carry it too; the paper edits the
last subject token alone. T5 has no start token (all rows are one earlier) and is not causal: there
every row knows the name.

Each tokenizer's tokens make a run of rows of their own, a stream. CLIP families have one stream,
whose columns may come from two encoders that read the same tokens. Where a second kind of encoder
adds its rows below (T5 in SD3), a name has rows in both streams, found by each tokenizer for
itself.

Other encoders pad with rows that say nothing of the text (zeros, or masked), or do not pad: then
only the rows of the text and of what closes it stand for a name. A chat model's template puts rows
before the text and a tail behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Literal

from ..errors import InputError, SettingsError
from .kinds import Prompt

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
    FIRST_TEXT = auto()
    """The first word: the same in every prompt that begins with it, so it must stay."""
    FIRST_SUBJECT = auto()
    """The first token of the name."""
    MIDDLE_SUBJECT = auto()
    """The token in the middle of the name."""
    AFTER_SUBJECT = auto()
    """What follows the name: the next word, or the end token."""
    LAST_TEXT = auto()
    """The last word."""
    EARLY_PAD = auto()
    """The fourth padding row."""
    PAD_20 = auto()
    """The padding row 20 % into the context; the next ones accordingly."""
    PAD_30 = auto()
    PAD_50 = auto()
    PAD_75 = auto()
    TOKENS = auto()
    """Every text token and the end token."""
    SPREAD = auto()
    """The rows of `SPREAD_OVER`, by the kind of encoder."""
    TAIL = auto()
    """Every row after the end token in a prompt that is not padded: the rest of a template."""


IN_CONTEXT = Position.LAST_SUBJECT | Position.EOS | Position.FIRST_PAD | Position.LAST_PAD
"""Four rows: enough for a text encoder whose rows all say the same, and a quarter too few for a
real one.
"""
SPREAD_OVER: dict[str, Position] = {
    "causal": (
        Position.LAST_SUBJECT
        | Position.AFTER_SUBJECT
        | Position.LAST_TEXT
        | Position.EOS
        | Position.FIRST_PAD
        | Position.EARLY_PAD
        | Position.PAD_20
        | Position.PAD_30
        | Position.PAD_50
        | Position.PAD_75
        | Position.LAST_PAD
    ),
    "bidirectional": Position.TOKENS | Position.FIRST_PAD | Position.LAST_PAD,
    "causal, no padding": (
        Position.LAST_SUBJECT
        | Position.AFTER_SUBJECT
        | Position.LAST_TEXT
        | Position.EOS
        | Position.TAIL
    ),
    "bidirectional, no padding": Position.TOKENS,
}
"""Which rows of a prompt stand for it, by the kind of encoder (measured: docs/frontier.md,
"Positions").

A causal encoder (CLIP) says a name from its last token on to the last padding, in a direction that
turns on the way; what comes before belongs to others, too ("Claude" to every Claude). In a
bidirectional one (T5) every word knows it. Without padding that speaks of the text there are fewer
such rows, and all of them are taken.
"""
KEPT_BESIDES = Position.FIRST_TEXT | Position.FIRST_SUBJECT | Position.MIDDLE_SUBJECT
"""Rows that only the kept names have besides: no target asks for them, and an edit that may use
them moves them.
"""
_SHARES = {Position.PAD_20: 0.2, Position.PAD_30: 0.3, Position.PAD_50: 0.5, Position.PAD_75: 0.75}
_OF_TEXT = (
    Position.FIRST_TEXT
    | Position.FIRST_SUBJECT
    | Position.MIDDLE_SUBJECT
    | Position.LAST_SUBJECT
    | Position.AFTER_SUBJECT
    | Position.LAST_TEXT
)
"""Rows that a prompt without text does not have."""
MANY = Position.TOKENS | Position.TAIL
"""Flags that stand for several rows each; theirs come after those of the others."""
Padding = Literal["speaks", "silent", "none"]
"""Rows after the end token that know the text; rows that the model is given as zeros or masked; no
rows at all.
"""


@dataclass(frozen=True)
class TokenSpan:
    """A tokenised prompt."""

    ids: tuple[int, ...]
    """Text tokens, without start and end."""
    subject: int
    """How many of them there are up to the last subject token: its row where row 0 is the start
    token. 0: no text.
    """
    first: int = 0
    """The same for the first subject token; 0: no name has a place in it."""


def long_name(text: str, tokens: int, room: int) -> str:
    """The sentence about a text that an encoder cannot take."""
    shown = text if len(text) <= 60 else text[:57] + "..."
    return (
        f"'{shown}' is {tokens} tokens long, but the text encoder takes {room}: shorten the name."
    )


def locate(
    prompt: Prompt, token_ids: Callable[[str], Sequence[int]], context_length: int, before: int = 1
) -> TokenSpan:
    """Finds the last subject token by tokenising the prompt up to the end of the name.

    Where the last word runs into what follows (a name that ends in punctuation before `'s`), the
    two token lists part inside that word; the first token that differs is then the one the name
    ends in.
    """
    ids = tuple(token_ids(prompt.text))
    room = context_length - 1 - before
    if len(ids) > room:
        raise InputError(long_name(prompt.text, len(ids), room))
    first = 0
    if prompt.subject_start is not None:
        lead = prompt.text[: prompt.subject_start].rstrip()
        first = min(len(ids), (_shared(ids, token_ids(lead)) if lead else 0) + 1)
    if prompt.subject_end == len(prompt.text):
        return TokenSpan(ids, len(ids), first)
    head = tuple(token_ids(prompt.text[: prompt.subject_end]))
    shared = _shared(ids, head)
    last = shared if shared == len(head) else min(shared + 1, len(ids))
    return TokenSpan(ids, last, min(first, last))


def _shared(ids: Sequence[int], head: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    count = 0
    while count < min(len(head), len(ids)) and head[count] == ids[count]:
        count += 1
    return count


def row_indices(
    positions: Position, span: TokenSpan, context_length: int, before: int = 1, padded: bool = True
) -> tuple[int, ...]:
    """Rows of the prompt that stand for `positions`, one for each flag in the order of `Position`.

    Rows are not merged where two flags meet, so that a target's rows and its anchor's pair off one
    to one. A prompt without text has its first row for the last subject token. One that is not
    padded has `context_length` rows of its own, and its last for whatever would lie beyond.
    """
    if not positions:
        raise SettingsError(
            "No token position was chosen: choose at least one, such as the last subject token."
        )
    end, last = len(span.ids) + before, context_length - 1
    if positions & Position.ALL:
        return tuple(range(before, context_length))
    if (
        padded
        and positions & (Position.FIRST_PAD | Position.LAST_PAD)
        and end + 1 >= context_length
    ):
        raise InputError(
            f"A prompt of {len(span.ids)} tokens has no padding row: shorten the name."
        )
    subject = max(0, span.subject - 1 + before)
    first = span.first - 1 + before if span.first else subject
    places = {
        Position.LAST_SUBJECT: subject,
        Position.EOS: end,
        Position.FIRST_PAD: end + 1,
        Position.LAST_PAD: last,
        Position.FIRST_TEXT: min(before, end),
        Position.FIRST_SUBJECT: first,
        Position.MIDDLE_SUBJECT: (first + subject) // 2,
        Position.AFTER_SUBJECT: min(subject + 1, end),
        Position.LAST_TEXT: max(before, end - 1),
        Position.EARLY_PAD: min(end + 4, last),
        **{flag: max(min(end + 1, last), round(share * last)) for flag, share in _SHARES.items()},
    }
    tokens = range(before, end + 1) if positions & Position.TOKENS else ()
    tail = range(end + 1, context_length) if positions & Position.TAIL and not padded else ()
    rows = (*(row for flag, row in places.items() if positions & flag), *tokens, *tail)
    return rows if padded else tuple(min(row, last) for row in rows)


def counterparts(target: TokenSpan, anchor: TokenSpan, before: int) -> tuple[int, ...]:
    """For each text token of a prompt, and its end token, the row of its anchor prompt that it
    should become.

    What both begin and end with pairs off word by word. In between stand the names, whose tokens
    pair off from the last one back; where the anchor's is the shorter its first token stands for
    the rest. An anchor without text lends its rows at the same places.
    """
    if not anchor.ids:
        return tuple(row + before for row in range(len(target.ids) + 1))
    head = _shared(target.ids, anchor.ids)
    room = min(len(target.ids), len(anchor.ids)) - head
    tail = min(_shared(target.ids[::-1], anchor.ids[::-1]), room)
    shift = len(anchor.ids) - len(target.ids)
    first = min(head, len(anchor.ids) - 1)
    middle = len(target.ids) - tail
    rows = [
        i if i < head else max(first, i + shift) if i < middle else i + shift
        for i in range(len(target.ids))
    ]
    return tuple(row + before for row in (*rows, len(anchor.ids)))


def row_key(span: TokenSpan, row: int, before: int = 1) -> RowKey:
    """What a row of a causal encoder depends on: the tokens up to it. Rows with equal keys are the
    same row.
    """
    tokens = max(0, row + 1 - before)
    return span.ids[:tokens], max(0, tokens - len(span.ids))


StreamKey = tuple[int, RowKey]
"""First row of the stream, and what a row of it depends on."""


@dataclass(frozen=True)
class Stream:
    """What stands before the text, the text, end token and padding: at most `length` rows from row
    `first` on.
    """

    token_ids: Callable[[str], Sequence[int]]
    """Tokens of the literal text, without start and end tokens; no weights, embeddings or
    wildcards.
    """
    length: int
    """Rows of a padded prompt, or the most that one without padding may have."""
    first: int = 0
    before: int = 1
    """Rows before the text: a start token, the beginning of a template, or none."""
    causal: bool = True
    """Whether a row depends on the text before it alone (CLIP), and not on what follows (T5
    does).
    """
    padding: Padding = "speaks"
    after: int = 1
    """Rows that close a prompt: the end token, the tail of a template, or none."""

    def locate(self, prompt: Prompt) -> TokenSpan:
        """Where the name ends among this stream's tokens."""
        return locate(prompt, self.token_ids, self.length - self.after + 1, self.before)

    def count(self, span: TokenSpan) -> int:
        """Rows of a prompt that know its text."""
        return self.length if self.padding == "speaks" else self.before + len(span.ids) + self.after

    def whole(self, span: TokenSpan) -> range:
        """All rows of a prompt that differ from each other: of silent padding the first stands for
        the rest.
        """
        silent = self.padding == "silent" and self.count(span) < self.length
        return range(self.first, self.first + self.count(span) + silent)

    def spread(self, positions: Position) -> Position:
        """`SPREAD`, and without padding `ALL`, as what they mean for this kind of encoder."""
        kind = "causal" if self.causal else "bidirectional"
        if self.padding != "speaks":
            kind += ", no padding"
            if positions & Position.ALL:
                positions = positions & ~Position.ALL | MANY
        if not positions & Position.SPREAD:
            return positions
        return positions & ~Position.SPREAD | SPREAD_OVER[kind]

    def rows(self, positions: Position, span: TokenSpan) -> tuple[int, ...]:
        """Rows of the whole prompt that stand for `positions`, one for each flag that stands for
        one row.
        """
        padded = self.padding == "speaks"
        own = row_indices(self.spread(positions), span, self.count(span), self.before, padded)
        return tuple(self.first + row for row in own)

    def paired_rows(
        self, positions: Position, span: TokenSpan, anchor: TokenSpan, empty_is_start: bool = False
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows in a prompt and, at the same positions, in its anchor prompt.

        An empty anchor prompt has no text: the row at the target's place stands in, or the start
        token. Without padding it is the row that closes the prompt.
        """
        wanted = self.spread(positions)
        rows = self.rows(wanted, span)
        if wanted & Position.ALL:
            return rows, self.rows(wanted, anchor)
        others = (
            list(self.rows(wanted & ~Position.TOKENS, anchor)) if wanted & ~Position.TOKENS else []
        )
        single = [flag for flag in Position if flag & wanted & ~MANY]
        if wanted & Position.TOKENS:
            last = self.first + self.count(anchor) - 1
            found = (self.first + row for row in counterparts(span, anchor, self.before))
            others[len(single) : len(single)] = [min(row, last) for row in found]
        if not anchor.ids:
            closing = self.first + min(self.before, self.count(anchor) - 1)
            for place, flag in enumerate(single):
                if flag & _OF_TEXT:
                    start = self.first if empty_is_start and self.before == 1 else rows[place]
                    others[place] = start if self.padding == "speaks" else closing
        return rows, tuple(others)

    def rows_from_name(self, span: TokenSpan) -> range:
        """The last subject token and everything after it, but never what stands before the text."""
        (own,) = self.rows(Position.LAST_SUBJECT, span)
        return range(max(own, self.first + self.before), self.first + self.count(span))

    def key(self, span: TokenSpan, row: int) -> StreamKey:
        """What a row depends on: the tokens up to it, or the whole text where the encoder is not
        causal.
        """
        own = row - self.first
        return self.first, row_key(span, own, self.before) if self.causal else (span.ids, own)
