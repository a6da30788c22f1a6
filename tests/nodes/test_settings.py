"""The widgets of the settings agree with the engine: same names, same ranges, same help."""

from __future__ import annotations

import dataclasses

import pytest

from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import SettingsError
from speed_erase.speed_ops.job import host_settings

pytestmark = pytest.mark.comfy
FIELDS = {item.name: item for item in dataclasses.fields(EraseSettings)}
PUBLIC = {name for name, item in FIELDS.items() if item.metadata["public"]}


@pytest.fixture
def settings_node(comfyui):
    from speed_erase.nodes import speed_settings

    return speed_settings


def widgets_of(settings_node) -> dict:
    inputs = settings_node.SpeedSettings.define_schema().inputs
    return {widget.id: widget.as_dict() for widget in inputs}


def test_every_public_setting_has_a_widget_with_its_help_and_range(settings_node):
    widgets = widgets_of(settings_node)
    assert widgets.pop("advanced")["multiline"]
    assert set(widgets) == PUBLIC - {"preset_name", "seed"}
    for name, spec in widgets.items():
        assert spec["tooltip"].startswith(FIELDS[name].metadata["help"])
        if "max" in spec:
            assert spec["max"] == FIELDS[name].metadata["high"]
            assert spec["default"] == spec["min"] == -1


def test_at_most_twelve_settings_are_widgets_and_the_help_page_lists_the_others(settings_node):
    from pathlib import Path

    assert len(PUBLIC | {"advanced"}) <= 12
    page = Path(settings_node.__file__).parents[1] / "web" / "docs" / "SpeedSettings.md"
    text = page.read_text(encoding="utf-8")
    assert [name for name in FIELDS if name not in PUBLIC and f"`{name}`" not in text] == []


def test_untouched_widgets_change_nothing(settings_node):
    untouched = {name: spec["default"] for name, spec in widgets_of(settings_node).items()}
    assert settings_node.changed_settings(untouched) == {}
    for preset in ("auto", "few", "multi", "implicit"):
        expected = host_settings(preset, seed=5)
        assert settings_node.preset_settings(preset, 5) == expected


def test_changes_by_widget_and_by_text_are_taken(settings_node):
    advanced = "threshold = 0\n\ndpa=false\n"
    widgets = {"layers": "KV", "held_out": 0.0, "pooled": "off", "effort": "as preset"}
    changes = settings_node.changed_settings({**widgets, "advanced": advanced})
    assert changes == {
        "layers": "KV",
        "held_out": 0.0,
        "pooled": False,
        "threshold": 0.0,
        "dpa": False,
    }
    settings = settings_node.preset_settings("few", 0, changes)
    assert settings.to_dict() == EraseSettings.preset("few").to_dict() | changes


@pytest.mark.parametrize(
    "advanced", ["lam=0", "lam", "lamm=1", "layers=KV", "seed=1", "preset_name=few", "mu=1\nmu=2"]
)
def test_bad_texts_are_refused_before_a_run(settings_node, advanced):
    node = settings_node.SpeedSettings
    assert isinstance(node.validate_inputs(layers="V", advanced=advanced), str)
    with pytest.raises(SettingsError):
        settings_node.check_changes(
            settings_node.changed_settings({"layers": "V", "advanced": advanced})
        )


def test_what_only_some_presets_can_take_is_not_refused(settings_node):
    assert settings_node.SpeedSettings.validate_inputs(advanced="rpa=true") is True
