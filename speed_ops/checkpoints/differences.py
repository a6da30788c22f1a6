"""How a model file differs from the model it was made from, as loaders see both: tensor by tensor,
whatever the layout, the prefixes and the number types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import Notice
from ..files.checkpoint import Checkpoint
from ..files.tensors import EDITABLE, TORCH_DTYPES
from ..models.detect import is_adapter_key
from ..models.keys import UNET_PREFIXES
from ..models.spelling import EMA, MODEL, common_names, is_buffer
from ..progress import Progress
from .source import ModelSource

_THROUGH = ("F16", "BF16", "F32")
"""Types that a file may have been stored in on its way."""
_TEXT_ENCODERS = ("cond_stage_model.", "conditioner.", "text_encoders.", "text_encoder")
"""Where stock savers add buffers."""

_LOADER_SETTINGS = (
    *("_quantization_metadata", "config", "is_512", "tae_latent_channels"),
    "lora_adapter_metadata",
)
"""Metadata by which ComfyUI (the first line) and diffusers read the same tensors as another
model."""


def loader_settings(source: ModelSource, copy: Checkpoint) -> Iterator[Notice]:
    """A sentence about metadata that change what loaders make of the tensors."""
    known = source.checkpoint.metadata
    headers = [part.header.metadata for part in copy.parts]
    changed = sorted(
        name
        for name in _LOADER_SETTINGS
        if any(header.get(name, known.get(name)) != known.get(name) for header in headers)
    )
    if changed:
        text = f"Metadata make loaders read its tensors in another way: {', '.join(changed)}."
        yield Notice(text, code="loader-settings", keys=changed)


@dataclass(frozen=True)
class Comparison:
    """A file next to its base."""

    pairs: dict[str, str]
    """{key of the base: key of the same tensor in the file}."""
    faults: tuple[Notice, ...]


def compare(
    source: ModelSource,
    copy: Checkpoint,
    edited: Collection[str],
    progress: Progress | None = None,
) -> Comparison:
    """Compares every tensor but the edited ones.

    Args:
        source: The base.
        copy: The file.
        edited: Keys of the base whose values may differ.
        progress: Called while tensors are read.
    """
    base, family = source.checkpoint, source.architecture
    theirs = common_names(family, copy.shapes)
    by_name = {name: key for key, name in reversed(theirs.items())}
    ours = common_names(family, base.shapes)
    if all(name.startswith(MODEL) for name in by_name):  # a diffusion model alone
        ours = {key: name for key, name in ours.items() if name.startswith(MODEL)}
    pairs = {key: by_name[name] for key, name in ours.items() if name in by_name}
    faults: dict[str, list[str]] = {}
    for name, count in Counter(theirs.values()).items():
        if count > 1:
            faults.setdefault("two-entries", []).append(by_name[name])
    if pairs != {key: key for key in pairs}:  # the layout is another: it must be one
        usual, *others = _layouts(theirs)
        if others:
            faults["two-layouts"] = [usual, *others]
    for key in copy.shapes.keys() - set(pairs.values()):
        if code := _extra(copy, key):
            faults.setdefault(code, []).append(key)
    for key in ours.keys() - pairs.keys():
        if not key.startswith(EMA) and not is_buffer(key):
            faults.setdefault("missing-tensor", []).append(key)
    done, total = 0, base.size
    for key, other in pairs.items():
        if code := different(base, key, copy, other, key in edited):
            faults.setdefault(code, []).append(other)
        _, start, stop = base.span(key)
        done += stop - start
        if progress:
            progress("compare", min(done, total), total)
    if progress:
        progress("compare", total, total)
    return Comparison(pairs, tuple(_notices(faults)))


def _layouts(names: Mapping[str, str]) -> list[str]:
    """One key of the diffusion model for each layout in which some of its keys are: loaders read
    those of one. `names`: {key: common name}.
    """
    first: dict[tuple[str, bool], str] = {}
    for key, name in names.items():
        if name.startswith(MODEL):
            prefix = next(prefix for prefix in UNET_PREFIXES if key.startswith(prefix))
            renamed = name != MODEL + key.removeprefix(prefix)
            first.setdefault((prefix, renamed), key)
    return list(first.values())


def _extra(copy: Checkpoint, key: str) -> str:
    """What is wrong about a tensor that the base lacks; empty for what stock savers add."""
    if key.startswith(EMA):
        return "ema-copy"
    if is_adapter_key(key):
        return "adapter-in-model"
    shape = copy.shapes[key]
    if not key.startswith(_TEXT_ENCODERS):
        return "new-tensor"
    if key.endswith("logit_scale") and shape == ():
        return "" if _finite(copy.read(key)) else "not-finite"
    if key.endswith("position_ids") and len(shape) == 2 and shape[0] == 1 and shape[1] <= 4096:
        ids = copy.read(key)[0].double()
        return "" if torch.equal(ids, torch.arange(shape[1]).double()) else "new-tensor"
    return "new-tensor"


def different(base: Checkpoint, key: str, copy: Checkpoint, other: str, edited: bool) -> str:
    """The code of a difference between two tensors; empty where there is none.

    Args:
        base: The base.
        key: The tensor's key there.
        copy: The file.
        other: Its key there.
        edited: Whether its values may differ.
    """
    if key.startswith(EMA):
        return "ema-copy"
    if base.shapes[key] != copy.shapes[other]:
        return "shape"
    ours, theirs = base.dtypes[key], copy.dtypes[other]
    if ours != theirs and not {ours, theirs} <= set(EDITABLE) and not is_buffer(key):
        return "dtype"
    if edited:
        return "" if _finite(copy.read(other)) else "not-finite"
    if ours == theirs and base.same_bytes(key, copy, other):
        return ""
    value = copy.read(other)
    if not _finite(value):
        return "not-finite"
    return "" if converted(base.read(key), value) else "changed-tensor"


def _finite(value: Tensor) -> bool:
    wide = value.float() if value.element_size() == 1 else value
    return not value.is_floating_point() or bool(torch.isfinite(wide).all())


def converted(before: Tensor, after: Tensor) -> bool:
    """Whether one tensor is the other in another number type, by way of any usual one. Rounding is
    exact: a value that was trained a little further is found.
    """
    if not (before.is_floating_point() and after.is_floating_point()):
        return torch.equal(before.double(), after.double())
    ways = (before, *(before.to(TORCH_DTYPES[name]) for name in _THROUGH))
    return any(torch.equal(way.to(after.dtype), after) for way in ways)


_SENTENCES: dict[str, tuple[str, str]] = {
    "missing-tensor": ("is missing", "are missing"),
    "new-tensor": ("is new", "are new"),
    "adapter-in-model": ("changes weights like a LoRA", "change weights like a LoRA"),
    "two-entries": ("is stored twice", "are stored twice"),
    "two-layouts": ("is in another layout", "are in different layouts, and loaders read one"),
    "ema-copy": (
        "is an averaged copy (EMA), which is not edited",
        "are an averaged copy (EMA), which is not edited",
    ),
    "shape": ("has another shape than the base", "have other shapes than the base"),
    "dtype": (
        "has a number type that does not keep the base's values",
        "have a number type that does not keep the base's values",
    ),
    "not-finite": ("contains NaN or infinite values", "contain NaN or infinite values"),
    "changed-tensor": (
        "differs from the base but is not edited",
        "differ from the base but are not edited",
    ),
}
_LISTED = 5


def _notices(faults: dict[str, list[str]]) -> Iterator[Notice]:
    """One sentence for each kind of difference."""
    for code, (single, many) in _SENTENCES.items():
        keys = sorted(faults.get(code, ()))
        if keys:
            listed = ", ".join(keys[:_LISTED]) + (", ..." if len(keys) > _LISTED else "")
            subject = f"1 tensor {single}" if len(keys) == 1 else f"{len(keys)} tensors {many}"
            yield Notice(f"{subject}: {listed}.", code=code, keys=keys[:_LISTED])
