"""Prompts are written as people write them for a model: the same on both sides of an edit, on
either side of what may change, and named in the report.
"""

from __future__ import annotations

import re
from itertools import chain

import pytest
import torch
from text_pico import tiny_encoder

from speed_erase.speed_ops.embed import embed
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.inputs import PROMPTING_TITLES, TOKENS
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.models.families import ARCHITECTURES, by_name
from speed_erase.speed_ops.text.concept_list import Concept, parse_concepts
from speed_erase.speed_ops.text.kinds import KINDS, TRIAL_TEMPLATES
from speed_erase.speed_ops.text.plan import EFFORTS, RowPlan
from speed_erase.speed_ops.text.retain_set import builtin_retain, parse_retain

STYLES = list(PROMPTING_TITLES)
MANY = 50
"""Kept names, more than there are templates to go round."""


def plan(prompting: str, effort: str = "thorough") -> RowPlan:
    return RowPlan.context(effort, prompting=prompting)  # type: ignore[arg-type]


def texts(templates, name: str = "Hayao Miyazaki") -> list[str]:
    return [template.fill(name).text for template in templates]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("prompting", STYLES)
def test_no_prompt_both_makes_and_judges_an_edit(kind, effort, prompting) -> None:
    styled = plan(prompting, effort)
    edit, choice = set(styled.solve_templates(kind)), set(styled.witness_prompts(kind))
    check = set(styled.new_prompts(kind))
    assert len(choice) == TRIAL_TEMPLATES and len(check) >= 4
    assert not edit & choice and not edit & check and not choice & check
    kept = {prompt for rank in range(MANY) for prompt in styled.retain_prompts(kind.name, rank)}
    assert kept == edit, "protected names are in the prompts that targets are in"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_mixed_is_half_sentences_and_half_tags(kind) -> None:
    def of(prompting: str) -> list[set[str]]:
        styled = plan(prompting)
        parts = (styled.solve_templates, styled.witness_prompts, styled.new_prompts)
        return [set(texts(part(kind))) for part in parts]

    for mixed, sentences, tags in zip(of("mixed"), of("sentences"), of("tags"), strict=True):
        assert mixed <= sentences | tags
        assert abs(len(mixed & sentences) - len(mixed & tags)) <= 2


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_tags_are_short_words_between_commas(kind) -> None:
    for template in (*kind.tags, *kind.probe_tags):
        tags = template.fill("Hayao Miyazaki").text.split(", ")
        assert len(tags) > 1 and all(len(tag.split()) <= 4 for tag in tags)


def test_artists_have_every_spelling_that_tags_call_them_by() -> None:
    prompts = texts(plan("tags").solve_templates(KINDS["style"]))
    for spelling in (
        *("artist:Hayao Miyazaki", "artist: Hayao Miyazaki", "by Hayao Miyazaki"),
        *(", Hayao Miyazaki,", "hayao_miyazaki,"),
    ):
        assert any(spelling in f"{prompt}," for prompt in prompts), spelling


def test_at_tags_call_artists_by_an_at_and_other_things_as_they_are() -> None:
    styled = plan("at-tags")
    style = KINDS["style"]
    for prompt in texts((*styled.solve_templates(style)[1:], *styled.new_prompts(style))):
        assert prompt.count("@Hayao Miyazaki") == prompt.count("Hayao") == 1
        assert not re.search(r"artist|\bby\b|_", prompt.replace("score_9, score_8_up", ""))
    assert styled.solve_templates(KINDS["object"]) == plan("tags").solve_templates(KINDS["object"])


@pytest.mark.parametrize("prompting", STYLES)
@pytest.mark.parametrize("name", ["Hayao Miyazaki", "(Hulk:1.3)", "[a|b]", "s_9, c"])
def test_a_name_is_literal_and_known_by_its_place(prompting: str, name: str) -> None:
    for kind in KINDS.values():
        styled = plan(prompting)
        for template in chain(styled.solve_templates(kind), styled.new_prompts(kind)):
            prompt = template.fill(name)
            inside = prompt.text[prompt.subject_start : prompt.subject_end]
            assert inside in (name, "_".join(name.lower().split()))


def test_every_built_in_name_fits_a_tag() -> None:
    template = next(item for item in KINDS["style"].tags if "{tag}" in item.text)
    for name in builtin_retain("artists").names:
        prompt = template.fill(name)
        tag = prompt.text[prompt.subject_start : prompt.subject_end]
        assert tag and tag == tag.lower() and not re.search(r"\s", tag)


def test_a_family_has_its_style_and_a_setting_comes_before_it() -> None:
    usual = {family.name: family.prompting for family in ARCHITECTURES}
    assert (usual["sdxl"], usual["anima"], usual["flux-dev"]) == ("mixed", "at-tags", "sentences")
    for family in ARCHITECTURES:
        assert plan("auto").prompted(family.prompting).prompting == family.prompting != "auto"
        assert plan("tags").prompted(family.prompting).prompting == "tags"


@pytest.mark.parametrize(
    ("setting", "family", "expected"),
    [("auto", "sd1", "sentences"), ("auto", "sdxl", "mixed"), ("tags", "sd1", "tags")],
)
def test_a_report_names_the_style(setting: str, family: str, expected: str) -> None:
    encoder = tiny_encoder("sd1")
    settings = EraseSettings.preset("auto", effort="fast", prompting=setting)
    job = Job.of(parse_concepts("hulk", "style"), parse_retain("a fox\na hen", "test"), settings)
    weights = {"a": torch.randn(8, encoder.width)}
    _, report = embed(job.prompted(by_name(family).prompting), weights, encoder)
    assert report.prompting == expected and report.style == PROMPTING_TITLES[report.prompting]


@pytest.mark.parametrize("kind", KINDS)
def test_everyday_words_that_go_with_a_kind_are_protected(kind: str) -> None:
    encoder = tiny_encoder("sd1")
    first, *others = KINDS[kind].neighbors
    job = Job.of(
        [Concept(first, "thing", kind)],
        parse_retain("a fox\na hen", "test"),
        EraseSettings.preset("auto", effort="fast"),
    )
    weights = {"a": torch.randn(8, encoder.width)}
    kept = set(embed(job, weights, encoder)[0][TOKENS].retain.names)
    assert first not in kept and len(others) >= 5
    assert set(others) <= kept | {"thing"}
