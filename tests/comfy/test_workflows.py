"""The example graphs against a running ComfyUI: what they name is there, and they run."""

from __future__ import annotations

import json
from pathlib import Path

import mini_checkpoints as mini
import pytest
from comfy_server import ComfyServer
from templates import (
    ANIMA,
    DEMO,
    FLUX,
    FLUX2_VAE,
    KLEIN,
    QWEN3_06B,
    QWEN3_4B,
    QWEN_VAE,
    RECIPE,
    SD15,
    SDXL,
    UMT5,
    WAN_HIGH,
    WAN_LOW,
    build,
    written,
)
from ui_graph import NOTES, is_widget, specs, to_api, widget_values
from workflows import node

from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.recipe import recipe_of
from speed_erase.speed_ops.text.concept_list import parse_concepts

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

GRAPHS = sorted((Path(__file__).resolve().parents[2] / "example_workflows").glob("*.json"))
MODELS = {SDXL: "sdxl", SD15: "sd15", DEMO: "sd15", FLUX: "sd15"}
APART = {
    "diffusion_models": (ANIMA, KLEIN, WAN_HIGH, WAN_LOW),
    "text_encoders": (QWEN3_06B, QWEN3_4B, UMT5),
    "vae": (QWEN_VAE, FLUX2_VAE),
}
NOT_RUN = tuple(f"Erase from {name}" for name in ("Flux", "Flux.2 Klein", "Anima", "Wan 2.2"))
"""A shrunken model of these has no text encoders that a loader would take: its nodes and inputs are
looked at, and any file will do for the names in its loaders."""
each_graph = pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def server(comfyui, tmp_path_factory):
    running = ComfyServer(comfyui, tmp_path_factory.mktemp("workflows"))
    for name, family in MODELS.items():
        running.add_checkpoint(mini.shared(family), name)
    for folder, names in APART.items():
        for name in names:
            running.add_model(mini.shared("sd15"), folder, name)
    recipe = running.folder / RECIPE
    recipe.parent.mkdir(parents=True)
    recipe_of(
        Job.of(parse_concepts("Van Gogh -> art", "style"), None, EraseSettings.preset("few"))
    ).write(recipe)
    try:
        yield running.start()
    finally:
        running.stop()


@each_graph
def test_it_is_what_its_description_makes(server, path):
    """After a change of the nodes: `python tests/support/templates.py <address of a ComfyUI>`."""
    info = server.get("/object_info")
    for ends in ("SaveImage", "PreviewImage", "PreviewAny"):
        info[ends] |= {"output": [], "output_name": []}  # newer versions pass their input on
    assert path.read_text(encoding="utf-8") == written(build(path.stem, info))


@each_graph
def test_every_node_and_input_is_the_servers(server, path):
    info = server.get("/object_info")
    for saved in json.loads(path.read_text())["nodes"]:
        if saved["type"] in NOTES:
            continue
        inputs = dict(specs(info[saved["type"]]))
        assert {slot["name"] for slot in saved["inputs"]} <= set(inputs), saved["type"]
        outputs = [slot["type"] for slot in saved["outputs"]]
        # Newer versions give stock nodes more outputs.
        assert outputs == info[saved["type"]]["output"][: len(outputs)], saved["type"]
        for name, value in widget_values(saved, info[saved["type"]]):
            kind, options = (*inputs[name], {})[:2]
            choices = kind if isinstance(kind, list) else options.get("options")
            if choices is not None:
                assert value in choices, f"{saved['type']}.{name}"
            elif kind in ("INT", "FLOAT"):
                assert options.get("min", value) <= value <= options.get("max", value), (
                    f"{saved['type']}.{name}"
                )
            else:
                assert isinstance(value, {"STRING": str, "BOOLEAN": bool}[kind]), (
                    f"{saved['type']}.{name}"
                )
        wired = {slot["name"] for slot in saved["inputs"] if slot.get("link") is not None}
        needed = {
            name
            for name in info[saved["type"]]["input"].get("required", {})
            if not is_widget(inputs[name])
        }
        assert needed <= wired, f"{saved['type']} lacks {needed - wired}"


@pytest.mark.parametrize(
    "path", [path for path in GRAPHS if path.stem not in NOT_RUN], ids=lambda path: path.stem
)
def test_it_runs(server, path):
    """As it stands, but for small pictures of one step, names without prompts, a checkpoint with
    shrunken encoders and a short retain set."""
    flow = to_api(json.loads(path.read_text()), server.get("/object_info"))
    retain = {
        "builtin": "for type: style",
        "text": "",
        "file": "none",
        "column": "",
        "kind": "same as concepts",
    }
    flow["99"] = node("RetainSetLoader", **retain, limit=20)
    for number, step in flow.items():
        inputs = step["inputs"]
        if step["class_type"] == "CheckpointLoaderSimple":
            flow[number] = node("TinyCheckpoint", name=inputs["ckpt_name"])
        elif step["class_type"] == "RetainSetLoader":
            inputs["limit"] = 20
        elif step["class_type"] == "SpeedErase":
            inputs.setdefault("retain", ["99", 0])
        elif step["class_type"] == "SpeedCompare":
            inputs |= {"width": 64, "height": 64, "steps": 1, "pairs": 1}
        if "preset" in inputs:
            inputs["preset"] = "few"
    out = server.run(flow, 600)
    kinds = {step["class_type"]: number for number, step in flow.items()}
    erasers = [
        number
        for number, step in flow.items()
        if step["class_type"] in ("SpeedErase", "SpeedApplyRecipe", "SpeedNeverDraw")
    ]
    assert erasers or "SpeedInspect" in kinds
    assert all(out[number]["speed"][0]["concepts"] for number in erasers)
    if "SpeedCompare" in kinds:
        rows = out[kinds["SpeedCompare"]]["speed"][0]["rows"]
        assert len(rows) >= 3 and all(row["pairs"][0]["before"]["filename"] for row in rows)
    if "SaveErasedModel" in kinds:
        lines = out[kinds["SaveErasedModel"]]["text"][0].splitlines()
        saved = [line.split(":")[0] for line in lines]
        assert saved == ["Recipe", "LoRA", "Checkpoint", "Model card"]
        assert all(Path(line.split(": ")[1].split(" (")[0]).is_file() for line in lines)
