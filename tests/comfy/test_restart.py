"""What outlives the server: saved files, the embedding cache, and nothing of a save that was
killed.
"""

from __future__ import annotations

import time
from pathlib import Path

import mini_checkpoints as mini
import numpy as np
import pytest
from comfy_server import ComfyServer
from PIL import Image
from workflows import erasing, node, sampling, saving

pytestmark = [pytest.mark.comfy, pytest.mark.slow]


@pytest.fixture
def folder(comfyui, tmp_path) -> Path:
    return tmp_path


def started(checkout: Path, folder: Path) -> ComfyServer:
    server = ComfyServer(checkout, folder)
    if not (folder / "models/checkpoints/tiny.safetensors").exists():
        server.add_checkpoint(mini.shared("sd15"), "tiny.safetensors")
    return server.start()


def picture(server: ComfyServer, outputs: dict) -> np.ndarray:
    name = outputs["15"]["images"][0]["filename"]
    return np.asarray(Image.open(server.folder / "output" / name)).astype(int)


def files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder / "output").as_posix()
        for path in (folder / "output").rglob("*")
        if path.is_file()
    }


def test_a_restarted_server_reads_what_was_saved_and_encodes_nothing_again(comfyui, folder):
    first = started(comfyui, folder)
    try:
        expected = picture(first, first.run(erasing() | sampling(["4", 0]) | saving()))
    finally:
        first.stop()
    second = started(comfyui, folder)
    try:
        lora = node(
            "LoraLoaderModelOnly",
            model=["1", 0],
            lora_name="speed/erased_00001_.safetensors",
            strength_model=1.0,
        )
        loaded = {"1": node("TinyCheckpoint", name="tiny.safetensors"), "2": lora} | sampling(
            ["2", 0]
        )
        assert np.abs(picture(second, second.run(loaded)) - expected).max() <= 1
        recipe = "output/recipes/speed/erased_00001_.recipe.json"
        repeated = erasing() | {
            "4": node(
                "SpeedApplyRecipe", model=["1", 0], clip=["1", 1], recipe=recipe, strength=1.0
            )
        }
        out = second.run(repeated | sampling(["4", 0]))
        assert np.array_equal(picture(second, out), expected), (
            "the recipe solves the same edit again"
        )
        assert "\nEncoded 0 prompts" in out["5"]["text"][0], out["5"]["text"][0]
    finally:
        second.stop()


def test_a_killed_save_leaves_no_file_under_its_name(comfyui, folder):
    wired = {"model": ["4", 0], "clip": ["1", 1], "vae": ["1", 2]}
    flow = erasing() | saving(lora=False, recipe=False, checkpoint=True, dtype="float32", **wired)
    folder_of_files = folder / "output" / "checkpoints" / "speed"
    server = started(comfyui, folder)
    server.queue(flow)
    end = time.monotonic() + 120
    while (
        not (begun := list(folder_of_files.glob("*") if folder_of_files.exists() else []))
        and time.monotonic() < end
    ):
        time.sleep(0.002)
    server.kill()
    assert begun and all(path.name.startswith(".") for path in folder_of_files.iterdir()), (
        "killed in the middle of writing"
    )
    again = started(comfyui, folder)
    try:
        assert "erased" not in str(again.get("/models/checkpoints"))
        again.run(flow)
        assert "checkpoints/speed/erased_00001_.safetensors" in files(folder)
        stock = {"1": node("TinyCheckpoint", name="speed/erased_00001_.safetensors")} | sampling(
            ["1", 0]
        )
        assert picture(again, again.run(stock)).std() > 0
    finally:
        again.stop()
