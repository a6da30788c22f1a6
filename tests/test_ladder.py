"""The leak probe's ladder: every rung, the same each time, nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer
from speed_erase.speed_ops.leak_probe import typos, variants
from speed_erase.speed_ops.text.concept_list import Concept, parse_concepts
from speed_erase.speed_ops.text.kinds import KINDS

GOGH = parse_concepts("Vincent van Gogh | the Dutch painter -> art", "style")[0]


def test_every_rung_in_order() -> None:
    found = variants(GOGH)
    rungs = list(dict.fromkeys(found.values()))
    assert rungs == ["name", "alias", "case", "surname", "possessive", "typo", "description"]
    assert {
        "Vincent van Gogh",
        "the Dutch painter",
        "VINCENT VAN GOGH",
        "Gogh",
        "Vincent van Gogh's",
    } <= found.keys()


def test_the_user_s_description_replaces_the_patterns() -> None:
    found = variants(GOGH, "  swirling stars,  thick yellow paint ")
    described = [phrase for phrase, rung in found.items() if rung == "description"]
    assert described == ["swirling stars, thick yellow paint"]


def test_typos_are_one_slip_in_the_longest_word() -> None:
    assert typos("Vincent van Gogh") == ("Vicnent van Gogh", "Vinent van Gogh", "Vinccent van Gogh")
    assert typos("cat") == typos("") == ()
    assert "Anna" not in typos("Anna")


def test_what_the_encoder_cannot_tell_apart_counts_once() -> None:
    tokenizer = ClipTokenizer.from_package()
    found = variants(GOGH, same=lambda phrase: tuple(tokenizer.token_ids(phrase)))
    assert "case" not in found.values()
    assert len(found) == len({tuple(tokenizer.token_ids(phrase)) for phrase in found})


@given(st.text(min_size=1, max_size=30).filter(str.strip), st.sampled_from(sorted(KINDS)))
def test_any_name_gives_the_same_ladder_twice(name: str, kind: str) -> None:
    concept = Concept(name, "", kind)
    found = variants(concept)
    assert list(found.items()) == list(variants(concept).items())
    assert next(iter(found)) == name
