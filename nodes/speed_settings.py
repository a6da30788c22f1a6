"""SPEED Settings: single settings of a preset, for those who want them. SPEED Erase stays short
without it.

The widgets are made from the fields of `EraseSettings`, so that the two cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, get_args, get_type_hints

from comfy_api.latest import io

from ..speed_ops.engine.settings import BUDGETS, PRESETS, Effort, EraseSettings
from ..speed_ops.errors import SettingsError, SpeedError
from ..speed_ops.job import HELD_OUT_SHARE
from .sockets import CATEGORY, SettingsSocket, strength_input


class SpeedSettings(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedSettings",
            display_name="SPEED Settings",
            category=CATEGORY,
            description=(
                "Expert settings for SPEED Erase. A widget left at -1 or 'as preset' changes"
                " nothing."
            ),
            inputs=expert_inputs(),
            outputs=[SettingsSocket.Output(display_name="settings", tooltip="For SPEED Erase.")],
        )

    @classmethod
    def validate_inputs(cls, **widgets: Any) -> bool | str:
        try:
            check_moved(moved(widgets))
        except SpeedError as error:
            return str(error)
        return True

    @classmethod
    def execute(cls, **widgets: Any) -> io.NodeOutput:
        return io.NodeOutput(moved(widgets))


AS_PRESET = "as preset"
_UNSET = -1
_NOT_WIDGETS = ("preset_name", "seed")
_SUFFIX = {
    "choice": f" '{AS_PRESET}' keeps the preset's value.",
    "number": " -1 keeps the preset's value.",
}


def preset_inputs() -> list[io.Input]:
    """Preset and strength: what most people need."""
    return [
        io.Combo.Input(
            "preset",
            options=list(PRESETS),
            default="auto",
            tooltip=(
                "auto: names are erased and kept inside whole prompts; best for most. context: the"
                " same with fixed settings. few: up to 10 concepts; multi: many; implicit: ideas"
                " such as nudity (settings of the paper, names without prompts)."
            ),
        ),
        strength_input(
            "1 applies the edit as computed, 0 leaves the model unchanged; try a little above 1 if"
            " the concept still shows. Changing it is quick: the edit is not computed again."
        ),
        io.Int.Input(
            "seed",
            default=0,
            min=0,
            max=2**53,
            control_after_generate=False,
            tooltip=(
                "Seed for the random choices of the edit (held-out names, augmentation). Not the"
                " sampler's seed."
            ),
        ),
    ]


def reach_inputs() -> list[io.Input]:
    """How far an erasure may go and how much it may read. They came later: after all others, for
    saved workflows.
    """
    return [
        io.Combo.Input(
            "budget",
            display_name="others may change",
            options=list(BUDGET_LABELS),
            default=next(
                label
                for label, share in BUDGET_LABELS.items()
                if share == EraseSettings().drift_budget
            ),
            optional=True,
            tooltip=(
                "How much may other things change, on average? The preset auto erases as much as"
                " that allows, and says so when it is not enough. The chart shows what more or less"
                " would give. The other presets do not look at it."
            ),
        ),
        io.Combo.Input(
            "effort",
            options=list(get_args(Effort)),
            default="normal",
            optional=True,
            tooltip=(
                "How many prompts are read for the edit and its check. quick: about 250, for SDXL"
                " without a GPU; normal: about 750; thorough: thousands, for a GPU. More of them"
                " erase better and keep better."
            ),
        ),
    ]


def _label(word: str) -> str:
    return f"{word} ({BUDGETS[word] * 100:g} %)"


BUDGET_LABELS = {_label(word): share for word, share in BUDGETS.items()}
"""What the widget shows -> share of drift."""


def reach_settings(budget: str | None, effort: str | None) -> dict[str, Any]:
    """The settings that those two widgets mean; nothing for a workflow from before them."""
    found: dict[str, Any] = {}
    if budget is not None:
        # A workflow saved with other steps means the number beside its word.
        said = re.search(r"\((\d+) %\)$", budget)
        if said is None:
            raise SettingsError(
                f"'others may change' is {budget!r}: choose from {', '.join(BUDGET_LABELS)}."
            )
        found["drift_budget"] = int(said[1]) / 100
    return found if effort is None else {**found, "effort": effort}


def expert_inputs() -> list[io.Input]:
    """One widget for every other setting; each starts as the preset has it."""
    hints = get_type_hints(EraseSettings)
    return [_widget(item, hints[item.name]) for item in _fields()]


def moved(widgets: dict[str, Any]) -> dict[str, Any]:
    """The settings whose widgets were moved, in the engine's own values."""
    hints = get_type_hints(EraseSettings)
    changes: dict[str, Any] = {}
    for item in _fields():
        value = widgets.get(item.name, AS_PRESET)
        if value is None or value == AS_PRESET or (not isinstance(value, str) and value < 0):
            continue
        changes[item.name] = value == "on" if hints[item.name] is bool else value
    return changes


def check_moved(changes: dict[str, Any]) -> None:
    """Raises where no preset can take these changes."""
    refusals = []
    for name in PRESETS:
        try:
            EraseSettings.preset(name, **changes)
            return
        except SettingsError as error:
            refusals.append(error)
    raise refusals[0]


def settings_from(preset: str, seed: int, changes: dict[str, Any] | None = None) -> EraseSettings:
    """The preset with some settings changed."""
    return EraseSettings.preset(
        preset, **{"held_out": HELD_OUT_SHARE, **(changes or {}), "seed": int(seed)}
    )


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
            tooltip=text + _SUFFIX["choice"],
        )
    high, tooltip = item.metadata["high"], text + _SUFFIX["number"]
    if hint is int:
        return io.Int.Input(
            item.name, default=_UNSET, min=_UNSET, max=int(high), step=1, tooltip=tooltip
        )
    low = float(_UNSET)
    return io.Float.Input(
        item.name, default=low, min=low, max=float(high), step=0.00001, tooltip=tooltip
    )
