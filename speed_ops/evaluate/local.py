"""Generates images of the demo model, and of models made from it, on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoints.source import ModelSource
from ..checkpoints.text_setup import TextSetup
from ..demo.autoencoder import CELL
from ..demo.generate import GUIDANCE, SIZE, STEPS, DemoModel, as_bytes
from ..demo.unet import noise_for
from ..encoders.encoder import TextEncoder
from ..errors import InputError, UsageError
from ..files.checkpoint import Checkpoint
from ..files.lora import read_lora
from .backend import GeneratedImage, ModelRef
from .setup import ImageSpec, Sampling

LOCAL_SAMPLING = Sampling(SIZE, SIZE, STEPS, GUIDANCE, "euler", "normal")
"""What suits the demo model; its sampler and scheduler are the only ones available here."""


def check_sampling(sampling: Sampling) -> Sampling:
    """Refuses what only a server can do."""
    if (sampling.sampler, sampling.scheduler) != (LOCAL_SAMPLING.sampler, LOCAL_SAMPLING.scheduler):
        raise UsageError(
            "Without a server, only the sampler euler and the scheduler normal work.",
            advice="give-server",
        )
    if sampling.width % (2 * CELL) or sampling.height % (2 * CELL):
        raise UsageError(
            f"Without a server, the sides of an image must be multiples of {2 * CELL} pixels.",
            advice="give-server",
        )
    return sampling


@dataclass
class LocalBackend:
    """The demo's own sampler, for models of its layout only."""

    name: str = "this machine"
    local: bool = True
    _identity: str = ""
    _loaded: tuple[DemoModel, TextEncoder] | None = None
    """The model of that identity. One at a time: text encoders are large."""
    _rows: dict[str, Tensor] = field(default_factory=dict)
    """Of the last prompt and negative prompt: seeds share them."""

    def check_models(self, models: list[ModelRef]) -> None:
        for model in models:
            for ref in (model, model.base):
                if ref is not None and not _is_demo_model(ref):
                    reason = "not one" if ref.file else "no file of this machine"
                    raise InputError(
                        "Without a server, only the demo model and its edits can generate images;"
                        f" {ref.name!r} is {reason}.",
                        model=ref.name,
                        advice="give-server",
                    )

    def generate(self, model: ModelRef, spec: ImageSpec, sampling: Sampling) -> GeneratedImage:
        """Generates one image with the demo model, on this machine.

        Args:
            model: The model.
            spec: Prompt and seed.
            sampling: Settings of the sampler.
        """
        start = time.perf_counter()
        demo_model, encoder = self._load(model)
        cached, self._rows = self._rows, {}
        for text in (sampling.negative, spec.prompt):
            if text not in cached:
                cached[text] = encoder.encode([text], [encoder.context_length])[0]
            self._rows[text] = cached[text]
        rows = torch.stack([self._rows[sampling.negative], self._rows[spec.prompt]])
        noise = noise_for([spec.seed], sampling.height // CELL, sampling.width // CELL)
        colors = demo_model.generate(rows, noise, sampling.steps, sampling.cfg)[0]
        finite = bool(colors.isfinite().all())
        pixels = as_bytes(colors.nan_to_num(0)).numpy()
        return GeneratedImage(pixels, finite, time.perf_counter() - start)

    def _load(self, model: ModelRef) -> tuple[DemoModel, TextEncoder]:
        if self._loaded is not None and self._identity == model.identity:
            return self._loaded
        if self._loaded is not None:
            self._loaded[1].close()
            self._loaded, self._rows = None, {}
        source, changes = ModelSource.open((model.base or model).file or Path()), {}
        if model.kind == "lora" and model.file is not None:
            layers = source.every_layer("KV")
            stored = read_lora(model.file, layers)
            if stored.unmatched:
                raise InputError(
                    f"{model.name} changes more than layers that read text. Generate with it in"
                    " ComfyUI."
                )
            keys = {layer.canonical: layer.file_key for layer in layers}
            changes = {
                keys[key]: model.strength * (edit.up @ edit.down)
                for key, edit in stored.edits.items()
            }
        demo_model = DemoModel.load(source.checkpoint, changes)
        self._loaded = demo_model, TextSetup().encoder(source).encoder
        self._identity = model.identity
        return self._loaded


def _is_demo_model(model: ModelRef) -> bool:
    if model.file is None or model.kind not in ("lora", "checkpoint"):
        return False
    return model.kind == "lora" or DemoModel.fits(Checkpoint.open(model.file).shapes)
