"""Low-rank edits as LoRA files: written from the exact factors, read back under any of the common
namings.

A layer's delta is `up @ down`; the file scales it by `alpha / rank`, and `alpha` is written as the
rank, so that strength 1.0 is the edit itself. Names are those kohya's trainer writes for the
family: ComfyUI, A1111/Forge and diffusers read them, but for SDXL's label layer, which diffusers
refuses.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..engine.edits import LayerEdit
from ..errors import FileError, SettingsError, suggestion
from ..models.architecture import Architecture, LayerKey
from ..models.detect import is_adapter_key, is_lora
from .atomic import check_target
from .checkpoint import Checkpoint
from .tensors import kinds_of, narrow, write_tensors

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_UP = (".lora_up.weight", ".lora_B.weight")
_DOWN = (".lora_down.weight", ".lora_A.weight")
_ALPHA = ".alpha"
_UNET_BLOCKS = ("input_blocks.", "middle_block.", "output_blocks.")
_HALF_PRECISION = 0.02
"""How far an edit may be off once its factors are loaded in half precision, relative to it."""


@dataclass(frozen=True)
class LoraFile:
    """A LoRA as it applies to one model."""

    edits: dict[str, LayerEdit]
    """By canonical key, in float64, `alpha / rank` multiplied in."""
    unmatched: tuple[str, ...]
    """Layers of the file that are not among those asked for (other blocks, a text encoder)."""
    metadata: dict[str, str]
    disputed: tuple[str, ...] = ()
    """Layers that ComfyUI and diffusers read differently."""
    out_of_range: tuple[str, ...] = ()
    """Layers whose factors overflow or vanish where programs load them in half precision."""
    keys: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """{canonical key: the file's keys of up and down}"""


def write_lora(
    path: Path | str,
    edits: Mapping[str, LayerEdit],
    layers: Sequence[LayerKey],
    architecture: Architecture,
    *,
    dtype: torch.dtype = torch.float16,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
) -> float:
    """Writes a LoRA; returns how far the stored product is off, relative to the edit.

    Factors are balanced first, so that half precision costs as little as it can.

    Args:
        path: Where to write.
        edits: By canonical key.
        layers: The model's layers, for names and shapes.
        architecture: The model's family, for the metadata.
        dtype: Type of the stored factors.
        metadata: Added to the header.
        force: Replace an existing file.
    """
    if dtype not in DTYPES:
        raise SettingsError(
            "A LoRA is saved in float16, bfloat16 or float32, not"
            f" {str(dtype).removeprefix('torch.')}."
        )
    if not edits:
        raise FileError(
            f"There is nothing to write to {path}, because no layer was edited. Erase something"
            " first."
        )
    check_target(path, force=force)
    by_key = {layer.canonical: layer for layer in layers}
    tensors: dict[str, Tensor] = {}
    wrong = exact = 0.0
    for key, edit in edits.items():
        if key not in by_key:
            raise FileError(
                f"The model has no layer {key!r}{suggestion(key, by_key)}. Make the edit for"
                " this model."
            )
        up, down = _stored_factors(edit, by_key[key], dtype)
        base = by_key[key].lora_base
        tensors[f"{base}.lora_up.weight"], tensors[f"{base}.lora_down.weight"] = up, down
        tensors[f"{base}.alpha"] = torch.tensor(float(up.shape[1]), dtype=dtype)
        # The difference is too small to be taken through the factors.
        delta = edit.up.detach().cpu().double() @ edit.down.detach().cpu().double()
        wrong += float((up.double() @ down.double() - delta).square().sum())
        exact += float(edit.norm()) ** 2
    ranks = {str(value.shape[0]) for name, value in tensors.items() if name.endswith(_DOWN)}
    about = _kohya_metadata(architecture, ranks) | dict(metadata or {})
    by_name = dict(sorted(tensors.items()))
    write_tensors(
        Path(path), kinds_of(by_name), by_name.values(), dict(sorted(about.items())), force=force
    )
    return (wrong / exact) ** 0.5 if exact > 0 else 0.0


def _stored_factors(edit: LayerEdit, layer: LayerKey, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if (edit.up.shape[0], *edit.down.shape) != (layer.shape[0], edit.rank, layer.shape[1]):
        shapes = f"{tuple(edit.up.shape)} and {tuple(edit.down.shape)}"
        raise FileError(
            f"The edit of {layer.canonical} has factors of shape {shapes}, but the layer is"
            f" {layer.shape}."
        )
    title = f"The edit of {layer.canonical}"
    wide = LayerEdit(narrow(edit.up, torch.float64, title), narrow(edit.down, torch.float64, title))
    balanced = wide.balanced()
    up, down = narrow(balanced.up, dtype, title), narrow(balanced.down, dtype, title)
    return up.contiguous(), down.contiguous()


def _kohya_metadata(architecture: Architecture, ranks: set[str]) -> dict[str, str]:
    """What other programs look at to see which models a LoRA fits."""
    rank = ranks.pop() if len(ranks) == 1 else "Dynamic"
    return {
        "ss_network_module": "networks.lora",
        "ss_network_dim": rank,
        "ss_network_alpha": rank,
        "ss_base_model_version": architecture.kohya_version,
        "ss_v2": str(architecture.name == "sd2"),
    }


def read_lora(path: Path | str, layers: Sequence[LayerKey]) -> LoraFile:
    """Reads a LoRA as edits of these layers, whichever naming it uses.

    Loaders read more than low-rank factors, and the last of two entries for a layer wins. So a file
    that holds anything else is refused: what it does would not be what is read here.
    """
    file = Checkpoint.open(path)
    if not is_lora(file.shapes):
        raise FileError(f"{path} is not a LoRA: it contains no low-rank factors. Give a LoRA.")
    names = {name: layer for layer in layers for name in _names(layer)}
    edits: dict[str, LayerEdit] = {}
    factors: dict[str, tuple[str, str]] = {}
    unmatched, out_of_range, spelled = [], [], {}
    for base, keys in sorted(_by_layer(file).items()):
        layer = names.get(base)
        if layer is None:
            unmatched.append(base)
        elif layer.canonical in edits:
            raise _fault("two-entries", base, f"{path} edits {layer.canonical} twice.")
        else:
            edits[layer.canonical], halved = _read_edit(file, base, keys, layer)
            factors[layer.canonical] = _factors(keys)
            spelled[base] = _spelling(base, keys, layer)
            if not halved:
                out_of_range.append(base)
    if not edits:
        suffix = " and others" if len(unmatched) > 1 else ""
        raise FileError(
            f"{path} edits none of this model's text layers (it edits {unmatched[0]!r}{suffix})."
        )
    usual = next(iter(spelled.values()))
    disputed = tuple(base for base, spelling in spelled.items() if not spelling == usual != "")
    return LoraFile(edits, tuple(unmatched), file.metadata, disputed, tuple(out_of_range), factors)


def _spelling(base: str, keys: Container[str], layer: LayerKey) -> str:
    """Which of two spellings an entry has that ComfyUI and diffusers both read, if all entries of a
    file have it: kohya's, or diffusers' without alpha. Empty for any other, which one of the two
    leaves out without an error.
    """
    if base == layer.lora_base and _UP[0] in keys:
        return "kohya"
    in_unet = layer.ldm_path.startswith(_UNET_BLOCKS)
    path = layer.diffusers_path
    own = f"unet.{_processor(path)}" if in_unet else f"transformer.{path}"
    return "diffusers" if base == own and _UP[1] in keys and _ALPHA not in keys else ""


def _processor(path: str) -> str:
    return path.replace(".to_", ".processor.to_")


def factor_keys(file: Checkpoint) -> Iterator[tuple[str, str, float]]:
    """(key of up, key of down, what scales them) of every layer of a LoRA."""
    for base, keys in sorted(_by_layer(file).items()):
        if any(end in keys for end in _UP) and any(end in keys for end in _DOWN):
            up_key, down_key = _factors(keys)
            shape = file.shapes[down_key]
            yield up_key, down_key, _scale(file, base, keys, shape[0] if shape else 0)


def _by_layer(file: Checkpoint) -> dict[str, dict[str, str]]:
    """{layer's name in the file: {ending: key}}; refuses what a plain LoRA does not have."""
    by_layer: dict[str, dict[str, str]] = {}
    for key in file.shapes:
        end = next((end for end in (*_UP, *_DOWN, _ALPHA) if key.endswith(end)), None)
        if end is None:
            code = "adapter-type" if is_adapter_key(key) else "unknown-key"
            text = f"{file.path} contains {key}, which is not part of a plain LoRA."
            raise _fault(code, key, text)
        by_layer.setdefault(key.removesuffix(end), {})[end] = key
    return by_layer


def _factors(keys: Mapping[str, str]) -> tuple[str, str]:
    """The keys of up and down."""
    up_key, down_key = (next(keys[end] for end in ends if end in keys) for ends in (_UP, _DOWN))
    return up_key, down_key


def _fault(code: str, key: str, sentence: str) -> FileError:
    return FileError(sentence, fault=code, key=key)


def _names(layer: LayerKey) -> tuple[str, ...]:
    """Every name of a layer that ComfyUI or diffusers reads."""
    paths = (layer.ldm_path, layer.diffusers_path)
    kohya = tuple("lora_unet_" + path.replace(".", "_") for path in paths)
    diffusers = tuple(
        start + path
        for start in ("unet.", "transformer.", "")
        for path in dict.fromkeys((layer.diffusers_path, _processor(layer.diffusers_path)))
    )
    return (*kohya, f"diffusion_model.{layer.ldm_path}", *diffusers)


def _read_edit(
    file: Checkpoint, base: str, keys: Mapping[str, str], layer: LayerKey
) -> tuple[LayerEdit, bool]:
    """The edit of one layer, from its two factors and perhaps an alpha; and whether half precision
    keeps it.
    """
    if not keys.keys() >= {_UP[0], _DOWN[0]} and not keys.keys() >= {_UP[1], _DOWN[1]}:
        raise _fault("incomplete", base, f"{file.path} holds {base!r} without both factors.")
    if len(keys.keys() - {_ALPHA}) > 2:
        raise _fault("two-entries", base, f"{file.path} holds {base!r} twice.")
    up_key, down_key = _factors(keys)
    up_shape, down_shape = file.shapes[up_key], file.shapes[down_key]
    rank = up_shape[-1] if up_shape else 0
    if (up_shape, down_shape) != ((layer.shape[0], rank), (rank, layer.shape[1])):
        raise _fault(
            "shape",
            up_key,
            f"{file.path} has factors of shape {up_shape} and {down_shape} for {base!r}, but the"
            f" layer is {layer.shape}. Use the model that the LoRA was made for.",
        )
    if not all(file.dtypes[key].startswith(("F", "BF")) for key in (up_key, down_key)):
        raise _fault(
            "dtype",
            up_key,
            f"{file.path} stores {base!r} as packed numbers. Use the fp16, bf16 or fp32 LoRA.",
        )
    scale = _scale(file, base, keys, rank)
    factors = file.read(up_key), file.read(down_key)
    up, down = factors[0].double() * scale, factors[1].double()
    if not bool(torch.isfinite(up).all() and torch.isfinite(down).all()):
        raise _fault(
            "not-finite",
            base,
            f"{file.path} contains NaN or infinite values for {base!r}. Download it again.",
        )
    half_up, half_down = (factor.half().double() for factor in factors)
    edit = LayerEdit(up, down)
    off = edit.merged(LayerEdit(-scale * half_up, half_down)).norm()
    return edit, bool(off <= _HALF_PRECISION * edit.norm())


def _scale(file: Checkpoint, base: str, keys: Mapping[str, str], rank: int) -> float:
    """`alpha / rank`; a file without `alpha` means 1."""
    if _ALPHA not in keys:
        return 1.0
    shape = file.shapes[keys[_ALPHA]]
    if shape not in ((), (1,)) or rank == 0:
        raise _fault(
            "alpha",
            keys[_ALPHA],
            f"{file.path} has an `alpha` for {base!r} that is not one number. Download it again.",
        )
    alpha = float(file.read(keys[_ALPHA]).double().reshape(()))
    if alpha <= 0:  # some loaders never come to an end
        raise _fault(
            "alpha",
            keys[_ALPHA],
            f"{file.path} has an `alpha` of {alpha:g} for {base!r}, but it must be above 0.",
        )
    return alpha / rank
