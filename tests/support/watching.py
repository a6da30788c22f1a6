"""What goes into the edited layers of a mini family, and what comes out, in real forward passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mini_families as minis
import torch
from graph import conditioning
from torch import Tensor

from speed_erase.speed_ops.text.kinds import Prompt
from speed_erase.speed_ops.text.tokens import Position


def sample(name: str, model: Any, clip: Any, prompt: str, steps: int = 1) -> Tensor:
    import comfy.sample
    import comfy.samplers

    shape = (1, model.get_model_object("latent_format").latent_channels, *minis.MINIS[name].size)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        pair = [conditioning(clip, text) for text in (prompt, "")]
        cfg = 1.0 if steps == 1 else 4.0
        return comfy.sample.sample(
            *(model, noise, steps, cfg, "euler", "simple", *pair, torch.zeros(shape)),
            disable_pbar=True,
        ).clone()


@contextmanager
def watching(model: Any, keys: list[str]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """{key: what went into the layer and what came out, `rows x width` each} of the forward passes
    inside.
    """
    passes: dict[str, tuple[Tensor, Tensor]] = {}

    def noting(key: str) -> Any:
        def hook(module: Any, inputs: Any, output: Tensor) -> None:
            passes.setdefault(key, (inputs[0][0].float().clone(), output[0].float().clone()))

        return hook

    handles = [
        model.model.get_submodule(key.removesuffix(".weight")).register_forward_hook(noting(key))
        for key in keys
    ]
    try:
        yield passes
    finally:
        for handle in handles:
            handle.remove()


def at_layers(
    name: str, model: Any, clip: Any, keys: list[str], prompt: str
) -> dict[str, tuple[Tensor, Tensor]]:
    with watching(model, keys) as passes:
        sample(name, model, clip, prompt)
    assert set(passes) == set(keys)
    if not minis.MINIS[name].pads_left:
        return passes
    first = {key: int(rows.any(dim=-1).nonzero()[0]) for key, (rows, _) in passes.items()}
    return {key: (rows[first[key] :], out[first[key] :]) for key, (rows, out) in passes.items()}


def name_rows(encoder: Any, prompt: str) -> list[int]:
    """The last token of the name in each stream."""
    bare = Prompt.bare(prompt)
    return [row for s in encoder.streams for row in s.rows(Position.LAST_SUBJECT, s.locate(bare))]
