"""Results of a run: one run at a time, complete or not there, and of the very file that was
read.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import mini
import pico
import pytest
import windows

from speed_erase.speed_ops.checkpoints import save as saving
from speed_erase.speed_ops.checkpoints.erase_file import clean_file
from speed_erase.speed_ops.checkpoints.output_files import PRODUCTS, OutputFiles
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.encoders.cache import EmbeddingCache
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import BusyError, ExistsError, FileError, SettingsError
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.recipe import StoredJob
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.retain_set import parse_retain

ENDINGS = [
    *("-erased.safetensors", "-eraser-lora.safetensors", "-recipe.json"),
    *("-README.md", "-report.html"),
]


def job(target: str = "Van Gogh") -> Job:
    retain = parse_retain("Claude Monet\nEdgar Degas\nPaul Klee", "friends", "style")
    return Job.of(parse_concepts(f"{target} -> art", "style"), retain, EraseSettings.preset("few"))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saving")
    mini.write_model(folder / "m.safetensors")
    mini.write_folder(folder / "pipeline")
    return folder


@pytest.fixture
def run(workshop: Path):
    """Cleans a model; what it says is collected."""

    def call(model: Path, out: Path, target: str = "Van Gogh", progress=None, **options):
        said: list[str] = []
        outputs = OutputFiles(out, options.pop("products", PRODUCTS), **options)
        text = TextSetup(cache=EmbeddingCache(workshop / "cache"))
        clean_file(
            model, StoredJob(job(target)), text, outputs, note=said.append, progress=progress
        )
        return said

    return call


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


def test_a_second_run_into_the_same_folder_is_refused_and_harms_nothing(
    workshop: Path, tmp_path: Path, run
) -> None:
    model, out = workshop / "m.safetensors", tmp_path / "out"
    working, go_on = threading.Event(), threading.Event()

    def wait(stage: str, done: int, total: int) -> None:
        if stage == "layers":
            working.set()
            go_on.wait(60)

    first = threading.Thread(target=run, args=(model, out), kwargs={"progress": wait})
    first.start()
    assert working.wait(60)
    with pytest.raises(BusyError):
        run(model, out, force=True)
    # under another name there is nothing in the way
    run(model, out, name="other", products=("recipe",))
    go_on.set()
    first.join()
    assert names(out) == sorted([*("m" + ending for ending in ENDINGS), "other-recipe.json"])


def test_what_another_program_wrote_meanwhile_stays(workshop: Path, tmp_path: Path, run) -> None:
    theirs = tmp_path / "out" / "m-recipe.json"

    def intrude(stage: str, done: int, total: int) -> None:
        theirs.write_text("theirs")

    with pytest.raises(ExistsError):
        run(workshop / "m.safetensors", tmp_path / "out", progress=intrude)
    assert names(tmp_path / "out") == [theirs.name] and theirs.read_text() == "theirs"


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
@pytest.mark.parametrize("model", ["m.safetensors", "pipeline"])
def test_a_run_that_was_cut_short_is_completed_by_the_next(
    workshop: Path, tmp_path: Path, run, model: str, kept: int
) -> None:
    run(workshop / model, tmp_path)
    whole = names(tmp_path)
    stem = Path(model).stem
    there = [stem + ending for ending in ENDINGS]
    there[0] = there[0].removesuffix(".safetensors") if model == "pipeline" else there[0]
    for name in there[kept:]:
        (tmp_path / name).unlink()
    with pytest.raises(ExistsError):
        # another job's results are not ours to replace
        run(workshop / model, tmp_path, "Claude Lorrain")
    assert names(tmp_path) == sorted(there[:kept])
    said = run(workshop / model, tmp_path)
    assert names(tmp_path) == whole and any("incomplete" in text for text in said)
    with pytest.raises(ExistsError):
        run(workshop / model, tmp_path)


@pytest.mark.parametrize("model", ["m.safetensors", "pipeline"])
def test_a_failure_at_the_last_file_takes_all_back(
    workshop: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    def fail(*arguments: object) -> str:
        raise FileError("no report today")

    monkeypatch.setattr(saving, "report_page", fail)
    with pytest.raises(FileError, match="no report today"):
        run(workshop / model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("products", [PRODUCTS, ("lora",), ("recipe", "report")])
@pytest.mark.parametrize("how", ["replaced", "rewritten", "removed"])
def test_a_source_that_changes_during_the_run_gives_no_result(
    workshop: Path, tmp_path: Path, run, how: str, products: tuple
) -> None:
    model = tmp_path / "m.safetensors"
    shutil.copy(workshop / model.name, model)

    def change(stage: str, done: int, total: int) -> None:
        if stage == "layers" and done == 0:
            if how == "replaced":
                shutil.copy(model, tmp_path / "new")
                os.replace(tmp_path / "new", model)
            elif how == "rewritten":
                with model.open("r+b") as file:
                    file.seek(-2, os.SEEK_END)
                    file.write(b"xx")

    def remove(stage: str, done: int, total: int) -> None:
        if stage == "certificate" and done == total:
            model.unlink(missing_ok=True)

    with pytest.raises(FileError, match=r"changed or replaced|no file"):
        run(
            model,
            tmp_path / "out",
            progress=remove if how == "removed" else change,
            products=products,
        )
    assert not (tmp_path / "out").exists()


def test_names_that_no_disk_takes_are_refused_before_the_work(
    workshop: Path, tmp_path: Path, run
) -> None:
    def never(stage: str, done: int, total: int) -> None:
        raise AssertionError("it began to work")

    model = tmp_path / ("m" * 240 + ".safetensors")
    shutil.copy(workshop / "m.safetensors", model)
    with pytest.raises(FileError, match="too long"):
        run(model, tmp_path / "out", progress=never)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_known_before_the_work(
    workshop: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(stage: str, done: int, total: int) -> None:
        raise AssertionError("it began to work")

    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(FileError, match="disk"):
        run(workshop / "m.safetensors", tmp_path / "out", progress=never)


@pico.linux
def test_a_file_name_that_is_not_text_is_no_obstacle(workshop: Path, tmp_path: Path, run) -> None:
    model = tmp_path / os.fsdecode(b"caf\xe9.safetensors")
    shutil.copy(workshop / "m.safetensors", model)
    run(model, tmp_path / "out")
    assert len(names(tmp_path / "out")) == len(PRODUCTS)


@pytest.mark.parametrize(
    "name",
    ["con", "NUL", "aux.v2", "com1", "Lpt9", "ends.", "ends ", "a:b", "a\\b", "a?", "a/b", ".."],
)
def test_names_that_windows_cannot_store_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError):
        OutputFiles(tmp_path, PRODUCTS, name)


@pytest.mark.parametrize("name", ["console", "auxiliary", "com", "v1.5 final", "öäü", "a-b_c"])
def test_other_names_are_not(tmp_path: Path, name: str) -> None:
    assert OutputFiles(tmp_path, PRODUCTS, name).stem(Path("x.safetensors")) == name


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="only Linux tells which files are open"
)
@pytest.mark.parametrize("model", ["m.safetensors", "pipeline"])
def test_nothing_that_is_open_is_replaced_or_removed(
    workshop: Path, tmp_path: Path, run, model: str
) -> None:
    """Saved, saved again over it and taken back: none of it needs what Windows would refuse."""
    with windows.habits_of_windows():
        run(workshop / model, tmp_path)
        run(workshop / model, tmp_path, force=True)
    assert len(names(tmp_path)) == len(PRODUCTS)


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="only Linux tells which files are open"
)
def test_a_result_that_another_program_has_open_is_a_sentence(
    workshop: Path, tmp_path: Path, run
) -> None:
    run(workshop / "m.safetensors", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with (
        windows.habits_of_windows(),
        (tmp_path / "m-recipe.json").open("rb"),
        pytest.raises(FileError, match="another program has it open"),
    ):
        run(workshop / "m.safetensors", tmp_path, "Claude Lorrain", force=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
