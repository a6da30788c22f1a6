"""Which token rows carry a name in a prompt.

A prompt of `n` text tokens reaches a CLIP-fed model as `context_length` rows: row 0 is the start
token, rows `1..n` the text, row `n + 1` the end token, and the others padding. In a causal encoder
every row from the name on depends on it; the paper edits the last subject token alone. T5 has no
start token and is not causal: every row depends on the name. Other encoders pad with rows that
carry nothing (zeros, or masked), do not pad, or put a chat template's rows around the text.

Each tokenizer's rows are a stream. CLIP families have one, whose columns may come from two encoders
of the same tokens; where a second kind of encoder appends rows (T5 in SD3), a name is in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Flag, auto

from ..errors import InputError, Notice
from ..inputs import Padding
from .kinds import Prompt


class Position(Flag):
    """Rows of one prompt; combine with `|`."""

    LAST_SUBJECT = auto()  # the last token of the name (the paper's row)
    EOS = auto()  # the end token
    FIRST_PAD = auto()  # the first padding row
    LAST_PAD = auto()  # the last padding row: the last of the context
    ALL = auto()  # every row after the start token (the paper's rule for implicit concepts)
    FIRST_TEXT = auto()  # the first word: many prompts begin with it, so it must stay
    FIRST_SUBJECT = auto()  # the first token of the name
    MIDDLE_SUBJECT = auto()  # the token in the middle of the name
    AFTER_SUBJECT = auto()  # what follows the name: the next word, or the end token
    LAST_TEXT = auto()  # the last word
    EARLY_PAD = auto()  # the fourth padding row
    PAD_20 = auto()  # the padding row 20 % into the context; the next ones accordingly
    PAD_30 = auto()
    PAD_50 = auto()
    PAD_75 = auto()
    TOKENS = auto()  # every text token and the end token
    INFORMATIVE = auto()  # the rows of `informative_positions`, by the type of encoder
    TAIL = auto()  # every row after the end token, but for padding: the end of a template


IN_CONTEXT = Position.LAST_SUBJECT | Position.EOS | Position.FIRST_PAD | Position.LAST_PAD
"""Four rows: enough for a toy encoder, and a quarter too few for a real one."""
EXTRA_KEPT_POSITIONS = Position.FIRST_TEXT | Position.FIRST_SUBJECT | Position.MIDDLE_SUBJECT
"""Rows that only kept names have: no target needs them, so an edit could move them freely."""
SEVERAL_ROWS = Position.TOKENS | Position.TAIL
"""Flags with several rows each; these come after the rows of the other flags."""
_CLOSING_ROWS = Position.LAST_SUBJECT | Position.AFTER_SUBJECT | Position.LAST_TEXT | Position.EOS
_PADDING_SHARES = {
    Position.PAD_20: 0.2,
    Position.PAD_30: 0.3,
    Position.PAD_50: 0.5,
    Position.PAD_75: 0.75,
}
_TEXT_ROWS = EXTRA_KEPT_POSITIONS | _CLOSING_ROWS & ~Position.EOS
"""Rows that a prompt without text does not have."""


def informative_positions(causal: bool, padded: bool) -> Position:
    """Rows that carry a name, by the type of encoder (docs/research/limits.md, "Positions").

    A causal encoder (CLIP) carries it from its last token to the last padding, in a direction that
    changes on the way; earlier rows belong to other names as well ("Claude" to every Claude). In a
    bidirectional one (T5) every word carries it. `padded`: whether padding rows depend on the text;
    where they do not, fewer rows carry the name, and all of them are taken.
    """
    if causal:
        if not padded:
            return _CLOSING_ROWS | Position.TAIL
        shares = Position.PAD_20 | Position.PAD_30 | Position.PAD_50 | Position.PAD_75
        pads = Position.FIRST_PAD | Position.EARLY_PAD | shares | Position.LAST_PAD
        return _CLOSING_ROWS | pads
    if padded:
        return Position.TOKENS | Position.FIRST_PAD | Position.LAST_PAD
    return Position.TOKENS


@dataclass(frozen=True)
class TokenSpan:
    """A tokenized prompt."""

    ids: tuple[int, ...]
    """Text tokens, without start and end."""
    subject: int
    """Number of tokens up to the last subject token: its row after a start token; 0: no text."""
    first: int = 0
    """The same for the first subject token; 0: the prompt has no name."""


def long_name(text: str, tokens: int, limit: int) -> Notice:
    """What to know about a text of too many tokens for an encoder.

    Args:
        text: The text.
        tokens: How many it has.
        limit: How many the encoder takes.
    """
    shown = text if len(text) <= 60 else text[:57] + "..."
    return Notice(
        f"'{shown}' is {tokens} tokens long, but the text encoder takes {limit}. Shorten the name.",
        code="too_many_tokens",
        name=shown,
        tokens=tokens,
        limit=limit,
    )


def _shared_tokens(ids: Sequence[int], head: Sequence[int]) -> int:
    """Number of tokens at the start that two texts have in common."""
    count = 0
    while count < min(len(head), len(ids)) and head[count] == ids[count]:
        count += 1
    return count


def counterparts(target: TokenSpan, anchor: TokenSpan, before: int) -> tuple[int, ...]:
    """For each text token of a prompt, and its end token, the row of its anchor prompt that it
    should become.

    What both begin and end with pairs off word by word. In between are the names, whose tokens pair
    off from the last one back; where the anchor's name is shorter, its first token repeats. An
    anchor prompt without text has the same rows as the target's.

    Args:
        target: Tokens of the prompt.
        anchor: Tokens of its anchor prompt.
        before: Number of rows before the text.
    """
    target_count, anchor_count = len(target.ids), len(anchor.ids)
    if not anchor.ids:
        return tuple(range(before, before + target_count + 1))
    head = _shared_tokens(target.ids, anchor.ids)
    tail = _shared_tokens(target.ids[::-1], anchor.ids[::-1])
    tail = min(tail, min(target_count, anchor_count) - head)
    name_start = min(head, anchor_count - 1)
    rows: list[int] = []
    for index in range(target_count):
        from_end = index + anchor_count - target_count
        if index < head:
            rows.append(index)
        elif index < target_count - tail:
            rows.append(max(name_start, from_end))
        else:
            rows.append(from_end)
    return tuple(before + row for row in (*rows, anchor_count))


StreamKey = tuple[int, tuple[int, ...], int]
"""First row of the stream, the text tokens that a row depends on, and which row after them."""


@dataclass(frozen=True)
class Stream:
    """One tokenizer's run of rows: at most `length` from row `first` on."""

    token_ids: Callable[[str], Sequence[int]]
    """Tokens of the literal text alone; no weights, embeddings or wildcards."""
    length: int
    """Rows of a padded prompt, or the most that one without padding may have."""
    first: int = 0
    before: int = 1
    """Rows before the text: a start token, the beginning of a template, or none."""
    causal: bool = True
    """Whether a row depends only on the text before it (CLIP), and not on what follows (T5)."""
    padding: Padding = "informative"
    after: int = 1
    """Rows that close a prompt: the end token, the tail of a template, or none."""

    @property
    def padded(self) -> bool:
        """Whether padding rows carry the text."""
        return self.padding == "informative"

    def locate(self, prompt: Prompt) -> TokenSpan:
        """Finds the last subject token by tokenizing the prompt up to the end of the name.

        Where the last word runs into what follows (a name that ends in punctuation before `'s`),
        the two token lists differ inside that word; the first token that differs ends the name.
        """
        ids = tuple(self.token_ids(prompt.text))
        limit = self.length - self.after - self.before
        if len(ids) > limit:
            raise InputError(long_name(prompt.text, len(ids), limit))
        first = 0
        if prompt.subject_start is not None:
            lead = prompt.text[: prompt.subject_start].rstrip()
            first = min(len(ids), (_shared_tokens(ids, self.token_ids(lead)) if lead else 0) + 1)
        if prompt.subject_end == len(prompt.text):
            return TokenSpan(ids, len(ids), first)
        head = tuple(self.token_ids(prompt.text[: prompt.subject_end]))
        shared = _shared_tokens(ids, head)
        last = shared if shared == len(head) else min(shared + 1, len(ids))
        return TokenSpan(ids, last, min(first, last))

    def count(self, span: TokenSpan) -> int:
        """Number of rows that depend on the prompt's text."""
        return self.length if self.padded else self.before + len(span.ids) + self.after

    def distinct_rows(self, span: TokenSpan) -> range:
        """All rows of a prompt that differ from each other: masked padding counts as one row."""
        masked = self.padding == "masked" and self.count(span) < self.length
        return range(self.first, self.first + self.count(span) + masked)

    def resolve(self, positions: Position) -> Position:
        """Replaces `INFORMATIVE`, and without padding `ALL`, by what they mean for this encoder."""
        if positions & Position.ALL and not self.padded:
            positions = positions & ~Position.ALL | SEVERAL_ROWS
        if positions & Position.INFORMATIVE:
            informative = informative_positions(self.causal, self.padded)
            if self.causal and self.after > 1:
                informative |= Position.TAIL
            positions = positions & ~Position.INFORMATIVE | informative
        return positions

    def rows(self, positions: Position, span: TokenSpan) -> tuple[int, ...]:
        """Rows of the whole prompt at `positions`, one for each flag in the order of `Position`.

        Rows are not merged where two flags meet, so that a target's rows and its anchor's pair off
        one to one. A prompt without text has its first row for the last subject token. Without
        padding, the last row replaces all that would come after it.
        """
        positions = self.resolve(positions)
        before, end, last = self.before, len(span.ids) + self.before, self.count(span) - 1
        pad = end + self.after
        if positions & Position.ALL:
            return tuple(range(self.first + before, self.first + last + 1))
        if self.padded and positions & (Position.FIRST_PAD | Position.LAST_PAD) and pad > last:
            raise InputError(
                f"A prompt of {len(span.ids)} tokens has no padding row. Shorten the name."
            )
        subject = max(0, span.subject - 1 + before)
        first = span.first - 1 + before if span.first else subject
        single = {
            Position.LAST_SUBJECT: subject,
            Position.EOS: end,
            Position.FIRST_PAD: pad,
            Position.LAST_PAD: last,
            Position.FIRST_TEXT: min(before, end),
            Position.FIRST_SUBJECT: first,
            Position.MIDDLE_SUBJECT: (first + subject) // 2,
            Position.AFTER_SUBJECT: min(subject + 1, end),
            Position.LAST_TEXT: max(before, end - 1),
            Position.EARLY_PAD: min(pad + 3, last),
        }
        for flag, share in _PADDING_SHARES.items():
            single[flag] = max(min(pad, last), round(share * last))
        rows = [row for flag, row in single.items() if positions & flag]
        if positions & Position.TOKENS:
            rows += range(before, end + 1)
        if positions & Position.TAIL:
            rows += range(end + 1, pad)
        return tuple(self.first + (row if self.padded else min(row, last)) for row in rows)

    def paired_rows(
        self, positions: Position, span: TokenSpan, anchor: TokenSpan, empty_is_start: bool = False
    ) -> list[tuple[Position, int, int]]:
        """(flag, row in a prompt, row at the same position in its anchor prompt).

        Args:
            positions: Which rows.
            span: The target's prompt.
            anchor: The anchor's prompt. Without text, the row with the same index replaces a row of
                the text; without padding, the row that closes the prompt does.
            empty_is_start: Whether the start token does instead.
        """
        positions = self.resolve(positions)
        rows = self.rows(positions, span)
        if positions & Position.ALL:
            flags, anchor_rows = [Position.ALL] * len(rows), list(self.rows(positions, anchor))
            return list(zip(flags, rows, anchor_rows, strict=True))
        flags = [flag for flag in Position if flag & positions & ~SEVERAL_ROWS]
        anchor_rows = list(self.rows(positions & ~SEVERAL_ROWS, anchor))
        last = self.first + self.count(anchor) - 1
        for index, flag in enumerate(flags):
            if anchor.ids or not flag & _TEXT_ROWS:
                continue
            if not self.padded:
                anchor_rows[index] = min(self.first + self.before, last)
            elif empty_is_start and self.before == 1:
                anchor_rows[index] = self.first
            else:
                anchor_rows[index] = rows[index]
        if positions & Position.TOKENS:
            tokens = counterparts(span, anchor, self.before)
            anchor_rows += [min(self.first + row, last) for row in tokens]
        if positions & Position.TAIL:
            anchor_rows += self.rows(Position.TAIL, anchor)
        flags += [Position.TOKENS] * (len(rows) - len(flags))
        return list(zip(flags, rows, anchor_rows, strict=True))

    def rows_from_name(self, span: TokenSpan) -> range:
        """The last subject token and everything after it, but nothing before the text."""
        (subject,) = self.rows(Position.LAST_SUBJECT, span)
        return range(max(subject, self.first + self.before), self.first + self.count(span))

    def key(self, span: TokenSpan, row: int) -> StreamKey:
        """What a row depends on: the tokens up to it, or all text if the encoder is not causal.

        Rows with equal keys are equal.
        """
        index = row - self.first
        if not self.causal:
            return self.first, span.ids, index
        tokens = max(0, index + 1 - self.before)
        return self.first, span.ids[:tokens], max(0, tokens - len(span.ids))
