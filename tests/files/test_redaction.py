"""Redaction that holds: whatever a name looks like and however a text spells it, a redacted file
does not show it.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speed_erase.speed_ops.certificate.warnings import fixed_text
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import FileError
from speed_erase.speed_ops.files.redaction import NameFinder, Redactor, refuse_leaks
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.provenance import build_metadata, read_provenance
from speed_erase.speed_ops.recipe import Recipe, RecipeConcept, RecipeRetain
from speed_erase.speed_ops.text.kinds import KINDS
from speed_erase.speed_ops.text.names import quoted

SALT = "pepper"
ODD = (
    *(
        "O'Brien",
        'Say "hi"',
        'Both "of" o\'them',
        "back\\slash",
        "C:\\new\\u00e9",
        "Zoë",
        "Ægir",
        "İstanbul",
    ),
    *(
        "Straße",
        "吉卜力",
        "梵高",
        "C++",
        "R&B",
        "<b>bold</b>",
        "a & b < c",
        "👩‍🚀",
        "Snoopy 🐶",
        "🦊",
        "می‌خواهم",
    ),
    *(
        "क्षत्रिय",
        "Q",
        "$7",
        "Van Gogh",
        "Vincent Van Gogh",
        "Gogh",
        "ALL CAPS",
        "...",
        "{curly}",
        "redacted:foo",
    ),
    *("café au lait", "x_y_z"),
)
OURS = (
    "style",
    "concept",
    "name",
    "erased",
    "weakened",
    "kept",
    "redacted",
    "prompts",
    "target",
    "art",
    "table",
)


def texts_in(value: object) -> Iterator[str]:
    """Every string in a JSON value that is a string of JSON, too, read with the reader's own
    eyes.
    """
    if isinstance(value, str):
        yield value
        try:
            inner = json.loads(value)
        except ValueError:
            return
        yield from texts_in(inner) if not isinstance(inner, str) else ()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


def shows(text: str, name: str) -> bool:
    """A plain search, that knows nothing of the finder's."""
    return name.casefold() in text.casefold()


def recipe_of(names: tuple[str, ...]) -> Recipe:
    half = len(names) // 2 or 1
    return Recipe(
        tuple(RecipeConcept(name, "", "style") for name in names[:half]),
        EraseSettings().to_dict(),
        retain=(
            RecipeRetain("artists", "ab" * 32),
            RecipeRetain("mine.txt", "cd" * 32, "style", names[half:]),
        ),
        contexts=tuple(template.text for template in KINDS["style"].templates),
    )


def certificate_of(names: tuple[str, ...]) -> dict[str, object]:
    worst = [[name, 0.1] for name in names]
    warnings = [f"{quoted(name)} is still there: 70% is left in prompts." for name in names]
    warnings += [f"The kept name {quoted(a)} is like {quoted(b)}." for a, b in pairwise(names)]
    return {
        "concepts": [{"name": name, "kind": "style", "verdict": "erased"} for name in names],
        "drift": [{"group": "kept", "where": "bare", "worst": worst}],
        "curve": {"in_the_way": worst},
        "warnings": warnings,
        "settings": {"method": "speed"},
    }


ESCAPES = {
    "as it is": lambda name: name,
    "in JSON": json.dumps,
    "in JSON in JSON": lambda name: json.dumps(json.dumps([name])),
    "in HTML": html.escape,
    "in HTML by numbers": lambda name: "".join(f"&#{ord(letter)};" for letter in name),
    "in repr": repr,
    "in ascii": ascii,
    "in capitals": str.upper,
    "decomposed": lambda name: "".join(f"\u200b{letter}" for letter in name),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("escape", ESCAPES)
def test_no_spelling_of_a_name_goes_unseen(name: str, escape: str) -> None:
    content = f"before, {ESCAPES[escape](name)}, after"
    with pytest.raises(
        FileError,
        match="The file would still show one of the names that it is to hide: nothing was",
    ):
        refuse_leaks(content, (name,), "The file")
    refuse_leaks("before, something else, after", (name,), "The file")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("art", "cartoon, artist, Bart"),
        ("Van Gogh", "Van Eyck and Gogh, a van"),
        ("Gogh", "Goghs"),
        ("C++", "C, C#, c, a+b"),
        ("R&B", "R and B, rb"),
        ("Zoë", "Zoe"),
        ("吉卜力", "吉力卜, 卜力"),
        ("O'Brien", "O. Henry Brien"),
        ("🦊", "a fox"),
    ],
)
def test_other_words_are_no_leak(name: str, text: str) -> None:
    refuse_leaks(text, (name,), "The file")


def test_a_name_inside_a_text_without_spaces_is_one() -> None:
    for text in ("吉卜力风格的画", "梵高风格", "の葛飾北斎展"):
        with pytest.raises(FileError):
            refuse_leaks(text, ("吉卜力", "梵高", "葛飾北斎"), "The file")


def test_our_own_words_are_no_leak() -> None:
    refuse_leaks("<style>the style of it</style>", ("style",), "The page", fixed="<style></style>")
    with pytest.raises(FileError, match="one of the names"):
        refuse_leaks(
            "<style>Van Gogh</style>", ("style", "Van Gogh"), "The page", fixed="<style></style>"
        )


written = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=12)
"""What may be a name."""


@given(st.lists(written, min_size=1, max_size=4), st.text(max_size=30))
def test_what_is_redacted_passes_the_last_look(names: list[str], text: str) -> None:
    mixed = text + " ".join(names) + text.join(names)
    hidden = Redactor(SALT).text(mixed, tuple(names))
    refuse_leaks(hidden, tuple(names), "The text", fixed="redacted")


def test_the_longest_name_goes_and_the_rest_of_the_text_stays() -> None:
    redact = Redactor(SALT)
    names = ("Van Gogh", "Vincent van Gogh", 'Say "hi"', "Gogh")
    hidden = redact.text('a room of vincent VAN gogh\'s, with "Say "hi"" and Goghs', names)
    assert (
        hidden == f'a room of {redact("Vincent van Gogh")}\'s, with "{redact(names[2])}" and Goghs'
    )
    assert redact.text("nothing of it", names) == "nothing of it"


def test_a_text_that_hides_a_name_in_escapes_is_hidden_as_a_whole() -> None:
    text = json.dumps({"ss_tag_frequency": {"Zoë": 3}})
    assert "\\u00eb" in text and Redactor(SALT).text(text, ("Zoë",)).startswith("redacted:")


def test_a_hundred_thousand_names_take_a_moment() -> None:
    names = tuple(f"Painter {i} von Stadt{i % 977}" for i in range(100_000))
    content = json.dumps([Redactor(SALT)(name) for name in names])
    start = time.perf_counter()
    refuse_leaks(content, names, "The recipe")
    with pytest.raises(FileError):
        refuse_leaks(content + " painter 77777 VON stadt594", names, "The recipe")
    # It takes two seconds; comparing every name with every word would take hours.
    assert time.perf_counter() - start < 30


def test_redacted_recipes_and_headers_show_no_odd_name() -> None:
    recipe = recipe_of(ODD)
    own = {
        "modelspec.title": f"A model of {ODD[0]}",
        "about": "\n".join(ODD),
        "tags": json.dumps(dict.fromkeys(ODD, 1)),
    }
    metadata = build_metadata(
        by_name("sd1"),
        "checkpoint",
        recipe,
        certificate_of(ODD),
        title=f"{ODD[0]} (erased)",
        existing=own | {"format": "pt", "author": "somebody"},
        others=[{"more": f"also {ODD[5]}"}],
        salt=SALT,
        fixed=fixed_text(),
    )
    assert (
        metadata["more"] == f"also {Redactor(SALT)(ODD[5])}"
        and "author" not in metadata
        and "format" not in metadata
    )
    found = list(texts_in(metadata))
    for name in ODD:
        if len(name) > 2 and name != "...":  # a single letter stands in any text
            assert not [text for text in found if shows(text, name)], name
    said = read_provenance(metadata)
    assert said is not None and said.recipe is not None and said.recipe.redacted
    proof = said.certificate
    assert [one["name"] for one in proof["concepts"]] == [Redactor(SALT)(name) for name in ODD]
    assert (
        proof["warnings"][0]
        == f"{quoted(Redactor(SALT)(ODD[0]))} is still there: 70% is left in prompts."
    )
    assert proof["settings"] == {"method": "speed"} and proof["concepts"][0]["kind"] == "style"


def test_names_that_are_our_own_words_leave_our_words_alone() -> None:
    """A hash in the place of a word that everybody knows would tell the name."""
    sentence = (
        f"The kept name {quoted('style')} is nearly the same as the concept {quoted('pop art')}."
    )
    facts = certificate_of(OURS) | {"warnings": [sentence, "No concept was kept."]}
    metadata = build_metadata(
        by_name("sd1"), "lora", recipe_of(OURS), facts, salt=SALT, fixed=fixed_text()
    )
    proof = json.loads(metadata["speed.certificate"])
    redact = Redactor(SALT)
    assert [one["name"] for one in proof["concepts"]] == [redact(name) for name in OURS]
    assert proof["concepts"][0]["kind"] == "style" and proof["concepts"][0]["verdict"] == "erased"
    assert proof["drift"][0]["group"] == "kept" and proof["settings"] == {"method": "speed"}
    names = (
        f"The kept name {quoted(redact('style'))} is nearly the same as the concept"
        f" {quoted(redact('pop art'))}."
    )
    assert proof["warnings"] == [names, "No concept was kept."]


def test_a_kept_name_that_contains_a_secret_is_hidden_as_a_whole() -> None:
    recipe = Recipe((RecipeConcept("Van Gogh", "art", "style"),), {})
    facts = {"drift": [{"worst": [["Art Nouveau", 0.1], ["Monet", 0.1]]}]}
    proof = json.loads(
        build_metadata(by_name("sd1"), "lora", recipe, facts, salt=SALT)["speed.certificate"]
    )
    assert [name for name, _ in proof["drift"][0]["worst"]] == [
        Redactor(SALT)("Art Nouveau"),
        "Monet",
    ]


def test_what_cannot_be_hidden_is_refused() -> None:
    recipe = Recipe((RecipeConcept("Van Gogh", "art", "style"),), {})
    with pytest.raises(FileError, match="name of an entry in the header would still show"):
        build_metadata(
            by_name("sd1"), "checkpoint", recipe, {}, existing={"van gogh": "1"}, salt=SALT
        )


def test_nothing_is_written_should_redaction_ever_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last look does not trust what went before it."""
    recipe = Recipe((RecipeConcept("Van Gogh", "art", "style"),), {})
    with monkeypatch.context() as patch:
        patch.setattr(Redactor, "certificate", lambda self, facts, *rest: dict(facts))
        with pytest.raises(
            FileError, match="certificate in the header would still show one of the names"
        ):
            build_metadata(
                by_name("sd1"),
                "lora",
                recipe,
                certificate_of(("Van Gogh",)),
                salt=SALT,
                fixed=fixed_text(),
            )
    with monkeypatch.context() as patch:
        patch.setattr(Redactor, "text", lambda self, text, names: text)
        with pytest.raises(FileError, match=r"modelspec\.title in the header would still show"):
            build_metadata(
                by_name("sd1"), "lora", recipe, {}, title="Eraser for van_gogh-v2", salt=SALT
            )
    monkeypatch.setattr(Recipe, "_redacted", lambda self, redact: self)
    with pytest.raises(FileError, match="redacted recipe would still show 2 of the names"):
        recipe.redacted_with(SALT)


def test_machine_words_of_a_header_stay() -> None:
    recipe = replace(
        recipe_of(("stable", "Monet", "pt", "v1")), concepts=(RecipeConcept("Monet", "", "style"),)
    )
    existing = {
        "modelspec.architecture": "stable-diffusion-v1",
        "format": "pt",
        "ss_base_model_version": "sd_v1",
    }
    metadata = build_metadata(
        by_name("sd1"), "checkpoint", recipe, {}, existing=existing, salt=SALT
    )
    assert metadata["modelspec.architecture"] == "stable-diffusion-v1" and "format" not in metadata


def test_only_true_hashes_count_as_hidden_already() -> None:
    redact = Redactor(SALT)
    assert (
        redact(redact("Monet")) == redact("Monet") and redact("redacted:Monet") != "redacted:Monet"
    )
    assert redact("Mo\u200bnet") == redact(" monet") == redact("MONET")


@given(st.text(max_size=20), st.lists(written, max_size=4))
def test_replacing_leaves_nothing_to_find(text: str, names: list[str]) -> None:
    finder = NameFinder(names)
    assert not finder.found(finder.replace(text + " ".join(names), lambda name: "\x00"))
