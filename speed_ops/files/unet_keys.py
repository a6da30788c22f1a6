"""Find the U-Net among a file's keys, and see from them whether text is what its cross attention reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from . import foreign

Shapes = Mapping[str, Sequence[int]]
"""Key -> shape, for all tensors of a file. Keys of a diffusers folder begin with the component: `unet/conv_in.bias`."""

ATTENTION = re.compile(
    r"(?P<block>(?:input|output)_blocks\.\d{1,4}\.1|middle_block\.1|(?:down|up)_blocks\.\d{1,4}\.attentions\.\d{1,4}"
    r"|mid_block\.attentions\.0)(?P<rest>\.transformer_blocks\.\d{1,4}\.attn2\.to_(?P<kind>[kv]))\.weight"
)
"""A cross-attention K or V weight in the ldm or the diffusers layout, relative to the U-Net."""
LABEL_KEYS = ("label_emb.0.0.weight", "add_embedding.linear_1.weight", "class_embedding.linear_1.weight")
_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "unet/", "unet.", "")
_VIDEO = (".time_stack.", ".time_mixer.", ".time_mix_blocks.", ".temporal_transformer_blocks.")


def find_unet(shapes: Shapes) -> tuple[str, dict[str, tuple[int, ...]]] | None:
    """(prefix, {key below it: shape}) of the U-Net with cross attention in a file, or None."""
    for prefix in _PREFIXES:
        unet = {key[len(prefix) :]: tuple(shape) for key, shape in shapes.items() if key.startswith(prefix)}
        if any(ATTENTION.fullmatch(key) for key in unet):
            return prefix, unet
    return None


def what_else(shapes: Shapes) -> str:
    """A sentence's beginning for a file in which no such U-Net was found."""
    if foreign.is_lora(shapes):
        return "This is a LoRA, not a model: give the checkpoint it belongs to"
    if seen := foreign.model_name(shapes):
        return f"This looks like {seen}"
    starts = tuple(prefix + first for prefix in _PREFIXES for first in ("input_blocks.0.0.", "conv_in."))
    if any(key.startswith(starts) for key in shapes):
        return "This is a U-Net without text cross attention"
    if seen := foreign.piece_name(shapes):
        return f"This looks like {seen}"
    return "No diffusion model with text cross attention was found in this file"


def obstacle(shapes: Shapes, unet: Shapes) -> str | None:
    """Why a U-Net's cross attention is not fed by text alone, as a sentence's beginning; None when it is."""
    if any(mark in key for key in unet for mark in _VIDEO):
        return "This looks like a video model (SVD, SV3D), whose cross attention reads image embeddings"
    if any(key.startswith("cc_projection.") for key in shapes):
        return "This looks like a Zero123 model, whose cross attention reads image embeddings"
    if any(key.startswith(("zero_convs.", "input_hint_block.", "controlnet_")) for key in unet):
        return "This looks like a ControlNet"
    conditioner = [key for key in shapes if key.startswith(("cond_stage_model.", "conditioner.embedders.0."))]
    if any(".vision_model." in key or ".visual." in key for key in conditioner):
        return "This looks like an image-variation model, whose cross attention reads image embeddings"
    if any(".roberta." in key for key in conditioner):
        return "This looks like an AltDiffusion model, whose text encoder is not CLIP"
    if any(key.startswith("encoder_hid_proj.") for key in unet):
        return (
            "This looks like a Kolors or IP-Adapter model, whose cross attention does not read CLIP's output directly"
        )
    for key, shape in unet.items():
        if key.endswith(".attn1.to_v.weight") and len(shape) == 2:
            query = unet.get(key.replace("to_v", "to_q"), shape)
            if len(query) == 2 and query[1] != shape[1]:
                return f"Text enters this model at its self-attention places too ({key}), as in SDXS or the x4 upscaler"
    return None


def context_widths(unet: Shapes) -> set[int]:
    """Widths of text the cross-attention layers read: one for a sound model. Packed (non-matrix) weights count as 0."""
    return {shape[1] if len(shape) == 2 else 0 for key, shape in unet.items() if ATTENTION.fullmatch(key)}


def model_order(path: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key of an ldm path: input, middle, output blocks; numbers by value."""
    sections = {"input_blocks": 0, "middle_block": 1, "output_blocks": 2}
    return tuple(
        (0, int(part)) if part.isdecimal() else (0, sections[part]) if part in sections else (1, part)
        for part in path.split(".")
    )
