"""Without a server this machine draws the model in the box, and LoRAs and checkpoints made of it,
as the demo does.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import mini
import numpy as np
import pico
import pytest
import torch
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.cli.main import main
from speed_erase.speed_ops.demo import generate
from speed_erase.speed_ops.demo.packed_model import write_checkpoint
from speed_erase.speed_ops.engine.edits import LayerEdit
from speed_erase.speed_ops.evaluate.album import Album
from speed_erase.speed_ops.files.lora import write_lora

PROMPT, SEED = "a house by Dario Fenwick", 3


@pytest.fixture(scope="module")
def box(tmp_path_factory) -> Path:
    """The model, a LoRA that changes it in a way that no two channels share, and the same change in
    a checkpoint.
    """
    folder = tmp_path_factory.mktemp("box")
    path = write_checkpoint(folder / "model.safetensors")
    source, content = ModelSource.open(path), load_file(path)
    layers = source.every_layer("V")
    edits = {}
    torch.manual_seed(0)
    for layer in layers:
        up, down = (
            torch.randn(layer.shape[0], 1).double(),
            torch.randn(1, layer.shape[1]).double() * 0.3,
        )
        edits[layer.canonical] = LayerEdit(up, down)
        content[layer.file_key] = content[layer.file_key].float() + (up @ down).float()
    write_lora(folder / "lora.safetensors", edits, layers, source.architecture, dtype=torch.float32)
    save_file(content, folder / "changed.safetensors")
    (folder / "one.csv").write_text(f"prompt,type,concept,seed\n{PROMPT},keep,,{SEED}\n")
    return folder


def evaluate(folder: Path, out: Path, *more: str) -> int:
    common = [
        "evaluate",
        "--original",
        str(folder / "model.safetensors"),
        "--prompts",
        str(folder / "one.csv"),
    ]
    return main([*common, "--out", str(out), "--quiet", *more])


def drawn(out: Path) -> dict[str, np.ndarray]:
    """Model -> its only picture."""
    models = json.loads((out / "evaluation.json").read_text())["models"]
    keys = {model["label"]: model["prompts"][0]["images"][0]["after"] for model in models}
    return {
        label: Album(out / "pictures").get(key).pixels.astype(int) for label, key in keys.items()
    }


def test_this_machine_draws_what_the_demo_draws(box, tmp_path, monkeypatch):
    """With a LoRA that came to nothing the same, and with all channels instead of one of each
    pair.
    """
    assert (
        evaluate(
            box, tmp_path, "--erased", f"none=lora:{box / 'lora.safetensors'}@0", "--steps", "3"
        )
        == 0
    )
    found, path = drawn(tmp_path), box / "model.safetensors"
    monkeypatch.setattr(generate, "STEPS", 3)
    monkeypatch.setattr(generate, "_COPY_ERROR", -1.0)
    rows = generate.encode_prompts(path, [PROMPT])
    shown = generate.generate_images(path, rows, [SEED])[0].numpy()
    assert np.abs(found["original"] - shown).max() <= 1 and np.abs(found["none"] - shown).max() <= 1


def test_a_checkpoint_draws_what_its_lora_draws(box, tmp_path):
    files = (
        "--erased",
        f"lora={box / 'lora.safetensors'}",
        "--erased",
        f"file={box / 'changed.safetensors'}",
    )
    assert evaluate(box, tmp_path, *files, "--steps", "2", "--size", "64x32") == 0
    found = drawn(tmp_path)
    assert found["file"].shape == (32, 64, 3) and np.abs(found["file"] - found["lora"]).max() <= 1
    assert np.abs(found["file"] - found["original"]).mean() > 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--sampler", "dpmpp_2m"), "sampler euler"),
        (("--size", "100x128"), "multiples of 16"),
        ((), "'nowhere.safetensors' is no file of this machine"),
    ],
)
def test_what_cannot_be_drawn_here_is_told(box, tmp_path, capsys, more, said):
    assert evaluate(box, tmp_path, "--erased", "nowhere.safetensors", *more) != 0
    assert said in capsys.readouterr().err and not list(tmp_path.rglob("*.png"))


@pytest.mark.slow
@pico.posix
def test_a_run_that_is_stopped_finishes_what_it_draws(box, tmp_path):
    """A process that ends under its drawing thread would crash."""
    files = (
        "--original",
        box / "model.safetensors",
        "--erased",
        f"lora:{box / 'lora.safetensors'}@0",
    )
    command = mini.command(
        "evaluate", *files, "--prompts", box / "one.csv", "--out", tmp_path, "--steps", "3"
    )
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list((tmp_path / "pictures").glob("??/*.png")):
        assert driver.poll() is None
        time.sleep(0.01)
    driver.terminate()
    said = driver.communicate(timeout=300)[1]
    assert (
        driver.returncode == 128 + signal.SIGTERM and "nothing unfinished was left behind" in said
    )


def test_other_models_need_a_server(box, tmp_path, capsys):
    mini.write_model(tmp_path / "other.safetensors")
    assert evaluate(box, tmp_path / "out", "--erased", str(tmp_path / "other.safetensors")) == 1
    assert "--server" in capsys.readouterr().err
