"""The family of a model and the layers that an erasure edits, from keys and shapes alone.

A family is recognized by the layers in a file and their widths, never by its name. To add one, add
an entry to `families`. The message that refuses another model describes what it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..errors import SettingsError, UnsupportedModelError
from .architecture import Architecture, EntryLayer, LayerKey, LayerKind
from .families import ARCHITECTURES
from .keys import (
    ATTENTION,
    LABEL_KEYS,
    UNET_PREFIXES,
    Shapes,
    attention_paths,
    context_widths,
    entry_difference,
    entry_layers,
    entry_layouts,
    find_entry,
    find_unet,
    model_order,
)

_REFINER = "txt_in.individual_token_refiner.blocks.0.norm1.weight"
# Keys relative to the model; all keys of an entry must be present. The first match wins, so the
# special comes before the general (Chroma and HunyuanVideo contain Flux's blocks).
_MODELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("a ControlNet", ("controlnet_blocks.0.weight",)),
    ("a Chroma model", ("distilled_guidance_layer.in_proj.weight",)),
    ("a Chroma model", ("distilled_guidance_layer.0.in_proj.weight",)),
    ("a HunyuanVideo 1.5 model", (_REFINER, "cond_type_embedding.weight")),
    ("a HunyuanImage model", (_REFINER, "byt5_in.fc1.weight")),
    ("a HunyuanVideo model", (_REFINER,)),
    ("a Flux.2 model", ("double_stream_modulation_img.lin.weight", "txt_in.weight")),
    ("an Ovis-Image model", ("txt_norm.scale", "txt_in.weight")),
    ("an Ovis-Image model", ("txt_norm.weight", "double_blocks.0.img_attn.qkv.weight")),
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
    ("a Z-Image model in pixel space", ("cap_embedder.1.weight", "dec_net.cond_embed.weight")),
    ("a Ming-Image model", ("cap_embedder.1.weight", "__ming_image__")),
    ("a Lumina or Z-Image model", ("cap_embedder.1.weight",)),
    ("a Krea 2 model", ("txtfusion.projector.weight",)),
    ("a Qwen-Image 2.1 model", ("txt_in.in_layer.weight", "txt_in.out_layer.weight")),
    ("a HiDream model", ("caption_projection.0.linear.weight",)),
    ("a Mochi model", ("t5_yproj.weight",)),
    ("a Wan model", ("head.modulation", "text_embedding.0.weight")),
    ("an LTX-2 model", ("audio_adaln_single.linear.weight",)),
    ("an LTX-Video or PixArt model", ("adaln_single.emb.timestep_embedder.linear_1.bias",)),
    ("a Cosmos model", ("blocks.block0.blocks.0.block.attn.to_q.0.weight",)),
    ("an Anima model", ("llm_adapter.blocks.0.cross_attn.q_proj.weight",)),
    ("a Cosmos Predict2 model", ("blocks.0.mlp.layer1.weight",)),
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

# Pieces of a model, by how a key begins.
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
    r"[._](lora_(up|down|mid|A|B)|lora(_linear_layer)?\.(up|down))(\.|$)"
    r"|\.((hada|lokr|oft|glora)_\w+|oft_blocks|[ab][12]\.weight|diff(_b)?|[wb]_norm|set_weight"
    r"|reshape_weight|dora_scale)$"
)
"""A tensor that LoRA loaders read: low-rank factors, or another change of a weight."""


def is_adapter_key(key: str) -> bool:
    """Whether LoRA loaders read a tensor as a change of a weight."""
    return _LORA_KEY.search(key) is not None


def is_lora(shapes: Shapes) -> bool:
    """Whether a file contains changes of weights, and no model. A checkpoint stays one whatever it
    carries as well: loaders ignore the rest.
    """
    return any(map(is_adapter_key, shapes)) and not has_model(shapes)


def has_model(shapes: Shapes) -> bool:
    """Whether a stock loader finds a diffusion model of a supported family."""
    families = (family for family in ARCHITECTURES if family.entry is not None)
    return find_unet(shapes) is not None or any(find_entry(shapes, each) for each in families)


def model_name(keys: Iterable[str]) -> str | None:
    """Which transformer the keys are of, with its article (`a Flux model`), or None."""
    present = set(keys)
    for title, needed in _MODELS:
        if any(all(prefix + key in present for key in needed) for prefix in _FOREIGN_PREFIXES):
            return title
    return None


def piece_name(keys: Iterable[str]) -> str | None:
    """Which piece of a model the keys are of, with its article, or None."""
    present = list(keys)
    return next(
        (title for title, starts in _PIECES if any(key.startswith(starts) for key in present)), None
    )


def detect(shapes: Shapes) -> Architecture:
    """The family of a checkpoint, bare diffusion model or diffusers folder, in either layout."""
    if unet := find_unet(shapes):
        return _detect_unet(shapes, unet[1])
    for family in ARCHITECTURES:
        if find_entry(shapes, family):
            return family
    raise _refusal(_near_miss(shapes) or _describe_unsupported(shapes))


def _detect_unet(shapes: Shapes, unet: Shapes) -> Architecture:
    if conflict := unet_conflict(shapes, unet):
        raise _refusal(conflict)
    widths = context_widths(unet)
    label = next((unet[key][-1] for key in LABEL_KEYS if unet.get(key)), None)
    for family in ARCHITECTURES:
        if widths == {family.context_width} and label in family.label_widths:
            return family
    if 0 in widths:
        raise _refusal(
            "The cross-attention weights are packed by a quantizer. Use the file in fp16, bf16 or"
            " fp32"
        )
    width = " and ".join(map(str, sorted(widths)))
    if label:
        width += f" with a label embedding of width {label}"
    raise _refusal(f"This is a U-Net whose cross attention reads embeddings of width {width}")


def _refusal(reason: str) -> UnsupportedModelError:
    titles = ", ".join(
        family.title if family.on_command_line else f"{family.title} (in ComfyUI)"
        for family in ARCHITECTURES
    )
    return UnsupportedModelError(f"{reason}. Supported models: {titles}.", reason=reason)


def layers(architecture: Architecture, shapes: Shapes, which: str = "V") -> list[LayerKey]:
    """The layers to edit, in the order of the model; K before V within a block.

    Args:
        architecture: The family of the model.
        shapes: The model's keys and shapes.
        which: V, K or KV. A model that all text enters at one layer has that one in any case: K and
            V come from it alike.
    """
    if which not in ("V", "K", "KV"):
        raise SettingsError(f"There are no layers {which!r}. Use V, K or KV.")
    if architecture.entry is not None:
        edited = _entry_layers(architecture, architecture.entry, shapes, which)
    else:
        edited = _attention_layers(architecture, shapes, which)
    return sorted(edited, key=lambda layer: model_order(layer.ldm_path))


def _entry_layers(
    architecture: Architecture, entry: EntryLayer, shapes: Shapes, which: str
) -> Iterator[LayerKey]:
    layout = find_entry(shapes, architecture)
    if layout is None:
        raise _refusal(f"This is not a {architecture.title} model")
    for value_path in (layout.path, *entry.extra_paths):
        paths: list[tuple[LayerKind, str]] = [("entry", value_path)]
        if entry.key_name:
            paths = [("K", _key_path(value_path, entry)), ("V", value_path)]
        for kind, path in paths:
            if kind != "entry" and kind not in which:
                continue
            for numbered, key in entry_layers(shapes, layout.prefix, path):
                ldm = numbered if "*" in entry.ldm_path else entry.ldm_path
                outputs, width = shapes[key]
                diffusers = entry.diffusers_path or numbered
                yield LayerKey(key, ldm, diffusers, kind, (outputs, width))


def _key_path(value_path: str, entry: EntryLayer) -> str:
    return f"{value_path.rpartition('.')[0]}.{entry.key_name}"


def second_layer(architecture: Architecture, shapes: Shapes) -> LayerKey | None:
    """The layer that reads the second text input; None where the family has none."""
    second = architecture.second_input
    if second is None:
        return None
    prefixes = [*UNET_PREFIXES, *(layout.prefix for layout in entry_layouts(architecture))]
    for prefix in dict.fromkeys(prefixes):
        for key in (second.ldm_key, second.diffusers_key):
            shape = shapes.get(prefix + key, ())
            if len(shape) == 2 and shape[1] == second.width:
                ldm = second.ldm_key.removesuffix(".weight")
                diffusers = second.diffusers_key.removesuffix(".weight")
                return LayerKey(prefix + key, ldm, diffusers, "second", (shape[0], shape[1]))
    return None


def _attention_layers(architecture: Architecture, shapes: Shapes, which: str) -> Iterator[LayerKey]:
    prefixed_unet = find_unet(shapes)
    if prefixed_unet is None:
        raise _refusal(_describe_unsupported(shapes))
    prefix, unet = prefixed_unet
    to_diffusers = attention_paths(unet)
    to_ldm = {diffusers: ldm for ldm, diffusers in to_diffusers.items()}
    for key, shape in unet.items():
        match = ATTENTION.fullmatch(key)
        if match is None or match["kind"].upper() not in which:
            continue
        if len(shape) != 2 or shape[1] != architecture.context_width:
            raise _refusal(
                f"Layer {prefix}{key} has shape {shape}, not outputs x"
                f" {architecture.context_width} as {architecture.title} needs"
            )
        block = match["block"]
        yield LayerKey(
            prefix + key,
            to_ldm.get(block, block) + match["rest"],
            to_diffusers.get(block, block) + match["rest"],
            "K" if match["kind"] == "k" else "V",
            (shape[0], shape[1]),
            architecture.lora_paths,
        )


def _text_paths() -> Iterator[str]:
    """Patterns of every path, in a loaded model, of a layer that some family edits."""
    yield ATTENTION.pattern.removesuffix(r"\.weight")
    for family in ARCHITECTURES:
        if entry := family.entry:
            paths = [entry.ldm_path, *entry.extra_paths]
            if entry.key_name:
                paths += [_key_path(path, entry) for path in paths]
            yield from (re.escape(path).replace(r"\*", r"\d{1,4}") for path in paths)
        if family.second_input:
            yield re.escape(family.second_input.ldm_key.removesuffix(".weight"))


_TEXT_LAYER = re.compile(rf"diffusion_model\.(?:{'|'.join(_text_paths())})\.weight")


def reads_text(key: str) -> bool:
    """Whether a key of a loaded model is that of a layer that an erasure edits in some family."""
    return _TEXT_LAYER.fullmatch(key) is not None


_VIDEO = (".time_stack.", ".time_mixer.", ".time_mix_blocks.", ".temporal_transformer_blocks.")


def _describe_unsupported(shapes: Shapes) -> str:
    """What a file without a supported model contains, as the beginning of a sentence."""
    if is_lora(shapes):
        return "This is a LoRA, not a model: give the checkpoint it belongs to"
    if title := model_name(shapes):
        return f"This looks like {title}"
    starts = tuple(
        prefix + first for prefix in UNET_PREFIXES for first in ("input_blocks.0.0.", "conv_in.")
    )
    if any(key.startswith(starts) for key in shapes):
        return "This is a U-Net without text cross attention"
    if title := piece_name(shapes):
        return f"This looks like {title}"
    return "No diffusion model with text cross attention was found in this file"


def unet_conflict(shapes: Shapes, unet: Shapes) -> str | None:
    """Why a U-Net's cross attention reads more than text, as the start of a sentence, or None."""
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
                return (
                    f"Text also enters this model through its self-attention layers ({key}), as in"
                    " SDXS or the x4 upscaler"
                )
    return None


def _near_miss(shapes: Shapes) -> str | None:
    """How a file differs from the family it looks like, as the start of a sentence, or None."""
    title = model_name(shapes)
    differences: list[str] = []
    for family in reversed(ARCHITECTURES):  # the plainest of similar families comes last
        if family.entry is not None and family.entry.look_alike == title:
            layouts = (layout for layout in entry_layouts(family) if layout.first_key in shapes)
            if layout := next(layouts, None):
                differences.append(entry_difference(shapes, family, layout) or "")
    # A family that reads text of another width is a worse match.
    differences.sort(key=lambda difference: "not outputs x" in difference)
    return f"This looks like {title}, but {differences[0]}" if differences else None
