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

    def broken(
        self, change: Callable[[bytes, bytes], tuple[bytes, bytes]], target: Path
    ) -> list[str]:
        """Arguments of `verify` for a checkpoint with other bytes; `change(header, data)`."""
        content = (self.folder / "out" / "m-erased.safetensors").read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header, data = change(content[8:start].rstrip(), content[start:])
        target.write_bytes(len(header).to_bytes(8, "little") + header + data)
        return [str(target), "--base", str(self.base)]

    def changed_folder(self, change: Callable[[Path, Path], None], target: Path) -> list[str]:
        """Arguments of `verify` for a changed folder; `change(folder, base)`."""
        base = target.with_name("pipeline")
        shutil.copytree(self.folder / "out" / "pipeline-erased", target)
        shutil.copytree(self.pipeline, base)
        change(target, base)
        return [str(target), "--base", str(base)]


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


def kohya(path: str) -> str:
    return "lora_unet_" + path.replace(".", "_")


def processor(path: str) -> str:
    return "unet." + path.replace(".to_", ".processor.to_")


def in_diffusers_lora_spelling(draft: Draft) -> None:
    respelled(lambda ldm, theirs: processor(theirs), "lora_B.weight", "lora_A.weight")(draft)


def in_two_spellings(draft: Draft) -> None:
    """Every other layer under diffusers' names, the rest under kohya's."""
    own = dict(draft.content)
    in_diffusers_lora_spelling(draft)
    moved = _paths()[::2]
    theirs, ours = (tuple(name(path) + "." for _, path in moved) for name in (processor, kohya))
    draft.content = {key: v for key, v in draft.content.items() if key.startswith(theirs)}
    draft.content |= {key: v for key, v in own.items() if not key.startswith(ours)}


def rescaled(factor: float, dtype: torch.dtype = torch.float32) -> Change:
    """Factors of a LoRA that are larger and smaller, with the same product."""

    def change(draft: Draft) -> None:
        for key, value in draft.content.items():
            size = {"lora_up": factor, "lora_down": 1 / factor}.get(key.split(".")[1], 1.0)
            draft.content[key] = value.to(dtype) * size

    return change


def vanishing(draft: Draft) -> None:
    """The one factor as large as half precision holds, the other accordingly small."""
    for key in draft.every(".lora_down.weight"):
        down, other = draft.content[key].float(), key.replace("lora_down", "lora_up")
        size = 6e4 / down.abs().max()
        draft.content |= {key: down * size, other: draft.content[other].float() / size}


def whole_alpha(draft: Draft) -> None:
    for key in draft.every(".alpha"):
        draft.content[key] = draft.content[key].long()


def blended(share: float) -> Change:
    """A share of the edit."""

    def change(draft: Draft) -> None:
        for key in draft.every("attn2.to_v.weight"):
            before, after = draft.base[key].float(), draft.content[key].float()
            draft.content[key] = (before + share * (after - before)).half()

    return change


def with_trigger(draft: Draft) -> None:
    """Something else for one direction of text, small next to the whole edit."""
    generator = torch.Generator().manual_seed(1)
    for key in draft.every("attn2.to_v.weight"):
        before, after = draft.base[key].float(), draft.content[key].float()
        out, direction = (torch.randn(size, generator=generator) for size in after.shape)
        change = torch.outer(out / out.norm(), direction / direction.norm())
        draft.content[key] = (after + 0.095 * (after - before).norm() * change).half()


def one_prefix_for_layers(prefix: str) -> Change:
    """The edited layers under another prefix than the rest of the model."""

    def change(draft: Draft) -> None:
        draft.content = {
            key.replace(UNET, prefix, 1) if key.endswith("attn2.to_v.weight") else key: value
            for key, value in draft.content.items()
        }

    return change


def metadata(**values: object) -> Change:
    def change(draft: Draft) -> None:
        draft.header |= {name: json.dumps(value) for name, value in values.items()}

    return change


def no_claims(draft: Draft) -> None:
    draft.header["speed.certificate"] = "{}"


def no_header(draft: Draft) -> None:
    draft.header.clear()


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


V = "attn2.to_v.weight"
UP = ".lora_up.weight"
