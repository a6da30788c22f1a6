"""Diffusers folders: copied whole, edited only where asked, with no second copy of the unedited
weights.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pico
import pytest
import torch
from safetensors import safe_open

from speed_erase.speed_ops.checkpoints.folder_differences import unexpected_files
from speed_erase.speed_ops.errors import ExistsError, FileError
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.rewrite import write_edited
from speed_erase.speed_ops.models.detect import detect


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("family", ["sd1", "sdxl", "sdxl-refiner"])
def test_folders_are_copied_with_only_the_unet_edited(
    tmp_path: Path, family: str, shards: int
) -> None:
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
    _, left_out = write_edited(source, tmp_path / "clean", new, {"speed.note": "x"})
    copy = Checkpoint.open(tmp_path / "clean")
    assert {
        key: value.shape for key, value in original.items() if not key.startswith("vae/")
    } == copy.shapes
    for key in copy.shapes:
        assert torch.equal(copy.read(key), new[key].half() if key in new else original[key])
    assert sorted(map(str, left_out)) == [
        "unet/diffusion_pytorch_model.bin",
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "v1.safetensors",
    ]
    files = {
        file.relative_to(tmp_path / "clean")
        for file in (tmp_path / "clean").rglob("*")
        if file.is_file()
    }
    before = {
        file.relative_to(tmp_path / "model")
        for file in (tmp_path / "model").rglob("*")
        if file.is_file()
    }
    assert files == before - set(left_out) - {Path(".cache/blob")}
    for file in files:
        if not (file.parent.name == "unet" and file.suffix == ".safetensors"):
            assert (tmp_path / "clean" / file).read_bytes() == (
                tmp_path / "model" / file
            ).read_bytes()
    with safe_open(next((tmp_path / "clean/unet").glob("*.safetensors")), framework="pt") as reader:
        assert reader.metadata()["speed.note"] == "x"


def test_folders_are_neither_nested_nor_replaced_by_accident(tmp_path: Path) -> None:
    pico.write_folder(tmp_path / "model")
    source = Checkpoint.open(tmp_path / "model")
    with pytest.raises(FileError, match="inside"):
        write_edited(source, tmp_path / "model" / "clean", {})
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.png").write_bytes(b"dear")
    with pytest.raises(FileError, match="not a diffusers folder"):
        write_edited(source, tmp_path / "photos", {}, force=True)
    write_edited(source, tmp_path / "clean", {})
    with pytest.raises(ExistsError):
        write_edited(source, tmp_path / "clean", {})
    write_edited(source, tmp_path / "clean", {}, force=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["clean", "model", "photos"]


def test_a_component_folder_is_a_model_too(tmp_path: Path) -> None:
    original = pico.write_folder(tmp_path / "model", "sd2")
    source = Checkpoint.open(tmp_path / "model" / "unet")
    assert detect(source.shapes).name == "sd2"
    assert all(torch.equal(source.read(key), original[f"unet/{key}"]) for key in source.shapes)
    with pytest.raises(FileError, match="no model"):
        Checkpoint.open(tmp_path / "model" / "tokenizer")


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (
            {"weight_map": {"a": "../../etc/passwd.safetensors"}},
            "the name of a file inside",
        ),
        ({"weight_map": {"a": "notes.txt"}}, "next to it"),
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


def test_only_what_belongs_to_the_model_is_copied(tmp_path: Path) -> None:
    """A second U-Net, wherever it lies, would still know everything."""
    pico.write_folder(tmp_path / "model")
    unet = (tmp_path / "model/unet/diffusion_pytorch_model.safetensors").read_bytes()
    for extra in (
        "unet_2/diffusion_pytorch_model.safetensors",
        "unet/old/diffusion_pytorch_model.safetensors",
        "backup/unet/diffusion_pytorch_model.safetensors",
        "scheduler/unet.safetensors",
        "text_encoder/unet.safetensors",
        "vae/unet.safetensors",
        "tokenizer/unet.npz",
    ):
        (tmp_path / "model" / extra).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / extra).write_bytes(unet)
    (tmp_path / "model/README.md").write_text("about")
    source = Checkpoint.open(tmp_path / "model")
    write_edited(source, tmp_path / "clean", pico.random_edits(source.shapes))
    copies = [
        path
        for path in (tmp_path / "clean").rglob("*")
        if path.is_file() and path.read_bytes() == unet
    ]
    assert copies == [] and (tmp_path / "clean/README.md").read_text() == "about"
    assert unexpected_files(source, Checkpoint.open(tmp_path / "clean")) == []


@pico.posix
@pytest.mark.parametrize("link", ["unet/notes.json", "notes.json", "vae", "scheduler/deep.json"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, link: str) -> None:
    pico.write_folder(tmp_path / "model")
    private = tmp_path / "private"
    private.mkdir()
    (private / "diary.json").write_text("dear")
    place = tmp_path / "model" / link
    if place.is_dir():
        shutil.rmtree(place)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(private if link == "vae" else private / "diary.json")
    with pytest.raises(FileError, match="is a link to"):
        write_edited(Checkpoint.open(tmp_path / "model"), tmp_path / "clean", {})
    assert not (tmp_path / "clean").exists()


@pico.posix
def test_an_unedited_component_cannot_pose_as_another(tmp_path: Path) -> None:
    pico.write_folder(tmp_path / "model")
    shutil.rmtree(tmp_path / "model" / "vae", ignore_errors=True)
    (tmp_path / "model" / "vae").symlink_to(tmp_path / "model" / "unet")
    with pytest.raises(FileError, match="this component"):
        write_edited(Checkpoint.open(tmp_path / "model"), tmp_path / "clean", {})


@pico.posix
def test_circles_of_links_end(tmp_path: Path) -> None:
    pico.write_folder(tmp_path / "model")
    for place in ("loop", "unet/loop", "scheduler"):
        shutil.rmtree(tmp_path / "model" / place, ignore_errors=True)
        (tmp_path / "model" / place).symlink_to(tmp_path / "model")
    # the scheduler leads to another place
    with pytest.raises(FileError, match="this component"):
        write_edited(Checkpoint.open(tmp_path / "model"), tmp_path / "clean", {})
    (tmp_path / "model" / "scheduler").unlink()
    write_edited(Checkpoint.open(tmp_path / "model"), tmp_path / "clean", {})
    assert not list((tmp_path / "clean").rglob("loop"))


@pico.posix
def test_links_into_the_blobs_of_a_hub_cache_are_fine(tmp_path: Path) -> None:
    original = pico.write_folder(tmp_path / "download")
    hub = tmp_path / "models--someone--something"
    snapshot = hub / "snapshots" / "0123abcd"
    (hub / "blobs").mkdir(parents=True)
    for number, file in enumerate(
        sorted(path for path in (tmp_path / "download").rglob("*") if path.is_file())
    ):
        link = snapshot / file.relative_to(tmp_path / "download")
        link.parent.mkdir(parents=True, exist_ok=True)
        file.rename(hub / "blobs" / f"{number:064x}")
        link.symlink_to(os.path.relpath(hub / "blobs" / f"{number:064x}", link.parent))
    write_edited(Checkpoint.open(snapshot), tmp_path / "clean", {})
    copy = Checkpoint.open(tmp_path / "clean")
    assert all(torch.equal(copy.read(key), original[key]) for key in copy.shapes)
    assert not any(path.is_symlink() for path in (tmp_path / "clean").rglob("*"))


@pytest.mark.parametrize(
    "name", ["unet_2/model.safetensors", ".hidden/unet.bin", "unet/deep/er/x.safetensors", "x.ckpt"]
)
def test_what_was_added_to_a_copy_is_found(tmp_path: Path, name: str) -> None:
    pico.write_folder(tmp_path / "model")
    source = Checkpoint.open(tmp_path / "model")
    write_edited(source, tmp_path / "clean", {})
    (tmp_path / "clean" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "clean" / name).write_bytes(b"knows everything")
    (fault,) = unexpected_files(source, Checkpoint.open(tmp_path / "clean"))
    assert name in fault
    (tmp_path / "clean" / name).unlink()
    (tmp_path / "clean/model_index.json").write_text("{}")
    (fault,) = unexpected_files(source, Checkpoint.open(tmp_path / "clean"))
    assert "model_index.json differs" in fault
