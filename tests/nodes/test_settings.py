"""The widgets of the settings say what the engine says: same names, same ranges, same help."""

from __future__ import annotations

import dataclasses

import pytest

from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.job import HELD_OUT_SHARE

pytestmark = pytest.mark.comfy


@pytest.fixture
def widgets(comfyui):
    from speed_erase.nodes import speed_settings as settings_widgets

    return settings_widgets


def test_every_setting_has_a_widget_with_its_help_and_range(widgets):
    found = {one.id: one.as_dict() for one in widgets.expert_inputs()}
    fields = {item.name: item for item in dataclasses.fields(EraseSettings)}
    assert set(found) == set(fields) - {"preset_name", "seed"}
    for name, spec in found.items():
        assert spec["tooltip"].startswith(fields[name].metadata["help"])
        if "max" in spec:
            assert (
                spec["max"] == fields[name].metadata["high"]
                and spec["default"] == spec["min"] == -1
            )


def test_untouched_widgets_change_nothing(widgets):
    untouched = {one.id: one.as_dict()["default"] for one in widgets.expert_inputs()}
    assert widgets.moved(untouched) == {}
    for preset in ("auto", "few", "multi", "implicit"):
        assert widgets.settings_from(preset, 5) == EraseSettings.preset(
            preset, seed=5, held_out=HELD_OUT_SHARE
        )


def test_moved_widgets_are_taken_and_bad_ones_refused(widgets):
    changes = widgets.moved(
        {"threshold": 0.0, "dpa": "off", "layers": "KV", "held_out": 0.0, "lam": -1.0}
    )
    assert changes == {"threshold": 0.0, "dpa": False, "layers": "KV", "held_out": 0.0}
    settings = widgets.settings_from("few", 0, changes)
    assert (
        settings.threshold == 0.0
        and settings.dpa is False
        and settings.held_out == 0.0
        and settings.lam == 1.0
    )
    widgets.check_moved({"rpa": True})  # auto can take it, though few cannot
    with pytest.raises(ValueError, match="lam is"):
        widgets.check_moved({"lam": 0.0})
