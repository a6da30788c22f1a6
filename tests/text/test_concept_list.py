"""Concept lists: what a user may type, and the sentence for what they may not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speed_erase.speed_ops.errors import FileError, InputError, SettingsError, SpeedError
from speed_erase.speed_ops.text import concept_list
from speed_erase.speed_ops.text.concept_list import (
    Concept,
    ConceptList,
    parse_concept_table,
    parse_concepts,
    read_concepts,
    read_lines,
)
from speed_erase.speed_ops.text.kinds import KINDS
from speed_erase.speed_ops.text.names import MAX_NAME, fold, same_name_key


def pairs(concepts: ConceptList) -> list[tuple[str, str]]:
    return [(concept.target, concept.anchor) for concept in concepts]


def test_lines_of_every_form() -> None:
    text = (
        "# painters\nVan Gogh -> art\n\n  Claude   Monet\nPicasso | Pablo Picasso → modern art  #"
        " cubist\nSnoopy ->\n"
    )
    concepts = parse_concepts(text, "style")
    assert pairs(concepts) == [
        ("Van Gogh", "art"),
        ("Claude Monet", KINDS["style"].anchor),
        ("Picasso", "modern art"),
        ("Snoopy", ""),
    ]
    assert concepts[2].phrases == ("Picasso", "Pablo Picasso")
    assert [concept.line for concept in concepts] == [2, 4, 5, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_anchor_comes_from_the_kind(kind: str) -> None:
    assert parse_concepts("thing one", kind)[0].anchor == KINDS[kind].anchor


@pytest.mark.parametrize(
    "name",
    ["Hulk (film)", "Crosby, Stills", "{a|b}"[:2] + "}", "C#", "(x:1.3)", "O'Neill-Smith", "$7"],
)
def test_marks_inside_names_are_literal(name: str) -> None:
    assert parse_concepts(name, "object")[0].target == name


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("Monet -> art\nMONET -> sketch", 2, "Keep one"),
        ("a -> A", 1, "itself"),
        ("a | b -> b", 1, "itself"),
        ("-> art", 1, "no name"),
        ("a | | b", 1, "alias is empty"),
        ("a -> b -> c", 1, "one arrow"),
        ("a -> b | c", 1, "before the arrow"),
        ("fine\n" + "x" * (MAX_NAME + 1), 2, "too long"),
        ("a\x00b", 1, "not text"),
        ("one <|endoftext|> two", 1, "not text"),
        ("half \ud800", 1, "not text"),
    ],
)
def test_refusals_name_the_line(text: str, line: int, words: str) -> None:
    with pytest.raises(InputError, match=f"(?i)line {line}: .*{words}"):
        parse_concepts(text, "style")


ARROWS = (
    *(
        "=>",
        "==>",
        "-->",
        "--->",
        "–>",
        "—>",
        "−>",
        "‐>",
        "‑>",
        "－>",
        "->>",
        "~>",
        "~~>",
        "<->",
        "<=>",
        "-＞",
        "＝＞",
    ),
    *(
        "- >",
        "— >",
        "⇒",
        "⟶",
        "⟹",
        "➔",
        "➜",
        "➝",
        "➞",
        "➡",
        "➡️",
        "➤",
        "⇨",
        "↦",
        "⇾",
        "↠",
        "⮕",
        "🠖",
        "￫",
    ),
)


@pytest.mark.parametrize("arrow", ARROWS)
def test_what_looks_like_an_arrow_is_answered_with_the_right_one(arrow: str) -> None:
    for text in (
        f"Monet\nVan Gogh {arrow} art",
        f"Monet\nVan Gogh{arrow}art",
        f"Monet\nVan Gogh | Vincent {arrow} art",
    ):
        with pytest.raises(InputError, match=r"^Line 2: .*->"):
            parse_concepts(text, "style")
    with pytest.raises(InputError, match=r"^t\.csv, line 2: .*->"):
        parse_concept_table(f"name\nVan Gogh {arrow} art", "style", "t.csv")


SIGNS = (
    *(
        "Spider-Man",
        "O'Neill - Smith",
        "Jean-Michel Basquiat",
        "a-b--c",
        "-",
        "--",
        "3-",
        "5 > 4",
        "> art <",
        ">_<",
    ),
    *(
        "a = b",
        "x >= y",
        "E=mc2",
        "=)",
        "~",
        "a~b",
        "🏃‍➡️",
        "➡️",
        "⇒",
        "↔",
        "🔜",
        "@beeple",
        "@user.name",
        "a@x.txt",
    ),
)


@pytest.mark.parametrize("name", SIGNS)
def test_other_dashes_and_signs_are_part_of_a_name(name: str) -> None:
    for written in (name, f"{name} -> thing", f"{name} → thing"):
        assert parse_concepts(written, "object")[0].target == name


@pytest.mark.parametrize(
    "name", ["@names.txt", "@my list.CSV", "@./names", "@~/lists/a", "@/tmp/x", "@C.xlsx", "@..\\a"]
)
def test_a_file_in_the_place_of_a_name_is_answered_with_the_way_to_give_one(name: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_concepts(name, "style")
    assert refusal.value.data["advice"] == "concept-file"


def test_without_comments_a_hash_is_part_of_the_name() -> None:
    for text in ("C #1", "#hashtag", "# 7"):
        assert parse_concepts(text, "style", comments=False)[0].target == text
    assert (
        len(parse_concepts("#hashtag", "style")) == 0
        and parse_concepts("C #1", "style")[0].target == "C"
    )


def test_default_anchor_clashes_with_itself() -> None:
    with pytest.raises(InputError, match=r"^Line 1: "):
        parse_concepts("Art", "style")


def test_unknown_kind_is_answered_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="'style'"):
        parse_concepts("x", "styles")


def test_appending_checks_again() -> None:
    first, second = (
        parse_concepts("Monet", "style"),
        parse_concepts("Manet\nMonet", "style", "more.txt"),
    )
    both = first + second
    assert [concept.target for concept in both] == ["Monet", "Manet"]
    (note,) = both.merged
    assert note.startswith("more.txt, line 2: ") and "line 1" in note
    with pytest.raises(InputError, match=r"^more\.txt, line 1: .*line 1"):
        first + parse_concepts("Monet -> person", "style", "more.txt")
    assert len(first + parse_concepts("Manet", "style")) == 2


@pytest.mark.parametrize(
    ("text", "phrases", "notes"),
    [
        ("Monet\nmonet", [("Monet",)], 1),
        ("Cafe\u0301 A\nx\nCafé  a", [("Café A",), ("x",)], 1),
        ("x\na | b | B", [("x",), ("a", "b")], 0),
        ("a | b\nc | b", [("a", "b", "c")], 1),
    ],
)
def test_a_repeated_name_counts_once(text: str, phrases: list[tuple[str, ...]], notes: int) -> None:
    listed = parse_concepts(text, "style")
    assert [concept.phrases for concept in listed] == phrases
    assert len(listed.merged) == notes and set(listed.merged) <= set(listed.notes)


def test_endless_lists_are_refused() -> None:
    with pytest.raises(InputError, match="10,001"):
        parse_concepts("\n".join(f"name {i}" for i in range(10_001)), "style")


def test_notes_say_what_is_odd_but_allowed() -> None:
    notes = parse_concepts(
        "Monet -> Manet\nManet -> art\nGogh -> a Gogh forgery\nDali -> art", "style"
    ).notes
    assert len(notes) == 2
    assert "Line 1" in notes[0] and "line 2" in notes[0]
    assert "'Gogh'" in notes[1]


def test_tables_by_column_name() -> None:
    text = (
        "\ufeff# our list\nID;Concept;Anchor;Aliases;Kind\n1;Van Gogh;;Vincent|van"
        " Gogh's;\n2;Snoopy;a dog;;character\n"
    )
    concepts = parse_concept_table(text, "style", "list.csv")
    assert pairs(concepts) == [("Van Gogh", "art"), ("Snoopy", "a dog")]
    assert concepts[0].aliases == ("Vincent", "van Gogh's")
    assert [concept.kind for concept in concepts] == ["style", "character"]
    assert concepts[1].where == "list.csv, line 4"


def test_quoted_cells_hold_commas_and_lines_are_counted() -> None:
    text = 'name,anchor\n"Crosby, Stills",band\n\n"two\nlines",x\n,x\n'
    with pytest.raises(InputError, match=r"^f\.csv, line 6: "):
        parse_concept_table(text, "person", "f.csv")
    concepts = parse_concept_table(text.removesuffix(",x\n"), "person", "f.csv")
    assert pairs(concepts) == [("Crosby, Stills", "band"), ("two lines", "x")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2", "target.*: a, b"),
        ("", "empty"),
        ("# only\n\n", "empty"),
        ("name\na->b", "arrow"),
        ("name,kind\na,painting", "painting"),
        ('name\n"' + "x" * 200_000, "line"),
    ],
)
def test_bad_tables(text: str, words: str) -> None:
    with pytest.raises(SpeedError, match=words):
        parse_concept_table(text, "style", "t.csv")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffMonet -> art\r\nDürer\r\n".encode())
    (tmp_path / "a.CSV").write_text("name\nMonet\n", "utf-8")
    assert pairs(read_concepts(tmp_path / "a.txt", "style")) == [("Monet", "art"), ("Dürer", "art")]
    assert pairs(read_concepts(tmp_path / "a.CSV", "style")) == [("Monet", "art")]
    (tmp_path / "latin.txt").write_bytes("Dürer".encode("latin-1"))
    for bad, words in (
        ("latin.txt", "UTF-8"),
        ("none.txt", "no list file"),
        (".", "is a folder"),
        ("\0", "no list|read"),
    ):
        with pytest.raises(FileError, match=words):
            read_concepts(tmp_path / bad, "style")


plain = st.text(
    st.characters(
        exclude_categories=("Cc", "Cs"), exclude_characters="|→#>＞￫@" + concept_list._OTHER_ARROWS
    ),
    min_size=1,
    max_size=20,
).filter(fold)


@given(st.lists(st.tuples(plain, st.lists(plain, max_size=2), plain), max_size=4))
def test_text_form_round_trips(entries: list[tuple[str, list[str], str]]) -> None:
    concepts = [
        Concept(fold(t), fold(a), "style", tuple(map(fold, al)), i + 1)
        for i, (t, al, a) in enumerate(entries)
    ]
    try:
        listed = ConceptList(tuple(concepts))
    except InputError:
        return
    again = parse_concepts(listed.as_text(), "style")
    assert [concept.as_line() for concept in again] == [concept.as_line() for concept in listed]
    assert not again.merged


@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for parse in (parse_concepts, parse_concept_table):
        try:
            parse(text, "style")
        except SpeedError as error:
            assert str(error)


@given(st.text(max_size=30))
def test_folding_is_stable(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert same_name_key(same_name_key(text)) == same_name_key(text)
    assert same_name_key(f"  {text}\t") == same_name_key(text)


@pytest.mark.parametrize(
    ("line", "anchor", "kind"),
    [
        ("Jane Doe || person", "person", "person"),
        ("Jane Doe -> woman || Person ", "woman", "person"),
        ("Snoopy | the beagle -> dog||character", "dog", "character"),
        ("gore -> || theme", "", "theme"),
        ("Van Gogh -> art", "art", "style"),
    ],
)
def test_a_line_may_have_a_kind_of_its_own(line: str, anchor: str, kind: str) -> None:
    (concepts,) = parse_concepts(line, "style")
    assert (concepts.anchor, concepts.kind) == (anchor, kind)


@pytest.mark.parametrize(
    "line", ["Snoopy || beagle", "Snoopy ||", "a -> b || ", "a || style || person"]
)
def test_another_word_after_the_mark_is_refused_as_it_always_was(line: str) -> None:
    with pytest.raises(ValueError, match="Line 1: "):
        parse_concepts(line, "style")


def test_a_list_of_several_kinds_is_written_with_them() -> None:
    listed = parse_concepts("Van Gogh\nJane Doe || person", "style")
    assert listed.as_text() == "Van Gogh -> art || style\nJane Doe -> person || person"
    assert parse_concepts(listed.as_text(), "object") == listed


def test_reading_lines_agrees_with_parsing() -> None:
    text = "Monet\n# note\nGoya | Paco -> art\nJane || person"
    assert [line.concept for line in read_lines(text, "style")] == list(
        parse_concepts(text, "style")
    )


def test_a_line_can_have_its_own_strength_and_keeps_it():
    (one, two, three) = parse_concepts("a -> b || 0.5\nc || object || 1.2\nd", "style")
    assert [(one.strength, one.kind), (two.strength, two.kind)] == [(0.5, "style"), (1.2, "object")]
    assert three.strength == 1 and "||" not in three.as_line()
    for concept in (one, two, three):
        (again,) = parse_concepts(concept.as_line(with_kind=True), "theme")
        assert again == replace(concept, line=1)
    table = parse_concept_table("name,strength\na,0.4\nb,\n", "style")
    assert [concept.strength for concept in table] == [0.4, 1.0]


@pytest.mark.parametrize("mark", ["0", "-1", "2.1", "1000"])
def test_a_strength_out_of_range_is_refused(mark):
    with pytest.raises(InputError):
        parse_concepts(f"a -> b || {mark}", "style")
