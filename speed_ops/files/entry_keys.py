"""Models that all text enters at one linear layer: find that layer among a file's keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..registry import Architecture
from . import foreign
from .unet_keys import Shapes

_LDM_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "")
_DIFFUSERS_PREFIXES = ("transformer/", "transformer.", "")


def find_entry(shapes: Shapes, family: Architecture) -> str | None:
    """The file's key of the entry layer of a model of this family; None when the file holds no such model."""
    for prefix, path, needs in _places(family):
        if f"{prefix}{path}.weight" in shapes and _difference(shapes, family, prefix, path, needs) is None:
            return f"{prefix}{path}.weight"
    return None


def shortfall(shapes: Shapes, families: Sequence[Architecture]) -> str | None:
    """For a file that looks like one of these families and is not: a sentence's beginning that says why."""
    seen = foreign.model_name(shapes)
    for family in reversed(families):  # the plainest of like families stands last
        if family.entry is not None and family.entry.look_alike == seen:
            for prefix, path, needs in _places(family):
                if f"{prefix}{path}.weight" in shapes:
                    return f"This looks like {seen}, but {_difference(shapes, family, prefix, path, needs)}"
    return None


def _places(family: Architecture) -> Iterator[tuple[str, str, tuple[tuple[str, int | None], ...]]]:
    """(prefix, path of the entry layer, keys that must be there and the widths they read) for every layout."""
    entry, pooled = family.entry, family.pooled
    if entry is None or pooled is None:
        return
    for prefixes, path, needs, pooled_key in (
        (_LDM_PREFIXES, entry.ldm_path, entry.ldm_needs, pooled.ldm_key),
        (_DIFFUSERS_PREFIXES, entry.diffusers_path, entry.diffusers_needs, pooled.diffusers_key),
    ):
        widths = ((f"{path}.weight", family.context_width), (pooled_key, pooled.width))
        for prefix in prefixes:
            yield prefix, path, (*((key, None) for key in needs), *widths)


def _difference(
    shapes: Shapes, family: Architecture, prefix: str, path: str, needs: tuple[tuple[str, int | None], ...]
) -> str | None:
    """What tells a model apart from the family, as the end of a sentence; None: nothing does."""
    for key, width in needs:
        shape = shapes.get(prefix + key)
        if shape is None:
            return f"it has no {key}"
        if width is not None and (len(shape) != 2 or shape[1] != width):
            return f"{key} is {' x '.join(map(str, shape))}, not outputs x {width}"
    assert family.entry is not None
    starts = tuple(prefix + start for start in family.entry.forbidden)
    extra = next((key for key in shapes if key.startswith(starts)), None)
    return f"it has {extra[len(prefix) :]}" if extra else None
