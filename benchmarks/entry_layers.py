"""What an edit leaves and moves where all text enters at one layer: the second table of
docs/research/models.md.

    python -m benchmarks.entry_layers [--mpnet FOLDER] [--kept N]

The layers have the shapes of SD3's `context_embedder` and Flux's `txt_in` and random values. Two
encoders read both ways, as T5 does: mpnet, trained on web text, whose rows are 768 wide, and a T5
of two narrow random blocks with the real width of 4096 and the real tokenizer (`COMFYUI_PATH`).
Painters become "art"; a tenth of the kept painters is held out to judge by. Of each budget the
table has what `auto` leaves and how far held-out names drift; below, the least that others leave
within the same drift.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache
from speed_erase.speed_ops.encoders.t5 import T5TextEncoder
from speed_erase.speed_ops.encoders.tokenizers import t5_tokenizer
from speed_erase.speed_ops.models.families import by_name

from .encoders import CLIP_SIZE, mpnet
from .frontier import cells
from .frontier.cells import Cell, Method, job_for, least_left
from .real_sizes import t5_layout

LAYERS = {"SD3": 1536, "Flux.1": 3072}
"""Outputs of the layer that all text enters through."""
BUDGETS = (0.05, 0.1, 0.2, 0.3)
OTHERS = ("SPEED few", "UCE")
WIDTH, INNER, HEADS, BLOCKS, LENGTH = 4096, 1024, 16, 2, 48


def narrow_t5() -> T5TextEncoder:
    """T5's width and vocabulary, random values: a token stays recognizable in its row."""
    row = replace(by_name("flux-dev").encoders[0], length=LENGTH, layers=BLOCKS)
    tensors = {f"{row.folder}/{name}": value for name, value in _t5_tensors()}
    return T5TextEncoder(tensors, row, t5_tokenizer(None, ()))


def _t5_tensors() -> Iterator[tuple[str, Tensor]]:
    source = torch.Generator().manual_seed(7)
    spectrum = torch.arange(1, WIDTH + 1) ** -0.5
    scales = {"q.weight": 1 / 8, "o.weight": 0.5, "wo.weight": 0.5}
    for name, shape in t5_layout(WIDTH, INNER, INNER, BLOCKS, HEADS):
        if name == "shared.weight":
            size = WIDTH**0.5 / spectrum.norm()
            values = torch.randn(shape, generator=source) * spectrum * size
        elif len(shape) == 2:
            scale = scales.get(".".join(name.split(".")[-2:]), 1.0)
            values = torch.randn(shape, generator=source) * scale * shape[1] ** -0.5
        else:
            final = name == "encoder.final_layer_norm.weight"
            values = torch.full(shape, CLIP_SIZE * WIDTH**-0.5 if final else 1.0)
        yield name, values.half()


def entry_layer(outputs: int) -> Any:
    """Replaces the benchmark's two value layers."""

    def layer(width: int) -> dict[str, Tensor]:
        source = torch.Generator().manual_seed(7)
        return {"entry": torch.randn(outputs, width, generator=source) / width**0.5}

    return patch.object(cells, "layers", layer)


def table_rows(name: str, reader: CachedEncoder, count: int, kept: int) -> Iterator[str]:
    """Lines of the table for one encoder and number of concepts."""
    job = job_for(count, kept, "fast")
    for model, outputs in LAYERS.items():
        began = time.process_time()
        with entry_layer(outputs):
            cell = Cell.of(reader, job)
            budgeted = [job.settings.replace(drift_budget=budget) for budget in BUDGETS]
            found = [cell.default(settings) for settings in budgeted]
            swept = {method.name: cell.sweep(method) for method in _others()}
        each = " | ".join(f"**{point.left:.2f}** at {point.drift:.0%}" for point in found)
        yield f"| {name}, {count} | {model} | auto | {each} |"
        for other, points in swept.items():
            each = " | ".join(f"{least_left(points, point.drift):.2f}" for point in found)
            yield f"| | | {other} | {each} |"
        print(f"# {time.process_time() - began:.0f} processor seconds", flush=True)


def _others() -> Iterator[Method]:
    for method in cells.methods():
        if method.ours and method.name in OTHERS:
            yield replace(method, values=method.values[::2])


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--mpnet", type=Path, help="all-mpnet-base-v2 (default: SPEED_MPNET)")
    parser.add_argument("--kept", type=int, default=200, help="kept painters")
    parser.add_argument("--concepts", type=int, nargs="*", default=[1, 10])
    given = parser.parse_args()
    every = {"mpnet": mpnet(given.mpnet), "random T5": narrow_t5()}
    budgets = " | ".join(f"{budget:.0%}" for budget in BUDGETS)
    print(f"| rows, concepts | layer | method | {budgets} |")
    print("| --- | --- | --- |" + " --- |" * len(BUDGETS))
    with TemporaryDirectory() as folder:
        for name, encoder in every.items():
            for count in given.concepts if encoder is not None else ():
                reader = CachedEncoder(encoder, EmbeddingCache(Path(folder)))
                for line in table_rows(name, reader, count, given.kept):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
