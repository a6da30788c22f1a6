"""CPU seconds, memory and sizes of an edit at the real layer shapes of every family
(docs/research/models.md).

    python -m benchmarks.families [family ...]

Weights and rows are random. 1 and 100 concepts of eight rows against 300 kept names of two rows,
with the preset `fixed` and the pooled path, on one thread; without reading text. Memory is the peak
of a process of its own, with the weights of all layers.
"""

from __future__ import annotations

import resource
import sys
import time
from multiprocessing import get_context

import torch
from torch import Tensor

from speed_erase.speed_ops.engine.rows import Rows, RowSet
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.models.families import ARCHITECTURES
from speed_erase.speed_ops.solver import solve

SHAPES: dict[str, list[tuple[int, int, int]]] = {
    "sd1": [(2, 320, 768), (5, 640, 768), (9, 1280, 768)],
    "sd2": [(2, 320, 1024), (5, 640, 1024), (9, 1280, 1024)],
    "sdxl": [(10, 640, 2048), (60, 1280, 2048)],
    "sdxl-refiner": [(16, 768, 1280), (28, 1536, 1280)],
    "sd3": [(1, 1536, 4096)],
    "flux-dev": [(1, 3072, 4096)],
    "flux2-dev": [(1, 6144, 15360)],
    "flux2-klein-4b": [(1, 3072, 7680)],
    "flux2-klein-9b": [(1, 4096, 12288)],
    "chroma": [(1, 3072, 4096)],
    "auraflow": [(1, 3072, 2048)],
    "z-image": [(1, 3840, 2560)],
    "lumina-2": [(1, 2304, 2304)],
    "qwen-image": [(1, 3072, 3584)],
    "krea-2": [(1, 6144, 6144)],
    "hunyuan-image-2.1": [(1, 3584, 3584)],
    "hunyuan-video-1.5": [(1, 2048, 3584)],
    "wan": [(30, 1536, 1536)],
    "cosmos-predict2": [(28, 2048, 1024)],
    "anima": [(28, 2048, 1024)],
    "ltxv": [(28, 2048, 2048)],
}
"""{family: (how many layers, outputs, width)}, of SD3 medium, Wan 2.1 1.3B and LTX-Video 2B."""
POOLED: dict[str, tuple[int, int, int]] = {
    "sdxl": (1280, 1280, 2816),
    "sdxl-refiner": (1536, 1280, 2560),
    "sd3": (1536, 2048, 2048),
    "flux-dev": (3072, 768, 768),
    "hunyuan-image-2.1": (3584, 3584, 3584),
    "hunyuan-video-1.5": (2048, 3584, 3584),
}
"""{family: (outputs, columns that read text, all columns)} of the pooled path's layer."""
KEPT, ROWS = 300, 8


def rows(names: int, each: int, width: int, seed: int) -> Rows:
    """Random rows; a name's lie close to each other."""
    generator = torch.Generator().manual_seed(seed)
    spectrum = torch.arange(1, width + 1) ** -0.7 * width**0.5
    own = torch.randn(names, 1, width, generator=generator)
    values = (own + 0.3 * torch.randn(names, each, width, generator=generator)) * spectrum
    groups = tuple(group for group in range(names) for _ in range(each))
    labels = tuple(f"{seed}-{group}" for group in range(names))
    return Rows(values.reshape(-1, width), groups, labels, (False, *[True] * (each - 1)) * names)


def layers(shapes: list[tuple[int, int, int]]) -> dict[str, Tensor]:
    """Random weights."""
    generator, weights = torch.Generator().manual_seed(0), {}
    for count, outputs, width in shapes:
        for _ in range(count):
            values = torch.randn(outputs, width, generator=generator) * width**-0.5
            weights[f"diffusion_model.{len(weights)}.weight"] = values
    return weights


def measure(shapes: list[tuple[int, int, int]], concepts: int) -> tuple[float, int]:
    """(CPU seconds, numbers in the low-rank edits of all layers)."""
    weights, width = layers(shapes), shapes[0][2]
    given = [rows(concepts, ROWS, width, seed) for seed in (1, 2)] + [rows(KEPT, 2, width, 3)]
    row_set = RowSet.of(*given, given[2].values[:16].clone())
    began = time.process_time()
    erasure = solve(weights, row_set, EraseSettings.preset("fixed"))
    seconds = time.process_time() - began
    return seconds, sum(edit.up.numel() + edit.down.numel() for edit in erasure.edits.values())


def cells(name: str, concepts: int) -> tuple[float, float, float]:
    """(CPU seconds, megabytes of the LoRA in half precision, gigabytes of memory at the peak),
    pooled path included.
    """
    torch.set_num_threads(1)
    seconds, numbers = measure(SHAPES[name], concepts)
    if name in POOLED:
        outputs, text, columns = POOLED[name]
        more, its_numbers = measure([(1, outputs, text)], concepts)
        # The LoRA holds the whole layer's columns: those that read sizes are zero in it.
        seconds += more
        numbers += its_numbers * (outputs + columns) // (outputs + text)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes on Linux
    return seconds, 2 * numbers / 1e6, peak / 1e6


def main() -> None:
    titles = {row.name: row.title for row in ARCHITECTURES}
    for name in sys.argv[1:] or SHAPES:
        with get_context("spawn").Pool(1, maxtasksperchild=1) as apart:
            few, many = apart.starmap(cells, [(name, 1), (name, 100)], chunksize=1)
        sizes = (f"{size:.0f} MB" if size >= 10 else f"{size:.2g} MB" for _, size, _ in (few, many))
        times = f"{few[0]:.1f} s | {many[0]:.1f} s"
        print(f"| {titles[name]} | {times} | {' | '.join(sizes)} | {many[2]:.1f} GB |", flush=True)


if __name__ == "__main__":
    main()
