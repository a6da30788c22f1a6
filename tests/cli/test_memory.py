"""Solving and measuring holds one layer at a time: memory does not grow with their number."""

from __future__ import annotations

import os
import subprocess
import sys

import pico
import pytest

SCRIPT = """
from collections.abc import Mapping
import torch
from speed_erase.speed_ops import EraseSettings, RowSet, solve
from speed_erase.speed_ops.cli.main import return_large_blocks

return_large_blocks()

WIDTH, OUTPUTS, LAYERS = 512, 2560, 70
generator = torch.Generator().manual_seed(0)
stored = torch.randn(OUTPUTS, WIDTH, generator=generator).half().numpy().tobytes()

class Layers(Mapping):
    '''Each layer is read when it is needed, as from a file.'''
    def __getitem__(self, key):
        return torch.frombuffer(bytearray(stored), dtype=torch.float16).reshape(OUTPUTS, WIDTH)
    def __iter__(self):
        return iter([f"layer {number}" for number in range(LAYERS)])
    def __len__(self):
        return LAYERS

def rows(count):
    return torch.randn(count, WIDTH, generator=generator) * torch.arange(1, WIDTH + 1) ** -0.5

seen = {}
def progress(stage, done, total):
    seen[stage, done] = peak()

everything = RowSet.of(rows(2), rows(2), rows(800), rows(20))
solve(Layers(), everything, EraseSettings.preset("auto"), progress=progress)
print(peak() - seen["layers", 5])
"""


@pico.needs_proc
@pytest.mark.slow
def test_layers_come_and_go() -> None:
    """70 layers of 10 MB in working precision: if they were held, they would be 700 MB."""
    command = [sys.executable, "-c", pico.standalone(SCRIPT)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) < 60_000, f"{done.stdout} kB"
