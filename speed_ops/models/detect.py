"""Which family a model is of and which of its layers an erasure edits, from keys and shapes alone.

A family is recognised by which layers a file holds and how wide they are, never by its name. To add
one, add a row to `families`. What is no model that can be edited is named in the message that
refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from ..errors import SettingsError, UnsupportedModelError
from .architecture import Architecture, LayerKey
from .families import ARCHITECTURES
from .keys import (
    ATTENTION,
    LABEL_KEYS,
    UNET_PREFIXES,
    Shapes,
    Which,
    attention_paths,
    context_widths,
    entry_difference,
    entry_layers,
    entry_places,
    find_entry,
    find_unet,
    first_key,
    model_order,
)

# Keys as they stand relative to the model; all of a row must be present. First match wins, so the
# special stands before the general (Chroma and HunyuanVideo contain Flux's blocks).
_MODELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("a ControlNet", ("controlnet_blocks.0.weight",)),
    ("a Chroma model", ("distilled_guidance_layer.norms.0.scale",)),
    ("a Chroma model", ("distilled_guidance_layer.0.norms.0.scale",)),
    ("a HunyuanVideo model", ("txt_in.individual_token_refiner.blocks.0.norm1.weight",)),
    ("a Flux.2 model", ("double_stream_modulation_img.lin.weight", "txt_in.weight")),
    ("an Ovis-Image model", ("txt_norm.scale", "txt_in.weight")),
    ("a Flux model", ("double_blocks.0.img_attn.qkv.weight", "txt_in.weight")),
    ("a Flux model", ("single_transformer_blocks.0.attn.to_q.weight", "context_embedder.weight")),
    (
        "a Stable Diffusion 3 model with a context processor",
        ("context_processor.layers.0.attn.qkv.weight",),
    ),
    ("a Stable Diffusion 3 model", ("joint_blocks.0.context_block.attn.qkv.weight",)),
    (
        "a Stable Diffusion 3 model",
        ("transformer_blocks.0.attn.add_q_proj.weight", "pos_embed.proj.weight"),
    ),
    ("an AuraFlow model", ("cond_seq_linear.weight",)),
    ("a Hunyuan-DiT model", ("mlp_t5.0.weight",)),
    ("a Qwen-Image model", ("txt_norm.weight", "txt_in.weight")),
    ("a PixArt model", ("t_block.1.weight",)),
    ("a Lumina or Z-Image model", ("cap_embedder.1.weight",)),
    ("a HiDream model", ("caption_projection.0.linear.weight",)),
    ("a Mochi model", ("t5_yproj.weight",)),
    ("a Wan model", ("head.modulation", "text_embedding.0.weight")),
    ("an LTX-Video or PixArt model", ("adaln_single.emb.timestep_embedder.linear_1.bias",)),
    ("a Cosmos model", ("blocks.block0.blocks.0.block.attn.to_q.0.weight",)),
    ("a Cosmos model", ("blocks.0.mlp.layer1.weight",)),
    ("an OmniGen2 model", ("time_caption_embed.timestep_embedder.linear_1.bias",)),
    ("a Kandinsky 5 model", ("visual_transformer_blocks.0.cross_attention.key_norm.weight",)),
    ("a Stable Cascade model", ("clip_txt_mapper.weight",)),
    ("a Stable Cascade model", ("clf.1.weight",)),
    ("an ACE-Step audio model", ("genre_embedder.weight",)),
)

_FOREIGN_PREFIXES = (
    "",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer/",
    "model.",
    "net.",
    "prior/",
)

# Parts of a model, recognised by how a key begins.
_PIECES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "a ControlNet",
        (
            "control_model.",
            "controlnet_",
            "zero_convs.",
            "input_hint_block.",
            "controlnet_cond_embedding.",
        ),
    ),
    ("a VAE alone", ("encoder.down", "decoder.up", "decoder.mid", "first_stage_model.")),
    (
        "a text encoder alone",
        ("text_model.", "transformer.text_model.", "encoder.block.0.", "shared.weight"),
    ),
    (
        "a text encoder alone",
        ("clip_l.", "clip_g.", "clip_h.", "t5xxl.", "text_encoder/", "text_encoder_2/"),
    ),
    ("a textual inversion embedding", ("emb_params", "clip_l", "clip_g", "string_to_param")),
)

_LORA_KEY = re.compile(
    r"(\.lora_(up|down|A|B|mid)\.|\.lora_[AB]$|\.hada_w|\.lokr_w|\.lora\.(up|down)\.|\.oft_|\.dora_scale$)"
)


def is_lora(keys: Iterable[str]) -> bool:
    """True when the file holds low-rank factors instead of weights."""
    return any(_LORA_KEY.search(key) for key in keys)


def model_name(keys: Iterable[str]) -> str | None:
    """Which other model the keys are of, with its article (`a Flux model`), or None."""
    present = set(keys)
    for title, needed in _MODELS:
        if any(all(prefix + key in present for key in needed) for prefix in _FOREIGN_PREFIXES):
            return title
    return None


def piece_name(keys: Iterable[str]) -> str | None:
    """Which piece of a model the keys are of, when they are not of a whole one; or None."""
    present = list(keys)
    return next(
        (title for title, starts in _PIECES if any(key.startswith(starts) for key in present)), None
    )


def detect(shapes: Shapes, families: Sequence[Architecture] = ARCHITECTURES) -> Architecture:
    """The family of a checkpoint, of a bare diffusion model, or of a diffusers folder, in either
    key layout.
    """
    found = find_unet(shapes)
    if found is not None:
        return _detect_unet(shapes, found[1], families)
    for row in families:
        if row.entry is not None and find_entry(shapes, row):
            return row
    raise _refusal(shortfall(shapes, families) or what_else(shapes), families)


def _detect_unet(shapes: Shapes, unet: Shapes, families: Sequence[Architecture]) -> Architecture:
    if reason := obstacle(shapes, unet):
        raise _refusal(reason, families)
    widths = context_widths(unet)
    label = next((unet[key][-1] for key in LABEL_KEYS if unet.get(key)), None)
    for row in families:
        if widths == {row.context_width} and label in row.label_widths:
            return row
    if 0 in widths:
        packed = (
            "The cross-attention weights are packed by a quantiser: use the file in fp16, bf16 or"
            " fp32"
        )
        raise _refusal(packed, families)
    seen = " and ".join(map(str, sorted(widths))) + (
        f" with a label embedding of width {label}" if label else ""
    )
    raise _refusal(
        f"This is a U-Net whose cross attention reads embeddings of width {seen}", families
    )


def _refusal(seen: str, families: Sequence[Architecture] = ARCHITECTURES) -> UnsupportedModelError:
    titles = ", ".join(
        row.title if row.on_command_line else f"{row.title} (in ComfyUI)" for row in families
    )
    return UnsupportedModelError(f"{seen}. Supported models: {titles}.")


def layers(architecture: Architecture, shapes: Shapes, which: Which = "V") -> list[LayerKey]:
    """The layers to edit, in the order of the model: input, middle, output; K before V within a
    block.

    A model that all text enters at one layer has that one, whatever is asked for: K and V come from
    it alike.
    """
    if which not in ("V", "K", "KV"):
        raise SettingsError(f"Layers must be V, K or KV, not {which!r}.")
    if architecture.entry is not None:
        return _entry_layers(architecture, shapes, which)
    return _attention_layers(architecture, shapes, which)


def _entry_layers(architecture: Architecture, shapes: Shapes, which: Which) -> list[LayerKey]:
    entry, place = architecture.entry, find_entry(shapes, architecture)
    if entry is None or place is None:
        raise _refusal(f"This is not a {architecture.title} model")
    prefix, path = place
    found = []
    for value_path in (path, *entry.further):
        wanted: list[tuple[Literal["K", "V", "entry"], str]] = [("entry", value_path)]
        if entry.beside:
            wanted = [("K", beside(value_path, entry.beside))] if "K" in which else []
            wanted += [("V", value_path)] if "V" in which else []
        for kind, one in wanted:
            for numbered, key in entry_layers(shapes, prefix, one):
                found.append(_entry_key(architecture, numbered, key, kind, shapes))
    return sorted(found, key=lambda layer: model_order(layer.ldm_path))


def beside(path: str, name: str) -> str:
    """The path of what is called `name` beside the layer at a path."""
    return f"{path.rpartition('.')[0]}.{name}"


def _entry_key(
    architecture: Architecture,
    path: str,
    file_key: str,
    kind: Literal["K", "V", "entry"],
    shapes: Shapes,
) -> LayerKey:
    """`path`: as the file spells it."""
    entry = architecture.entry
    assert entry is not None
    ldm, diffusers = path, entry.diffusers_path or path
    if "*" not in entry.ldm_path:
        ldm = entry.ldm_path
    outputs, width = shapes[file_key]
    names = (
        f"diffusion_model.{ldm}.weight",
        file_key,
        ldm,
        diffusers,
        "lora_unet_" + ldm.replace(".", "_"),
    )
    return LayerKey(*names, kind, (outputs, width))


def pooled_layer(architecture: Architecture, shapes: Shapes) -> LayerKey | None:
    """The layer that reads the pooled embedding; None where the family has none."""
    pooled = architecture.pooled
    if pooled is None:
        return None
    for prefix in dict.fromkeys(
        (*UNET_PREFIXES, *(place[0] for place in entry_places(architecture)))
    ):
        for key in (pooled.ldm_key, pooled.diffusers_key):
            shape = shapes.get(prefix + key)
            if shape is not None and len(shape) == 2 and shape[1] == pooled.width:
                ldm, diffusers = (
                    name.removesuffix(".weight") for name in (pooled.ldm_key, pooled.diffusers_key)
                )
                names = (f"diffusion_model.{ldm}.weight", prefix + key, ldm, diffusers)
                return LayerKey(
                    *names, "lora_unet_" + ldm.replace(".", "_"), "pooled", (shape[0], shape[1])
                )
    return None


def _attention_layers(architecture: Architecture, shapes: Shapes, which: Which) -> list[LayerKey]:
    found_unet = find_unet(shapes)
    if found_unet is None:
        raise _refusal(what_else(shapes))
    prefix, unet = found_unet
    to_diffusers = attention_paths(unet)
    to_ldm = {diffusers: ldm for ldm, diffusers in to_diffusers.items()}
    found = []
    for key, shape in unet.items():
        match = ATTENTION.fullmatch(key)
        if match is None or (kind := match["kind"].upper()) not in which:
            continue
        if len(shape) != 2 or shape[1] != architecture.context_width:
            wanted = f"outputs x {architecture.context_width}"
            raise _refusal(
                f"Layer {prefix}{key} has shape {shape}, not {wanted} as {architecture.title} needs"
            )
        ldm = to_ldm.get(match["block"], match["block"]) + match["rest"]
        diffusers = to_diffusers.get(match["block"], match["block"]) + match["rest"]
        path = ldm if architecture.lora_paths == "ldm" else diffusers
        names = (
            f"diffusion_model.{ldm}.weight",
            prefix + key,
            ldm,
            diffusers,
            "lora_unet_" + path.replace(".", "_"),
        )
        found.append(LayerKey(*names, "K" if kind == "K" else "V", (shape[0], shape[1])))
    return sorted(found, key=lambda layer: model_order(layer.ldm_path))


def _text_paths() -> Iterator[str]:
    """Patterns of every path, in a loaded model, of a layer that some family edits."""
    yield ATTENTION.pattern.removesuffix(r"\.weight")
    for entry in (row.entry for row in ARCHITECTURES if row.entry is not None):
        for path in (entry.ldm_path, *entry.further):
            for one in (path, beside(path, entry.beside)) if entry.beside else (path,):
                yield re.escape(one).replace(r"\*", r"\d{1,4}")
    for pooled in (row.pooled for row in ARCHITECTURES if row.pooled is not None):
        yield re.escape(pooled.ldm_key.removesuffix(".weight"))


_TEXT_LAYER = re.compile(rf"diffusion_model\.(?:{'|'.join(_text_paths())})\.weight")


def reads_text(key: str) -> bool:
    """Whether a key of a loaded model is that of a layer that an erasure edits in some family."""
    return _TEXT_LAYER.fullmatch(key) is not None


_VIDEO = (".time_stack.", ".time_mixer.", ".time_mix_blocks.", ".temporal_transformer_blocks.")


def what_else(shapes: Shapes) -> str:
    """A sentence's beginning for a file in which no such U-Net was found."""
    if is_lora(shapes):
        return "This is a LoRA, not a model: give the checkpoint it belongs to"
    if seen := model_name(shapes):
        return f"This looks like {seen}"
    starts = tuple(
        prefix + first for prefix in UNET_PREFIXES for first in ("input_blocks.0.0.", "conv_in.")
    )
    if any(key.startswith(starts) for key in shapes):
        return "This is a U-Net without text cross attention"
    if seen := piece_name(shapes):
        return f"This looks like {seen}"
    return "No diffusion model with text cross attention was found in this file"


def obstacle(shapes: Shapes, unet: Shapes) -> str | None:
    """Why a U-Net's cross attention is not fed by text alone, as a sentence's beginning; None when
    it is.
    """
    if any(mark in key for key in unet for mark in _VIDEO):
        return (
            "This looks like a video model (SVD, SV3D), whose cross attention reads image"
            " embeddings"
        )
    if any(key.startswith("cc_projection.") for key in shapes):
        return "This looks like a Zero123 model, whose cross attention reads image embeddings"
    if any(key.startswith(("zero_convs.", "input_hint_block.", "controlnet_")) for key in unet):
        return "This looks like a ControlNet"
    conditioner = [
        key for key in shapes if key.startswith(("cond_stage_model.", "conditioner.embedders.0."))
    ]
    if any(".vision_model." in key or ".visual." in key for key in conditioner):
        return (
            "This looks like an image-variation model, whose cross attention reads image embeddings"
        )
    if any(".roberta." in key for key in conditioner):
        return "This looks like an AltDiffusion model, whose text encoder is not CLIP"
    if any(key.startswith("encoder_hid_proj.") for key in unet):
        return (
            "This looks like a Kolors or IP-Adapter model, whose cross attention does not read"
            " CLIP's output directly"
        )
    for key, shape in unet.items():
        if key.endswith(".attn1.to_v.weight") and len(shape) == 2:
            query = unet.get(key.replace("to_v", "to_q"), shape)
            if len(query) == 2 and query[1] != shape[1]:
                where = f"through its self-attention layers ({key}), as in SDXS or the x4 upscaler"
                return f"Text also enters this model {where}"
    return None


def shortfall(shapes: Shapes, families: Sequence[Architecture]) -> str | None:
    """For a file that looks like one of these families and is not: a sentence's beginning that says
    why.
    """
    seen = model_name(shapes)
    reasons = []
    for family in reversed(families):  # the plainest of like families stands last
        if family.entry is not None and family.entry.look_alike == seen:
            places = (
                place for place in entry_places(family) if first_key(place[0], place[1]) in shapes
            )
            reasons += [
                entry_difference(shapes, family, place[0], place[2]) or ""
                for place in list(places)[:1]
            ]
    # A family that reads text of another width is not the one that it nearly is.
    reasons.sort(key=lambda reason: "not outputs x" in reason)
    return f"This looks like {seen}, but {reasons[0]}" if reasons else None
