"""`batch`: resumable, and one bad file does not stop the rest."""

from __future__ import annotations

import json
from pathlib import Path

import mini
import pytest

from speed_erase.speed_ops.cli import main as main


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two good models, two bad files, and a recipe made on one of them."""
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    mini.write_model(tmp_path / "in" / "a.safetensors")
    mini.write_model(tmp_path / "in" / "b.safetensors", seed=1)
    (tmp_path / "in" / "broken.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    (tmp_path / "in" / "old.ckpt").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "in" / "notes.txt").write_text("not a model")
    common = ["--concepts", mini.CONCEPTS, *mini.QUICK, "--save", "recipe", "--out", str(tmp_path), "--quiet"]
    assert main(["erase", str(tmp_path / "in" / "a.safetensors"), *common]) == 0
    return tmp_path


def batch(studio: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, str]]:
    recipe, inside, out = (str(studio / name) for name in ("a-recipe.json", "in", "out"))
    code = main(["batch", "--recipe", recipe, "--in", inside, "--out", out, "--json", *more])
    found = json.loads(capsys.readouterr().out)
    return code, {Path(one["model"]).name: one["status"] for one in found["models"]}


def test_batch_resumes_and_survives_bad_files(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, status = batch(studio, capsys, "--jobs", "2")
    bad = {"broken.safetensors": "failed", "old.ckpt": "failed"}
    assert code == 1 and status == {"a.safetensors": "cleaned", "b.safetensors": "cleaned", **bad}
    assert len(list((studio / "out").iterdir())) == 8

    stamps = {path: path.stat().st_mtime_ns for path in (studio / "out").iterdir()}
    code, status = batch(studio, capsys)
    assert status == {"a.safetensors": "skipped", "b.safetensors": "skipped", **bad}
    assert {path: path.stat().st_mtime_ns for path in (studio / "out").iterdir()} == stamps

    for name in bad:
        (studio / "in" / name).unlink()
    assert batch(studio, capsys)[0] == 0

    for name in ("b-erased.safetensors", "b-eraser-lora.safetensors", "b-recipe.json", "b-report.html"):
        (studio / "out" / name).unlink()
    assert batch(studio, capsys) == (0, {"a.safetensors": "skipped", "b.safetensors": "cleaned"})


def test_a_changed_model_is_not_taken_for_finished(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("broken.safetensors", "old.ckpt", "b.safetensors"):
        (studio / "in" / name).unlink()
    assert batch(studio, capsys, "--save", "lora") == (0, {"a.safetensors": "cleaned"})
    mini.write_model(studio / "in" / "a.safetensors", seed=7)
    assert batch(studio, capsys, "--save", "lora") == (1, {"a.safetensors": "failed"})
    assert batch(studio, capsys, "--save", "lora", "--force") == (0, {"a.safetensors": "cleaned"})


def test_empty_folder_is_refused(tmp_path: Path, studio: Path) -> None:
    (tmp_path / "nothing").mkdir()
    arguments = [
        "batch",
        "--recipe",
        str(studio / "a-recipe.json"),
        "--in",
        str(tmp_path / "nothing"),
        "--out",
        str(tmp_path / "o"),
    ]
    assert main(arguments) == 1
