"""Files that are not what they claim, and files that are whatever saver they went through.

A forgery changes the tensors, the header or the folder of an honest result; `verify` must name what
is wrong by its code. A variant is honest: `verify` must pass it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mini
import pico
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.cli import main

Tensors = dict[str, torch.Tensor]
UNET = "model.diffusion_model."
FIRST = f"{UNET}input_blocks.1.1.transformer_blocks.0.attn2.to_v.weight"
KEY = FIRST.replace("to_v", "to_k")
OTHER = f"{UNET}input_blocks.1.0.in_layers.2.weight"
TEXT = "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight"
VAE = "first_stage_model.quant_conv.bias"


@dataclass
class Draft:
    """A result that is being changed, next to its base."""

    content: Tensors
    base: Tensors
    header: dict[str, str]
    rank: int = 0
    recipe: Path | None = None
    """Given to `verify`, where the header has gone."""

    def every(self, end: str) -> list[str]:
        return sorted(key for key in self.content if key.endswith(end))

    def record(self, name: str) -> dict:
        """The recipe or the certificate in the header."""
        return json.loads(self.header[f"speed.{name}"])

    def write_record(self, name: str, value: object) -> None:
        self.header[f"speed.{name}"] = json.dumps(value)


Change = Callable[[Draft], None]


class Forge:
    """Honest results of one base, and a way to change them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base = folder, folder / "m.safetensors"
        mini.write_model(self.base)
        self._erase(self.base)
        self.pipeline = folder / "pipeline"
        mini.write_folder(self.pipeline)
        self._erase(self.pipeline, "--save", "checkpoint,recipe")
        self.recipe = folder / "out" / "m-recipe.json"

    def _erase(self, base: Path, *more: str) -> None:
        out = ["--out", str(self.folder / "out"), "--quiet"]
        assert (
            main(["erase", str(base), "--concepts", mini.CONCEPTS, *mini.QUICK, *out, *more]) == 0
        )

    def changed(self, kind: str, change: Change, target: Path) -> list[str]:
        """Arguments of `verify` for a changed file.

        Args:
            kind: erased or eraser-lora.
            change: What happens to it.
            target: Where it goes.
        """
        source = self.folder / "out" / f"m-{kind}.safetensors"
        with safe_open(source, "pt") as file:
            header = dict(file.metadata())
        draft = Draft(load_file(source), load_file(self.base), header)
        change(draft)
        content = {key: value.contiguous().clone() for key, value in draft.content.items()}
        save_file(content, target, metadata=draft.header or None)
        arguments = [str(target), "--base", str(self.base)]
        return [*arguments, "--recipe", str(self.recipe)] if not draft.header else arguments

    def changed_folder(self, change: Callable[[Path, Path], None], target: Path) -> list[str]:
        """Arguments of `verify` for a changed folder; `change(folder, base)`."""
        shutil.copytree(self.folder / "out" / "pipeline-erased", target)
        change(target, self.pipeline)
        return [str(target), "--base", str(self.pipeline)]


def put(key: str, value: Callable[[Draft], torch.Tensor]) -> Change:
    """One tensor set."""
    return lambda draft: draft.content.update({key: value(draft)})


def scale(end: str, factor: float) -> Change:
    def change(draft: Draft) -> None:
        for key in draft.every(end):
            draft.content[key] = draft.content[key] * factor

    return change


def restore(*ends: str, prefix: str = "") -> Change:
    """Tensors of the base, put back under their own names or with a prefix."""

    def change(draft: Draft) -> None:
        for key, value in draft.base.items():
            if key.endswith(ends):
                draft.content[prefix + key if prefix else key] = value

    return change


def also(*changes: Change) -> Change:
    def change(draft: Draft) -> None:
        for each in changes:
            each(draft)

    return change


def strengthened(draft: Draft) -> None:
    """The edit a quarter further than the recipe makes it."""
    for key in draft.every("attn2.to_v.weight"):
        before, after = draft.base[key].float(), draft.content[key].float()
        draft.content[key] = (before + 1.25 * (after - before)).half()


def swapped(end: str) -> Change:
    def change(draft: Draft) -> None:
        first, second = draft.every(end)[:2]
        content = draft.content
        content[first], content[second] = content[second], content[first]

    return change


def swapped_edits(draft: Draft) -> None:
    """Each of two layers with the other's edit."""
    first, second = draft.every("attn2.to_v.weight")[:2]
    edits = [draft.content[key].float() - draft.base[key].float() for key in (first, second)]
    for key, edit in zip((first, second), reversed(edits), strict=True):
        draft.content[key] = (draft.base[key].float() + edit).half()


def half_restored(draft: Draft) -> None:
    """The upper outputs of each layer as in the base."""
    for key in draft.every("attn2.to_v.weight"):
        count = len(draft.base[key]) // 2
        draft.content[key][:count] = draft.base[key][:count]


def noisy(end: str, size: float) -> Change:
    def change(draft: Draft) -> None:
        generator = torch.Generator().manual_seed(3)
        for key in draft.every(end):
            value = draft.content[key].float()
            noise = torch.randn(value.shape, generator=generator)
            draft.content[key] = (value + size * value.std() * noise).to(draft.content[key].dtype)

    return change


def cast(dtype: torch.dtype, *through: torch.dtype, only: str = "") -> Change:
    """Every tensor in another number type, by way of others."""

    def change(draft: Draft) -> None:
        for key, value in draft.content.items():
            if value.is_floating_point() and only in key:
                for kind in (*through, dtype):
                    value = value.to(kind)
                draft.content[key] = value

    return change


def renamed(old: str, new: str) -> Change:
    def change(draft: Draft) -> None:
        draft.content = {
            key.replace(old, new, 1) if key.startswith(old) else key: value
            for key, value in draft.content.items()
        }

    return change


def in_diffusers_spelling(prefix: str) -> Change:
    """The U-Net alone, with diffusers' names."""

    def change(draft: Draft) -> None:
        shape = pico.SMALL["sd1"]
        names = {ldm: diffusers for ldm, diffusers, _ in pico.names(shape)}
        draft.content = {
            prefix + names[key.removeprefix(UNET)]: value
            for key, value in draft.content.items()
            if key.startswith(UNET)
        }

    return change


def unet_alone(prefix: str) -> Change:
    def change(draft: Draft) -> None:
        draft.content = {
            prefix + key.removeprefix(UNET): value
            for key, value in draft.content.items()
            if key.startswith(UNET)
        }

    return change


def respelled(name: Callable[[str, str], str], up: str, down: str) -> Change:
    """A LoRA under another spelling, without alpha (which is the rank)."""
    paths = {theirs.replace(".", "_"): (name, theirs) for name, theirs in _paths()}

    def change(draft: Draft) -> None:
        content = {}
        for key, value in draft.content.items():
            base, _, end = key.partition(".")
            original, theirs = paths[base.removeprefix("lora_unet_")]
            if end != "alpha":
                end = {"lora_up.weight": up, "lora_down.weight": down}[end]
                content[f"{name(original, theirs)}.{end}"] = value
        draft.content = content

    return change


def _paths() -> list[tuple[str, str]]:
    names = pico.names(pico.SMALL["sd1"])
    return [
        (ldm.removesuffix(".weight"), theirs.removesuffix(".weight"))
        for ldm, theirs, _ in names
        if ldm.endswith("attn2.to_v.weight")
    ]


def lora_extra(end: str, shape: tuple[int, ...] = (8, 768), layer: int = 0) -> Change:
    """Another entry for a layer that the LoRA edits."""

    def change(draft: Draft) -> None:
        base = draft.every(".lora_up.weight")[layer].removesuffix(".lora_up.weight")
        draft.content[f"{base}.{end}"] = torch.zeros(shape, dtype=torch.float16)

    return change


def second_spelling(name: Callable[[str, str], str]) -> Change:
    """A layer that is edited, again under another name and with zeros."""

    def change(draft: Draft) -> None:
        ldm, theirs = _paths()[0]
        for key in list(draft.content):
            if key.startswith(f"lora_unet_{theirs.replace('.', '_')}."):
                end = key.partition(".")[2]
                value = draft.content[key]
                zero = torch.zeros_like(value) if "up" in end else value
                draft.content[f"{name(ldm, theirs)}.{end}"] = zero

    return change


def claim(**changes: Callable[[object], object]) -> Change:
    """The certificate with fields changed."""

    def change(draft: Draft) -> None:
        facts = draft.record("certificate")
        draft.write_record("certificate", facts | {k: f(facts[k]) for k, f in changes.items()})

    return change


def recipe_says(**changes: Callable[[object], object]) -> Change:
    def change(draft: Draft) -> None:
        recipe = draft.record("recipe")
        draft.write_record("recipe", recipe | {k: f(recipe[k]) for k, f in changes.items()})

    return change


def each(**fields: object) -> Callable[[object], object]:
    return lambda items: [item | fields for item in items]


def without(field: str) -> Callable[[object], object]:
    return lambda items: [{k: v for k, v in item.items() if k != field} for item in items]


_HONEST = {"verdict": "erased"}
V = "attn2.to_v.weight"
UP = ".lora_up.weight"

# name -> (result, change, code that verify must name)
FORGERIES: dict[str, tuple[str, Change, str]] = {
    # checkpoints: nothing erased, or not all of it
    "unedited": ("erased", restore(V), "edit"),
    "one layer restored": ("erased", put(FIRST, lambda d: d.base[FIRST]), "edit"),
    "half of each layer restored": ("erased", half_restored, "edit"),
    "two layers swapped": ("erased", swapped(V), "edit"),
    "edits of two layers swapped": ("erased", swapped_edits, "edit"),
    "edit strengthened": ("erased", strengthened, "edit"),
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
            "cond_stage_model.transformer.text_model.embeddings.position_ids",
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
    "header gone, unedited": ("erased", also(restore(V), lambda d: d.header.clear()), "edit"),
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
    # combinations
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
    "no header": ("erased", lambda d: d.header.clear()),
    "LoRA without a header": ("eraser-lora", lambda d: d.header.clear()),
    "no header, diffusers names, bf16": (
        "erased",
        also(cast(torch.bfloat16), in_diffusers_spelling(""), lambda d: d.header.clear()),
    ),
    "LoRA in ComfyUI's spelling": (
        "eraser-lora",
        respelled(
            lambda ldm, theirs: f"diffusion_model.{ldm}", "lora_up.weight", "lora_down.weight"
        ),
    ),
    "LoRA scaled by its alpha": ("eraser-lora", also(scale(UP, 2.0), scale(".alpha", 0.5))),
    "position ids and logit scale": (
        "erased",
        also(
            put(
                "cond_stage_model.transformer.text_model.embeddings.position_ids",
                lambda d: torch.arange(77)[None],
            ),
            put("cond_stage_model.logit_scale", lambda d: torch.tensor(4.6)),
        ),
    ),
}
FOLDER_VARIANTS: dict[str, Callable[[Path, Path], None]] = {
    "folder as written": lambda folder, base: None,
    "folder in shards": _sharded,
}
