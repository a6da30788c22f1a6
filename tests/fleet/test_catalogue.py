"""Models in a store: their mirrors are classified like the models, and a worker's results are those
of the local batch.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mini
import numpy as np
import pico
import pytest
import torch
from results import assert_same_result
from safetensors.torch import save_file

from speed_erase.speed_ops.checkpoints.batch import Candidate, Done, classify
from speed_erase.speed_ops.checkpoints.output_files import PRODUCTS, OutputFiles
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup, survey
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.encoders.cache import EmbeddingCache
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import (
    FileError,
    MissingPackageError,
    NotFoundError,
    UsageError,
    error_code,
)
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.header import read_header
from speed_erase.speed_ops.fleet.catalogue import HeaderMirror
from speed_erase.speed_ops.fleet.store import HEAD_BYTES, Store, scratch_folder
from speed_erase.speed_ops.fleet.worker import FleetCache, SharedRows, Worker
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.provenance import load_recipe
from speed_erase.speed_ops.recipe import StoredJob, job_of
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


def classified(folder: Path | str, out: Path | str, base: Path, **choices: Any) -> dict[str, Done]:
    """{name: what becomes of it}"""
    mirror = HeaderMirror(base, folder, out)
    found = mirror.find_models(OutputFiles(Path(), PRODUCTS), **choices)
    ready = Done("", "ready", "")
    return {model.name: model.known or ready for model in classify(found, JOB, None)}


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


def test_a_mirror_is_classified_like_the_folder(tmp_path: Path, memory: Store) -> None:
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
    for number, choices in enumerate(
        (
            {"recursive": True},
            {},
            {"recursive": True, "exclude": ["sub/*"]},
            {"include": ["a.*", "o*"]},
        )
    ):
        base = tmp_path / f"base{number}"
        local = classified(folder, tmp_path / "out", base, **choices)
        remote = classified(memory.url, "memory://shop/out", base, **choices)
        expected = {
            name: replace(
                done,
                model=done.model.replace(str(folder), memory.url),
                detail=done.detail.replace(str(folder), memory.url),
            )
            for name, done in local.items()
        }
        assert remote == expected and len(local) >= 2
    with pytest.raises(NotFoundError) as refused:
        classified(memory.url, "memory://shop/out", tmp_path / "none", include=["no such"])
    assert memory.url in str(refused.value)


def test_results_in_the_same_folder_are_not_models(tmp_path: Path, memory: Store) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pico.write_checkpoint(folder / "m.safetensors")
    pico.write_checkpoint(folder / "m-erased.safetensors")
    fill(memory, folder)
    with pytest.raises(FileError) as refused:
        classified(memory.url, memory.url, tmp_path / "base")
    for name in ("m.safetensors", "m-erased.safetensors"):
        assert f"{memory.url}/{name}" in str(refused.value)


def test_a_mirror_holds_the_header_and_no_weights(tmp_path: Path, memory: Store) -> None:
    tensors = {f"{'x' * 200}.{i}": torch.zeros(1) for i in range(4000)}
    save_file(tensors | {"large": torch.ones(500_000)}, tmp_path / "m.safetensors")
    assert read_header(tmp_path / "m.safetensors").data_start > HEAD_BYTES, "two reads"
    memory.put(tmp_path / "m.safetensors", "m.safetensors")
    size = (tmp_path / "m.safetensors").stat().st_size
    memory.get_head("m.safetensors", size, tmp_path / "copy.safetensors")
    mirrored = Checkpoint.open(tmp_path / "copy.safetensors")
    model = Checkpoint.open(tmp_path / "m.safetensors")
    assert mirrored.shapes == model.shapes and mirrored.size == model.size
    assert not mirrored.read("large").any() and model.read("large").all()


def test_models_are_grouped_by_their_text_encoder(tmp_path: Path, memory: Store) -> None:
    content = mini.write_model(tmp_path / "a.safetensors")
    mini.write_model(tmp_path / "b.safetensors", seed=1)
    trained = {
        key: value * 1.001 if key.startswith("cond_stage_model") else value
        for key, value in content.items()
    }
    save_file(trained, tmp_path / "c.safetensors")
    mirror = HeaderMirror(tmp_path / "base", tmp_path, tmp_path / "out")
    local = {
        name: survey(tmp_path / f"{name}.safetensors", TextSetup(), mirror.read) for name in "abc"
    }
    assert local["a"].encoder == local["b"].encoder != local["c"].encoder
    assert local["a"].memory > 1e9
    assert local["a"].size == (tmp_path / "a.safetensors").stat().st_size
    memory.put(tmp_path / "c.safetensors", "c.safetensors")
    mirror = HeaderMirror(tmp_path / "base", memory.url, tmp_path / "out")
    (model,) = mirror.find_models(OutputFiles(Path(), PRODUCTS))
    remote = survey(model.path, TextSetup(), mirror.read, model.label)
    assert remote == local["c"], "bytes come from the store"


def test_a_file_that_cannot_be_read_is_its_own_failure(
    tmp_path: Path, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        pico.write_checkpoint(tmp_path / f"{name}.safetensors")
        memory.put(tmp_path / f"{name}.safetensors", f"{name}.safetensors")
    cat_file = memory.fs.cat_file

    def refuse(path: str, **limits: Any) -> bytes:
        if path.endswith("a.safetensors"):
            raise PermissionError(13, "Access denied")
        return cat_file(path, **limits)

    monkeypatch.setattr(memory.fs, "cat_file", refuse)
    found = classified(memory.url, "memory://shop/out", tmp_path / "base")
    assert found["b.safetensors"].status == "ready"
    failed = found["a.safetensors"]
    assert (failed.status, failed.code) == ("failed", "permission")
    assert failed.model == f"{memory.url}/a.safetensors" and failed.model in failed.detail


def test_an_unknown_store_says_what_to_install() -> None:
    with pytest.raises(FileError, match="nosuch://x"):
        Store.open("nosuch://x")
    if importlib.util.find_spec("s3fs") is None:
        with pytest.raises(MissingPackageError, match="s3fs"):
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
    with pytest.raises(FileError, match="models/x") as refused:
        store.put(tmp_path / "new", "x")
    assert error_code(refused.value) == "no-space"
    assert memory.fs.cat_file("/shop/models/x") == b"old" and list(memory.files()) == ["x"]
    assert (targets == ["/shop/models/x"]) == (protocol == "s3")


def model_at(url: str, out: str) -> Candidate:
    outputs = OutputFiles(Path(), PRODUCTS, url=out)
    return Candidate(Path(), outputs, url.rpartition("/")[2], url)


def contents(store: Store) -> dict[str, bytes]:
    return {inner: store.fs.cat_file(f"{store.root}/{inner}") for inner in store.files()}


def test_a_worker_does_what_the_local_batch_does(
    tmp_path: Path, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From and to a store, with the same number of threads: the same bytes. The second model of an
    encoder encodes nothing; done work is not redone.
    """
    models, scratch, out = tmp_path / "in", tmp_path / "scratch", Store.open("memory://shop/out")
    models.mkdir()
    mini.write_model(models / "a.safetensors")
    mini.write_model(models / "b.safetensors", seed=1)
    job = stored(tmp_path, monkeypatch, models / "a.safetensors")
    fill(memory, models)
    common = ["batch", "--recipe", str(tmp_path / "a-recipe.json"), "--in", str(models)]
    assert main([*common, "--out", str(tmp_path / "local"), "--quiet", "--threads", "1"]) == 0

    worker = Worker(job, TextSetup(), scratch=scratch, caching=False)
    first, second = (model_at(f"{memory.url}/{name}.safetensors", out.url) for name in "ab")
    done, _, rows = worker.clean(first, None, True)
    assert (done.status, done.model) == ("cleaned", first.url), done.detail
    assert done.facts is not None and done.facts["encoded"] > 0
    assert done.facts["files"]["lora"] == f"{out.url}/a-eraser-lora.safetensors"
    done, _, no_rows = worker.clean(second, rows, False)
    assert done.facts is not None and done.facts["encoded"] == 0 and no_rows is None
    files = done.facts["files"]
    remote = contents(out)
    local = {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir()}
    assert remote.keys() == local.keys() and len(remote) == 10
    timed = {name for name in remote if name.endswith(".html")}
    assert all(remote[name] == local[name] for name in remote.keys() - timed)
    assert not list(scratch.iterdir())

    out.fs.pipe_file("/shop/out/b-report.html", b"untouched")
    done, _, _ = worker.clean(second, None, True)
    assert done.status == "skipped" and done.facts is not None and done.facts["files"] == files
    assert contents(out)["b-report.html"] == b"untouched"

    out.fs.rm("/shop/out/b-eraser-lora.safetensors")  # as if killed between two uploads
    out.fs.rm("/shop/out/b-report.html")
    done, notes, _ = worker.clean(second, None, True)
    assert done.status == "cleaned" and any("earlier run" in sentence for sentence in notes)
    completed = contents(out)
    assert completed.keys() == remote.keys()
    assert all(completed[name] == remote[name] for name in remote.keys() - {"b-report.html"})


def test_only_what_was_written_is_uploaded(
    tmp_path: Path, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier results are local only as headers: they must not come back as files with holes."""
    mini.write_model(tmp_path / "a.safetensors")
    job = stored(tmp_path, monkeypatch, tmp_path / "a.safetensors")
    memory.put(tmp_path / "a.safetensors", "a.safetensors")
    memory.fs.pipe_file("/shop/out/a-erased.safetensors", bytes(3_000_000))
    model = model_at(f"{memory.url}/a.safetensors", "memory://shop/out")
    model = replace(model, outputs=replace(model.outputs, products=("lora",)))
    uploads: list[str] = []
    put = Store.put
    monkeypatch.setattr(
        Store, "put", lambda self, path, inner: (uploads.append(inner), put(self, path, inner))
    )
    done, _, _ = Worker(job, TextSetup(), scratch=tmp_path / "s").clean(model, None, False)
    assert done.status == "cleaned" and uploads == ["a-eraser-lora.safetensors"]


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_threads_change_the_last_digits_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """The number of threads is that of the machine, so that is what two machines differ in."""
    mini.write_model(tmp_path / "m.safetensors", family)
    for threads in ("1", "2"):
        monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path / f"cache{threads}"))
        common = ["--concepts", mini.CONCEPTS, *mini.QUICK, "--quiet", "--threads", threads]
        out = ["--save", "checkpoint,lora", "--out", str(tmp_path / threads)]
        assert main(["erase", str(tmp_path / "m.safetensors"), *common, *out]) == 0
    for name in ("m-erased.safetensors", "m-eraser-lora.safetensors"):
        assert_same_result(tmp_path / "1" / name, tmp_path / "2" / name)


def test_what_goes_wrong_on_a_worker_has_the_url(tmp_path: Path, memory: Store) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    memory.put(tmp_path / "bad.safetensors", "bad.safetensors")
    pico.write_folder(tmp_path / "pipe")
    (tmp_path / "pipe" / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"short")
    fill(memory.subfolder("pipe"), tmp_path / "pipe")
    worker = Worker(JOB, TextSetup(), scratch=tmp_path / "s")
    inside = "pipe/unet/diffusion_pytorch_model.safetensors"
    for name, culprit, code in (
        ("bad.safetensors", "bad.safetensors", "file"),
        ("no.safetensors", "no.safetensors", "not-found"),
        ("pipe", inside, "file"),
    ):
        model = model_at(f"{memory.url}/{name}", "memory://shop/out")
        done, _, _ = worker.clean(model, None, False)
        assert (done.model, done.status, done.code) == (model.url, "failed", code)
        assert f"{memory.url}/{culprit}" in done.detail and str(tmp_path) not in done.detail
    done, _, _ = replace(worker, version="0.0.1").clean(model, None, False)
    assert (done.status, done.code) == ("failed", "settings") and "0.0.1" in done.detail


def test_a_result_in_the_way_has_the_url(
    tmp_path: Path, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pico.write_checkpoint(tmp_path / "m.safetensors")
    memory.put(tmp_path / "m.safetensors", "m.safetensors")
    memory.fs.pipe_file("/shop/out/m-erased.safetensors", b"something else")
    model = model_at(f"{memory.url}/m.safetensors", "memory://shop/out")
    done, _, _ = Worker(JOB, TextSetup(), scratch=tmp_path / "s").clean(model, None, False)
    assert (done.status, done.code) == ("failed", "exists")
    assert "memory://shop/out/m-erased.safetensors" in done.detail
    assert str(tmp_path) not in done.detail


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


@pytest.mark.parametrize(
    "url",
    [
        *("http://shop.example/models", "HTTP://shop.example/models", "ftp://shop.example/models"),
        *("zip://::http://shop.example/a.zip", "simplecache::http://shop.example/models"),
        *("reference://::file:///tmp/a.json", "tar://::ftp://shop.example/a.tar"),
    ],
)
def test_a_store_that_others_can_exchange_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Store.open(url)


def test_a_store_without_sizes_is_one_sentence(memory: Store, monkeypatch) -> None:
    listing = {"/shop/m.safetensors": {"size": None, "type": "file"}}
    monkeypatch.setattr(memory.fs, "find", lambda *args, **options: listing)
    with pytest.raises(FileError):
        memory.files()


@pytest.mark.skipif(os.name == "nt", reason="owners and modes of POSIX")
@pytest.mark.parametrize("trick", ["", "link", "file", "open", "foreign"])
def test_nobody_can_take_the_scratch_folder_first(
    trick: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name, trap = tmp_path / f"speed-erase-fleet{os.getuid()}", tmp_path / "trap"
    trap.mkdir()
    if trick == "link":
        name.symlink_to(trap)
    elif trick == "file":
        name.touch()
    elif trick:
        name.mkdir(0o777)
        name.chmod(0o777 if trick == "open" else 0o700)
        if trick == "foreign":
            os.chown(name, 12345, -1) if os.getuid() == 0 else pytest.skip("needs root")
    with scratch_folder() as folder:
        assert (folder.parent == name) == (trick == "")
        for made in (folder, folder.parent):
            status = made.lstat()
            assert status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
    assert not folder.exists() and not list(trap.iterdir())
