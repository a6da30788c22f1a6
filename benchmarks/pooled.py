"""What the pooled path costs at SDXL's real size: the encoder's last block, and one more layer to
solve.

    python -m benchmarks.pooled

CPU seconds of one thread, so that other work on the machine does not count. Weights are random.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

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
"""Pooled embeddings of the kept names at the effort normal: 1,734 alone, 200 in two prompts, 150
captions.
"""
OUTPUTS, TEXT = 1280, 1280


class RandomClipG:
    """CLIP-G's tensors under the names of a diffusers folder; one block stands for all, as its
    values do not matter.
    """

    def __init__(self) -> None:
        width, inner = 1280, 5120
        shapes = {
            "embeddings.token_embedding.weight": (49408, width),
            "embeddings.position_embedding.weight": (77, width),
            "final_layer_norm.weight": (width,),
            "final_layer_norm.bias": (width,),
        }
        block = {
            "mlp.fc1": (inner, width),
            "mlp.fc2": (width, inner),
            "layer_norm1": (width,),
            "layer_norm2": (width,),
        }
        block |= {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
        values = {name: 0.02 * torch.randn(shape) for name, shape in shapes.items()}
        self._tensors = {
            f"text_encoder_2/text_model.{name}": value.half() for name, value in values.items()
        }
        for name, shape in block.items():
            weight, bias = (0.02 * torch.randn(shape)).half(), torch.zeros(shape[0]).half()
            for layer in range(32):
                start = f"text_encoder_2/text_model.encoder.layers.{layer}.{name}"
                self._tensors |= {f"{start}.weight": weight, f"{start}.bias": bias}
        self._tensors["text_encoder_2/text_projection.weight"] = (
            0.02 * torch.randn(width, width)
        ).half()

    def keys(self) -> Iterator[str]:
        return iter(self._tensors)

    def __getitem__(self, key: str) -> Tensor:
        return self._tensors[key]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of this process, all threads together."""
    start = time.process_time()
    work()
    return time.process_time() - start


def encoding() -> None:
    """Rows alone, and rows with pooled embeddings, in turn."""
    family = by_name("sdxl-refiner")
    assert family.second_input is not None
    encoder = ClipTextEncoder(
        RandomClipG(),
        family.encoders,
        ClipTokenizer.from_package(),
        pooled=family.second_input.encoders,
    )
    prompts = [f"a painting of number {number}" for number in range(PROMPTS)]
    encoder.encode(prompts[:1], [77])
    alone, both = [], []
    for _ in range(3):
        alone.append(cpu_seconds(lambda: encoder.encode(prompts, [77] * PROMPTS)))
        both.append(cpu_seconds(lambda: encoder.encode_both(prompts, [77] * PROMPTS)))
    first, second = min(alone), min(both)
    print(
        f"CLIP-G, {PROMPTS} prompts: rows {first:.2f} s, with pooled {second:.2f} s"
        f" ({second / first - 1:+.1%})"
    )


def solving() -> None:
    """The pooled problem of one and of a hundred concepts, with the preset auto."""
    weight = {"label_emb.0.0": torch.randn(OUTPUTS, TEXT) / TEXT**0.5}
    for concepts, prompts in ((1, 13), (100, 4)):
        rows = embeddings(2 * concepts * prompts + NAMES + 1, TEXT, 2)
        targets, anchors, retain, empty = rows.split(
            [concepts * prompts, concepts * prompts, NAMES, 1]
        )
        groups = tuple(place // prompts for place in range(len(targets)))
        names, context = (
            tuple(f"concept {number}" for number in range(concepts)),
            (True,) * len(targets),
        )
        sides = Rows(targets, groups, names, context), Rows(anchors, groups, names, context)
        settings = EraseSettings.preset("auto", held_out=0.1)
        spent = cpu_seconds(
            lambda s=sides, r=retain, e=empty, c=settings: solve(weight, RowSet.of(*s, r, e), c)
        )
        print(
            f"label_emb of SDXL, {concepts} concepts, {NAMES} pooled embeddings to keep:"
            f" {spent:.2f} s"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        encoding()
        solving()
