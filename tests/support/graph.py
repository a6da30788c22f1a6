"""Driving nodes and looking into the model the way a graph does, without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

RETAINED = (
    "Claude Monet\nEdvard Munch\nPablo Picasso\nRembrandt\nJohannes Vermeer\nPaul Klee\nGustav"
    " Klimt\nFrida Kahlo\nKatsushika Hokusai\nHenri Matisse\nEdgar Degas\nCaspar David Friedrich"
)


def run(node: Any, **inputs: Any) -> tuple[Any, ...]:
    """A node's outputs, in inference mode as ComfyUI runs it."""
    with torch.inference_mode():
        return node.execute(**inputs).result


def concepts(text: str, kind: str = "style") -> Any:
    from speed_erase.nodes.concept_list import ConceptListNode

    return run(ConceptListNode, text=text, kind=kind)[0]


def retained(text: str = RETAINED, **inputs: Any) -> Any:
    from speed_erase.nodes.retain_set_loader import RetainSetLoader

    return run(RetainSetLoader, builtin="none", text=text, **inputs)[0]


def erased(model: Any, clip: Any, text: str = "Van Gogh -> art", **inputs: Any) -> tuple[Any, ...]:
    """SpeedErase's outputs; by default bare names, which a random text encoder can be asked to
    erase exactly.
    """
    from speed_erase.nodes.speed_erase import SpeedErase

    widgets = {"preset": "few", "strength": 1.0, "seed": 0, "retain": retained()}
    return run(SpeedErase, model=model, clip=clip, concepts=concepts(text), **{**widgets, **inputs})


def notices(erasure: Any) -> dict[str, dict[str, Any]]:
    """{code: data} of the notes of an erasure."""
    return {note.code: note.data for note in erasure.notes if hasattr(note, "code")}


def sample(
    model: Any, clip: Any, prompt: str, seed: int = 1, steps: int = 1, size: int = 8
) -> Tensor:
    """A latent from ComfyUI's KSampler (`1 x 4 x size x size`)."""
    import nodes

    with torch.inference_mode():
        pair = [conditioning(clip, text) for text in (prompt, "")]
        latent = {"samples": torch.zeros(1, 4, size, size)}
        cfg = 1.0 if steps == 1 else 4.0
        return (
            nodes.KSampler()
            .sample(model, seed, steps, cfg, "euler", "normal", *pair, latent)[0]["samples"]
            .clone()
        )


def conditioning(clip: Any, text: str) -> Any:
    import nodes

    return nodes.CLIPTextEncode().encode(clip, text)[0]


def value_outputs(model: Any, clip: Any, prompt: str) -> dict[str, Tensor]:
    """What every edited layer gives for a prompt in a real forward pass ({key: 77 x o})."""
    outputs: dict[str, Tensor] = {}
    with _hooked(model, lambda key, output: outputs.setdefault(key, output[0].clone())):
        sample(model, clip, prompt)
    return outputs


def left(
    model: Any, erased_model: Any, clip: Any, target: str = "Van Gogh", anchor: str = "art"
) -> float:
    """Worst layer: distance of the target's last token from the anchor's, as a share of what it
    was.
    """
    before, goal = value_outputs(model, clip, target), value_outputs(model, clip, anchor)
    after = value_outputs(erased_model, clip, target)
    row, goal_row = (len(token_ids(clip, name)) for name in (target, anchor))
    shares = [
        (after[k][row] - goal[k][goal_row]).norm() / (before[k][row] - goal[k][goal_row]).norm()
        for k in before
    ]
    assert len(shares) > 0
    return float(max(shares))


def token_ids(clip: Any, text: str) -> list[int]:
    """Of the first text encoder, without start, end and padding."""
    section = next(iter(clip.tokenize(text).values()))[0]
    ids = [pair[0] for pair in section]
    return ids[1 : ids.index(49407)]


def moved(model: Any, erased_model: Any, clip: Any, prompt: str, row: bool = False) -> float:
    """Worst layer: how far all rows of a prompt (or that of its last token) moved, relative to
    their size.
    """
    before, after = value_outputs(model, clip, prompt), value_outputs(erased_model, clip, prompt)
    item = len(token_ids(clip, prompt)) if row else slice(None)
    return float(
        max((after[k][item] - before[k][item]).norm() / before[k][item].norm() for k in before)
    )


def _noting(note: Callable[[str, Tensor], Any], key: str) -> Callable[..., None]:
    """A hook that gives nothing back: what it returned would replace the layer's output."""

    def hook(module: Any, inputs: Any, output: Tensor) -> None:
        note(key, output)

    return hook


@contextmanager
def _hooked(model: Any, note: Callable[[str, Tensor], Any]) -> Iterator[None]:
    handles = []
    for name, module in model.model.named_modules():
        if name.endswith("attn2.to_v"):
            key = f"{name}.weight"
            handles.append(module.register_forward_hook(_noting(note, key)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
