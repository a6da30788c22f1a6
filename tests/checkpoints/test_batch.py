"""`batch`: resumable, never its own food, and one bad file does not stop the rest."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mini
import mini_dit
import pico
import pytest
import torch
from safetensors.torch import save_file

from speed_erase.speed_ops.checkpoints import batch as batches
from speed_erase.speed_ops.checkpoints.batch import Candidate, Done, find_models, for_each, sort_out
from speed_erase.speed_ops.checkpoints.output_files import PRODUCTS, OutputFiles
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.console import Console
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import FileError, SpeedError
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.provenance import build_metadata
from speed_erase.speed_ops.recipe import StoredJob, recipe_of
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.retain_set import RetainSet


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
    common = [
        "--concepts",
        mini.CONCEPTS,
        *mini.QUICK,
        "--save",
        "recipe",
        "--out",
        str(tmp_path),
        "--quiet",
    ]
    assert main(["erase", str(tmp_path / "in" / "a.safetensors"), *common]) == 0
    return tmp_path


def batch(
    studio: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, str]]:
    recipe, inside, out = (str(studio / name) for name in ("a-recipe.json", "in", "out"))
    code = main(["batch", "--recipe", recipe, "--in", inside, "--out", out, "--json", *more])
    found = json.loads(capsys.readouterr().out)
    return code, {Path(one["model"]).name: one["status"] for one in found["models"]}


def test_batch_resumes_and_survives_bad_files(
    studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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

    for name in (
        "b-erased.safetensors",
        "b-eraser-lora.safetensors",
        "b-recipe.json",
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


def test_results_beside_the_models_are_not_models(
    studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("broken.safetensors", "old.ckpt"):
        (studio / "in" / name).unlink()
    recipe, inside = str(studio / "a-recipe.json"), str(studio / "in")
    common = ["batch", "--recipe", recipe, "--in", inside, "--out", inside, "--json"]
    assert main(common) == 0
    capsys.readouterr()
    before = sorted(path.name for path in (studio / "in").iterdir())
    assert len(before) == 3 + 2 * 4
    assert main(common) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cleaned"], found["failed"]) == (0, 0) and found["skipped"] == 2 + 2 * 2
    details = {Path(one["model"]).name: one["detail"] for one in found["models"]}
    assert details["a-erased.safetensors"] == "It is the result of an earlier run on a.safetensors."
    assert (
        details["a-eraser-lora.safetensors"]
        == "It is the result of an earlier run on a.safetensors."
    )
    assert sorted(path.name for path in (studio / "in").iterdir()) == before


def test_a_batch_that_is_interrupted_leaves_the_others_done(
    studio: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: Console, text: str = "") -> None:
        if "a.safetensors: cleaned" in text:
            raise KeyboardInterrupt

    common = [
        "batch",
        "--recipe",
        str(studio / "a-recipe.json"),
        "--in",
        str(studio / "in"),
        "--out",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Console, "say", interrupt)
        assert main([*common, str(studio / "out"), "--save", "lora"]) == 130
    assert [path.name for path in (studio / "out").iterdir()] == ["a-eraser-lora.safetensors"]
    code, status = batch(
        studio, capsys, "--save", "lora", "--exclude", "old.*", "--exclude", "broken.*"
    )
    assert code == 0 and status == {"a.safetensors": "skipped", "b.safetensors": "cleaned"}


def test_every_model_has_its_line(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [
        "batch",
        "--recipe",
        str(studio / "a-recipe.json"),
        "--in",
        str(studio / "in"),
        "--save",
        "lora",
    ]
    assert main([*common, "--out", str(studio / "out")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[1/4] a.safetensors: cleaned. ") and lines[1].startswith(
        "[2/4] b.safetensors: cleaned"
    )
    assert lines[2].startswith("[3/4] broken.safetensors: failed. ") and lines[3].startswith(
        "[4/4] old.ckpt: failed."
    )
    assert main([*common, "--out", str(studio / "out2"), "--json-lines"]) == 1
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one.get("status") for one in said] == ["cleaned", "cleaned", "failed", "failed", None]
    assert said[0]["files"].keys() == {"lora"} and said[3]["error"]["code"] == "file"
    assert said[-1] == {"cleaned": 2, "skipped": 0, "failed": 2}
    assert (
        main([*common, "--out", str(studio / "out3"), "--json-lines", "--include", "no such"]) == 1
    )
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["error"]["code"] == "not-found"


JOB = Job.of(parse_concepts("Van Gogh -> art", "style"), RetainSet(), EraseSettings.preset("few"))
STORED = StoredJob(JOB, 1.0, None, ())


def found(folder: Path, out: Path, **choices: object) -> dict[str, Candidate]:
    """By the path below the folder; looked at."""
    models = sort_out(find_models(folder, OutputFiles(out, PRODUCTS), **choices), STORED, None)  # type: ignore[arg-type]
    return {one.name: one for one in models}


def statuses(models: dict[str, Candidate]) -> dict[str, str]:
    return {name: one.known.status if one.known else "ready" for name, one in models.items()}


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
    assert (
        models["same/m-erased.safetensors"].known.detail
        == "This recipe has been applied to it before."
    )


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
    own = {"a.safetensors", "twin/a.safetensors", "twin/folder", "twin/y/b.SAFETENSORS"}
    assert set(models) in (own, {name.replace("twin", "x") for name in own})
    folders = {name: one.outputs.folder for name, one in models.items()}
    assert all(folder == out / Path(name).parent for name, folder in folders.items())
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

    def chosen(**choices: object) -> set[str]:
        return set(found(tmp_path, tmp_path / "out", recursive=True, **choices))

    assert chosen(include=["sdxl/*"]) == {"sdxl/one.safetensors", "sdxl/two.safetensors"}
    assert chosen(include=["sdxl/*", "one.*"], exclude=["*/two.*"]) == {
        "one.safetensors",
        "sdxl/one.safetensors",
    }
    assert chosen(exclude=["*/*"]) == {"one.safetensors"}
    with pytest.raises(FileError, match="--include"):
        chosen(include=["SDXL/*"])


def test_models_that_would_be_written_to_one_place_are_refused(tmp_path: Path) -> None:
    pico.write_checkpoint(tmp_path / "a.safetensors")
    pico.write_folder(tmp_path / "a")
    # The folder and the file have a checkpoint of other names, and share recipe and report.
    with pytest.raises(
        FileError, match=r"a and .*a\.safetensors would both be written to .*a-eraser-lora"
    ):
        found(tmp_path, tmp_path / "out")
    assert set(found(tmp_path, tmp_path / "out", exclude=["a"])) == {"a.safetensors"}
    shutil.rmtree(tmp_path / "a")
    # cannot be read, so it is in nobody's way
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
    arguments = [
        "batch",
        "--recipe",
        str(studio / "a-recipe.json"),
        "--in",
        str(models),
        "--out",
        str(tmp_path / "o"),
    ]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert str(models / "Model.safetensors") in said and str(models / "model.safetensors") in said
    assert not (tmp_path / "o").exists()


def test_a_result_never_takes_the_place_of_a_model(tmp_path: Path) -> None:
    for name in ("m.safetensors", "m-erased.safetensors"):
        pico.write_checkpoint(tmp_path / name)
    with pytest.raises(
        FileError, match=r"m\.safetensors would replace the model .*m-erased\.safetensors"
    ):
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
    wanted = _pieces(tmp_path)
    models = found(tmp_path, tmp_path / "out")
    assert statuses(models) == {f"{name}.safetensors": status for name, status in wanted.items()}
    reasons = {Path(name).stem: one.known.detail for name, one in models.items() if one.known}
    assert (
        reasons["lora"] == "It is a LoRA, not a model."
        and reasons["vae"] == "It looks like a VAE alone."
    )
    assert reasons["control"] == "It looks like a ControlNet." and reasons["unknown"].startswith(
        "It looks like a file"
    )


def test_a_model_that_cannot_be_edited_is_a_failure(
    tmp_path: Path, studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It still holds the concept, which a list of skipped files would hide."""
    (tmp_path / "pieces").mkdir()
    _pieces(tmp_path / "pieces")
    arguments = [
        "batch",
        "--recipe",
        str(studio / "a-recipe.json"),
        "--in",
        str(tmp_path / "pieces"),
    ]
    more = ["--out", str(tmp_path / "o"), "--json", "--exclude", "sd3*", "--exclude", "model*"]
    assert main([*arguments, *more]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["failed"], said["skipped"]) == (1, 7)
    (failed,) = (one for one in said["models"] if one["status"] == "failed")
    assert (
        failed["model"].endswith("auraflow.safetensors")
        and failed["error"]["code"] == "unsupported-model"
    )


def _candidates(folder: Path, count: int) -> list[Candidate]:
    outputs = OutputFiles(folder, PRODUCTS)
    return [Candidate(folder / f"{n}.safetensors", outputs, str(n)) for n in range(count)]


def test_each_is_told_of_as_soon_as_it_is_done(tmp_path: Path) -> None:
    told: list[str] = []
    first_was_told = threading.Event()

    def work(one: Candidate, stopping: threading.Event) -> Done:
        assert one.name != "1" or first_was_told.wait(30)
        return Done(one.path, "cleaned", "")

    def tell(count: int, one: Candidate, done: Done) -> None:
        told.append(f"{count} {one.name}")
        first_was_told.set()

    results = for_each(_candidates(tmp_path, 2), work, tell)
    assert told == ["1 0", "2 1"] and [done.model.stem for done in results] == ["0", "1"]


def test_a_fault_of_the_teller_stops_the_work(tmp_path: Path) -> None:
    """The reader of the output has gone, for example."""
    begun: list[str] = []

    def work(one: Candidate, stopping: threading.Event) -> Done:
        begun.append(one.name)
        assert one.name == "0" or stopping.wait(30)
        return Done(one.path, "cleaned", "")

    def tell(count: int, one: Candidate, done: Done) -> None:
        raise SpeedError("gone")

    with pytest.raises(SpeedError, match="gone"):
        for_each(_candidates(tmp_path, 9), work, tell)
    assert len(begun) <= 2


def test_stopped_before_all_have_begun_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to stop may come while the models are still being handed out."""
    submit, stopped = ThreadPoolExecutor.submit, threading.Event()

    def interrupt(self: ThreadPoolExecutor, work: Any, one: Candidate, *rest: Any) -> Any:
        if one.name == "2":
            raise KeyboardInterrupt
        return submit(self, work, one, *rest)

    def work(one: Candidate, stopping: threading.Event) -> Done:
        if stopping.wait(30):
            stopped.set()
        return Done(one.path, "cleaned", "")

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
    with pytest.raises(FileError, match="locked: Permission denied"):
        found(tmp_path, tmp_path / "out", recursive=True)
