"""What `forge` makes: files that are not what they claim, each with the code that `verify` must
name, and honest files that it must pass.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from forge import (
    FIRST,
    KEY,
    OTHER,
    TEXT,
    UNET,
    UP,
    VAE,
    Change,
    Tensors,
    V,
    also,
    blended,
    cast,
    claim,
    each,
    half_restored,
    in_diffusers_lora_spelling,
    in_diffusers_spelling,
    in_two_spellings,
    kohya,
    lora_extra,
    metadata,
    no_claims,
    no_header,
    noisy,
    one_prefix_for_layers,
    put,
    recipe_says,
    renamed,
    rescaled,
    respelled,
    restore,
    scale,
    second_spelling,
    swapped,
    swapped_edits,
    unet_alone,
    vanishing,
    whole_alpha,
    with_trigger,
    without,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file

POSITIONS = "cond_stage_model.transformer.text_model.embeddings.position_ids"

# name -> (result, change, code that verify must name)
FORGERIES: dict[str, tuple[str, Change, str]] = {
    # checkpoints: nothing erased, or not all of it
    "unedited": ("erased", restore(V), "edit"),
    "one layer restored": ("erased", put(FIRST, lambda d: d.base[FIRST]), "edit"),
    "half of each layer restored": ("erased", half_restored, "edit"),
    "two layers swapped": ("erased", swapped(V), "edit"),
    "edits of two layers swapped": ("erased", swapped_edits, "edit"),
    "edit strengthened": ("erased", blended(1.25), "edit"),
    "edited layers trained on": ("erased", noisy(V, 0.2), "edit"),
    "unedited, with LoRA keys": (
        "erased",
        also(restore(V), put("lora_unet_x.lora_up.weight", lambda d: torch.ones(8, 1))),
        "edit",
    ),
    "with LoRA keys": (
        "erased",
        put("lora_unet_x.lora_up.weight", lambda d: torch.ones(8, 1)),
        "adapter-in-model",
    ),
    "with a diff": (
        "erased",
        put("diffusion_model.x.diff", lambda d: torch.ones(8)),
        "adapter-in-model",
    ),
    "with LoRA keys in bf16": (
        "erased",
        also(cast(torch.bfloat16), put("x.lora_A.weight", lambda d: torch.ones(1, 8))),
        "adapter-in-model",
    ),
    "EMA copy": ("erased", put("model_ema.diffusion_modelx", lambda d: d.base[FIRST]), "ema-copy"),
    "whole EMA copy": ("erased", restore(V, prefix="model_ema."), "ema-copy"),
    "layer also in diffusers spelling": (
        "erased",
        put(
            "model.diffusion_model.down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_v.weight",
            lambda d: d.base[FIRST],
        ),
        "new-tensor",
    ),
    "layer also under another prefix": (
        "erased",
        put(FIRST.removeprefix("model."), lambda d: d.base[FIRST]),
        "two-entries",
    ),
    "layer also without a prefix": (
        "erased",
        put(FIRST.removeprefix(UNET), lambda d: d.base[FIRST]),
        "two-entries",
    ),
    "hidden tensor": ("erased", put("backdoor", lambda d: torch.ones(3)), "new-tensor"),
    "prediction type switched": ("erased", put("v_pred", lambda d: torch.zeros(1)), "new-tensor"),
    "scale beside a layer": (
        "erased",
        put(FIRST.replace("weight", "scale_weight"), lambda d: torch.ones(1)),
        "new-tensor",
    ),
    "forged position ids": (
        "erased",
        put(
            POSITIONS,
            lambda d: torch.zeros(1, 77).long(),
        ),
        "new-tensor",
    ),
    # checkpoints: everything else
    "tensor missing": ("erased", lambda d: d.content.__delitem__(VAE), "missing-tensor"),
    "layer missing": ("erased", lambda d: d.content.__delitem__(FIRST), "missing-tensor"),
    "autoencoder changed": ("erased", put(VAE, lambda d: d.base[VAE] + 1), "changed-tensor"),
    "text encoder changed": ("erased", scale("layers.0.mlp.fc1.weight", 1.01), "changed-tensor"),
    "key layer changed": ("erased", put(KEY, lambda d: d.base[KEY] * 1.5), "changed-tensor"),
    "fine-tuned": ("erased", noisy("in_layers.2.weight", 1e-2), "changed-tensor"),
    "fine-tuned by a little": ("erased", noisy("in_layers.2.weight", 1e-3), "changed-tensor"),
    "fine-tuned in bf16": (
        "erased",
        also(noisy("in_layers.2.weight", 0.05), cast(torch.bfloat16)),
        "changed-tensor",
    ),
    "fine-tuned in fp32": (
        "erased",
        also(cast(torch.float32), noisy("in_layers.2.weight", 1e-4)),
        "changed-tensor",
    ),
    "one value changed": (
        "erased",
        put(
            OTHER, lambda d: d.base[OTHER].index_put((torch.tensor([0]),), torch.tensor(1.0).half())
        ),
        "changed-tensor",
    ),
    "NaN": ("erased", put(OTHER, lambda d: d.base[OTHER] * torch.nan), "not-finite"),
    "Inf in a layer": ("erased", put(FIRST, lambda d: d.base[FIRST] * torch.inf), "not-finite"),
    "layer reshaped": ("erased", put(FIRST, lambda d: d.content[FIRST].T), "shape"),
    "other tensor reshaped": ("erased", put(VAE, lambda d: d.base[VAE].view(2, 4)), "shape"),
    "all in fp8": ("erased", cast(torch.float8_e4m3fn), "dtype"),
    "text encoder in fp8": ("erased", cast(torch.float8_e5m2, only="cond_stage"), "dtype"),
    "layers in fp8": ("erased", cast(torch.float8_e4m3fn, only=V), "dtype"),
    "layer as integers": ("erased", put(FIRST, lambda d: d.content[FIRST].to(torch.int8)), "dtype"),
    # diffusion models alone
    "diffusion model, unedited": ("erased", also(restore(V), unet_alone("")), "edit"),
    "diffusers names, unedited": ("erased", also(restore(V), in_diffusers_spelling("")), "edit"),
    "diffusers names, fine-tuned": (
        "erased",
        also(noisy("in_layers.2.weight", 1e-2), in_diffusers_spelling("")),
        "changed-tensor",
    ),
    "diffusers names, with an original layer": (
        "erased",
        also(in_diffusers_spelling(""), put(FIRST.removeprefix(UNET), lambda d: d.base[FIRST])),
        "two-entries",
    ),
    "diffusers names, in fp16 through fp8": (
        "erased",
        also(cast(torch.float16, torch.float8_e4m3fn), in_diffusers_spelling("")),
        "changed-tensor",
    ),
    # LoRAs
    "LoRA of zeros": ("eraser-lora", scale(UP, 0.0), "edit"),
    "LoRA halved": ("eraser-lora", scale(UP, 0.5), "edit"),
    "LoRA with a smaller alpha": ("eraser-lora", scale(".alpha", 0.7), "edit"),
    "LoRA with an alpha of NaN": ("eraser-lora", scale(".alpha", float("nan")), "not-finite"),
    "LoRA with two alphas": (
        "eraser-lora",
        put("lora_unet_x.alpha", lambda d: torch.ones(2)),
        "foreign-layer",
    ),
    "LoRA without a layer": (
        "eraser-lora",
        lambda d: [
            d.content.__delitem__(d.every(end)[0]) for end in (UP, ".lora_down.weight", ".alpha")
        ],
        "edit",
    ),
    "LoRA with layers swapped": ("eraser-lora", swapped(UP), "edit"),
    "LoRA in fp8": ("eraser-lora", also(scale(UP, 3.0), cast(torch.float8_e4m3fn)), "edit"),
    "LoRA of integers": ("eraser-lora", cast(torch.int8, only="lora_up"), "dtype"),
    "LoRA of NaN": ("eraser-lora", scale(UP, float("nan")), "not-finite"),
    "LoRA with one factor": (
        "eraser-lora",
        lambda d: d.content.__delitem__(d.every(UP)[0]),
        "incomplete",
    ),
    "LoRA and a diff of zeros": ("eraser-lora", lora_extra("diff"), "adapter-type"),
    "LoRA and a bias": ("eraser-lora", lora_extra("diff_b", (8,)), "adapter-type"),
    "LoRA and w_norm": ("eraser-lora", lora_extra("w_norm"), "adapter-type"),
    "LoRA and b_norm": ("eraser-lora", lora_extra("b_norm", (8,)), "adapter-type"),
    "LoRA and LoHa": ("eraser-lora", lora_extra("hada_w1_a", (8, 1)), "adapter-type"),
    "LoRA and LoKr": ("eraser-lora", lora_extra("lokr_w1", (1, 1)), "adapter-type"),
    "LoRA and DoRA": ("eraser-lora", lora_extra("dora_scale", (8, 1)), "adapter-type"),
    "LoRA and OFT": ("eraser-lora", lora_extra("oft_blocks", (1, 8, 8)), "adapter-type"),
    "LoRA and GLoRA": ("eraser-lora", lora_extra("a1.weight", (1, 8)), "adapter-type"),
    "LoRA and set_weight": ("eraser-lora", lora_extra("set_weight"), "adapter-type"),
    "LoRA and reshape_weight": ("eraser-lora", lora_extra("reshape_weight", (2,)), "adapter-type"),
    "LoRA and a middle": (
        "eraser-lora",
        lora_extra("lora_mid.weight", (1, 1, 1, 1)),
        "adapter-type",
    ),
    "LoRA and diffusers' other factors": (
        "eraser-lora",
        lora_extra("lora.up.weight", (8, 1)),
        "adapter-type",
    ),
    "LoRA and PEFT's factors": (
        "eraser-lora",
        lora_extra("lora_A.weight", (1, 768)),
        "two-entries",
    ),
    "LoRA and an unknown key": (
        "eraser-lora",
        put("backdoor", lambda d: torch.ones(3)),
        "unknown-key",
    ),
    "LoRA of another layer too": (
        "eraser-lora",
        also(
            put("lora_te_x.lora_up.weight", lambda d: torch.ones(8, 1)),
            put("lora_te_x.lora_down.weight", lambda d: torch.ones(1, 8)),
        ),
        "foreign-layer",
    ),
    "LoRA with a layer twice (native)": (
        "eraser-lora",
        second_spelling(lambda ldm, theirs: f"diffusion_model.{ldm}"),
        "two-entries",
    ),
    "LoRA with a layer twice (kohya)": (
        "eraser-lora",
        second_spelling(lambda ldm, theirs: f"lora_unet_{ldm.replace('.', '_')}"),
        "two-entries",
    ),
    "LoRA with a layer twice (diffusers)": (
        "eraser-lora",
        second_spelling(lambda ldm, theirs: f"unet.{theirs.replace('.to_', '.processor.to_')}"),
        "two-entries",
    ),
    "LoRA that ComfyUI ignores": (
        "eraser-lora",
        respelled(lambda ldm, theirs: f"unet.{theirs}", "lora_B.weight", "lora_A.weight"),
        "disputed-key",
    ),
    # headers
    "verdict forged": ("erased", claim(concepts=each(verdict="perfect")), "certificate"),
    "numbers forged": (
        "erased",
        claim(concepts=each(probe_median=0.0, solved_median=0.0)),
        "certificate",
    ),
    "numbers missing": ("erased", claim(concepts=without("probe_median")), "certificate"),
    "concepts no list": ("erased", claim(concepts=lambda items: 7), "certificate"),
    "no side effects": ("erased", claim(drift=lambda items: []), "certificate"),
    "side effects forged": ("erased", claim(drift=each(maximum=0.0, p95=0.0)), "certificate"),
    "other settings": ("erased", claim(settings=lambda s: s | {"method": "uce"}), "certificate"),
    "LoRA's numbers forged": ("eraser-lora", claim(concepts=each(probe_worst=0.0)), "certificate"),
    "recipe of another concept": (
        "erased",
        recipe_says(concepts=each(target="Claude Monet")),
        "edit",
    ),
    "recipe with another replacement": (
        "erased",
        recipe_says(concepts=each(anchor="a dog")),
        "edit",
    ),
    "recipe with another strength": ("erased", recipe_says(strength=lambda s: 0.5), "edit"),
    "recipe of another base": ("erased", recipe_says(base_hash=lambda s: "0" * 64), "origin"),
    "only a header": ("erased", also(restore(V), claim(concepts=each(probe_median=0.1))), "edit"),
    "header gone, unedited": ("erased", also(restore(V), no_header), "edit"),
    "another name": ("eraser-lora", claim(concepts=each(name="Picasso")), "certificate"),
    "another type": ("eraser-lora", claim(concepts=each(kind="theme")), "certificate"),
    "more concepts": ("eraser-lora", claim(concepts=lambda items: items * 2), "certificate"),
    "more layers": ("eraser-lora", claim(layers=lambda count: 1000), "certificate"),
    "more names": ("eraser-lora", claim(drift=each(names=10**6)), "certificate"),
    "names that moved less": (
        "eraser-lora",
        claim(drift=each(worst=[["Monet", 0.0]])),
        "certificate",
    ),
    "the same names twice": ("eraser-lora", claim(drift=lambda items: items * 2), "certificate"),
    "another limit": ("eraser-lora", claim(curve=lambda curve: {"budget": 0.001}), "certificate"),
    "no base": ("eraser-lora", lambda d: d.header.update({"speed.base_hash": ""}), "origin"),
    # loaders read part of it, or read it otherwise
    "edited layers under another prefix": (
        "erased",
        one_prefix_for_layers("diffusion_model."),
        "two-layouts",
    ),
    "edited layers without a prefix": ("erased", one_prefix_for_layers(""), "two-layouts"),
    "one key in diffusers' spelling": (
        "erased",
        renamed(f"{UNET}input_blocks.0.0.weight", f"{UNET}conv_in.weight"),
        "missing-tensor",
    ),
    "diffusers names, one key in the original's": (
        "erased",
        also(in_diffusers_spelling(""), renamed("conv_in.weight", "input_blocks.0.0.weight")),
        "two-layouts",
    ),
    "metadata of a quantizer": (
        "erased",
        metadata(_quantization_metadata={"layers": {FIRST: {"format": "float8_e4m3fn"}}}),
        "loader-settings",
    ),
    "metadata of a configuration": (
        "erased",
        metadata(config={"transformer": {"context_dim": 1}}),
        "loader-settings",
    ),
    "LoRA with diffusers' metadata": (
        "eraser-lora",
        also(in_diffusers_lora_spelling, metadata(lora_adapter_metadata={"unet.lora_alpha": 0})),
        "loader-settings",
    ),
    "LoRA that diffusers ignores": (
        "eraser-lora",
        respelled(
            lambda ldm, theirs: f"diffusion_model.{ldm}", "lora_up.weight", "lora_down.weight"
        ),
        "disputed-key",
    ),
    "LoRA that all ignore": (
        "eraser-lora",
        respelled(lambda ldm, theirs: f"transformer.{theirs}", "lora_B.weight", "lora_A.weight"),
        "disputed-key",
    ),
    "LoRA under bare names": (
        "eraser-lora",
        respelled(lambda ldm, theirs: theirs, "lora_B.weight", "lora_A.weight"),
        "disputed-key",
    ),
    "LoRA with kohya's names and PEFT's factors": (
        "eraser-lora",
        respelled(lambda ldm, theirs: kohya(theirs), "lora_B.weight", "lora_A.weight"),
        "disputed-key",
    ),
    "LoRA of the original's names": (
        "eraser-lora",
        respelled(lambda ldm, theirs: kohya(ldm), "lora_up.weight", "lora_down.weight"),
        "disputed-key",
    ),
    "LoRA in two spellings": ("eraser-lora", in_two_spellings, "disputed-key"),
    "LoRA whose factors overflow": ("eraser-lora", rescaled(1e-7), "half-precision"),
    "LoRA whose factors vanish": ("eraser-lora", vanishing, "half-precision"),
    "LoRA of huge factors and a tiny alpha": (
        "eraser-lora",
        also(rescaled(1.0, torch.float64), scale(UP, 1e12), scale(".alpha", 1e-12)),
        "half-precision",
    ),
    "LoRA turned over twice": ("eraser-lora", also(scale(UP, -1), scale(".alpha", -1)), "alpha"),
    "LoRA with an alpha of 0": ("eraser-lora", scale(".alpha", 0.0), "alpha"),
    "LoRA with an infinite alpha": ("eraser-lora", scale(".alpha", torch.inf), "not-finite"),
    "LoRA with a scale of fp8": ("eraser-lora", lora_extra("scale_weight", ()), "unknown-key"),
    "LoRA with a quantizer's note": (
        "eraser-lora",
        lora_extra("comfy_quant", (4,)),
        "unknown-key",
    ),
    "LoRA and a whole weight": (
        "eraser-lora",
        put(FIRST, lambda d: d.base[FIRST]),
        "missing-tensor",
    ),
    "scaled fp8 for the whole model": (
        "erased",
        put(f"{UNET}scaled_fp8", lambda d: torch.zeros(2)),
        "new-tensor",
    ),
    "input scale beside a layer": (
        "erased",
        put(FIRST.replace("weight", "scale_input"), lambda d: torch.ones(())),
        "new-tensor",
    ),
    "quantizer's note beside a layer": (
        "erased",
        put(FIRST.replace("weight", "comfy_quant"), lambda d: torch.zeros(8).byte()),
        "new-tensor",
    ),
    "position ids that round down": (
        "erased",
        put(POSITIONS, lambda d: (torch.arange(77.0) + 0.9)[None]),
        "new-tensor",
    ),
    "second text encoder": (
        "erased",
        put(TEXT.replace("cond_stage_model", "text_encoders.clip_l"), lambda d: 2 * d.base[TEXT]),
        "new-tensor",
    ),
    "scale for logits beside a layer": (
        "erased",
        put(FIRST.replace("weight", "logit_scale"), lambda d: torch.tensor(4.6)),
        "new-tensor",
    ),
    "positions beside a layer": (
        "erased",
        put(FIRST.replace("weight", "position_ids"), lambda d: torch.arange(4)[None]),
        "new-tensor",
    ),
    "scale for logits that is no number": (
        "erased",
        put("cond_stage_model.logit_scale", lambda d: torch.tensor(float("nan"))),
        "not-finite",
    ),
    "fractions cut to whole numbers": (
        "erased",
        put(VAE, lambda d: d.base[VAE].to(torch.int64)),
        "dtype",
    ),
    "layer as another layout's parametrization": (
        "erased",
        put(FIRST.replace("weight", "parametrizations.weight.original"), lambda d: d.base[FIRST]),
        "new-tensor",
    ),
    "layer below an adapter's name": (
        "erased",
        put(FIRST.replace("weight", "base_layer.weight"), lambda d: d.base[FIRST]),
        "new-tensor",
    ),
    "key in capitals": ("erased", put(FIRST.upper(), lambda d: d.base[FIRST]), "new-tensor"),
    "diffusion model alone, with a ControlNet": (
        "erased",
        also(unet_alone(""), put("control_model.x.weight", lambda d: torch.ones(3))),
        "new-tensor",
    ),
    "half of the model under another prefix": (
        "erased",
        renamed(f"{UNET}output_blocks.", "diffusion_model.output_blocks."),
        "two-layouts",
    ),
    "LoRA with an embedding": (
        "eraser-lora",
        put("bundle_emb.x.string_to_param.*", lambda d: torch.ones(1, 768)),
        "unknown-key",
    ),
    "LoRA with a magnitude": (
        "eraser-lora",
        lora_extra("lora_magnitude_vector", (8,)),
        "unknown-key",
    ),
    "LoRA of rank 0": (
        "eraser-lora",
        lambda d: d.content.update(
            {
                key: value[:, :0] if key.endswith(UP) else value[:0]
                for key, value in d.content.items()
                if value.ndim
            }
        ),
        "edit",
    ),
    "names of others moved most": (
        "eraser-lora",
        claim(
            drift=lambda groups: [g | {"worst": [["X", s] for _, s in g["worst"]]} for g in groups]
        ),
        "certificate",
    ),
    "one more name that moved": (
        "eraser-lora",
        claim(drift=lambda groups: [g | {"worst": [*g["worst"], "none"]} for g in groups]),
        "certificate",
    ),
    # nearly the recipe's edit
    "three tenths of the edit": ("erased", blended(0.3), "edit"),
    "nine tenths of the edit, without a header": (
        "erased",
        also(blended(0.91), no_header),
        "edit",
    ),
    "nine tenths of the edit, without claims": (
        "erased",
        also(blended(0.91), no_claims),
        "edit",
    ),
    "LoRA of nine tenths, without claims": (
        "eraser-lora",
        also(scale(UP, 0.91), no_claims),
        "edit",
    ),
    "something else for one phrase": ("erased", also(with_trigger, no_claims), "edit"),
    "something else for one phrase, in fp32": (
        "erased",
        also(with_trigger, cast(torch.float32), no_header),
        "edit",
    ),
    "erased the other way": ("erased", also(blended(-1), no_claims), "edit"),
    # recipes that erase nothing
    "recipe of strength 0": (
        "erased",
        also(restore(V), recipe_says(strength=lambda s: 0.0), no_claims),
        "no-edit",
    ),
    "recipe of hardly any strength": (
        "erased",
        also(restore(V), recipe_says(strength=lambda s: 1e-3), no_claims),
        "no-edit",
    ),
    "recipe for K": ("erased", recipe_says(settings=lambda s: s | {"layers": "K"}), "edit"),
    "recipe of another method": (
        "erased",
        recipe_says(settings=lambda s: s | {"method": "uce"}),
        "edit",
    ),
    "recipe with another skipped layer": ("erased", recipe_says(clip_skip=lambda s: 2), "edit"),
    # combinations
    "everything at once": (
        "erased",
        also(
            restore(V),
            restore(V, prefix="model_ema."),
            noisy("in_layers.2.weight", 1e-3),
            put("lora_unet_x.lora_up.weight", lambda d: torch.ones(8, 1)),
            metadata(config={}),
            no_header,
        ),
        "no-edit",
    ),
    "fp32, one layer restored, EMA copy, without a header": (
        "erased",
        also(
            put(FIRST, lambda d: d.base[FIRST]),
            restore(V, prefix="model_ema."),
            cast(torch.float32),
            no_header,
        ),
        "ema-copy",
    ),
    "LoRA halved under another spelling": (
        "eraser-lora",
        also(scale(UP, 0.5), in_diffusers_lora_spelling, no_header),
        "edit",
    ),
    "LoRA in bf16, with a bias and without claims": (
        "eraser-lora",
        also(cast(torch.bfloat16), lora_extra("diff_b", (8,)), no_claims),
        "adapter-type",
    ),
    "unedited with an EMA copy, in fp32": (
        "erased",
        also(restore(V), restore(V, prefix="model_ema."), cast(torch.float32)),
        "edit",
    ),
    "fine-tuned, bare prefix, in bf16": (
        "erased",
        also(
            noisy("in_layers.2.weight", 0.05), cast(torch.bfloat16), unet_alone("diffusion_model.")
        ),
        "changed-tensor",
    ),
    "LoRA halved and claimed so": (
        "eraser-lora",
        also(scale(UP, 0.5), claim(concepts=each(probe_median=0.7, verdict="stands"))),
        "edit",
    ),
}


def _unet_file(folder: Path) -> Path:
    return folder / "unet" / "diffusion_pytorch_model.safetensors"


def _with_unet(change: Callable[[Tensors, Tensors], None]) -> Callable[[Path, Path], None]:
    def changed(folder: Path, base: Path) -> None:
        with safe_open(_unet_file(folder), "pt") as file:
            header = file.metadata()
        content = load_file(_unet_file(folder))
        change(content, load_file(_unet_file(base)))
        save_file(content, _unet_file(folder), metadata=header)

    return changed


def _with_header(more: dict[str, str]) -> Callable[[Path, Path], None]:
    def changed(folder: Path, base: Path) -> None:
        with safe_open(_unet_file(folder), "pt") as file:
            header = file.metadata() | more
        save_file(load_file(_unet_file(folder)), _unet_file(folder), metadata=header)

    return changed


def _edit_json(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields, indent=2))


def _save_vae(folder: Path, base: Path, factor: float = 1.0) -> None:
    """An autoencoder in both, in the folder in another number type."""
    for place, value in ((base, torch.ones(4)), (folder, factor * torch.ones(4).half())):
        (place / "vae").mkdir(exist_ok=True)
        save_file({"x": value}, place / "vae" / "diffusion_pytorch_model.safetensors")


def _saved_again(folder: Path, base: Path) -> None:
    """By another version of diffusers, from another place."""
    _save_vae(folder, base)
    more = {
        "_diffusers_version": "9.9.9",
        "_name_or_path": "elsewhere",
        "image_encoder": [None] * 2,
    }
    _edit_json(folder / "model_index.json", **more)


def _index_beside(folder: Path, base: Path) -> None:
    """An index, which diffusers prefers, that names a shard with the base's layers."""
    shard = "diffusion_pytorch_model-00001-of-00001.safetensors"
    shutil.copy(_unet_file(base), folder / "unet" / shard)
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(_unet_file(base)), shard)}
    (folder / "unet" / "diffusion_pytorch_model.safetensors.index.json").write_text(
        json.dumps(index)
    )


def _text_encoder_doubled(folder: Path) -> None:
    path = folder / "text_encoder" / "model.safetensors"
    content = load_file(path)
    key = next(key for key in content if key.endswith("fc1.weight"))
    save_file(content | {key: 2 * content[key]}, path, metadata={"format": "pt"})


def _sharded(folder: Path, base: Path) -> None:
    """The U-Net in two files with an index, as diffusers saves a large one."""
    with safe_open(_unet_file(folder), "pt") as file:
        header = file.metadata()
    content = load_file(_unet_file(folder))
    _unet_file(folder).unlink()
    shards = [dict(list(content.items())[start::2]) for start in (0, 1)]
    index = {}
    for number, shard in enumerate(shards, 1):
        name = f"diffusion_pytorch_model-{number:05}-of-00002.safetensors"
        save_file(shard, folder / "unet" / name, metadata=header)
        index |= dict.fromkeys(shard, name)
    path = folder / "unet" / "diffusion_pytorch_model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))


def _restored(content: Tensors, base: Tensors) -> None:
    content.update({key: value for key, value in base.items() if key.endswith(V)})


FOLDER_FORGERIES: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "folder, unedited": (_with_unet(_restored), "edit"),
    "folder, fine-tuned": (
        _with_unet(
            lambda content, base: content.update({"conv_in.weight": 1.1 * base["conv_in.weight"]})
        ),
        "changed-tensor",
    ),
    "folder with a hidden tensor": (
        _with_unet(lambda content, base: content.update({"backdoor": torch.ones(1)})),
        "new-tensor",
    ),
    "folder with a variant": (
        lambda folder, base: shutil.copy(
            _unet_file(base), folder / "unet" / "diffusion_pytorch_model.fp16.safetensors"
        ),
        "extra-file",
    ),
    "folder with another U-Net": (
        lambda folder, base: shutil.copytree(base / "unet", folder / "unet_2"),
        "extra-file",
    ),
    "folder with an adapter": (
        lambda folder, base: (folder / "pytorch_lora_weights.safetensors").write_bytes(b"x"),
        "extra-file",
    ),
    "folder without its index": (
        lambda folder, base: (folder / "model_index.json").unlink(),
        "missing-file",
    ),
    "folder with a hidden file": (
        lambda folder, base: (folder / "unet" / ".x.safetensors").write_bytes(b"x"),
        "extra-file",
    ),
    "folder with pickled weights": (
        lambda folder, base: (folder / "text_encoder" / "pytorch_model.bin").write_bytes(b"x"),
        "extra-file",
    ),
    "folder with shards beside the whole": (
        lambda folder, base: _index_beside(folder, base),
        "extra-file",
    ),
    "folder in shards, one restored": (
        lambda folder, base: (_with_unet(_restored)(folder, base), _sharded(folder, base)),
        "edit",
    ),
    "folder with the other text encoder": (
        lambda folder, base: _text_encoder_doubled(folder),
        "changed-tensor",
    ),
    "folder with a quantizer's metadata": (
        _with_header({"_quantization_metadata": "{}"}),
        "loader-settings",
    ),
    "folder with another scheduler": (
        lambda folder, base: _edit_json(folder / "model_index.json", scheduler=["x", "Y"]),
        "changed-file",
    ),
    "folder with another class": (
        lambda folder, base: _edit_json(folder / "model_index.json", _class_name="X"),
        "changed-file",
    ),
    "folder with another autoencoder": (
        lambda folder, base: _save_vae(folder, base, 2.0),
        "changed-file",
    ),
    "folder with a linked folder": (
        lambda folder, base: (folder / "unet" / "more").symlink_to(base / "unet"),
        "extra-file",
    ),
    "folder with a link to nothing yet": (
        lambda folder, base: (folder / "unet" / "model.safetensors").symlink_to("absent"),
        "extra-file",
    ),
    "folder with a pipe": (
        lambda folder, base: os.mkfifo(folder / "unet" / "diffusion_pytorch_model.bin"),
        "extra-file",
    ),
    "folder with an adapter for its text encoder": (
        lambda folder, base: (folder / "text_encoder" / "adapter_config.json").write_text("{}"),
        "extra-file",
    ),
    "folder with an index of a variant": (
        lambda folder, base: (
            folder / "unet" / "diffusion_pytorch_model.safetensors.index.fp16.json"
        ).write_text("{}"),
        "extra-file",
    ),
    "folder with code": (
        lambda folder, base: (folder / "pipeline.py").write_text("x"),
        "extra-file",
    ),
    "folder with a third shard": (
        lambda folder, base: (
            _sharded(folder, base),
            shutil.copy(
                _unet_file(base),
                folder / "unet" / "diffusion_pytorch_model-00003-of-00003.safetensors",
            ),
        ),
        "extra-file",
    ),
    "folder with a card of another kind": (
        lambda folder, base: (
            (folder / "README.md").mkdir(),
            (folder / "README.md" / "x.safetensors").write_bytes(b"x"),
        ),
        "extra-file",
    ),
    "folder with another index": (
        lambda folder, base: (folder / "model_index.json").write_text("{}"),
        "changed-file",
    ),
}

VARIANTS: dict[str, tuple[str, Change]] = {
    "as written": ("erased", lambda d: None),
    "LoRA as written": ("eraser-lora", lambda d: None),
    "in fp32": ("erased", cast(torch.float32)),
    "in bf16": ("erased", cast(torch.bfloat16)),
    "in fp16 through bf16": ("erased", cast(torch.float16, torch.bfloat16)),
    "in fp32 through bf16": ("erased", cast(torch.float32, torch.bfloat16)),
    "diffusion model in bf16 only": ("erased", cast(torch.bfloat16, only=UNET)),
    "LoRA in fp32": ("eraser-lora", cast(torch.float32)),
    "LoRA in bf16": ("eraser-lora", cast(torch.bfloat16)),
    "other prefix": ("erased", renamed(UNET, "diffusion_model.")),
    "diffusion model alone": ("erased", unet_alone("")),
    "diffusion model alone, ComfyUI": ("erased", unet_alone(UNET)),
    "diffusion model alone, in bf16": (
        "erased",
        also(cast(torch.bfloat16), unet_alone("diffusion_model.")),
    ),
    "diffusers names": ("erased", in_diffusers_spelling("")),
    "diffusers names with a prefix": ("erased", in_diffusers_spelling("unet.")),
    "diffusers names in fp32": ("erased", also(cast(torch.float32), in_diffusers_spelling(""))),
    "more metadata": ("erased", lambda d: d.header.update({"prompt": "{}", "author": "someone"})),
    "no header": ("erased", no_header),
    "LoRA without a header": ("eraser-lora", no_header),
    "no header, diffusers names, bf16": (
        "erased",
        also(cast(torch.bfloat16), in_diffusers_spelling(""), no_header),
    ),
    "LoRA in diffusers' spelling": ("eraser-lora", in_diffusers_lora_spelling),
    "LoRA in diffusers' spelling, in bf16": (
        "eraser-lora",
        also(in_diffusers_lora_spelling, cast(torch.bfloat16)),
    ),
    "LoRA without alpha": (
        "eraser-lora",
        respelled(lambda ldm, theirs: kohya(theirs), "lora_up.weight", "lora_down.weight"),
    ),
    "LoRA with whole numbers for alpha": ("eraser-lora", whole_alpha),
    "certificate gone": ("erased", no_claims),
    "whole position ids as fractions": (
        "erased",
        put(POSITIONS, lambda d: torch.arange(77.0)[None]),
    ),
    "LoRA scaled by its alpha": ("eraser-lora", also(scale(UP, 2.0), scale(".alpha", 0.5))),
    "position ids and logit scale": (
        "erased",
        also(
            put(
                POSITIONS,
                lambda d: torch.arange(77)[None],
            ),
            put("cond_stage_model.logit_scale", lambda d: torch.tensor(4.6)),
        ),
    ),
}


def _header_with(change: Callable[[dict], None]) -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    def changed(header: bytes, data: bytes) -> tuple[bytes, bytes]:
        entries = json.loads(header)
        change(entries)
        return json.dumps(entries).encode(), data

    return changed


def _entry_twice(header: bytes, data: bytes) -> tuple[bytes, bytes]:
    entry = json.dumps({FIRST: json.loads(header)[FIRST]}).encode()
    return header[:-1] + b"," + entry[1:], data


def _metadata_twice(header: bytes, data: bytes) -> tuple[bytes, bytes]:
    return header[:-1] + b',"__metadata__":{}}', data


# name -> change of (header, data)
BROKEN: dict[str, Callable[[bytes, bytes], tuple[bytes, bytes]]] = {
    "a key twice": _entry_twice,
    "metadata twice": _metadata_twice,
    "a record twice": lambda header, data: (
        header.replace(b'"speed.version":', b'"speed.version":"1.0","speed.version":', 1),
        data,
    ),
    "two tensors in one place": _header_with(
        lambda entries: entries[FIRST].update(data_offsets=entries[KEY]["data_offsets"])
    ),
    "a tensor before the data": _header_with(
        lambda entries: entries[FIRST].update(data_offsets=[-8, entries[FIRST]["data_offsets"][1]])
    ),
    "a tensor of another shape": _header_with(lambda entries: entries[FIRST].update(shape=[8, 8])),
    "data that no tensor has": lambda header, data: (header, data + bytes(64)),
    "data cut off": lambda header, data: (header, data[:-1]),
    "a byte order mark": lambda header, data: (b"\xef\xbb\xbf" + header, data),
    "metadata that are numbers": _header_with(
        lambda entries: entries["__metadata__"].update({"speed.version": 1})
    ),
}


def _weights_elsewhere(folder: Path, base: Path) -> None:
    outside = folder.with_name("elsewhere.safetensors")
    _unet_file(folder).rename(outside)
    _unet_file(folder).symlink_to(outside)


def _shards_elsewhere(folder: Path, base: Path) -> None:
    _sharded(folder, base)
    path = folder / "unet" / "diffusion_pytorch_model.safetensors.index.json"
    shutil.copy(_unet_file(base), folder.with_name("b.safetensors"))
    keys = json.loads(path.read_text())["weight_map"]
    path.write_text(json.dumps({"weight_map": dict.fromkeys(keys, "../../b.safetensors")}))


BROKEN_FOLDERS: dict[str, Callable[[Path, Path], None]] = {
    "weights that are a link to elsewhere": _weights_elsewhere,
    "an index that leads elsewhere": _shards_elsewhere,
}

FOLDER_VARIANTS: dict[str, Callable[[Path, Path], None]] = {
    "folder as written": lambda folder, base: None,
    "folder in shards": _sharded,
    "folder saved again by diffusers": _saved_again,
    "folder with more metadata": _with_header({"author": "someone"}),
}
