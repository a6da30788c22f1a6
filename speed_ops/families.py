"""The registry: one frozen row per model family."""

from __future__ import annotations

from dataclasses import replace

from .errors import SettingsError
from .files.nearest import suggestion
from .registry import Architecture, EntryLayer, PooledPath, TextEncoder


def _clip_l(hidden: int, final_norm: bool, *prefixes: str) -> TextEncoder:
    return TextEncoder("clip_l", 768, 12, hidden, final_norm, 49407, prefixes, "hf", "text_encoder")


def _clip_g(folder: str, *prefixes: str) -> TextEncoder:
    return TextEncoder("clip_g", 1280, 32, -2, False, 0, prefixes, "open_clip", folder)


def _t5(folder: str, length: int) -> TextEncoder:
    prefixes = ("text_encoders.t5xxl.transformer.", "t5xxl.transformer.")
    return TextEncoder("t5xxl", 4096, 24, -1, True, 0, prefixes, "hf", folder, length, below=True)


def _in_sd3(encoder: TextEncoder) -> TextEncoder:
    """SD3 was trained to do without any of its encoders, and its files spell all of them as transformers does."""
    return replace(encoder, optional=True, naming="hf")


def _flux(name: str, title: str, modelspec: str, *, guided: bool) -> Architecture:
    """Flux.1; `guided`: whether it takes the guidance scale as an input, as the distilled `dev` does."""
    guidance = ("guidance_in.in_layer.weight", "time_text_embed.guidance_embedder.linear_1.weight")
    others = ("txt_norm.", "distilled_guidance_layer.", "double_stream_modulation", "controlnet_")
    ldm = ("double_blocks.0.img_attn.qkv.weight", "img_in.weight")
    diffusers = ("single_transformer_blocks.0.attn.to_q.weight", "x_embedder.weight")
    return Architecture(
        name=name,
        title=title,
        context_width=4096,
        encoders=(_t5("text_encoder_2", 256),),
        pooled=PooledPath("vector_in.in_layer.weight", _TEXT_EMBEDDER, 768, ("clip_l",), 768),
        entry=EntryLayer(
            *("txt_in", "context_embedder"),
            ldm_needs=(*ldm, *guidance[:1]) if guided else ldm,
            diffusers_needs=(*diffusers, *guidance[1:]) if guided else diffusers,
            look_alike="a Flux model",
            forbidden=others if guided else (*others, *guidance),
        ),
        lora_paths="ldm",
        modelspec=modelspec,
        kohya_version="flux1",
        in_graph=False,
    )


_SGM_L = "conditioner.embedders.0.transformer."
_LABEL = ("label_emb.0.0.weight", "add_embedding.linear_1.weight")
_TEXT_EMBEDDER = "time_text_embed.text_embedder.linear_1.weight"

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        name="sd1",
        title="Stable Diffusion 1.x",
        context_width=768,
        encoders=(_clip_l(-1, True, "cond_stage_model.transformer.", _SGM_L),),
        label_widths=(None,),
        pooled=None,
        lora_paths="diffusers",
        modelspec="stable-diffusion-v1",
        kohya_version="sd_v1",
    ),
    Architecture(
        name="sd2",
        title="Stable Diffusion 2.x",
        context_width=1024,
        encoders=(
            TextEncoder(
                *("clip_h", 1024, 24, -2, True, 0),
                prefixes=("cond_stage_model.model.", "conditioner.embedders.0.model."),
                naming="open_clip",
                folder="text_encoder",
            ),
        ),
        label_widths=(None, 1536, 2048),  # with a label embedding: unCLIP, whose cross attention still reads text
        pooled=None,
        lora_paths="diffusers",
        modelspec="stable-diffusion-v2",
        kohya_version="sd_v2",
    ),
    Architecture(
        name="sdxl",
        title="Stable Diffusion XL",
        context_width=2048,
        encoders=(_clip_l(-2, False, _SGM_L), _clip_g("text_encoder_2", "conditioner.embedders.1.model.")),
        label_widths=(2816,),
        pooled=PooledPath(*_LABEL, width=2816, encoders=("clip_g",), columns=1280),
        lora_paths="ldm",
        modelspec="stable-diffusion-xl-v1-base",
        kohya_version="sdxl_base_v1-0",
    ),
    Architecture(
        name="sdxl-refiner",
        title="Stable Diffusion XL refiner",
        context_width=1280,
        encoders=(_clip_g("text_encoder_2", "conditioner.embedders.0.model."),),
        label_widths=(2560,),
        pooled=PooledPath(*_LABEL, width=2560, encoders=("clip_g",), columns=1280),
        lora_paths="ldm",
        modelspec="stable-diffusion-xl-v1-refiner",
        kohya_version="sdxl_refiner_v1-0",
    ),
    Architecture(
        name="sd3",
        title="Stable Diffusion 3",
        context_width=4096,
        encoders=(
            _in_sd3(_clip_l(-2, False, "text_encoders.clip_l.transformer.", "clip_l.transformer.")),
            _in_sd3(_clip_g("text_encoder_2", "text_encoders.clip_g.transformer.", "clip_g.transformer.")),
            _in_sd3(_t5("text_encoder_3", 77)),
        ),
        pooled=PooledPath("y_embedder.mlp.0.weight", _TEXT_EMBEDDER, 2048, ("clip_l", "clip_g"), 2048),
        entry=EntryLayer(
            *("context_embedder", "context_embedder"),
            ldm_needs=("joint_blocks.0.context_block.attn.qkv.weight", "x_embedder.proj.weight"),
            diffusers_needs=("transformer_blocks.0.attn.add_q_proj.weight", "pos_embed.proj.weight"),
            look_alike="a Stable Diffusion 3 model",
            forbidden=("context_processor.", "controlnet_"),
        ),
        lora_paths="ldm",
        modelspec="stable-diffusion-v3-medium",
        kohya_version="sd3",
        in_graph=False,
    ),
    _flux("flux-dev", "Flux.1 dev", "flux-1-dev", guided=True),
    _flux("flux-schnell", "Flux.1 schnell", "flux-1-schnell", guided=False),
)

GRAPH_FAMILIES = tuple(row for row in ARCHITECTURES if row.in_graph)
"""Those that the ComfyUI nodes edit."""


def by_name(name: str) -> Architecture:
    """The row of that name; an unknown name is answered with the nearest known one."""
    for row in ARCHITECTURES:
        if row.name == name:
            return row
    known = [row.name for row in ARCHITECTURES]
    raise SettingsError(f"Unknown model family {name!r}{suggestion(name, known)}; known are {', '.join(known)}.")
