"""The model that comes with the package, in ComfyUI: stock nodes draw what the demo draws, a graph
erases from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from comfy_server import ComfyServer
from PIL import Image
from workflows import erasing, node

from speed_erase.benchmarks.demo_model.judge import Judge
from speed_erase.benchmarks.demo_model.world import NOTHING, PLAIN, SCENES, STYLES
from speed_erase.speed_ops.demo import demo, generate
from speed_erase.speed_ops.demo.packed_model import known_names

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

SEED = 4
GONE, NEAR, FAR = "a house by Orla Venn", "a house by Dario Fenwick", "a cup"


@pytest.fixture(scope="module")
def server(comfyui, tmp_path_factory):
    running = ComfyServer(comfyui, tmp_path_factory.mktemp("box"))
    demo.place_in_comfyui(running.folder)
    try:
        yield running.start()
    finally:
        running.stop()


def drawing(model: list, prompt: str, start: int) -> dict[str, Any]:
    """A prompt drawn with stock nodes as the demo draws; the picture is saved by node `start +
    5`.
    """
    a, b, c, d, e, f = (str(start + i) for i in range(6))
    sampling = {
        "seed": SEED,
        "steps": generate.STEPS,
        "cfg": generate.GUIDANCE,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
    }
    inputs = {"model": model, "positive": [a, 0], "negative": [b, 0], "latent_image": [c, 0]}
    return {
        a: node("CLIPTextEncode", clip=["1", 1], text=prompt),
        b: node("CLIPTextEncode", clip=["1", 1], text=""),
        c: node("EmptyLatentImage", width=generate.SIZE, height=generate.SIZE, batch_size=1),
        d: node("KSampler", **inputs, **sampling),
        e: node("VAEDecode", samples=[d, 0], vae=["1", 2]),
        f: node("SaveImage", images=[e, 0], filename_prefix=f"picture{start}"),
    }


@pytest.fixture(scope="module")
def pictures(server) -> dict[tuple[str, str], np.ndarray]:
    """(when, prompt) -> the picture that ComfyUI saved, (128, 128, 3)."""
    kept = "\n".join(name for part in known_names().values() for name in part)
    flow = erasing(
        "Orla Venn -> art", demo.IN_COMFYUI, "CheckpointLoaderSimple", kept, preset="auto"
    )
    asked = {
        (when, prompt): place
        for when, place in (("before", "1"), ("after", "4"))
        for prompt in (GONE, NEAR, FAR)
    }
    starts = {}
    for number, ((when, prompt), place) in enumerate(asked.items()):
        starts[when, prompt] = 10 * (number + 1)
        flow |= drawing([place, 0], prompt, starts[when, prompt])
    entry = server.wait(server.queue(flow))
    assert entry["status"]["status_str"] == "success", entry["status"]
    files = {
        key: entry["outputs"][str(start + 5)]["images"][0]["filename"]
        for key, start in starts.items()
    }
    return {
        key: np.array(Image.open(server.folder / "output" / name)) for key, name in files.items()
    }


def test_the_stock_nodes_draw_what_the_demo_draws(server, pictures) -> None:
    """Text, sampler and decoder are our own in the demo, and agree with ComfyUI's to rounding."""
    path = server.folder / "models" / "checkpoints" / demo.IN_COMFYUI
    prompts = (GONE, NEAR, FAR)
    rows = generate.encode_prompts(path, prompts)
    ours = generate.generate_images(path, rows, [SEED] * len(prompts)).numpy()
    for prompt, mine in zip(prompts, ours, strict=True):
        apart = np.abs(mine.astype(int) - pictures["before", prompt])
        assert apart.max() <= 3 and apart.mean() < 0.5, (
            f"{prompt}: {apart.max()} and {apart.mean():.2f} of 255"
        )


def test_an_erasure_in_the_graph_shows_in_the_pictures(pictures) -> None:
    seen = {key: _seen(picture) for key, picture in pictures.items()}
    assert seen["before", GONE] == ("house", "Orla Venn") and seen["after", GONE] == (
        "house",
        PLAIN.name,
    )
    for when in ("before", "after"):
        assert seen[when, NEAR] == ("house", "Dario Fenwick")
        assert seen[when, FAR] == ("cup", PLAIN.name)
    assert NOTHING not in {subject for subject, _ in seen.values()}


def _seen(picture: np.ndarray) -> tuple[str, str]:
    verdict = Judge().judge(torch.from_numpy(picture).permute(2, 0, 1)[None] / 127.5 - 1)
    return SCENES[int(verdict.subject)], STYLES[int(verdict.style)]
