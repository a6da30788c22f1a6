"""Models as ComfyUI would save them, but in the type they came in, and without the GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import comfy.cli_args
import comfy.model_base
import torch
from torch import Tensor

from ...speed_ops.errors import FileError
from ...speed_ops.files.tensors import kinds_of, narrow, write_tensors
from ...speed_ops.progress import Progress, Stage
from .progress import check_stop
from .weights import edits_on, effective_weight, is_packed, keeps_edits, stored_weight


def write_model(
    path: Path,
    model: Any,
    clip: Any | None,
    vae: Any | None,
    metadata: Mapping[str, str],
    dtype: torch.dtype | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Writes effective weights with all patches baked in: a checkpoint, or a diffusion model alone.

    Args:
        path: Where to.
        model: ComfyUI's MODEL.
        clip: ComfyUI's CLIP, for a checkpoint.
        vae: ComfyUI's VAE, for a checkpoint.
        metadata: Values for the header.
        dtype: Type of the weights; None for the type that they came in.
        force: Whether to replace a file.
        progress: Called for each tensor.
    """
    config = model.model.model_config
    weights = _effective(model, "diffusion_model.", dtype, progress)
    tensors = config.process_unet_state_dict_for_saving(weights)
    if clip is not None:
        named = _effective(clip.patcher, "", dtype, progress) | dict(clip.tokenizer.state_dict())
        tensors |= config.process_clip_state_dict_for_saving(named)
    if vae is not None:
        tensors |= config.process_vae_state_dict_for_saving(_plain(vae.get_sd(), dtype))
    if model.model.model_type == comfy.model_base.ModelType.V_PREDICTION:
        tensors["v_pred"] = torch.tensor([])
    predict_key = "v" if "v_pred" in tensors else "epsilon"

    def second_half(stage: Stage, done: int, total: int) -> None:
        if progress is not None:
            progress(stage, total + done, 2 * total)

    write_tensors(
        path,
        kinds_of(tensors),
        tensors.values(),
        {"format": "pt", "modelspec.predict_key": predict_key, **metadata},
        force=force,
        progress=second_half,
    )


def check_type(patcher: Any, dtype: torch.dtype | None) -> None:
    """Refuses to write weights in a type that would lose the edit to rounding."""
    if dtype is not None:
        return
    coarse = [key for key in _floating(patcher) if not keeps_edits(patcher, key)]
    if coarse:
        raise FileError(
            f"{len(coarse)} layers are stored in 8 bits or less, too coarse to store the edit. Save"
            " a LoRA, or set dtype to float16."
        )


def workflow_metadata(prompt: Any, extra_pnginfo: Mapping[str, Any] | None) -> dict[str, str]:
    """What ComfyUI's own savers put into a header, unless the user switched metadata off."""
    if comfy.cli_args.args.disable_metadata:
        return {}
    values = {"prompt": json.dumps(prompt)} if prompt is not None else {}
    return values | {name: json.dumps(value) for name, value in (extra_pnginfo or {}).items()}


def source_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """The narrowest of fp16, bf16 and fp32 that holds every value: on the CPU ComfyUI widens a file
    to float32, but values that came from a half-precision file are still exactly representable in
    it.

    Only matrices vote: ComfyUI adds scalars of its own, and leaves matrices that a file lacks
    uninitialised."""
    candidates = [torch.float16, torch.bfloat16]
    for tensor in tensors:
        check_stop()  # a model takes seconds
        wide = tensor.detach().float()
        if wide.ndim < 2 or not bool(torch.isfinite(wide).all()):
            continue
        candidates = [kind for kind in candidates if torch.equal(wide.to(kind).float(), wide)]
        if not candidates:
            return torch.float32
    return candidates[0] if candidates else torch.float32


def _effective(
    patcher: Any, prefix: str, dtype: torch.dtype | None, progress: Progress | None
) -> dict[str, Tensor]:
    """Weights in effect by their key below `prefix`."""
    keys = [key for key in _weight_keys(patcher.model) if key.startswith(prefix)]
    floating = {key for key in _floating(patcher) if key.startswith(prefix)}
    packed = {key for key in floating if not keeps_edits(patcher, key)}
    kind = dtype or source_dtype(stored_weight(patcher, key) for key in floating)
    changed = edits_on(patcher)
    tensors: dict[str, Tensor] = {}
    for done, key in enumerate(keys):
        if progress is not None:
            progress("write", done, 2 * len(keys))
        value = stored_weight(patcher, key).detach().cpu()
        if key in changed or key in packed:
            value = narrow(effective_weight(patcher, key), kind, f"Layer {key}")
        tensors[key[len(prefix) :]] = value.to(kind) if key in floating else value
    return tensors


def _weight_keys(model: torch.nn.Module) -> list[str]:
    """Keys of the weights. Leaves out the scales and notes of a quantized weight, which is written
    as plain numbers, and the buffer of a GGUF model for its largest weight.
    """
    present = [key for key in model.state_dict() if not key.endswith(".temp.weight")]
    quantized = {key.rpartition(".")[0] for key in present if key.endswith(".comfy_quant")}
    keys = []
    for key in present:
        module, _, leaf = key.rpartition(".")
        if leaf in ("weight", "bias") or module not in quantized:
            keys.append(key)
    return keys


def _floating(patcher: Any) -> list[str]:
    """Keys of floating-point weights, packed or not."""
    return [
        key
        for key in _weight_keys(patcher.model)
        if stored_weight(patcher, key).is_floating_point() or is_packed(patcher, key)
    ]


def _plain(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    floating = {key for key, value in tensors.items() if value.is_floating_point()}
    kind = dtype or source_dtype(tensors[key] for key in floating)
    return {
        key: value.detach().cpu().to(kind if key in floating else value.dtype)
        for key, value in tensors.items()
    }
