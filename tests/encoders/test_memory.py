"""The largest text encoder at its full size: it runs in a fraction of what its weights would
take.
"""

from __future__ import annotations

import subprocess
import sys

import pico
import pytest

SCRIPT = """
import torch
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.encoders.clip import ClipTextEncoder
from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer

row = by_name("sdxl").encoders[1]
w, blocks = row.width, {blocks}
shapes = {{"token_embedding.weight": (49408, w), "positional_embedding": (77, w)}}
shapes |= {{"ln_final.weight": (w,), "ln_final.bias": (w,)}}
for n in range(blocks):
    parts = {{"attn.in_proj_": (3 * w, w), "attn.out_proj.": (w, w)}}
    parts |= {{"mlp.c_fc.": (4 * w, w), "mlp.c_proj.": (w, 4 * w)}}
    for part, shape in parts.items():
        base = f"transformer.resblocks.{{n}}.{{part}}"
        shapes |= {{base + "weight": shape, base + "bias": shape[:1]}}
    for norm in ("ln_1", "ln_2"):
        base = f"transformer.resblocks.{{n}}.{{norm}}."
        shapes |= {{base + "weight": (w,), base + "bias": (w,)}}

class Weights:
    '''A file whose tensors come into being when they are read.'''
    shapes = {{row.prefixes[0] + key: shape for key, shape in shapes.items()}}
    read = 0
    def keys(self):
        return self.shapes
    def __getitem__(self, key):
        made = torch.full(self.shapes[key], 0.01, dtype=torch.float16)
        Weights.read += made.nbytes
        return made

encoder = ClipTextEncoder(Weights(), [row], ClipTokenizer.from_package())
from transformers import CLIPTextModel
before = peak()
encoder.fingerprint
encoder.encode(["Van Gogh", "a painting by Van Gogh"], [4, 8])
print(encoder.width, Weights.read // 2 // 1024, peak() - before)
"""


def megabytes(blocks: int) -> tuple[float, float]:
    """Weights in half precision, and what the process grew by when it encoded with them."""
    command = [sys.executable, "-c", pico.standalone(SCRIPT.format(blocks=blocks))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    width, weights, grown = map(int, done.stdout.split())
    assert width == 1280
    return weights / 1024, grown / 1024


@pico.needs_proc
@pytest.mark.slow
def test_a_large_encoder_is_never_whole_in_memory() -> None:
    """SDXL's larger encoder: 1.4 GB in half precision, 2.8 GB in the single precision it is
    computed in.
    """
    weights, grown = megabytes(32)
    assert weights > 1200 and grown < 800, (weights, grown)
    few_weights, few_grown = megabytes(20)
    assert weights - few_weights > 400 and grown - few_grown < 100, (
        "memory grows with the number of blocks"
    )
