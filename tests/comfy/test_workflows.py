"""The example graphs against a running ComfyUI: what they name is there, and they run."""

from __future__ import annotations

import json
from pathlib import Path

import mini_checkpoints as mini
import pytest
from comfy_server import ComfyServer
from ui_graph import is_widget, specs, to_api, widget_values
from workflows import node

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

GRAPHS = sorted((Path(__file__).resolve().parents[2] / "example_workflows").glob("*.json"))
MODELS = {"sd_xl_base_1.0.safetensors": "sdxl", "v1-5-pruned-emaonly-fp16.safetensors": "sd15"}
each_graph = pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def server(comfyui, tmp_path_factory):
    running = ComfyServer(comfyui, tmp_path_factory.mktemp("workflows"))
    for name, family in MODELS.items():
        running.add_checkpoint(mini.shared(family), name)
    try:
        yield running.start()
    finally:
        running.stop()


@each_graph
def test_every_node_and_input_is_the_servers(server, path):
    info = server.get("/object_info")
    for one in json.loads(path.read_text())["nodes"]:
        known = dict(specs(info[one["type"]]))
        assert {slot["name"] for slot in one["inputs"]} <= set(known), one["type"]
        assert [slot["type"] for slot in one["outputs"]] == info[one["type"]]["output"], one["type"]
        for name, value in widget_values(one, info[one["type"]]):
            kind, options = known[name][0], known[name][1]
            choices = kind if isinstance(kind, list) else options.get("options")
            if choices is not None:
                assert value in choices, f"{one['type']}.{name}"
            elif kind in ("INT", "FLOAT"):
                assert options.get("min", value) <= value <= options.get("max", value), f"{one['type']}.{name}"
            else:
                assert isinstance(value, {"STRING": str, "BOOLEAN": bool}[kind]), f"{one['type']}.{name}"
        wired = {slot["name"] for slot in one["inputs"] if slot.get("link") is not None}
        needed = {name for name in info[one["type"]]["input"].get("required", {}) if not is_widget(known[name])}
        assert needed <= wired, f"{one['type']} lacks {needed - wired}"


@each_graph
def test_it_runs(server, path):
    """As it stands, but for small pictures of one step, a checkpoint with shrunken encoders and a short retain set."""
    flow = to_api(json.loads(path.read_text()), server.get("/object_info"))
    retain = {"builtin": "for kind: style", "text": "", "file": "none", "column": "", "kind": "as the concepts"}
    flow["99"] = node("RetainSetLoader", **retain, limit=20)
    for number, one in flow.items():
        inputs = one["inputs"]
        if one["class_type"] == "CheckpointLoaderSimple":
            flow[number] = node("TinyCheckpoint", name=inputs["ckpt_name"])
        elif one["class_type"] == "EmptyLatentImage":
            inputs |= {"width": 64, "height": 64}
        elif one["class_type"] == "KSampler":
            inputs["steps"] = 1
        elif one["class_type"] == "RetainSetLoader":
            inputs["limit"] = 20
        elif one["class_type"] == "SpeedErase":
            inputs.setdefault("retain", ["99", 0])
    out = server.run(flow, 600)
    kinds = {one["class_type"]: number for number, one in flow.items()}
    assert out[kinds["SpeedReport"]]["text"][0].strip() and out[kinds["SpeedReport"]]["images"]
    assert len([number for number in out if flow[number]["class_type"] == "PreviewImage"]) == 2
    if "SaveErasedModel" in kinds:
        lines = out[kinds["SaveErasedModel"]]["text"][0].splitlines()
        assert [line.split(":")[0] for line in lines] == ["Recipe", "LoRA", "Checkpoint"]
        assert all(Path(line.split(": ")[1].split(" (")[0]).is_file() for line in lines)
