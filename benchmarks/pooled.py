"""What the pooled path costs at SDXL's real size: `python -m benchmarks.pooled`.

CPU seconds of one thread, so that other work does not count. Weights are random.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from speed_erase.speed_ops.encoders.clip import ClipTextEncoder
from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer
from speed_erase.speed_ops.engine.rows import Rows, RowSet
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.solver import solve

from .shapes import embeddings

PROMPTS = 8
NAMES = 2300
"""Pooled embeddings at the effort normal: 1,734 names, 200 in two prompts, 150 captions."""
OUTPUTS, TEXT = 1280, 1280


def random_clip_g() -> dict[str, Tensor]:
    """CLIP-G's tensors under the names of a diffusers folder; all blocks share their values."""
    base, width, inner = "text_encoder_2/text_model", 1280, 5120

    def random(*shape: int) -> Tensor:
        return (0.02 * torch.randn(shape)).half()

    tensors = {
        f"{base}.embeddings.token_embedding.weight": random(49408, width),
        f"{base}.embeddings.position_embedding.weight": random(77, width),
        f"{base}.final_layer_norm.weight": random(width),
        f"{base}.final_layer_norm.bias": random(width),
        "text_encoder_2/text_projection.weight": random(width, width),
    }
    block = {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    block |= {"layer_norm1": (width,), "layer_norm2": (width,)}  # type: ignore[dict-item]
    block |= {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
    for name, shape in block.items():
        weight, bias = random(*shape), torch.zeros(shape[0]).half()
        for layer in range(32):
            start = f"{base}.encoder.layers.{layer}.{name}"
            tensors |= {f"{start}.weight": weight, f"{start}.bias": bias}
    return tensors


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of this process, all threads together."""
    start = time.process_time()
    work()
    return time.process_time() - start


def encoding() -> None:
    """Rows alone, and rows with pooled embeddings, in turn."""
    family = by_name("sdxl-refiner")
    assert family.second_input is not None
    pooled, tokenizer = family.second_input.encoders, ClipTokenizer.from_package()
    encoder = ClipTextEncoder(random_clip_g(), family.encoders, tokenizer, pooled=pooled)
    prompts = [f"a painting of number {number}" for number in range(PROMPTS)]
    encoder.encode(prompts[:1], [77])
    alone, both = [], []
    for _ in range(3):
        alone.append(cpu_seconds(lambda: encoder.encode(prompts, [77] * PROMPTS)))
        both.append(cpu_seconds(lambda: encoder.encode_both(prompts, [77] * PROMPTS)))
    first, second = min(alone), min(both)
    more = f"{second / first - 1:+.1%}"
    print(f"CLIP-G, {PROMPTS} prompts: rows {first:.2f} s, with pooled {second:.2f} s ({more})")


def solving() -> None:
    """The pooled problem of one and of a hundred concepts, with the preset auto."""
    weight = {"label_emb.0.0": torch.randn(OUTPUTS, TEXT) / TEXT**0.5}
    for concepts, prompts in ((1, 13), (100, 4)):
        rows = embeddings(2 * concepts * prompts + NAMES + 1, TEXT, 2)
        count = concepts * prompts
        targets, anchors, retain, empty = rows.split([count, count, NAMES, 1])
        groups = tuple(place // prompts for place in range(len(targets)))
        names = tuple(f"concept {number}" for number in range(concepts))
        context = (True,) * len(targets)
        sides = Rows(targets, groups, names, context), Rows(anchors, groups, names, context)
        settings = EraseSettings.preset("auto", held_out=0.1)
        given = RowSet.of(*sides, retain, empty)
        spent = cpu_seconds(lambda g=given, s=settings: solve(weight, g, s))
        print(f"label_emb of SDXL, {concepts} concepts, {NAMES} embeddings to keep: {spent:.2f} s")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        encoding()
        solving()
