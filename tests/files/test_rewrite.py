"""An edited copy differs from its source in the edited tensors and the metadata, and in nothing
else.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pico
import pytest
import torch
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.errors import FileError
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.header import read_header
from speed_erase.speed_ops.files.rewrite import write_edited
from speed_erase.speed_ops.models.detect import detect, layers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_only_the_edited_tensors_change(tmp_path: Path, dtype: torch.dtype, family: str) -> None:
    original = pico.write_checkpoint(tmp_path / "a.safetensors", family, dtype=dtype)
    source = Checkpoint.open(tmp_path / "a.safetensors")
    new = pico.random_edits(source.shapes)
    seen: list[tuple[str, int, int]] = []
    rounding, _ = write_edited(
        source,
        tmp_path / "b.safetensors",
        new,
        {"speed.note": "x"},
        progress=lambda *a: seen.append(a),
    )
    copy = load_file(tmp_path / "b.safetensors")
    assert list(read_header(tmp_path / "b.safetensors").entries) == list(
        source.parts[0].header.entries
    )
    for key, value in original.items():
        wanted = new[key].to(dtype) if key in new else value
        assert copy[key].dtype == dtype and torch.equal(copy[key], wanted)
    assert Checkpoint.open(tmp_path / "b.safetensors").metadata == source.metadata | {
        "speed.note": "x"
    }
    assert set(rounding) == set(new)
    for key, error in rounding.items():
        assert error == pytest.approx(
            float((new[key].to(dtype).double() - new[key]).norm()), rel=1e-12
        )
    assert all(stage == "write" and done <= total for stage, done, total in seen)
    assert seen[-1][1] == seen[-1][2] == source.size


def test_without_edits_the_bytes_are_the_same(tmp_path: Path) -> None:
    pico.write_checkpoint(tmp_path / "a.safetensors")
    source = Checkpoint.open(tmp_path / "a.safetensors")
    write_edited(source, tmp_path / "b.safetensors", {})
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


def test_a_function_of_the_stored_tensor_is_an_edit(tmp_path: Path) -> None:
    original = pico.write_checkpoint(tmp_path / "a.safetensors")
    source = Checkpoint.open(tmp_path / "a.safetensors")
    key = next(iter(pico.random_edits(source.shapes)))
    write_edited(source, tmp_path / "b.safetensors", {key: lambda stored: stored.double() * 2})
    assert torch.equal(Checkpoint.open(tmp_path / "b.safetensors").read(key), original[key] * 2)


def test_averaged_copies_can_be_left_out(tmp_path: Path) -> None:
    content = pico.write_checkpoint(tmp_path / "x.safetensors")
    ema = {"model_ema.decay": torch.tensor(0.9), "model_ema.diffusion_modelout2bias": torch.ones(4)}
    save_file(
        content | ema,
        tmp_path / "a.safetensors",
        metadata={"modelspec.hash_sha256": "0x1", "kept": "yes"},
    )
    source = Checkpoint.open(tmp_path / "a.safetensors")
    assert set(source.ema_keys()) == set(ema)
    new = pico.random_edits(source.shapes)
    write_edited(source, tmp_path / "b.safetensors", new, drop=source.ema_keys())
    copy = load_file(tmp_path / "b.safetensors")
    assert set(copy) == set(content)
    assert all(
        torch.equal(copy[key], new[key].half() if key in new else content[key]) for key in copy
    )
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
    small = {
        key: value.to(torch.float8_e4m3fn) if "attn2" in key else value
        for key, value in content.items()
    }
    save_file(small, tmp_path / "a.safetensors")
    source = Checkpoint.open(tmp_path / "a.safetensors")
    keys = [layer.file_key for layer in layers(detect(source.shapes), source.shapes)]
    with pytest.raises(FileError, match="Save a LoRA"):
        write_edited(
            source, tmp_path / "b.safetensors", {keys[0]: torch.zeros(source.shapes[keys[0]])}
        )


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


PEAK = """
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.rewrite import write_edited

def copy(name):
    source = Checkpoint.open({folder!r} + f"/{{name}}.safetensors")
    target = {folder!r} + f"/{{name}}-copy.safetensors"
    write_edited(source, target, {{"edited": lambda stored: stored + 1}})

copy("tiny")  # loads code and starts threads, which is not the copying's own
before = peak()
copy("big")
print(peak() - before)
"""
CHUNKS = 8 << 10
"""kB: the chunk that is read and the one that is written."""
EDITED = 8 << 10
"""kB of the edited tensor, which is held as stored, as edited, in float64 to see what rounding
cost, and as bytes.
"""


@pico.needs_proc
@pytest.mark.slow
def test_copying_takes_little_memory(tmp_path: Path) -> None:
    """Four tensors of 200 MB: far less than one of them is in memory at any time, however large
    they are.
    """
    edited = torch.zeros(EDITED << 8)
    save_file({"a": torch.ones(10), "edited": edited}, tmp_path / "tiny.safetensors")
    big = {name: torch.full((100_000_000,), 1.0, dtype=torch.float16) for name in "abcd"}
    save_file(big | {"edited": edited}, tmp_path / "big.safetensors")
    del big
    command = [sys.executable, "-c", pico.standalone(PEAK.format(folder=str(tmp_path)))]
    grown = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert grown < 2 * CHUNKS + 2 * EDITED, grown  # kB; one tensor would be 195,000
    copy = load_file(tmp_path / "big-copy.safetensors")
    assert all(bool((copy[name] == 1).all()) for name in "abcd") and bool(
        (copy["edited"] == 1).all()
    )


WRITER = """
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.rewrite import write_edited
source = Checkpoint.open({source!r})
print("ready", flush=True)
number = 0
while True:
    number += 1
    edits = {{"edited": lambda stored: stored + number}}
    write_edited(source, {target!r}, edits, {{"n": str(number)}}, force=True)
"""


@pytest.mark.slow
def test_a_killed_rewriting_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    target = tmp_path / "b.safetensors"
    save_file(
        {"a": torch.ones(4_000_000), "edited": torch.zeros(10), "z": torch.ones(9)},
        tmp_path / "a.safetensors",
    )
    write_edited(Checkpoint.open(tmp_path / "a.safetensors"), target, {}, {"n": "0"})
    script = pico.standalone(
        WRITER.format(source=str(tmp_path / "a.safetensors"), target=str(target))
    )
    moments = random.Random(0)
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            time.sleep(moments.uniform(0.0, 0.3))
            writer.kill()
        copy = Checkpoint.open(target)
        assert bool((copy.read("edited") == float(copy.metadata["n"])).all())
        assert bool((copy.read("a") == 1).all()) and bool((copy.read("z") == 1).all())
