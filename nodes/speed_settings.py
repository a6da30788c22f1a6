"""SPEED Settings: settings for experts, so that SPEED Erase stays short.

The widgets are made from the public fields of `EraseSettings`. One text takes all other settings.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

from comfy_api.latest import io

from ..speed_ops.engine.settings import PRESETS, EraseSettings, parse_assignments
from ..speed_ops.errors import SettingsError
from ..speed_ops.inputs import INPUT_TITLES, POOLED
from .sockets import CATEGORY, SettingsSocket, search_aliases, validation

AS_PRESET = "as preset"
_UNSET = -1
_ON_SPEED_ERASE = ("preset_name", "seed")


class SpeedSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedSettings",
            display_name="SPEED Settings",
            category=CATEGORY,
            **search_aliases("options", "preset"),
            description=(
                "Expert settings for SPEED Erase. -1 and 'as preset' keep the value of the preset."
            ),
            inputs=[
                *(_widget(item) for item in _public_fields()),
                io.String.Input(
                    "advanced",
                    display_name="more settings",
                    multiline=True,
                    default="",
                    placeholder="method=uce\nlam=0.5",
                    tooltip=(
                        "Other settings, one name=value per line. The help page of this node lists"
                        " them."
                    ),
                ),
            ],
            outputs=[SettingsSocket.Output(display_name="settings", tooltip="For SPEED Erase.")],
        )

    @classmethod
    def validate_inputs(cls, **widgets: Any) -> bool | str:
        return validation(lambda: check_changes(changed_settings(widgets)))

    @classmethod
    def execute(cls, **widgets: Any) -> io.NodeOutput:
        return io.NodeOutput(changed_settings(widgets))


def changed_settings(widgets: dict[str, Any]) -> dict[str, Any]:
    """The settings that were changed, by a widget or in the text."""
    hints = get_type_hints(EraseSettings)
    changes: dict[str, Any] = {}
    for item in _public_fields():
        value = widgets.get(item.name, AS_PRESET)
        if value is None or value == AS_PRESET or (not isinstance(value, str) and value < 0):
            continue
        changes[item.name] = value == "on" if hints[item.name] is bool else value
    for name, value in parse_assignments((widgets.get("advanced") or "").splitlines()).items():
        if name in _ON_SPEED_ERASE or name in changes:
            raise SettingsError(f"{name} has its own widget. Set it there and remove this line.")
        changes[name] = value
    return changes


def check_changes(changes: dict[str, Any]) -> None:
    """Raises if no preset can take these changes."""
    refusals = []
    for name in PRESETS:
        try:
            EraseSettings.preset(name, **changes)
            return
        except SettingsError as error:
            refusals.append(error)
    raise refusals[0]


def preset_settings(preset: str, seed: int, changes: dict[str, Any] | None = None) -> EraseSettings:
    """A preset with some settings changed.

    Args:
        preset: Its name.
        seed: Seed for the random choices of the edit.
        changes: {setting: value}.
    """
    from ..speed_ops import job

    return job.host_settings(preset, **{**(changes or {}), "seed": int(seed)})


def _public_fields() -> list[dataclasses.Field[Any]]:
    return [
        item
        for item in dataclasses.fields(EraseSettings)
        if item.metadata["public"] and item.name not in _ON_SPEED_ERASE
    ]


_TITLES = {
    "drift_budget": "side-effect limit",
    "held_out": "test names",
    "effort": "thoroughness",
    POOLED: INPUT_TITLES[POOLED].lower(),
}
"""Settings that people read under another name."""


def _widget(item: dataclasses.Field[Any]) -> io.Input:
    """A widget for a setting, which starts at the preset's value."""
    hint = get_type_hints(EraseSettings)[item.name]
    choices = ["on", "off"] if hint is bool else list(get_args(hint))
    help = item.metadata["help"]
    if choices:
        return io.Combo.Input(
            item.name,
            display_name=_TITLES.get(item.name),
            options=[AS_PRESET, *choices],
            default=AS_PRESET,
            tooltip=f"{help} '{AS_PRESET}' keeps the value of the preset.",
        )
    return io.Float.Input(
        item.name,
        display_name=_TITLES.get(item.name),
        default=float(_UNSET),
        min=float(_UNSET),
        max=float(item.metadata["high"]),
        step=0.00001,
        tooltip=f"{help} {_UNSET} keeps the value of the preset.",
    )
