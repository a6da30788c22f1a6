"""SPEED Erase: MODEL, CLIP and concepts in, an erased MODEL out."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from ..speed_ops.erasure import Erasure
from ..speed_ops.errors import SpeedError
from ..speed_ops.files.atomic import write_bytes
from ..speed_ops.job import Job, check_strength
from ..speed_ops.report.html import report_page
from ..speed_ops.report.panel import panel, summary
from .erasing import erase
from .host.patching import lora_state
from .host.paths import temporary_file
from .sockets import (
    CATEGORY,
    ConceptsSocket,
    ErasureSocket,
    RetainSocket,
    SettingsSocket,
    erasure_chart,
    found_by,
    shows_text,
    telling,
)
from .speed_settings import preset_inputs, reach_inputs, reach_settings, settings_from


def erasing_outputs() -> list[io.Output]:
    """What every node that erases gives."""
    return [
        io.Model.Output(
            display_name="model",
            tooltip="A copy without the concepts; the input model is unchanged.",
        ),
        io.LoraModel.Output(
            display_name="lora",
            tooltip="The edit at strength 1, for 'Save LoRA Weights' and other stock nodes.",
        ),
        ErasureSocket.Output(
            display_name="erasure",
            tooltip="For Save Erased Model, SPEED Report and SPEED Leak Probe.",
        ),
        io.String.Output(
            display_name="report", tooltip="What was erased, what was kept, and how well."
        ),
        io.Image.Output(display_name="chart", tooltip="The report as a picture."),
    ]


def erased(
    node: type[io.ComfyNode], model: Any, clip: Any, job: Job, strength: float, *notes: str
) -> io.NodeOutput:
    """The outputs of a node that erases."""
    patched, outcome = erase(model, clip, job, strength, node.hidden)
    outcome = replace(outcome, notes=(*outcome.notes, *notes))
    report, lora = outcome.text(), lora_state(outcome.edits, outcome.layers)
    facts = panel(outcome) | {"page": _page(outcome, model)}
    told = telling(node, report, summary(outcome)) | {
        "speed": (facts,),
        "recipe": (_recipe(outcome),),
    }
    return io.NodeOutput(patched, lora, outcome, report, erasure_chart(outcome), ui=told)


def _page(outcome: Erasure, model: Any) -> dict[str, str]:
    """Writes the report as a page that the screen can open; where ComfyUI's `/view` finds it until
    it restarts.
    """
    page = report_page(outcome, "the model in the graph", model.model_size()).encode("utf-8")
    path, place = temporary_file(f"speed_report_{hashlib.sha256(page).hexdigest()[:16]}.html")
    write_bytes(path, page, force=True)
    return place


_MOST_RECIPE = 200_000
"""Characters of a recipe that the screen gets to copy; a longer one, with lists of its own, is
saved as a file.
"""


def _recipe(outcome: Erasure) -> str:
    text = "" if outcome.recipe is None else outcome.recipe.to_json()
    return text if len(text) <= _MOST_RECIPE else ""


class SpeedErase(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedErase",
            display_name="SPEED Erase",
            category=CATEGORY,
            **found_by(),
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
                *reach_inputs(),
            ],
            outputs=erasing_outputs(),
            is_output_node=True,  # so that Run shows the result, also one that ComfyUI has cached
            hidden=shows_text(),
        )

    @classmethod
    def validate_inputs(cls, preset=None, strength=None, budget=None, effort=None) -> bool | str:
        try:
            settings_from(preset or "auto", 0, reach_settings(budget, effort))
            check_strength(1.0 if strength is None else strength)
        except SpeedError as error:
            return str(error)
        return True

    @classmethod
    def execute(
        cls,
        model,
        clip,
        concepts,
        preset,
        strength,
        seed,
        retain=None,
        settings=None,
        budget=None,
        effort=None,
    ) -> io.NodeOutput:
        changes = {**reach_settings(budget, effort), **(settings or {})}
        job = Job.of(concepts, retain, settings_from(preset, seed, changes))
        return erased(cls, model, clip, job, strength)
