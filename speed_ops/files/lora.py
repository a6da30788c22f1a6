"""Low-rank edits as LoRA files: written from the exact factors, read back under any of the common namings.

A layer's delta is `up @ down`; the file scales it by `alpha / rank`, and `alpha` is written as the rank, so that
strength 1.0 is the edit itself. Names are those kohya's trainer writes for the family: ComfyUI, A1111/Forge and
diffusers read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..architectures import Architecture, LayerKey
from ..erasure import LayerEdit
from ..errors import FileError, SettingsError
from . import foreign
from .atomic import check_target, write_bytes
from .checkpoint import Checkpoint
from .header import TensorEntry, encode_header
from .nearest import suggestion
from .tensor_bytes import DTYPE_NAMES, narrow, to_bytes

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_UP = (".lora_up.weight", ".lora_B.weight")
_DOWN = (".lora_down.weight", ".lora_A.weight")
_TENSOR = re.compile(r"(?P<base>.+?)\.(lora_up|lora_down|lora_A|lora_B|lora_mid|alpha|dora_scale|hada_|lokr_|diff)\b.*")


@dataclass(frozen=True)
class LoraWritten:
    """What `write_lora` stored, and how well."""

    path: Path
    error: float
    """Norm of (stored product - exact edit), relative to the edit's norm, over all layers together."""
    layer_errors: dict[str, float]
    """The same for each layer by itself; 0 where the edit is zero."""


@dataclass(frozen=True)
class LoraFile:
    """A LoRA as it applies to one model."""

    edits: dict[str, LayerEdit]
    """By canonical key, in float64, `alpha / rank` multiplied in."""
    unmatched: tuple[str, ...]
    """Layers of the file that are not among those asked for (other blocks, a text encoder)."""
    metadata: dict[str, str]


def write_lora(
    path: Path | str,
    edits: Mapping[str, LayerEdit],
    layers: Sequence[LayerKey],
    architecture: Architecture,
    *,
    dtype: torch.dtype = torch.float16,
    rank: int | None = None,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
) -> LoraWritten:
    """Write `edits` (by canonical key). Factors are balanced first, so that half precision costs as little as it can.

    `layers` are the model's, for names and shapes; `rank` keeps only the strongest terms of each edit.
    """
    if dtype not in DTYPES:
        raise SettingsError(
            f"A LoRA is saved in float16, bfloat16 or float32, not {str(dtype).removeprefix('torch.')}."
        )
    if not edits:
        raise FileError(f"There is nothing to write to {path}: no layer was edited.")
    check_target(path, force=force)
    by_key = {layer.canonical: layer for layer in layers}
    tensors: dict[str, Tensor] = {}
    squares: dict[str, tuple[float, float]] = {}
    for key, edit in edits.items():
        if key not in by_key:
            raise FileError(f"The model has no layer {key!r}{suggestion(key, by_key)}: the edit is of another model.")
        up, down = _stored_factors(edit, by_key[key], dtype, rank)
        base = by_key[key].lora_base
        tensors[f"{base}.lora_up.weight"], tensors[f"{base}.lora_down.weight"] = up, down
        tensors[f"{base}.alpha"] = torch.tensor(float(up.shape[1]), dtype=dtype)
        squares[key] = _squared_error(edit, up, down)
    ranks = {str(value.shape[0]) for name, value in tensors.items() if name.endswith(_DOWN)}
    about = _kohya_metadata(architecture, ranks) | dict(metadata or {})
    write_bytes(path, _encode(tensors, about), force=force)
    total = [sum(column) for column in zip(*squares.values(), strict=True)]
    ratios = {key: _ratio(wrong, exact) for key, (wrong, exact) in squares.items()}
    return LoraWritten(Path(path), _ratio(total[0], total[1]), ratios)


def _stored_factors(edit: LayerEdit, layer: LayerKey, dtype: torch.dtype, rank: int | None) -> tuple[Tensor, Tensor]:
    if (edit.up.shape[0], edit.down.shape[1]) != layer.shape or edit.up.shape[1] != edit.down.shape[0]:
        shapes = f"{tuple(edit.up.shape)} and {tuple(edit.down.shape)}"
        raise FileError(f"The edit of {layer.canonical} has factors of shape {shapes}, the layer is {layer.shape}.")
    what = f"The edit of {layer.canonical}"
    wide = LayerEdit(narrow(edit.up, torch.float64, what), narrow(edit.down, torch.float64, what))
    balanced = wide.balanced(rank)[0]
    return narrow(balanced.up, dtype, what).contiguous(), narrow(balanced.down, dtype, what).contiguous()


def _encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The file, by name: the same edits give the same bytes, which the reference library's writer does not promise."""
    entries: dict[str, TensorEntry] = {}
    content = {name: to_bytes(tensors[name]) for name in sorted(tensors)}
    position = 0
    for name, raw in content.items():
        kind, shape = DTYPE_NAMES[tensors[name].dtype], tuple(tensors[name].shape)
        entries[name] = TensorEntry(kind, shape, position, position + len(raw))
        position += len(raw)
    return b"".join((encode_header(entries, dict(sorted(metadata.items()))), *content.values()))


def _squared_error(edit: LayerEdit, up: Tensor, down: Tensor) -> tuple[float, float]:
    exact = edit.up.detach().cpu().double() @ edit.down.detach().cpu().double()
    return float((up.double() @ down.double() - exact).square().sum()), float(exact.square().sum())


def _ratio(wrong: float, exact: float) -> float:
    return (wrong / exact) ** 0.5 if exact > 0 else 0.0


def _kohya_metadata(architecture: Architecture, ranks: set[str]) -> dict[str, str]:
    """What other programs look at to tell which models a LoRA fits."""
    rank = ranks.pop() if len(ranks) == 1 else "Dynamic"
    return {
        "ss_network_module": "networks.lora",
        "ss_network_dim": rank,
        "ss_network_alpha": rank,
        "ss_base_model_version": architecture.kohya_version,
        "ss_v2": str(architecture.name == "sd2"),
    }


def read_lora(path: Path | str, layers: Sequence[LayerKey]) -> LoraFile:
    """Read a LoRA as edits of these layers, whichever naming it uses."""
    file = Checkpoint.open(path)
    if not foreign.is_lora(file.shapes):
        raise FileError(f"{path} is not a LoRA: it holds no low-rank factors.")
    names = {name: layer for layer in layers for name in _names(layer)}
    edits: dict[str, LayerEdit] = {}
    unmatched: list[str] = []
    for base in sorted({match["base"] for key in file.shapes if (match := _TENSOR.fullmatch(key))}):
        if layer := names.get(base):
            edits[layer.canonical] = _read_edit(file, base, layer)
        else:
            unmatched.append(base)
    if not edits:
        raise FileError(f"{path} edits no layer of this model that can be used here (it has {unmatched[0]!r}, ...).")
    return LoraFile(edits, tuple(unmatched), file.metadata)


def _names(layer: LayerKey) -> tuple[str, ...]:
    paths = (layer.ldm_path, layer.diffusers_path)
    kohya = tuple("lora_unet_" + path.replace(".", "_") for path in paths)
    diffusers = (f"unet.{layer.diffusers_path}", f"transformer.{layer.diffusers_path}", layer.diffusers_path)
    return (*kohya, f"diffusion_model.{layer.ldm_path}", *diffusers)


def _read_edit(file: Checkpoint, base: str, layer: LayerKey) -> LayerEdit:
    up_key = next((base + end for end in _UP if base + end in file.shapes), None)
    down_key = next((base + end for end in _DOWN if base + end in file.shapes), None)
    extra = [end for end in (".lora_mid.weight", ".dora_scale") if base + end in file.shapes]
    if up_key is None or down_key is None or extra:
        raise FileError(f"{file.path} stores {base!r} in a form that is not a plain LoRA: convert it first.")
    up_shape, down_shape = file.shapes[up_key], file.shapes[down_key]
    if (
        len(up_shape) != 2
        or len(down_shape) != 2
        or (up_shape[0], down_shape[1]) != layer.shape
        or up_shape[1] != down_shape[0]
    ):
        shapes = f"{up_shape} and {down_shape}"
        raise FileError(
            f"{file.path} has factors of shape {shapes} for {base!r}, the layer is {layer.shape}: another model's."
        )
    up, down = file.read(up_key).double() * _scale(file, base, up_shape[1]), file.read(down_key).double()
    if not bool(torch.isfinite(up).all() and torch.isfinite(down).all()):
        raise FileError(f"{file.path} holds NaN or infinite values for {base!r}: it is damaged.")
    return LayerEdit(up, down)


def _scale(file: Checkpoint, base: str, rank: int) -> float:
    """`alpha / rank`; a file without `alpha` means 1."""
    shape = file.shapes.get(f"{base}.alpha")
    if shape is None:
        return 1.0
    if shape not in ((), (1,)) or rank == 0:
        raise FileError(f"{file.path} has an `alpha` for {base!r} that is not one number: it is damaged.")
    return float(file.read(f"{base}.alpha").double().reshape(())) / rank
