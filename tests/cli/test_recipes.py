"""A job and its recipe: nothing that decides the edit is lost on the way, and nothing unchecked
comes back.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from speed_erase.speed_ops.engine.settings import PRESETS, EraseSettings
from speed_erase.speed_ops.errors import SpeedError
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.recipe import Recipe, job_of, recipe_of, same_form
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.plan import RowPlan
from speed_erase.speed_ops.text.retain_set import RetainSet, builtin_retain, parse_retain
from speed_erase.speed_ops.text.tokens import Position

MINE = "Aunt Mathilda\nClaude Monet\nUncle Oswald"
LISTS: dict[str, RetainSet] = {
    "none": RetainSet(),
    "built in": builtin_retain("styles"),
    "two built in": builtin_retain("artists") | builtin_retain("styles"),
    "shortened": builtin_retain("artists").limit(17),
    "mine": parse_retain(MINE, "mine.txt", "person"),
    "mine, then built in": parse_retain(MINE, "mine.txt") | builtin_retain("artists"),
}


def a_job(preset: str = "auto", retain: str = "mine", plan: RowPlan | None = None) -> Job:
    concepts = parse_concepts("Van Gogh | Vincent -> art || 0.5\nnudity ->", "style")
    job = Job.of(tuple(concepts), LISTS[retain], EraseSettings.preset(preset, seed=5, held_out=0.1))
    return dataclasses.replace(job, plan=plan) if plan else job


@pytest.mark.parametrize("retain", LISTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_round_trip(preset: str, retain: str) -> None:
    job = a_job(preset, retain)
    text = recipe_of(job, strength=0.7, clip_skip=-2, family="sd1").to_json()
    stored = job_of(Recipe.from_json(text))
    assert (stored.strength, stored.clip_skip, stored.notes) == (0.7, -2, ())
    assert (stored.job.settings, stored.job.plan) == (job.settings, job.plan)
    assert stored.job.retain.names == job.retain.names
    assert [one.as_line() for one in stored.job.concepts] == [one.as_line() for one in job.concepts]
    assert recipe_of(stored.job, strength=0.7, clip_skip=-2, family="sd1").to_json() == text


def test_built_in_lists_go_by_name() -> None:
    assert recipe_of(a_job(retain="two built in")).retain[0].names is None
    assert "Mathilda" in recipe_of(a_job(retain="mine")).to_json()
    assert recipe_of(a_job(retain="shortened")).retain[0].names is not None


def test_other_rows_are_kept() -> None:
    plan = dataclasses.replace(
        RowPlan.context(), templates=2, positions=Position.EOS | Position.LAST_PAD
    )
    assert job_of(recipe_of(a_job(plan=plan))).job.plan == plan


def changed(change: dict[str, Any], inside: str = "") -> Recipe:
    content = json.loads(recipe_of(a_job(retain="built in")).to_json())
    (content[inside] if inside else content).update(change)
    return Recipe.from_json(json.dumps(content))


def test_what_changed_since_is_said() -> None:
    notes = (
        job_of(changed({"new_field": 1, "version": "1.7"})).notes
        + job_of(changed({"settings": {"new_setting": 1}, "version": "1.7"})).notes
    )
    notes += job_of(changed({"contexts": ["a photo of {name}"]})).notes
    notes += job_of(
        changed({"retain": [{"label": "styles", "sha256": "00", "kind": "style"}]})
    ).notes
    assert [
        word in note
        for word, note in zip(
            ("new_field", "new_setting", "templates", "changed"), notes, strict=True
        )
    ]


@pytest.mark.parametrize(
    ("inside", "change"),
    [
        ("settings", {"threshold": "high"}),
        ("settings", {"layers": ["V"]}),
        ("settings", {"seed": -1}),
        ("", {"strength": "1"}),
        ("", {"strength": 1e9}),
        ("", {"strength": True}),
        ("", {"clip_skip": 0}),
        ("", {"clip_skip": -1.5}),
        ("", {"new_field": 1}),
        ("settings", {"new_setting": 1}),
        ("rows", {"positions": ["EVERYWHERE"]}),
        ("rows", {"positions": 1 << 40}),
        ("rows", {"templates": 10**9}),
        ("rows", {"templates": True}),
        ("rows", {"rows": 3}),
        ("", {"concepts": [{"target": "a", "anchor": "b", "kind": "smell"}]}),
        ("", {"concepts": [{"target": "a", "anchor": "a", "kind": "style"}]}),
        ("", {"concepts": [{"target": "a" * 1000, "anchor": "b", "kind": "style"}]}),
        ("", {"retain": [{"label": "../../secrets"}]}),
        ("", {"names": False}),
    ],
)
def test_bad_values_are_refused(inside: str, change: dict[str, Any]) -> None:
    with pytest.raises(SpeedError):
        job_of(changed(change, inside))


def test_same_form_ignores_the_model_alone() -> None:
    job = a_job()
    assert same_form(
        recipe_of(job),
        dataclasses.replace(recipe_of(job, family="sdxl"), base_hash="ff", encoder_hash="ee"),
    )
    assert not same_form(recipe_of(job), recipe_of(job, strength=0.5))
    assert not same_form(recipe_of(job), recipe_of(a_job("few")))
