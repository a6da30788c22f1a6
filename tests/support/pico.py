"""Tiny checkpoints with real key names: real widths of text, hardly any channels, random values.

Every key is made in both spellings at once while walking the published structure, so that this file
is an oracle for the package's own mapping and not a copy of it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

_ROOT = Path(__file__).parents[2]
_STANDALONE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "speed_erase", {root!r} + "/__init__.py", submodule_search_locations=[{root!r}]
)
sys.modules["speed_erase"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["speed_erase"])
"""

Shapes = dict[str, tuple[int, ...]]
Tensors = dict[str, torch.Tensor]

_RESNET = (
    ("in_layers.0", "norm1"),
    ("in_layers.2", "conv1"),
    ("emb_layers.1", "time_emb_proj"),
    ("out_layers.0", "norm2"),
    ("out_layers.3", "conv2"),
)


@dataclass(frozen=True)
class Shape:
    """A U-Net: transformer blocks per residual block on each level, and the widths that tell
    families apart.
    """

    context: int
    depths: tuple[int, ...]
    middle: int | None
    label: int | None = None
    res_blocks: int = 2
    channels: int = 4
    in_channels: int = 4


FAMILIES = {
    "sd1": Shape(768, (1, 1, 1, 0), 1),
    "sd2": Shape(1024, (1, 1, 1, 0), 1),
    "sdxl": Shape(2048, (0, 2, 10), 10, label=2816),
    "sdxl-refiner": Shape(1280, (0, 4, 4, 0), 4, label=2560),
}
SMALL = {
    "sd1": replace(FAMILIES["sd1"], depths=(1, 1), res_blocks=1),
    "sd2": replace(FAMILIES["sd2"], depths=(1,), res_blocks=1),
    "sdxl": replace(FAMILIES["sdxl"], depths=(0, 2, 5), middle=None, res_blocks=1),
    "sdxl-refiner": replace(FAMILIES["sdxl-refiner"], depths=(0, 1), middle=1, res_blocks=1),
}


# Not getrusage, whose peak a child inherits from the process that started it.
_PEAK = """
def peak():
    import re
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
"""
posix = pytest.mark.skipif(
    os.name == "nt", reason="Windows has no such signals, links, pipes or modes"
)
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has such files and file names"
)
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)


def standalone(body: str) -> str:
    """A script for a process of its own in which the package is found.

    In it, `peak()` is the process's own peak memory in kB.
    """
    return _STANDALONE.format(root=str(_ROOT)) + _PEAK + body


def names(shape: Shape) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(ldm key, diffusers key, shape) of every tensor of a U-Net."""
    c = shape.channels
    yield from _conv("input_blocks.0.0", "conv_in", (c, shape.in_channels, 3, 3))
    for ldm, diffusers in (
        ("time_embed.0", "time_embedding.linear_1"),
        ("time_embed.2", "time_embedding.linear_2"),
    ):
        yield from _conv(ldm, diffusers, (c, c))
    if shape.label:
        yield from _conv("label_emb.0.0", "add_embedding.linear_1", (c, shape.label))
        yield from _conv("label_emb.0.2", "add_embedding.linear_2", (c, c))
    number = 1
    for level, depth in enumerate(shape.depths):
        for place in range(shape.res_blocks):
            yield from _resnet(
                f"input_blocks.{number}.0", f"down_blocks.{level}.resnets.{place}", c, c
            )
            yield from _attention(
                f"input_blocks.{number}.1", f"down_blocks.{level}.attentions.{place}", depth, shape
            )
            number += 1
        if level < len(shape.depths) - 1:
            yield from _conv(
                f"input_blocks.{number}.0.op",
                f"down_blocks.{level}.downsamplers.0.conv",
                (c, c, 3, 3),
            )
            number += 1
    if shape.middle is not None:
        yield from _resnet("middle_block.0", "mid_block.resnets.0", c, c)
        yield from _attention("middle_block.1", "mid_block.attentions.0", shape.middle, shape)
        yield from _resnet("middle_block.2", "mid_block.resnets.1", c, c)
    number = 0
    for level, depth in enumerate(reversed(shape.depths)):
        for place in range(shape.res_blocks + 1):
            yield from _resnet(
                f"output_blocks.{number}.0", f"up_blocks.{level}.resnets.{place}", 2 * c, c
            )
            yield from _attention(
                f"output_blocks.{number}.1", f"up_blocks.{level}.attentions.{place}", depth, shape
            )
            if place == shape.res_blocks and level < len(shape.depths) - 1:
                ldm = f"output_blocks.{number}.{2 if depth else 1}.conv"
                yield from _conv(ldm, f"up_blocks.{level}.upsamplers.0.conv", (c, c, 3, 3))
            number += 1
    yield from _conv("out.0", "conv_norm_out", (c,))
    yield from _conv("out.2", "conv_out", (4, c, 3, 3))


def _conv(
    ldm: str, diffusers: str, shape: tuple[int, ...]
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield f"{ldm}.weight", f"{diffusers}.weight", shape
    yield f"{ldm}.bias", f"{diffusers}.bias", shape[:1]


def _resnet(
    ldm: str, diffusers: str, inside: int, out: int
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for ours, theirs in _RESNET:
        width = inside if ours.startswith("in_layers") else out
        shape = (
            (width,)
            if ours.endswith("layers.0")
            else (out, width)
            if "emb" in ours
            else (out, width, 3, 3)
        )
        yield from _conv(f"{ldm}.{ours}", f"{diffusers}.{theirs}", shape)
    if inside != out:
        yield from _conv(
            f"{ldm}.skip_connection", f"{diffusers}.conv_shortcut", (out, inside, 1, 1)
        )


def _attention(
    ldm: str, diffusers: str, depth: int, shape: Shape
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    c = shape.channels
    if not depth:
        return
    yield from _conv(f"{ldm}.norm", f"{diffusers}.norm", (c,))
    for name in ("proj_in", "proj_out"):
        yield from _conv(
            f"{ldm}.{name}", f"{diffusers}.{name}", (c, c, 1, 1) if shape.context == 768 else (c, c)
        )
    for t in range(depth):
        for attention, width in (("attn1", c), ("attn2", shape.context)):
            base = f"transformer_blocks.{t}.{attention}"
            for name, columns in (("to_q", c), ("to_k", width), ("to_v", width)):
                yield (
                    f"{ldm}.{base}.{name}.weight",
                    f"{diffusers}.{base}.{name}.weight",
                    (c, columns),
                )
            yield from _conv(f"{ldm}.{base}.to_out.0", f"{diffusers}.{base}.to_out.0", (c, c))
        for name, size in (
            ("norm1", (c,)),
            ("norm2", (c,)),
            ("norm3", (c,)),
            ("ff.net.0.proj", (8 * c, c)),
        ):
            yield from _conv(
                f"{ldm}.transformer_blocks.{t}.{name}",
                f"{diffusers}.transformer_blocks.{t}.{name}",
                size,
            )
        yield from _conv(
            f"{ldm}.transformer_blocks.{t}.ff.net.2",
            f"{diffusers}.transformer_blocks.{t}.ff.net.2",
            (c, 4 * c),
        )


def unet_shapes(shape: Shape, layout: str = "ldm", prefix: str = "") -> Shapes:
    """All keys of a U-Net with their shapes."""
    return {
        prefix + (ldm if layout == "ldm" else diffusers): size
        for ldm, diffusers, size in names(shape)
    }


def clip_hf_shapes(width: int, prefix: str, layers: int = 2) -> Shapes:
    """A text encoder in the spelling of transformers; inner widths are cut to 4."""
    shapes: Shapes = {
        "embeddings.token_embedding.weight": (8, width),
        "embeddings.position_embedding.weight": (77, width),
        "final_layer_norm.weight": (width,),
        "final_layer_norm.bias": (width,),
    }
    for n in range(layers):
        for part in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.out_proj",
            "mlp.fc1",
        ):
            shapes[f"encoder.layers.{n}.{part}.weight"] = (4, width)
            shapes[f"encoder.layers.{n}.{part}.bias"] = (4,)
    return {f"{prefix}text_model.{key}": size for key, size in shapes.items()}


def clip_open_shapes(width: int, prefix: str, layers: int = 2) -> Shapes:
    """A text encoder in the spelling of OpenCLIP; inner widths are cut."""
    shapes: Shapes = {
        "token_embedding.weight": (8, width),
        "positional_embedding": (77, width),
        "ln_final.weight": (width,),
        "ln_final.bias": (width,),
        "text_projection": (width, 4),
        "logit_scale": (),
    }
    for n in range(layers):
        base = f"transformer.resblocks.{n}."
        shapes |= {base + "attn.in_proj_weight": (12, width), base + "attn.in_proj_bias": (12,)}
        shapes |= {base + "mlp.c_fc.weight": (4, width), base + "ln_1.weight": (width,)}
    return {prefix + key: size for key, size in shapes.items()}


def checkpoint_shapes(family: str, shape: Shape | None = None) -> Shapes:
    """A single-file checkpoint: U-Net, text encoders, a trace of the VAE."""
    shapes = unet_shapes(shape or FAMILIES[family], "ldm", "model.diffusion_model.")
    shapes |= {
        "first_stage_model.encoder.conv_in.weight": (4, 3, 3, 3),
        "first_stage_model.quant_conv.bias": (8,),
    }
    if family == "sd1":
        return shapes | clip_hf_shapes(768, "cond_stage_model.transformer.")
    if family == "sd2":
        return shapes | clip_open_shapes(1024, "cond_stage_model.model.")
    if family == "sdxl":
        shapes |= clip_hf_shapes(768, "conditioner.embedders.0.transformer.")
        return shapes | clip_open_shapes(1280, "conditioner.embedders.1.model.")
    return shapes | clip_open_shapes(1280, "conditioner.embedders.0.model.")


def tensors(shapes: Shapes, seed: int = 0, dtype: torch.dtype = torch.float16) -> Tensors:
    """Random values in these shapes, tame enough for fp16."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key: (0.05 * torch.randn(size, generator=generator)).to(dtype)
        for key, size in shapes.items()
    }


def write_checkpoint(
    path: Path, family: str = "sd1", *, dtype: torch.dtype = torch.float16, small: bool = True
) -> Tensors:
    """A single-file checkpoint on disk, written by the reference library; returns what is in it."""
    content = tensors(checkpoint_shapes(family, SMALL[family] if small else None), dtype=dtype)
    save_file(content, path, metadata={"format": "pt", "modelspec.title": f"pico {family}"})
    return content


def write_folder(
    path: Path, family: str = "sd1", *, shards: int = 1, dtype: torch.dtype = torch.float16
) -> Tensors:
    """A diffusers folder on disk; returns its tensors as `component/key`."""
    width = {"sd1": 768, "sd2": 1024, "sdxl": 768}.get(family)
    parts = {
        "unet": unet_shapes(SMALL[family], "diffusers"),
        "vae": {"encoder.conv_in.weight": (4, 3, 3, 3)},
    }
    if width:
        parts["text_encoder"] = clip_hf_shapes(width, "")
    if family.startswith("sdxl"):
        parts["text_encoder_2"] = clip_hf_shapes(1280, "") | {"text_projection.weight": (4, 1280)}
    result: Tensors = {}
    for seed, (component, shapes) in enumerate(parts.items()):
        folder = path / component
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"_class_name": component}))
        content = tensors(shapes, seed, dtype)
        stem = "model" if component.startswith("text") else "diffusion_pytorch_model"
        if component == "unet" and shards > 1:
            _write_shards(folder, stem, content, shards)
        else:
            save_file(content, folder / f"{stem}.safetensors", metadata={"format": "pt"})
        result |= {f"{component}/{key}": value for key, value in content.items()}
    (path / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))
    (path / "tokenizer").mkdir()
    (path / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    return result


def _write_shards(folder: Path, stem: str, content: Tensors, count: int) -> None:
    weight_map = {}
    for number in range(count):
        name = f"{stem}-{number + 1:05}-of-{count:05}.safetensors"
        part = {
            key: value
            for place, (key, value) in enumerate(content.items())
            if place % count == number
        }
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    total = sum(value.numel() * value.element_size() for value in content.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index))


def random_edits(shapes: Shapes, seed: int = 1) -> Tensors:
    """New values, in float64, for every cross-attention V layer of a model."""
    generator = torch.Generator().manual_seed(seed)
    keys = sorted(key for key in shapes if key.endswith("attn2.to_v.weight"))
    return {key: torch.randn(shapes[key], generator=generator, dtype=torch.float64) for key in keys}
