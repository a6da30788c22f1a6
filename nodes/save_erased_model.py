"""Save Erased Model: LoRA, checkpoint, diffusion model and recipe, in the output folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ..speed_ops.erasure import Erasure
from ..speed_ops.errors import InputError, SpeedError
from ..speed_ops.files.lora import write_lora
from ..speed_ops.provenance import build_metadata
from .advice import advised
from .host.paths import check_prefix, output_file
from .host.progress import HostProgress, outside_inference_mode
from .host.saving import DTYPES, SOURCE, check_type, workflow_metadata, write_model
from .sockets import CATEGORY, ErasureSocket, found_by, shows_text, telling


class SaveErasedModel(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SaveErasedModel",
            display_name="Save Erased Model",
            category=CATEGORY,
            **found_by("save lora"),
            description=(
                "Saves an erasure so that others can load it with stock nodes and other programs."
            ),
            is_output_node=True,
            inputs=[
                ErasureSocket.Input("erasure", tooltip="From SPEED Erase or SPEED Apply Recipe."),
                io.String.Input(
                    "filename_prefix",
                    default="speed/erased",
                    tooltip=(
                        "File name inside output/loras, output/checkpoints and so on. A number is"
                        " added. Placeholders such as %year% are filled in."
                    ),
                ),
                io.Boolean.Input(
                    "lora",
                    default=True,
                    tooltip="The edit at strength 1, as a LoRA of a few megabytes.",
                ),
                io.Boolean.Input(
                    "checkpoint",
                    default=False,
                    tooltip="The whole model; needs model, clip and vae.",
                ),
                io.Boolean.Input(
                    "diffusion_model",
                    default=False,
                    tooltip="The diffusion model alone; needs model.",
                ),
                io.Boolean.Input(
                    "recipe",
                    default=True,
                    tooltip="A small text file that repeats this erasure, for SPEED Apply Recipe.",
                ),
                io.Combo.Input(
                    "dtype",
                    options=[SOURCE, *DTYPES],
                    default=SOURCE,
                    tooltip=(
                        "Number type of the weights. 'as the source' keeps the checkpoint's own"
                        " type and saves LoRAs in float16."
                    ),
                ),
                io.Boolean.Input(
                    "overwrite",
                    default=False,
                    tooltip="Adds no number and replaces a file of the same name.",
                    extra_dict={"advanced": True},
                ),
                io.Model.Input(
                    "model",
                    optional=True,
                    tooltip="The erased model, for checkpoint and diffusion model.",
                ),
                io.Clip.Input(
                    "clip", optional=True, tooltip="The CLIP that goes into the checkpoint."
                ),
                io.Vae.Input(
                    "vae", optional=True, tooltip="The VAE that goes into the checkpoint."
                ),
            ],
            outputs=[
                io.String.Output(display_name="files", tooltip="Where everything was written.")
            ],
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
        cls,
        erasure,
        filename_prefix,
        lora,
        checkpoint,
        diffusion_model,
        recipe,
        dtype,
        overwrite,
        **wired,
    ) -> io.NodeOutput:
        choice = SaveChoice(
            lora, checkpoint, diffusion_model, recipe, filename_prefix, dtype, overwrite
        )
        workflow = (
            workflow_metadata(cls.hidden.prompt, cls.hidden.extra_pnginfo) if cls.hidden else {}
        )
        try:
            lines = save_erasure(erasure, choice, **wired, workflow=workflow, hidden=cls.hidden)
        except SpeedError as fault:
            raise advised(fault) from fault
        text = "\n".join(lines)
        return io.NodeOutput(text, ui=telling(cls, text))


@dataclass(frozen=True)
class SaveChoice:
    """What to write and how."""

    lora: bool
    checkpoint: bool
    diffusion_model: bool
    recipe: bool
    prefix: str
    dtype: str
    overwrite: bool


@outside_inference_mode
def save_erasure(
    erasure: Erasure,
    choice: SaveChoice,
    model: Any | None = None,
    clip: Any | None = None,
    vae: Any | None = None,
    workflow: Mapping[str, str] | None = None,
    hidden: Any = None,
) -> list[str]:
    """Writes the files and says where each is; nothing is written before everything that is needed
    is there.
    """
    _check(choice, erasure, model, clip, vae)
    progress, lines = HostProgress(hidden), []
    if choice.recipe and erasure.recipe is not None:
        path = output_file("recipes", choice.prefix, ".recipe.json", choice.overwrite)
        erasure.recipe.write(path, force=choice.overwrite)
        lines.append(f"Recipe: {path}")
    if choice.lora:
        lines.append(_save_lora(erasure, choice))
    for wanted, folder, parts in (
        (choice.checkpoint, "checkpoints", (clip, vae)),
        (choice.diffusion_model, "diffusion_models", (None, None)),
    ):
        if wanted:
            path = output_file(folder, choice.prefix, ".safetensors", choice.overwrite)
            content = "checkpoint" if folder == "checkpoints" else "diffusion_model"
            facts = {**(workflow or {}), **_metadata(erasure, content, path)}
            write_model(
                path, model, *parts, facts, choice.dtype, force=choice.overwrite, progress=progress
            )
            lines.append(f"{content.replace('_', ' ').capitalize()}: {path}")
    return lines


def _save_lora(erasure: Erasure, choice: SaveChoice) -> str:
    path = output_file("loras", choice.prefix, ".safetensors", choice.overwrite)
    error = write_lora(
        path,
        erasure.edits,
        erasure.layers,
        erasure.architecture,
        dtype=DTYPES["float16" if choice.dtype == SOURCE else choice.dtype],
        metadata=_metadata(erasure, "lora", path),
        force=choice.overwrite,
    )
    return f"LoRA: {path} (exact at strength 1, up to a rounding error of {error:.2%})"


def _metadata(erasure: Erasure, content: Any, path: Path) -> dict[str, str]:
    if erasure.recipe is None:
        return {}
    # A LoRA holds the edit at strength 1, the other files hold it as it was applied.
    certificate = erasure.full_certificate if content == "lora" else erasure.certificate
    proof = certificate.short() if certificate is not None else {}
    return build_metadata(erasure.architecture, content, erasure.recipe, proof, title=path.stem)


def _check(choice: SaveChoice, erasure: Erasure, model: Any, clip: Any, vae: Any) -> None:
    if not (choice.lora or choice.checkpoint or choice.diffusion_model or choice.recipe):
        raise InputError("There is nothing to save: turn on at least one file.")
    if choice.checkpoint and (model is None or clip is None or vae is None):
        raise InputError("A full checkpoint needs model, clip and vae: wire all three.")
    if choice.diffusion_model and model is None:
        raise InputError("To save a diffusion model, wire model from SPEED Erase.")
    for part in (model, getattr(clip, "patcher", None) if choice.checkpoint else None):
        if part is not None and (choice.checkpoint or choice.diffusion_model):
            check_type(part, choice.dtype)
    if choice.recipe and erasure.recipe is None:
        raise InputError("This erasure came from a LoRA without a recipe: turn recipe off.")
