"""A model's keys in every spelling: U-Net layers, entry layers, text encoders.

A U-Net's attention blocks have two spellings. The original (ldm) layout numbers input and output
blocks through; diffusers numbers levels and, inside a level, the residual blocks. Which block
starts a level is read from the keys themselves (a downsampler or upsampler ends one), so models of
any number of levels map, not only the published sizes.

    ldm        input_blocks.4.1   middle_block.1            output_blocks.3.1
    diffusers  down_blocks.1.attentions.0   mid_block.attentions.0   up_blocks.1.attentions.0
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .architecture import Architecture, FamilyEncoder, Naming

Shapes = Mapping[str, Sequence[int]]
"""{key: shape} of a file. Keys of a diffusers folder have the component: `unet/conv_in.bias`."""
ATTENTION = re.compile(
    r"(?P<block>(?:input|output)_blocks\.\d{1,4}\.1|middle_block\.1"
    r"|(?:down|up)_blocks\.\d{1,4}\.attentions\.\d{1,4}|mid_block\.attentions\.0)"
    r"(?P<rest>\.transformer_blocks\.\d{1,4}\.attn2\.to_(?P<kind>[kv]))\.weight"
)
"""A cross-attention K or V weight in the ldm or the diffusers layout, relative to the U-Net."""
LABEL_KEYS = (
    "label_emb.0.0.weight",
    "add_embedding.linear_1.weight",
    "class_embedding.linear_1.weight",
)
UNET_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "unet/", "unet.", "")


def find_unet(shapes: Shapes) -> tuple[str, dict[str, tuple[int, ...]]] | None:
    """(prefix, {key below it: shape}) of the U-Net with cross attention in a file, or None."""
    for prefix in UNET_PREFIXES:
        unet = {
            key[len(prefix) :]: tuple(shape)
            for key, shape in shapes.items()
            if key.startswith(prefix)
        }
        if any(ATTENTION.fullmatch(key) for key in unet):
            return prefix, unet
    return None


def context_widths(unet: Shapes) -> set[int]:
    """Widths of text that cross attention reads: one in a sound model, 0 for packed weights."""
    shapes = (shape for key, shape in unet.items() if ATTENTION.fullmatch(key))
    return {shape[1] if len(shape) == 2 else 0 for shape in shapes}


_SECTIONS = {"input_blocks": 0, "middle_block": 1, "output_blocks": 2}


def model_order(path: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key of an ldm path: input, middle, output blocks; numbers by value."""
    order: list[tuple[int, int | str]] = []
    for name in path.split("."):
        if name.isdecimal():
            order.append((0, int(name)))
        elif name in _SECTIONS:
            order.append((0, _SECTIONS[name]))
        else:
            order.append((1, name))
    return tuple(order)


_LDM_BLOCK = re.compile(r"(input_blocks|output_blocks)\.(\d{1,4})\.(\d{1,4})\.(\w+)")
_DIFFUSERS_BLOCK = re.compile(
    r"(down_blocks|up_blocks)\.(\d{1,4})\.(resnets|downsamplers|upsamplers)\.(\d{1,4})\."
)
_MIDDLE = ("middle_block.1", "mid_block.attentions.0")


def attention_paths(keys: Iterable[str]) -> dict[str, str]:
    """{ldm path: diffusers path} of every attention block that a U-Net may have.

    `keys`: all keys of one U-Net, relative to it, in either layout.
    """
    keys = list(keys)
    if any(key.startswith(("down_blocks.", "up_blocks.")) for key in keys):
        return _walk_diffusers(keys)
    return _walk_ldm(keys)


def _walk_ldm(keys: list[str]) -> dict[str, str]:
    """Numbers the levels of an ldm U-Net: `op` downsamples, a bare `conv` upsamples."""
    modules: dict[str, dict[int, set[str]]] = {
        "input_blocks": defaultdict(set),
        "output_blocks": defaultdict(set),
    }
    for key in keys:
        if match := _LDM_BLOCK.match(key):
            modules[match[1]][int(match[2])].add(match[4])
    paths = dict([_MIDDLE])
    level = index = 0
    for number, names in sorted(modules["input_blocks"].items()):
        if "op" in names:
            level, index = level + 1, 0
        elif "in_layers" in names:
            paths[f"input_blocks.{number}.1"] = f"down_blocks.{level}.attentions.{index}"
            index += 1
    level = index = 0
    for number, names in sorted(modules["output_blocks"].items()):
        paths[f"output_blocks.{number}.1"] = f"up_blocks.{level}.attentions.{index}"
        index += 1
        if "conv" in names:
            level, index = level + 1, 0
    return paths


def _walk_diffusers(keys: list[str]) -> dict[str, str]:
    """Numbers blocks as ldm does: a downsampler takes a number, an upsampler does not."""
    resnets: dict[tuple[str, int], set[int]] = defaultdict(set)
    downsampled: set[int] = set()
    for key in keys:
        if match := _DIFFUSERS_BLOCK.match(key):
            if match[3] == "resnets":
                resnets[match[1], int(match[2])].add(int(match[4]))
            elif match[3] == "downsamplers":
                downsampled.add(int(match[2]))
    paths = dict([_MIDDLE])
    number = {"down_blocks": 1, "up_blocks": 0}  # input_blocks.0 is the first convolution
    for (side, level), indices in sorted(resnets.items()):
        section = "input_blocks" if side == "down_blocks" else "output_blocks"
        for index in sorted(indices):
            paths[f"{section}.{number[side]}.1"] = f"{side}.{level}.attentions.{index}"
            number[side] += 1
        if side == "down_blocks" and level in downsampled:
            number[side] += 1
    return paths


_LDM_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "")
_DIFFUSERS_PREFIXES = ("transformer/", "transformer.", "")


class EntryLayout(NamedTuple):
    """One way to spell the keys of a family whose text enters at `EntryLayer`s."""

    prefix: str
    path: str
    needs: tuple[tuple[str, int | None], ...]
    """Keys that must be present, and the width of text that they read, or None."""

    @property
    def first_key(self) -> str:
        """The key of the first layer at the path."""
        return f"{self.prefix}{self.path.replace('*', '0')}.weight"


def entry_layouts(family: Architecture) -> Iterator[EntryLayout]:
    """Every layout that files of the family may have."""
    entry, second, part = family.entry, family.second_input, family.text_part
    if entry is None:
        return
    ldm_second, diffusers_second = (second.ldm_key, second.diffusers_key) if second else ("", "")
    for prefixes, path, keys, second_key in (
        (_LDM_PREFIXES, entry.ldm_path, entry.ldm_needs, ldm_second),
        (_DIFFUSERS_PREFIXES, entry.diffusers_path, entry.diffusers_needs, diffusers_second),
    ):
        if not path:
            continue
        needs: list[tuple[str, int | None]] = [(key, None) for key in keys]
        text_reader = ((part.reads if part is not None else "") or path).replace("*", "0")
        states = part.states if part is not None else 1
        needs.append((f"{text_reader}.weight", family.context_width // states))
        if second is not None:
            needs.append((second_key, second.width))
        for prefix in prefixes:
            yield EntryLayout(prefix, path, tuple(needs))


def find_entry(shapes: Shapes, family: Architecture) -> EntryLayout | None:
    """The layout of a file of this family; None when the file is of another."""
    for layout in entry_layouts(family):
        if layout.first_key in shapes and entry_difference(shapes, family, layout) is None:
            return layout
    return None


def entry_layers(shapes: Shapes, prefix: str, path: str) -> list[tuple[str, str]]:
    """(path with its number, key) of every layer at a path.

    Args:
        shapes: {key: shape} of the file.
        prefix: What the model's keys begin with.
        path: The path below the prefix; `*` matches a number.
    """
    pattern = re.compile(
        re.escape(prefix) + "(" + re.escape(path).replace(r"\*", r"\d{1,4}") + r")\.weight"
    )
    matches = [(match[1], key) for key in shapes if (match := pattern.fullmatch(key))]
    return sorted(matches, key=lambda path_and_key: model_order(path_and_key[0]))


def entry_difference(shapes: Shapes, family: Architecture, layout: EntryLayout) -> str | None:
    """How a model differs from the family, as the end of a sentence; None: it does not.

    Args:
        shapes: The model's keys and shapes.
        family: A family with an entry layer.
        layout: One of the family's layouts.
    """
    for key, width in layout.needs:
        shape = shapes.get(layout.prefix + key)
        if shape is None:
            return f"it has no {key}"
        if width is not None and (len(shape) != 2 or shape[1] != width):
            return f"{key} is {' x '.join(map(str, shape))}, not outputs x {width}"
    assert family.entry is not None
    forbidden = tuple(layout.prefix + start for start in family.entry.forbidden)
    extra = next((key for key in shapes if key.startswith(forbidden)), None)
    return f"it has {extra[len(layout.prefix) :]}" if extra else None


def spelling(encoder: FamilyEncoder, names: Iterable[str]) -> Naming | None:
    """How these names inside one encoder are spelled; None: they are of another kind of encoder."""
    names = list(names)
    if not encoder.causal:
        return "hf" if any(name.startswith("encoder.block.") for name in names) else None
    if any(name.startswith("transformer.resblocks.") for name in names):
        return "open_clip"
    return "hf" if any(".layers." in name for name in names) else None


def encoder_keys(encoder: FamilyEncoder, keys: Iterable[str]) -> tuple[Naming, dict[str, str]]:
    """Spelling and {name inside the encoder: file key} of one text encoder; empty when the file
    does not contain it.

    CLIP's names in `hf` spelling always begin with `text_model.` or are `text_projection.weight`,
    also for old files that leave `text_model.` out.
    """
    keys = list(keys)
    for prefix in (*encoder.prefixes, f"{encoder.folder}/"):
        names = {key[len(prefix) :]: key for key in keys if key.startswith(prefix)}
        if naming := spelling(encoder, names):
            if naming == "hf" and encoder.causal:
                bare = ("embeddings.", "encoder.", "final_layer_norm.")
                names = {
                    f"text_model.{name}" if name.startswith(bare) else name: key
                    for name, key in names.items()
                }
            return naming, names
    return encoder.naming, {}
