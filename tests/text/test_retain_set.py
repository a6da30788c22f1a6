"""Retain sets: reading, union, limit, and the names a target takes with it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speed_erase.speed_ops.errors import FileError, InputError, SettingsError, SpeedError
from speed_erase.speed_ops.text import retain_set as retain_module
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.kinds import BUILTIN_KINDS
from speed_erase.speed_ops.text.names import WordIndex
from speed_erase.speed_ops.text.retain_set import (
    RetainSet,
    builtin_retain,
    builtin_retain_sets,
    drop_targets,
    parse_retain,
    parse_retain_json,
    parse_retain_table,
    read_retain,
    union,
)


def test_every_format_gives_the_same_set(tmp_path: Path) -> None:
    names = ["Claude Monet", "Dürer, Albrecht", "Hokusai"]
    (tmp_path / "a.txt").write_text(
        "# list\nClaude  Monet\nDürer, Albrecht # d.\n\nHokusai\nHOKUSAI\n", "utf-8-sig"
    )
    (tmp_path / "b.csv").write_text(
        'id,Artist\n1,Claude Monet\n2,"Dürer, Albrecht"\n3,Hokusai\n4,\n', "utf-8-sig"
    )
    (tmp_path / "c.json").write_text(json.dumps(names), "utf-8-sig")
    (tmp_path / "d.json").write_text(json.dumps({"names": names, "more": 1}), "utf-8")
    sets = [read_retain(tmp_path / file) for file in ("a.txt", "b.csv", "c.json", "d.json")]
    assert all(retain.names == tuple(names) for retain in sets)
    assert len({retain.sources[0].sha256 for retain in sets}) == 1
    assert sets[0].sources[0].count == 3


def test_column_is_chosen_by_name() -> None:
    text = "name,title\nA,B\n"
    assert parse_retain_table(text).names == ("A",)
    assert parse_retain_table(text, column="Title").names == ("B",)
    with pytest.raises(InputError, match="name, title"):
        parse_retain_table(text, column="painter")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "3",
        '{"names": 3}',
        "[1]",
        '["a", null]',
        "[" * 100_000,
        '{"a": ["b"]}',
        "1" * 10_000,
        '["\\ud800"]',
    ],
)
def test_bad_json_is_refused_by_its_label(text: str) -> None:
    with pytest.raises(InputError, match="j"):
        parse_retain_json(text, "j")


def test_union_keeps_first_source_and_all_names() -> None:
    first, second = parse_retain("Monet\nManet", "one", "style"), parse_retain("MONET\nDali", "two")
    joined = first | second
    assert joined.names == ("Monet", "Manet", "Dali")
    assert [joined.sources[i].label for i in joined.origins] == ["one", "one", "two"]
    assert (
        joined.kind_of_name(0, "person") == "style" and joined.kind_of_name(2, "person") == "person"
    )
    assert union([]) == RetainSet()
    assert union([first, second]) == joined


@given(
    st.lists(st.text("abcdef ", min_size=1).filter(str.strip), min_size=1, max_size=60),
    st.integers(1, 70),
)
def test_limit_does_not_depend_on_order(names: list[str], count: int) -> None:
    retain, reverse = parse_retain("\n".join(names)), parse_retain("\n".join(reversed(names)))
    assert len(retain.limit(count)) == min(count, len(retain))
    assert retain.sha256 == reverse.sha256
    keys = [
        {name.casefold() for name in limited.limit(count).names} for limited in (retain, reverse)
    ]
    assert keys[0] == keys[1]


def test_limit_spreads_over_the_alphabet() -> None:
    retain = parse_retain("\n".join(f"{letter}{i}" for letter in "abcdefghij" for i in range(10)))
    assert {name[0] for name in retain.limit(10).names} == set("abcdefghij")
    with pytest.raises(SettingsError):
        retain.limit(0)


def test_drop_targets_by_whole_words() -> None:
    concepts = parse_concepts("Van Gogh | Vincent\nart -> painting", "style")
    names = (
        "van gogh\nThe VAN  GOGH Museum\nvan Gogh's room\nVincent Price\ncartoon\nArt"
        " Deco\nGogh\nMonet\nvan-gogh"
    )
    retained, dropped = drop_targets(parse_retain(names), concepts)
    assert retained.names == ("cartoon", "Gogh", "Monet")
    assert len(dropped) == 6
    assert len(retained.origins) == len(retained.names)


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "cc", "d"]), min_size=1, max_size=3), max_size=5),
    st.data(),
)
def test_word_search_equals_brute_force(phrases: list[list[str]], data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(["a", "b", "cc", "d", "ca"]), max_size=6))
    expected = any(words[i : i + len(p)] == p for p in phrases for i in range(len(words)))
    retain = WordIndex(" ".join(p) for p in phrases).match(", ".join(words).upper())
    assert (retain is not None) == expected


def test_an_underscore_parts_words() -> None:
    assert WordIndex(["van gogh"]).match("van_gogh_style") == "van gogh"
    assert WordIndex(["gogh"]).match("vangogh_style") is None


def test_an_emoji_is_found_as_it_stands() -> None:
    assert WordIndex(["🤖"]).match("robot🤖s") == "🤖"
    assert WordIndex(["🤖", ""]).match("robots") is None


def test_a_hundred_thousand_lines_do_not_hurt() -> None:
    text = "\n".join(f"Painter {i} von Stadt{i % 977} # note" for i in range(100_000))
    concepts = parse_concepts("\n".join(f"Painter {i}" for i in range(0, 1000, 2)), "style")
    start = time.perf_counter()
    retain = parse_retain(text)
    retained, dropped = drop_targets(retain, concepts)
    seconds = time.perf_counter() - start
    assert len(retain) == 100_000 and len(dropped) == 500 and len(retained) == 99_500
    # Far above what it takes (0.5 s); a quadratic step would take minutes.
    assert seconds < 10


def test_names_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(InputError, match=r"^typed, line 2: "):
        parse_retain("a\n" + "b" * 400)


def test_huge_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "huge.txt"
    with file.open("wb") as handle:
        handle.truncate(17 * 2**20)
    with pytest.raises(FileError, match="16 MB"):
        read_retain(file)


def test_more_names_than_a_list_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retain_module, "MAX_NAMES", 3)
    assert len(parse_retain("a\nb\nA\nc")) == 3
    with pytest.raises(InputError):
        parse_retain("a\nb\nc\nd")


@given(st.binary(max_size=300), st.sampled_from([".txt", ".csv", ".json"]))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str
) -> None:
    file = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    file.write_bytes(content)
    try:
        read_retain(file)
    except SpeedError as error:
        assert str(error)


def test_builtin_sets_carry_their_kind() -> None:
    assert builtin_retain_sets() == tuple(sorted(BUILTIN_KINDS))
    for name, kind in BUILTIN_KINDS.items():
        assert builtin_retain(name).kind_of_name(0, "") == kind
    joined = builtin_retain("artists") | builtin_retain("scenes")
    kinds = {joined.kind_of_name(i, "person") for i in (0, len(joined) - 1)}
    assert kinds == {"style", "caption"}
    with pytest.raises(FileError, match="artists"):
        builtin_retain("artist")


def test_builtin_sets_are_read_once() -> None:
    assert builtin_retain("people") is builtin_retain("people")
