"""Phrases that a language model writes: what of an answer is used."""

from __future__ import annotations

import pytest

from speed_erase.speed_ops.text.concept_list import Concept, parse_concepts
from speed_erase.speed_ops.text.written import LONGEST, MOST, questions, read_answers

VAN_GOGH = Concept("Vincent van Gogh", "art", "style", ("Vincent",))


def phrases(answer: str, concept: Concept = VAN_GOGH) -> list[str]:
    return list(read_answers(concept, {"without its name": answer}).phrases)


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        ("1. swirling night sky", "swirling night sky"),
        ("12) swirling night sky.", "swirling night sky"),
        ("- **swirling night sky**", "swirling night sky"),
        ("• “swirling  night sky”", "swirling night sky"),
        ('3. "swirling night sky" - his best known motif', "swirling night sky"),
        ("swirling night sky (Dutch, 1889)", "swirling night sky"),
        ("3.フィンセント・ファン・ゴッホ", "フィンセント・ファン・ゴッホ"),
        ("विन्सेंट वैन गो", "विन्सेंट वैन गो"),
        ("J. M. W. Turner", "J. M. W. Turner"),
        ("Jean-Michel Basquiat", "Jean-Michel Basquiat"),
    ],
)
def test_a_line_becomes_a_phrase(line: str, phrase: str) -> None:
    assert phrases(line) == [phrase]


@pytest.mark.parametrize(
    "line",
    [
        *("", "   ", "1.", "...", "42", "--", "\x00\x01\ufffd", "�a�b", "🌻🌻🌻"),
        "Here are ten ways to ask for it:",
        "in the style of VINCENT  VAN GOGH",
        "vincent, painter of sunflowers",
        "art",
        "x" * (LONGEST + 1),
        *("a -> b", "a | b", "sky || object", "# sky", "embedding:sky", "<|im_end|> sky", "{sky}"),
        "<script>alert(1)</script>",
        "@artists.txt",
    ],
)
def test_a_line_that_is_no_phrase_is_dropped(line: str) -> None:
    assert phrases(line) == []


def test_repeats_are_dropped_and_few_are_kept() -> None:
    many = "\n".join(f"sky number {word}" for word in "abcdefghijklmno")
    answers = {
        "without its name": "Night sky\nnight  SKY",
        "confused with it": f"night sky\n{many}",
    }
    written = read_answers(VAN_GOGH, answers)
    labels = list(written.phrases.values())
    assert labels.count("without its name") == 1 and labels.count("confused with it") == MOST
    assert written.lines == 18


def test_thoughts_are_no_phrases() -> None:
    assert phrases("<think>\na thought\n</think>\n\nnight sky") == ["night sky"]
    assert phrases("<think>\na thought that does not end") == []


def test_a_longer_word_is_not_the_name() -> None:
    assert phrases("caterpillar", Concept("cat", "object", "object")) == ["caterpillar"]


def test_every_usable_phrase_can_be_an_alias() -> None:
    usable = [phrase for code in range(0x3000) for phrase in phrases(f"{chr(code)} night sky")]
    assert len(usable) > 5000
    for phrase in usable:
        (concept,) = parse_concepts(f"Vincent van Gogh | {phrase} -> art", "style")
        assert concept.aliases == (phrase,)


def test_a_question_contains_the_name_whatever_it_holds() -> None:
    asked = questions(Concept("{0} %s", "art", "style"))
    assert len(asked) == 3 and all('"{0} %s"' in question for question in asked.values())
