"""The demo's checkpoint is laid out like the real thing, and the demo does what it says."""

from __future__ import annotations

import hashlib
import json
import math
import time
from pathlib import Path

import mini
import pico
import pytest
from safetensors.torch import load_file

from speed_erase.speed_ops.checkpoints import demo as layout
from speed_erase.speed_ops.checkpoints.demo import write_demo_checkpoint
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.models.detect import detect, layers


def parameters(entries: object) -> int:
    return sum(math.prod(shape) for _, shape in entries)  # type: ignore[attr-defined]


def test_at_full_width_it_has_the_published_number_of_parameters() -> None:
    assert parameters(layout.unet_layout(320)) == 859_520_964
    assert parameters(layout.autoencoder_layout(128)) == 83_653_863
    assert parameters(layout.text_encoder_layout(12)) == 123_060_480
    assert {"input_blocks.4.0.skip_connection.weight", *pico.unet_shapes(pico.FAMILIES["sd1"])} <= dict(
        layout.unet_layout(320)
    ).keys()


def test_checkpoint_is_sound_and_the_same_every_time(tmp_path: Path) -> None:
    digests = set()
    for name in "ab":
        path = write_demo_checkpoint(tmp_path / f"{name}.safetensors", channels=8, text_layers=1)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1
    model = Checkpoint.open(path)
    assert detect(model.shapes).name == "sd1"
    assert len(layers(detect(model.shapes), model.shapes, "V")) == 16
    assert all(bool(value.isfinite().all()) for value in load_file(path).values())


@pytest.mark.slow
def test_demo_from_start_to_end(tmp_path: Path) -> None:
    started = time.process_time(), time.monotonic()
    out = tmp_path / "demo-out"
    done = mini.run("demo", "--out", out, "--json", timeout=900, SPEED_ERASE_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    print(f"demo: {time.monotonic() - started[1]:.0f} s")
    found = json.loads(done.stdout)
    assert [one["verdict"] for one in found["certificate"]["concepts"]] == ["erased", "erased"]
    names = {path.name for path in out.iterdir()}
    ends = ("erased.safetensors", "eraser-lora.safetensors", "recipe.json", "report.html")
    assert names == {"demo-model.safetensors", *(f"demo-model-{end}" for end in ends)}
    assert sum(path.stat().st_size for path in out.iterdir()) < 500_000_000
    verified = mini.run("verify", found["files"]["checkpoint"], "--base", out / "demo-model.safetensors", timeout=900)
    assert verified.returncode == 0, verified.stderr
