"""Names: what cannot be seen is not part of one, and lists come from files, pipes and standard
input alike.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import unicodedata
from contextlib import suppress
from pathlib import Path

import pico
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speed_erase.speed_ops.errors import FileError, InputError, NotFoundError
from speed_erase.speed_ops.recipe import Recipe, RecipeConcept, RecipeRetain, job_of
from speed_erase.speed_ops.text.concept_list import (
    parse_concept_table,
    parse_concepts,
    read_concepts,
)
from speed_erase.speed_ops.text.names import (
    MAX_BYTES,
    WordIndex,
    fold,
    list_label,
    quoted,
    read_text_file,
    same_name_key,
)
from speed_erase.speed_ops.text.retain_set import (
    parse_retain,
    parse_retain_json,
    parse_retain_table,
    read_retain,
    union,
)

INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u180b\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202e\u2060\u2066\u206a\u3164"
    "\ufe00\ufe0f\ufeff\uffa0\ufff9\U0001d173\U0001bca0\U000e0001\U000e0041\U000e007f\U000e0100"
)
NEEDED = {
    "emoji family": "👩‍👩‍👧",
    "emoji with a colour sign": "❤️‍🔥",
    "skin tone": "👨🏽‍🦰",
    "runner to the right": "🏃‍➡️",
    "flag of a region": "🏴󠁧󠁢󠁥󠁮󠁧󠁿 team",
    "rainbow flag": "🏳️‍🌈",
    "keycap": "1️⃣ artist",
    "umbrella": "☂️",
    "Persian": "می‌خواهم",
    "Sinhala": "ශ්‍රී ලංකා",
    "Malayalam chillu at the end": "അവന്‍",
    "Hindi": "क्‍ष",
    "Kannada": "ರ‍್ಯ",
    "Mongolian": "ᠮᠣᠩᠭᠣᠯ᠎ᠠ",
    "Mongolian variant": "ᠠ᠋ᠨ",
    "Han variant": "葛\U000e0100飾北斎",
}


@pytest.mark.parametrize("mark", INVISIBLE, ids=lambda mark: f"U+{ord(mark):04X}")
def test_what_cannot_be_seen_is_no_part_of_a_name(mark: str) -> None:
    for written in (f"Van{mark}Gogh", f"{mark}VanGogh{mark}", f"V{mark}{mark}anGog{mark}h"):
        assert fold(written) == "VanGogh" and same_name_key(written) == "vangogh"
    assert fold(mark) == fold(f" {mark} ") == ""
    assert fold(f"Zo{mark}e\u0308") == fold(f"Zoe{mark}\u0308") == "Zoë", (
        "what it kept apart is composed"
    )
    assert WordIndex(["Van Gogh"]).match(f"the V{mark}an {mark} Go{mark}gh room") == "Van Gogh"


@pytest.mark.parametrize("name", NEEDED)
def test_what_a_script_or_an_emoji_is_written_with_stays(name: str) -> None:
    text = NEEDED[name]
    assert fold(text) == unicodedata.normalize("NFC", text)
    assert not parse_concepts(f"{text} -> art", "style").notes


@pytest.mark.parametrize(
    "name",
    [
        "a‍b",
        "می‌ ",
        "🏴󠁧",
        "🏴󠁧󠁢󠁥󠁮󠁧󠁢󠁥󠁮󠁧󠁿",
        "A\ufe0f",
        "007\ufe0f",
        "é\U000e0101",
        "د\u200c",
        "👩\u200dx",
    ],
    ids=ascii,
)
def test_the_same_characters_elsewhere_go(name: str) -> None:
    assert not {mark for mark in INVISIBLE if mark in fold(name)} and "\U000e0067" not in fold(name)


@given(st.text(st.sampled_from([*INVISIBLE, *"aZ1 é\u0308م‌क्ᠠ👩🏴❤葛", "\U000e0067"]), max_size=12))
def test_folding_twice_changes_nothing(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert same_name_key(same_name_key(text)) == same_name_key(text) == same_name_key(fold(text))


def test_every_way_in_takes_them_out_and_says_so() -> None:
    line = "Van\u200bGogh | Vin\u00adcent -\u200b> a\u2060rt"
    expected = ("VanGogh", ("Vincent",), "art")
    typed = parse_concepts(f"Monet\n{line}", "style")
    table = parse_concept_table(
        "name,aliases,anchor\nMonet,,\nVan\u200bGogh,Vin\u00adcent,a\u2060rt\n", "style", "t.csv"
    )
    recipe = Recipe((RecipeConcept("Van\u200bGogh", "a\u2060rt", "style", ("Vin\u00adcent",)),), {})
    stored = job_of(recipe)
    for concept, notes in (
        (typed[1], typed.notes),
        (table[1], table.notes),
        (stored.job.concepts[0], stored.notes),
    ):
        assert (concept.target, concept.aliases, concept.anchor) == expected
        (note,) = (note for note in notes if "nvisible" in note)
        assert all(name in note for name in ("'VanGogh'", "'Vincent'", "'art'"))
        assert "Monet" not in note
    assert typed == parse_concepts("Monet\nVanGogh | Vincent -> art", "style"), (
        "the note is not part of what is erased"
    )
    many = parse_concepts("\n".join(f"na\u200bme {i}" for i in range(20)), "style").notes
    assert len(many) == 1 and "15 more" in many[0]


def test_a_name_of_nothing_else_is_empty() -> None:
    with pytest.raises(InputError, match=r"^Line 2: "):
        parse_concepts("Monet\n\u200b\u2060 -> art", "style")
    with pytest.raises(InputError, match=r"^Line 1: "):
        parse_concepts("Monet | \u200b -> art", "style")
    with pytest.raises(FileError):
        Recipe.from_json(
            Recipe((RecipeConcept("x", "", "style"),), {}).to_json().replace('"x"', '"\\u200b"')
        )


def test_hidden_twins_are_merged_before_the_work() -> None:
    concepts = parse_concepts("Van Gogh\nVan\u200b Gogh", "style")
    assert len(concepts) == 1 and concepts.notes


def test_kept_names_lose_them_too_and_are_counted() -> None:
    sets = [
        parse_retain("Mo\u200bnet\nManet\n\u2060\nDali\u200e"),
        parse_retain_table("name\nMo\u200bnet\nManet\n\u2060\nDali\u200e\n"),
        parse_retain_json('["Mo\u200bnet", "Manet", "\\u2060", "Dali\\u200e"]'),
    ]
    for names in sets:
        assert names.names == ("Monet", "Manet", "Dali") and names.cleaned == 3
        assert len(names.notes) == 1 and "3 names" in names.notes[0]
    assert union(sets[:2]).cleaned == 6 and union(sets[:2]).limit(1).notes
    assert sets[0] == parse_retain("Monet\nManet\nDali") and not parse_retain("Monet").notes
    stored = job_of(
        Recipe(
            (RecipeConcept("Van Gogh", "art", "style"),),
            {},
            retain=(RecipeRetain("mine", "", "", ("Mo\u200bnet",)),),
        )
    )
    assert stored.job.retain.names == ("Monet",) and any(
        "1 name to protect" in note for note in stored.notes
    )


def test_names_in_sentences_are_as_they_are() -> None:
    for name in ("O'Brien", 'Say "hi"', "back\\slash", "Zoë", "吉卜力", "👩‍🚀"):
        assert quoted(name) == f"'{name}'"
        (note,) = parse_concepts(f"{name} -> art\nMonet -> a {name} forgery", "style").notes
        assert quoted(name) in note


@pico.posix
def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed(content: bytes) -> None:
        with suppress(BrokenPipeError), pipe.open("wb") as handle:
            handle.write(content)

    for content, read in (
        ("\ufeffDürer -> art\r\n".encode(), lambda: read_concepts(pipe, "style")[0].target),
        ("Dürer\n".encode(), lambda: read_retain(pipe).names[0]),
    ):
        writer = threading.Thread(target=feed, args=(content,))
        writer.start()
        assert read() == "Dürer"
        writer.join()
    writer = threading.Thread(target=feed, args=(b"x" * (MAX_BYTES + 2**20),))
    writer.start()
    with pytest.raises(FileError, match="16 MB"):
        read_retain(pipe)
    writer.join()


@pico.posix
def test_process_substitution_and_devices(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"Monet\nManet\n")
    os.close(writing)
    names = read_retain(f"/dev/fd/{reading}")
    os.close(reading)
    assert names.names == ("Monet", "Manet") and names.sources[0].label == "a pipe"
    assert len(read_retain("/dev/null")) == 0
    with pytest.raises(FileError, match="16 MB"):
        read_retain("/dev/zero")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeffDürer\n".encode()), encoding="ascii")
    )
    names = read_concepts("-", "style")
    assert names[0].target == "Dürer" and names[0].where == "standard input, line 1"
    assert list_label(Path("/dev/stdin")) == "standard input"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    with pytest.raises(FileError, match="UTF-8"):
        read_retain("-")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(FileError, match="Standard input"):
        read_text_file(Path("-"))


def test_lists_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Dürer\n".encode())
    script = "from speed_erase.speed_ops.text.retain_set import read_retain\n"
    script += (
        f"import sys; sys.exit(read_retain({str(tmp_path / 'a.txt')!r}).names != ('D\\u00fcrer',))"
    )
    settings = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert (
        subprocess.run([sys.executable, "-c", pico.standalone(script)], env=settings).returncode
        == 0
    )


def test_folders_and_sockets_are_no_lists(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        read_concepts(tmp_path, "style")
    with pytest.raises(NotFoundError):
        read_retain(tmp_path / "none.txt")


@pytest.mark.parametrize("suffix", [".xlsx", ".docx", ".md", ".yaml", ".rtf", ".safetensors", ".1"])
def test_files_that_are_no_lists_of_names_are_refused(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"names{suffix}"
    file.write_bytes(b"Monet\n")
    for read in (lambda: read_concepts(file, "style"), lambda: read_retain(file)):
        with pytest.raises(FileError, match=r"\.txt.*\.csv or \.tsv"):
            read()


def test_the_endings_of_lists(tmp_path: Path) -> None:
    for name, content in (
        ("a", "Monet"),
        ("a.TXT", "Monet"),
        ("a.csv", "id,name\n1,Monet"),
        ("a.tsv", "id\tname\n1\tMonet"),
    ):
        (tmp_path / name).write_text(content, "utf-8")
        assert read_retain(tmp_path / name).names == ("Monet",)
        assert read_concepts(tmp_path / name, "style")[0].target == "Monet"
    (tmp_path / "a.json").write_text('["Monet"]', "utf-8")
    assert read_retain(tmp_path / "a.json").names == ("Monet",)
    with pytest.raises(FileError):
        read_concepts(tmp_path / "a.json", "style")


def test_a_label_is_one_line_of_text(tmp_path: Path) -> None:
    file = tmp_path / "my\nlist\x1b[31m\udcff"
    file.write_bytes(b"Monet\n")
    label = read_retain(file).sources[0].label
    assert label.isprintable() and label.startswith("my?list")
