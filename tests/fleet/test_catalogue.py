"""Models in a store: their shadows are judged like the models, and one worker's results are the
local batch's.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mini
import numpy as np
import pico
import pytest
import torch
from safetensors.torch import save_file

from speed_erase.speed_ops.checkpoints.batch import find_models, sort_out
from speed_erase.speed_ops.checkpoints.output_files import PRODUCTS, OutputFiles
from speed_erase.speed_ops.checkpoints.plan import survey
from speed_erase.speed_ops.checkpoints.source import TextSetup
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.encoders.cache import EmbeddingCache
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import FileError, MissingPackageError, NotFoundError
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.header import read_header
from speed_erase.speed_ops.fleet.catalogue import HEAD_BYTES, Catalogue, Shadow, Store
from speed_erase.speed_ops.fleet.worker import FleetCache, Order, SharedRows, Work, work_on
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.provenance import load_recipe
from speed_erase.speed_ops.recipe import StoredJob, job_of, package_version
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.retain_set import RetainSet

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory() -> Iterator[Store]:
    """A store in the memory of this process."""
    store = Store.open("memory://shop/models")
    store.fs.makedirs("/shop/models", exist_ok=True)
    yield store
    store.fs.store.clear()


def fill(store: Store, folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path, path.relative_to(folder).as_posix())


def looked_at(folder: Path | str, out: Path | str, base: Path, **which: object) -> dict[str, str]:
    """{name: what becomes of it, and why}"""
    shadow = Shadow(base, folder, out)
    with shadow.speaking():
        shadow.fill(**{"recursive": False, **which})  # type: ignore[arg-type]
        found = find_models(shadow.folder, OutputFiles(shadow.out, PRODUCTS), **which)  # type: ignore[arg-type]
        models = Catalogue(sort_out(found, JOB, None), shadow).models
    return {
        one.name: f"{one.known.status}: {one.known.detail}" if one.known else "ready"
        for one in models
    }


def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> StoredJob:
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path / "cache"))
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
    assert main(["erase", str(model), *common]) == 0
    return job_of(load_recipe(tmp_path / f"{model.stem}-recipe.json"))


JOB = StoredJob(
    Job.of(parse_concepts("Van Gogh -> art", "style"), RetainSet(), EraseSettings.preset("few")),
    1.0,
    None,
    (),
)


def test_a_shadow_is_judged_like_the_folder(tmp_path: Path, memory: Store) -> None:
    """Names, reasons and errors are those of the same files on a disk, with URLs for paths."""
    folder = tmp_path / "in"
    (folder / "sub" / ".hidden").mkdir(parents=True)
    for name in ("a", "sub/b", "sub/.hidden/c"):
        pico.write_checkpoint(folder / f"{name}.safetensors")
    pico.write_folder(folder / "sub" / "pipe")
    save_file({"lora_unet_x.lora_up.weight": torch.ones(2, 2)}, folder / "lora.safetensors")
    (folder / "broken.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    (folder / "old.ckpt").write_bytes(b"\x80\x02}q\x00.")
    (folder / "notes.txt").write_text("not a model")
    fill(memory, folder)
    for which in (
        {"recursive": True},
        {},
        {"recursive": True, "exclude": ["sub/*"]},
        {"include": ["a.*", "o*"]},
    ):
        base = tmp_path / f"base{len(list(tmp_path.iterdir()))}"
        here = looked_at(folder, tmp_path / "out", base, **which)
        there = looked_at(memory.url, "memory://shop/out", base, **which)
        assert {name: text.replace(str(folder), memory.url) for name, text in here.items()} == there
        assert len(here) >= 2
    with pytest.raises(NotFoundError, match="no checkpoint in memory://shop/models"):
        looked_at(memory.url, "memory://shop/out", tmp_path / "none", include=["no such"])


def test_results_in_the_same_folder_are_not_models(tmp_path: Path, memory: Store) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pico.write_checkpoint(folder / "m.safetensors")
    pico.write_checkpoint(folder / "m-erased.safetensors")
    fill(memory, folder)
    with pytest.raises(
        FileError, match=r"memory://shop/models/m\.safetensors would replace the model memory://"
    ):
        looked_at(memory.url, memory.url, tmp_path / "base")


def test_a_shadow_holds_the_header_and_no_weights(tmp_path: Path, memory: Store) -> None:
    tensors = {f"{'x' * 200}.{i}": torch.zeros(1) for i in range(4000)}
    save_file(tensors | {"large": torch.ones(500_000)}, tmp_path / "m.safetensors")
    assert read_header(tmp_path / "m.safetensors").data_start > HEAD_BYTES, (
        "its header takes two reads"
    )
    memory.put(tmp_path / "m.safetensors", "m.safetensors")
    size = (tmp_path / "m.safetensors").stat().st_size
    memory.get_head("m.safetensors", size, tmp_path / "copy.safetensors")
    ours, theirs = (
        Checkpoint.open(tmp_path / "copy.safetensors"),
        Checkpoint.open(tmp_path / "m.safetensors"),
    )
    assert ours.shapes == theirs.shapes and ours.size == theirs.size
    assert not ours.read("large").any() and theirs.read("large").all()


def test_models_with_the_same_text_encoder_are_told_from_others(
    tmp_path: Path, memory: Store
) -> None:
    content = mini.write_model(tmp_path / "a.safetensors")
    mini.write_model(tmp_path / "b.safetensors", seed=1)
    trained = {
        key: value * 1.001 if key.startswith("cond_stage_model") else value
        for key, value in content.items()
    }
    save_file(trained, tmp_path / "c.safetensors")
    shadow = Shadow(tmp_path / "base", tmp_path, tmp_path / "out")
    here = {
        name: survey(tmp_path / f"{name}.safetensors", TextSetup(), shadow.read) for name in "abc"
    }
    assert here["a"].encoder == here["b"].encoder != here["c"].encoder
    assert here["a"].memory > 1e9 and here["a"].size == (tmp_path / "a.safetensors").stat().st_size
    memory.put(tmp_path / "c.safetensors", "c.safetensors")
    shadow = Shadow(tmp_path / "base", memory.url, tmp_path / "out")
    shadow.fill(recursive=False)
    assert survey(shadow.folder / "c.safetensors", TextSetup(), shadow.read) == here["c"], (
        "bytes come from the store"
    )


def test_a_file_that_cannot_be_read_is_its_own_failure(
    tmp_path: Path, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        pico.write_checkpoint(tmp_path / f"{name}.safetensors")
        memory.put(tmp_path / f"{name}.safetensors", f"{name}.safetensors")
    read = Store.read

    def refuse(self: Store, inner: str, start: int, stop: int) -> bytes:
        if inner == "a.safetensors":
            raise self._fault(inner, PermissionError(13, "Access denied"))
        return read(self, inner, start, stop)

    monkeypatch.setattr(Store, "read", refuse)
    found = looked_at(memory.url, "memory://shop/out", tmp_path / "base")
    assert found["b.safetensors"] == "ready"
    assert (
        found["a.safetensors"]
        == "failed: Cannot read memory://shop/models/a.safetensors: Access denied."
    )


def test_an_unknown_store_says_what_to_install() -> None:
    with pytest.raises(FileError, match="Cannot open nosuch://x: "):
        Store.open("nosuch://x")
    if importlib.util.find_spec("s3fs") is None:
        with pytest.raises(MissingPackageError, match="Install s3fs"):
            Store.open("s3://bucket/models")


@pytest.mark.parametrize("protocol", ["memory", "s3"])
def test_an_upload_that_breaks_leaves_the_old_file(
    tmp_path: Path, memory: Store, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Where the store has whole uploads only, under the final name; elsewhere under another name
    first.
    """
    (tmp_path / "new").write_bytes(b"new")
    memory.fs.pipe_file("/shop/models/x", b"old")
    store = replace(memory, url=memory.url.replace("memory", protocol))
    put, targets = memory.fs.put_file, list[str]()

    def breaks(source: str, target: str, **more: object) -> None:
        targets.append(target)
        if target != "/shop/models/x":
            put(source, target, **more)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory.fs, "put_file", breaks)
    with pytest.raises(FileError, match=r"Cannot write .*models/x: No space left"):
        store.put(tmp_path / "new", "x")
    assert memory.fs.cat_file("/shop/models/x") == b"old" and list(memory.files()) == ["x"]
    assert (targets == ["/shop/models/x"]) == (protocol == "s3")


def work(stored: StoredJob, **more: object) -> Work:
    values: dict[str, object] = {
        "threads": 1,
        "scratch": None,
        "caching": False,
        "version": package_version(),
    }
    return Work(stored, TextSetup(), **(values | more))  # type: ignore[arg-type]


def order(source: str, out: str, first: bool = True) -> Order:
    return Order(Path(source).name, source, out, OutputFiles(Path(), PRODUCTS), first)


def contents(store: Store) -> dict[str, bytes]:
    return {inner: store.fs.cat_file(f"{store.root}/{inner}") for inner in store.files()}


def test_a_worker_does_what_the_local_batch_does(
    tmp_path: Path,
    memory: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From and to a store: the same bytes. The second model of an encoder encodes nothing; done
    work is not redone.
    """
    models, scratch, out = tmp_path / "in", tmp_path / "scratch", Store.open("memory://shop/out")
    models.mkdir()
    mini.write_model(models / "a.safetensors")
    mini.write_model(models / "b.safetensors", seed=1)
    job = stored(tmp_path, monkeypatch, models / "a.safetensors")
    fill(memory, models)
    common = ["batch", "--recipe", str(tmp_path / "a-recipe.json"), "--in", str(models)]
    assert main([*common, "--out", str(tmp_path / "local"), "--quiet"]) == 0

    first = work_on(order(f"{memory.url}/a.safetensors", out.url), work(job, scratch=scratch), None)
    assert (first.done.status, first.done.model) == (
        "cleaned",
        f"{memory.url}/a.safetensors",
    ), first.done.detail
    assert first.done.facts is not None and first.done.facts["encoded"] > 0
    assert first.done.facts["files"]["lora"] == f"{out.url}/a-eraser-lora.safetensors"
    second = work_on(
        order(f"{memory.url}/b.safetensors", out.url, False), work(job, scratch=scratch), first.rows
    )
    assert (
        second.done.facts is not None and second.done.facts["encoded"] == 0 and second.rows is None
    )
    ours = contents(out)
    theirs = {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir()}
    assert ours.keys() == theirs.keys() and len(ours) == 8
    assert all(ours[name] == theirs[name] for name in ours if not name.endswith(".html")), (
        "reports tell the time"
    )
    assert not list(scratch.iterdir())

    out.fs.pipe_file("/shop/out/b-report.html", b"untouched")
    again = work_on(order(f"{memory.url}/b.safetensors", out.url), work(job, scratch=scratch), None)
    assert (again.done.status, again.done.detail) == ("skipped", "Already done.")
    assert again.done.facts == {"files": second.done.facts["files"]}
    assert contents(out)["b-report.html"] == b"untouched"

    out.fs.rm("/shop/out/b-eraser-lora.safetensors")  # as if it had been killed between two uploads
    out.fs.rm("/shop/out/b-report.html")
    completed = work_on(
        order(f"{memory.url}/b.safetensors", out.url), work(job, scratch=scratch), None
    )
    assert completed.done.status == "cleaned" and any(
        "cut short" in sentence for sentence in completed.notes
    )
    assert {
        name for name, content in contents(out).items() if content == ours[name]
    } >= ours.keys() - {"b-report.html"}


def test_what_goes_wrong_on_a_worker_is_said_with_the_url(
    tmp_path: Path, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    memory.put(tmp_path / "bad.safetensors", "bad.safetensors")
    url = f"{memory.url}/bad.safetensors"
    found = work_on(order(url, "memory://shop/out"), work(JOB, scratch=tmp_path / "s"), None).done
    assert found.detail.startswith(f"{url} cannot be used: ") and found.code == "file"
    gone = work_on(order(f"{memory.url}/no.safetensors", "memory://shop/out"), work(JOB), None).done
    assert (gone.detail, gone.code) == (f"There is no {memory.url}/no.safetensors.", "not-found")
    other = work_on(order(url, "memory://shop/out"), work(JOB, version="0.0.1"), None).done
    assert "install the same version on all machines" in other.detail and other.status == "failed"


def test_rows_from_elsewhere_come_first_and_are_not_shared_again(tmp_path: Path) -> None:
    shared = SharedRows(
        "print", (("a", 0), ("a", 1)), np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    )
    own = EmbeddingCache(tmp_path)
    own.write("print", {("a", 1): torch.zeros(2), ("b", 0): torch.ones(2)})
    cache = FleetCache(shared, tmp_path)
    found = cache.read("print", 2, [("a", 1), ("b", 0), ("c", 0)])
    assert found.keys() == {("a", 1), ("b", 0)} and found["a", 1].tolist() == [3.0, 4.0]
    cache.write("print", {("c", 0): torch.full((2,), 5.0)})
    more = cache.to_share()
    assert (
        more is not None
        and more.keys == (("b", 0), ("c", 0))
        and more.values.tolist() == [[1, 1], [5, 5]]
    )
    assert FleetCache(shared, tmp_path).read("another", 2, [("a", 0)]) == {}, (
        "another encoder's rows are not its own"
    )
    assert FleetCache(None, Path(os.devnull), 0).to_share() is None
