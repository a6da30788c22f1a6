"""SpeedErase: MODEL, CLIP and concepts in, an erased MODEL out."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..speed_ops.errors import SpeedError
from ..speed_ops.pipeline import Job
from .chart import erasure_chart
from .host.patching import lora_state
from .settings_widgets import preset_inputs, settings_from
from .showing import shows_text, telling
from .sockets import CATEGORY, Concepts, Erasure, Retain, Settings
from .solving import erase, job_from


def erasing_outputs() -> list[io.Output]:
    """What every node that erases gives."""
    return [
        io.Model.Output(display_name="model", tooltip="A clone without the concepts; the model that came in stays."),
        io.LoraModel.Output(display_name="lora", tooltip="The edit at strength 1, for 'Save LoRA Weights' and others."),
        Erasure.Output(display_name="erasure", tooltip="For SaveErasedModel, SpeedReport and SpeedLeakProbe."),
        io.String.Output(display_name="report", tooltip="What was erased, what was kept, and how well."),
        io.Image.Output(display_name="chart", tooltip="The report as a picture."),
    ]


def erased(node: type[io.ComfyNode], model: Any, clip: Any, job: Job, strength: float, *notes: str) -> io.NodeOutput:
    """The outputs of a node that erases."""
    patched, erasure = erase(model, clip, job, strength)
    report = "\n".join([erasure.report, *notes])
    lora = lora_state(erasure.edits, erasure.layers)
    return io.NodeOutput(patched, lora, erasure, report, erasure_chart(erasure), ui=telling(node, report))


class SpeedErase(io.ComfyNode):
    """A schema and one call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedErase",
            display_name="SPEED Erase",
            category=CATEGORY,
            description="Erases concepts from a model in closed form, without training. Put it after LoRA loaders and "
            "before the sampler; bypass it to get the original back.",
            inputs=[
                io.Model.Input("model", tooltip="The model to erase from: SD1.x, SD2.x, SDXL or its refiner."),
                io.Clip.Input("clip", tooltip="The CLIP that will encode your prompts, of the same checkpoint."),
                Concepts.Input("concepts", tooltip="What to erase, from ConceptList."),
                *preset_inputs(),
                Retain.Input(
                    "retain",
                    optional=True,
                    tooltip="Names that must stay as they are; without it, the built-in set for the kind.",
                ),
                Settings.Input("settings", optional=True, tooltip="Expert settings, from SpeedSettings."),
            ],
            outputs=erasing_outputs(),
            hidden=shows_text(),
        )

    @classmethod
    def validate_inputs(cls, preset=None) -> bool | str:
        try:
            settings_from(preset or "auto", 0)
        except SpeedError as error:
            return str(error)
        return True

    @classmethod
    def execute(cls, model, clip, concepts, preset, strength, seed, retain=None, settings=None) -> io.NodeOutput:
        job = job_from(concepts, retain, settings_from(preset, seed, settings))
        return erased(cls, model, clip, job, strength)
