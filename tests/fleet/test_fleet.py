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
from speed_erase.speed_ops.fleet.scheduler import TRIES
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
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head with one processor; on this machine alone, small, without dashboard and without
    reports of usage.
    """
    (tmp_path / "watch").mkdir()
    script = pico.standalone(_WATCH.replace("{log!r}", repr(str(tmp_path / "written"))))
    (tmp_path / "watch" / "sitecustomize.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "watch"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    from ray.cluster_utils import Cluster

    small = {
        "num_cpus": 1,
        "memory": 4 * 10**9,
        "object_store_memory": 100 * 2**20,
        "include_dashboard": False,
    }
    head = {**small, "node_ip_address": HOST, "_system_config": _SYSTEM}
    before = signal.getsignal(signal.SIGTERM)
    found = started(lambda: Cluster(initialize_head=True, head_node_args=head))
    signal.signal(signal.SIGTERM, before)  # Ray takes it for itself, for good
    monkeypatch.delenv("PYTHONPATH")
    found.small = small
    found.watch = str(tmp_path / "watch")
    try:
        yield found
    finally:
        found.shutdown()


def batch(studio: Path, *more: str) -> list[str]:
    recipe, inside, out = (str(studio / name) for name in ("a-recipe.json", "in", "out"))
    return [
        "batch",
        "--recipe",
        recipe,
        "--in",
        inside,
        "--out",
        out,
        "--save",
        "checkpoint,lora",
        *more,
    ]


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + LONG
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.fleet
@pytest.mark.slow
@pico.posix
def test_a_node_dies_and_nothing_is_lost_or_done_twice(studio: Path, cluster: Any) -> None:
    doomed = studio / "doomed"
    variables = {"FLEET_DOOMED": str(doomed), "PYTHONPATH": cluster.watch}
    node = started(
        lambda: cluster.add_node(**cluster.small, node_ip_address=HOST, env_vars=variables)
    )
    # Without the cache, or rows would reach the others through the disk that these machines share.
    command = batch(studio, "--on", "ray", "--address", cluster.address, "--no-cache", "--json")
    driver = subprocess.Popen(
        mini.command(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(doomed, driver)
        cluster.remove_node(node, allow_graceful=False)
        said, errors = driver.communicate(timeout=LONG)
    finally:
        driver.kill()
    assert driver.returncode == 1, errors
    models = {Path(one["model"]).stem: one for one in json.loads(said)["models"]}
    killer = models.pop("killer")
    assert killer["status"] == "failed" and f"Its worker died {TRIES} times" in killer["detail"]
    assert {name: one["status"] for name, one in models.items()} == dict.fromkeys(
        MODELS[:-1], "cleaned"
    )
    assert models["other"]["encoded"] > 0, "each text encoder is encoded once"
    assert sorted(bool(models[name]["encoded"]) for name in "ab") == [False, True]

    names = [f"{name}{end}.safetensors" for name in models for end in ("-erased", "-eraser-lora")]
    written = studio / "written"
    assert Counter(written.read_text().split()) == Counter(names), "each file is written once"
    assert {path.name for path in (studio / "out").iterdir()} == {
        *names,
        "fleet-ledger.jsonl",
    }, "nothing half done"
    (studio / "in" / "killer.safetensors").unlink()
    assert (
        main([*batch(studio, "--quiet")[:6], str(studio / "local"), *batch(studio, "--quiet")[7:]])
        == 0
    )
    for name in names:
        assert (studio / "out" / name).read_bytes() == (studio / "local" / name).read_bytes(), name

    ledger = studio / "out" / "fleet-ledger.jsonl"
    lines = {
        Path(entry["model"]).stem: entry
        for entry in map(json.loads, ledger.read_text().splitlines())
    }
    assert lines.keys() == set(MODELS) and lines["killer"]["status"] == "failed"
    assert sorted(entry["attempts"] for entry in lines.values()) == [
        1,
        1,
        2,
        TRIES,
    ], "the lost one, and the killer"

    # A second run does what is missing alone: here the report about one model, which a kill kept
    # out of the ledger.
    ledger.write_bytes(ledger.read_bytes()[:-20])
    before, stamps = (
        written.read_text(),
        {name: (studio / "out" / name).stat().st_mtime_ns for name in names},
    )
    again = mini.run(*command, timeout=LONG)
    assert again.returncode == 0, again.stderr
    assert {one["detail"] for one in json.loads(again.stdout)["models"]} == {"Already done."}
    assert written.read_text() == before
    assert {name: (studio / "out" / name).stat().st_mtime_ns for name in names} == stamps


@pytest.mark.fleet
@pytest.mark.slow
@pico.posix
def test_one_is_started_where_there_is_none_and_stops_when_asked(studio: Path) -> None:
    """On this machine alone, from and to URLs. What was done before the signal is not done
    again.
    """
    places = (
        "--in",
        f"file://{studio / 'in'}",
        "--out",
        f"file://{studio / 'out'}",
        "--scratch",
        studio / "scratch",
    )
    ledger, more = (
        studio / "ledger.jsonl",
        (
            "--on",
            "ray",
            "--jobs",
            "1",
            "--json-lines",
            "--save",
            "lora",
        ),
    )
    command = (
        "batch",
        "--recipe",
        studio / "a-recipe.json",
        *places,
        "--ledger",
        ledger,
        "--include",
        "[abo]*",
        *more,
    )
    driver = subprocess.Popen(
        mini.command(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(studio / "out" / "a-eraser-lora.safetensors", driver)
        driver.terminate()
        said = driver.communicate(timeout=LONG)
    finally:
        driver.kill()
    assert driver.returncode == 128 + signal.SIGTERM, said
    early = {path.name: path.stat().st_mtime_ns for path in (studio / "out").iterdir()}
    whole = {f"{name}-eraser-lora.safetensors" for name in ("a", "b", "other")}
    assert early.keys() < whole and not list((studio / "scratch").iterdir()), (
        "nothing half done, no scratch left"
    )

    found = mini.run(*command, timeout=LONG)
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert lines[-1]["failed"] == 0 and lines[-1]["cleaned"] == len(whole) - len(early)
    assert all(
        file.startswith("file://") for line in lines[:-1] for file in line.get("files", {}).values()
    )
    now = {path.name: path.stat().st_mtime_ns for path in (studio / "out").iterdir()}
    assert now.keys() == whole and {name: now[name] for name in early} == early


def test_a_dry_run_needs_no_cluster_and_writes_nothing(
    studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(batch(studio, "--on", "ray", "--dry-run", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    encoders = {Path(one["model"]).stem: one["encoder"] for one in found["models"]}
    assert found["ready"] == len(MODELS) and encoders["a"] == encoders["b"] != encoders["other"]
    assert all(one["memory"] > 1e9 for one in found["models"]) and not (studio / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--address", "auto"], "--address needs --on ray."),
        (["--in", "s3://bucket/x"], "URLs need --on ray"),
        (["--on", "ray", "--out", "s3://bucket/x"], "give --ledger FILE"),
        (["--on", "ray", "--device", "cuda:1"], "Ray chooses which"),
        (["--on", "ray", "--threads", "0"], "--threads is 0"),
        (["--on", "ray", "--jobs", "0"], "--jobs is 0"),
    ],
)
def test_bad_usage_is_answered_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    common = [
        "batch",
        "--recipe",
        str(tmp_path / "no.json"),
        "--in",
        str(tmp_path),
        "--out",
        str(tmp_path / "o"),
    ]
    assert main([*common, *more]) == 2
    assert said in capsys.readouterr().err


def test_without_ray_it_says_what_to_install(
    studio: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(batch(studio, "--on", "ray", "--json")) == 1
    said = json.loads(capsys.readouterr().out)
    assert (
        said["error"]["code"] == "missing-package"
        and "speed-erase[fleet]" in said["error"]["message"]
    )


@pytest.mark.parametrize("address", ["ray://127.0.0.1:{}", "127.0.0.1:{}"])
def test_a_cluster_that_does_not_answer_is_named(
    studio: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # whose `init` would try for minutes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = address.format(free.getsockname()[1])
    assert main(batch(studio, "--on", "ray", "--address", where, "--json")) == 1
    said = json.loads(capsys.readouterr().out)["error"]
    assert said["code"] == "settings" and said["message"].startswith(
        f"Cannot reach a Ray cluster at {where}: "
    )


@pytest.mark.parametrize("slow", [TRIES - 1, TRIES])
def test_a_cluster_of_a_busy_machine_may_be_slow_to_start(
    monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    from speed_erase.speed_ops.errors import SettingsError
    from speed_erase.speed_ops.fleet.scheduler import Cluster, connected

    asked = []

    def init(**how: object) -> None:
        asked.append(how)
        if len(asked) <= slow:
            raise Exception("The current node timed out during startup.")

    ray = ModuleType("ray")
    ray.init, ray.shutdown = init, lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    if slow < TRIES:
        with connected(Cluster()) as found:
            assert found is ray and len(asked) == TRIES
    else:
        with (
            pytest.raises(SettingsError, match=r"a Ray cluster on this machine: .*timed out"),
            connected(Cluster()),
        ):
            pass


def test_no_usage_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray does so unless it is told not to."""
    from speed_erase.speed_ops.errors import MissingPackageError
    from speed_erase.speed_ops.fleet.scheduler import Cluster, connected

    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    with pytest.raises(MissingPackageError), connected(Cluster()):
        pass
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
