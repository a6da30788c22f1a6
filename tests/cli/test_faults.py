"""Killed, fed with nonsense, or given a large file: the final name holds the old file or the
complete new one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attack
import mini
import pico
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.console import Console
from speed_erase.speed_ops.errors import user_message

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
FUZZ = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[attack.Workshop]:
    patch = pytest.MonkeyPatch()
    patch.setenv("SPEED_ERASE_CACHE", "")  # so that the variable is what it was afterwards
    yield attack.Workshop(tmp_path_factory.mktemp("workshop"))
    patch.undo()


@pytest.fixture(scope="module")
def nursery(workshop: attack.Workshop) -> Iterator[mini.Nursery]:
    with_cache = mini.Nursery(SPEED_ERASE_CACHE=str(workshop.cache), PYTHONPATH=attack.RAY_DOUBLE)
    yield with_cache
    with_cache.close()


@pytest.mark.parametrize("kind", [kind for kind in attack.KINDS if kind != "demo"])
def test_killed_a_few_times(
    workshop: attack.Workshop, tmp_path: Path, nursery: mini.Nursery, kind: str
) -> None:
    """The long version, `python -m benchmarks.attack kills`, kills the demo as well."""
    killer = attack.Killer(workshop, nursery, kind, tmp_path / "out")
    caught = sum(
        killer.strike(how)
        for how in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    )
    for _ in range(40):  # on a busy machine most strikes come too early or too late
        if caught:
            break
        caught += killer.strike()
    assert caught, "no run was caught at work"
    killer.finish()


def test_interrupted_while_writing_leaves_nothing(
    workshop: attack.Workshop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(self: Console, stage: str, done: int, total: int) -> None:
        if stage == "write" and done > total // 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Console, "progress", interrupt)
    assert main(workshop.erase("m.safetensors", tmp_path / "deep" / "out")) == 130
    assert list(tmp_path.iterdir()) == []
    assert user_message(KeyboardInterrupt()) in capsys.readouterr().err


def test_disk_full_leaves_nothing(workshop: attack.Workshop, tmp_path: Path) -> None:
    """A limit on file size replaces a full disk."""
    import resource

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, 20_000_000))

    done = subprocess.run(
        mini.command(*workshop.erase("pipeline", tmp_path / "out"), "--json"),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "file"
    assert ".speed-tmp" not in done.stderr and not (tmp_path / "out").exists()


@pytest.fixture
def survives(capsys: pytest.CaptureFixture[str]):
    def judge(arguments: list[str]) -> None:
        started = time.monotonic()
        code = main(arguments)
        out = capsys.readouterr()
        assert code in (0, 1, 2)
        assert "Traceback" not in out.err and "Unexpected error" not in out.err, out.err
        assert time.monotonic() - started < 60

    return judge


@pytest.mark.parametrize("number", range(25))
def test_fuzzed_files(workshop: attack.Workshop, tmp_path: Path, number: int, survives) -> None:
    """Recipes, headers, lists and job files; the long version is `python -m benchmarks.attack
    fuzz`.
    """
    attack.Fuzzer(workshop, tmp_path, survives)(number)


LIST_TEXT = st.one_of(
    st.binary(max_size=200),
    st.text(alphabet='abé,;"\n\r\t|->#{}[]:\\ \x00\ufeff', max_size=200).map(
        lambda text: text.encode()
    ),
)


@settings(max_examples=25, **FUZZ)
@given(content=LIST_TEXT, suffix=st.sampled_from([".txt", ".csv", ".json"]))
def test_lists_of_anything(tmp_path: Path, content: bytes, suffix: str, survives) -> None:
    file = tmp_path / f"list{suffix}"
    file.write_bytes(content)
    for option in (
        ["--concepts-file", str(file)],
        ["--concepts", "a -> b", "--retain-file", str(file)],
    ):
        survives(
            ["erase", str(tmp_path / "absent.safetensors"), *option, "--out", str(tmp_path / "o")]
        )


_PEAK = """
import sys
from speed_erase.speed_ops.cli.main import main
code = main(sys.argv[1:])
sys.stderr.write(f"peak {peak()}\\n")
sys.exit(code)
"""


def _peak_megabytes(model: Path, out: Path, cache: Path) -> float:
    arguments = ["erase", str(model), "--concepts", mini.CONCEPTS, *mini.QUICK, "--quiet"]
    arguments += ["--save", "checkpoint,lora", "--force", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", pico.standalone(_PEAK), *arguments],
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
    """SDXL's encoders in full width, and ballast in the U-Net: 0.4 GB against 1.1 GB of file."""
    peaks = []
    for name, pieces in (("small", 1), ("large", 8)):
        content = mini.unet_tensors("sdxl") | mini.text_tensors("sdxl")
        ballast = torch.zeros(100_000_000 // 2, dtype=torch.float16)
        content |= {
            f"model.diffusion_model.ballast.{i}.weight": ballast.clone() for i in range(pieces)
        }
        model = tmp_path / f"{name}.safetensors"
        save_file(content, model)
        del content
        peaks.append(_peak_megabytes(model, tmp_path / "out", tmp_path / "cache" / name))
        model.unlink()
    print(json.dumps({"peak MB": peaks}))
    assert peaks[1] - peaks[0] < 100, peaks
    assert max(peaks) < 3000
