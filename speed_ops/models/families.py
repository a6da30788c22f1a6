"""The registry of model families: one entry for each.

Nothing else in the program knows a family by name.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import SettingsError, suggestion
from .architecture import Architecture, EntryLayer, FamilyEncoder, SecondInput, TextPart

_LONGEST = 512
"""Rows of a prompt where ComfyUI has no limit; names in prompts are far shorter."""
_ONE_LAYER = (
    "In this model all text enters through one layer. The edit is exact there, but it changes keys"
    " as well as values, unlike the paper's edit."
)
_SYSTEM_PROMPT = "It applies to prompts encoded as they are, without a system prompt before them."

_LETTERS = "Words in quotation marks are also read letter by letter, to write them into the image."


def _clip_l(hidden: int, final_norm: bool, *prefixes: str) -> FamilyEncoder:
    return FamilyEncoder(
        name="clip_l",
        width=768,
        layers=12,
        hidden=hidden,
        final_norm=final_norm,
        pad_token=49407,
        prefixes=prefixes,
        folder="text_encoder",
    )


def _clip_g(folder: str, *prefixes: str) -> FamilyEncoder:
    return FamilyEncoder(
        name="clip_g",
        width=1280,
        layers=32,
        hidden=-2,
        final_norm=False,
        prefixes=prefixes,
        naming="open_clip",
        folder=folder,
        projected=True,
    )


def _text_prefixes(name: str) -> tuple[str, ...]:
    """What an encoder's keys begin with in a checkpoint that ComfyUI saved."""
    return f"text_encoders.{name}.transformer.", f"{name}.transformer."


def _t5(folder: str, length: int) -> FamilyEncoder:
    return FamilyEncoder(
        name="t5xxl",
        width=4096,
        layers=24,
        hidden=-1,
        final_norm=True,
        prefixes=_text_prefixes("t5xxl"),
        folder=folder,
        length=length,
        appends="rows",
    )


def _t5_masked(name: str, width: int, length: int, pad_token: int = 0) -> FamilyEncoder:
    """A T5 with a padding mask: the rows of padding are zeros, or the model masks them."""
    return FamilyEncoder(
        name,
        width,
        layers=24,
        hidden=-1,
        final_norm=True,
        pad_token=pad_token,
        prefixes=_text_prefixes(name),
        folder="text_encoder",
        length=length,
        appends="rows",
        padding="masked",
    )


def _chat_model(
    name: str, width: int, layers: int, hidden: int, *, batchable: bool = True
) -> FamilyEncoder:
    """A causal language model, unpadded, whatever template ComfyUI puts around the prompt."""
    return FamilyEncoder(
        *(name, width, layers, hidden),
        final_norm=hidden == -1,
        prefixes=_text_prefixes(name),
        folder="text_encoder",
        length=_LONGEST,
        appends="rows",
        padding="none",
        batchable=batchable,
    )


_USER, _ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
_DESCRIBE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity,"
    " text, spatial relationships of the objects and background:<|im_end|>\n"
)


def _klein(name: str, width: int) -> FamilyEncoder:
    """Qwen3 with padding, whose rows depend on the prompt and reach the model."""
    return replace(
        _chat_model(name, width, 36, -10),
        padding="informative",
        template=(_USER, f"{_ASSISTANT}<think>\n\n</think>\n\n"),
    )


def _in_sd3(encoder: FamilyEncoder) -> FamilyEncoder:
    """SD3 runs without any one of its encoders; its files spell all as transformers does."""
    return replace(encoder, optional=True, naming="hf")


def _flux(name: str, title: str, modelspec: str, *, guided: bool) -> Architecture:
    """Flux.1; `guided`: with the guidance scale as an input, as in the distilled `dev`."""
    guidance = ("guidance_in.in_layer.weight", "time_text_embed.guidance_embedder.linear_1.weight")
    forbidden = (
        "txt_norm.",
        "distilled_guidance_layer.",
        "double_stream_modulation",
        "controlnet_",
    )
    ldm = ("double_blocks.0.img_attn.qkv.weight", "img_in.weight")
    diffusers = ("single_transformer_blocks.0.attn.to_q.weight", "x_embedder.weight")
    return Architecture(
        name=name,
        title=title,
        context_width=4096,
        encoders=(_t5("text_encoder_2", 256),),
        second_input=SecondInput(
            *("vector_in.in_layer.weight", _TEXT_EMBEDDER),
            width=768,
            encoders=(_clip_l(-1, True, *_APART_L),),
        ),
        entry=EntryLayer(
            *("txt_in", "context_embedder"),
            ldm_needs=(*ldm, *guidance[:1]) if guided else ldm,
            diffusers_needs=(*diffusers, *guidance[1:]) if guided else diffusers,
            look_alike="a Flux model",
            forbidden=forbidden if guided else (*forbidden, *guidance),
        ),
        modelspec=modelspec,
        kohya_version="flux1",
        note=_ONE_LAYER,
    )


def _flux2(name: str, title: str, encoder: FamilyEncoder) -> Architecture:
    """Flux.2: `txt_in` reads three hidden states of the encoder side by side."""
    return Architecture(
        name=name,
        title=title,
        context_width=3 * encoder.width,
        encoders=(replace(encoder, width=3 * encoder.width, states=3),),
        entry=EntryLayer(
            "txt_in",
            ldm_needs=(
                "double_stream_modulation_img.lin.weight",
                "double_blocks.0.img_attn.qkv.weight",
                "img_in.weight",
            ),
            look_alike="a Flux.2 model",
            forbidden=("txt_norm.", "vector_in.", "distilled_guidance_layer.", "controlnet_"),
        ),
        modelspec=name,
        kohya_version=name,
        note=_ONE_LAYER,
    )


def _hunyuan(
    name: str, title: str, look_alike: str, needs: tuple[str, ...], forbidden: tuple[str, ...]
) -> Architecture:
    """HunyuanImage 2.1 and HunyuanVideo 1.5: a refiner, which depends on the timestep, comes after
    the layer that text enters at, and reads the mean of the rows as well.
    """
    qwen = _chat_model("qwen25_7b", 3584, 28, -3, batchable=False)
    return Architecture(
        name=name,
        title=title,
        context_width=3584,
        encoders=(qwen,),
        second_input=SecondInput(
            *("txt_in.c_embedder.in_layer.weight", ""), width=3584, encoders=(qwen,), mean=True
        ),
        entry=EntryLayer(
            "txt_in.input_embedder",
            ldm_needs=("txt_in.individual_token_refiner.blocks.0.norm1.weight", *needs),
            look_alike=look_alike,
            forbidden=("vector_in.", *forbidden),
        ),
        modelspec=name,
        kohya_version=name,
        other_encoders=("byt5_small",),
        on_command_line=False,
        note=f"{_ONE_LAYER} {_LETTERS}",
    )


def _lumina(
    name: str, title: str, encoder: FamilyEncoder, note: str = _ONE_LAYER, *needs: str
) -> Architecture:
    """Lumina 2 and what was made from it; `needs`: keys that its relatives do not have."""
    return Architecture(
        name=name,
        title=title,
        context_width=encoder.width,
        encoders=(encoder,),
        entry=EntryLayer(
            "cap_embedder.1",
            ldm_needs=("cap_embedder.0.weight", "context_refiner.0.attention.qkv.weight", *needs),
            look_alike="a Lumina or Z-Image model",
            # NewBie reads a second encoder there; the others are Z-Image in pixels and Ming-Image.
            forbidden=("clip_text_pooled_proj.", "dec_net.", "__ming_image__"),
        ),
        text_part=TextPart(("cap_embedder.0",), norm=1e-5),
        modelspec=name,
        kohya_version=name,
        note=note,
    )


def _cosmos(
    name: str,
    title: str,
    look_alike: str,
    encoder: FamilyEncoder,
    forbidden: tuple[str, ...] = (),
) -> Architecture:
    """Cosmos Predict2 and what was made from it."""
    return Architecture(
        name=name,
        title=title,
        context_width=1024,
        encoders=(encoder,),
        entry=EntryLayer(
            "blocks.*.cross_attn.v_proj",
            ldm_needs=("blocks.0.mlp.layer1.weight",),
            look_alike=look_alike,
            forbidden=forbidden,
            key_name="k_proj",
        ),
        modelspec=name,
        kohya_version=name,
        on_command_line=False,
    )


_SGM_L = "conditioner.embedders.0.transformer."
_LABEL = ("label_emb.0.0.weight", "add_embedding.linear_1.weight")
_APART_L = ("text_encoders.clip_l.transformer.", "clip_l.transformer.")
_SDXL_G = _clip_g("text_encoder_2", "conditioner.embedders.1.model.")
_REFINER_G = _clip_g("text_encoder_2", "conditioner.embedders.0.model.")
_SD3_L = _in_sd3(_clip_l(-2, False, *_APART_L))
_SD3_G = _in_sd3(
    _clip_g("text_encoder_2", "text_encoders.clip_g.transformer.", "clip_g.transformer.")
)
_TEXT_EMBEDDER = "time_text_embed.text_embedder.linear_1.weight"
_KREA = replace(
    _chat_model("qwen3vl_4b", 12 * 2560, 36, -2, batchable=False),
    states=12,
)

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        name="sd1",
        title="Stable Diffusion 1.x",
        context_width=768,
        encoders=(_clip_l(-1, True, "cond_stage_model.transformer.", _SGM_L),),
        label_widths=(None,),
        lora_paths="diffusers",
        modelspec="stable-diffusion-v1",
        kohya_version="sd_v1",
    ),
    Architecture(
        name="sd2",
        title="Stable Diffusion 2.x",
        context_width=1024,
        encoders=(
            FamilyEncoder(
                name="clip_h",
                width=1024,
                layers=24,
                hidden=-2,
                final_norm=True,
                prefixes=("cond_stage_model.model.", "conditioner.embedders.0.model."),
                naming="open_clip",
                folder="text_encoder",
            ),
        ),
        # with a label embedding: unCLIP, whose cross attention still reads text
        label_widths=(None, 1536, 2048),
        lora_paths="diffusers",
        modelspec="stable-diffusion-v2",
        kohya_version="sd_v2",
    ),
    Architecture(
        name="sdxl",
        title="Stable Diffusion XL",
        context_width=2048,
        encoders=(_clip_l(-2, False, _SGM_L), _SDXL_G),
        label_widths=(2816,),
        second_input=SecondInput(*_LABEL, width=2816, encoders=(_SDXL_G,)),
        modelspec="stable-diffusion-xl-v1-base",
        kohya_version="sdxl_base_v1-0",
        prompting="mixed",  # Illustrious, NoobAI and Pony are prompted with tags
    ),
    Architecture(
        name="sdxl-refiner",
        title="Stable Diffusion XL refiner",
        context_width=1280,
        encoders=(_REFINER_G,),
        label_widths=(2560,),
        second_input=SecondInput(*_LABEL, width=2560, encoders=(_REFINER_G,)),
        modelspec="stable-diffusion-xl-v1-refiner",
        kohya_version="sdxl_refiner_v1-0",
    ),
    Architecture(
        name="sd3",
        title="Stable Diffusion 3",
        context_width=4096,
        encoders=(_SD3_L, _SD3_G, _in_sd3(_t5("text_encoder_3", 77))),
        second_input=SecondInput(
            "y_embedder.mlp.0.weight", _TEXT_EMBEDDER, width=2048, encoders=(_SD3_L, _SD3_G)
        ),
        entry=EntryLayer(
            *("context_embedder", "context_embedder"),
            ldm_needs=("joint_blocks.0.context_block.attn.qkv.weight", "x_embedder.proj.weight"),
            diffusers_needs=(
                "transformer_blocks.0.attn.add_q_proj.weight",
                "pos_embed.proj.weight",
            ),
            look_alike="a Stable Diffusion 3 model",
            forbidden=("context_processor.", "controlnet_"),
        ),
        modelspec="stable-diffusion-v3-medium",
        kohya_version="sd3",
        note=_ONE_LAYER,
    ),
    _flux("flux-dev", "Flux.1 dev", "flux-1-dev", guided=True),
    _flux("flux-schnell", "Flux.1 schnell", "flux-1-schnell", guided=False),
    replace(
        _flux2("flux2-dev", "Flux.2 dev", _chat_model("mistral3_24b", 5120, 40, -11)),
        on_command_line=False,
    ),
    _flux2("flux2-klein-4b", "Flux.2 Klein 4B", _klein("qwen3_4b", 2560)),
    _flux2("flux2-klein-9b", "Flux.2 Klein 9B", _klein("qwen3_8b", 4096)),
    Architecture(
        name="chroma",
        title="Chroma",
        context_width=4096,
        encoders=(replace(_t5("text_encoder", _LONGEST), padding="none"),),
        entry=EntryLayer(
            "txt_in",
            ldm_needs=(
                "double_blocks.0.img_attn.qkv.weight",
                "distilled_guidance_layer.in_proj.weight",
            ),
            look_alike="a Chroma model",
        ),
        modelspec="chroma",
        kohya_version="chroma",
        note=_ONE_LAYER,
    ),
    Architecture(
        name="auraflow",
        title="AuraFlow",
        context_width=2048,
        encoders=(_t5_masked("pile_t5xl", 2048, 256, pad_token=1),),
        entry=EntryLayer(
            "cond_seq_linear",
            ldm_needs=("double_layers.0.attn.w1q.weight",),
            look_alike="an AuraFlow model",
        ),
        modelspec="auraflow-v1",
        kohya_version="auraflow",
        note=_ONE_LAYER,
    ),
    _lumina(
        *("z-image", "Z-Image"),
        replace(_chat_model("qwen3_4b", 2560, 36, -2), template=(_USER, _ASSISTANT)),
        *(_ONE_LAYER, "cap_pad_token"),
    ),
    _lumina(
        "lumina-2",
        "Lumina 2",
        _chat_model("gemma2_2b", 2304, 26, -2),
        f"{_ONE_LAYER} {_SYSTEM_PROMPT}",
    ),
    Architecture(
        name="qwen-image",
        title="Qwen-Image",
        context_width=3584,
        encoders=(
            replace(
                _chat_model("qwen25_7b", 3584, 28, -1, batchable=False),
                instruction=_DESCRIBE + _USER,
                template=("", _ASSISTANT),
            ),
        ),
        entry=EntryLayer(
            "txt_in",
            ldm_needs=(
                "txt_norm.weight",
                "transformer_blocks.0.attn.add_q_proj.weight",
                "img_in.weight",
            ),
            look_alike="a Qwen-Image model",
        ),
        text_part=TextPart(("txt_norm",), norm=1e-6),
        modelspec="qwen-image",
        kohya_version="qwen-image",
        note=_ONE_LAYER,
    ),
    Architecture(
        name="krea-2",
        title="Krea 2",
        context_width=_KREA.width,
        encoders=(_KREA,),
        entry=EntryLayer(
            "txtmlp.3",
            ldm_needs=("txtfusion.projector.weight", "blocks.0.attn.wq.weight"),
            look_alike="a Krea 2 model",
        ),
        text_part=TextPart(
            ("txtfusion", "txtmlp.0", "txtmlp.1", "txtmlp.2"),
            reads="txtfusion.layerwise_blocks.0.attn.wq",
            states=_KREA.states,
            mixes=True,
        ),
        modelspec="krea-2",
        kohya_version="krea-2",
        on_command_line=False,
        note=_ONE_LAYER,
    ),
    _hunyuan(
        *("hunyuan-image-2.1", "HunyuanImage 2.1", "a HunyuanImage model"),
        needs=("byt5_in.fc1.weight",),
        forbidden=("cond_type_embedding.", "vision_in."),
    ),
    _hunyuan(
        *("hunyuan-video-1.5", "HunyuanVideo 1.5", "a HunyuanVideo 1.5 model"),
        needs=("byt5_in.fc1.weight", "cond_type_embedding.weight", "vision_in.proj.0.weight"),
        forbidden=(),
    ),
    Architecture(
        name="wan",
        title="Wan 2.x",
        context_width=4096,
        encoders=(_t5_masked("umt5xxl", 4096, 512),),
        entry=EntryLayer(
            "blocks.*.cross_attn.v",
            ldm_needs=("head.modulation", "text_embedding.2.weight"),
            look_alike="a Wan model",
            key_name="k",
            extra_paths=("vace_blocks.*.cross_attn.v",),
        ),
        text_part=TextPart(
            ("text_embedding",),
            reads="text_embedding.0",
            layers=("text_embedding.0", "text_embedding.2"),
        ),
        modelspec="wan-2_1-text2video",
        kohya_version="wan",
    ),
    _cosmos(
        *("cosmos-predict2", "Cosmos Predict2", "a Cosmos Predict2 model"),
        _t5_masked("t5xxl", 1024, 512),
        forbidden=("llm_adapter.",),
    ),
    replace(
        _cosmos(
            *("anima", "Anima", "an Anima model"),
            _chat_model("qwen3_06b", 1024, 28, -1, batchable=False),
        ),
        text_part=TextPart(
            ("llm_adapter",),
            reads="llm_adapter.blocks.0.cross_attn.v_proj",
            mixes=True,
            ids="t5xxl",
        ),
        prompting="at-tags",
    ),
    Architecture(
        name="ltxv",
        title="LTX-Video",
        context_width=4096,
        encoders=(_t5_masked("t5xxl", 4096, 128),),
        entry=EntryLayer(
            "transformer_blocks.*.attn2.to_v",
            ldm_needs=("adaln_single.emb.timestep_embedder.linear_1.bias", "patchify_proj.weight"),
            look_alike="an LTX-Video or PixArt model",
            # A text that the timestep changes, or that goes through a connector first.
            forbidden=(
                *("audio_", "pos_embed.", "video_embeddings_connector.", "prompt_adaln_single."),
                "transformer_blocks.0.prompt_scale_shift_table",
            ),
            key_name="to_k",
        ),
        text_part=TextPart(
            ("caption_projection",),
            reads="caption_projection.linear_1",
            layers=("caption_projection.linear_1", "caption_projection.linear_2"),
        ),
        modelspec="lightricks-ltx-video",
        kohya_version="ltxv",
    ),
)


def by_name(name: str) -> Architecture:
    """The family of that name; the error for an unknown one suggests the nearest."""
    names = [family.name for family in ARCHITECTURES]
    if name not in names:
        raise SettingsError(
            f"Unknown model family {name!r}{suggestion(name, names)}. Choose from"
            f" {', '.join(names)}."
        )
    return ARCHITECTURES[names.index(name)]
