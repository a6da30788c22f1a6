"""The models of a fleet, on disks or in stores that fsspec reaches (s3://, gs://, file:// and
others).

`Shadow` is what a machine that only looks needs of a store: local files of the same names and sizes
that hold the headers, and a hole in the place of the weights. All that reads headers works on them
unchanged. fsspec is imported late: it comes with the extra `fleet`.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..checkpoints.batch import SUFFIXES, Candidate, Done, chosen
from ..checkpoints.plan import Survey, survey
from ..checkpoints.source import TextSetup
from ..errors import FileError, MissingPackageError, NotFoundError, SpeedError, user_message
from ..files.atomic import temporary_folder, write_error
from ..files.checkpoint import Checkpoint
from ..files.header import MAX_HEADER_BYTES, PICKLE_SUFFIXES

HEAD_BYTES = 512 * 1024
"""Read of a file at first: the headers of SD1.x and SDXL (0.1 and 0.3 MB) and our metadata fit; a
longer one is read again."""
SMALL_BYTES = 20_000_000
"""Files without weights up to this size are read whole: recipes, indices, model_index.json."""
AT_ONCE = 16
"""Headers read at the same time: they wait for the network, not for the processor."""
WHOLE_AT_ONCE = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss"})
"""Stores where an object appears when its upload is complete, and where renaming would copy it once
more.
"""
FOLDER_MARK = "model_index.json"


@contextmanager
def scratch_folder(given: Path | None = None) -> Iterator[Path]:
    """A folder of our own in the one given, or in the machine's temporary one; gone at the end with
    all in it.
    """
    user = getattr(os, "getuid", lambda: "")()
    place = given or Path(tempfile.gettempdir()) / f"speed-erase-fleet{user}"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(place, error) from error
    with temporary_folder(place / "model") as folder:
        yield folder


def is_url(place: object) -> bool:
    """Whether a place is a URL and not a path."""
    return "://" in str(place)


@dataclass(frozen=True)
class Store:
    """One folder in a store."""

    url: str
    fs: Any = field(repr=False)
    root: str
    """The folder as the store itself spells it."""

    @classmethod
    def open(cls, url: str) -> Store:
        """Refuses a URL that no installed package understands."""
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingPackageError(
                f"Cannot open {url}: install what a fleet needs with `pip install"
                " 'speed-erase[fleet]'`."
            ) from error
        try:
            fs, root = url_to_fs(url)
        except ImportError as error:
            raise MissingPackageError(
                f"Cannot open {url}: {str(error).strip().rstrip('.')}."
            ) from error
        except Exception as error:
            raise FileError(f"Cannot open {url}: {_reason(error)}.") from error
        return cls(url.rstrip("/"), fs, str(root).rstrip("/"))

    @property
    def protocol(self) -> str:
        return self.url.partition("://")[0]

    def info(self, inner: str) -> dict[str, Any] | None:
        """Of one file; None where there is none."""
        try:
            return dict(self.fs.info(self._at(inner)))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._fault(inner, error) from error

    def files(self, depth: int | None = None) -> dict[str, dict[str, Any]]:
        """{path below the folder: what the store says of the file}, so many levels deep."""
        try:
            self.fs.invalidate_cache()
            found = self.fs.find(self.root, maxdepth=depth, detail=True)
        except Exception as error:
            raise self._fault("", error) from error
        return {path[len(self.root) :].lstrip("/"): info for path, info in sorted(found.items())}

    def read(self, inner: str, start: int, stop: int) -> bytes:
        """Some bytes of a file."""
        try:
            return bytes(self.fs.cat_file(self._at(inner), start=start, end=stop))
        except Exception as error:
            raise self._fault(inner, error) from error

    def get(self, inner: str, target: Path) -> None:
        """A file, whole, on the local disk."""
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self.fs.get_file(self._at(inner), str(target))
            size = self.fs.info(self._at(inner))["size"]
        except Exception as error:
            raise self._fault(inner, error) from error
        if target.stat().st_size != size:
            raise FileError(
                f"{self.url_of(inner)} was cut short on its way, or changed: run again."
            )

    def get_head(self, inner: str, size: int, target: Path) -> None:
        """A file of the same size on the local disk: of a safetensors file the header, of a small
        one all.
        """
        want = (
            size if size <= SMALL_BYTES and Path(inner).suffix == ".json" else min(size, HEAD_BYTES)
        )
        content = (
            b"" if Path(inner).suffix.lower() in PICKLE_SUFFIXES else self.read(inner, 0, want)
        )
        header = 8 + int.from_bytes(content[:8], "little")
        if Path(inner).suffix != ".json" and want < header <= min(size, MAX_HEADER_BYTES):
            content += self.read(inner, want, header)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as handle:
                handle.write(content)
                handle.truncate(size)
        except OSError as error:
            raise write_error(target, error) from error

    def put(self, source: Path, inner: str) -> None:
        """A file under its name, whole or not at all: under another name first, where the store
        does not see to it.
        """
        place = self._at(inner)
        safe = self.protocol in WHOLE_AT_ONCE
        folder, _, name = place.rpartition("/")
        temporary = place if safe else f"{folder}/.{name[:20]}.{secrets.token_hex(6)}.speed-tmp"
        try:
            self.fs.makedirs(folder, exist_ok=True)
            try:
                self.fs.put_file(str(source), temporary)
                if not safe:
                    self.fs.mv(temporary, place)
            except BaseException:
                if not safe and self.fs.exists(temporary):
                    self.fs.rm(temporary)
                raise
        except Exception as error:
            raise FileError(f"Cannot write {self.url_of(inner)}: {_reason(error)}.") from error

    def url_of(self, inner: str) -> str:
        """Of a file in the folder."""
        return f"{self.url}/{inner}" if inner else self.url

    def _at(self, inner: str) -> str:
        return f"{self.root}/{inner}"

    def _fault(self, inner: str, error: Exception) -> FileError:
        if isinstance(error, FileNotFoundError):
            return NotFoundError(f"There is no {self.url_of(inner)}.")
        return FileError(f"Cannot read {self.url_of(inner)}: {_reason(error)}.")


def _reason(error: Exception) -> str:
    said = " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
    return said.rstrip(".") or type(error).__name__


def stamp_of(info: Mapping[str, Any]) -> str:
    """Changes when a file in a store does: its size, and its hash there or its time."""
    known = (
        "ETag",
        "etag",
        "md5Hash",
        "mtime",
        "LastModified",
        "last_modified",
        "updated",
        "created",
    )
    return (
        f"{info.get('size')} {next((info[key] for key in known if info.get(key) is not None), '')}"
    )


class Shadow:
    """The models of a folder as local files, and where their results would be. Paths stand for
    themselves.
    """

    def __init__(self, base: Path, place: Path | str, out: Path | str) -> None:
        """`base`: an empty local folder. `place`, `out`: where models are and where results go,
        each a path or URL.
        """
        self.store = Store.open(str(place)) if is_url(place) else None
        self.out_store = Store.open(str(out)) if is_url(out) else None
        self.folder = Path(place) if self.store is None else _local(base, self.store)
        self.out = Path(out) if self.out_store is None else _local(base, self.out_store)
        self.stamps: dict[Path, str] = {}
        """What the store says of each model, which changes with it."""
        self.faults: dict[Path, SpeedError] = {}
        """Models whose headers could not be read."""

    def fill(
        self, *, recursive: bool, include: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> None:
        """Reads the headers of all that `find_models` would find with the same choices."""
        if self.store is None:
            return
        listed = self.store.files(None if recursive else _FOLDER_DEPTH)
        wanted = []
        for inner, info in listed.items():
            above = (up.as_posix() for up in Path(inner).parents)
            model = next((folder for folder in above if f"{folder}/{FOLDER_MARK}" in listed), inner)
            alone = model == inner
            if alone and (
                Path(inner).suffix.lower() not in SUFFIXES or ("/" in inner and not recursive)
            ):
                continue
            if chosen(model, include, exclude):
                path = self.folder / model
                self.stamps[path] = (
                    f"{self.stamps[path]}, {stamp_of(info)}"
                    if path in self.stamps
                    else stamp_of(info)
                )
                wanted.append((inner, int(info["size"]), path))
        self.folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for (_, _, path), fault in zip(wanted, pool.map(self._copy, wanted), strict=True):
                if fault is not None:
                    self.faults[path] = fault

    def _copy(self, one: tuple[str, int, Path]) -> SpeedError | None:
        assert self.store is not None
        inner, size, _ = one
        target = self.folder / inner
        try:
            self.store.get_head(inner, size, target)
        except SpeedError as fault:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
            return fault
        return None

    def url_of(self, path: Path) -> str:
        """The URL that a local file or folder stands for, or its own path."""
        for folder, store in ((self.folder, self.store), (self.out, self.out_store)):
            if store is not None and path.is_relative_to(folder):
                inner = path.relative_to(folder).as_posix()
                return store.url_of("" if inner == "." else inner)
        return str(path.absolute())

    def spoken(self, text: str) -> str:
        """A sentence with URLs in the place of the files that stand for them."""
        for folder, store in ((self.folder, self.store), (self.out, self.out_store)):
            text = text if store is None else text.replace(str(folder), store.url)
        return text

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Around what looks at the local files: errors name the URLs."""
        try:
            yield
        except FileError as fault:
            raise type(fault)(self.spoken(str(fault))) from fault

    @cached_property
    def results(self) -> frozenset[str]:
        """URLs of the files in the output folder, as they were when this was first asked for."""
        store = self.out_store
        return frozenset() if store is None else frozenset(map(store.url_of, store.files()))

    def read(self, path: Path, start: int, stop: int) -> bytes:
        """Bytes that the local file does not have."""
        if self.store is not None and path.is_relative_to(self.folder):
            return self.store.read(path.relative_to(self.folder).as_posix(), start, stop)
        with path.open("rb") as handle:
            handle.seek(start)
            return handle.read(stop - start)


_FOLDER_DEPTH = 3
"""The weights of a diffusers folder: folder, component, file."""


def _local(base: Path, store: Store) -> Path:
    """Folders inside each other in a store are so on the disk, too."""
    return base.joinpath(
        store.protocol, *(part for part in store.root.split("/") if part not in ("", ".", ".."))
    )


class Catalogue:
    """Models as `sort_out` left them, with their real places, paths or URLs."""

    def __init__(self, models: Sequence[Candidate], shadow: Shadow) -> None:
        self._shadow = shadow
        self.models = [
            one if one.known is None else replace(one, known=self._named(one.known))
            for one in models
        ]

    def _named(self, done: Done) -> Done:
        path = Path(done.model)
        fault = self._shadow.faults.get(path)
        detail = user_message(fault) if fault else self._shadow.spoken(done.detail)
        return replace(done, model=self._shadow.url_of(path), detail=detail)

    def failed(self, one: Candidate, fault: Exception) -> Done:
        """What becomes of a model after a fault."""
        return self._named(one.failed(fault))

    def source(self, one: Candidate) -> str:
        """Path or URL of a model."""
        return self._shadow.url_of(one.path)

    def target(self, one: Candidate) -> str:
        """Path or URL of the folder of its results."""
        return self._shadow.url_of(one.outputs.folder)

    def stamp(self, one: Candidate) -> str:
        """Changes when the model does; empty where that cannot be told."""
        if one.path in self._shadow.stamps:
            return self._shadow.stamps[one.path]
        try:
            files = (
                [part.file for part in Checkpoint.open(one.path).parts]
                if one.path.is_dir()
                else [one.path]
            )
            return ", ".join(
                f"{status.st_size} {status.st_mtime_ns}" for status in map(os.stat, files)
            )
        except (OSError, SpeedError):
            return ""

    def exists(self, result: str) -> bool:
        """Whether a result, path or URL, is still there; of a folder, any of its files."""
        if not is_url(result):
            return os.path.exists(result)
        return not {result, f"{result}/{FOLDER_MARK}"}.isdisjoint(self._shadow.results)

    def survey(self, one: Candidate, text: TextSetup) -> Survey:
        """What to ask the cluster for; reads headers, and a few kilobytes of the text encoder."""
        return survey(one.path, text, self._shadow.read)
