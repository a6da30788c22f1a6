"""A dry run reports what would be read, encoded and written, refuses what would be refused, and
writes nothing.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import mini
import pico
import pytest

from speed_erase.speed_ops.checkpoints import plan as plans
from speed_erase.speed_ops.cli import main as main


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and a recipe."""
    folder = tmp_path_factory.mktemp("studio")
    (folder / "in").mkdir()
    mini.write_model(folder / "in" / "a.safetensors")
    shutil.copyfile(folder / "in" / "a.safetensors", folder / "in" / "b.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEED_ERASE_CACHE", str(folder / "cache"))
        assert main(erase(folder, folder, "--save", "recipe", "--quiet")) == 0
    return folder


@pytest.fixture(autouse=True)
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path / "cache"))


def erase(studio: Path, out: Path, *flags: str) -> list[str]:
    model = str(studio / "in" / "a.safetensors")
    return ["erase", model, "--concepts", mini.CONCEPTS, *mini.QUICK, "--out", str(out), *flags]


def apply(studio: Path, out: Path, *flags: str) -> list[str]:
    files = [str(studio / "a-recipe.json"), str(studio / "in" / "a.safetensors")]
    return ["apply", *files, "--out", str(out), *flags]


def batch(studio: Path, out: Path, *flags: str) -> list[str]:
    files = ["--recipe", str(studio / "a-recipe.json"), "--in", str(studio / "in")]
    return ["batch", *files, "--out", str(out), *flags]


def run(studio: Path, out: Path, *more: str) -> list[str]:
    job = {
        "model": str(studio / "in" / "a.safetensors"),
        "concepts": [mini.CONCEPTS],
        "retain": ["artists"],
        "retain_limit": 12,
        "settings": {"preset": "few"},
        "output": str(out),
    }
    (out.parent / "job.yaml").write_text(json.dumps(job))
    return ["run", str(out.parent / "job.yaml"), *more]


def tree(*folders: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and its time."""
    files = [path for folder in folders for path in sorted(folder.rglob("*"))]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def machine(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", [erase, apply, batch, run])
def test_nothing_is_written(
    command: Any, studio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(studio, tmp_path / "out", "--dry-run")
    before = tree(studio, tmp_path)
    for flags in ([], ["--json"], ["--quiet"]):
        assert main([*arguments, *flags]) == 0
        assert tree(studio, tmp_path) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [erase, apply, run])
def test_what_it_plans_is_what_happens(
    command: Any, studio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(studio, tmp_path / "out", "--json")
    assert main([*arguments, "--dry-run"]) == 0
    planned = machine(capsys)
    assert planned["dry_run"] is True and planned["family"] == "Stable Diffusion 1.x"
    assert planned["reads"] == {
        str(studio / "in" / "a.safetensors"): (studio / "in" / "a.safetensors").stat().st_size
    }
    assert planned["cached"] == 0 and planned["seconds"] > 0
    assert main(arguments) == 0
    done = machine(capsys)
    assert {product: entry["path"] for product, entry in planned["writes"].items()} == done["files"]
    assert done["encoded"] <= planned["texts"] <= done["encoded"] + 5
    assert planned["layers"] == len(done["certificate"]["layers"])
    for product, entry in planned["writes"].items():
        size = Path(entry["path"]).stat().st_size
        assert 0.3 * size <= entry["bytes"] + 20_000 and entry["bytes"] <= 3 * size + 20_000, (
            product
        )
    again = command(studio, tmp_path / "again", "--json", "--dry-run")
    assert main(again) == 0
    assert machine(capsys)["cached"] >= done["encoded"] - 2


def test_people_read_the_same(
    studio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(erase(studio, tmp_path / "out", "--dry-run", "--save", "checkpoint,lora")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Stable Diffusion 1.x" in lines[0]
    assert [line.split()[0] for line in lines[1:-1]] == ["reads", "checkpoint", "lora", "Encodes"]


def test_without_a_cache_nothing_counts_as_cached(
    studio: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(studio / "cache"))
    for flags, reused in (([], True), (["--no-cache"], False)):
        assert main(erase(studio, tmp_path / "out", "--dry-run", "--json", *flags)) == 0
        assert (machine(capsys)["cached"] > 0) is reused


def test_of_a_large_encoder_one_block_is_tried_and_its_cache_left_alone(
    studio: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(plans, "QUICK_PARAMETERS", 10)
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(studio / "cache"))
    assert main(erase(studio, tmp_path / "out", "--dry-run", "--json")) == 0
    plan = machine(capsys)
    assert plan["cached"] is None and plan["seconds"] > 0 and plan["texts"] > 0
    assert main(erase(studio, tmp_path / "out", "--dry-run")) == 0
    assert "cache" not in capsys.readouterr().out


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_without_room_is_refused(
    studio: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 1000, 1000))
    # A LoRA and a recipe alone are checked by nothing else before the work.
    small = erase(studio, tmp_path / "out", "--save", "lora,recipe")
    commands = [command(studio, tmp_path / "out") for command in (erase, apply, run)]
    for arguments in (*commands, small):
        assert main([*arguments, "--dry-run", "--json"]) == 1
        assert machine(capsys)["error"]["code"] == "no-space"


def test_a_batch_must_fit_as_a_whole(
    studio: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(batch(studio, tmp_path / "out", "--dry-run", "--json", "--save", "lora")) == 0
    result = machine(capsys)
    assert (result["ready"], result["failed"]) == (2, 0)
    space = int(1.5 * result["models"][0]["writes"]["lora"]["bytes"])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - space, space))
    assert main(batch(studio, tmp_path / "out", "--dry-run", "--json", "--save", "lora")) == 1
    result = machine(capsys)
    assert [entry["status"] for entry in result["models"]] == ["ready", "failed"]
    assert result["models"][1]["error"]["code"] == "no-space"


def _unet_alone(folder: Path) -> Path:
    from safetensors.torch import save_file

    save_file(mini.unet_tensors("sd1"), folder / "unet.safetensors")
    return folder / "unet.safetensors"


def test_what_would_be_refused_is_refused(
    studio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "a-recipe.json").write_text("mine")
    (tmp_path / "file").write_text("not a folder")
    pico.write_checkpoint(tmp_path / "pico.safetensors")
    model, out = str(studio / "in" / "a.safetensors"), str(tmp_path / "out")
    concepts = ["--concepts", mini.CONCEPTS, *mini.QUICK]
    missing, unet = str(tmp_path / "missing.safetensors"), str(_unet_alone(tmp_path))
    long_name = ["--concepts", " ".join("abcdefgh" * 12), *mini.QUICK]
    refused = (
        ("exists", ["erase", model, *concepts, "--out", str(tmp_path / "taken")]),
        ("file", ["erase", model, *concepts, "--out", str(tmp_path / "file" / "out")]),
        ("file", ["erase", unet, *concepts, "--out", out]),
        ("not-found", ["erase", missing, *concepts, "--out", out]),
        ("input", ["erase", model, *long_name, "--out", out]),
        ("file", ["erase", model, *concepts, "--out", out, "--tokenizer", str(tmp_path)]),
        ("settings", ["erase", model, *concepts, "--out", out, "--clip-skip", "40"]),
    )
    for code, arguments in refused:
        before = tree(tmp_path)
        assert main([*arguments, "--dry-run", "--json"]) == 1
        assert machine(capsys)["error"]["code"] == code, arguments
        assert tree(tmp_path) == before
        assert main([*arguments, "--json"]) == 1
        assert machine(capsys)["error"]["code"] == code, arguments


def test_a_batch_reports_each_model(
    studio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        shutil.copyfile(studio / "in" / "a.safetensors", tmp_path / "in" / f"{name}.safetensors")
    (tmp_path / "in" / "broken.safetensors").write_bytes(b"")
    arguments = ["batch", "--recipe", str(studio / "a-recipe.json"), "--in", str(tmp_path / "in")]
    arguments += ["--save", "lora", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--include", "a.*", "--quiet"]) == 0
    before = tree(tmp_path / "in", tmp_path / "out")
    assert main([*arguments, "--dry-run", "--json"]) == 1
    result = machine(capsys)
    statuses = {Path(entry["model"]).stem: entry["status"] for entry in result["models"]}
    assert statuses == {"a": "skipped", "b": "ready", "broken": "failed"}
    assert (result["ready"], result["skipped"], result["failed"]) == (1, 1, 1)
    assert main([*arguments, "--dry-run"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 ready, 1 skipped, 1 failed."
    assert tree(tmp_path / "in", tmp_path / "out") == before
