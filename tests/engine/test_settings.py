"""Settings typed as text: every field can be reached, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import get_args, get_type_hints

import pytest

from speed_erase.speed_ops.engine.settings import EraseSettings, parse_assignments
from speed_erase.speed_ops.errors import SettingsError, error_code

HINTS = get_type_hints(EraseSettings)


@pytest.mark.parametrize("item", dataclasses.fields(EraseSettings), ids=lambda item: item.name)
def test_every_setting_but_the_preset_can_be_assigned(item: dataclasses.Field) -> None:
    value = get_args(HINTS[item.name])[-1] if get_args(HINTS[item.name]) else item.default
    text = f"{item.name}={str(value).lower() if value in (True, False) else value}"
    if item.name == "preset_name":
        with pytest.raises(SettingsError):
            parse_assignments([text])
        return
    values = parse_assignments([text])
    assert values == {item.name: value}
    assert type(values[item.name]) is (str if get_args(HINTS[item.name]) else HINTS[item.name])


def test_assignments_are_read_as_people_type_them() -> None:
    assert parse_assignments(["  lam = 0.5 ", "", "ipf=True", "drift_budget=30%"]) == {
        "lam": 0.5,
        "ipf": True,
        "drift_budget": 0.3,
    }


@pytest.mark.parametrize("text", ["lam", "lam=", "=1", "lamda=1", "preset=few"])
def test_what_is_not_an_assignment_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_assignments([text])
    assert error_code(refused.value) == "settings"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="threshold"):
        parse_assignments(["tresholt=relative"])


def test_a_setting_is_assigned_once() -> None:
    with pytest.raises(SettingsError, match="lam"):
        parse_assignments(["lam=1", "lam=2"])


@pytest.mark.parametrize("text", ["lam=much", "ipf=perhaps", "rows_per_concept=1.5", "lam=nan"])
def test_a_value_of_another_type_is_refused_with_the_settings(text: str) -> None:
    with pytest.raises(SettingsError):
        EraseSettings.preset("auto", **parse_assignments([text]))


def test_at_most_twelve_settings_are_public() -> None:
    public = [item.name for item in dataclasses.fields(EraseSettings) if item.metadata["public"]]
    assert len(public) <= 12 and {"preset_name", "drift_budget", "effort"} <= set(public)
