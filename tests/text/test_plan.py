"""The plan: how many prompts an effort makes, which names get which, and that nothing is judged by
what made the edit.
"""

from __future__ import annotations

import pytest

from speed_erase.speed_ops.errors import SettingsError
from speed_erase.speed_ops.text.kinds import BARE, KINDS, TRIAL_TEMPLATES
from speed_erase.speed_ops.text.plan import EFFORTS, MIN_TEMPLATES, RowPlan


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("effort", EFFORTS)
def test_edit_choice_and_check_never_share_a_prompt(kind, effort):
    plan = RowPlan.context(effort)
    edit = set(plan.solve_templates(kind))
    for rank in range(50):
        edit |= set(plan.retain_prompts(kind.name, rank))
    choice = set(plan.trial_prompts(kind)) | set(plan.witness_prompts(kind))
    check = set(plan.unseen_templates(kind)) | set(kind.probe_templates)
    assert len(choice) == TRIAL_TEMPLATES
    assert not edit & choice and not edit & check and not choice & check


def test_kept_names_take_turns_through_the_targets_prompts():
    plan = RowPlan.context("normal")
    every = plan.solve_templates(KINDS["style"])
    met = [
        template for rank in range(len(every)) for template in plan.retain_prompts("style", rank)
    ]
    assert all(len(plan.retain_prompts("style", rank)) == 2 for rank in range(40))
    assert {template: met.count(template) for template in every} == dict.fromkeys(every, 2)


def test_more_effort_means_more_of_everything():
    fast, normal, thorough = (EFFORTS[name] for name in ("fast", "normal", "thorough"))
    for few, many in ((fast, normal), (normal, thorough)):
        assert all(getattr(few, name) <= getattr(many, name) for name in vars(few))
    counts = [RowPlan.context(effort).prompts(1400, 10**6) for effort in EFFORTS]
    assert counts[0] < 300 < counts[1] < 800 < counts[2], (
        "what a user waits for: SDXL fast, SD1.x normal, a GPU"
    )


def test_many_concepts_get_fewer_prompts_each():
    single, many = RowPlan.context("normal", 1), RowPlan.context("normal", 100)
    assert single.templates == EFFORTS["normal"].templates and many.templates == MIN_TEMPLATES
    assert RowPlan.context("fast", 1000).templates == MIN_TEMPLATES
    assert many.trial_templates >= 1 and many.probe_templates >= 2


def test_names_to_judge_by_go_round_all_prompts():
    met = {
        template
        for rank in range(5)
        for template in RowPlan.judging_prompts("object", lambda kind: kind.probe_templates, rank)
    }
    assert met == set(KINDS["object"].probe_templates)
    assert RowPlan.judging_prompts("object", lambda kind: (), 3) == ()
    assert RowPlan.judging_prompts("caption", lambda kind: (), 3) == (BARE,)


@pytest.mark.parametrize(
    "changes", [{"names": -1}, {"captions": 10**5}, {"trial_templates": TRIAL_TEMPLATES + 1}]
)
def test_senseless_plans_are_refused(changes):
    with pytest.raises(SettingsError, match=next(iter(changes))):
        RowPlan(**changes)
