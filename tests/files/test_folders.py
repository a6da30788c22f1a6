"""Diffusers folders: copied whole, edited only where asked, with no second copy of the unedited weights."""

from __future__ import annotations

import json
from pathlib import Path

import pico
import pytest
import torch
from safetensors import safe_open

from speed_erase.speed_ops.errors import FileError
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.rewrite import write_edited
from speed_erase.speed_ops.models.detect import detect


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("family", ["sd1", "sdxl", "sdxl-refiner"])
def test_folders_are_copied_with_only_the_unet_edited(tmp_path: Path, family: str, shards: int) -> None:
    original = pico.write_folder(tmp_path / "model", family, shards=shards)
    for extra in (
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "unet/diffusion_pytorch_model.bin",
        "v1.safetensors",
    ):
        (tmp_path / "model" / extra).write_bytes(b"knows everything")
    (tmp_path / "model" / ".cache").mkdir()
    (tmp_path / "model" / ".cache" / "blob").write_bytes(b"knows everything")
    source = Checkpoint.open(tmp_path / "model")
    assert source.is_folder and detect(source.shapes).name == family
    new = pico.random_edits(source.shapes)
    done = write_edited(source, tmp_path / "clean", new, {"speed.note": "x"})
    copy = Checkpoint.open(tmp_path / "clean")
    assert {key: value.shape for key, value in original.items() if not key.startswith("vae/")} == copy.shapes
    for key in copy.shapes:
        assert torch.equal(copy.read(key), new[key].half() if key in new else original[key])
    assert sorted(map(str, done.left_out)) == [
        "unet/diffusion_pytorch_model.bin",
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "v1.safetensors",
    ]
    files = {file.relative_to(tmp_path / "clean") for file in (tmp_path / "clean").rglob("*") if file.is_file()}
    before = {file.relative_to(tmp_path / "model") for file in (tmp_path / "model").rglob("*") if file.is_file()}
    assert files == before - set(done.left_out) - {Path(".cache/blob")}
    for file in files:
        if not (file.parent.name == "unet" and file.suffix == ".safetensors"):
            assert (tmp_path / "clean" / file).read_bytes() == (tmp_path / "model" / file).read_bytes()
    with safe_open(next((tmp_path / "clean/unet").glob("*.safetensors")), framework="pt") as reader:
        assert reader.metadata()["speed.note"] == "x"


def test_folders_are_neither_nested_nor_replaced_by_accident(tmp_path: Path) -> None:
    pico.write_folder(tmp_path / "model")
    source = Checkpoint.open(tmp_path / "model")
    with pytest.raises(FileError, match="is inside the other"):
        write_edited(source, tmp_path / "model" / "clean", {})
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.png").write_bytes(b"dear")
    with pytest.raises(FileError, match="not a diffusers folder"):
        write_edited(source, tmp_path / "photos", {}, force=True)
    write_edited(source, tmp_path / "clean", {})
    with pytest.raises(FileError, match="already exists"):
        write_edited(source, tmp_path / "clean", {})
    write_edited(source, tmp_path / "clean", {}, force=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["clean", "model", "photos"]


def test_a_component_folder_is_a_model_too(tmp_path: Path) -> None:
    original = pico.write_folder(tmp_path / "model", "sd2")
    source = Checkpoint.open(tmp_path / "model" / "unet")
    assert detect(source.shapes).name == "sd2"
    assert all(torch.equal(source.read(key), original[f"unet/{key}"]) for key in source.shapes)
    with pytest.raises(FileError, match="holds no model"):
        Checkpoint.open(tmp_path / "model" / "tokenizer")


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"weight_map": {"a": "../../etc/passwd.safetensors"}}, "not a safetensors file beside it"),
        ({"weight_map": {"a": 5}}, "no `weight_map`"),
        ([], "no `weight_map`"),
        ({"weight_map": {"a": "missing.safetensors"}}, "There is no file"),
    ],
)
def test_a_lying_index_is_a_sentence(tmp_path: Path, index: object, reason: str) -> None:
    pico.write_folder(tmp_path / "model", shards=2)
    file = tmp_path / "model/unet/diffusion_pytorch_model.safetensors.index.json"
    file.write_text(json.dumps(index))
    with pytest.raises(FileError, match=reason):
        Checkpoint.open(tmp_path / "model")


def test_an_index_that_leaves_tensors_out_is_a_sentence(tmp_path: Path) -> None:
    pico.write_folder(tmp_path / "model", shards=2)
    file = tmp_path / "model/unet/diffusion_pytorch_model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"].popitem()
    file.write_text(json.dumps(index))
    with pytest.raises(FileError, match="disagree"):
        Checkpoint.open(tmp_path / "model")


def test_a_folder_of_pickles_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "diffusion_pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(FileError, match="pickle"):
        Checkpoint.open(tmp_path)
