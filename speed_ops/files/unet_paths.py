"""The two spellings of a U-Net's attention blocks, and the walk from one to the other.

The original (ldm) layout numbers input and output blocks through; diffusers numbers levels and, inside a level, the
residual blocks. Which block starts a level is read from the keys themselves (a downsampler or upsampler ends one), so
models of any number of levels map, not only the published sizes.

    ldm        input_blocks.4.1   middle_block.1            output_blocks.3.1
    diffusers  down_blocks.1.attentions.0   mid_block.attentions.0   up_blocks.1.attentions.0
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

_LDM_BLOCK = re.compile(r"(input_blocks|output_blocks)\.(\d{1,4})\.(\d{1,4})\.(\w+)")
_DIFFUSERS_BLOCK = re.compile(r"(down_blocks|up_blocks)\.(\d{1,4})\.(resnets|downsamplers|upsamplers)\.(\d{1,4})\.")
_MIDDLE = ("middle_block.1", "mid_block.attentions.0")


def attention_paths(keys: Iterable[str]) -> dict[str, str]:
    """{ldm path: diffusers path} of every place where an attention block can stand.

    `keys`: all keys of one U-Net, relative to it, in either layout; the layout is recognised.
    """
    keys = list(keys)
    if any(key.startswith(("down_blocks.", "up_blocks.")) for key in keys):
        return _walk_diffusers(keys)
    return _walk_ldm(keys)


def _walk_ldm(keys: list[str]) -> dict[str, str]:
    """Number the levels of an ldm U-Net: `op` is a downsampler, a bare `conv` after a residual block an upsampler."""
    parts: dict[str, dict[int, set[str]]] = {"input_blocks": defaultdict(set), "output_blocks": defaultdict(set)}
    for key in keys:
        if match := _LDM_BLOCK.match(key):
            parts[match[1]][int(match[2])].add(match[4])
    paths = dict([_MIDDLE])
    level = place = 0
    for number, names in sorted(parts["input_blocks"].items()):
        if "op" in names:
            level, place = level + 1, 0
        elif "in_layers" in names:
            paths[f"input_blocks.{number}.1"] = f"down_blocks.{level}.attentions.{place}"
            place += 1
    level = place = 0
    for number, names in sorted(parts["output_blocks"].items()):
        paths[f"output_blocks.{number}.1"] = f"up_blocks.{level}.attentions.{place}"
        place += 1
        if "conv" in names:
            level, place = level + 1, 0
    return paths


def _walk_diffusers(keys: list[str]) -> dict[str, str]:
    """Number the blocks of a diffusers U-Net as ldm does: a downsampler takes a number, an upsampler does not."""
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
    for (side, level), places in sorted(resnets.items()):
        section = "input_blocks" if side == "down_blocks" else "output_blocks"
        for place in sorted(places):
            paths[f"{section}.{number[side]}.1"] = f"{side}.{level}.attentions.{place}"
            number[side] += 1
        if side == "down_blocks" and level in downsampled:
            number[side] += 1
    return paths
