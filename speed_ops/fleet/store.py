"""Files in stores that fsspec reaches: s3://, gs://, file:// and others.

fsspec is imported late: it comes with the extra `fleet`.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FileError, MissingPackageError, NotFoundError, UsageError
from ..files.atomic import temporary_folder, write_error
from ..files.header import MAX_HEADER_BYTES, PICKLE_SUFFIXES

HEAD_BYTES = 512 * 1024
"""Bytes of a file to read first. The headers of SD1.x and SDXL (0.1 and 0.3 MB) and our metadata
fit; the remainder of a longer header takes a second read.
"""
SMALL_BYTES = 20_000_000
"""JSON files up to this size are read completely: recipes, indices, model_index.json."""
ATOMIC_UPLOADS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss"})
"""Stores where an object appears when its upload is complete, and where renaming copies it."""
REFUSED = {
    **dict.fromkeys(
        ("http", "ftp"),
        "anyone on the way can exchange what it sends; use s3://, https:// or sftp://",
    ),
    "reference": "it can name any file of this machine; use the store itself",
}
"""Stores that are not opened, also inside others (`zip://::http://...`), and why."""
FOLDER_MARK = "model_index.json"
_HASHES = ("ETag", "etag", "md5Hash")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


def is_url(location: object) -> bool:
    """Whether a location is a URL and not a path."""
    return "://" in str(location)


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder in `parent`, or in the machine's temporary folder, removed at the end."""
    try:
        if parent is None:
            parent = _own_folder()
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(parent or Path(tempfile.gettempdir()), error) from error
    with temporary_folder(parent / "model") as folder:
        yield folder


def _own_folder() -> Path:
    """A folder of this user in the machine's temporary folder, the same for all runs, so that each
    removes what killed ones left. Should another user have taken its name, a new one.
    """
    user = getattr(os, "getuid", lambda: 0)()
    folder = Path(tempfile.gettempdir()) / f"speed-erase-fleet{user}"
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    private = os.name == "nt" or (status.st_uid == user and not status.st_mode & 0o077)
    if stat.S_ISDIR(status.st_mode) and private:
        return folder
    return Path(tempfile.mkdtemp(prefix=folder.name))


@dataclass(frozen=True)
class Store:
    """One folder in a store. Make one with `Store.open`."""

    url: str
    fs: Any = field(repr=False)
    root: str
    """The folder as the store itself spells it."""

    @classmethod
    def open(cls, url: str) -> Store:
        """Refuses a URL that no installed package understands, and `REFUSED` stores."""
        for link in url.split("::"):
            if reason := REFUSED.get(link.partition("://")[0].casefold()):
                raise UsageError(f"{link} is not opened: {reason}.")
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingPackageError(
                f"Cannot open {url}. Install what a fleet needs with `pip install"
                " 'speed-erase[fleet]'`."
            ) from error
        try:
            fs, root = url_to_fs(url)
        except ImportError as error:
            raise MissingPackageError(f"Cannot open {url}: {_reason(error)}.") from error
        except Exception as error:
            raise FileError(f"Cannot open {url}: {_reason(error)}.") from error
        return cls(url.rstrip("/"), fs, str(root).rstrip("/"))

    def subfolder(self, inner: str) -> Store:
        """A folder inside this one."""
        return Store(self.url_of(inner), self.fs, self._path(inner))

    @property
    def protocol(self) -> str:
        return self.url.partition("://")[0]

    def url_of(self, inner: str) -> str:
        """URL of a file in the folder."""
        return f"{self.url}/{inner}"

    def info(self, inner: str) -> dict[str, Any] | None:
        """What the store reports about a file; None if there is none."""
        try:
            with _reading(self.url_of(inner)):
                return dict(self.fs.info(self._path(inner)))
        except NotFoundError:
            return None

    def files(self, depth: int | None = None) -> dict[str, dict[str, Any]]:
        """{path below the folder: what the store reports}, at most `depth` levels deep."""
        with _reading(self.url):
            self.fs.invalidate_cache()
            listing = self.fs.find(self.root, maxdepth=depth, detail=True)
        if not all(type(info.get("size")) is int for info in listing.values()):
            raise FileError(f"{self.url} doesn't report file sizes. Use another store.")
        return {path[len(self.root) :].lstrip("/"): info for path, info in sorted(listing.items())}

    def read(self, inner: str, start: int, stop: int) -> bytes:
        """Part of a file.

        Args:
            inner: Path of the file below the store's folder.
            start: Position of the first byte.
            stop: Position after the last byte.
        """
        with _reading(self.url_of(inner)):
            return bytes(self.fs.cat_file(self._path(inner), start=start, end=stop))

    def get(self, inner: str, target: Path) -> None:
        """Downloads a file."""
        with _reading(self.url_of(inner)):
            target.parent.mkdir(parents=True, exist_ok=True)
            self.fs.get_file(self._path(inner), str(target))
            size = self.fs.info(self._path(inner))["size"]
        if target.stat().st_size != size:
            raise FileError(
                f"{self.url_of(inner)} was cut short on its way, or changed. Run again."
            )

    def get_head(self, inner: str, size: int, target: Path) -> None:
        """Makes a local file of the same size with the header of a safetensors file, or with all
        of a small recipe or card, and a hole instead of the remainder.

        Args:
            inner: Path below the folder.
            size: Bytes of the file in the store.
            target: The local file.
        """
        suffix = Path(inner).suffix.lower()
        small = suffix in (".json", ".md")
        length = min(size, SMALL_BYTES if small else HEAD_BYTES)
        content = b"" if suffix in PICKLE_SUFFIXES else self.read(inner, 0, length)
        header = 8 + int.from_bytes(content[:8], "little")
        if not small and length < header <= min(size, MAX_HEADER_BYTES):
            content += self.read(inner, length, header)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as handle:
                handle.write(content)
                handle.truncate(size)
        except OSError as error:
            raise write_error(target, error) from error

    def put(self, source: Path, inner: str) -> None:
        """Uploads a file completely or not at all: under a temporary name first, unless the store
        itself guarantees that.
        """
        target = self._path(inner)
        atomic = self.protocol in ATOMIC_UPLOADS
        folder, _, name = target.rpartition("/")
        temporary = target if atomic else f"{folder}/.{name[:20]}.{secrets.token_hex(6)}.speed-tmp"
        try:
            self.fs.makedirs(folder, exist_ok=True)
            try:
                self.fs.put_file(str(source), temporary)
                if not atomic:
                    self.fs.mv(temporary, target)
            except BaseException:
                if not atomic and self.fs.exists(temporary):
                    self.fs.rm(temporary)
                raise
        except Exception as error:
            raise FileError(f"Cannot write {self.url_of(inner)}: {_reason(error)}.") from error

    def _path(self, inner: str) -> str:
        return f"{self.root}/{inner}"


@contextmanager
def _reading(url: str) -> Iterator[None]:
    """Phrases what a store raises while it is read."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no {url}.") from error
    except Exception as error:  # stores raise many types
        raise FileError(f"Cannot read {url}: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
    return reason.rstrip(".") or type(error).__name__


def change_stamp(info: Mapping[str, Any]) -> str:
    """Changes when a file in a store does: its size, and its hash there or its time."""
    versions = (info[key] for key in (*_HASHES, *_TIMES) if info.get(key) is not None)
    return f"{info.get('size')} {next(versions, '')}"
