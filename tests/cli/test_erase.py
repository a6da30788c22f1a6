"""The whole path on runnable mini models: what is written, what is left alone, and what the files
say of themselves.
"""

from __future__ import annotations

import json
from pathlib import Path

import mini
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.lora import read_lora
from speed_erase.speed_ops.models.architecture import LayerKey
from speed_erase.speed_ops.models.detect import detect, layers, second_layer
from speed_erase.speed_ops.provenance import read_provenance

pytestmark = pytest.mark.usefixtures("own_cache")

FAMILIES = ("sd1", "sd2", "sdxl")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        mini.write_model(folder / f"{family}.safetensors", family)
    return folder


def arguments(model: Path, *flags: str) -> list[str]:
    return ["erase", str(model), "--concepts", mini.CONCEPTS, *mini.QUICK, *flags]


def erase(model: Path, out: Path, *flags: str) -> int:
    return main(arguments(model, "--out", str(out), "--quiet", *flags))


def verify(file: Path, base: Path) -> int:
    return main(["verify", str(file), "--base", str(base), "--quiet"])


def apply(recipe: Path, model: Path, out: Path) -> int:
    return main(["apply", str(recipe), str(model), "--out", str(out), "--quiet"])


def machine(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


def edited_layers(path: Path) -> list[LayerKey]:
    shapes = Checkpoint.open(path).shapes
    family = detect(shapes)
    pooled = second_layer(family, shapes)
    return [*layers(family, shapes, "V"), *([pooled] if pooled else [])]


def edited_keys(path: Path) -> dict[str, str]:
    return {layer.canonical: layer.file_key for layer in edited_layers(path)}


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_is_written_and_nothing_else_changes(
    models: Path, tmp_path: Path, family: str
) -> None:
    base = models / f"{family}.safetensors"
    assert erase(base, tmp_path) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    ends = ("erased.safetensors", "eraser-lora.safetensors", "recipe.json", "report.html")
    assert names == [f"{family}-{end}" for end in ("README.md", *ends)]
    before, after = load_file(base), load_file(tmp_path / f"{family}-erased.safetensors")
    keys = edited_keys(base)
    assert before.keys() == after.keys()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed == set(keys.values())
    assert all(before[key].dtype == after[key].dtype for key in before)
    lora = read_lora(tmp_path / f"{family}-eraser-lora.safetensors", edited_layers(base))
    assert lora.edits.keys() == keys.keys() and not lora.unmatched
    for key, edit in lora.edits.items():
        baked = after[keys[key]].double() - before[keys[key]].double()
        assert (baked - edit.delta()).norm() < 0.02 * baked.norm()


@pytest.mark.parametrize("family", FAMILIES)
def test_files_verify(
    models: Path, tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = models / f"{family}.safetensors"
    assert erase(base, tmp_path, "--save", "checkpoint,lora") == 0
    for name in ("erased", "eraser-lora"):
        file = tmp_path / f"{family}-{name}.safetensors"
        assert main(["verify", str(file), "--base", str(base), "--json"]) == 0
        assert machine(capsys)["verified"] is True


def test_header_records_what_was_done(models: Path, tmp_path: Path) -> None:
    assert erase(models / "sd1.safetensors", tmp_path) == 0
    for name in ("sd1-erased.safetensors", "sd1-eraser-lora.safetensors"):
        with safe_open(tmp_path / name, "pt") as file:
            provenance = read_provenance(file.metadata())
        assert provenance and provenance.recipe
        assert provenance.recipe.concepts[0].target == "Van Gogh"
        assert provenance.recipe.concepts[0].aliases == ("Vincent van Gogh",)
        assert len(provenance.base_hash) == len(provenance.encoder_hash) == 64
        assert provenance.certificate["concepts"][0]["verdict"] in ("erased", "weakened", "stands")


def test_second_run_encodes_nothing(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["erase", str(models / "sd1.safetensors"), "--concepts", "Monet -> art", *mini.QUICK]
    command += ["--save", "checkpoint,lora,recipe", "--json"]
    assert main([*command, "--out", str(tmp_path / "a")]) == 0
    assert machine(capsys)["encoded"] > 0
    assert main([*command, "--out", str(tmp_path / "b")]) == 0
    again = machine(capsys)
    assert again["encoded"] == 0 and again["reused"] > 0
    # The same files from the cache, and from another process without it; a processor's libraries
    # may round otherwise from run to run, so the tensors are held to the precision they are stored
    # in.
    assert mini.run(*command, "--no-cache", "--out", tmp_path / "c").returncode == 0
    files = ["sd1-erased.safetensors", "sd1-eraser-lora.safetensors", "sd1-recipe.json"]
    assert sorted(file.name for file in (tmp_path / "c").iterdir()) == files
    assert len({(tmp_path / name / "sd1-recipe.json").read_bytes() for name in "abc"}) == 1
    for file in files[:2]:
        first, *repeated = (load_file(tmp_path / name / file) for name in "abc")
        for again in repeated:
            assert list(again) == list(first)
            assert all(
                torch.allclose(again[key], first[key], rtol=2e-3, atol=1e-4) for key in first
            ), file


def test_recipe_reproduces_the_edit(models: Path, tmp_path: Path) -> None:
    base = models / "sd1.safetensors"
    assert erase(base, tmp_path / "a", "--strength", "0.8", "--seed", "3", "--held-out", "0.2") == 0
    for number, recipe in enumerate(
        ("sd1-recipe.json", "sd1-erased.safetensors", "sd1-eraser-lora.safetensors")
    ):
        out = tmp_path / f"b{number}"
        assert apply(tmp_path / "a" / recipe, base, out) == 0
        ours, theirs = (
            load_file(folder / "sd1-erased.safetensors") for folder in (tmp_path / "a", out)
        )
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
        assert (tmp_path / "a" / "sd1-recipe.json").read_text() == (
            out / "sd1-recipe.json"
        ).read_text()


def test_recipe_carries_over_to_another_model(models: Path, tmp_path: Path) -> None:
    assert erase(models / "sd1.safetensors", tmp_path / "a", "--save", "recipe") == 0
    model = models / "sd2.safetensors"
    assert apply(tmp_path / "a" / "sd1-recipe.json", model, tmp_path / "b") == 0
    assert verify(tmp_path / "b" / "sd2-erased.safetensors", model) == 0


def test_half_strength_is_certified_as_such(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = models / "sd1.safetensors"
    command = arguments(base, "--json", "--save", "checkpoint")
    left = []
    for strength in ("1", "0.5"):
        out = tmp_path / strength
        assert main([*command, "--out", str(out), "--strength", strength]) == 0
        left.append(machine(capsys)["certificate"]["concepts"][0]["solved_median"])
        assert verify(out / "sd1-erased.safetensors", base) == 0
    assert left[1] > left[0] + 0.2


def test_diffusers_folder(tmp_path: Path) -> None:
    before = mini.write_folder(tmp_path / "model")
    assert erase(tmp_path / "model", tmp_path / "out") == 0
    after = Checkpoint.open(tmp_path / "out" / "model-erased")
    changed = {key for key in before if not torch.equal(before[key], after.read(key))}
    assert changed == {key for key in before if key.endswith("attn2.to_v.weight")}
    assert verify(tmp_path / "out" / "model-erased", tmp_path / "model") == 0


def test_folder_and_single_file_give_the_same_edit(models: Path, tmp_path: Path) -> None:
    mini.write_folder(tmp_path / "model")
    assert erase(tmp_path / "model", tmp_path / "a", "--save", "lora") == 0
    assert (
        erase(models / "sd1.safetensors", tmp_path / "b", "--save", "lora", "--name", "model") == 0
    )
    first, second = (load_file(tmp_path / name / "model-eraser-lora.safetensors") for name in "ab")
    assert first.keys() == second.keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtype_stays(tmp_path: Path, dtype: torch.dtype) -> None:
    mini.write_model(tmp_path / "m.safetensors", dtype=dtype)
    assert erase(tmp_path / "m.safetensors", tmp_path / "out", "--save", "checkpoint") == 0
    after = load_file(tmp_path / "out" / "m-erased.safetensors")
    assert all(
        after[key].dtype == dtype for key in edited_keys(tmp_path / "m.safetensors").values()
    )
    assert verify(tmp_path / "out" / "m-erased.safetensors", tmp_path / "m.safetensors") == 0


def test_eight_bits_get_a_lora(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = mini.write_model(tmp_path / "m.safetensors")
    small = {
        k: v.to(torch.float8_e4m3fn) if "attn2" in k and v.ndim == 2 else v
        for k, v in content.items()
    }
    save_file(small, tmp_path / "fp8.safetensors")
    assert main(arguments(tmp_path / "fp8.safetensors", "--out", str(tmp_path / "out"))) == 0
    assert "LoRA" in capsys.readouterr().err
    names = {path.name for path in (tmp_path / "out").iterdir()}
    ends = ("eraser-lora.safetensors", "recipe.json", "README.md", "report.html")
    assert names == {f"fp8-{end}" for end in ends}


def test_averaged_copy_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = mini.write_model(tmp_path / "m.safetensors")
    content["model_ema.diffusion_modelinput_blocks11transformer_blocks0attn2to_vweight"] = (
        torch.ones(8, 768)
    )
    save_file(content, tmp_path / "m.safetensors")
    command = arguments(tmp_path / "m.safetensors", "--save", "checkpoint")
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "second copy" in capsys.readouterr().err
    assert not any(
        key.startswith("model_ema.") for key in load_file(tmp_path / "out" / "m-erased.safetensors")
    )
    assert verify(tmp_path / "out" / "m-erased.safetensors", tmp_path / "m.safetensors") == 0


def test_contexts_are_used_by_default(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["erase", str(models / "sd1.safetensors"), "--concepts", mini.CONCEPTS]
    command += ["--retain", "artists", "--retain-limit", "12", "--effort", "fast"]
    assert main([*command, "--out", str(tmp_path), "--save", "recipe", "--json"]) == 0
    certificate = machine(capsys)["certificate"]
    assert certificate["settings"]["preset_name"] == "auto"
    assert certificate["concepts"][0]["verdict"] != "unproven"
    assert {group["where"] for group in certificate["drift"]} >= {"bare", "context"}
