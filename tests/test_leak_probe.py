"""The leak probe's measure: what it must say of an untouched, an erased and a half-erased model."""

from __future__ import annotations

import pytest
import torch
from text_pico import full_prompt, tiny_encoder

from speed_erase.speed_ops.certificate.certificate import bars_of
from speed_erase.speed_ops.engine.edits import LayerEdit
from speed_erase.speed_ops.errors import InputError
from speed_erase.speed_ops.leak_probe import probe_leaks
from speed_erase.speed_ops.text.concept_list import Concept
from speed_erase.speed_ops.text.kinds import BARE, KINDS

CONCEPT = Concept("Vincent van Gogh", "art", "style", ("Vincent",))


@pytest.fixture(scope="module")
def encoder():
    return tiny_encoder()


@pytest.fixture(scope="module")
def weights(encoder):
    generator = torch.Generator().manual_seed(3)
    return {f"layer{i}": torch.randn(32, encoder.width, generator=generator) for i in range(3)}


def nothing(weights) -> dict[str, LayerEdit]:
    return {
        key: LayerEdit(torch.zeros(len(w), 1), torch.zeros(1, w.shape[1]))
        for key, w in weights.items()
    }


def everything(weights) -> dict[str, LayerEdit]:
    """An edit that makes every output zero."""
    return {key: LayerEdit(-w, torch.eye(w.shape[1], dtype=w.dtype)) for key, w in weights.items()}


def test_without_an_edit_the_name_draws_all_of_itself(encoder, weights):
    report = probe_leaks(encoder, weights, nothing(weights), [CONCEPT])
    name = next(leak for leak in report.tried if leak.rung == "name")
    assert name.before == pytest.approx(1.0) and name.after == pytest.approx(1.0) and name.leaks
    assert {leak.rung for leak in report.tried} >= {
        "name",
        "alias",
        "surname",
        "possessive",
        "typo",
        "description",
    }
    assert [leak.after for leak in report.tried] == sorted(
        (leak.after for leak in report.tried), reverse=True
    )


def test_before_and_after_differ_by_the_edit_alone(encoder, weights):
    same = probe_leaks(encoder, weights, everything(weights), [CONCEPT], strength=0.0)
    assert all(leak.before == leak.after for leak in same.tried)
    gone = probe_leaks(encoder, weights, everything(weights), [CONCEPT])
    assert {leak.phrase: leak.before for leak in gone.tried}.keys() == {
        leak.phrase for leak in same.tried
    }
    values = {round(leak.after, 9) for leak in gone.tried if leak.prompt == gone.tried[0].prompt}
    assert len(values) == 1, (
        "outputs that are all zero draw the same from every phrase of one template"
    )


def test_leaking_phrases_close_the_loop(encoder, weights):
    report = probe_leaks(
        encoder, weights, nothing(weights), [CONCEPT, Concept("Snoopy", "dog", "character")]
    )
    alone, closed = report.phrases(), report.closed()
    assert {"Vincent van Gogh", "Snoopy"} <= {concept.target for concept in alone}
    assert [concept.target for concept in closed] == ["Vincent van Gogh", "Snoopy"]
    assert set(closed[0].aliases) >= {"Vincent"} and len(closed[0].aliases) > 1
    assert all(leak.after > bars_of(leak.concept.kind).erased for leak in report.leaking)
    assert f"{len(report.leaking)} of {len(report.tried)} phrases" in report.text()


def test_what_a_language_model_wrote_is_tried_and_left_to_the_user(encoder, weights):
    written = {CONCEPT: {"Paul Gauguin": "confused with it", "VINCENT": "other language"}}
    report = probe_leaks(encoder, weights, nothing(weights), [CONCEPT], written=written)
    rungs = {leak.phrase: (leak.rung, leak.written) for leak in report.tried}
    assert rungs["Paul Gauguin"] == ("confused with it", True)
    assert sum(leak.written for leak in report.tried) == len(rungs) - len(
        {leak.phrase for leak in probe_leaks(encoder, weights, nothing(weights), [CONCEPT]).tried}
    )
    sure = {leak.phrase for leak in report.leaking if not leak.written}
    assert {concept.target for concept in report.phrases()} <= sure
    assert set(report.closed()[0].aliases) <= sure | set(CONCEPT.aliases)


def test_rows_reach_from_the_name_to_the_last_padding(encoder, weights):
    """An encoder whose padding alone knows the name must be found out."""

    class OnlyPadding:
        fingerprint, width, context_length = "x", encoder.width, encoder.context_length
        streams = encoder.streams

        def encode(self, prompts, lengths, progress=None):
            out = []
            for prompt, length in zip(prompts, lengths, strict=True):
                rows = full_prompt(encoder, "").clone()
                rows[-1] = full_prompt(encoder, prompt)[-1]
                out.append(rows[:length])
            return out

    report = probe_leaks(OnlyPadding(), weights, nothing(weights), [CONCEPT])
    assert next(leak for leak in report.tried if leak.rung == "name").leaks


def test_phrases_are_tried_in_probe_templates_that_no_edit_is_made_from(
    encoder, weights, monkeypatch
):
    texts: set[str] = set()
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda *given: texts.update(given[0]) or encode(*given))
    report = probe_leaks(encoder, weights, nothing(weights), [CONCEPT], templates=2)
    kind = KINDS["style"]
    names = {leak.phrase for leak in report.tried} | {CONCEPT.anchor}
    contexts = (BARE, *kind.probe_templates[:2])
    assert texts == {context.fill(name).text for context in contexts for name in names}
    assert not texts & {template.fill(CONCEPT.target).text for template in kind.templates}


def test_a_users_description_replaces_the_patterns(encoder, weights):
    report = probe_leaks(
        encoder, weights, nothing(weights), [CONCEPT], description="swirling stars over a village"
    )
    assert [leak.phrase for leak in report.tried if leak.rung == "description"] == [
        "swirling stars over a village"
    ]


def test_nothing_to_probe_is_refused(encoder, weights):
    with pytest.raises(InputError, match="nothing to probe"):
        probe_leaks(encoder, weights, nothing(weights), [])
