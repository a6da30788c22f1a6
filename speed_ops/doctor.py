"""What this machine has for an erasure, what is missing, and the command that fixes it."""

from __future__ import annotations

import os
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from .devices import best_device
from .encoders.cache import EmbeddingCache
from .encoders.tokenizers import checkouts, t5_tokenizer
from .errors import PACKAGE_VERSION, SpeedError
from .files.checkpoint import Checkpoint
from .models.detect import detect
from .models.keys import encoder_keys

OLDEST_COMFYUI = (0, 7, 0)
_PACKAGES = ("transformers", "rich", "jinja2", "PIL", "yaml", "sentencepiece")
"""What the command line imports beyond what every installation has."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    topic: str
    found: str
    """Empty: it is missing."""
    fix: str = ""
    """The command, or what to do; empty where nothing is missing."""


def examine(model: Path | None = None, comfyui: Path | None = None) -> list[Finding]:
    """Looks at this machine, and at a model file if there is one.

    Args:
        model: A checkpoint or diffusers folder.
        comfyui: The ComfyUI that runs this; None: looks for one.
    """
    findings = [
        Finding("SPEED", f"{PACKAGE_VERSION} on Python {sys.version.partition(' ')[0]}"),
        *_torch(),
        _packages(),
        _comfyui(comfyui),
        _tokenizer(),
        _cache(),
    ]
    return findings + (list(_model(model)) if model is not None else [])


def _torch() -> Iterator[Finding]:
    yield Finding("torch", torch.__version__)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        names += [torch.xpu.get_device_name(i) for i in range(torch.xpu.device_count())]
    if names:
        on_cpu = "Edits are computed on the CPU, because this GPU has no double precision"
        yield Finding("device", ", ".join(names), on_cpu if best_device() == "cpu" else "")
    else:
        has_backend = torch.version.cuda or torch.version.hip
        fix = "" if has_backend else "For a GPU see https://pytorch.org"
        yield Finding("device", f"CPU with {os.cpu_count()} cores", fix)


def _packages() -> Finding:
    present = {module.name for module in pkgutil.iter_modules()}
    missing = [name for name in _PACKAGES if name not in present]
    if missing:
        return Finding("command line", "", f'pip install "speed-erase[cli]" ({", ".join(missing)})')
    return Finding("command line", "all packages")


def _comfyui(running: Path | None) -> Finding:
    for place in [running] if running else checkouts():
        if (place / "comfy" / "model_patcher.py").is_file():
            version = _version_in(place / "comfyui_version.py")
            too_old = version < OLDEST_COMFYUI
            found = f"{'.'.join(map(str, version))} at {place}"
            return Finding("ComfyUI", found, f"git -C {place} pull" if too_old else "")
    return Finding("ComfyUI", "", "Needed for the nodes only: set COMFYUI_PATH to its folder")


def _version_in(path: Path) -> tuple[int, ...]:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return tuple(map(int, re.findall(r"\d+", text.rpartition("__version__")[2])[:3]))


def _tokenizer() -> Finding:
    try:
        t5_tokenizer(None, [])
    except (SpeedError, ImportError) as error:
        return Finding("T5 tokenizer", "", f"Needed for models that read T5 only: {error}")
    return Finding("T5 tokenizer", "in ComfyUI")


def _cache() -> Finding:
    info = EmbeddingCache().info()
    parent = next(path for path in (info.folder, *info.folder.parents) if path.exists())
    if not os.access(parent, os.W_OK):
        return Finding("cache", "", f"Make {parent} writable, or set SPEED_ERASE_CACHE")
    return Finding("cache", f"{info.bytes / 1e6:.1f} MB at {info.folder}")


def _model(path: Path) -> Iterator[Finding]:
    try:
        model = Checkpoint.open(path)
        family = detect(model.shapes)
    except SpeedError as error:
        yield Finding("model", "", str(error))
        return
    yield Finding("model", f"{family.title}: {path.name}")
    if not family.on_command_line:
        yield Finding("text encoders", "", "Open this model in ComfyUI with the SPEED nodes")
        return
    for encoder in family.every_encoder:
        if encoder_keys(encoder, model.shapes)[1]:
            yield Finding(encoder.title, "in the model file")
        elif encoder.optional:
            yield Finding(encoder.title, "not in the model file; the model runs without it")
        else:
            yield Finding(encoder.title, "", f"Give the file of {encoder.title} with the model")
