"""Save Erased Model: LoRA, checkpoint, diffusion model and recipe, in the output folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from comfy_api.latest import io

from ..speed_ops.errors import InputError, SpeedError
from .host.paths import check_prefix, output_file
from .host.progress import HostProgress, outside_inference_mode
from .sockets import CATEGORY, ErasureSocket, search_aliases, ui_text, validation

if TYPE_CHECKING:
    from ..speed_ops.erasure import Erasure
    from ..speed_ops.provenance import Content

SOURCE = "same as source"
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def _with_advice(function: Callable[..., io.NodeOutput]) -> Callable[..., io.NodeOutput]:
    """Adds to a refusal to overwrite what a user of the node can do about it."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> io.NodeOutput:
        try:
            return function(*args, **kwargs)
        except SpeedError as error:
            if error.data.get("advice") != "allow-overwriting":
                raise
            raise type(error)(f"{error} Or turn overwrite on.") from error

    return wrapped


class SaveErasedModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SaveErasedModel",
            display_name="Save Erased Model",
            category=CATEGORY,
            **search_aliases("save lora"),
            description=(
                "Saves a LoRA, a checkpoint, a diffusion model or a recipe, for ComfyUI's own nodes"
                " and other programs."
            ),
            is_output_node=True,
            inputs=[
                ErasureSocket.Input("erasure", tooltip="From SPEED Erase or Rerun Recipe."),
                io.String.Input(
                    "filename_prefix",
                    default="speed/erased",
                    tooltip=(
                        "File name inside output/loras, output/checkpoints and so on. SPEED adds a"
                        " number and fills in placeholders such as %year%."
                    ),
                ),
                io.Boolean.Input(
                    "lora",
                    default=True,
                    tooltip="Saves the edit at strength 1 as a LoRA, usually a few megabytes.",
                ),
                io.Boolean.Input(
                    "checkpoint",
                    default=False,
                    tooltip="Saves the whole model. Connect model, clip and vae.",
                ),
                io.Boolean.Input(
                    "diffusion_model",
                    default=False,
                    tooltip="Saves the diffusion model alone. Connect model.",
                ),
                io.Boolean.Input(
                    "recipe",
                    default=True,
                    tooltip="Saves a small text file that repeats this erasure, for Rerun Recipe.",
                ),
                io.Combo.Input(
                    "dtype",
                    options=[SOURCE, *TYPES],
                    default=SOURCE,
                    tooltip=(
                        "Number type of the weights. 'same as source' keeps the type of the model"
                        " and saves LoRAs in float16."
                    ),
                ),
                io.Boolean.Input(
                    "overwrite",
                    default=False,
                    tooltip="Replaces a file of the same name instead of adding a number.",
                    extra_dict={"advanced": True},
                ),
                io.Model.Input(
                    "model",
                    optional=True,
                    tooltip="The model from SPEED Erase, for a checkpoint or diffusion model.",
                ),
                io.Clip.Input(
                    "clip", optional=True, tooltip="The CLIP to put into the checkpoint."
                ),
                io.Vae.Input("vae", optional=True, tooltip="The VAE to put into the checkpoint."),
            ],
            outputs=[
                io.String.Output(display_name="files", tooltip="The paths of the saved files.")
            ],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo, io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, filename_prefix: str | None = None) -> bool | str:
        return validation(
            lambda: check_prefix("name" if filename_prefix is None else filename_prefix)
        )

    @classmethod
    @_with_advice
    @outside_inference_mode
    def execute(
        cls,
        erasure: Erasure,
        filename_prefix: str,
        lora: bool,
        checkpoint: bool,
        diffusion_model: bool,
        recipe: bool,
        dtype: str,
        overwrite: bool,
        model: Any = None,
        clip: Any = None,
        vae: Any = None,
    ) -> io.NodeOutput:
        from ..speed_ops.files.lora import write_lora
        from .host.saving import check_type, workflow_metadata, write_model

        # Everything is checked before anything is written.
        if not (lora or checkpoint or diffusion_model or recipe):
            raise InputError(
                "There is nothing to save. Turn on lora, checkpoint, diffusion_model or recipe."
            )
        if checkpoint and (model is None or clip is None or vae is None):
            raise InputError("A checkpoint needs model, clip and vae. Connect all three.")
        if diffusion_model and model is None:
            raise InputError("A diffusion model needs model. Connect it from SPEED Erase.")
        if recipe and erasure.recipe is None:
            raise InputError("This erasure came from a LoRA without a recipe. Turn recipe off.")
        kind = TYPES.get(dtype)
        if checkpoint or diffusion_model:
            check_type(model, kind)
        if checkpoint:
            check_type(clip.patcher, kind)

        lines = []
        if recipe and erasure.recipe is not None:
            path = output_file("recipes", filename_prefix, ".recipe.json", overwrite)
            erasure.recipe.write(path, force=overwrite)
            lines.append(f"Recipe: {path}")
        if lora:
            path = output_file("loras", filename_prefix, ".safetensors", overwrite)
            error = write_lora(
                path,
                erasure.edits,
                erasure.layers,
                erasure.architecture,
                dtype=kind or torch.float16,
                metadata=_metadata(erasure, "lora", path),
                force=overwrite,
            )
            lines.append(f"LoRA: {path} (rounding error at strength 1: {error:.2%})")
        workflow = (
            workflow_metadata(cls.hidden.prompt, cls.hidden.extra_pnginfo) if cls.hidden else {}
        )
        progress = HostProgress(cls.hidden)
        if checkpoint:
            path = output_file("checkpoints", filename_prefix, ".safetensors", overwrite)
            metadata = {**workflow, **_metadata(erasure, "checkpoint", path)}
            write_model(path, model, clip, vae, metadata, kind, force=overwrite, progress=progress)
            lines.append(f"Checkpoint: {path}")
            lines += _card(erasure, path, overwrite)
        if diffusion_model:
            path = output_file("diffusion_models", filename_prefix, ".safetensors", overwrite)
            metadata = {**workflow, **_metadata(erasure, "diffusion_model", path)}
            write_model(path, model, None, None, metadata, kind, force=overwrite, progress=progress)
            lines.append(f"Diffusion model: {path}")
            lines += _card(erasure, path, overwrite)
        text = "\n".join(lines)
        return io.NodeOutput(text, ui=ui_text(cls, text))


def _metadata(erasure: Erasure, content: Content, path: Path) -> dict[str, str]:
    from ..speed_ops.provenance import build_metadata

    if erasure.recipe is None:
        return {}
    # A LoRA holds the edit at strength 1, the other files hold it as it was applied.
    certificate = erasure.full_certificate if content == "lora" else erasure.certificate
    proof = certificate.short() if certificate is not None else {}
    return build_metadata(erasure.architecture, content, erasure.recipe, proof, title=path.stem)


def _card(erasure: Erasure, path: Path, overwrite: bool) -> list[str]:
    """Writes the model card next to a cleaned model; a line about it, if the edit was measured."""
    from ..speed_ops.files.atomic import write_bytes
    from ..speed_ops.report.card import model_card

    if erasure.recipe is None or erasure.certificate is None:
        return []
    card = path.with_name(f"{path.stem}-README.md")
    text = model_card(erasure, path.stem, files={"checkpoint": path.name})
    write_bytes(card, text.encode("utf-8", "replace"), force=overwrite)
    return [f"Model card: {card}"]
