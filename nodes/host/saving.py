"""Models as ComfyUI would save them, but in the type they came in, without loading anything onto
the GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import comfy.cli_args
import comfy.model_base
import torch
from torch import Tensor

from ...speed_ops.errors import FileError
from ...speed_ops.files.tensors import kinds_of, narrow, write_tensors
from ...speed_ops.progress import Progress
from .progress import check_stop
from .weights import effective_weight, is_packed, keeps_edits, stored_weight

SOURCE = "as the source"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def write_model(
    path: Path,
    model: Any,
    clip: Any | None,
    vae: Any | None,
    metadata: Mapping[str, str],
    dtype: str = SOURCE,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """A checkpoint (with `clip` and `vae`) or a diffusion model alone: effective weights, all
    patches baked in.
    """
    parts = [_effective(model, "diffusion_model.", dtype, progress)]
    config = model.model.model_config
    tensors = config.process_unet_state_dict_for_saving(parts[0])
    if clip is not None:
        named = _effective(clip.patcher, "", dtype, progress) | dict(clip.tokenizer.state_dict())
        tensors |= config.process_clip_state_dict_for_saving(named)
    if vae is not None:
        tensors |= config.process_vae_state_dict_for_saving(_plain(vae.get_sd(), dtype))
    if model.model.model_type == comfy.model_base.ModelType.V_PREDICTION:
        tensors["v_pred"] = torch.tensor([])
    facts = {"modelspec.predict_key": "v" if "v_pred" in tensors else "epsilon", **metadata}
    half = (
        None
        if progress is None
        else lambda stage, done, total: progress(stage, total + done, 2 * total)
    )
    write_tensors(
        path,
        kinds_of(tensors),
        tensors.values(),
        {"format": "pt", **facts},
        force=force,
        progress=half,
    )


def check_type(patcher: Any, dtype: str) -> None:
    """Refuses to write weights in a type that would drown the edit; asked before anything is
    written.
    """
    packed = (
        []
        if dtype != SOURCE
        else [key for key in _floating(patcher) if not keeps_edits(patcher, key)]
    )
    if packed:
        raise FileError(
            f"{len(packed)} layers are stored in 8 bits or less, too coarse to store the edit: save"
            " a LoRA, or choose float16."
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
        wide = tensor.detach().float()
        if wide.ndim < 2 or not bool(torch.isfinite(wide).all()):
            continue
        candidates = [kind for kind in candidates if torch.equal(wide.to(kind).float(), wide)]
        if not candidates:
            return torch.float32
    return candidates[0] if candidates else torch.float32


def _effective(
    patcher: Any, prefix: str, dtype: str, progress: Progress | None
) -> dict[str, Tensor]:
    """Weights in effect by key below `prefix`, in the type asked for."""
    check_type(patcher, dtype)
    keys = [key for key in _own_keys(patcher.model) if key.startswith(prefix)]
    floating = {key for key in _floating(patcher) if key.startswith(prefix)}
    packed = {key for key in floating if not keeps_edits(patcher, key)}
    kind = source_dtype(_stored(patcher, floating)) if dtype == SOURCE else DTYPES[dtype]
    out: dict[str, Tensor] = {}
    for done, key in enumerate(keys):
        if progress is not None:
            progress("write", done, 2 * len(keys))
        changed = key in patcher.patches or key in patcher.weight_wrapper_patches or key in packed
        value = stored_weight(patcher, key).detach().cpu()
        if changed:
            value = narrow(effective_weight(patcher, key), kind, f"Layer {key}")
        out[key[len(prefix) :]] = value.to(kind) if key in floating else value
    return out


def _stored(patcher: Any, keys: Iterable[str]) -> Iterator[Tensor]:
    """Weights one by one, the stop button heard before each: a whole model takes seconds to look
    through.
    """
    for key in keys:
        check_stop()
        yield stored_weight(patcher, key)


def _own_keys(model: torch.nn.Module) -> list[str]:
    """Without the scales and notes that stand beside a quantised weight, which is written as plain
    numbers, and without the room that a GGUF model asks for its largest weight."""
    present = [key for key in model.state_dict() if not key.endswith(".temp.weight")]
    noted = {key for key in present if key.endswith(".comfy_quant")}
    places = [(key, *key.rpartition(".")[::2]) for key in present]
    return [
        key
        for key, module, leaf in places
        if leaf in ("weight", "bias") or f"{module}.comfy_quant" not in noted
    ]


def _floating(patcher: Any) -> list[str]:
    """Keys of what is numbers, packed or not."""
    return [
        key
        for key in _own_keys(patcher.model)
        if stored_weight(patcher, key).is_floating_point() or is_packed(patcher, key)
    ]


def _plain(tensors: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    floating = {key for key, value in tensors.items() if value.is_floating_point()}
    kind = source_dtype(tensors[key] for key in floating) if dtype == SOURCE else DTYPES[dtype]
    return {
        key: value.detach().cpu().to(kind if key in floating else value.dtype)
        for key, value in tensors.items()
    }
