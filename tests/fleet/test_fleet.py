"""`batch --on ray` on a real cluster of two nodes: one dies in the middle, and nothing is lost or
done twice.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mini
import pico
import pytest
from safetensors.torch import save_file

from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import MissingPackageError, SettingsError
from speed_erase.speed_ops.fleet.ray_session import START_ATTEMPTS, connected
from speed_erase.speed_ops.fleet.scheduler import MAX_DEATHS
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.recipe import recipe_of
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.retain_set import builtin_retain

# Runs in every process of the cluster before anything else. It writes down what gets its final
# name, holds the first to do so on the node that is to die, and kills whoever opens the model
# called killer.
_WATCH = """
import os, sys, time

def watch(event, args):
    if event == "open" and str(args[0]).endswith("in/killer.safetensors"):
        os.kill(os.getpid(), 9)
    if event == "os.rename":
        target = os.path.split(os.fspath(args[1]))
        if os.path.basename(target[0]) != "out" or target[1].startswith("."):
            return
        if os.environ.get("FLEET_DOOMED"):
            open(os.environ["FLEET_DOOMED"], "w").close()
            time.sleep(300)
        with open({log!r}, "a") as handle:
            handle.write(target[1] + "\\n")

sys.addaudithook(watch)
"""
MODELS = ("a", "b", "other", "killer")
"""`other` has a text encoder of its own; `killer` is `a` once more."""
LONG = 900.0
"""Seconds after which something hangs. A busy machine may need minutes."""
HOST = "127.0.0.2" if sys.platform.startswith("linux") else "127.0.0.1"
"""Nobody else can reach it. On Linux Ray puts the address that others see in the place of
127.0.0.1.
"""
_SYSTEM = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}
_SYSTEM |= {"worker_niceness": 0}
"""A node counts as dead after two seconds without a sign of life; a busy machine does not put its
workers last.
"""
SMALL = {
    "num_cpus": 1,
    "memory": 4 * 10**9,
    "object_store_memory": 100 * 2**20,
    "include_dashboard": False,
}


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    mini.write_model(tmp_path / "in" / "a.safetensors")
    content = mini.write_model(tmp_path / "in" / "b.safetensors", seed=1)
    text = {
        key: value * 1.01 for key, value in content.items() if key.startswith("cond_stage_model")
    }
    save_file(content | text, tmp_path / "in" / "other.safetensors")
    os.link(tmp_path / "in" / "a.safetensors", tmp_path / "in" / "killer.safetensors")
    names = builtin_retain("artists").limit(12)
    job = Job.of(parse_concepts(mini.CONCEPTS, "style"), names, EraseSettings.preset("few"))
    recipe_of(job).write(tmp_path / "a-recipe.json")
    return tmp_path


def started(start: Callable[[], Any]) -> Any:
    """Ray gives its processes some seconds to start, which on a busy machine may be too few."""
    for _ in range(4):
        try:
            return start()
        except Exception as fault:
            if "timed out" not in str(fault).lower():
                raise
            last = fault
    raise last


@pytest.fixture
def watched(tmp_path: Path) -> str:
    """PYTHONPATH for processes that use this tree, and that are watched."""
    (tmp_path / "watch").mkdir()
    script = pico.standalone(_WATCH.replace("{log!r}", repr(str(tmp_path / "written"))))
    (tmp_path / "watch" / "sitecustomize.py").write_text(script)
    return str(tmp_path / "watch")


@pytest.fixture
def cluster(watched: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head with one processor; on this machine alone, small, without dashboard and without
    reports of usage.
    """
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    head = {**SMALL, "node_ip_address": HOST, "_system_config": _SYSTEM}
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", watched)
        nodes = started(lambda: Cluster(initialize_head=True, head_node_args=head))
    signal.signal(signal.SIGTERM, before)  # Ray takes it for itself, for good
    try:
        yield nodes
    finally:
        nodes.shutdown()


def batch(studio: Path, *more: str, out: str = "out") -> list[str]:
    recipe, source = str(studio / "a-recipe.json"), str(studio / "in")
    common = ["--recipe", recipe, "--in", source, "--out", str(studio / out)]
    return ["batch", *common, "--save", "checkpoint,lora", *more]


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + LONG
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.fleet
@pytest.mark.slow
@pico.posix
def test_a_node_dies_and_nothing_is_lost_or_done_twice(
    studio: Path, watched: str, cluster: Any
) -> None:
    doomed = studio / "doomed"
    variables = {"FLEET_DOOMED": str(doomed), "PYTHONPATH": watched}
    node = started(lambda: cluster.add_node(**SMALL, node_ip_address=HOST, env_vars=variables))
    # Without the cache, or rows would reach the others through the disk that these machines share.
    command = batch(studio, "--on", "ray", "--address", cluster.address, "--no-cache", "--json")
    driver = subprocess.Popen(
        mini.command(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(doomed, driver)
        cluster.remove_node(node, allow_graceful=False)
        output, errors = driver.communicate(timeout=LONG)
    finally:
        driver.kill()
    assert driver.returncode == 1, errors
    models = {Path(model["model"]).stem: model for model in json.loads(output)["models"]}
    killer = models.pop("killer")
    assert (killer["status"], killer["error"]["code"]) == ("failed", "unexpected")
    statuses = {name: model["status"] for name, model in models.items()}
    assert statuses == dict.fromkeys(MODELS[:-1], "cleaned")
    assert models["other"]["encoded"] > 0, "each text encoder is encoded once"
    assert sorted(bool(models[name]["encoded"]) for name in "ab") == [False, True]

    names = [f"{name}{end}.safetensors" for name in models for end in ("-erased", "-eraser-lora")]
    written = studio / "written"
    assert Counter(written.read_text().split()) == Counter(names), "each file is written once"
    results = {path.name for path in (studio / "out").iterdir()}
    assert results == {*names, "fleet-ledger.jsonl"}, "nothing half done"
    (studio / "in" / "killer.safetensors").unlink()
    assert main(batch(studio, "--quiet", out="local")) == 0
    for name in names:
        assert (studio / "out" / name).read_bytes() == (studio / "local" / name).read_bytes(), name

    ledger = studio / "out" / "fleet-ledger.jsonl"
    lines = {
        Path(entry["model"]).stem: entry
        for entry in map(json.loads, ledger.read_text().splitlines())
    }
    assert lines.keys() == set(MODELS) and lines["killer"]["status"] == "failed"
    attempts = {name: entry["attempts"] for name, entry in lines.items()}
    assert attempts.pop("killer") == MAX_DEATHS
    assert sorted(attempts.values()) == [1, 1, 2], "the one of the lost machine"

    # A second run does what is missing alone: here the report about one model, which a kill kept
    # out of the ledger.
    ledger.write_bytes(ledger.read_bytes()[:-20])
    before = written.read_text()
    stamps = {name: (studio / "out" / name).stat().st_mtime_ns for name in names}
    again = mini.run(*command, timeout=LONG)
    assert again.returncode == 0, again.stderr
    assert {model["status"] for model in json.loads(again.stdout)["models"]} == {"skipped"}
    assert written.read_text() == before
    assert {name: (studio / "out" / name).stat().st_mtime_ns for name in names} == stamps


@pytest.mark.fleet
@pytest.mark.slow
@pico.posix
def test_one_is_started_where_there_is_none_and_stops_when_asked(
    studio: Path, watched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine alone, from and to URLs. What was done before the signal is not done
    again.
    """
    monkeypatch.setenv("PYTHONPATH", watched)
    source, out = (f"file://{studio / name}" for name in ("in", "out"))
    command = ["batch", "--recipe", studio / "a-recipe.json", "--in", source, "--out", out]
    command += ["--scratch", studio / "scratch", "--ledger", studio / "ledger.jsonl"]
    command += ["--include", "[abo]*", "--on", "ray", "--jobs", "1", "--json-lines"]
    command += ["--save", "lora"]
    driver = subprocess.Popen(
        mini.command(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(studio / "out" / "a-eraser-lora.safetensors", driver)
        driver.terminate()
        output = driver.communicate(timeout=LONG)
    finally:
        driver.kill()
    assert driver.returncode == 128 + signal.SIGTERM, output
    early = {path.name: path.stat().st_mtime_ns for path in (studio / "out").iterdir()}
    names = {f"{name}-eraser-lora.safetensors" for name in ("a", "b", "other")}
    assert early.keys() < names, "nothing half done"
    assert not list((studio / "scratch").iterdir()), "no scratch left"

    again = mini.run(*command, timeout=LONG)
    assert again.returncode == 0, again.stderr
    *lines, total = map(json.loads, again.stdout.splitlines())
    assert total["failed"] == 0 and total["cleaned"] == len(names) - len(early)
    files = [file for line in lines for file in line.get("files", {}).values()]
    assert files and all(file.startswith(out) for file in files)
    now = {path.name: path.stat().st_mtime_ns for path in (studio / "out").iterdir()}
    assert now.keys() == names and {name: now[name] for name in early} == early


def test_a_dry_run_needs_no_cluster_and_writes_nothing(
    studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(batch(studio, "--on", "ray", "--dry-run", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    encoders = {Path(one["model"]).stem: one["encoder"] for one in found["models"]}
    assert found["ready"] == len(MODELS) and encoders["a"] == encoders["b"] != encoders["other"]
    assert all(one["memory"] > 1e9 for one in found["models"]) and not (studio / "out").exists()


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        (["--address", "auto"], "--address"),
        (["--in", "s3://bucket/x"], "--on"),
        (["--on", "ray", "--out", "s3://bucket/x"], "--ledger"),
        (["--on", "ray", "--device", "cuda:1"], "--device"),
        (["--on", "ray", "--threads", "0"], "--threads"),
        (["--on", "ray", "--jobs", "0"], "--jobs"),
    ],
)
def test_bad_usage_is_answered_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], flag: str
) -> None:
    assert main([*batch(tmp_path), *more]) == 2
    assert flag in capsys.readouterr().err


def test_without_ray_it_says_what_to_install(
    studio: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(batch(studio, "--on", "ray", "--json")) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "missing-package" and "speed-erase[fleet]" in error["message"]


@pytest.mark.parametrize("address", ["ray://127.0.0.1:{}", "127.0.0.1:{}"])
def test_a_cluster_that_does_not_answer_is_named(
    studio: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # whose `init` would try for minutes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = address.format(free.getsockname()[1])
    assert main(batch(studio, "--on", "ray", "--address", address, "--json")) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "settings" and address in error["message"]


@pytest.mark.parametrize("timeouts", [START_ATTEMPTS - 1, START_ATTEMPTS])
def test_a_cluster_of_a_busy_machine_may_be_slow_to_start(
    monkeypatch: pytest.MonkeyPatch, timeouts: int
) -> None:
    calls = []

    def init(**options: object) -> None:
        calls.append(options)
        if len(calls) <= timeouts:
            raise Exception("The current node timed out during startup.")

    ray = ModuleType("ray")
    ray.init, ray.shutdown = init, lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    if timeouts < START_ATTEMPTS:
        with connected() as (module, _):
            assert module is ray and len(calls) == START_ATTEMPTS
    else:
        with pytest.raises(SettingsError, match="timed out"), connected():
            pass


def test_signals_wait_until_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray installs handlers of its own, and loses what they raise."""
    ray = ModuleType("ray")
    ray.init = lambda **options: signal.signal(signal.SIGTERM, signal.SIG_IGN)  # type: ignore[attr-defined]
    ray.shutdown = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with connected() as (_, raise_pending):
            raise_pending()
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                raise_pending()
        assert signal.getsignal(signal.SIGTERM) is stop
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_ray_prints_is_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = ModuleType("ray")
    ray.init = lambda **options: None  # type: ignore[attr-defined]
    ray.shutdown = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    with connected():
        thread = threading.Thread(target=print, args=["news"], name="ray_listen")
        thread.start()
        thread.join()
        print("result", flush=True)
    assert capsys.readouterr() == ("result\n", "news\n")


def test_no_usage_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray does so unless it is told not to."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    with pytest.raises(MissingPackageError), connected():
        pass
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
