"""Against a running ComfyUI: erase, then evaluate what it draws; and the node that compares
pictures.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil

import mini_checkpoints as mini
import numpy as np
import pytest
import torch
from comfy_server import ComfyServer
from graph import run

from speed_erase.speed_ops.cli.main import main
from speed_erase.speed_ops.errors import InputError

pytestmark = [pytest.mark.comfy, pytest.mark.slow]


TINY = """
import json, tempfile
from pathlib import Path

import comfy.sd
import folder_paths
import torch
from comfy.clip_vision import ClipVisionModel


def filled(weights, scale):
    generator = torch.Generator().manual_seed(0)
    return {
        key: torch.randn(value.shape, generator=generator) * scale
        for key, value in weights.items()
    }


def vision():
    config = {"hidden_size": 32, "intermediate_size": 64}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"image_size": 32, "patch_size": 8, "num_channels": 3, "hidden_act": "quick_gelu"}
    file = Path(tempfile.mkdtemp()) / "vision.json"
    file.write_text(json.dumps(config | {"projection_dim": 768, "model_type": "clip_vision_model"}))
    model = ClipVisionModel(str(file))
    model.load_sd(filled(model.get_sd(), 0.2))
    return model


def text(checkpoint):
    options = {"clip_l_model_config": {"num_hidden_layers": 3, "intermediate_size": 64}}
    clip = comfy.sd.load_checkpoint_guess_config(checkpoint, te_model_options=options)[1]
    weight = clip.cond_stage_model.clip_l.transformer.text_projection.weight
    weight.copy_(filled({"weight": weight}, 0.03)["weight"])
    return clip
"""
"""ComfyUI's own image encoder, with few and narrow layers, and the mini checkpoint's text encoder
with a projection.
"""

LOADERS = (
    TINY
    + """
import nodes

nodes.CLIPVisionLoader.load_clip = lambda self, clip_name: (vision(),)
nodes.CLIPLoader.load_clip = lambda self, clip_name, type, device="default": (
    text(folder_paths.get_full_path("checkpoints", "shrunken.safetensors")),
)
NODE_CLASS_MAPPINGS = {}
"""
)
"""Stock loaders take encoders of full size only: in the server of these tests they give the small
ones.
"""


@pytest.fixture(scope="module")
def erased(comfyui, own_cache, tmp_path_factory):
    """A checkpoint that stock loaders take, with a whole text encoder, and what erasing a painter
    made of it.
    """
    folder = tmp_path_factory.mktemp("erased")
    os.link(mini.shared("sd15-tiny", shrunk=False), folder / "model.safetensors")
    names = folder / "names.txt"
    names.write_text("Claude Monet\nPaul Klee\nFranz Marc\n")
    lists = ["--retain-file", str(names), "--preset", "few", "--save", "lora,checkpoint"]
    given = ["--concepts", "Van Gogh -> art", *lists, "--out", str(folder)]
    assert main(["erase", str(folder / "model.safetensors"), *given, "--quiet"]) == 0
    return folder


@pytest.fixture(scope="module")
def server(comfyui, erased, tmp_path_factory):
    running = ComfyServer(comfyui, tmp_path_factory.mktemp("comfy"))
    running.add_checkpoint(erased / "model.safetensors", "model.safetensors")
    running.add_checkpoint(erased / "model-erased.safetensors", "model-erased.safetensors")
    shutil.copy(
        erased / "model-eraser-lora.safetensors",
        running.folder / "models" / "loras" / "eraser.safetensors",
    )
    running.add_checkpoint(mini.shared("sd15-tiny"), "shrunken.safetensors")
    (running.folder / "custom_nodes" / "tiny_encoders.py").write_text(LOADERS)
    for folder in ("clip_vision", "text_encoders"):
        (running.folder / "models" / folder).mkdir()
        (running.folder / "models" / folder / "tiny.safetensors").touch()
    try:
        yield running.start()
    finally:
        running.stop()


def evaluate(server: ComfyServer, out, *more: str) -> dict:
    small = ["--size", "64x64", "--steps", "2", "--seeds", "1", "--limit", "1"]
    address = ["--server", f"127.0.0.1:{server.port}", "--out", str(out)]
    assert (
        main(["evaluate", "--original", "model.safetensors", *address, *small, "--quiet", *more])
        == 0
    )
    return json.loads((out / "evaluation.json").read_text())


def pixels(out, key: str) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(out / "pictures" / key[:2] / f"{key}.png")).astype(int)


def test_an_eraser_is_evaluated_where_it_is_used(server, erased, tmp_path):
    both = [
        "--erased",
        "as LoRA=lora:eraser.safetensors",
        "--erased",
        "as checkpoint=model-erased.safetensors",
    ]
    found = evaluate(server, tmp_path, *both, "--keep", "Paul Klee")
    assert [model["label"] for model in found["models"]] == ["original", "as LoRA", "as checkpoint"]
    _, lora, checkpoint = found["models"]
    assert [(one["group"], one["role"]) for one in lora["groups"]] == [
        ("Van Gogh", "erase"),  # what the header of the file says, which the server reads for us
        ("Paul Klee", "keep"),
        ("captions of ours", "keep"),
    ]
    assert lora["certificate"]["concepts"][0]["name"] == "Van Gogh"
    assert lora["groups"][0]["measures"]["seconds"]["value"] > 0
    (shot,) = lora["prompts"][0]["images"]
    before, after = pixels(tmp_path, shot["before"]), pixels(tmp_path, shot["after"])
    assert before.shape == (64, 64, 3) and not np.array_equal(before, after)
    (baked,) = checkpoint["prompts"][0]["images"]
    assert baked["before"] == shot["before"], "the original is drawn once for both"
    assert np.abs(pixels(tmp_path, baked["after"]) - after).max() <= 4, (
        "the LoRA and the checkpoint are the same edit"
    )
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png")}
    assert len(times) == 9
    assert evaluate(server, tmp_path, *both, "--keep", "Paul Klee") == found
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png")} == times, (
        "nothing is drawn twice"
    )


def test_the_server_s_own_clip_judges_the_pictures(server, tmp_path):
    judge = [
        "--clip-vision",
        "tiny.safetensors",
        "--clip-text",
        "tiny.safetensors",
        "--keep",
        "Paul Klee",
    ]
    found = evaluate(server, tmp_path, "--erased", "lora:eraser.safetensors", *judge)
    before, after = (model["groups"][0]["measures"] for model in found["models"])
    assert before["drift"]["value"] < 1e-12 < after["drift"]["value"], (
        "two steps of a random model change little"
    )
    assert before["clip_score"] == after["clip_score_before"] and "recognized" in after
    assert (
        found["scorers"]["clip"]
        == "CLIP_VISION tiny.safetensors with the texts of tiny.safetensors"
    )


def test_what_the_server_says_against_a_picture_reaches_the_user(server, tmp_path, capsys):
    models = [
        "--original",
        "model.safetensors",
        "--erased",
        "lora:eraser.safetensors",
        "--sampler",
        "nonsense",
    ]
    address = ["--server", f"127.0.0.1:{server.port}", "--out", str(tmp_path)]
    code = main(["evaluate", *models, *address, "--json", "--limit", "1", "--seeds", "1"])
    said = json.loads(capsys.readouterr().out)["error"]
    assert (
        code == 1
        and "sampler_name: 'nonsense' not in" in said["message"]
        and said["code"] == "server"
    )


@pytest.fixture(scope="module")
def tiny(comfyui, tmp_path_factory):
    """CLIP_VISION, and a CLIP with a projection, as a text encoder's own file has one."""
    file = tmp_path_factory.mktemp("tiny") / "tiny.py"
    file.write_text(TINY, encoding="utf-8")
    found = runpy.run_path(str(file))
    with torch.inference_mode():
        return found["vision"](), found["text"](str(mini.shared("sd15-tiny")))


def batches() -> tuple[torch.Tensor, torch.Tensor]:
    """Four pictures, and the same with the second black, the third not finite and the fourth
    changed.
    """
    before = torch.rand(4, 48, 48, 3, generator=torch.Generator().manual_seed(2))
    after = before.clone()
    after[1], after[2], after[3] = 0, float("nan"), 1 - before[3]
    return before, after


def test_the_node_measures_pairs_and_counts_faulty_frames_apart(tiny):
    from speed_erase.nodes.speed_evaluate import SpeedEvaluate

    before, after = batches()
    labels = "a painting by Van Gogh\na painting"
    given = {"prompts": "a harbour", "labels": labels, "clip_vision": tiny[0], "clip": tiny[1]}
    words, facts = run(SpeedEvaluate, before=before, after=after, **given)
    found = json.loads(facts)
    assert found["frames_after"] == ["fine", "black", "not finite", "fine"]
    assert "(black, not finite)" in words
    drift = found["measures"]["drift"]
    assert drift["count"] == 2 and drift["value"] > 0 and "clip_score_before" in found["measures"]
    assert set(found["labels"]) == set(labels.splitlines())
    assert (
        np.asarray(found["features"]["before"]).shape
        == (4, 768)
        == np.asarray(found["features"]["after"]).shape
    )
    assert np.allclose(found["features"]["before"][0], found["features"]["after"][0])
    alone = json.loads(run(SpeedEvaluate, before=before, after=after, prompts="", labels="")[1])
    assert alone["measures"] == {} and alone["frames_after"] == found["frames_after"]


def test_the_node_refuses_what_cannot_be_compared(tiny):
    from speed_erase.nodes.host.sampling import text_features
    from speed_erase.nodes.speed_evaluate import SpeedEvaluate

    before, after = batches()
    with pytest.raises(InputError) as refused:
        run(SpeedEvaluate, before=before, after=after[:3])
    assert refused.value.data == {"before": 4, "after": 3}
    with pytest.raises(InputError) as refused:
        run(SpeedEvaluate, before=before, after=after, prompts="one\ntwo")
    assert refused.value.data == {"prompts": 2, "images": 4}
    weight = tiny[1].cond_stage_model.clip_l.transformer.text_projection.weight
    with torch.inference_mode():
        kept = weight.clone()
        for value in (0.0, float("nan")):
            weight.fill_(value)
            with pytest.raises(InputError):
                text_features(tiny[1], ["a harbour"])
        weight.copy_(kept)
