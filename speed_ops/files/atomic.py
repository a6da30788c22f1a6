"""Writes files completely or not at all.

Everything goes to a temporary folder next to the target, is flushed to the disk and then renamed,
so that the final name holds the old content or the new one at every moment. A process that is
killed can leave its temporary folder behind, never a half-written file under the final name. While
it lives it holds a lock inside that folder; the next write nearby removes folders whose lock is
free.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from ..errors import ExistsError, FileError

_SUFFIX = ".speed-tmp"
_LOCK = ".speed-lock"
_ASIDE = "aside"
"""Inside a temporary folder: what had to leave its name for a moment."""
_STALE_SECONDS = 24 * 3600.0
"""From this age on a temporary folder is removed even if its lock cannot be tested."""
_SETTLING_SECONDS = 5.0
"""A younger folder is left alone: its writer may not have taken the lock yet."""

_SENTENCES: dict[int, str] = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another folder",
    errno.EFBIG: (
        "the file is larger than this file system or process may write; choose another folder"
    ),
    errno.EROFS: "the folder is read-only; choose another one",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        "you do not have permission to write to this folder; choose another one or change its"
        " permissions",
    ),
    errno.ENAMETOOLONG: "the name is too long for this file system; choose a shorter one",
    errno.ENOENT: "the folder does not exist; create it first",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
}
_IN_USE = (32, 33)
"""Windows' numbers for a file that a program has open or locked."""
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
    """Opens `path` for writing; it appears, complete, when the block ends without an exception.

    Args:
        path: The final name.
        force: Replace an existing file.
        sources: Files being read meanwhile; none may be the target, even with `force`.
    """
    target = check_target(path, force=force, sources=sources)
    with temporary_folder(target) as temporary:
        new = temporary / "new"
        with new.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        check_target(target, force=force, sources=sources)
        os.replace(new, target)
        sync_folder(target.parent)


def write_bytes(path: Path | str, content: bytes, *, force: bool = False) -> None:
    """Writes a small file in one go, atomically; `force` replaces an existing one."""
    with atomic_write(path, force=force) as handle:
        handle.write(content)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A folder next to `target`, removed at the end with everything that is still in it."""
    if "\0" in str(target):
        raise FileError(f"Cannot write {str(target)!r}: no file name contains a NUL character.")
    _sweep(target.parent)
    temporary = target.with_name(f".{target.name[:20]}.{secrets.token_hex(6)}{_SUFFIX}")
    lock = FileLock(temporary / _LOCK)
    try:
        temporary.mkdir()
        lock.acquire(timeout=_SETTLING_SECONDS)
        yield temporary
    except OSError as error:
        raise write_error(target, error) from error
    finally:
        run_uninterrupted(lock.release)
        _remove_folder(temporary)


def swap_into_place(new: Path, target: Path, temporary: Path) -> tuple[bool, Path | None]:
    """Gives `new` its final name.

    A file is replaced in one step. A folder has to leave its name first, which no portable call can
    avoid; if we are killed at that point, the next sweep puts it back.

    Args:
        new: The complete file or folder.
        target: Its final name.
        temporary: Where what had that name is moved.

    Returns:
        Whether something had that name, and where it is now.
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
    label: str = "",
) -> Path:
    """Refuses a target that cannot be written; callable before long work.

    Args:
        path: The final name.
        force: Whether it may exist.
        sources: Files that must not be the target.
        folder: Whether the target is a folder.
        label: What messages call the target, if not its path.
    """
    target, label = Path(path), label or str(path)
    try:
        if not target.name or target.name == "..":
            raise FileError(f"Cannot write {str(path)!r}: it is not a file name.")
        exists = os.path.lexists(target)
        for source in sources:
            if exists and os.path.exists(source) and os.path.samefile(source, target):
                raise FileError(
                    f"Output and input are the same file, {label}: choose another name for the"
                    " output."
                )
        if exists and target.is_dir() != folder:
            kind = "a folder" if target.is_dir() else "a file"
            raise FileError(
                f"Cannot write {label}: {kind} of that name exists; choose another name."
            )
        if exists and not force:
            raise ExistsError(
                f"{label} already exists: choose another name.", advice="allow-overwriting"
            )
    except OSError as error:
        raise write_error(target, error) from error
    except ValueError as error:  # a path with a NUL character, which no file can have
        raise FileError(f"Cannot write {str(target)!r}: {error}.") from error
    return target


def _sweep(folder: Path) -> None:
    """Removes what killed writers have left in a folder, and puts back what they moved aside."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.name.endswith(_SUFFIX)]
    except (OSError, ValueError):
        return  # the write itself will report what is wrong with the folder
    for entry in entries:
        with suppress(OSError):  # another writer was faster
            path, age = Path(entry.path), time.time() - entry.stat(follow_symlinks=False).st_mtime
            if age < _SETTLING_SECONDS or not (age > _STALE_SECONDS or _lock_is_free(path)):
                continue
            if entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    for old in (path / _ASIDE).iterdir():
                        if not os.path.lexists(folder / old.name):
                            old.rename(folder / old.name)
                _remove_folder(path)
            else:
                path.unlink()


def _lock_is_free(temporary: Path) -> bool:
    """Whether the writer of a temporary folder is gone; False where that cannot be known."""
    path = temporary / _LOCK
    if not path.is_file():
        return temporary.is_dir()  # it was killed before it took the lock
    try:
        with FileLock(path, timeout=0):
            return True
    except (Timeout, OSError, NotImplementedError):
        return False


def _remove_folder(path: Path) -> None:
    run_uninterrupted(lambda: shutil.rmtree(path, ignore_errors=True))


def run_uninterrupted(tidy: Callable[[], object]) -> None:
    """Cleans up even if we are asked to stop just then, then stops. `tidy` may run twice."""
    try:
        tidy()
    except Exception:
        raise
    except BaseException:
        tidy()
        raise


def sync_folder(folder: Path) -> None:
    """Makes the rename itself durable, where folders can be synced (not on Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse; the rename has happened all the same
    finally:
        os.close(descriptor)
