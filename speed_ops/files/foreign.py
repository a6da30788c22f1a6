"""What a file is when it is not a model we edit: enough to name it in the message that refuses it."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Keys as they stand relative to the model; all of a row must be present. First match wins, so the special stands
# before the general (Chroma and HunyuanVideo contain Flux's blocks).
_MODELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("a ControlNet", ("controlnet_blocks.0.weight",)),
    ("a Chroma model", ("distilled_guidance_layer.norms.0.scale",)),
    ("a Chroma model", ("distilled_guidance_layer.0.norms.0.scale",)),
    ("a HunyuanVideo model", ("txt_in.individual_token_refiner.blocks.0.norm1.weight",)),
    ("a Flux.2 model", ("double_stream_modulation_img.lin.weight", "txt_in.weight")),
    ("an Ovis-Image model", ("txt_norm.scale", "txt_in.weight")),
    ("a Flux model", ("double_blocks.0.img_attn.qkv.weight", "txt_in.weight")),
    ("a Flux model", ("single_transformer_blocks.0.attn.to_q.weight", "context_embedder.weight")),
    ("a Stable Diffusion 3 model with a context processor", ("context_processor.layers.0.attn.qkv.weight",)),
    ("a Stable Diffusion 3 model", ("joint_blocks.0.context_block.attn.qkv.weight",)),
    ("a Stable Diffusion 3 model", ("transformer_blocks.0.attn.add_q_proj.weight", "pos_embed.proj.weight")),
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
_PREFIXES = ("", "model.diffusion_model.", "diffusion_model.", "transformer/", "model.", "net.", "prior/")

# Parts of a model, recognised by how a key begins.
_PIECES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "a ControlNet",
        ("control_model.", "controlnet_", "zero_convs.", "input_hint_block.", "controlnet_cond_embedding."),
    ),
    ("a VAE alone", ("encoder.down", "decoder.up", "decoder.mid", "first_stage_model.")),
    ("a text encoder alone", ("text_model.", "transformer.text_model.", "encoder.block.0.", "shared.weight")),
    ("a text encoder alone", ("clip_l.", "clip_g.", "clip_h.", "t5xxl.", "text_encoder/", "text_encoder_2/")),
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
        if any(all(prefix + key in present for key in needed) for prefix in _PREFIXES):
            return title
    return None


def piece_name(keys: Iterable[str]) -> str | None:
    """Which piece of a model the keys are of, when they are not of a whole one; or None."""
    present = list(keys)
    return next((title for title, starts in _PIECES if any(key.startswith(starts) for key in present)), None)
