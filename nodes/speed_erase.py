"""SPEED Erase: MODEL, CLIP and concepts in, an erased MODEL out."""

from __future__ import annotations

import re
from typing import Any, get_args

from comfy_api.latest import io

from ..speed_ops.engine.settings import BUDGETS, PRESETS, Effort, EraseSettings
from ..speed_ops.errors import SettingsError
from ..speed_ops.text.concept_list import ConceptList
from ..speed_ops.text.retain_set import RetainSet
from .sockets import (
    CATEGORY,
    ConceptsSocket,
    RetainSocket,
    SettingsSocket,
    erase_outputs,
    search_aliases,
    strength_input,
    validation,
)
from .speed_settings import preset_settings


class SpeedErase(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedErase",
            display_name="SPEED Erase",
            category=CATEGORY,
            **search_aliases(),
            description=(
                "Erases concepts from a model in closed form, without training. Put it after LoRA"
                " loaders and before the sampler; bypass it to get the original back."
            ),
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip=(
                        "The model to erase from: SD1.x, SD2.x, SDXL, SD3, Flux.1, Chroma,"
                        " AuraFlow, Z-Image, Lumina 2, Qwen-Image, Wan 2.x or LTX-Video."
                    ),
                ),
                io.Clip.Input(
                    "clip",
                    tooltip="The CLIP that will encode your prompts, with all its text encoders.",
                ),
                ConceptsSocket.Input("concepts", tooltip="What to erase, from Concept List."),
                *preset_inputs(),
                RetainSocket.Input(
                    "retain",
                    optional=True,
                    tooltip=(
                        "Names that must stay as they are, from Retain Set Loader. Without it, the"
                        " built-in names for the kind of concept are kept."
                    ),
                ),
                SettingsSocket.Input(
                    "settings", optional=True, tooltip="Expert settings, from SPEED Settings."
                ),
                *budget_inputs(),
            ],
            outputs=erase_outputs(),
            is_output_node=True,  # so that Run shows the result, also one that ComfyUI has cached
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(
        cls,
        preset: str | None = None,
        strength: float | None = None,
        budget: str | None = None,
        effort: str | None = None,
    ) -> bool | str:
        from ..speed_ops.job import check_strength

        def check() -> None:
            preset_settings(preset or "auto", 0, budget_settings(budget, effort))
            check_strength(1.0 if strength is None else strength)

        return validation(check)

    @classmethod
    def execute(
        cls,
        model: Any,
        clip: Any,
        concepts: ConceptList,
        preset: str,
        strength: float,
        seed: int,
        retain: RetainSet | None = None,
        settings: dict[str, Any] | None = None,
        budget: str | None = None,
        effort: str | None = None,
    ) -> io.NodeOutput:
        from ..speed_ops.job import Job
        from .erase_output import erase_output

        changes = {**budget_settings(budget, effort), **(settings or {})}
        job = Job.of(concepts, retain, preset_settings(preset, seed, changes))
        return erase_output(cls, model, clip, job, strength)


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


BUDGET_LABELS = {f"{word} ({share * 100:g} %)": share for word, share in BUDGETS.items()}
"""What the widget shows -> drift budget."""


def budget_inputs() -> list[io.Input]:
    """How far an erasure may go, and how much text it reads."""
    default = EraseSettings().drift_budget
    return [
        io.Combo.Input(
            "budget",
            display_name="others may change",
            options=list(BUDGET_LABELS),
            default=next(label for label, share in BUDGET_LABELS.items() if share == default),
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


def budget_settings(budget: str | None, effort: str | None) -> dict[str, Any]:
    """The settings that those two widgets mean; none for a graph that does not set them."""
    settings: dict[str, Any] = {}
    if budget is not None:
        # The number counts: a workflow may have been saved with other steps.
        percent = re.search(r"\((\d+) %\)$", budget)
        if percent is None:
            raise SettingsError(
                f"'others may change' is {budget!r}: choose from {', '.join(BUDGET_LABELS)}."
            )
        settings["drift_budget"] = int(percent[1]) / 100
    if effort is not None:
        settings["effort"] = effort
    return settings
