"""Families are recognized by keys and shapes, in every layout; other models are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import mini_dit
import pico
import pytest

from speed_erase.speed_ops.errors import SettingsError, UnsupportedModelError
from speed_erase.speed_ops.models.detect import detect, layers, reads_text
from speed_erase.speed_ops.models.families import ARCHITECTURES, by_name
from speed_erase.speed_ops.models.keys import encoder_keys

LAYERS = {"sd1": 16, "sd2": 16, "sdxl": 70, "sdxl-refiner": 44}
LAYOUTS = [
    ("ldm", "model.diffusion_model."),
    ("ldm", "diffusion_model."),
    ("ldm", ""),
    ("diffusers", ""),
    ("diffusers", "unet/"),
]


@pytest.mark.parametrize("family", LAYERS)
@pytest.mark.parametrize(("layout", "prefix"), LAYOUTS)
@pytest.mark.parametrize("shapes", [pico.FAMILIES, pico.SMALL], ids=["full", "small"])
def test_every_layout_gives_the_same_layers(
    family: str, layout: str, prefix: str, shapes: dict[str, pico.Shape]
) -> None:
    structure = shapes[family]
    keys = pico.unet_shapes(structure, layout, prefix)
    architecture = detect(keys)
    assert architecture.name == family
    edited = layers(architecture, keys, "KV")
    truth = {
        ldm: diffusers
        for ldm, diffusers, _ in pico.names(structure)
        if "attn2.to_k" in ldm or "attn2.to_v" in ldm
    }
    assert {
        f"{layer.ldm_path}.weight": f"{layer.diffusers_path}.weight" for layer in edited
    } == truth
    for layer in edited:
        assert keys[layer.file_key] == layer.shape
        assert layer.canonical == f"diffusion_model.{layer.ldm_path}.weight"
    if shapes is pico.FAMILIES:
        assert len(edited) == 2 * LAYERS[family]


def test_order_is_the_model_s_and_selection_is_exact() -> None:
    keys = pico.checkpoint_shapes("sdxl")
    architecture = detect(dict(reversed(keys.items())))
    values = layers(architecture, dict(reversed(keys.items())), "V")
    assert values == layers(architecture, keys, "V")
    assert [layer.kind for layer in layers(architecture, keys, "KV")[:4]] == ["K", "V", "K", "V"]
    assert {layer.kind for layer in layers(architecture, keys, "K")} == {"K"}
    assert values[0].ldm_path == "input_blocks.4.1.transformer_blocks.0.attn2.to_v"
    depths = [layer.ldm_path for layer in values if layer.ldm_path.startswith("middle_block")]
    assert depths == [f"middle_block.1.transformer_blocks.{n}.attn2.to_v" for n in range(10)]
    assert values[-1].ldm_path.startswith("output_blocks.5.1.")


@pytest.mark.parametrize(
    ("family", "base"),
    [
        ("sd1", "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_v"),
        ("sd2", "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_v"),
        ("sdxl", "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_v"),
        ("sdxl-refiner", "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_v"),
    ],
)
def test_lora_names_are_those_kohya_writes(family: str, base: str) -> None:
    keys = pico.checkpoint_shapes(family)
    assert layers(by_name(family), keys)[0].lora_base == base


@pytest.mark.parametrize(
    "change", [{"in_channels": 9}, {"in_channels": 8}, {"depths": (1,)}, {"res_blocks": 1}]
)
def test_variants_of_a_family_are_the_family(change: dict[str, object]) -> None:
    assert detect(pico.unet_shapes(replace(pico.FAMILIES["sd1"], **change))).name == "sd1"


@pytest.mark.parametrize(
    "structure", [((0, 2, 4), None), ((0, 1, 2), None), ((0, 2, 5), 5), ((0, 2, 6), 6)]
)
def test_distilled_xl_models_are_xl(structure: tuple[tuple[int, ...], int | None]) -> None:
    shape = replace(pico.FAMILIES["sdxl"], depths=structure[0], middle=structure[1], res_blocks=1)
    assert detect(pico.unet_shapes(shape)).name == "sdxl"


def test_columns_and_conventions() -> None:
    xl = by_name("sdxl")
    assert (xl.first_column("clip_l"), xl.first_column("clip_g")) == (0, 768)
    assert xl.second_input is not None and xl.second_input.width == 2816
    for family in ARCHITECTURES:
        ends = [family.first_column(item.name) + item.width for item in family.encoders]
        ends.append(sum(item.width for item in family.encoders if item.appends == "columns"))
        assert max(ends) == family.context_width
    blocks = [family.encoders[0].blocks_used for family in ARCHITECTURES[:7]]
    assert blocks == [12, 23, 11, 31, 11, 24, 24]


@pytest.mark.parametrize("family", LAYERS)
def test_text_encoders_are_found_in_the_file(family: str) -> None:
    keys = pico.checkpoint_shapes(family)
    for encoder in by_name(family).encoders:
        naming, names = encoder_keys(encoder, keys)
        embedding = (
            "text_model.embeddings.token_embedding.weight"
            if naming == "hf"
            else "token_embedding.weight"
        )
        assert keys[names[embedding]][1] == encoder.width
        assert encoder_keys(encoder, pico.unet_shapes(pico.SMALL[family])) == (encoder.naming, {})


def test_old_files_without_text_model_are_read_alike() -> None:
    keys = [
        key.replace("text_model.", "")
        for key in pico.clip_hf_shapes(768, "cond_stage_model.transformer.")
    ]
    _, names = encoder_keys(by_name("sd1").encoders[0], keys)
    assert set(names) == {key for key in pico.clip_hf_shapes(768, "")}


def refused_for(shapes: dict[str, tuple[int, ...]]) -> str:
    """Why a model is refused."""
    with pytest.raises(UnsupportedModelError) as refusal:
        detect(shapes)
    return str(refusal.value.data["reason"])


def _with(extra: dict[str, tuple[int, ...]], family: str = "sd1") -> dict[str, tuple[int, ...]]:
    return pico.checkpoint_shapes(family) | extra


DIT_LAYOUTS = [(prefix, False) for prefix in ("", "model.diffusion_model.", "diffusion_model.")]
DIT_LAYOUTS += [(prefix, True) for prefix in ("transformer/", "")]


@pytest.mark.parametrize(("family", "path"), [("sd3", "context_embedder"), ("flux-dev", "txt_in")])
@pytest.mark.parametrize(("prefix", "folder"), DIT_LAYOUTS)
def test_models_that_text_enters_at_one_layer(
    family: str, path: str, prefix: str, folder: bool
) -> None:
    keys = mini_dit.model_shapes(family, prefix, folder)
    assert detect(keys).name == family
    for which in ("V", "K", "KV"):
        (layer,) = layers(by_name(family), keys, which)
        assert layer.file_key == f"{prefix}{'context_embedder' if folder else path}.weight"
        assert (
            layer.canonical == f"diffusion_model.{path}.weight"
            and layer.shape == keys[layer.file_key]
        )
        assert layer.lora_base == f"lora_unet_{path}"
    with pytest.raises(UnsupportedModelError):
        layers(by_name("flux-dev" if family == "sd3" else "sd3"), keys)


def test_flux_without_guidance_is_schnell() -> None:
    assert (
        detect(mini_dit.model_shapes("flux-schnell", "model.diffusion_model.")).name
        == "flux-schnell"
    )
    names = {family.name: family.modelspec for family in ARCHITECTURES}
    assert (names["flux-dev"], names["flux-schnell"]) == ("flux-1-dev", "flux-1-schnell")


RECORDED = json.loads((Path(__file__).parent / "recorded_keys.json").read_text(encoding="utf-8"))
"""{model: {key: shape}} of the smallest models that ComfyUI detects (`mini_families`), from its own
modules.
"""
TEXT_LAYERS = {
    "sd3": ("sd3", ["context_embedder"]),
    "sd3.5-medium": ("sd3", ["context_embedder"]),
    "flux-dev": ("flux-dev", ["txt_in"]),
    "flux-schnell": ("flux-schnell", ["txt_in"]),
    "flux2-dev": ("flux2-dev", ["txt_in"]),
    "flux2-klein-4b": ("flux2-klein-4b", ["txt_in"]),
    "flux2-klein-9b": ("flux2-klein-9b", ["txt_in"]),
    "chroma": ("chroma", ["txt_in"]),
    "auraflow": ("auraflow", ["cond_seq_linear"]),
    "z-image": ("z-image", ["cap_embedder.1"]),
    "lumina-2": ("lumina-2", ["cap_embedder.1"]),
    "qwen-image": ("qwen-image", ["txt_in"]),
    "krea-2": ("krea-2", ["txtmlp.3"]),
    "hunyuan-image-2.1": ("hunyuan-image-2.1", ["txt_in.input_embedder"]),
    "hunyuan-video-1.5": ("hunyuan-video-1.5", ["txt_in.input_embedder"]),
    "wan": ("wan", ["blocks.0.cross_attn.v", "blocks.1.cross_attn.v"]),
    "cosmos-predict2": (
        "cosmos-predict2",
        ["blocks.0.cross_attn.v_proj", "blocks.1.cross_attn.v_proj"],
    ),
    "anima": ("anima", ["blocks.0.cross_attn.v_proj", "blocks.1.cross_attn.v_proj"]),
    "ltxv": ("ltxv", ["transformer_blocks.0.attn2.to_v", "transformer_blocks.1.attn2.to_v"]),
}


@pytest.mark.parametrize("model", RECORDED)
def test_the_norms_of_newer_versions_of_comfyui_are_known(model: str) -> None:
    """They call `weight` what files call `scale`."""
    keys = {key.replace(".scale", ".weight"): shape for key, shape in RECORDED[model].items()}
    assert detect(keys) is by_name(TEXT_LAYERS[model][0])


@pytest.mark.parametrize("model", RECORDED)
@pytest.mark.parametrize("prefix", ["diffusion_model.", "model.diffusion_model.", ""])
def test_what_comfyui_detects_is_detected(model: str, prefix: str) -> None:
    family, paths = TEXT_LAYERS[model]
    keys = {prefix + key: tuple(shape) for key, shape in RECORDED[model].items()}
    assert detect(keys) is by_name(family)
    edited = layers(by_name(family), keys)
    assert [layer.ldm_path for layer in edited] == paths
    for layer in edited:
        assert layer.canonical == f"diffusion_model.{layer.ldm_path}.weight" and reads_text(
            layer.canonical
        )
        assert layer.lora_base == "lora_unet_" + layer.ldm_path.replace(".", "_")
        assert layer.shape == keys[layer.file_key]
    image_layers = (
        "qkv.weight",
        "attn1.to_v.weight",
        "self_attn.v.weight",
        "self_attn.v_proj.weight",
        "norm.weight",
    )
    canonical = [f"diffusion_model.{key.removeprefix(prefix)}" for key in keys]
    assert not any(reads_text(key) for key in canonical if key.endswith(image_layers))


def test_keys_and_values_of_every_block_of_a_transformer() -> None:
    keys = {key: tuple(shape) for key, shape in RECORDED["wan"].items()}
    vace = keys | {
        "vace_blocks.0.cross_attn.k.weight": (256, 256),
        "vace_blocks.0.cross_attn.v.weight": (256, 256),
    }
    edited = layers(by_name("wan"), vace, "KV")
    assert [layer.kind for layer in edited] == ["K", "V"] * 3
    assert edited[-1].canonical == "diffusion_model.vace_blocks.0.cross_attn.v.weight"
    assert {layer.kind for layer in layers(by_name("wan"), vace, "K")} == {"K"}


@pytest.mark.parametrize(
    ("model", "change", "reason"),
    [
        (
            "wan",
            {"text_embedding.0.weight": (256, 2048)},
            "a Wan model, but text_embedding.0.weight is 256 x 2048",
        ),
        (
            "z-image",
            {"clip_text_pooled_proj.0.weight": (1024,)},
            "Z-Image model, but it has clip_text_pooled_proj",
        ),
        (
            "z-image",
            {"dec_net.cond_embed.weight": (3840, 3840)},
            "a Z-Image model in pixel space",
        ),
        ("z-image", {"__ming_image__": (0,)}, "a Ming-Image model"),
        ("qwen-image", {"txt_in.weight": (3072, 2560)}, "a Qwen-Image model, but txt_in.weight"),
        (
            "auraflow",
            {"cond_seq_linear.weight": (3072, 1024)},
            "an AuraFlow model, but cond_seq_linear",
        ),
    ],
)
def test_a_variant_that_reads_other_text_is_refused(
    model: str, change: dict[str, object], reason: str
) -> None:
    assert reason in refused_for(RECORDED[model] | change)


def without(model: str, *starts: str) -> dict[str, object]:
    """The recorded model without the keys that begin so."""
    return {key: shape for key, shape in RECORDED[model].items() if not key.startswith(starts)}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        # LongCat-Image: Flux's blocks, read by Qwen2.5-VL.
        (without("flux-dev", "vector_in.") | {"txt_in.weight": (3072, 3584)}, "a Flux model"),
        # Ming-Image is Z-Image without learned padding.
        (without("z-image", "cap_pad_token", "x_pad_token"), "it has no cap_pad_token"),
        # Qwen-Image 2.1, as published: two layers where Qwen-Image has one, blocks of one stream.
        (
            {"txt_in.text_norm.weight": (4096,), "img_in.weight": (4096, 64)}
            | {f"txt_in.{side}_layer.weight": (4096, 4096) for side in ("in", "out")}
            | {"modulation.1.weight": (16384, 4096), "proj_out.weight": (64, 4096)}
            | {"transformer_blocks.0.attn.to_v.weight": (4096, 4096)}
            | {"transformer_blocks.0.img_mlp.gate_layer.weight": (12288, 4096)},
            "a Qwen-Image 2.1 model",
        ),
        # NewBie reads a second encoder next to Lumina's.
        (
            RECORDED["lumina-2"] | {"clip_text_pooled_proj.0.weight": (1024,)},
            "it has clip_text_pooled_proj",
        ),
        # Z-Image in pixels.
        (RECORDED["z-image"] | {"dec_net.cond_embed.weight": (64, 64)}, "in pixel space"),
        # Krea 2 with states of another encoder.
        (
            RECORDED["krea-2"] | {"txtfusion.layerwise_blocks.0.attn.wq.weight": (4096, 4096)},
            "a Krea 2 model, but txtfusion",
        ),
        # The refiner of HunyuanImage has no letters, HunyuanVideo reads Llama's rows and CLIP.
        (without("hunyuan-image-2.1", "byt5_in."), "a HunyuanVideo model"),
        (
            RECORDED["hunyuan-image-2.1"] | {"vector_in.in_layer.weight": (128, 768)},
            "a HunyuanImage model, but it has vector_in",
        ),
        (
            without("hunyuan-image-2.1", "byt5_in.")
            | {"txt_in.input_embedder.weight": (128, 4096)}
            | {"txt_in.c_embedder.in_layer.weight": (128, 4096)}
            | {"vector_in.in_layer.weight": (128, 768)},
            "a HunyuanVideo model",
        ),
        # HunyuanVideo 1.5 without what it reads images with.
        (
            without("hunyuan-video-1.5", "vision_in."),
            "a HunyuanVideo 1.5 model, but it has no vision_in",
        ),
        # HiDream reads another hidden state at each of its layers.
        ({"caption_projection.0.linear.weight": (64, 4096)}, "a HiDream model"),
        # LTX-2 reads text in a stream of video and in one of sound.
        (
            RECORDED["ltxv"] | {"audio_adaln_single.linear.weight": (4, 4)},
            "an LTX-2 model",
        ),
        # The timestep changes the text of newer models before the layers that read it.
        (
            RECORDED["ltxv"] | {"transformer_blocks.0.prompt_scale_shift_table": (2, 256)},
            "but it has transformer_blocks.0.prompt_scale_shift_table",
        ),
        # Flux.2 with another encoder.
        (RECORDED["flux2-dev"] | {"txt_in.weight": (6144, 4096)}, "a Flux.2 model, but txt_in"),
        # Anima with an adapter from another encoder; Cosmos Predict2 with another T5.
        (
            RECORDED["anima"] | {"llm_adapter.blocks.0.cross_attn.v_proj.weight": (64, 2560)},
            "an Anima model, but llm_adapter",
        ),
        (
            RECORDED["cosmos-predict2"] | {"blocks.0.cross_attn.v_proj.weight": (64, 4096)},
            "a Cosmos Predict2 model, but blocks.0",
        ),
    ],
    ids=[
        *("LongCat-Image", "Ming-Image", "Qwen-Image 2.1", "NewBie", "Z-Image in pixels", "Krea 2"),
        *("HunyuanImage's refiner", "HunyuanImage with CLIP", "HunyuanVideo"),
        *("HunyuanVideo 1.5", "HiDream", "LTX-2", "LTX-2.3", "Flux.2", "Anima", "Cosmos"),
    ],
)
def test_newer_relatives_of_a_family_are_refused(keys: dict[str, object], reason: str) -> None:
    for prefix in ("", "diffusion_model."):
        assert reason in refused_for({prefix + key: shape for key, shape in keys.items()})


FLUX, SD3 = mini_dit.model_shapes("flux-dev"), mini_dit.model_shapes("sd3")
LOOK_ALIKES = {
    "a Flux.2 model": (
        FLUX | {"double_stream_modulation_img.lin.weight": (9, 3), "txt_in.weight": (6144, 15360)}
    ),
    "a Chroma model, but txt_in.weight is 48 x 2048": (
        {key: size for key, size in FLUX.items() if "vector" not in key}
        | {"distilled_guidance_layer.in_proj.weight": (4, 3), "txt_in.weight": (48, 2048)}
    ),
    "an Ovis-Image model": FLUX | {"txt_norm.scale": (2048,)},
    "a ControlNet": FLUX | {"controlnet_blocks.0.weight": (4, 4)},
    "a Flux model, but it has no vector_in": {
        key: size for key, size in FLUX.items() if "vector_in" not in key
    },
    "a Flux model, but txt_in.weight is 48 x 3584": FLUX | {"txt_in.weight": (48, 3584)},
    "a Flux model, but vector_in.in_layer.weight is 48 x 1280": (
        FLUX | {"vector_in.in_layer.weight": (48, 1280)}
    ),
    "a HunyuanVideo model": (
        {"txt_in.individual_token_refiner.blocks.0.norm1.weight": (4,)}
        | FLUX
        | {"txt_in.input_embedder.weight": (4, 4096), "vector_in.in_layer.weight": (4, 4)}
    ),
    "with a context processor": SD3 | {"context_processor.layers.0.attn.qkv.weight": (9, 3)},
    "a Stable Diffusion 3 model, but context_embedder.weight is 64 x 2048": (
        SD3 | {"context_embedder.weight": (64, 2048)}
    ),
    "an LTX-Video or PixArt model": {"adaln_single.emb.timestep_embedder.linear_1.bias": (4,)},
}


@pytest.mark.parametrize("reason", LOOK_ALIKES)
def test_look_alikes_are_refused(reason: str) -> None:
    assert reason in refused_for(LOOK_ALIKES[reason])


V1 = "model.diffusion_model.input_blocks.1.1.transformer_blocks.0."
REFUSED = {
    "Flux": {"double_blocks.0.img_attn.qkv.weight": (9, 3), "txt_in.weight": (3, 4096)},
    "Stable Diffusion 3": {
        "model.diffusion_model.joint_blocks.0.context_block.attn.qkv.weight": (9, 3)
    },
    "a Flux": {
        "transformer/single_transformer_blocks.0.attn.to_q.weight": (3, 3),
        "transformer/context_embedder.weight": (3, 3),
    },
    "Stable Cascade": {"clip_txt_mapper.weight": (4, 1280)},
    "PixArt": {"t_block.1.weight": (4, 4)},
    "LoRA": {"lora_unet_input_blocks_1_1_attn2_to_v.lora_up.weight": (4, 1)},
    "ControlNet": {"control_model.zero_convs.0.0.weight": (4, 4, 1, 1)},
    "VAE": {"first_stage_model.decoder.conv_in.weight": (4, 4, 3, 3)},
    "text encoder": {"text_model.final_layer_norm.weight": (768,)},
    "without text cross attention": (
        {"model.diffusion_model.input_blocks.0.0.weight": (4, 4, 3, 3)}
        | {"first_stage_model.decoder.conv_in.weight": (4, 4, 3, 3)}
    ),
    "a U-Net without": {"unet/conv_in.weight": (4, 4, 3, 3)},
    "a textual inversion": {"clip_l": (2, 768), "clip_g": (2, 1280)},
    "encoder alone": {"clip_l.transformer.text_model.final_layer_norm.weight": (768,)},
    "No diffusion model": {"anything": (1,)},
    "SVD": _with(
        {"model.diffusion_model.input_blocks.1.1.time_stack.0.attn1.to_q.weight": (4, 4)}, "sd2"
    ),
    "Zero123": _with({"cc_projection.weight": (768, 772)}),
    "image-variation": _with({"cond_stage_model.model.visual.proj": (4, 4)}),
    "AltDiffusion": _with({"cond_stage_model.roberta.pooler.dense.weight": (4, 4)}),
    "self-attention": _with(
        {V1 + "attn1.to_v.weight": (4, 768), V1 + "attn1.to_k.weight": (4, 768)}
    ),
    "Kolors": (
        pico.unet_shapes(pico.FAMILIES["sdxl"], "diffusers")
        | {"encoder_hid_proj.weight": (2048, 4096)}
    ),
    "label embedding of width 5632": pico.unet_shapes(replace(pico.FAMILIES["sdxl"], label=5632)),
    "width 640": pico.unet_shapes(replace(pico.FAMILIES["sd1"], context=640)),
    "quantizer": _with({V1 + "attn2.to_v.weight": (1536, 1)} | {V1 + "attn2.to_k.weight": (3072,)}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_models_are_refused_by_name(reason: str) -> None:
    assert reason in refused_for(REFUSED[reason])


def test_every_refusal_lists_all_families() -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        detect({})
    for family in ARCHITECTURES:
        title = family.title if family.on_command_line else f"{family.title} (in ComfyUI)"
        assert title in str(refusal.value)


def test_layers_refuse_the_wrong_family() -> None:
    with pytest.raises(UnsupportedModelError):
        layers(by_name("sd1"), pico.checkpoint_shapes("sd2"))
    with pytest.raises(SettingsError):
        layers(by_name("sd1"), pico.checkpoint_shapes("sd1"), "Q")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean 'sdxl-refiner'"):
        by_name("sdxl_refiner")
