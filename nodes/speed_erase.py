"""SPEED Erase: MODEL, CLIP and concepts in, an erased MODEL out."""

from __future__ import annotations

from typing import Any, get_args

from comfy_api.latest import io

from ..speed_ops.engine.settings import PRESETS, PRIORITIES, Effort, EraseSettings, priority_of
from ..speed_ops.text.concept_list import ConceptList
from ..speed_ops.text.retain_set import RetainSet
from .sockets import (
    CATEGORY,
    ConceptsSocket,
    RetainSocket,
    SettingsSocket,
    erase_outputs,
    essentials,
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
            **search_aliases("remove artist", "concept eraser", "LECO", "negative prompt"),
            **essentials("Image Tools"),
            description=(
                "Erases concepts from a copy of the model, without training. Put it after LoRA"
                " loaders and before the sampler. Bypass it to get the original back."
            ),
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip=(
                        "The model to erase from, after any LoRA loaders. The help page lists"
                        " the supported models."
                    ),
                ),
                io.Clip.Input(
                    "clip",
                    tooltip="The CLIP that encodes your prompts, with all its text encoders.",
                ),
                ConceptsSocket.Input("concepts", tooltip="What to erase, from Concept List."),
                *preset_inputs(),
                RetainSocket.Input(
                    "retain",
                    display_name="protected names",
                    optional=True,
                    tooltip=(
                        "Names that must stay as they are, from Retain Set Loader. Without it,"
                        " SPEED protects the built-in names for the type."
                    ),
                ),
                SettingsSocket.Input(
                    "settings",
                    optional=True,
                    tooltip="Expert settings, from SPEED Settings. Most workflows need none.",
                ),
                *priority_inputs(),
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
        priority: str | None = None,
        effort: str | None = None,
    ) -> bool | str:
        from ..speed_ops.job import check_strength

        def check() -> None:
            preset_settings(preset or "auto", 0, priority_settings(priority, effort))
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
        priority: str | None = None,
        effort: str | None = None,
    ) -> io.NodeOutput:
        from ..speed_ops.job import Job
        from .erase_output import erase_output

        changes = {**priority_settings(priority, effort), **(settings or {})}
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
                "auto: recommended. fixed: like auto, but with fixed settings. few, multi and"
                " implicit: the paper's own settings for bare names, for comparison."
            ),
        ),
        strength_input(
            "1 applies the full edit. 0 leaves the model unchanged. If the concept still shows,"
            " raise it in steps of 0.1; side effects grow with it. Changing it is quick."
        ),
        io.Int.Input(
            "seed",
            default=0,
            min=0,
            max=2**53,
            control_after_generate=False,
            tooltip=(
                "Seed for SPEED's random choices, such as the test names. It isn't the sampler's"
                " seed."
            ),
        ),
    ]


PRIORITY_LABELS = {name.replace("-", " "): limit for name, limit in PRIORITIES.items()}
"""What the widget shows -> side-effect limit."""


def priority_inputs() -> list[io.Input]:
    """How far an erasure may go, and how many prompts it encodes."""
    default = EraseSettings().drift_budget
    return [
        io.Combo.Input(
            "priority",
            options=list(PRIORITY_LABELS),
            default=next(label for label, limit in PRIORITY_LABELS.items() if limit == default),
            optional=True,
            tooltip=(
                "How much other names may change to erase yours. protect others: enough for one"
                " artist. balanced: up to about ten artists. erase fully: any list; other names"
                " stay recognizable. It's a limit, not a target: the edit stops as soon as more"
                " wouldn't help. Used by the auto preset only."
            ),
        ),
        io.Combo.Input(
            "effort",
            display_name="thoroughness",
            options=list(get_args(Effort)),
            default="normal",
            optional=True,
            tooltip=(
                "How many prompts to encode. fast: about 250 (SDXL on a CPU). normal: about 750."
                " thorough: thousands (GPU). More prompts erase more cleanly and protect other"
                " names better."
            ),
        ),
    ]


def priority_settings(priority: str | None, effort: str | None) -> dict[str, Any]:
    """The settings that those two widgets set; none for a graph that does not set them."""
    settings: dict[str, Any] = {}
    if priority is not None:
        settings["drift_budget"] = priority_of(priority)
    if effort is not None:
        settings["effort"] = effort
    return settings
