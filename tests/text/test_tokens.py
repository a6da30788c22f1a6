"""The rows of a name are found anywhere in a prompt, and pair off with those of its anchor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer
from speed_erase.speed_ops.errors import InputError
from speed_erase.speed_ops.text.kinds import CAPTION, KINDS, Prompt, Template
from speed_erase.speed_ops.text.tokens import (
    EXTRA_KEPT_POSITIONS,
    IN_CONTEXT,
    Position,
    Stream,
    TokenSpan,
    counterparts,
)

TOKENIZER = ClipTokenizer.from_package()


@pytest.fixture
def package() -> ClipTokenizer:
    return TOKENIZER


TEMPLATES = [t for kind in KINDS.values() for t in (*kind.templates, *kind.probe_templates)]


@pytest.mark.parametrize(
    "name", ["Van Gogh", "cat", "Hayao Miyazaki", "H. R. Giger", "葛飾北斎", "Ke$ha!", "O'"]
)
def test_last_subject_token_is_found_in_every_template(package: ClipTokenizer, name: str) -> None:
    bare = tuple(package.token_ids(name))
    for template in TEMPLATES:
        prompt = template.fill(name)
        span = Stream(package.token_ids, 77).locate(prompt)
        assert span.ids == tuple(package.token_ids(prompt.text))
        if name[-1] in "!'" and template.text.split("{name}")[1][:1] in ("'", ","):
            assert 0 < span.subject <= len(span.ids)  # the marks run together: see below
        else:
            assert span.ids[span.subject - len(bare) : span.subject] == bare, template


def test_a_name_that_runs_into_what_follows(package: ClipTokenizer) -> None:
    prompt = Template("{name}'s house", "a house{}").fill("Ke$ha!")
    span = Stream(package.token_ids, 77).locate(prompt)
    ending = span.ids[span.subject - 1]
    assert ending in package.token_ids("!'") and ending not in package.token_ids("house")


some_text = st.text(
    st.sampled_from("abcd sS'\u2019.,!-1\u00e9\u0301\u845b\U0001f916 \t"), max_size=30
)


@given(some_text, some_text, some_text)
def test_location_is_inside_the_text(before: str, name: str, after: str) -> None:
    prompt = Prompt(before + name + after, len(before + name))
    try:
        span = Stream(TOKENIZER.token_ids, 77).locate(prompt)
    except InputError:
        return
    assert 0 <= span.subject <= len(span.ids) <= 75


def test_rows_of_each_position() -> None:
    span = TokenSpan((5, 6, 7, 8), 3)
    assert CAUSAL.rows(IN_CONTEXT, span) == (3, 5, 6, 76)
    assert CAUSAL.rows(Position.LAST_SUBJECT, span) == (3,)
    assert CAUSAL.rows(Position.EOS | Position.LAST_PAD, span) == (5, 76)
    assert CAUSAL.rows(Position.ALL, span) == tuple(range(1, 77))


def test_prompts_at_the_limit() -> None:
    full = TokenSpan(tuple(range(75)), 75)
    assert CAUSAL.rows(Position.LAST_SUBJECT | Position.EOS, full) == (75, 76)
    with pytest.raises(InputError):
        CAUSAL.rows(Position.FIRST_PAD, full)
    with pytest.raises(InputError, match=r"76 .* 75"):
        Stream(lambda text: list(range(76)), 77).locate(Prompt.bare("x"))


def test_solve_and_probe_templates_are_disjoint_and_varied() -> None:
    for kind in KINDS.values():
        solve = {template.text for template in kind.templates}
        probe = {template.text for template in kind.probe_templates}
        assert (
            18 <= len(kind.templates) == len(solve) <= 22
            and 4 <= len(kind.probe_templates) == len(probe) <= 6
        )
        assert not solve & probe
        assert not {t.plain for t in kind.templates} & {t.plain for t in kind.probe_templates}
        for texts in (solve, probe):
            assert any(t.startswith("{name}") for t in texts) and any(
                t.endswith("{name}") for t in texts
            )
            assert any("{name}'s" in t for t in texts)
            assert any(not t.startswith("{name}") and not t.endswith("{name}") for t in texts)


def test_templates_read_naturally_without_the_name() -> None:
    for template in TEMPLATES:
        assert template.text.count("{name}") == template.plain.count("{}") == 1
        plain, filled = template.fill(""), template.fill("Zorn")
        assert plain.text == " ".join(plain.text.split()) and plain.subject_end > 0
        assert "{" not in plain.text and not plain.text.startswith(",")
        assert filled.text == template.text.replace("{name}", "Zorn")
        assert filled.text[: filled.subject_end].endswith("Zorn")


def test_captions_take_no_template() -> None:
    assert CAPTION.templates[0].fill("a house by the sea").text == "a house by the sea"
    assert CAPTION.name not in KINDS


CAUSAL = Stream(lambda text: (), 77)
BOTH_WAYS = Stream(lambda text: (), 77, causal=False)


def test_the_spread_of_a_causal_encoder_goes_from_the_name_to_the_last_padding():
    span = TokenSpan((5, 6, 7, 8, 9, 10), 4, 3)  # a name of two tokens, two words after it
    rows = CAUSAL.rows(Position.INFORMATIVE, span)
    assert set(rows) == {4, 5, 6, 7, 8, 11, 15, 23, 38, 57, 76}
    assert min(rows) == 4, "what stands before the name's last token belongs to others, too"


def test_kept_names_have_the_first_word_and_their_own_first_tokens_besides():
    span = TokenSpan((5, 6, 7, 8, 9), 4, 2)
    assert set(CAUSAL.rows(EXTRA_KEPT_POSITIONS, span)) == {1, 2, 3}


def test_a_bidirectional_encoder_gives_all_its_words():
    span = TokenSpan((5, 6, 7), 2, 1)
    assert set(BOTH_WAYS.rows(Position.INFORMATIVE, span)) == {1, 2, 3, 4, 5, 76}


def test_padding_rows_never_fall_inside_a_long_text():
    long = TokenSpan(tuple(range(60)), 50, 49)
    pads = (
        Position.EARLY_PAD | Position.PAD_20 | Position.PAD_30 | Position.PAD_50 | Position.PAD_75
    )
    assert min(CAUSAL.rows(pads, long)) == 62


def test_a_prompt_and_its_anchor_pair_off_word_by_word():
    target, anchor = TokenSpan((1, 2, 50, 51, 52, 3, 4), 5, 3), TokenSpan((1, 2, 60, 3, 4), 3, 3)
    assert counterparts(target, anchor, 1) == (1, 2, 3, 3, 3, 4, 5, 6)
    longer = TokenSpan((1, 2, 60, 61, 62, 63, 3), 6, 3)
    assert counterparts(TokenSpan((1, 2, 50, 51, 3), 4, 3), longer, 1) == (1, 2, 5, 6, 7, 8)
    assert counterparts(TokenSpan((50, 51), 2, 1), TokenSpan((), 0), 1) == (1, 2, 3)
    assert counterparts(TokenSpan((50, 51, 3), 2, 1), TokenSpan((3,), 0), 0) == (0, 0, 0, 1)


@pytest.mark.parametrize("stream", [CAUSAL, BOTH_WAYS])
@pytest.mark.parametrize(
    "positions",
    [
        Position.INFORMATIVE,
        Position.INFORMATIVE | EXTRA_KEPT_POSITIONS,
        IN_CONTEXT,
        Position.TOKENS,
    ],
)
def test_every_row_has_its_counterpart(stream, positions):
    target = TokenSpan((1, 2, 50, 51, 52, 3, 4), 5, 3)
    for anchor in (TokenSpan((1, 2, 60, 3, 4), 3, 3), TokenSpan((), 0), TokenSpan((1, 2, 3, 4), 2)):
        _, rows, anchor_rows = zip(*stream.paired_rows(positions, target, anchor), strict=True)
        assert len(rows) == len(anchor_rows)
        assert all(1 <= row < 77 for row in (*rows, *anchor_rows))


@given(
    st.lists(st.integers(1, 6), max_size=20), st.lists(st.integers(1, 6), min_size=1, max_size=20)
)
def test_counterparts_are_rows_of_the_anchor_in_order(ids, anchor_ids):
    target, anchor = (TokenSpan(tuple(tokens), len(tokens)) for tokens in (ids, anchor_ids))
    rows = counterparts(target, anchor, 1)
    assert len(rows) == len(ids) + 1 and rows[-1] == len(anchor_ids) + 1
    assert all(1 <= row <= len(anchor_ids) + 1 for row in rows)
    assert list(rows) == sorted(rows)


def _words(text: str) -> list[int]:
    return [sum(word.encode()) for word in text.split()]


TEMPLATE = Stream(_words, 40, before=3, padding="none", after=5)
"""As a chat model reads a prompt: three rows of a template, the text, five more."""
UNPADDED = Stream(_words, 40, before=0, causal=False, padding="none")
MASKED = Stream(_words, 40, before=0, causal=False, padding="masked")


def test_without_padding_a_name_has_the_rows_of_its_text_and_of_what_closes_it() -> None:
    span = TEMPLATE.locate(Template("a drawing of {name} here", "a drawing").fill("blue dog"))
    assert TEMPLATE.count(span) == 3 + 6 + 5
    # The last token of the name, the next, the last word, and the end with the rest of the
    # template.
    assert TEMPLATE.rows(Position.INFORMATIVE, span) == (7, 9, 8, 8, 10, 11, 12, 13)
    assert TEMPLATE.rows_from_name(span) == range(7, 14)
    for stream in (UNPADDED, MASKED):
        short = stream.locate(Prompt.bare("blue dog"))
        assert stream.rows(Position.INFORMATIVE, short) == (0, 1, 2)
        assert stream.rows(Position.ALL, short) == (0, 1, 2)
        assert max(stream.rows(IN_CONTEXT, short)) == 2, "no row beyond the prompt's own"


def test_pairs_without_padding_stay_inside_both_prompts() -> None:
    target, anchor, empty = (Prompt.bare(name) for name in ("big blue dog", "cat", ""))
    for stream in (TEMPLATE, UNPADDED, MASKED):
        span = stream.locate(target)
        for goal_prompt in (anchor, empty):
            goal = stream.locate(goal_prompt)
            for positions in (
                Position.INFORMATIVE,
                Position.ALL,
                IN_CONTEXT,
                Position.LAST_SUBJECT,
            ):
                _, rows, anchor_rows = zip(*stream.paired_rows(positions, span, goal), strict=True)
                assert len(rows) == len(anchor_rows)
                assert max(rows) < stream.count(span) and max(anchor_rows) < stream.count(goal)
    span, goal = TEMPLATE.locate(target), TEMPLATE.locate(empty)
    assert TEMPLATE.paired_rows(Position.LAST_SUBJECT, span, goal) == [
        (Position.LAST_SUBJECT, 5, 3)
    ], "what closes the empty prompt"
    pairs = TEMPLATE.paired_rows(Position.TAIL | Position.EOS, span, TEMPLATE.locate(anchor))
    _, rows, anchor_rows = zip(*pairs, strict=True)
    assert (rows, anchor_rows) == ((6, 7, 8, 9, 10), (4, 5, 6, 7, 8))


def test_the_whole_empty_prompt_has_one_row_of_silent_padding() -> None:
    empty = Prompt.bare("")
    streams = (TEMPLATE, UNPADDED, MASKED, Stream(_words, 40))
    assert [len(stream.distinct_rows(stream.locate(empty))) for stream in streams] == [8, 1, 2, 40]


def test_a_template_leaves_less_room() -> None:
    long = Prompt.bare(" ".join(["x"] * 33))
    with pytest.raises(InputError, match="32"):
        TEMPLATE.locate(long)


def test_the_end_of_a_template_comes_before_the_padding() -> None:
    stream = Stream(lambda text: [7] * len(text), 40, before=3, after=5)
    span = stream.locate(Prompt.bare("abc"))
    rows = stream.rows(Position.EOS | Position.FIRST_PAD | Position.EARLY_PAD, span)
    assert rows == (6, 11, 14)
    assert stream.rows(Position.TAIL, span) == (7, 8, 9, 10)
    informative = stream.rows(Position.INFORMATIVE, span)
    assert set(range(5, 12)) <= set(informative) and max(informative) == 39
    with pytest.raises(InputError):
        stream.rows(Position.FIRST_PAD, TokenSpan((7,) * 32, 32, 1))
