"""Widgets of the expert settings, made from the fields of `EraseSettings`, so that the two cannot drift apart."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

from comfy_api.latest import io

from ..speed_ops.pipeline import HELD_OUT_SHARE
from ..speed_ops.settings import PRESETS, EraseSettings

AS_PRESET = "as preset"
_UNSET = -1
_NOT_WIDGETS = ("preset_name", "seed")
_ADVANCED = {"advanced": True}
_SUFFIX = {"choice": f" '{AS_PRESET}': what the preset says.", "number": " -1: what the preset says."}


def preset_inputs() -> list[io.Input]:
    """Preset and strength: what most people need."""
    return [
        io.Combo.Input(
            "preset",
            options=list(PRESETS),
            default="auto",
            tooltip="auto: names are erased and retained inside whole prompts. few, multi, implicit: the paper's "
            "settings, bare names, for up to ten concepts, for many, and for ideas such as nudity.",
        ),
        io.Float.Input(
            "strength",
            default=1.0,
            min=-5.0,
            max=5.0,
            step=0.05,
            tooltip="1: the exact edit; 0: the model as it came; changing it does not solve again.",
        ),
        io.Int.Input(
            "seed",
            default=0,
            min=0,
            max=2**53,
            control_after_generate=False,
            tooltip="Seed of the solver's random draws (held-out names, augmentation). Not the sampler's seed.",
        ),
    ]


def expert_inputs() -> list[io.Input]:
    """One advanced widget for every other setting; each starts as the preset has it."""
    hints = get_type_hints(EraseSettings)
    return [_widget(item, hints[item.name]) for item in _fields()]


def settings_from(preset: str, seed: int, expert: dict[str, Any]) -> EraseSettings:
    """The preset, changed by the widgets that were moved."""
    changes: dict[str, Any] = {"seed": int(seed), "held_out": HELD_OUT_SHARE}
    hints = get_type_hints(EraseSettings)
    for item in _fields():
        value = expert.get(item.name, AS_PRESET)
        if value == AS_PRESET or (not isinstance(value, str) and value < 0):
            continue
        changes[item.name] = value == "on" if hints[item.name] is bool else value
    return EraseSettings.preset(preset, **changes)


def _fields() -> list[dataclasses.Field[Any]]:
    return [item for item in dataclasses.fields(EraseSettings) if item.name not in _NOT_WIDGETS]


def _widget(item: dataclasses.Field[Any], hint: Any) -> io.Input:
    choices = ["on", "off"] if hint is bool else list(get_args(hint))
    text = item.metadata["help"]
    if choices:
        return io.Combo.Input(
            item.name,
            options=[AS_PRESET, *choices],
            default=AS_PRESET,
            optional=True,
            tooltip=text + _SUFFIX["choice"],
            extra_dict=dict(_ADVANCED),
        )
    common = {"optional": True, "tooltip": text + _SUFFIX["number"], "extra_dict": dict(_ADVANCED)}
    if hint is int:
        return io.Int.Input(item.name, default=_UNSET, min=_UNSET, max=int(item.metadata["high"]), step=1, **common)
    high = float(item.metadata["high"])
    return io.Float.Input(item.name, default=float(_UNSET), min=float(_UNSET), max=high, step=0.0001, **common)
