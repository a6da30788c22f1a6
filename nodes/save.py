"""SaveErasedModel: LoRA, checkpoint, diffusion model and recipe, in the output folder."""

from __future__ import annotations

from comfy_api.latest import io

from ..speed_ops.errors import SpeedError
from .host.paths import check_prefix
from .host.saving import DTYPES, SOURCE, workflow_metadata
from .saving import SaveChoice, save
from .showing import shows_text, telling
from .sockets import CATEGORY, Erasure


class SaveErasedModel(io.ComfyNode):
    """A schema and one call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SaveErasedModel",
            display_name="Save Erased Model",
            category=CATEGORY,
            description="Saves an erasure so that others can load it with stock nodes and other programs.",
            is_output_node=True,
            inputs=[
                Erasure.Input("erasure", tooltip="From SpeedErase or SpeedApplyRecipe."),
                io.String.Input(
                    "filename_prefix",
                    default="speed/erased",
                    tooltip="Name below output/loras, output/checkpoints, ...; a number is added. %year% and the like "
                    "are filled in.",
                ),
                io.Boolean.Input("lora", default=True, tooltip="The exact edit as a LoRA of a few megabytes."),
                io.Boolean.Input("checkpoint", default=False, tooltip="The whole model; needs model, clip and vae."),
                io.Boolean.Input("diffusion_model", default=False, tooltip="The diffusion model alone; needs model."),
                io.Boolean.Input("recipe", default=True, tooltip="A small text file that repeats this erasure."),
                io.Combo.Input(
                    "dtype",
                    options=[SOURCE, *DTYPES],
                    default=SOURCE,
                    tooltip="Number type of the weights. As the source: a checkpoint keeps its own, a LoRA is float16.",
                ),
                io.Boolean.Input(
                    "overwrite",
                    default=False,
                    tooltip="On: no number in the name, and a file that is there already is replaced.",
                    extra_dict={"advanced": True},
                ),
                io.Model.Input("model", optional=True, tooltip="The erased model, for checkpoint and diffusion model."),
                io.Clip.Input("clip", optional=True, tooltip="The CLIP that goes into the checkpoint."),
                io.Vae.Input("vae", optional=True, tooltip="The VAE that goes into the checkpoint."),
            ],
            outputs=[io.String.Output(display_name="files", tooltip="Where everything was written.")],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo, *shows_text()],
        )

    @classmethod
    def validate_inputs(cls, filename_prefix=None) -> bool | str:
        try:
            check_prefix("name" if filename_prefix is None else filename_prefix)
        except SpeedError as error:
            return str(error)
        return True

    @classmethod
    def execute(
        cls, erasure, filename_prefix, lora, checkpoint, diffusion_model, recipe, dtype, overwrite, **wired
    ) -> io.NodeOutput:
        choice = SaveChoice(lora, checkpoint, diffusion_model, recipe, filename_prefix, dtype, overwrite)
        workflow = workflow_metadata(cls.hidden.prompt, cls.hidden.extra_pnginfo) if cls.hidden else {}
        text = "\n".join(save(erasure, choice, **wired, workflow=workflow))
        return io.NodeOutput(text, ui=telling(cls, text))
