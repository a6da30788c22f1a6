"""Generates images of the demo model, and of models made from it, on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ..demo.autoencoder import CELL
from ..demo.generate import GUIDANCE, SIZE, STEPS, DemoModel, LocalGenerator, as_bytes
from ..errors import InputError, UsageError
from ..files.checkpoint import Checkpoint
from .backend import GeneratedImage, ModelRef
from .setup import ImageSpec, Sampling

LOCAL_SAMPLING = Sampling(SIZE, SIZE, STEPS, GUIDANCE, "euler", "normal")
"""What suits the demo model; its sampler and scheduler are the only ones available here."""


def check_sampling(sampling: Sampling) -> Sampling:
    """Refuses what only a server can do."""
    if (sampling.sampler, sampling.scheduler) != (LOCAL_SAMPLING.sampler, LOCAL_SAMPLING.scheduler):
        raise UsageError(
            "Here, pictures are drawn with the sampler euler and the scheduler normal alone.",
            advice="give-server",
        )
    if sampling.width % (2 * CELL) or sampling.height % (2 * CELL):
        raise UsageError(
            f"Here, the sides of a picture are multiples of {2 * CELL} pixels.",
            advice="give-server",
        )
    return sampling


@dataclass
class LocalBackend:
    """The demo's own sampler, for models of its layout only."""

    name: str = "this machine"
    local: bool = True
    _loaded: tuple[str, LocalGenerator] | None = None
    """The model in memory, with its identity. One at a time: text encoders are large."""

    def check_models(self, models: list[ModelRef]) -> None:
        for model in models:
            for ref in (model, model.base):
                if ref is not None and not _is_demo_model(ref):
                    reason = "not one" if ref.file else "no file of this machine"
                    raise InputError(
                        "Only the demo's model and what was made of it can be drawn here:"
                        f" {ref.name!r} is {reason}.",
                        model=ref.name,
                        advice="give-server",
                    )

    def generate(self, model: ModelRef, spec: ImageSpec, sampling: Sampling) -> GeneratedImage:
        start = time.perf_counter()
        size = (sampling.height, sampling.width)
        colors = self._load(model).generate(
            spec.prompt, sampling.negative, spec.seed, size, sampling.steps, sampling.cfg
        )
        finite = bool(colors.isfinite().all())
        pixels = as_bytes(colors.nan_to_num(0)).numpy()
        return GeneratedImage(pixels, finite, time.perf_counter() - start)

    def _load(self, model: ModelRef) -> LocalGenerator:
        if self._loaded is not None and self._loaded[0] == model.identity:
            return self._loaded[1]
        if self._loaded is not None:
            self._loaded[1].close()
        lora = model.file if model.kind == "lora" else None
        generator = LocalGenerator.open((model.base or model).file or Path(), lora, model.strength)
        self._loaded = (model.identity, generator)
        return generator


def _is_demo_model(model: ModelRef) -> bool:
    if model.file is None or model.kind not in ("lora", "checkpoint"):
        return False
    return model.kind == "lora" or DemoModel.fits(Checkpoint.open(model.file).shapes)
