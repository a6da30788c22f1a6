"""One name for each tensor of a model, whichever layout a file has. Files of the same model compare
by it: a stock saver changes prefixes, and diffusers renames a U-Net throughout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .architecture import Architecture
from .keys import UNET_PREFIXES, attention_paths, encoder_keys

MODEL = "unet/"
"""What the names of the diffusion model begin with."""
EMA = "model_ema."
"""What the averaged second copy begins with, which training leaves in some files."""
_RENAMED = (
    *(("conv_in.", "input_blocks.0.0."), ("conv_norm_out.", "out.0."), ("conv_out.", "out.2.")),
    *(("time_embedding.linear_1.", "time_embed.0."), ("time_embedding.linear_2.", "time_embed.2.")),
    *(("add_embedding.linear_1.", "label_emb.0.0."), ("add_embedding.linear_2.", "label_emb.0.2.")),
    *(("mid_block.resnets.0.", "middle_block.0."), ("mid_block.resnets.1.", "middle_block.2.")),
)
"""Modules of a U-Net: diffusers' name, the original one."""
_IN_RESNET = (
    *(("norm1.", "in_layers.0."), ("conv1.", "in_layers.2."), ("norm2.", "out_layers.0.")),
    *(("conv2.", "out_layers.3."), ("time_emb_proj.", "emb_layers.1.")),
    ("conv_shortcut.", "skip_connection."),
)
_PARTS = ("first_stage_model.", "vae.", "cond_stage_model.", "conditioner.", "text_encoders.", EMA)
_BUFFER = re.compile(
    r"(.*\.)?(position_ids|logit_scale)|model_ema\.(decay|num_updates)"
    r"|(sqrt_)?(one_minus_)?(sqrt_recipm?1?_?|log_)?(alphas|betas)\w*|sqrt_\w+|log_one_minus_\w+"
    r"|posterior_\w+|lvlb_weights|denoiser\.sigmas"
)


def is_buffer(key: str) -> bool:
    """Whether a tensor is one that savers add or leave out, because loaders compute or ignore
    it.
    """
    return _BUFFER.fullmatch(key) is not None


def common_names(family: Architecture, keys: Iterable[str]) -> dict[str, str]:
    """{key of a file: the name that the tensor has in every layout}.

    Args:
        family: The model's family.
        keys: All keys of one file.
    """
    keys = list(keys)
    names = {key: key for key in keys}
    for encoder in family.every_encoder:
        naming, inside = encoder_keys(encoder, keys)
        names |= {key: f"{encoder.folder}/{naming}/{name}" for name, key in inside.items()}
    bare = not any(key.startswith(prefix) for key in keys for prefix in UNET_PREFIXES[:-1])
    for prefix in UNET_PREFIXES:
        inside = {
            key: key.removeprefix(prefix)
            for key in keys
            if key.startswith(prefix) and names[key] == key and (prefix or _in_unet(key) or bare)
        }
        renamed = _original(inside.values())
        names |= {
            key: MODEL + renamed.get(name, name)
            for key, name in inside.items()
            if prefix or not name.startswith(_PARTS)
        }
    return names


def _in_unet(key: str) -> bool:
    blocks = ("input_blocks.", "middle_block.", "output_blocks.", "down_blocks.", "up_blocks.")
    return key.startswith((*blocks, "mid_block.", *(name for pair in _RENAMED for name in pair)))


def _original(names: Iterable[str]) -> dict[str, str]:
    """{a U-Net's key in diffusers' layout: the original key}."""
    names = [name for name in names if name.startswith(("down_", "up_", "mid_", *_TOPS))]
    if not any(name.startswith(("down_blocks.", "up_blocks.")) for name in names):
        return {}
    modules = {theirs + ".": ours + "." for ours, theirs in attention_paths(names).items()}
    resnets = {
        theirs.replace("attentions", "resnets"): ours[: -len(".1.")] + ".0."
        for theirs, ours in modules.items()
        if not theirs.startswith("mid_")
    }
    # The last block of a level is followed by the sampler that ends the level.
    samplers: dict[str, str] = {}
    for theirs, ours in resnets.items():
        side, level, *_ = theirs.split(".")
        section, number, *_ = ours.split(".")
        if side == "down_blocks":
            samplers[f"{side}.{level}.downsamplers.0.conv."] = f"{section}.{int(number) + 1}.0.op."
        else:
            attends = any(name.startswith(f"{side}.{level}.attentions.") for name in names)
            samplers[f"{side}.{level}.upsamplers.0.conv."] = (
                f"{section}.{number}.{1 + attends}.conv."
            )
    starts = {**dict(_RENAMED), **modules, **samplers}
    renamed = {}
    for name in names:
        for theirs, ours in resnets.items():
            if name.startswith(theirs):
                renamed[name] = ours + _in_resnet(name.removeprefix(theirs))
        for theirs, ours in starts.items():
            if name.startswith(theirs):
                rest = name.removeprefix(theirs)
                renamed[name] = ours + (_in_resnet(rest) if ".resnets." in theirs else rest)
    return renamed


_TOPS = tuple(theirs for theirs, _ in _RENAMED)


def _in_resnet(name: str) -> str:
    return next(
        (
            ours + name.removeprefix(theirs)
            for theirs, ours in _IN_RESNET
            if name.startswith(theirs)
        ),
        name,
    )
