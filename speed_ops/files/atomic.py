"""Writes files completely or not at all, and the files of one run together.

Everything goes to a temporary folder next to the target, is flushed to the disk and then renamed,
so that the final name holds the old content or the new one at every moment. A process that is
killed can leave its temporary folder behind, never a half-written file. While it lives it holds a
lock inside that folder; the next write nearby removes folders whose lock is free.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from ..errors import BusyError, ExistsError, FileError

_SUFFIX = ".speed-tmp"
_LOCK = ".speed-lock"
_PATIENCE = 0.2
"""Seconds that a lock is tried: a sweep may hold it for a moment."""
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
        _sync_folder(target.parent)


def write_bytes(path: Path | str, content: bytes, *, force: bool = False) -> None:
    """Writes a small file in one go, atomically.

    Args:
        path: The final name.
        content: All bytes.
        force: Replace an existing file.
    """
    with atomic_write(path, force=force) as handle:
        handle.write(content)


@contextmanager
def all_or_none(
    targets: Collection[Path],
    *,
    replaceable: Collection[Path] = (),
    sources: Collection[Path] = (),
) -> Iterator[Callable[[Path], Path]]:
    """Gives a temporary path for every target; they get their names together at the end. If one
    cannot, those before it are taken back.

    Args:
        targets: The final names, all in one folder.
        replaceable: Which targets may exist already.
        sources: Files that must not be a target.
    """
    first = next(iter(targets))
    with temporary_folder(first) as temporary, ExitStack() as taken_back:
        try:
            yield lambda target: temporary / target.name
        except FileError as fault:  # messages name the final paths
            inside, outside = f"{temporary}{os.sep}", f"{first.parent}{os.sep}"
            raise FileError(str(fault).replace(inside, outside), **fault.data) from fault
        for target in targets:
            new, force = temporary / target.name, target in replaceable
            if not new.exists():
                continue
            check_target(target, force=force, sources=sources, folder=new.is_dir())
            try:
                existed, old = _swap_into_place(new, target, temporary)
            except OSError as error:
                raise write_error(target, error) from error
            taken_back.callback(_run_uninterrupted, partial(_undo, target, existed, old))
        _sync_folder(first.parent)
        taken_back.pop_all()


def _undo(target: Path, existed: bool, old: Path | None) -> None:
    with suppress(OSError):
        if old is None:
            if not existed:  # else the old one could not be kept: better the new one than none
                shutil.rmtree(target) if target.is_dir() else target.unlink()
        elif old.is_dir():
            shutil.rmtree(target)
            old.rename(target)
        else:
            os.replace(old, target)


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Makes the folder if needed; removes it again if it stays empty."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except ValueError as error:
        raise FileError(
            f"Cannot write to {str(folder)!r}: {error}. Choose another name."
        ) from error
    except OSError as error:
        raise write_error(folder, error) from error
    try:
        yield
    finally:
        for path in created:
            try:
                path.rmdir()
            except OSError:
                break  # it holds the results


@contextmanager
def output_lock(folder: Path, name: str) -> Iterator[None]:
    """Refuses a second run that writes results of this name to this folder at the same time.

    The operating system releases the lock when the process ends, however it ends.
    """
    key = name.casefold()  # names that differ only in case are one name on Windows and macOS
    checksum = zlib.crc32(key.encode("utf-8", "surrogatepass"))
    path = folder / f".{key[:20]}-{checksum:08x}{_LOCK}"
    lock = FileLock(path, timeout=_PATIENCE)
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            f"Another run is writing {name} to {folder}. Wait for it, or choose another name or"
            " folder."
        ) from error
    except OSError as error:
        raise write_error(path, error) from error
    try:
        _sweep_locks(folder, ours=path)
        yield
    finally:
        _run_uninterrupted(partial(_release, lock, path))


def _release(lock: FileLock, path: Path) -> None:
    with suppress(OSError):  # Windows does not remove open files; `release` does it there
        path.unlink(missing_ok=True)
    lock.release()


def _sweep_locks(folder: Path, ours: Path | None = None) -> None:
    """Removes the lock files of killed runs: those that no process holds."""
    for path in folder.glob(f".*{_LOCK}"):
        if path != ours:
            lock = FileLock(path, timeout=0)
            with suppress(Timeout, OSError):
                lock.acquire()
                _release(lock, path)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A folder next to `target`, removed at the end with everything that is still in it."""
    if "\0" in str(target):
        raise FileError(
            f"Cannot write {str(target)!r}: the name contains a NUL character. Choose another name."
        )
    _sweep_temporary(target.parent)
    temporary = target.with_name(f".{target.name[:20]}.{secrets.token_hex(6)}{_SUFFIX}")
    lock = FileLock(temporary / _LOCK)
    try:
        temporary.mkdir(0o700)
        lock.acquire(timeout=_SETTLING_SECONDS)
        yield temporary
    except OSError as error:
        raise write_error(target, error) from error
    finally:
        _run_uninterrupted(lock.release)
        _remove_folder(temporary)


def _swap_into_place(new: Path, target: Path, temporary: Path) -> tuple[bool, Path | None]:
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
            raise FileError(
                f"Cannot write {str(path)!r}: it is not a file name. Choose another name."
            )
        exists = os.path.lexists(target)
        for source in sources:
            if exists and os.path.exists(source) and os.path.samefile(source, target):
                raise FileError(
                    f"Output and input are the same file, {label}. Choose another name for the"
                    " output."
                )
        if exists and target.is_dir() != folder:
            kind = "a folder" if target.is_dir() else "a file"
            raise FileError(
                f"Cannot write {label}: {kind} of that name exists. Choose another name."
            )
        if exists and not force:
            raise ExistsError(
                f"{label} already exists. Choose another name.", advice="allow-overwriting"
            )
    except OSError as error:
        raise write_error(target, error) from error
    return target


def sweep(folder: Path) -> None:
    """Removes what killed runs have left in a folder, and puts back what they moved aside."""
    _sweep_temporary(folder)
    _sweep_locks(folder)


def _sweep_temporary(folder: Path) -> None:
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
    _run_uninterrupted(lambda: shutil.rmtree(path, ignore_errors=True))


def _run_uninterrupted(tidy: Callable[[], object]) -> None:
    """Cleans up even if we are asked to stop just then, then stops. `tidy` may run twice."""
    try:
        tidy()
    except Exception:
        raise
    except BaseException:
        tidy()
        raise


def _sync_folder(folder: Path) -> None:
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
