"""Writing an erasure in every form it is shared in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..speed_ops.errors import InputError
from ..speed_ops.files.lora import write_lora
from ..speed_ops.files.metadata import build_metadata
from .host.paths import output_file
from .host.progress import HostProgress
from .host.saving import DTYPES, SOURCE, check_type, write_model
from .host_erasure import HostErasure
from .solving import apply, outside_inference_mode


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
def save(
    erasure: HostErasure,
    choice: SaveChoice,
    model: Any | None = None,
    clip: Any | None = None,
    vae: Any | None = None,
    workflow: Mapping[str, str] | None = None,
) -> list[str]:
    """Writes the files and says where each is; nothing is written before everything that is needed is there."""
    _check(choice, erasure, model, clip, vae)
    progress, lines = HostProgress(), []
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
            write_model(path, model, *parts, facts, choice.dtype, force=choice.overwrite, progress=progress)
            lines.append(f"{content.replace('_', ' ').capitalize()}: {path}")
    return lines


def _save_lora(erasure: HostErasure, choice: SaveChoice) -> str:
    path = output_file("loras", choice.prefix, ".safetensors", choice.overwrite)
    written = write_lora(
        path,
        erasure.edits,
        erasure.layers,
        erasure.architecture,
        dtype=DTYPES["float16" if choice.dtype == SOURCE else choice.dtype],
        metadata=_metadata(erasure, "lora", path),
        force=choice.overwrite,
    )
    return f"LoRA: {path} (strength 1 is the exact edit; rounding cost {written.error:.2%} of it)"


def _metadata(erasure: HostErasure, content: Any, path: Path) -> dict[str, str]:
    if erasure.recipe is None:
        return {}
    proof = erasure.certificate.short() if erasure.certificate is not None else {}
    return build_metadata(erasure.architecture, content, erasure.recipe, proof, title=path.stem)


def _check(choice: SaveChoice, erasure: HostErasure, model: Any, clip: Any, vae: Any) -> None:
    if not (choice.lora or choice.checkpoint or choice.diffusion_model or choice.recipe):
        raise InputError("Nothing is chosen to be saved: switch on at least one of the files.")
    if choice.checkpoint and (model is None or clip is None or vae is None):
        raise InputError("A full checkpoint needs model, clip and vae: wire all three.")
    if choice.diffusion_model and model is None:
        raise InputError("A diffusion model can only be saved when model is wired: wire SpeedErase's output.")
    for part in (model, getattr(clip, "patcher", None) if choice.checkpoint else None):
        if part is not None and (choice.checkpoint or choice.diffusion_model):
            check_type(part, choice.dtype)
    if choice.recipe and erasure.recipe is None:
        raise InputError("This erasure came from a LoRA without a recipe: switch the recipe off.")


def applied(model: Any, erasure: HostErasure, strength: float) -> Any:
    """A clone with the erasure on it, after checking that it is of this model's family."""
    from .host.weights import open_model

    host = open_model(model, "KV")
    erasure.check_fits(host.architecture, host.layers)
    return apply(model, erasure, strength)
