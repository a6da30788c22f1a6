"""Models of their full size through the command line: seconds and memory (docs/research/models.md).

    python -m benchmarks.real_sizes FOLDER [flux] [sdxl] [--keep]

Flux.1 dev in fp8 with T5-XXL and CLIP-L, and SDXL in fp16, with random values: 24 GB of disk. The
files are deleted afterwards.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from speed_erase.speed_ops.demo.packed_model import Entry, text_encoder_layout
from speed_erase.speed_ops.files.tensors import write_tensors

POOL = 16_777_259
"""Random numbers that all weights are cut from; a prime, so no two rows of a matrix are equal."""
NARROW = {"F16": torch.float16, "F8_E4M3": torch.float8_e4m3fn}
CONCEPT = ["--concepts", "Van Gogh -> art", "--retain", "artists"]
CONCEPT += ["--threads", "1", "--no-cache", "--force"]
VAE_WEIGHTS = 83_653_863
"""Of SDXL's VAE, in one tensor: nothing reads them."""
SMALL = ("--preset", "few", "--retain-limit", "4", "--held-out", "0")
"""T5-XXL runs every text at its full 256 rows: on one core each takes a minute."""


class RandomValues:
    """Weights of any shape that keep activations at their size; norms are the identity."""

    def __init__(self) -> None:
        self._pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0))
        self._scaled: dict[tuple[int, str], Tensor] = {}

    def __call__(self, key: str, shape: tuple[int, ...], kind: str) -> Tensor:
        if len(shape) < 2:
            one = key.endswith(("scale", "weight"))
            return torch.full(shape, float(one), dtype=NARROW[kind])
        fan_in = math.prod(shape[1:])
        if (fan_in, kind) not in self._scaled:
            self._scaled = {(fan_in, kind): (self._pool * fan_in**-0.5).to(NARROW[kind])}
        source = self._scaled[fan_in, kind]
        out = torch.empty(math.prod(shape), dtype=NARROW[kind])
        for start in range(0, len(out), POOL):
            part = out[start : start + POOL]
            part.copy_(source[: len(part)])
        return out.reshape(shape)


def write(path: Path, layout: Iterator[Entry], matrices: str) -> None:
    """A file of random values: matrices in the type named, everything else in half precision."""
    random = RandomValues()
    kinds = {key: (matrices if len(shape) > 1 else "F16", shape) for key, shape in layout}
    values = (random(key, shape, kind) for key, (kind, shape) in kinds.items())
    write_tensors(path, kinds, values, {"format": "pt"}, force=True)
    print(f"{path.name}: {path.stat().st_size / 1e9:.2f} GB", flush=True)


def linear(base: str, *shape: int) -> Iterator[Entry]:
    yield f"{base}.weight", shape
    yield f"{base}.bias", shape[:1]


def flux_layout(width: int = 3072) -> Iterator[Entry]:
    """Flux.1 dev in the spelling of its authors."""
    for name, inside in (("img_in", 64), ("txt_in", 4096)):
        yield from linear(name, width, inside)
    for name, inside in (("time_in", 256), ("vector_in", 768), ("guidance_in", 256)):
        yield from linear(f"{name}.in_layer", width, inside)
        yield from linear(f"{name}.out_layer", width, width)
    for number in range(19):
        for side in ("img", "txt"):
            base = f"double_blocks.{number}.{side}"
            yield from linear(f"{base}_mod.lin", 6 * width, width)
            yield from linear(f"{base}_attn.qkv", 3 * width, width)
            yield from (_scale(f"{base}_attn", name) for name in ("query", "key"))
            yield from linear(f"{base}_attn.proj", width, width)
            yield from linear(f"{base}_mlp.0", 4 * width, width)
            yield from linear(f"{base}_mlp.2", width, 4 * width)
    for number in range(38):
        base = f"single_blocks.{number}"
        yield from linear(f"{base}.linear1", 7 * width, width)
        yield from linear(f"{base}.linear2", width, 5 * width)
        yield from (_scale(base, name) for name in ("query", "key"))
        yield from linear(f"{base}.modulation.lin", 3 * width, width)
    yield from linear("final_layer.linear", 64, width)
    yield from linear("final_layer.adaLN_modulation.1", 2 * width, width)


def _scale(base: str, name: str) -> Entry:
    return f"{base}.norm.{name}_norm.scale", (128,)


def t5_layout(
    width: int = 4096, inner: int = 4096, dense: int = 10240, blocks: int = 24, heads: int = 64
) -> Iterator[Entry]:
    """T5-XXL's encoder, or a smaller one."""
    yield "shared.weight", (32128, width)
    for number in range(blocks):
        first, second = (f"encoder.block.{number}.layer.{i}" for i in (0, 1))
        for name in "qkv":
            yield f"{first}.SelfAttention.{name}.weight", (inner, width)
        yield f"{first}.SelfAttention.o.weight", (width, inner)
        if number == 0:
            yield f"{first}.SelfAttention.relative_attention_bias.weight", (32, heads)
        for name in ("wi_0", "wi_1"):
            yield f"{second}.DenseReluDense.{name}.weight", (dense, width)
        yield f"{second}.DenseReluDense.wo.weight", (width, dense)
        for base in (first, second):
            yield f"{base}.layer_norm.weight", (width,)
    yield "encoder.final_layer_norm.weight", (width,)


def clip_l_layout(prefix: str) -> Iterator[Entry]:
    for name, shape in text_encoder_layout(12):
        yield f"{prefix}text_model.{name}", shape


def clip_g_layout(prefix: str, width: int = 1280) -> Iterator[Entry]:
    yield f"{prefix}token_embedding.weight", (49408, width)
    yield f"{prefix}positional_embedding", (77, width)
    yield f"{prefix}text_projection", (width, width)
    yield from linear(f"{prefix}ln_final", width)
    for number in range(32):
        base = f"{prefix}transformer.resblocks.{number}"
        yield f"{base}.attn.in_proj_weight", (3 * width, width)
        yield f"{base}.attn.in_proj_bias", (3 * width,)
        yield from linear(f"{base}.attn.out_proj", width, width)
        yield from linear(f"{base}.mlp.c_fc", 4 * width, width)
        yield from linear(f"{base}.mlp.c_proj", width, 4 * width)
        for name in ("ln_1", "ln_2"):
            yield from linear(f"{base}.{name}", width)


def sdxl_layout() -> Iterator[Entry]:
    """The whole checkpoint."""
    yield from clip_l_layout("conditioner.embedders.0.transformer.")
    yield from clip_g_layout("conditioner.embedders.1.model.")
    yield "first_stage_model.decoder.filling", (VAE_WEIGHTS,)
    for name, shape in sdxl_unet():
        yield f"model.diffusion_model.{name}", shape


def sdxl_unet() -> Iterator[Entry]:
    """Three levels with 0, 2 and 10 transformer blocks in each attention."""
    for name, inside in (("time_embed", 320), ("label_emb.0", 2816)):
        yield from linear(f"{name}.0", 1280, inside)
        yield from linear(f"{name}.2", 1280, 1280)
    yield from linear("input_blocks.0.0", 320, 4, 3, 3)
    down = (
        *((320, 320, 0), (320, 320, 0), None),
        *((320, 640, 2), (640, 640, 2), None),
        *((640, 1280, 10), (1280, 1280, 10)),
    )
    width = 320
    for number, block in enumerate(down, start=1):
        if block is None:
            yield from linear(f"input_blocks.{number}.0.op", width, width, 3, 3)
        else:
            yield from _unet_block(f"input_blocks.{number}", *block)
            width = block[1]
    yield from _residual("middle_block.0", 1280, 1280)
    yield from _transformer("middle_block.1", 1280, 10)
    yield from _residual("middle_block.2", 1280, 1280)
    up = (
        *((2560, 1280, 10), (2560, 1280, 10), (1920, 1280, 10)),
        *((1920, 640, 2), (1280, 640, 2), (960, 640, 2)),
        *((960, 320, 0), (640, 320, 0), (640, 320, 0)),
    )
    for number, block in enumerate(up):
        yield from _unet_block(f"output_blocks.{number}", *block)
        if number in (2, 5):
            yield from linear(f"output_blocks.{number}.2.conv", block[1], block[1], 3, 3)
    yield from linear("out.0", 320)
    yield from linear("out.2", 4, 320, 3, 3)


def _unet_block(base: str, inside: int, out: int, depth: int) -> Iterator[Entry]:
    yield from _residual(f"{base}.0", inside, out)
    if depth:
        yield from _transformer(f"{base}.1", out, depth)


def _residual(base: str, inside: int, out: int) -> Iterator[Entry]:
    yield from linear(f"{base}.in_layers.0", inside)
    yield from linear(f"{base}.in_layers.2", out, inside, 3, 3)
    yield from linear(f"{base}.emb_layers.1", out, 1280)
    yield from linear(f"{base}.out_layers.0", out)
    yield from linear(f"{base}.out_layers.3", out, out, 3, 3)
    if inside != out:
        yield from linear(f"{base}.skip_connection", out, inside, 1, 1)


def _transformer(base: str, width: int, depth: int) -> Iterator[Entry]:
    yield from linear(f"{base}.norm", width)
    yield from linear(f"{base}.proj_in", width, width)
    yield from linear(f"{base}.proj_out", width, width)
    for number in range(depth):
        block = f"{base}.transformer_blocks.{number}"
        for attention, source in (("attn1", width), ("attn2", 2048)):
            for name, columns in (("to_q", width), ("to_k", source), ("to_v", source)):
                yield f"{block}.{attention}.{name}.weight", (width, columns)
            yield from linear(f"{block}.{attention}.to_out.0", width, width)
        yield from linear(f"{block}.ff.net.0.proj", 8 * width, width)
        yield from linear(f"{block}.ff.net.2", width, 4 * width)
        for name in ("norm1", "norm2", "norm3"):
            yield from linear(f"{block}.{name}", width)


def run(model: Path, out: Path, *more: str) -> None:
    """Erases from a file in another process, and prints its seconds and its peak memory."""
    command = ["speed-erase", "erase", str(model), *CONCEPT, *more, "--out", str(out)]
    print("$", " ".join(f'"{part}"' if " " in part else part for part in command), flush=True)
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "speed_erase.speed_ops.cli", *command[1:]], check=True)
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of all children so far
    written = [(path.name, path.stat().st_size / 1e6) for path in sorted(out.iterdir())]
    sizes = ", ".join(f"{name} {size:.2f} MB" for name, size in written)
    spent, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9
    print(f"{seconds:.0f} s ({spent:.0f} processor seconds so far)", flush=True)
    print(f"peak memory {peak:.2f} GB (the largest so far); {sizes}", flush=True)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", choices=("flux", "sdxl", []), default=("sdxl", "flux"))
    parser.add_argument("--keep", action="store_true", help="keep the models")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    names = ("sdxl", "flux", "t5xxl", "clip_l")
    files = {name: given.folder / f"{name}.safetensors" for name in names}
    if "sdxl" in given.models:
        write(files["sdxl"], sdxl_layout(), "F16")
        run(files["sdxl"], given.folder / "sdxl-out", *SMALL)
    if "flux" in given.models:
        write(files["flux"], flux_layout(), "F8_E4M3")
        write(files["t5xxl"], t5_layout(), "F8_E4M3")
        write(files["clip_l"], clip_l_layout(""), "F16")
        text = [f"--text-encoder={files[name]}" for name in ("t5xxl", "clip_l")]
        run(files["flux"], given.folder / "flux-out", *SMALL, *text, "--save", "lora,recipe,report")
    for file in () if given.keep else files.values():
        file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
