"""An edited copy differs from its source in the edited tensors and the metadata, and in nothing else."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pico
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.architectures import detect, layers
from speed_erase.speed_ops.errors import FileError
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.header import read_header
from speed_erase.speed_ops.files.rewrite import write_edited


def edits(source: Checkpoint, seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys = [layer.file_key for layer in layers(detect(source.shapes), source.shapes)]
    return {key: torch.randn(source.shapes[key], generator=generator, dtype=torch.float64) for key in keys}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_only_the_edited_tensors_change(tmp_path: Path, dtype: torch.dtype, family: str) -> None:
    original = pico.write_checkpoint(tmp_path / "a.safetensors", family, dtype=dtype)
    source = Checkpoint.open(tmp_path / "a.safetensors")
    new = edits(source)
    seen: list[tuple[str, int, int]] = []
    done = write_edited(
        source, tmp_path / "b.safetensors", new, {"speed.note": "x"}, progress=lambda *a: seen.append(a)
    )
    copy = load_file(tmp_path / "b.safetensors")
    assert list(read_header(tmp_path / "b.safetensors").entries) == list(source.parts[0].header.entries)
    for key, value in original.items():
        wanted = new[key].to(dtype) if key in new else value
        assert copy[key].dtype == dtype and torch.equal(copy[key], wanted)
    assert Checkpoint.open(done.path).metadata == source.metadata | {"speed.note": "x"}
    assert set(done.rounding) == set(new)
    for key, error in done.rounding.items():
        assert error == pytest.approx(float((new[key].to(dtype).double() - new[key]).norm()), rel=1e-12)
    assert seen[-1][1] <= seen[-1][2] and seen[0][0] == "write"


def test_without_edits_the_bytes_are_the_same(tmp_path: Path) -> None:
    pico.write_checkpoint(tmp_path / "a.safetensors")
    source = Checkpoint.open(tmp_path / "a.safetensors")
    write_edited(source, tmp_path / "b.safetensors", {})
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


def test_a_function_of_the_stored_tensor_is_an_edit(tmp_path: Path) -> None:
    original = pico.write_checkpoint(tmp_path / "a.safetensors")
    source = Checkpoint.open(tmp_path / "a.safetensors")
    key = next(iter(edits(source)))
    write_edited(source, tmp_path / "b.safetensors", {key: lambda stored: stored.double() * 2})
    assert torch.equal(Checkpoint.open(tmp_path / "b.safetensors").read(key), original[key] * 2)


def test_averaged_copies_can_be_left_out(tmp_path: Path) -> None:
    content = pico.write_checkpoint(tmp_path / "x.safetensors")
    ema = {"model_ema.decay": torch.tensor(0.9), "model_ema.diffusion_modelout2bias": torch.ones(4)}
    save_file(content | ema, tmp_path / "a.safetensors", metadata={"modelspec.hash_sha256": "0x1", "kept": "yes"})
    source = Checkpoint.open(tmp_path / "a.safetensors")
    assert set(source.ema_keys()) == set(ema)
    new = edits(source)
    write_edited(source, tmp_path / "b.safetensors", new, drop=source.ema_keys())
    copy = load_file(tmp_path / "b.safetensors")
    assert set(copy) == set(content)
    assert all(torch.equal(copy[key], new[key].half() if key in new else content[key]) for key in copy)
    assert Checkpoint.open(tmp_path / "b.safetensors").metadata == {"kept": "yes"}


def test_bad_requests_write_nothing(tmp_path: Path) -> None:
    pico.write_checkpoint(tmp_path / "a.safetensors")
    source = Checkpoint.open(tmp_path / "a.safetensors")
    key, shape = next((key, shape) for key, shape in source.shapes.items() if "attn2.to_v" in key)
    good = torch.zeros(shape)
    target = tmp_path / "b.safetensors"
    for change, reason in (
        ({key.replace("to_v", "tov"): good}, f"did you mean '{key}'"),
        ({key: good[:1]}, "the edit has"),
        ({key: good + torch.nan}, "NaN or infinite"),
        ({key: good + 1e5}, "too large for float16"),
    ):
        with pytest.raises(FileError, match=reason.replace("(", r"\(")):
            write_edited(source, target, change)
    with pytest.raises(FileError, match="strings only"):
        write_edited(source, target, {}, {"a": 1})  # type: ignore[dict-item]
    with pytest.raises(FileError, match="both edited and left out"):
        write_edited(source, target, {key: good}, drop=[key])
    with pytest.raises(FileError, match="same file"):
        write_edited(source, tmp_path / "a.safetensors", {key: good}, force=True)

    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_edited(source, target, {key: good}, progress=stop)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]


def test_eight_bit_weights_are_not_baked(tmp_path: Path) -> None:
    content = pico.write_checkpoint(tmp_path / "x.safetensors")
    small = {key: value.to(torch.float8_e4m3fn) if "attn2" in key else value for key, value in content.items()}
    save_file(small, tmp_path / "a.safetensors")
    source = Checkpoint.open(tmp_path / "a.safetensors")
    keys = [layer.file_key for layer in layers(detect(source.shapes), source.shapes)]
    assert (
        source.low_precision_keys(keys) == keys
        and source.low_precision_keys(["first_stage_model.quant_conv.bias"]) == []
    )
    with pytest.raises(FileError, match="save a LoRA"):
        write_edited(source, tmp_path / "b.safetensors", {keys[0]: torch.zeros(source.shapes[keys[0]])})


def test_a_source_that_shrinks_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    pico.write_checkpoint(path)
    source = Checkpoint.open(path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(FileError, match="became shorter"):
        write_edited(source, tmp_path / "b.safetensors", {})
    with pytest.raises(FileError, match="became shorter"):
        source.read(source.parts[0].header.by_offset()[-1][0])
    assert not (tmp_path / "b.safetensors").exists()


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
    new = edits(source)
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
    with pytest.raises(FileError, match="inside each other"):
        write_edited(source, tmp_path / "model" / "clean", {})
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.png").write_bytes(b"dear")
    with pytest.raises(FileError, match="not a diffusers folder"):
        write_edited(source, tmp_path / "photos", {}, force=True)
    write_edited(source, tmp_path / "clean", {})
    with pytest.raises(FileError, match="exists already"):
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


PEAK = """
import resource
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.rewrite import write_edited
source = Checkpoint.open({source!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_edited(source, {target!r}, {{"edited": lambda stored: stored + 1}})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_copying_takes_little_memory(tmp_path: Path) -> None:
    """300 MB, three tensors of 100 MB: less than a quarter of one of them is in memory beside the edit."""
    big = {name: torch.full((50_000_000,), 1.0, dtype=torch.float16) for name in "abc"}
    save_file(big | {"edited": torch.zeros(1000, 1000)}, tmp_path / "a.safetensors")
    script = PEAK.format(source=str(tmp_path / "a.safetensors"), target=str(tmp_path / "b.safetensors"))
    command = [sys.executable, "-c", pico.standalone(script)]
    grown = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert grown < 50_000  # kB
    copy = load_file(tmp_path / "b.safetensors")
    assert all(torch.equal(copy[name], big[name]) for name in big) and bool((copy["edited"] == 1).all())


WRITER = """
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.rewrite import write_edited
source = Checkpoint.open({source!r})
print("ready", flush=True)
number = 0
while True:
    number += 1
    write_edited(source, {target!r}, {{"edited": lambda stored: stored + number}}, {{"n": str(number)}}, force=True)
"""


@pytest.mark.slow
def test_a_killed_rewriting_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    target = tmp_path / "b.safetensors"
    save_file({"a": torch.ones(4_000_000), "edited": torch.zeros(10), "z": torch.ones(9)}, tmp_path / "a.safetensors")
    write_edited(Checkpoint.open(tmp_path / "a.safetensors"), target, {}, {"n": "0"})
    script = pico.standalone(WRITER.format(source=str(tmp_path / "a.safetensors"), target=str(target)))
    moments = random.Random(0)
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            time.sleep(moments.uniform(0.0, 0.3))
            writer.kill()
        copy = Checkpoint.open(target)
        assert bool((copy.read("edited") == float(copy.metadata["n"])).all())
        assert bool((copy.read("a") == 1).all()) and bool((copy.read("z") == 1).all())
