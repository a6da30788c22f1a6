"""Write files whole or not at all.

Everything goes to a temporary file in the target's own folder, is flushed to the disk and then renamed, so that the
final name holds the old content or the new one at every moment. A process that is killed can leave its temporary file
(never a half file under the final name); the next write of the same name sweeps it away.
"""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import FileError

_SUFFIX = ".speed-tmp"
_STALE_SECONDS = 3600.0

_SENTENCES: dict[int, str] = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another folder",
    errno.EFBIG: "the file is larger than this file system or process may write; choose another folder",
    errno.EROFS: "the folder is read-only; choose another one",
    errno.EACCES: "you do not have permission to write to this folder; choose another one or change its permissions",
    errno.EPERM: "you do not have permission to write to this folder; choose another one or change its permissions",
    errno.ENAMETOOLONG: "the name is too long for this file system; choose a shorter one",
    errno.ENOENT: "the folder does not exist; create it first",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
}


def write_error(target: Path, error: OSError) -> FileError:
    """The sentence for an operating-system error met while writing `target`."""
    reason = _SENTENCES.get(error.errno or 0, f"{error.strerror or error}; nothing was changed")
    return FileError(f"Cannot write {target}: {reason}.")


@contextmanager
def atomic_write(path: Path | str, *, force: bool = False, sources: Iterable[Path | str] = ()) -> Iterator[BinaryIO]:
    """Open `path` for writing; it appears, complete, when the block ends without an exception.

    `force` allows an existing file to be replaced. `sources` are files being read meanwhile: none may be the target,
    whatever `force` says.
    """
    target = check_target(path, force=force, sources=sources)
    temporary = _temporary_name(target)
    try:
        handle = temporary.open("xb")
    except (OSError, ValueError) as error:
        raise _as_file_error(target, error) from error
    try:
        with handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        check_target(target, force=force, sources=sources)
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise write_error(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path | str, content: bytes, *, force: bool = False) -> None:
    """A small file in one go, atomically."""
    with atomic_write(path, force=force) as handle:
        handle.write(content)


@contextmanager
def atomic_folder(path: Path | str, *, force: bool = False, sources: Iterable[Path | str] = ()) -> Iterator[Path]:
    """A temporary folder that becomes `path` by one rename when the block ends without an exception.

    An existing folder (with `force`) is moved aside for the moment of the rename and moved back if that fails: between
    the two renames the name is free, which no portable call can avoid.
    """
    target = check_target(path, force=force, sources=sources, folder=True)
    temporary = _temporary_name(target)
    try:
        temporary.mkdir()
        yield temporary
        check_target(target, force=force, sources=sources, folder=True)
        _swap_in(temporary, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise write_error(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap_in(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
        return
    aside = _temporary_name(target)
    target.rename(aside)
    try:
        temporary.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def check_target(
    path: Path | str, *, force: bool = False, sources: Iterable[Path | str] = (), folder: bool = False
) -> Path:
    """Refuse a target that exists (unless `force`), is a source, or is of the wrong kind; callable before long work."""
    target = Path(path)
    try:
        if not target.name or target.name == "..":
            raise FileError(f"Cannot write {str(path)!r}: it is not a file name.")
        exists = os.path.lexists(target)
        for source in sources:
            if exists and os.path.exists(source) and os.path.samefile(source, target):
                raise FileError(f"Output and input are the same file, {target}: choose another name for the output.")
        if exists and target.is_dir() != folder:
            kind = "a folder" if target.is_dir() else "a file"
            raise FileError(f"Cannot write {target}: {kind} of that name exists; choose another name.")
        if exists and not force:
            raise FileError(
                f"{target} already exists: choose another name, or allow overwriting (--force on the command line, "
                "overwrite in the node)."
            )
    except (OSError, ValueError) as error:
        raise _as_file_error(target, error) from error
    return target


def _as_file_error(target: Path, error: OSError | ValueError) -> FileError:
    """ValueError: a path with a NUL character, which no file can have."""
    return (
        write_error(target, error)
        if isinstance(error, OSError)
        else FileError(f"Cannot write {str(target)!r}: {error}.")
    )


def _temporary_name(target: Path) -> Path:
    """A fresh hidden name beside the target; leftovers of killed writers of the same target are removed."""
    stem = f".{target.name[:80]}."
    for old in glob.iglob(os.path.join(glob.escape(str(target.parent)), glob.escape(stem) + "*" + _SUFFIX)):
        try:
            if time.time() - os.stat(old).st_mtime > _STALE_SECONDS:
                shutil.rmtree(old, ignore_errors=True) if os.path.isdir(old) else os.unlink(old)
        except OSError:
            continue  # another writer was faster; nothing depends on it
    return target.with_name(f"{stem}{secrets.token_hex(6)}{_SUFFIX}")


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where folders can be synced (not on Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse; the rename has happened all the same
    finally:
        os.close(descriptor)
