"""Write files whole or not at all.

Everything goes to a temporary name in the target's own folder, is flushed to the disk and then
renamed, so that the final name holds the old content or the new one at every moment. A process that
is killed can leave what it was writing (never a half file under the final name): such a name says
whose it is, and the next write in that folder sweeps it away once its owner is gone.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ..errors import ExistsError, FileError

_SUFFIX = ".speed-tmp"
_OWNED = re.compile(r"\.([0-9a-f]{8})-(\d{1,10})\.[0-9a-f]{12}" + re.escape(_SUFFIX))
_STALE_SECONDS = 24 * 3600.0
"""From this age on a leftover goes whoever owns it: another machine's process cannot be asked
whether it lives.
"""
_ASIDE = "aside"
"""Inside a temporary folder: what had to leave its name for a moment."""

_SENTENCES: dict[int, str] = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another folder",
    errno.EFBIG: (
        "the file is larger than this file system or process may write; choose another folder"
    ),
    errno.EROFS: "the folder is read-only; choose another one",
    errno.EACCES: (
        "you do not have permission to write to this folder; choose another one or change its"
        " permissions"
    ),
    errno.EPERM: (
        "you do not have permission to write to this folder; choose another one or change its"
        " permissions"
    ),
    errno.ENAMETOOLONG: "the name is too long for this file system; choose a shorter one",
    errno.ENOENT: "the folder does not exist; create it first",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
}
_IN_USE = (32, 33)
"""Windows' numbers for a file that somebody has open or locked."""
_WINDOWS_PATH = 259


def write_error(target: Path, error: OSError) -> FileError:
    """The sentence for an operating-system error met while writing `target`."""
    reason = _SENTENCES.get(error.errno or 0, f"{error.strerror or error}; nothing was changed")
    number = getattr(error, "winerror", None)
    if number in _IN_USE:
        reason = (
            "another program has it open; close it there (in ComfyUI: unload the model) and try"
            " again"
        )
    elif number is not None and len(str(target.absolute())) > _WINDOWS_PATH:
        reason = (
            f"its path is longer than {_WINDOWS_PATH} characters; choose a shorter folder or name"
        )
    return FileError(f"Cannot write {target}: {reason}.")


@contextmanager
def atomic_write(
    path: Path | str, *, force: bool = False, sources: Iterable[Path | str] = ()
) -> Iterator[BinaryIO]:
    """Open `path` for writing; it appears, complete, when the block ends without an exception.

    `force` allows an existing file to be replaced. `sources` are files being read meanwhile: none
    may be the target, whatever `force` says.
    """
    target = check_target(path, force=force, sources=sources)
    sweep(target.parent)
    temporary = temporary_name(target)
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
        sync_folder(target.parent)
    except OSError as error:
        raise write_error(target, error) from error
    finally:
        remove(temporary)


def write_bytes(path: Path | str, content: bytes, *, force: bool = False) -> None:
    """A small file in one go, atomically."""
    with atomic_write(path, force=force) as handle:
        handle.write(content)


@contextmanager
def atomic_folder(
    path: Path | str, *, force: bool = False, sources: Iterable[Path | str] = ()
) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends without an exception."""
    target = check_target(path, force=force, sources=sources, folder=True)
    with temporary_folder(target) as temporary:
        new = temporary / target.name
        new.mkdir()
        yield new
        check_target(target, force=force, sources=sources, folder=True)
        move_in(new, target, temporary)
        sync_folder(target.parent)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A folder of ours beside `target`, gone at the end with all that is still in it."""
    sweep(target.parent)
    temporary = temporary_name(target)
    try:
        temporary.mkdir()
        yield temporary
    except OSError as error:
        raise write_error(target, error) from error
    finally:
        _remove_folder(temporary)


def move_in(new: Path, target: Path, temporary: Path) -> tuple[bool, Path | None]:
    """Gives `new` its final name; returns whether something had that name, and where in `temporary`
    it is kept.

    A file is replaced in one step. A folder has to leave its name first, which no portable call can
    avoid; if that is where we are killed, the next sweep puts it back.
    """
    if not os.path.lexists(target):
        new.rename(target)
        return False, None
    aside = temporary / _ASIDE / target.name
    aside.parent.mkdir(exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        target.rename(aside)
        try:
            new.rename(target)
        except BaseException:
            aside.rename(target)
            raise
        return True, aside
    with suppress(OSError):  # not every file system has links: then the old file cannot come back
        os.link(target, aside)
    os.replace(new, target)
    return True, aside if aside.exists() else None


def check_target(
    path: Path | str,
    *,
    force: bool = False,
    sources: Iterable[Path | str] = (),
    folder: bool = False,
) -> Path:
    """Refuse a target that exists (unless `force`), is a source, or is of the wrong kind; callable
    before long work.
    """
    target = Path(path)
    try:
        if not target.name or target.name == "..":
            raise FileError(f"Cannot write {str(path)!r}: it is not a file name.")
        exists = os.path.lexists(target)
        for source in sources:
            if exists and os.path.exists(source) and os.path.samefile(source, target):
                raise FileError(
                    f"Output and input are the same file, {target}: choose another name for the"
                    " output."
                )
        if exists and target.is_dir() != folder:
            kind = "a folder" if target.is_dir() else "a file"
            raise FileError(
                f"Cannot write {target}: {kind} of that name exists; choose another name."
            )
        if exists and not force:
            raise ExistsError(
                f"{target} already exists: choose another name, or allow overwriting (--force on"
                " the command line, overwrite in the node)."
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


def temporary_name(target: Path) -> Path:
    """A fresh hidden name beside the target that says whose it is."""
    return target.with_name(
        f".{target.name[:20]}.{_place()}-{os.getpid()}.{secrets.token_hex(6)}{_SUFFIX}"
    )


def sweep(folder: Path) -> None:
    """Removes what killed writers have left in a folder, and puts back what one of them had moved
    aside.
    """
    try:
        entries = [entry for entry in os.scandir(folder) if entry.name.endswith(_SUFFIX)]
    except (OSError, ValueError):
        return  # the write itself will say what is wrong with the folder
    for entry in entries:
        try:
            if not _abandoned(entry):
                continue
        except OSError:
            continue  # another writer was faster; nothing depends on it
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            _put_back(path, folder)
            _remove_folder(path)
        else:
            remove(path)


def _abandoned(entry: os.DirEntry[str]) -> bool:
    owner = _OWNED.search(entry.name)
    if owner and owner[1] == _place():
        return not _alive(int(owner[2]))
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_SECONDS


@cache
def _place() -> str:
    """Where process numbers mean the same processes: this machine, and on Linux this container."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return hashlib.sha256(f"{platform.node()} {space}".encode()).hexdigest()[:8]


def _alive(process: int) -> bool:
    if os.name == "nt":
        return _alive_on_windows(process)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _alive_on_windows(process: int) -> bool:
    """There `os.kill` would end the process instead of asking for it."""
    synchronize, timed_out = 0x0010_0000, 0x102
    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    handle = kernel.OpenProcess(synchronize, False, process)
    if not handle:
        return bool(kernel.GetLastError() == 5)  # access denied: it lives, and is somebody else's
    alive = kernel.WaitForSingleObject(handle, 0) == timed_out
    kernel.CloseHandle(handle)
    return bool(alive)


def _put_back(temporary: Path, folder: Path) -> None:
    with suppress(OSError):
        for old in (temporary / _ASIDE).iterdir():
            if not os.path.lexists(folder / old.name):
                old.rename(folder / old.name)


def remove(path: Path) -> None:
    """A file of ours, if it is still there; one that Windows holds open is left to the next
    sweep.
    """

    def unlink() -> None:
        with suppress(OSError):
            path.unlink(missing_ok=True)

    to_the_end(unlink)


def _remove_folder(path: Path) -> None:
    to_the_end(lambda: shutil.rmtree(path, ignore_errors=True))


def to_the_end(tidy: Callable[[], object]) -> None:
    """Tidies up even if we are asked to stop just then, and stops afterwards. What was done once
    may be done again.
    """
    try:
        tidy()
    except Exception:
        raise
    except BaseException:
        tidy()
        raise


def sync_folder(folder: Path) -> None:
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
