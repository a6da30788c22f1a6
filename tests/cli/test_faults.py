"""Killed, fed with nonsense, or given a large file: the final name holds the old or the whole new file, and no more."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import mini
import pico
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from speed_erase.speed_ops.cli import main as main

FUZZ = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its results, and a warm cache: a run then takes little but the writing."""
    folder = tmp_path_factory.mktemp("workshop")
    mini.write_model(folder / "m.safetensors")
    patch = pytest.MonkeyPatch()
    patch.setenv("SPEED_ERASE_CACHE", str(folder / "cache"))
    assert main(_arguments(folder, folder / "good")) == 0
    assert main([*_arguments(folder, folder / "lora"), "--save", "lora"]) == 0
    patch.undo()
    return folder


def _arguments(folder: Path, out: Path, strength: str = "1") -> list[str]:
    common = ["erase", str(folder / "m.safetensors"), "--concepts", mini.CONCEPTS, *mini.QUICK, "--quiet", "--force"]
    return [*common, "--save", "checkpoint,recipe", "--strength", strength, "--out", str(out)]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def nursery(workshop: Path) -> Iterator[mini.Nursery]:
    with_cache = mini.Nursery(SPEED_ERASE_CACHE=str(workshop / "cache"))
    yield with_cache
    with_cache.close()


@pytest.fixture(scope="module")
def duration(workshop: Path, nursery: mini.Nursery) -> float:
    """Seconds of an undisturbed run, which leaves what it wrote in `new`."""
    for _ in range(2):  # the first finds cold disks
        started = time.monotonic()
        nursery.start(_arguments(workshop, workshop / "new", "0.5"))
        assert nursery.wait() == 0
    return time.monotonic() - started


def _kill_often(workshop: Path, tmp_path: Path, nursery: mini.Nursery, longest: float, moments: int, how: int) -> None:
    old, new = ({path.name: _digest(path) for path in (workshop / name).iterdir()} for name in ("good", "new"))
    assert old.keys() == new.keys() and all(old[name] != new[name] for name in old)
    for path in (workshop / "good").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    arguments = _arguments(workshop, tmp_path, "0.5")
    dice = random.Random(4)
    killed = 0
    for _ in range(moments):
        process = nursery.start(arguments)
        time.sleep(dice.uniform(0.05, 1.0) * longest)
        with contextlib.suppress(ProcessLookupError):  # it was faster
            os.kill(process, how)
        killed += nursery.wait() != 0
        for name in old:
            assert _digest(tmp_path / name) in (old[name], new[name])
        if how != signal.SIGKILL:
            assert {path.name for path in tmp_path.iterdir()} == set(old)
    assert killed, "no run was caught at work"


@pytest.mark.parametrize(("how", "moments"), [(signal.SIGKILL, 3), (signal.SIGINT, 2), (signal.SIGTERM, 2)])
def test_killed_a_few_times(
    workshop: Path, tmp_path: Path, nursery: mini.Nursery, duration: float, how: int, moments: int
) -> None:
    _kill_often(workshop, tmp_path, nursery, duration, moments, how)


@pytest.mark.slow
def test_killed_at_fifty_moments(workshop: Path, tmp_path: Path, nursery: mini.Nursery, duration: float) -> None:
    _kill_often(workshop, tmp_path, nursery, duration, 50, signal.SIGKILL)


def test_interrupted_while_writing_leaves_nothing(
    workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from speed_erase.speed_ops.cli.console import Console

    def interrupt(self: Console, stage: str, done: int, total: int) -> None:
        if stage == "write" and done > total // 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Console, "progress", interrupt)
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(workshop / "cache"))
    assert main(_arguments(workshop, tmp_path / "deep" / "out")) == 130
    assert list(tmp_path.iterdir()) == [] and "Interrupted" in capsys.readouterr().err


def test_disk_full_leaves_nothing(workshop: Path, tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: the copy is refused after the LoRA could have been written."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, 20_000_000))

    done = subprocess.run(
        mini.command(*_arguments(workshop, tmp_path / "out")),
        env=os.environ | {"OMP_NUM_THREADS": "1", "SPEED_ERASE_CACHE": str(workshop / "cache")},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "Cannot write" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def _survives(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    code = main(arguments)
    out = capsys.readouterr()
    assert code in (0, 1, 2)
    assert "Traceback" not in out.err and "Unexpected error" not in out.err, out.err
    assert time.monotonic() - started < 60


def _mutated(content: bytes, dice: random.Random) -> bytes:
    """A few bytes changed, cut out, doubled, or replaced by what parsers stumble over."""
    data = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(data) or 1)
        choice = dice.randrange(5)
        if choice == 0 and data:
            data[place] = dice.randrange(256)
        elif choice == 1:
            del data[place : place + dice.randint(1, 40)]
        elif choice == 2:
            data[place:place] = data[place : place + dice.randint(1, 40)]
        elif choice == 3:
            data[place:place] = dice.choice([b"null", b"-1e999", b'"', b"\xff", b"[" * 2000, b"9" * 400, b"\\ud800"])
        else:
            data[place : place + 8] = dice.choice([b"true", b"{}", b"[]", b"-5", b'""'])
    return bytes(data)


def _fuzz_recipe(workshop: Path, tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.json"
    file.write_bytes(_mutated((workshop / "good" / "m-recipe.json").read_bytes(), random.Random(number)))
    _survives(["inspect", str(file)], capsys)
    # A model without a usable text encoder: the recipe is read and checked in full, and nothing is solved.
    _survives(["apply", str(file), str(workshop / "absent.safetensors"), "--out", str(tmp_path / "o")], capsys)


def _fuzz_header(workshop: Path, tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    content = (workshop / "lora" / "m-eraser-lora.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    dice = random.Random(number)
    head = _mutated(content[8 : 8 + length], dice)
    said = len(head) if dice.random() < 0.8 else dice.randrange(2**63)
    file = tmp_path / "f.safetensors"
    file.write_bytes(said.to_bytes(8, "little") + head + content[8 + length :])
    _survives(["inspect", str(file)], capsys)
    _survives(["verify", str(file), "--base", str(file)], capsys)
    _survives(["apply", str(file), str(workshop / "absent.safetensors"), "--out", str(tmp_path / "o")], capsys)


def _fuzz_list(workshop: Path, tmp_path: Path, content: bytes, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / f"list{suffix}"
    file.write_bytes(content)
    model = str(workshop / "absent.safetensors")
    for option in (["--concepts-file", str(file)], ["--concepts", "a -> b", "--retain-file", str(file)]):
        _survives(["erase", model, *option, "--out", str(tmp_path / "o")], capsys)


@pytest.mark.parametrize("number", range(25))
def test_fuzzed_recipes_and_headers(
    workshop: Path, tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _fuzz_recipe(workshop, tmp_path, number, capsys)
    _fuzz_header(workshop, tmp_path, number, capsys)


LIST_TEXT = st.one_of(
    st.binary(max_size=200),
    st.text(alphabet='abé,;"\n\r\t|->#{}[]:\\ \x00\ufeff', max_size=200).map(lambda text: text.encode()),
)


@settings(max_examples=25, **FUZZ)
@given(content=LIST_TEXT, suffix=st.sampled_from([".txt", ".csv", ".json"]))
def test_fuzzed_lists(
    workshop: Path, tmp_path: Path, content: bytes, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _fuzz_list(workshop, tmp_path, content, suffix, capsys)


@pytest.mark.slow
@settings(max_examples=300, **FUZZ)
@given(content=LIST_TEXT, suffix=st.sampled_from([".txt", ".csv", ".json"]))
def test_fuzzed_lists_for_long(
    workshop: Path, tmp_path: Path, content: bytes, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _fuzz_list(workshop, tmp_path, content, suffix, capsys)


@pytest.mark.slow
def test_fuzzed_recipes_and_headers_for_long(
    workshop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(1000, 1500):
        _fuzz_recipe(workshop, tmp_path, number, capsys)
        _fuzz_header(workshop, tmp_path, number, capsys)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # kB


_PEAK = """
import sys
from speed_erase.speed_ops.cli.main import main
code = main(sys.argv[1:])
sys.stderr.write(f"peak {peak()}\\n")
sys.exit(code)
"""


def _peak_megabytes(model: Path, out: Path, cache: Path) -> float:
    arguments = ["erase", str(model), "--concepts", mini.CONCEPTS, *mini.QUICK, "--save", "checkpoint,lora", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", pico.standalone(_PEAK), *arguments, "--force", "--out", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "SPEED_ERASE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split("peak")[1]) / 1024


@pytest.mark.slow
@pico.needs_proc
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """SDXL's encoders in full width, and ballast in the U-Net: 0.4 GB against 1.9 GB of file."""
    peaks = []
    for name, pieces in (("small", 1), ("large", 16)):
        content = mini.unet_tensors("sdxl") | mini.text_tensors("sdxl")
        ballast = torch.zeros(100_000_000 // 2, dtype=torch.float16)
        content |= {f"model.diffusion_model.ballast.{i}.weight": ballast.clone() for i in range(pieces)}
        model = tmp_path / f"{name}.safetensors"
        save_file(content, model)
        del content
        peaks.append(_peak_megabytes(model, tmp_path / "out", tmp_path / "cache" / name))
        model.unlink()
    print(json.dumps({"peak MB": peaks}))
    assert peaks[1] - peaks[0] < 100, peaks
    assert max(peaks) < 3000
