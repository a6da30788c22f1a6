"""`batch`: resumable, never its own food, and one bad file does not stop the rest."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import mini
import mini_dit
import pico
import pytest
import torch
from safetensors.torch import save_file

from speed_erase.speed_ops.checkpoints import batch as batches
from speed_erase.speed_ops.checkpoints.batch import (
    Candidate,
    Done,
    classify,
    find_models,
    for_each,
)
from speed_erase.speed_ops.checkpoints.output_files import PRODUCTS, OutputFiles
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.console import Console
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import FileError, NotFoundError, SpeedError
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.provenance import build_metadata
from speed_erase.speed_ops.recipe import Recipe, StoredJob, recipe_of, same_form
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.retain_set import RetainSet, builtin_retain


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two good models, two bad files, and a recipe."""
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    mini.write_model(tmp_path / "in" / "a.safetensors")
    mini.write_model(tmp_path / "in" / "b.safetensors", seed=1)
    (tmp_path / "in" / "broken.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    (tmp_path / "in" / "old.ckpt").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "in" / "notes.txt").write_text("not a model")
    names = builtin_retain("artists").limit(12)
    job = Job.of(parse_concepts(mini.CONCEPTS, "style"), names, EraseSettings.preset("few"))
    recipe_of(job).write(tmp_path / "a-recipe.json")
    return tmp_path


def command(studio: Path, *more: str, source: str = "in", out: str = "out") -> list[str]:
    recipe = str(studio / "a-recipe.json")
    paths = ["--recipe", recipe, "--in", str(studio / source), "--out", str(studio / out)]
    return ["batch", *paths, *more]


def batch(
    studio: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, str]]:
    code = main(command(studio, "--json", *more))
    models = json.loads(capsys.readouterr().out)["models"]
    return code, {Path(model["model"]).name: model["status"] for model in models}


def test_batch_resumes_and_survives_bad_files(
    studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # In a process of its own: two threads need the same packages for the first time.
    first = mini.run(*command(studio, "--json", "--jobs", "2"))
    bad = {"broken.safetensors": "failed", "old.ckpt": "failed"}
    assert first.returncode == 1, first.stderr
    models = json.loads(first.stdout)["models"]
    assert {Path(model["model"]).name: model["status"] for model in models} == {
        "a.safetensors": "cleaned",
        "b.safetensors": "cleaned",
        **bad,
    }, models
    assert len(list((studio / "out").iterdir())) == 2 * len(PRODUCTS)

    stamps = {path: path.stat().st_mtime_ns for path in (studio / "out").iterdir()}
    skipped = {"a.safetensors": "skipped", "b.safetensors": "skipped"}
    assert batch(studio, capsys) == (1, skipped | bad)
    assert {path: path.stat().st_mtime_ns for path in (studio / "out").iterdir()} == stamps

    for name in bad:
        (studio / "in" / name).unlink()
    # A run that was killed at its very end leaves only these; nothing is written again.
    leftover, lock = studio / "out" / ".a.speed-tmp", studio / "out" / ".a-0.speed-lock"
    leftover.mkdir()
    lock.touch()
    os.utime(leftover, (time.time() - 60,) * 2)
    assert batch(studio, capsys)[0] == 0
    assert not leftover.exists() and not lock.exists()

    for name in (
        "b-erased.safetensors",
        "b-eraser-lora.safetensors",
        "b-recipe.json",
        "b-README.md",
        "b-report.html",
    ):
        (studio / "out" / name).unlink()
    assert batch(studio, capsys) == (0, {"a.safetensors": "skipped", "b.safetensors": "cleaned"})


def test_a_changed_model_is_not_taken_for_finished(
    studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("broken.safetensors", "old.ckpt", "b.safetensors"):
        (studio / "in" / name).unlink()
    assert batch(studio, capsys, "--save", "lora") == (0, {"a.safetensors": "cleaned"})
    mini.write_model(studio / "in" / "a.safetensors", seed=7)
    assert batch(studio, capsys, "--save", "lora") == (1, {"a.safetensors": "failed"})
    assert batch(studio, capsys, "--save", "lora", "--force") == (0, {"a.safetensors": "cleaned"})


def test_results_without_names_are_known_by_what_they_erase(
    studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job with as many other names leaves the same numbers in every file."""
    options = ("--no-names", "--include", "a.*")
    assert batch(studio, capsys, *options) == (0, {"a.safetensors": "cleaned"})
    stamps = {path: path.stat().st_mtime_ns for path in (studio / "out").iterdir()}
    assert batch(studio, capsys, *options, "--dry-run") == (0, {"a.safetensors": "skipped"})
    assert batch(studio, capsys, *options) == (0, {"a.safetensors": "skipped"})

    recipe = Recipe.read(studio / "a-recipe.json")
    concepts = tuple(
        replace(concept, target=f"Otto {number}", aliases=tuple("Ida" for _ in concept.aliases))
        for number, concept in enumerate(recipe.concepts)
    )
    another = replace(recipe, concepts=concepts)
    assert same_form(another.without_names(), recipe.without_names())
    another.write(studio / "a-recipe.json", force=True)
    assert batch(studio, capsys, *options) == (1, {"a.safetensors": "failed"})
    recipe.write(studio / "a-recipe.json", force=True)
    mini.write_model(studio / "in" / "a.safetensors", seed=7)
    assert batch(studio, capsys, *options) == (1, {"a.safetensors": "failed"})
    assert {path: path.stat().st_mtime_ns for path in (studio / "out").iterdir()} == stamps


def test_empty_folder_is_refused(
    tmp_path: Path, studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nothing").mkdir()
    assert main(command(studio, "--json", source="nothing")) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "not-found"


def test_results_next_to_the_models_are_not_models(
    studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("broken.safetensors", "old.ckpt"):
        (studio / "in" / name).unlink()
    common = command(studio, "--json", out="in")
    assert main(common) == 0
    capsys.readouterr()
    before = sorted(path.name for path in (studio / "in").iterdir())
    assert len(before) == 3 + 2 * len(PRODUCTS)
    assert main(common) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cleaned"], found["failed"]) == (0, 0) and found["skipped"] == 2 + 2 * 2
    details = {Path(model["model"]).name: model["detail"] for model in found["models"]}
    for name in ("a-erased", "a-eraser-lora"):
        assert "a.safetensors" in details[f"{name}.safetensors"], "it names the model"
    assert sorted(path.name for path in (studio / "in").iterdir()) == before


def test_a_batch_that_is_interrupted_leaves_the_others_done(
    studio: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: Console, text: str = "") -> None:
        if "a.safetensors: cleaned" in text:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Console, "say", interrupt)
        assert main(command(studio, "--save", "lora")) == 130
    assert [path.name for path in (studio / "out").iterdir()] == ["a-eraser-lora.safetensors"]
    code, status = batch(
        studio, capsys, "--save", "lora", "--exclude", "old.*", "--exclude", "broken.*"
    )
    assert code == 0 and status == {"a.safetensors": "skipped", "b.safetensors": "cleaned"}


def test_every_model_has_its_line(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("a.safetensors", "b.safetensors", "broken.safetensors", "old.ckpt")
    statuses = ("cleaned", "cleaned", "failed", "failed")
    assert main(command(studio, "--save", "lora")) == 1
    lines = capsys.readouterr().out.splitlines()
    for number, (name, status) in enumerate(zip(names, statuses, strict=True), 1):
        assert lines[number - 1].startswith(f"[{number}/4] {name}: {status}")
    assert main(command(studio, "--save", "lora", "--json-lines", out="out2")) == 1
    *models, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert tuple(model["status"] for model in models) == statuses
    assert models[0]["files"].keys() == {"lora"} and models[3]["error"]["code"] == "file"
    assert total == {"cleaned": 2, "skipped": 0, "failed": 2}
    assert main(command(studio, "--json-lines", "--include", "no such", out="out3")) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["error"]["code"] == "not-found"


JOB = Job.of(parse_concepts("Van Gogh -> art", "style"), RetainSet(), EraseSettings.preset("few"))
STORED = StoredJob(JOB, 1.0, None, ())


def found(folder: Path, out: Path, **choices: Any) -> dict[str, Candidate]:
    """{path below the folder: model}, classified."""
    models = find_models(folder, OutputFiles(out, PRODUCTS), **choices)
    return {model.name: model for model in classify(models, STORED, None)}


def statuses(models: dict[str, Candidate]) -> dict[str, str]:
    return {name: model.known.status if model.known else "ready" for name, model in models.items()}


def test_results_of_this_recipe_are_known_wherever_they_are(tmp_path: Path) -> None:
    """In a folder of an earlier batch, for example, which is searched now; another recipe's may be
    erased further.
    """
    content = pico.write_checkpoint(tmp_path / "m.safetensors")
    for name, job in (
        ("same", JOB),
        ("other", Job.of(JOB.concepts, RetainSet(), EraseSettings.preset("multi"))),
    ):
        header = build_metadata(by_name("sd1"), "checkpoint", recipe_of(job), {})
        (tmp_path / name).mkdir()
        save_file(content, tmp_path / name / "m-erased.safetensors", metadata=header)
    header = build_metadata(
        by_name("sd1"), "checkpoint", recipe_of(job, history=[recipe_of(JOB).as_earlier()]), {}
    )
    save_file(content, tmp_path / "twice.safetensors", metadata=header)
    models = found(tmp_path, tmp_path / "out", recursive=True)
    ready = {name for name, status in statuses(models).items() if status == "ready"}
    assert ready == {"m.safetensors", "other/m-erased.safetensors"} and len(models) == 4
    assert statuses(models)["same/m-erased.safetensors"] == "skipped"


@pico.posix
def test_folders_are_mirrored_and_some_are_not_searched(tmp_path: Path) -> None:
    names = (
        "a.safetensors",
        "x/a.safetensors",
        "x/y/b.SAFETENSORS",
        ".hidden/c.safetensors",
        "out/d.safetensors",
    )
    for name in (*names, "x/.e.safetensors"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        pico.write_checkpoint(tmp_path / "in" / name)
    pico.write_folder(tmp_path / "in" / "x" / "folder")
    (tmp_path / "in" / "x" / "loop").symlink_to(tmp_path / "in", target_is_directory=True)
    (tmp_path / "in" / "twin").symlink_to(tmp_path / "in" / "x", target_is_directory=True)
    out = tmp_path / "in" / "out"
    models = found(tmp_path / "in", out, recursive=True)
    expected = {"a.safetensors", "twin/a.safetensors", "twin/folder", "twin/y/b.SAFETENSORS"}
    assert set(models) in (expected, {name.replace("twin", "x") for name in expected})
    for name, model in models.items():
        assert model.outputs.folder == out / Path(name).parent
    assert set(found(tmp_path / "in", out)) == {"a.safetensors"}


def test_patterns_choose_by_the_path_below_the_folder(tmp_path: Path) -> None:
    for name in (
        "one.safetensors",
        "sdxl/one.safetensors",
        "sdxl/two.safetensors",
        "old/one.safetensors",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pico.write_checkpoint(tmp_path / name)

    def selection(**choices: Any) -> set[str]:
        return set(found(tmp_path, tmp_path / "out", recursive=True, **choices))

    assert selection(include=["sdxl/*"]) == {"sdxl/one.safetensors", "sdxl/two.safetensors"}
    assert selection(include=["sdxl/*", "one.*"], exclude=["*/two.*"]) == {
        "one.safetensors",
        "sdxl/one.safetensors",
    }
    assert selection(exclude=["*/*"]) == {"one.safetensors"}
    with pytest.raises(NotFoundError):
        selection(include=["SDXL/*"])


def test_models_that_would_be_written_to_one_place_are_refused(tmp_path: Path) -> None:
    pico.write_checkpoint(tmp_path / "a.safetensors")
    pico.write_folder(tmp_path / "a")
    # The folder and the file have a checkpoint of other names, and share recipe and report.
    with pytest.raises(FileError, match=r"a and .*a\.safetensors .*a-eraser-lora"):
        found(tmp_path, tmp_path / "out")
    assert set(found(tmp_path, tmp_path / "out", exclude=["a"])) == {"a.safetensors"}
    shutil.rmtree(tmp_path / "a")
    # cannot be read, so it blocks nothing
    (tmp_path / "a.ckpt").write_bytes(b"\x80\x02}q\x00.")
    assert statuses(found(tmp_path, tmp_path / "out")) == {
        "a.ckpt": "failed",
        "a.safetensors": "ready",
    }


def test_names_that_differ_in_case_alone_are_refused(
    tmp_path: Path, studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("Model.safetensors", "model.safetensors"):
        pico.write_checkpoint(models / name)
    if len(list(models.iterdir())) == 1:
        pytest.skip("here they are one file")
    assert main(command(studio, source="models", out="o")) == 1
    message = capsys.readouterr().err
    assert all(str(models / f"{name}.safetensors") in message for name in ("Model", "model"))
    assert not (tmp_path / "o").exists()


def test_a_result_never_takes_the_place_of_a_model(tmp_path: Path) -> None:
    for name in ("m.safetensors", "m-erased.safetensors"):
        pico.write_checkpoint(tmp_path / name)
    with pytest.raises(FileError, match=r"m\.safetensors .*m-erased\.safetensors"):
        found(tmp_path, tmp_path)
    assert len(found(tmp_path, tmp_path / "out")) == 2


def _pieces(folder: Path) -> dict[str, str]:
    """{file: what is to become of it}"""
    ones = torch.ones(2, 2)
    other = {
        "lora": ("lora_unet_x.lora_up.weight", "lora_unet_x.lora_down.weight"),
        "vae": ("first_stage_model.decoder.up.0.weight",),
        "clip": ("text_model.encoder.layers.0.mlp.fc1.weight",),
        "embedding": ("emb_params",),
        "control": ("control_model.input_blocks.0.0.weight",),
        "unknown": ("what",),
    }
    for name, keys in other.items():
        save_file({key: ones.clone() for key in keys}, folder / f"{name}.safetensors")
    unet = mini.unet_tensors("sd1", layout="diffusers")
    control = {key.removeprefix("unet/"): value for key, value in unet.items()} | {
        "controlnet_cond_embedding.x": ones
    }
    save_file(control, folder / "control2.safetensors")
    save_file({"cond_seq_linear.weight": ones}, folder / "auraflow.safetensors")
    mini_dit.write_dit(folder / "sd3.safetensors", "sd3")
    pico.write_checkpoint(folder / "model.safetensors")
    passed = dict.fromkeys([*other, "control2"], "skipped")
    return passed | {"auraflow": "ready", "sd3": "ready", "model": "ready"}


def test_what_holds_no_model_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    expected = _pieces(tmp_path)
    models = found(tmp_path, tmp_path / "out")
    assert statuses(models) == {f"{name}.safetensors": status for name, status in expected.items()}
    for name, reason in (("lora", "LoRA"), ("vae", "VAE"), ("control", "ControlNet")):
        known = models[f"{name}.safetensors"].known
        assert known is not None and reason in known.detail


def test_a_model_that_cannot_be_edited_is_a_failure(
    tmp_path: Path, studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It still holds the concept, which a list of skipped files would hide."""
    (tmp_path / "pieces").mkdir()
    _pieces(tmp_path / "pieces")
    choices = ["--exclude", "sd3*", "--exclude", "model*"]
    assert main(command(studio, "--json", *choices, source="pieces")) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["failed"], result["skipped"]) == (1, 7)
    (failed,) = (model for model in result["models"] if model["status"] == "failed")
    assert failed["model"].endswith("auraflow.safetensors")
    assert failed["error"]["code"] == "unsupported-model"


def _candidates(folder: Path, count: int) -> list[Candidate]:
    outputs = OutputFiles(folder, PRODUCTS)
    return [Candidate(folder / f"{n}.safetensors", outputs, str(n)) for n in range(count)]


def test_each_is_reported_as_soon_as_it_is_done(tmp_path: Path) -> None:
    reports: list[str] = []
    first_report = threading.Event()

    def work(model: Candidate, stopping: threading.Event) -> Done:
        assert model.name != "1" or first_report.wait(30)
        return Done(model.name, "cleaned", "")

    def on_done(count: int, model: Candidate, done: Done) -> None:
        reports.append(f"{count} {model.name}")
        first_report.set()

    results = for_each(_candidates(tmp_path, 2), work, on_done)
    assert reports == ["1 0", "2 1"] and [done.model for done in results] == ["0", "1"]


def test_a_fault_while_reporting_stops_the_work(tmp_path: Path) -> None:
    """The reader of the output has gone, for example."""
    begun: list[str] = []

    def work(model: Candidate, stopping: threading.Event) -> Done:
        begun.append(model.name)
        assert model.name == "0" or stopping.wait(30)
        return Done(model.name, "cleaned", "")

    def on_done(count: int, model: Candidate, done: Done) -> None:
        raise SpeedError("gone")

    with pytest.raises(SpeedError, match="gone"):
        for_each(_candidates(tmp_path, 9), work, on_done)
    assert len(begun) <= 2


def test_stopped_before_all_have_begun_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to stop may come while the models are still being handed out."""
    submit, stopped = ThreadPoolExecutor.submit, threading.Event()

    def interrupt(self: ThreadPoolExecutor, work: Any, model: Candidate, *more: Any) -> Any:
        if model.name == "2":
            raise KeyboardInterrupt
        return submit(self, work, model, *more)

    def work(model: Candidate, stopping: threading.Event) -> Done:
        if stopping.wait(30):
            stopped.set()
        return Done(model.name, "cleaned", "")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        for_each(_candidates(tmp_path, 4), work, lambda *_: None)
    assert stopped.is_set()


def test_an_unexpected_fault_of_one_model_is_its_own(
    studio: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = batches.clean_file

    def fail(path: Path, *rest: object, **more: object) -> object:
        if path.name == "a.safetensors":
            raise MemoryError
        return clean(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(batches, "clean_file", fail)
    code, status = batch(studio, capsys, "--save", "lora", "--include", "[ab].safetensors")
    assert code == 1 and status == {"a.safetensors": "failed", "b.safetensors": "cleaned"}


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").mkdir()
    entries = Path.iterdir

    def refuse(self: Path) -> Iterator[Path]:
        if self.name == "locked":
            raise PermissionError(13, "Permission denied")
        return entries(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(FileError, match="locked"):
        found(tmp_path, tmp_path / "out", recursive=True)
