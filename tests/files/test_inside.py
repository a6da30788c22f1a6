"""No name from outside leads out of its folder, wherever such names come from."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file

from speed_erase.speed_ops.checkpoints.output_files import PRODUCTS, OutputFiles
from speed_erase.speed_ops.errors import FileError, SpeedError
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.inside import path_inside

MODEL = save({"weight": torch.zeros(2)})
LEADING_OUT = [
    *("", "/", ".", "..", "../x", "a/../../x", "a/../x", "a/./x", "a//x", "a/", "./x"),
    *("/etc/x", "//host/share/x", "/", "\\x", "..\\x", "a\\..\\..\\x", "\\\\host\\share\\x"),
    *("C:/x", "C:\\x", "C:x", "c:", "x:stream", "\\\\?\\C:\\x", "\\\\.\\PhysicalDrive0"),
    *("a\0b", "\0", "a\nb", "a\x7f", "..\0/x", "\ud800", "a/\udcff.safetensors"),
    *("...", "....", ".. ", ". .", "a/.. /x", "x.", "x ", "a./x", "a /x", "../", " ", "  /x"),
    *("NUL", "con", "aux.safetensors", "a/COM1", "lpt9.txt"),
    *("．．/x", "‥/x", "…", "．．／x", "a／．．／．．／x", "．．＼x", "․․/x", "a\u3000/x"),
]
STAYING = [
    *("x", "a/x", "a\\x", "x.safetensors", ".hidden", "..x", "a..b/c", "~", "~root/x", "$HOME/x"),
    *("%2e%2e/x", "ä/ö", "角色：初音.safetensors", "AC／DC", "e\u0301", "a b", "con1", "\u202ex"),
    *("-rf", "x" * 255, "a/" * 50 + "x", "__proto__", "*?<>|"),
]


@pytest.mark.parametrize("name", LEADING_OUT)
def test_a_name_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileError) as refusal:
        path_inside(tmp_path, name)
    assert refusal.value.data["name"] == name and "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", STAYING)
def test_any_other_name_is_below_the_folder(name: str, tmp_path: Path) -> None:
    path = path_inside(tmp_path, name)
    assert tmp_path in path.parents and ".." not in path.parts


def test_links_in_the_folder_lead_nowhere_else(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a/out").symlink_to(tmp_path)
    (root / "a/file").symlink_to(tmp_path / "secret")
    (root / "a/circle").symlink_to(root / "a/circle")
    (root / "a/near").symlink_to(root / "b")
    (tmp_path / "alias").symlink_to(root)
    for name in ("a/out/x", "a/out", "a/file", "a/out/root/../x"):
        with pytest.raises(FileError):
            path_inside(root, name)
    assert path_inside(root, "a/out/x", follow_links=True) == root / "a/out/x"
    assert path_inside(root, "a/near/x") == root / "a/near/x"
    assert path_inside(tmp_path / "alias", "a/x") == tmp_path / "alias/a/x"


def _zip(target: Path, name: str) -> None:
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(name, MODEL)


def _zip_with_link(target: Path, name: str) -> None:
    """A link to a folder outside, then a file in that folder."""
    with zipfile.ZipFile(target, "w") as archive:
        link = zipfile.ZipInfo("models")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, name)
        archive.writestr("models/escaped.safetensors", MODEL)


def _tar(target: Path, name: str) -> None:
    with tarfile.open(target, "w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(MODEL)
        archive.addfile(member, io.BytesIO(MODEL))


def _tar_with_link(kind: bytes) -> Callable[[Path, str], None]:
    def write(target: Path, name: str) -> None:
        with tarfile.open(target, "w") as archive:
            link = tarfile.TarInfo("models/escaped.safetensors")
            link.type, link.linkname = kind, name
            archive.addfile(link)
            member = tarfile.TarInfo("models/escaped.safetensors")
            member.size = len(MODEL)
            archive.addfile(member, io.BytesIO(MODEL))

    return write


MEMBERS = [
    *("../escaped.safetensors", "../../../escaped.safetensors", "a/../../../escaped.safetensors"),
    *("/tmp/escaped.safetensors", "//escaped.safetensors", "..\\..\\escaped.safetensors"),
    *("C:\\escaped.safetensors", "a/.. /escaped.safetensors", "．．/escaped.safetensors"),
]
LINKS = ["..", "../../..", "/tmp", "/etc/passwd", "models", "C:\\"]
ARCHIVES: dict[str, tuple[Callable[[Path, str], None], list[str]]] = {
    "zip": (_zip, MEMBERS),
    "tar": (_tar, MEMBERS),
    "zip, link": (_zip_with_link, LINKS),
    "tar, symbolic link": (_tar_with_link(tarfile.SYMTYPE), LINKS),
    "tar, hard link": (_tar_with_link(tarfile.LNKTYPE), LINKS),
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, (_, names) in ARCHIVES.items() for name in names]
)
def test_nothing_in_an_archive_is_written_outside_the_mirror(
    kind: str, name: str, tmp_path: Path
) -> None:
    pytest.importorskip("fsspec")
    from speed_erase.speed_ops.fleet.catalogue import HeaderMirror
    from speed_erase.speed_ops.fleet.worker import _download, staged

    protocol, archive = kind[:3], tmp_path / "shop"
    ARCHIVES[kind][0](archive, name)
    mirror = HeaderMirror(
        tmp_path / "a/b/mirror", f"{protocol}://::file://{archive}", tmp_path / "out"
    )
    before = files_outside(tmp_path)
    try:
        models = mirror.find_models(OutputFiles(tmp_path / "out", PRODUCTS), recursive=True)
    except SpeedError:
        models = []
    assert mirror.store is not None
    for inner in ("models", name):
        try:
            _download(mirror.store, inner, tmp_path / "a/b/copy" / "model")
        except SpeedError:
            continue
    for model in models:
        try:
            with staged(model, tmp_path / "a/b/scratch"):
                pass
        except SpeedError:
            continue
    assert files_outside(tmp_path) == before
    assert not Path("/tmp/escaped.safetensors").exists()


def files_outside(folder: Path) -> set[Path]:
    """What is in the folder and in those above it, apart from the mirror."""
    mirror = folder / "a/b"
    nearby = {path for parent in folder.parents for path in parent.glob("*escaped*")}
    return nearby | {
        path
        for path in folder.rglob("*")
        if mirror not in (path, *path.parents) and path not in mirror.parents
    }


class HostileStore:
    """A store whose listing has any key, as S3 allows it."""

    def __init__(self, key: str) -> None:
        self.key = key

    def invalidate_cache(self) -> None: ...

    def find(self, root: str, **options: Any) -> dict[str, dict[str, Any]]:
        return {f"{root}/{self.key}": {"size": len(MODEL), "type": "file"}}

    def info(self, path: str) -> dict[str, Any]:
        return {"size": len(MODEL), "type": "directory" if path.endswith("/model") else "file"}

    def cat_file(self, path: str, **limits: Any) -> bytes:
        return MODEL

    def get_file(self, path: str, target: str) -> None:
        Path(target).write_bytes(MODEL)


@pytest.mark.parametrize(
    "key", [f"{name}.safetensors" for name in LEADING_OUT if name.strip("/\\. ")] + LEADING_OUT
)
def test_no_key_of_a_store_is_written_outside(key: str, tmp_path: Path) -> None:
    from speed_erase.speed_ops.fleet.catalogue import HeaderMirror
    from speed_erase.speed_ops.fleet.store import Store
    from speed_erase.speed_ops.fleet.worker import _download

    mirror = HeaderMirror(tmp_path / "a/b", tmp_path, tmp_path / "out")
    mirror.store = store = Store("s3://shop", HostileStore(key), "shop")
    mirror.folder = tmp_path / "a/b"
    before = files_outside(tmp_path)
    for attempt in (
        lambda: mirror.find_models(OutputFiles(tmp_path / "out", PRODUCTS), recursive=True),
        lambda: _download(store, "model", tmp_path / "a/b/model"),
    ):
        try:
            attempt()
        except SpeedError:
            continue
    assert files_outside(tmp_path) == before


@pytest.mark.parametrize("name", [name for name in LEADING_OUT if "\ud800" not in name])
def test_an_index_names_only_files_beside_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_file({"weight": torch.zeros(2)}, tmp_path / "x")
    index = {"weight_map": {"weight": name}}
    (tmp_path / "model/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileError):
        Checkpoint.open(tmp_path / "model")


@pytest.mark.comfy
@pytest.mark.parametrize("name", [*LEADING_OUT, "x" * 5000, "a/" * 5000 + "x"])
def test_no_widget_leads_out_of_comfyuis_folders(comfyui, name, tmp_path, monkeypatch) -> None:
    import folder_paths

    from speed_erase.nodes.host.paths import input_file, output_file, recipe_file

    for folder in ("input", "output"):
        (tmp_path / folder).mkdir()
        monkeypatch.setattr(folder_paths, f"{folder}_directory", str(tmp_path / folder))
    (tmp_path / "x").write_text("secret")
    for read in (input_file, lambda name: recipe_file(f"input/{name}"), recipe_file):
        with pytest.raises(FileError):
            read(name)
    try:
        path = output_file("loras", name, ".safetensors", overwrite=True)
    except FileError:
        return
    assert os.path.realpath(path).startswith(f"{tmp_path}/output/")


@pytest.mark.comfy
def test_a_link_in_the_output_folder_is_not_written_through(comfyui, tmp_path, monkeypatch) -> None:
    import folder_paths

    from speed_erase.nodes.host.paths import output_file

    (tmp_path / "output/loras").mkdir(parents=True)
    (tmp_path / "output/loras/speed").symlink_to(tmp_path)
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path / "output"))
    with pytest.raises(FileError):
        output_file("loras", "speed/erased", ".safetensors", overwrite=True)
