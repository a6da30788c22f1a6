"""Asked to stop, by a key or by the system: it ends soon, with an exit code that shows why, and
leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mini
import pico
import pytest

from speed_erase.speed_ops.checkpoints import batch
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.console import Console
from speed_erase.speed_ops.errors import user_message

pytestmark = pico.posix  # Windows knows no signal from outside but Ctrl-C
NAMES = [name for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
INTERRUPTED = f"speed-erase: {user_message(KeyboardInterrupt())}"
CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGBREAK": 149}


@pytest.fixture(autouse=True)
def as_python_starts() -> Iterator[None]:
    """The program respects a signal that is ignored or handled already. The tests may have been
    started under `nohup` or in a shell's background, which ignores Ctrl-C, and a library that
    another test used may have taken SIGTERM."""
    before = {
        number: signal.getsignal(number) for number in (getattr(signal, name) for name in NAMES)
    }
    for number in before:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    mini.write_model(folder / "m.safetensors")
    return folder / "m.safetensors"


@pytest.fixture(scope="module")
def recipe(model: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEED_ERASE_CACHE", str(model.parent / "cache"))
        assert main([*erase(model, model.parent), "--save", "recipe", "--quiet"]) == 0
    return model.parent / "m-recipe.json"


def erase(model: Path, out: Path) -> list[str]:
    return ["erase", str(model), "--concepts", mini.CONCEPTS, *mini.QUICK, "--out", str(out)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_stopped_while_writing(
    name: str,
    more: list[str],
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(self: Console, stage: str, done: int, total: int) -> None:
        if stage == "write" and done > total // 2:
            os.kill(os.getpid(), getattr(signal, name))

    before = signal.getsignal(getattr(signal, name))
    monkeypatch.setattr(Console, "progress", stop)
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(recipe.parent / "cache"))
    assert main([*erase(recipe.parent / "m.safetensors", tmp_path / "out"), *more]) == CODES[name]
    assert list(tmp_path.iterdir()) == []
    out = capsys.readouterr()
    assert out.err.splitlines()[-1] == INTERRUPTED and "Traceback" not in out.err
    assert not more or json.loads(out.out)["error"]["code"] == "interrupted"
    assert signal.getsignal(getattr(signal, name)) == before


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_stops_all_its_models(
    name: str, jobs: str, model: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(5):
        os.link(model, tmp_path / "in" / f"m{number}.safetensors")
    together = threading.Barrier(
        int(jobs), action=lambda: os.kill(os.getpid(), getattr(signal, name))
    )
    begun: list[str] = []

    def slow(path: Path, *_: Any, progress: Any, **__: Any) -> None:
        unfinished = tmp_path / f"{path.name}.speed-tmp"
        unfinished.touch()
        begun.append(path.name)
        try:
            together.wait(30)
            for step in range(3000):
                progress("write", step, 3000)
                time.sleep(0.01)
        finally:
            unfinished.unlink()

    monkeypatch.setattr(batch, "clean_file", slow)
    arguments = [
        "batch",
        "--recipe",
        str(recipe),
        "--in",
        str(tmp_path / "in"),
        "--out",
        str(tmp_path / "out"),
    ]
    started = time.monotonic()
    assert main([*arguments, "--jobs", jobs]) == CODES[name]
    assert time.monotonic() - started < 20
    assert len(begun) == int(jobs) and not list(tmp_path.glob("*.speed-tmp"))


_EARLY = """
import os, signal
class Asked:
    '''A request to stop that comes while our modules are imported.'''
    def find_spec(self, name, path=None, target=None):
        if name == "speed_erase.speed_ops." + {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{signal})
sys.meta_path.insert(0, Asked())
from speed_erase.speed_ops.cli import main
sys.exit(main(["inspect", "no-such.safetensors"]))
"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "module", ["cli.console", "cli.parser", "cli.options", "engine.settings", "files.checkpoint"]
)
def test_stopped_during_the_imports(name: str, module: str) -> None:
    body = pico.standalone(_EARLY.replace("{module!r}", repr(module)).replace("{signal}", name))
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=False)
    assert done.returncode == CODES[name]
    assert done.stderr == INTERRUPTED + "\n" and done.stdout == ""


_STUBBORN = """
import time
from speed_erase.speed_ops.cli import cache
from speed_erase.speed_ops.cli.main import main
def run(args, console):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaning", flush=True)
        time.sleep({seconds})
        print("clean", flush=True)
cache.run = run
sys.exit(main(["cache"]))
"""


def _stubborn(seconds: float) -> subprocess.Popen[str]:
    body = pico.standalone(_STUBBORN.replace("{seconds}", str(seconds)))
    process = subprocess.Popen(
        [sys.executable, "-c", body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cleaning\n"
    return process


def test_the_same_request_twice_is_one() -> None:
    """Programs that start others pass Ctrl-C on, so that it comes twice: what cleans up must not be
    cut short.
    """
    process = _stubborn(0.5)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and output == "clean\n" and "Traceback" not in errors


def test_who_asks_again_later_is_not_kept_waiting() -> None:
    process = _stubborn(60)
    time.sleep(1.2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=10)
    assert process.returncode == 130 and output == "" and "Traceback" not in errors


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has none")
def test_under_nohup_a_closed_terminal_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from speed_erase.speed_ops.cli import cache

    def run(*_: object) -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 0

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(cache, "run", run)
        assert main(["cache"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


_ELSEWHERE = """
import signal
for name in ("SIGHUP", "SIGPIPE", "SIGXFSZ", "SIGUSR1"):
    delattr(signal, name)
sys.platform = "win32x"
from speed_erase.speed_ops.cli import main
sys.exit(main(["--version"]))
"""


@pytest.mark.skipif(os.name != "posix", reason="takes away what other systems lack")
def test_nothing_needs_signals_that_windows_lacks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", pico.standalone(_ELSEWHERE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.startswith("speed-erase ")


def test_a_thread_can_run_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the main thread may set handlers for signals."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["--version"])))
    thread.start()
    thread.join()
    assert codes == [0]
