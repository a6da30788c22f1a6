"""Checkpoints that run: pico's U-Nets, and text encoders of real width and vocabulary with two thin
blocks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pico
import torch
from safetensors.torch import save_file
from text_pico import VOCABULARY, to_open_clip

from speed_erase.speed_ops.models.families import by_name

Tensors = dict[str, torch.Tensor]
CONCEPTS = "Van Gogh | Vincent van Gogh -> art"
QUICK = ("--preset", "few", "--retain", "artists", "--retain-limit", "12")
"""The paper's setting: bare names, so that little text is encoded."""


@lru_cache
def _text_tensors(
    width: int, seed: int, inner: int = 64, layers: int = 2, distinct: int = VOCABULARY
) -> Tensors:
    """Under transformers' names; token embeddings with a decaying spectrum, so that retain names
    leave a null space.

    `distinct`: how many different token embeddings there are; fewer are made faster.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(*shape, generator=generator)

    spectrum = torch.arange(1, width + 1) ** -0.5
    tokens = random(distinct, width).mul_(spectrum).half()
    out = {
        "text_model.embeddings.token_embedding.weight": tokens[torch.arange(VOCABULARY) % distinct],
        "text_model.embeddings.position_embedding.weight": random(77, width, scale=0.02),
        "text_model.final_layer_norm.weight": torch.ones(width),
        "text_model.final_layer_norm.bias": torch.zeros(width),
        "text_projection.weight": random(width, width, scale=width**-0.5),
    }
    shapes = {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    shapes |= {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
    for layer in range(layers):
        start = f"text_model.encoder.layers.{layer}"
        for norm in ("layer_norm1", "layer_norm2"):
            out |= {
                f"{start}.{norm}.weight": torch.ones(width),
                f"{start}.{norm}.bias": torch.zeros(width),
            }
        for module, shape in shapes.items():
            out[f"{start}.{module}.weight"] = random(*shape, scale=0.3 * shape[1] ** -0.5)
            out[f"{start}.{module}.bias"] = torch.zeros(shape[0])
    return out


def text_tensors(family: str, folder: bool = False) -> Tensors:
    """All text encoders of a family in half precision, as a single file or a diffusers folder has
    them.
    """
    out: Tensors = {}
    for seed, row in enumerate(by_name(family).encoders):
        tensors = _text_tensors(row.width, seed)
        if folder:
            out |= {f"{row.folder}/{key}": value.half() for key, value in tensors.items()}
        else:
            spelled = to_open_clip(tensors) if row.naming == "open_clip" else tensors
            out |= {
                row.prefixes[0] + key: value.half().contiguous() for key, value in spelled.items()
            }
    return out


def unet_tensors(
    family: str, dtype: torch.dtype = torch.float16, layout: str = "ldm", seed: int = 0
) -> Tensors:
    """A small U-Net with a few channels."""
    shape = replace(pico.SMALL[family], channels=8)
    prefix = "model.diffusion_model." if layout == "ldm" else "unet/"
    return pico.tensors(pico.unet_shapes(shape, layout, prefix), seed, dtype)


def write_model(
    path: Path, family: str = "sd1", dtype: torch.dtype = torch.float16, seed: int = 0
) -> Tensors:
    """A single-file checkpoint; returns what is in it."""
    content = unet_tensors(family, dtype, seed=seed) | text_tensors(family)
    content["first_stage_model.quant_conv.bias"] = torch.arange(8, dtype=torch.float32)
    save_file(content, path, metadata={"format": "pt", "modelspec.title": f"mini {family}"})
    return content


def write_folder(path: Path, family: str = "sd1") -> Tensors:
    """A diffusers folder; returns its tensors as `component/key`."""
    content = unet_tensors(family, layout="diffusers") | text_tensors(family, folder=True)
    for component in dict.fromkeys(key.split("/")[0] for key in content):
        (path / component).mkdir(parents=True)
        part = {
            key.split("/", 1)[1]: value
            for key, value in content.items()
            if key.startswith(component + "/")
        }
        stem = "diffusion_pytorch_model" if component == "unet" else "model"
        save_file(part, path / component / f"{stem}.safetensors", metadata={"format": "pt"})
    (path / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))
    return content


def command(*arguments: object) -> list[str]:
    """The command line in a process of its own."""
    body = (
        "import sys\nfrom speed_erase.speed_ops.cli.main import"
        " main\nsys.exit(main(sys.argv[1:]))\n"
    )
    return [sys.executable, "-c", pico.standalone(body), *map(str, arguments)]


def run(
    *arguments: object, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs it to the end."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        check=False,
    )


_NURSERY = """
import json, os, sys
import transformers
from speed_erase.speed_ops.cli.main import main
from speed_erase.speed_ops.checkpoints import erase_file
from speed_erase.speed_ops.demo import generate, showcase
if "quick-demo" in sys.argv:
    generate.STEPS, showcase.COLUMNS = 1, showcase.COLUMNS[::4]
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os._exit(main(json.loads(line)))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    """Runs of the command line, each in a process of its own that need not import torch again: it
    is forked from one that has, and that computes nothing itself, so there are no threads to
    lose."""

    def __init__(self, *options: str, **environment: str) -> None:
        """`options`: with "quick-demo" the demo draws two images in one step."""
        self._mother = subprocess.Popen(
            [sys.executable, "-c", pico.standalone(_NURSERY), *options],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, arguments: list[str]) -> int:
        """The number of the process that runs these arguments."""
        assert self._mother.stdin is not None
        self._mother.stdin.write(json.dumps(arguments) + "\n")
        self._mother.stdin.flush()
        return self._line()

    def wait(self) -> int:
        """Its exit code; of a process that was killed, minus the signal."""
        return self._line()

    def close(self) -> None:
        """Ends the mother."""
        self._mother.communicate(timeout=60)

    def _line(self) -> int:
        assert self._mother.stdout is not None
        return int(self._mother.stdout.readline())
