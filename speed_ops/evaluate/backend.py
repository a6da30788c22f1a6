"""Models to generate images with, and what every backend that generates them provides."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

from ..errors import NotFoundError, ServerError, UsageError
from ..files.checkpoint import Checkpoint
from ..models.detect import is_lora
from ..progress import Progress
from .measures import Pixels
from .setup import ImageSpec, Sampling

ModelKind = Literal["checkpoint", "diffusers", "lora", "unet", "clip", "pictures"]
ORIGINAL = "original"
"""Label of the model before the erasure."""
_ON_ORIGINAL = ("lora", "unet", "clip")
"""Kinds that are only a part of a model; the original supplies the remaining parts."""


class ServerUnavailable(ServerError):
    """A server does not answer, or not like ComfyUI: another one has to take over its job."""


class ServerRejected(ServerError):
    """A server answers that it cannot generate this image."""


@dataclass(frozen=True)
class ModelRef:
    """A model as backends find it."""

    label: str
    kind: ModelKind
    name: str
    """As the server lists it; for images of another program, their folder."""
    identity: str
    """Images are stored under it: a hash of the file where we have the file, else its name."""
    strength: float = 1.0
    base: ModelRef | None = None
    file: Path | None = None
    """The file itself, where it is on this machine."""


def parse_model(
    text: str, label: str, base: ModelRef | None, progress: Progress | None = None
) -> ModelRef:
    """Reads `[kind:]name[@strength]`; for a local file or folder, kind and hash come from it.

    Args:
        text: The model as typed.
        label: Its name in the results.
        base: The original, for kinds that are only a part of a model; None for the original itself.
        progress: Told about hashing.
    """
    prefix, colon, suffix = text.partition(":")
    kinds = get_args(ModelKind) if colon else ()
    kind: ModelKind | None = next((kind for kind in kinds if kind == prefix), None)
    name = suffix if kind else text
    strength = 1.0
    if kind == "lora" and "@" in name:
        name, _, number = name.rpartition("@")
        try:
            strength = float(number)
        except ValueError:
            raise UsageError(
                f"The strength in {text!r} is not a number. Write lora:NAME@0.8."
            ) from None
    path = Path(name)
    if kind == "pictures":
        if not path.is_dir():
            raise NotFoundError(
                f"There is no folder {name}. Give the folder with the generated images."
            )
        identity = f"pictures {hashlib.sha256(files_state(path).encode()).hexdigest()}"
        return ModelRef(label, kind, name, identity, file=path)
    file = path if path.exists() else None
    identity = f"name {kind or 'checkpoint'} {name}"
    if file is not None:
        opened = Checkpoint.open(file)
        identity = f"sha256 {opened.sha256(progress)}"
        if kind is None and opened.is_folder:
            kind = "diffusers"
        elif kind is None and is_lora(opened.shapes):
            kind = "lora"
        name = path.name
    kind = kind or "checkpoint"
    if kind not in _ON_ORIGINAL:
        return ModelRef(label, kind, name, identity, strength, None, file)
    if base is None or base.kind == "pictures":
        raise UsageError(
            f"{text!r} is put on the original, which must be a checkpoint or a diffusers folder."
        )
    identity = f"{identity} at {strength:g} on {base.identity}"
    return ModelRef(label, kind, name, identity, strength, base, file)


def files_state(folder: Path) -> str:
    """Names, sizes and times of the entries of a folder: changes when one of them does."""
    stats = ((file.name, file.stat()) for file in sorted(folder.iterdir()))
    return "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)


@dataclass(frozen=True)
class GeneratedImage:
    """An image and how it was generated."""

    pixels: Pixels
    finite: bool = True
    """False if the model returned NaN or infinity. Servers send such a frame as a black one."""
    seconds: float = 0.0


class Backend(Protocol):
    """Generates images one at a time, so that no image depends on which others were requested;
    called from one thread at a time.
    """

    name: str
    local: bool
    """Whether it runs in this process, which must not end before the image is finished."""

    def check_models(self, models: list[ModelRef]) -> None:
        """Raises `ServerUnavailable` without an answer, `InputError` if a model is missing."""

    def generate(self, model: ModelRef, spec: ImageSpec, sampling: Sampling) -> GeneratedImage:
        """Returns one image. Raises `ServerUnavailable` or `ServerRejected`.

        Args:
            model: The model.
            spec: Prompt and seed.
            sampling: Settings of the sampler.
        """
