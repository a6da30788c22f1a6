"""Against a running ComfyUI: what it lists, a graph from end to end, refusals, interruption,
caching.
"""

from __future__ import annotations

import time
from pathlib import Path

import mini_checkpoints as mini
import numpy as np
import pytest
from comfy_server import ComfyServer, ServerError, sentence
from graph import RETAINED
from PIL import Image
from safetensors.torch import load_file, save_file
from workflows import erasing, node, sampling, saving

from speed_erase.speed_ops.engine.settings import EraseSettings, priority_of

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

NODES = {
    "ConceptList": ["SPEED_CONCEPTS", "STRING"],
    "RetainSetLoader": ["SPEED_RETAIN", "STRING"],
    "SpeedErase": ["MODEL", "LORA_MODEL", "SPEED_ERASURE", "STRING", "IMAGE"],
    "SpeedSettings": ["SPEED_SETTINGS"],
    "SaveErasedModel": ["STRING"],
    "SpeedReport": ["STRING", "STRING", "IMAGE"],
    "SpeedForecast": ["STRING", "IMAGE"],
    "SpeedCompare": ["IMAGE", "IMAGE", "IMAGE"],
    "SpeedLeakProbe": ["STRING", "SPEED_CONCEPTS", "SPEED_CONCEPTS"],
    "SpeedNameProbe": ["STRING", "IMAGE"],
    "SpeedApplyErasure": ["MODEL", "SPEED_ERASURE"],
    "SpeedApplyRecipe": ["MODEL", "LORA_MODEL", "SPEED_ERASURE", "STRING", "IMAGE"],
    "SpeedInspect": ["STRING"],
    "SpeedEvaluate": ["STRING", "STRING"],
}


@pytest.fixture(scope="module")
def server(comfyui, tmp_path_factory):
    running = ComfyServer(comfyui, tmp_path_factory.mktemp("comfy"))
    running.add_checkpoint(mini.shared("sd15"), "tiny.safetensors")
    running.add_checkpoint(mini.shared("sd21"), "tiny21.safetensors")
    running.add_diffusion_model(mini.shared("pixart"), "pixart.safetensors")
    running.add_checkpoint(
        damaged(tmp_path_factory.mktemp("damaged") / "nan.safetensors"), "nan.safetensors"
    )
    try:
        yield running.start()
    finally:
        running.stop()


def damaged(path: Path) -> Path:
    """A checkpoint with one number that is none."""
    tensors = load_file(mini.shared("sd15-tiny"))
    next(value for key, value in tensors.items() if key.endswith("attn2.to_v.weight"))[0, 0] = (
        float("nan")
    )
    save_file(tensors, path)
    return path


def picture(server: ComfyServer, outputs: dict, number: str) -> np.ndarray:
    name = outputs[number]["images"][0]["filename"]
    return np.asarray(Image.open(server.folder / "output" / name)).astype(int)


def test_every_node_is_listed_with_its_sockets_and_help(server):
    info = server.get("/object_info")
    for name, outputs in NODES.items():
        assert info[name]["output"] == outputs, name
        assert info[name]["category"] == "SPEED" and info[name]["description"]
        for group in ("required", "optional"):
            for widget, spec in info[name]["input"].get(group, {}).items():
                assert spec[1].get("tooltip"), f"{name}.{widget} has no tooltip"
        page = Path(__file__).resolve().parents[2] / "web" / "docs" / f"{name}.md"
        assert page.is_file() and len(page.read_text()) > 200, f"{name} has no help page"
    optional = info["SpeedErase"]["input"]["optional"]
    assert set(optional) == {
        "retain",
        "settings",
        "priority",
        "effort",
    }, "expert settings stay out of the way"
    assert list(optional)[-2:] == [
        "priority",
        "effort",
    ], "what came later stands last, for saved workflows"
    default = optional["priority"][1]["default"]
    assert priority_of(default) == EraseSettings().drift_budget == 0.45 and default == "erase fully"
    assert info["SpeedSettings"]["input"]["required"]["held_out"][1]["default"] == -1.0
    assert "speed_erase" not in server.log.lower() or "could not load" not in server.log


def test_end_to_end_sample_save_and_load_with_stock_nodes(server):
    flow = erasing() | sampling(["4", 0], start=10) | sampling(["1", 0], start=20)
    flow |= saving(checkpoint=True) | {"6": saving(checkpoint=True)["6"]}
    flow["6"]["inputs"] |= {"model": ["4", 0], "clip": ["1", 1], "vae": ["1", 2]}
    loader = node("LoraModelLoader", model=["1", 0], lora=["4", 1], strength_model=1.0)
    if "bypass" in server.get("/object_info")["LoraModelLoader"]["input"]["required"]:
        loader["inputs"]["bypass"] = False
    flow |= {
        "30": loader,
        "31": node("SaveLoRA", lora=["4", 1], prefix="loras/stock"),
    } | sampling(["30", 0], start=40)
    out = server.run(flow)
    erased, original = picture(server, out, "15"), picture(server, out, "25")
    assert not np.array_equal(erased, original)
    assert "Van Gogh" in out["5"]["text"][0] and out["5"]["speed"][0]["chart"]["filename"]
    assert np.abs(picture(server, out, "45") - erased).max() <= 1, (
        "the LORA_MODEL socket is the same edit"
    )
    files = sorted(
        path.relative_to(server.folder / "output").as_posix()
        for path in server.folder.rglob("output/*/**/*.*")
    )
    assert (
        "loras/speed/erased_00001_.safetensors" in files
        and "checkpoints/speed/erased_00001_.safetensors" in files
    )
    again = {"1": node("TinyCheckpoint", name="tiny.safetensors")}
    again |= {
        "2": node(
            "LoraLoaderModelOnly",
            model=["1", 0],
            lora_name="speed/erased_00001_.safetensors",
            strength_model=1.0,
        )
    }
    again |= {
        "3": node(
            "LoraLoaderModelOnly",
            model=["1", 0],
            lora_name="stock_00001_.safetensors",
            strength_model=1.0,
        )
    }
    again |= sampling(["2", 0], start=10) | sampling(["3", 0], start=20)
    loaded = server.run(again)
    assert np.abs(picture(server, loaded, "15") - erased).max() <= 1, "LoRA from file == patch"
    assert np.abs(picture(server, loaded, "25") - erased).max() <= 1, "stock SaveLoRA == patch"
    baked = {"1": node("TinyCheckpoint", name="speed/erased_00001_.safetensors")} | sampling(
        ["1", 0], start=10
    )
    from_checkpoint = picture(server, server.run(baked), "15")
    assert np.abs(from_checkpoint - erased).max() <= 2 and not np.array_equal(
        from_checkpoint, original
    ), "checkpoint == patch"
    read = server.run(
        {"1": node("SpeedInspect", file="checkpoints/speed/erased_00001_.safetensors")}
    )
    assert "Van Gogh -> art" in read["1"]["text"][0]


def test_bypass_gives_the_original_back(server):
    flow = erasing() | sampling(["4", 0], start=10)
    plain = erasing() | sampling(["1", 0], start=10)  # what the frontend sends for a bypassed node
    first, second = (picture(server, server.run(graph), "15") for graph in (plain, flow))
    third = picture(
        server,
        server.run(
            plain
            | {
                "14": plain["14"] | {},
                "15": node("SaveImage", images=["14", 0], filename_prefix="again"),
            }
        ),
        "15",
    )
    assert np.array_equal(first, third) and not np.array_equal(first, second)
    zero = erasing(strength=0.0) | sampling(["4", 0], start=10)
    assert np.array_equal(picture(server, server.run(zero), "15"), first)


def test_strength_does_not_solve_again_and_a_changed_file_does(server):
    (server.folder / "input" / "names.txt").write_text("Gustave Moreau\n")
    flow = erasing("Odilon Redon")
    flow["2"]["inputs"]["file"] = "names.txt"
    server.run(flow)
    text = server.run(_with(flow, "4", strength=0.7))["5"]["text"][0]
    assert "SPEED reused the edit" in text
    assert server.ran(server.queue(_with(flow, "4", strength=0.7))) & {"1", "2", "3", "4"} == set()
    (server.folder / "input" / "names.txt").write_text("Fernand Khnopff\n")
    prompt = server.queue(_with(flow, "4", strength=0.7))
    assert {"2", "4"} <= server.ran(prompt) and "1" not in server.ran(prompt)
    assert "Fernand Khnopff" in server.wait(prompt)["outputs"]["5"]["text"][0]


@pytest.mark.parametrize(
    ("number", "widgets"),
    [
        ("2", {"text": "# nothing"}),
        ("2", {"text": "a -> b -> c"}),
        ("2", {"file": "gone.txt"}),
        ("3", {"file": "gone.csv"}),
        ("4", {"preset": "fwe"}),
        ("4", {"strength": float("nan")}),
        ("9", {"advanced": "threshold=5e9"}),
        ("9", {"advanced": "lam=nan"}),
        ("9", {"held_out": 0.9}),
    ],
)
def test_bad_widgets_are_refused_before_anything_runs(server, number, widgets):
    inputs = server.get("/object_info/SpeedSettings")["SpeedSettings"]["input"]["required"]
    untouched = {name: spec[1]["default"] for name, spec in inputs.items()}
    flow = _with(erasing() | {"9": node("SpeedSettings", **untouched)}, "4", settings=["9", 0])
    with pytest.raises(ServerError) as caught:
        server.queue(_with(flow, number, **widgets))
    errors = caught.value.details["node_errors"]
    assert list(errors) == [number]
    assert {error["type"] for error in errors[number]["errors"]} == {"custom_validation_failed"}


def test_bad_wires_give_their_sentence_and_the_server_stays_healthy(server):
    good = picture(server, server.run(erasing() | sampling(["4", 0], start=10)), "15")
    loaders = {
        "7": node("TinyCheckpoint", name="tiny21.safetensors"),
        "8": node("TinyDiffusionModel", name="pixart.safetensors"),
        "9": node("TinyCheckpoint", name="nan.safetensors"),
    }
    for changes, word in (
        ({"clip": ["7", 1]}, "CLIP"),
        ({"model": ["8", 0]}, "PixArt"),
        ({"model": ["9", 0]}, "NaN"),
    ):
        with pytest.raises(ServerError) as caught:
            server.run(_with(erasing() | loaders, "4", **changes))
        assert word in sentence(caught.value)
    flow = erasing() | sampling(["4", 0], start=10)
    flow["15"]["inputs"]["filename_prefix"] = "after"
    assert np.array_equal(picture(server, server.run(flow), "15"), good)


def test_interrupt_stops_within_a_second_and_leaves_nothing(server):
    names = "\n".join(f"Somebody Number {i} of Nowhere, painter and poet" for i in range(4000))
    prompt = server.queue(
        erasing("Interrupted Artist", retain=RETAINED + "\n" + names, preset="auto")
    )
    time.sleep(4)
    pressed = time.monotonic()
    server.post("/interrupt")
    entry = server.wait(prompt, 20)
    assert time.monotonic() - pressed < 1.5
    assert any(name == "execution_interrupted" for name, _ in entry["status"]["messages"])
    assert "Van Gogh" in server.run(erasing(seed=99))["5"]["text"][0]


def test_forecast_and_leak_probe_run_in_a_graph(server):
    wires = {"model": ["1", 0], "clip": ["1", 1]}
    widgets = {"preset": "few", "strength": 1.0, "seed": 0}
    flow = erasing() | {
        "6": node("SpeedForecast", **wires, concepts=["2", 0], shown=5, retain=["3", 0]),
        "7": node("SpeedLeakProbe", **wires, erasure=["4", 2], templates=1, description=""),
        "8": node("SpeedErase", **wires, concepts=["7", 2], retain=["3", 0], **widgets),
        "9": node("SpeedReport", erasure=["8", 2]),
    }
    out = server.run(flow)
    assert (
        "Predicted drift of" in out["6"]["text"][0]
        and "back what was erased" in out["7"]["text"][0]
    )
    assert "Van Gogh" in out["9"]["text"][0]


def _with(flow: dict, number: str, **inputs) -> dict:
    return flow | {number: {**flow[number], "inputs": {**flow[number]["inputs"], **inputs}}}
