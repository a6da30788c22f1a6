"""Seconds of an edit on this machine's GPU and on its CPU, at the shapes of real models.

    python -m benchmarks.device
    python -m benchmarks.device --concepts 10 --names 2000 --families sd1

Weights and rows are random; what is computed and how much of it is what `auto` does, certificate
included. The GPU runs twice, and the second run counts: the first one also loads its libraries.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

from speed_erase.speed_ops import EraseSettings, RowSet, solve
from speed_erase.speed_ops.devices import best_device

from .timing import problem, timed

FAMILIES = ("sd1", "sdxl", "flux")
TITLES = {"sd1": "SD1.x", "sdxl": "SDXL", "flux": "Flux"}
ISSUES = "https://github.com/comfyui-speed/ComfyUI-SPEED/issues"


def backend(device: str) -> Any:
    """torch's module for a kind of device."""
    return getattr(torch, device.partition(":")[0])


def seconds(device: str, weights: dict[str, Tensor], rows: RowSet) -> float:
    """Of one edit whose weights and rows are on the device already."""
    settings = EraseSettings.preset("auto")
    there = {key: weight.to(device, torch.float16) for key, weight in weights.items()}
    rows = rows.to(device)

    def work() -> None:
        solve(there, rows, settings)
        if device != "cpu":
            backend(device).synchronize()

    if device != "cpu":
        work()
    return timed(work)[0]


def measured(device: str, family: str, concepts: int, names: int) -> str:
    """The cell of a table."""
    weights, (targets, anchors, retain, empty) = problem(family, concepts, names)
    rows = RowSet.of(
        *(targets, anchors, retain, empty),
        target_names=[f"concept {i}" for i in range(concepts)],
        retain_names=[f"name {i}" for i in range(names)],
    )
    if device == "cpu":
        return f"{seconds(device, weights, rows):.2f} s"
    backend(device).reset_peak_memory_stats()
    spent = seconds(device, weights, rows)
    return f"{spent:.2f} s, {backend(device).max_memory_allocated() / 2**30:.1f} GB"


def name_of(device: str) -> str:
    """The device as people call it."""
    if device == "cpu":
        return f"CPU, {torch.get_num_threads()} threads"
    return f"GPU ({backend(device).get_device_name()})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--concepts", type=int, default=10)
    parser.add_argument("--names", type=int, default=1500)
    args = parser.parse_args()
    gpu = best_device()
    devices = [gpu, "cpu"] if gpu != "cpu" else ["cpu"]
    print(f"torch {torch.__version__}, {args.concepts} concepts, {args.names} kept names\n")
    print("| model | " + " | ".join(map(name_of, devices)) + " |")
    print("| --- |" + " --- |" * len(devices))
    for family in args.families:
        cells = [measured(device, family, args.concepts, args.names) for device in devices]
        print(f"| {TITLES[family]} | " + " | ".join(cells) + " |", flush=True)
    if gpu == "cpu":
        print("\ntorch finds no GPU with double precision here. Run this again on a machine that")
        print(f"has one, and report the table: {ISSUES}")
    else:
        print(f"\nPlease report this table: {ISSUES}")


if __name__ == "__main__":
    main()
