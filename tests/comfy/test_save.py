"""Saving and loading again with ComfyUI's own loaders: LoRA == patch == baked checkpoint, as far as
the type holds.
"""

from __future__ import annotations

import json
import os

import mini_checkpoints as mini
import pytest
import torch
from graph import concepts, erased, run, value_outputs
from safetensors import safe_open
from safetensors.torch import load_file

from speed_erase.speed_ops.errors import FileError, InputError

pytestmark = pytest.mark.comfy


@pytest.fixture(autouse=True)
def own_folders(shared_embeddings, tmp_path):
    import folder_paths

    before = folder_paths.get_output_directory(), folder_paths.get_input_directory()
    (tmp_path / "output").mkdir()
    (tmp_path / "input").mkdir()
    folder_paths.set_output_directory(str(tmp_path / "output"))
    folder_paths.set_input_directory(str(tmp_path / "input"))
    yield tmp_path
    folder_paths.set_output_directory(before[0])
    folder_paths.set_input_directory(before[1])


CHOICE = {
    "filename_prefix": "speed/erased",
    "lora": True,
    "checkpoint": False,
    "diffusion_model": False,
    "recipe": True,
    "dtype": "same as source",
    "overwrite": False,
}


def save(erasure, **inputs) -> dict[str, str]:
    """File by what it is."""
    from speed_erase.nodes.save_erased_model import SaveErasedModel

    text = run(SaveErasedModel, erasure=erasure, **{**CHOICE, **inputs})[0]
    return {line.split(": ")[0]: line.split(": ")[1].split(" (")[0] for line in text.splitlines()}


def off_by(first: dict, second: dict, reference: dict) -> float:
    """Worst layer: difference of two models' outputs as a share of what the edit changes."""
    return float(
        max((first[k] - second[k]).norm() / (first[k] - reference[k]).norm() for k in first)
    )


@pytest.mark.parametrize("family", ["sd15", "sdxl", "sdxl-refiner"])
def test_lora_patch_and_checkpoint_are_one_model(comfyui, family):
    import comfy.sd
    import comfy.utils

    model, clip, vae = mini.load(mini.shared(family))
    patched, lora, erasure, _, _ = erased(model, clip)
    files = save(erasure, model=patched, clip=clip, vae=vae, checkpoint=True, diffusion_model=True)
    prompt = "a landscape by Van Gogh"
    original, expected = value_outputs(model, clip, prompt), value_outputs(patched, clip, prompt)
    stored = comfy.utils.load_torch_file(files["LoRA"])
    from_file = comfy.sd.load_lora_for_models(model, None, stored, 1.0, 0)[0]
    assert off_by(expected, value_outputs(from_file, clip, prompt), original) < 2e-3
    from_socket = comfy.sd.load_lora_for_models(model, None, lora, 1.0, 0)[0]
    assert off_by(expected, value_outputs(from_socket, clip, prompt), original) < 1e-5
    baked, its_clip, its_vae = mini.load(files["Checkpoint"])
    assert its_vae is not None
    assert off_by(expected, value_outputs(baked, its_clip, prompt), original) < 2e-2
    alone = comfy.sd.load_diffusion_model(files["Diffusion model"])
    assert off_by(expected, value_outputs(alone, clip, prompt), original) < 2e-2


def test_a_checkpoint_keeps_its_type_and_everything_but_the_edit(sd15):
    model, clip, vae = sd15
    patched, _, erasure, _, _ = erased(model, clip)
    files = save(erasure, model=patched, clip=clip, vae=vae, checkpoint=True, lora=False)
    edited = {f"model.{key}" for key in erasure.edits}
    saved = load_file(files["Checkpoint"])
    for key, before in load_file(mini.shared("sd15")).items():
        assert before.dtype == saved[key].dtype == torch.float16, key
        assert torch.equal(before, saved[key]) != (key in edited), key
    with safe_open(files["Checkpoint"], "pt") as new:
        facts = new.metadata()
    assert "speed.recipe" in facts and "speed.certificate" in facts
    assert facts["modelspec.architecture"] == "stable-diffusion-v1"
    wide = save(erasure, model=patched, diffusion_model=True, dtype="float32")["Diffusion model"]
    assert {value.dtype for value in load_file(wide).values()} == {torch.float32}


def test_a_float32_source_stays_float32(comfyui, tmp_path):
    path = mini.write(tmp_path / "wide.safetensors", "sd15-tiny", torch.float32)
    model, clip, _ = mini.load(path)
    patched, _, erasure, _, _ = erased(model, clip)
    file = save(erasure, model=patched, diffusion_model=True)["Diffusion model"]
    assert {value.dtype for value in load_file(file).values()} == {torch.float32}


def test_names_are_numbered_and_nothing_is_overwritten_unless_asked(sd15, own_folders):
    model, clip, _ = sd15
    erasure = erased(model, clip)[2]
    names = [os.path.basename(save(erasure)["LoRA"]) for _ in range(2)]
    assert names == ["erased_00001_.safetensors", "erased_00002_.safetensors"]
    same = [save(erasure, overwrite=True)["LoRA"] for _ in range(2)]
    assert same[0] == same[1] and same[0].endswith("loras/speed/erased.safetensors")
    left = [
        name for _, _, names in os.walk(own_folders / "output") for name in names if "tmp" in name
    ]
    assert left == []


@pytest.mark.parametrize("prefix", ["../x", "a/../../x", "/etc/x", "C:\\x", "", "a/"])
def test_nothing_leaves_the_output_folder(sd15, own_folders, prefix):
    from speed_erase.nodes.save_erased_model import SaveErasedModel

    erasure = erased(*sd15[:2])[2]
    assert isinstance(SaveErasedModel.validate_inputs(prefix), str)
    with pytest.raises(FileError):
        save(erasure, filename_prefix=prefix)
    assert os.listdir(own_folders) in (["output", "input"], ["input", "output"])


def test_missing_parts_are_asked_for_before_anything_is_written(sd15, own_folders):

    erasure = erased(*sd15[:2])[2]
    with pytest.raises(InputError):
        save(erasure, checkpoint=True)
    with pytest.raises(InputError):
        save(erasure, lora=False, recipe=False)
    assert os.listdir(own_folders / "output") == []


def test_an_interrupted_save_leaves_no_file(sd15, own_folders, monkeypatch):
    """Stop is pressed when half of the file has been written."""
    import comfy.model_management as host

    from speed_erase.nodes.host.progress import HostProgress

    def written() -> list[str]:
        return [name for _, _, names in os.walk(own_folders / "output") for name in names]

    snapshots: list[list[str]] = []
    report = HostProgress.__call__

    def press(self, stage, done, total):
        if stage == "write" and done > 0.75 * total and not snapshots:
            snapshots.append(written())
            host.interrupt_current_processing(True)
        report(self, stage, done, total)

    model, clip, vae = sd15
    patched, _, erasure, _, _ = erased(model, clip)
    monkeypatch.setattr(HostProgress, "__call__", press)
    with pytest.raises(host.InterruptProcessingException):
        save(erasure, model=patched, clip=clip, vae=vae, lora=False, recipe=False, checkpoint=True)
    assert snapshots[0] and not any(name.endswith(".safetensors") for name in snapshots[0]), (
        "the file was being written, under another name"
    )
    assert written() == []
    monkeypatch.undo()
    save(erasure, model=patched, clip=clip, vae=vae, lora=False, recipe=False, checkpoint=True)
    suffixes = sorted(os.path.splitext(name)[1] for name in written())
    assert suffixes == [".md", ".safetensors"], "left alone it is written, with its model card"


def test_a_lora_is_certified_at_its_own_strength_and_a_checkpoint_as_applied(sd15):
    model, clip, vae = sd15
    patched, _, erasure, _, _ = erased(model, clip, strength=0.5)
    files = save(erasure, model=patched, clip=clip, vae=vae, checkpoint=True)
    left = {}
    for label in ("LoRA", "Checkpoint"):
        with safe_open(files[label], "pt") as file:
            left[label] = json.loads(file.metadata()["speed.certificate"])["concepts"][0][
                "solved_median"
            ]
    assert left["LoRA"] < 0.05 < 0.4 < left["Checkpoint"]


def test_a_recipe_solves_the_same_erasure_again(sd15):
    from speed_erase.nodes.speed_apply_recipe import SpeedApplyRecipe

    model, clip, _ = sd15
    _, _, erasure, _, _ = erased(model, clip)
    path = save(erasure, lora=False)["Recipe"]
    name = "output/recipes/speed/" + os.path.basename(path)
    assert SpeedApplyRecipe.validate_inputs(recipe=name) is True
    assert "no recipe" in SpeedApplyRecipe.validate_inputs(recipe="elsewhere/x.json")
    again = run(SpeedApplyRecipe, model=model, clip=clip, recipe=name, strength=1.0)[2]
    for key, edit in erasure.edits.items():
        assert torch.equal(again.edits[key].delta(), edit.delta())
    sd21, its_clip, _ = mini.load(mini.shared("sd21"))
    moved = run(SpeedApplyRecipe, model=sd21, clip=its_clip, recipe=name, strength=1.0)
    assert moved[2].architecture.name == "sd2" and "Van Gogh" in moved[3]


def test_a_saved_lora_is_applied_and_checked_against_the_model(sd15, own_folders):
    import folder_paths

    from speed_erase.nodes.speed_apply_erasure import SpeedApplyErasure

    model, clip, _ = sd15
    patched, _, erasure, _, _ = erased(model, clip)
    file = save(erasure)["LoRA"]
    folder_paths.add_model_folder_path("loras", os.path.dirname(file))
    applied, read = run(SpeedApplyErasure, model=model, lora=os.path.basename(file), strength=1.0)
    prompt = "a landscape by Van Gogh"
    original, expected = value_outputs(model, clip, prompt), value_outputs(patched, clip, prompt)
    assert off_by(expected, value_outputs(applied, clip, prompt), original) < 2e-3
    assert read.recipe.concepts[0].target == "Van Gogh"
    sd21 = mini.load(mini.shared("sd21"))[0]
    with pytest.raises(InputError, match=r"Stable Diffusion 1\.x"):
        run(SpeedApplyErasure, model=sd21, erasure=erasure)
    with pytest.raises(InputError):
        run(SpeedApplyErasure, model=model)


def test_inspect_reads_our_headers_and_says_when_there_are_none(sd15, own_folders):
    import folder_paths

    from speed_erase.nodes.speed_inspect import SpeedInspect

    erasure = erased(*sd15[:2])[2]
    file = save(erasure)["LoRA"]
    folder_paths.add_model_folder_path("loras", os.path.dirname(file))
    text = run(SpeedInspect, file=f"loras/{os.path.basename(file)}")[0]
    assert "Van Gogh -> art" in text
    plain = mini.shared("sd15")
    folder_paths.add_model_folder_path("checkpoints", str(plain.parent))
    (text,) = run(SpeedInspect, file=f"checkpoints/{plain.name}")
    assert plain.name in text and len(text.splitlines()) == 2


def test_report_forecast_and_leak_probe(sd15):
    from graph import retained

    from speed_erase.nodes.speed_forecast import SpeedForecast
    from speed_erase.nodes.speed_leak_probe import SpeedLeakProbe
    from speed_erase.nodes.speed_name_probe import SpeedNameProbe
    from speed_erase.nodes.speed_report import SpeedReport

    model, clip, _ = sd15
    _, _, erasure, report, _ = erased(model, clip)
    text, facts, chart = run(SpeedReport, erasure=erasure)
    assert (
        text == report
        and json.loads(facts)["concepts"][0]["name"] == "Van Gogh"
        and chart.shape[-1] == 3
    )
    listed, picture = run(
        SpeedForecast,
        model=model,
        clip=clip,
        concepts=concepts("Van Gogh"),
        shown=5,
        retain=retained(),
    )
    known, chart = run(
        SpeedNameProbe,
        model=model,
        clip=clip,
        name="Van Gogh",
        kind="style",
        templates=1,
        known=retained(),
    )
    assert "'Van Gogh'" in known and chart.shape[-1] == 3
    assert "Predicted drift of" in listed and len(listed.splitlines()) == 6 and picture.ndim == 4
    listing, leaking, closed = run(
        SpeedLeakProbe, model=model, clip=clip, erasure=erasure, templates=1
    )
    assert "name: 'Van Gogh'" in listing and "typo" in listing
    # Bare names were erased, so the name leaks inside a prompt: the loop closes with it.
    assert len(leaking) > 0 and closed[0].target == "Van Gogh"


def test_validation_names_the_line(own_folders):
    from speed_erase.nodes.concept_list import ConceptListNode
    from speed_erase.nodes.retain_set_loader import RetainSetLoader

    assert ConceptListNode.validate_inputs(
        text="Van Gogh\nMonet -> art -> x", kind="style", file="none"
    ).startswith("Line 2:")
    repeated = ConceptListNode.validate_inputs(text="Monet\nMonet", kind="style", file="none")
    assert repeated is True, "only a note at its line"
    nothing = {"text": "", "kind": "style", "file": "none"}
    assert isinstance(ConceptListNode.validate_inputs(**nothing | {"text": "# nothing"}), str)
    assert ConceptListNode.validate_inputs(**nothing, concepts=None) is True
    for file in ("gone.txt", "../../secret.txt"):
        assert file in ConceptListNode.validate_inputs(**nothing | {"file": file})
    gone = RetainSetLoader.validate_inputs(builtin="artists", text="", file="gone.csv")
    assert "gone.csv" in gone
    assert RetainSetLoader.validate_inputs(builtin="artists", text="", file="none") is True


def test_lists_come_from_the_input_folder_and_are_noticed_when_they_change(own_folders):
    from speed_erase.nodes.concept_list import ConceptListNode
    from speed_erase.nodes.retain_set_loader import RetainSetLoader

    file = own_folders / "input" / "names.csv"
    file.write_text("target,anchor,kind\nSnoopy,dog,character\n")
    assert "names.csv" in str(ConceptListNode.define_schema().inputs[2].as_dict()["options"])
    listed, text = run(ConceptListNode, text="Van Gogh", kind="style", file="names.csv")
    assert (
        text == "Van Gogh -> art || style\nSnoopy -> dog || character"
        and listed[1].kind == "character"
    )
    mark = ConceptListNode.fingerprint_inputs(text="x", kind="style", file="names.csv")
    file.write_text("target,anchor\nSnoopy,beagle dog\n")
    assert ConceptListNode.fingerprint_inputs(text="x", kind="style", file="names.csv") != mark
    (own_folders / "input" / "keep.json").write_text('["Ann", "Bob"]')
    retained_set, counts = run(
        RetainSetLoader, builtin="styles", text="Bob\nCy", file="keep.json", limit=0
    )
    assert counts.endswith("typed 2, keep.json 1") and len(retained_set) > 3
    joined = run(RetainSetLoader, builtin="none", text="Dora", retain=retained_set, limit=10)
    assert len(joined[0]) == 10
