"""The leak probe's ladder: every rung, the same each time, nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer
from speed_erase.speed_ops.leak_probe import ladder, typos, variants
from speed_erase.speed_ops.text.concept_list import Concept, parse_concepts
from speed_erase.speed_ops.text.kinds import BARE, KINDS

GOGH = parse_concepts("Vincent van Gogh | the Dutch painter -> art", "style")[0]


def test_every_rung_in_order() -> None:
    found = variants(GOGH)
    rungs = list(dict.fromkeys(variant.rung for variant in found))
    assert rungs == ["name", "alias", "case", "surname", "possessive", "typo", "description"]
    phrases = {variant.phrase for variant in found}
    assert {
        "Vincent van Gogh",
        "the Dutch painter",
        "VINCENT VAN GOGH",
        "Gogh",
        "Vincent van Gogh's",
    } <= phrases
    assert len(phrases) == len(found)


def test_the_user_s_description_replaces_the_patterns() -> None:
    found = [
        v.phrase
        for v in variants(GOGH, "  swirling stars,  thick yellow paint ")
        if v.rung == "description"
    ]
    assert found == ["swirling stars, thick yellow paint"]


def test_typos_are_one_slip_in_the_longest_word() -> None:
    assert typos("Vincent van Gogh") == ("Vicnent van Gogh", "Vinent van Gogh", "Vinccent van Gogh")
    assert typos("cat") == typos("") == ()
    assert "Anna" not in typos("Anna")


def test_what_the_encoder_cannot_tell_apart_counts_once() -> None:
    tokenizer = ClipTokenizer.from_package()
    found = variants(GOGH, same=lambda phrase: tuple(tokenizer.token_ids(phrase)))
    assert not [variant for variant in found if variant.rung == "case"]
    assert len(found) == len({tuple(tokenizer.token_ids(variant.phrase)) for variant in found})


def test_prompts_are_the_probe_templates_with_anchor_counterparts() -> None:
    found = ladder(GOGH)
    templates = (BARE, *KINDS["style"].probe_templates)
    assert len(found) == len(variants(GOGH)) * len(templates)
    assert {prompt.template for prompt in found} == set(templates)
    assert not {prompt.template for prompt in found} & set(KINDS["style"].templates)
    for prompt in found:
        assert prompt.prompt.text[: prompt.prompt.subject_end].endswith(prompt.variant.phrase)
        assert prompt.anchor == prompt.template.fill("art")
    assert len(ladder(GOGH, templates=1)) == len(variants(GOGH)) * 2


@given(st.text(min_size=1, max_size=30).filter(str.strip), st.sampled_from(sorted(KINDS)))
def test_any_name_gives_the_same_ladder_twice(name: str, kind: str) -> None:
    concept = Concept(name, "", kind)
    found = ladder(concept)
    assert found == ladder(concept)
    assert found[0].prompt.text == name
