"""Headers are read strictly: sound files of the reference writer pass, everything else is one
sentence.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pico
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

from speed_erase.speed_ops.errors import FileError, NotFoundError
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.header import (
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    encode_header,
    parse_header,
    read_header,
)
from speed_erase.speed_ops.files.tensors import to_bytes

TENSORS = {
    "b.weight": torch.arange(6, dtype=torch.float16).reshape(2, 3),
    "a.bias": torch.ones(5, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 4),
    "scalar": torch.tensor(3.0),
    "naïve-ключ": torch.tensor([True, False]),
    "small": torch.ones(3).to(torch.float8_e4m3fn),
}
METADATA = {"format": "pt", "speed.note": 'quotes " and \\ and ü and 🦊'}


def sentence(content: bytes, folder: Path, name: str = "x.safetensors") -> str:
    (folder / name).write_bytes(content)
    with pytest.raises(FileError) as caught:
        Checkpoint.open(folder / name)
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".") and len(message) < 600
    return message


def with_header(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(begin: int = 0, end: int = 8, **change: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [begin, end]} | change


def test_it_reads_what_the_reference_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path, metadata=METADATA)
    checkpoint = Checkpoint.open(path)
    assert checkpoint.metadata == METADATA
    assert set(checkpoint.shapes) == set(TENSORS)
    for key, value in TENSORS.items():
        read = checkpoint.read(key)
        assert read.dtype == value.dtype and read.shape == value.shape
        assert to_bytes(read) == to_bytes(value)


def test_the_reference_library_reads_what_is_encoded(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path, metadata=METADATA)
    header = read_header(path)
    content = encode_header(header.entries, header.metadata | {"more": "x" * 1001})
    assert len(content) % 8 == 0
    assert parse_header(content[8:], header.data_size, path).entries == header.entries
    again = tmp_path / "y.safetensors"
    again.write_bytes(content + path.read_bytes()[header.data_start :])
    with safe_open(again, framework="pt") as file:
        assert file.metadata() == METADATA | {"more": "x" * 1001}
        for key, value in TENSORS.items():
            assert torch.equal(file.get_tensor(key).float(), value.float())


BROKEN = {
    "bytes long": b"abc",
    "it is truncated": struct.pack("<Q", 10**12) + b"{}",
    "larger than any model needs": None,  # made sparse in the test
    "is not UTF-8 text": with_header(b'{"a\xff": 1}'),
    "'{' is missing": with_header(b"[]"),
    "Extra data": with_header(b'{} {"a":1}'),
    "property name enclosed": with_header(b"{1: 2}"),
    "must have dtype, shape": with_header({"a": 5}),
    "occurs twice": with_header(
        b'{"a":%s,"a":%s}' % ((json.dumps(tensor()).encode(),) * 2), b"x" * 8
    ),
    "and nothing else": with_header({"a": tensor(extra=1)}, b"x" * 8),
    "unknown type": with_header({"a": tensor(dtype="F128")}, b"x" * 8),
    "unknown type 'None'": with_header({"a": tensor(dtype=None)}, b"x" * 8),
    "impossible shape": with_header({"a": tensor(shape=[-2])}, b"x" * 8),
    "an impossible shape": with_header({"a": tensor(shape=[True, 2])}, b"x" * 8),
    "has an impossible shape": with_header({"a": tensor(shape=[1] * 17)}, b"x" * 8),
    "impossible offsets": with_header({"a": tensor(0, 8.0)}, b"x" * 8),
    "do not fit its shape": with_header({"a": tensor(shape=[2**59, 2**59])}, b"x" * 8),
    "-8 bytes, which do not fit": with_header({"a": tensor(8, 0)}, b"x" * 8),
    "begins at byte 0 instead of 8": with_header({"a": tensor(0, 8), "b": tensor(0, 8)}, b"x" * 16),
    "begins at byte 12 instead of 8": with_header(
        {"a": tensor(0, 8), "b": tensor(12, 20)}, b"x" * 20
    ),
    "holds 4 of 8 bytes": with_header({"a": tensor()}, b"x" * 4),
    "3 bytes more": with_header({"a": tensor()}, b"x" * 11),
    "metadata are not strings": with_header({"__metadata__": {"a": 5}}),
    "occurs twice in one object": with_header(b'{"__metadata__":{"a":"1","a":"2"}}'),
    "surrogates": with_header(b'{"__metadata__":{"a":"\\ud800"}}'),
    "nested too deeply": with_header(b'{"a":{"shape":' + b"[" * 5000 + b"}"),
    "too many lists": with_header(b'{"a":' + b"[" * 700_000),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_broken_header_is_a_sentence(tmp_path: Path, reason: str) -> None:
    content = BROKEN[reason]
    if content is None:
        path = tmp_path / "x.safetensors"
        with path.open("wb") as handle:
            handle.write(struct.pack("<Q", 10**9))
            handle.truncate(10**9 + 8)
        with pytest.raises(FileError, match=reason):
            Checkpoint.open(path)
    else:
        assert reason in sentence(content, tmp_path)


def test_other_formats_are_named(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "real.ckpt")
    zipped = (tmp_path / "real.ckpt").read_bytes()
    for content, name in (
        (zipped, "x.safetensors"),
        (zipped, "x.ckpt"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "old.safetensors"),
        (save({"a": torch.ones(3)}), "x.pt"),
        (b"", "x.BIN"),
    ):
        assert "Save Checkpoint" in sentence(content, tmp_path, name)
    assert "GGUF" in sentence(b"GGUF\x03\0\0\0rest of it", tmp_path)
    assert "git lfs pull" in sentence(b"version https://git-lfs.github.com/spec/v1\n", tmp_path)
    assert "web page" in sentence(b"<!DOCTYPE html><html>", tmp_path)


@pytest.mark.parametrize("length", [0x0280, 0x3C, 0x4B50])
def test_lengths_that_look_like_other_formats_are_lengths(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}".ljust(length))
    assert Checkpoint.open(path).shapes == {}


@pico.posix
def test_what_is_not_a_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(FileError, match="is not a file"):
        Checkpoint.open(tmp_path / "pipe.safetensors")
    with pytest.raises(NotFoundError):
        Checkpoint.open(tmp_path / "missing.safetensors")
    with pytest.raises(FileError, match="Cannot read"):
        Checkpoint.open("a\0b")


@pytest.mark.parametrize(
    "unit", [b'"%07d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},', b'"%07d":[[],[],[]],']
)
def test_hostile_headers_cost_little(tmp_path: Path, unit: bytes) -> None:
    text = b"{" + b"".join(unit % n for n in range(MAX_TENSORS + 5)) + b'"z":1}'
    start = time.perf_counter()
    assert sentence(with_header(text), tmp_path)
    assert time.perf_counter() - start < 20


def mutate(content: bytes, dice: random.Random) -> bytes:
    """One to four random wounds: flipped, cut, repeated, inserted bytes, swapped tokens, another
    length.
    """
    data = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(min(len(data), 700) + 1)
        wound = dice.randrange(6)
        if wound == 0 and data:
            data[min(place, len(data) - 1)] ^= 1 << dice.randrange(8)
        elif wound == 1:
            del data[place : place + dice.randint(1, 20)]
        elif wound == 2:
            data[place:place] = data[place : place + dice.randint(1, 40)]
        elif wound == 3:
            data[place:place] = dice.choice(
                [b'"', b"{", b"}", b"[", b"]", b",", b"-1", b"1e9", b"\\u", b"\xff", b"null"]
            )
        elif wound == 4:
            data[:8] = struct.pack(
                "<Q", dice.choice([0, 1, 2**63, len(data), len(data) - 8, dice.randrange(2000)])
            )
        else:
            data = bytearray(
                bytes(data).replace(
                    dice.choice([b"F16", b"[2,3]", b"12", b":"]),
                    dice.choice([b"F32", b"[]", b"9"]),
                    1,
                )
            )
    return bytes(data)


@pytest.mark.parametrize("count", [400, pytest.param(5_000, marks=pytest.mark.slow)])
def test_mutated_files_are_read_or_refused(tmp_path: Path, count: int) -> None:
    dice = random.Random(count)
    content = save(TENSORS, metadata=METADATA)
    path = tmp_path / "x.safetensors"
    outcomes = [0, 0]
    for _ in range(count):
        path.write_bytes(mutate(content, dice))
        try:
            checkpoint = Checkpoint.open(path)
            for key in checkpoint.shapes:
                checkpoint.read(key)
            outcomes[0] += 1
        except FileError:
            outcomes[1] += 1
    assert min(outcomes) > 0  # some wounds are harmless, most are not


HOSTILE = """
import json
from speed_erase.speed_ops.errors import FileError, NotFoundError
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.recipe import Recipe
assert Checkpoint.open({path!r}).metadata
for item in ("[],", '"ab",', "257,"):
    try:
        Recipe.from_json("[" + item * (15_900_000 // len(item)) + "0]")
        raise SystemExit("a list is no recipe")
    except FileError:
        pass
print(peak())
"""


@pico.needs_proc
@pytest.mark.slow
def test_the_largest_hostile_files_stay_below_a_gigabyte(tmp_path: Path) -> None:
    """One character outside the basic plane makes Python keep a text at four bytes a character."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(
        with_header(
            b'{"__metadata__":{"a":"' + "🦊".encode() + b"x" * (MAX_HEADER_BYTES - 100) + b'"}}'
        )
    )
    script = pico.standalone(HOSTILE.format(path=str(path)))
    peak = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert int(peak) < 1_000_000  # kB
