"""The living model in short: two painters learnt in a minute, one of them erased in the graph, the pictures looked at.

Bars are loose, for a model that has only just learnt to tell red from blue; `benchmarks/world` is the long version.
"""

from __future__ import annotations

import pytest
import torch
from comfy_server import ComfyServer
from workflows import erasing, node

from speed_erase.benchmarks.world.short import PAINTERS, train_short

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

CHECKPOINT = "short_world.safetensors"
RED, BLUE = PAINTERS


@pytest.fixture(scope="module")
def server(comfyui, tmp_path_factory):
    folder = tmp_path_factory.mktemp("short_world")
    threads = torch.get_num_threads()
    checkpoint = train_short(folder / "world")
    torch.set_num_threads(threads)
    running = ComfyServer(comfyui, folder / "comfyui")
    running.add_checkpoint(checkpoint, CHECKPOINT)
    try:
        yield running.start()
    finally:
        running.stop()


def drawing(model: list, prompt: str, start: int) -> dict:
    """Four pictures of a prompt; the picture is saved as `picture<start>`."""
    a, b, c, d, e, f = (str(start + i) for i in range(6))
    return {
        a: node("CLIPTextEncode", clip=["1", 1], text=prompt),
        b: node("CLIPTextEncode", clip=["1", 1], text=""),
        c: node("EmptyLatentImage", width=32, height=32, batch_size=4),
        d: node("KSampler", model=model, positive=[a, 0], negative=[b, 0], latent_image=[c, 0], seed=1, steps=8,
                cfg=3.0, sampler_name="euler", scheduler="normal", denoise=1.0),
        e: node("VAEDecode", samples=[d, 0], vae=["1", 2]),
        f: node("SaveImage", images=[e, 0], filename_prefix=f"picture{start}"),
    }  # fmt: skip


def redness(server: ComfyServer, entry: dict, start: int) -> float:
    """Mean of red minus blue over a prompt's pictures, in [-1, 1]."""
    from PIL import Image, ImageStat

    images = entry["outputs"][str(start + 5)]["images"]
    means = [ImageStat.Stat(Image.open(server.folder / "output" / image["filename"])).mean for image in images]
    return sum(red - blue for red, _, blue in means) / len(means) / 255


@pytest.fixture(scope="module")
def seen(server) -> dict[str, float]:
    """How red each painter's pictures are before and after one became the other, in a known and in a new sentence."""
    flow = erasing(f"{RED} -> {BLUE}", CHECKPOINT, "CheckpointLoaderSimple", f"{BLUE}\nClaude Monet\nPaul Klee")
    flow["4"]["inputs"]["preset"] = "auto"
    asked = {
        f"{place} {when} {name}": (model, sentence.format(name))
        for place, sentence in (("known", "a ring by {}"), ("new", "a picture of a sun made by {}"))
        for when, model in (("before", ["1", 0]), ("after", ["4", 0]))
        for name in PAINTERS
    }
    starts = {}
    for number, (what, (model, prompt)) in enumerate(asked.items()):
        starts[what] = 10 * (number + 1)
        flow |= drawing(model, prompt, starts[what])
    entry = server.wait(server.queue(flow))
    assert entry["status"]["status_str"] == "success", entry["status"]
    return {what: redness(server, entry, start) for what, start in starts.items()}


@pytest.mark.parametrize("place", ["known", "new"])
def test_the_painter_is_gone_from_the_pictures_and_the_other_stays(seen, place):
    red, blue = seen[f"{place} before {RED}"], seen[f"{place} before {BLUE}"]
    apart = red - blue
    assert apart > 0.25, f"the model has not learnt to tell them apart: {seen}"
    # The first tokens of a name, which the edit leaves as they are, give it away to a network that learnt from so few
    # sentences: about half of the way was measured, a third is asked.
    assert red - seen[f"{place} after {RED}"] > 0.35 * apart, f"the red painter still paints red: {seen}"
    assert abs(blue - seen[f"{place} after {BLUE}"]) < 0.15 * apart, f"the blue painter has changed: {seen}"
