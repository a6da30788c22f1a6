"""A diffusers folder: which files hold the weights of which component."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import FileError
from . import untrusted_json
from .header import Header, read_header
from .not_safetensors import PICKLE_SUFFIXES, pickle_refusal

COMPONENTS = ("unet", "transformer", "prior", "text_encoder", "text_encoder_2", "text_encoder_3")
"""Components whose keys are read: what tells families apart, and the text encoders."""
_STEM = "(diffusion_pytorch_model|model)"
_CHOICES = (
    rf"{_STEM}\.safetensors",
    rf"{_STEM}\.safetensors\.index\.json",
    rf"{_STEM}\.\w+\.safetensors",
    rf"{_STEM}\..*index.*\.json",
)
"""Whole files before sharded ones, plain names before variants such as `.fp16`."""
_INDEX_LIMIT = 20_000_000
_PLAIN_NAME = re.compile(r"[\w.-]{1,200}\.safetensors")


@dataclass(frozen=True)
class Part:
    """One safetensors file and what its keys are called in the whole: `prefix` + key."""

    file: Path
    prefix: str
    header: Header
    index: Path | None = None
    """The index file that names it, when the component is sharded."""


def folder_parts(folder: Path) -> list[Part]:
    """The weight files of a diffusers pipeline folder, or of one component's folder (keys then without prefix)."""
    parts: list[Part] = []
    for component in COMPONENTS:
        if (folder / component).is_dir():
            parts += _component(folder / component, f"{component}/")
    if not parts:
        parts = _component(folder, "")
    if not parts:
        raise FileError(
            f"{folder} holds no model: a diffusers folder has a folder `unet` with safetensors files in it."
        )
    return parts


def _component(folder: Path, prefix: str) -> list[Part]:
    """The weight files of one component: none, one, or the shards of one index."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        raise FileError(f"Cannot read the folder {folder}: {error.strerror or error}.") from error
    for pattern in _CHOICES:
        for name in names:
            if re.fullmatch(pattern, name):
                file = folder / name
                return _sharded(file, prefix) if file.suffix == ".json" else [Part(file, prefix, read_header(file))]
    pickles = [name for name in names if name.lower().endswith(PICKLE_SUFFIXES)]
    if pickles and prefix in ("unet/", ""):
        raise pickle_refusal(folder / pickles[0])
    return []


def _sharded(index: Path, prefix: str) -> list[Part]:
    try:
        content = index.read_bytes() if index.stat().st_size <= _INDEX_LIMIT else b""
    except OSError as error:
        raise FileError(f"Cannot read {index}: {error.strerror or error}.") from error
    mapping = untrusted_json.load(content, str(index), _INDEX_LIMIT)
    weight_map = mapping.get("weight_map") if isinstance(mapping, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise FileError(f"{index} is not an index of weight files: it has no `weight_map` from keys to file names.")
    files = sorted(set(weight_map.values()))
    for name in files:
        if not _PLAIN_NAME.fullmatch(name):
            raise FileError(f"{index} names the file {name[:100]!r}, which is not a safetensors file beside it.")
    parts = [Part(index.parent / name, prefix, read_header(index.parent / name), index) for name in files]
    for part in parts:
        listed = {key for key, name in weight_map.items() if name == part.file.name}
        if listed != set(part.header.entries):
            raise FileError(f"{index} and {part.file.name} disagree about which tensors it holds: download them again.")
    return parts
