"""The files of one run, which belong together: one run at a time under a name, and all of them
appear or none.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from ..errors import BusyError, FileError
from .atomic import (
    check_target,
    move_in,
    remove,
    sync_folder,
    temporary_folder,
    to_the_end,
    write_error,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK_SUFFIX = ".speed-lock"
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""From file systems without locks: there two runs are kept apart by the check of every single file
alone.
"""


@contextmanager
def one_at_a_time(folder: Path, name: str) -> Iterator[None]:
    """Refuses a second run that writes results of this name to this folder while the first is at
    work.

    The lock is the operating system's: it ends with the process, however that ends, and the file of
    a killed run locks nobody out.
    """
    key = name.casefold()  # names that differ in case alone are one name on Windows and macOS
    path = (
        folder / f".{key[:20]}-{zlib.crc32(key.encode('utf-8', 'surrogatepass')):08x}{_LOCK_SUFFIX}"
    )
    busy = BusyError(
        f"Another run is writing {name} to {folder}: wait for it, or choose another name or folder."
    )
    handle = _take(path, busy)
    _sweep_locks(folder, path)
    try:
        yield
    finally:
        _give_back(path, handle)


_PATIENCE = 20
"""Times that a lock is tried, a hundredth of a second apart: a sweep may hold it for a moment."""


def _take(path: Path, busy: BusyError) -> int:
    tries = 0
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except PermissionError as error:
            # Windows says so of a file that is being removed, or that the other run has open.
            raise (busy if os.name == "nt" else write_error(path, error)) from error
        except OSError as error:
            raise write_error(path, error) from error
        try:
            _lock(handle)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return handle
            os.close(handle)
            tries += 1
            if tries >= _PATIENCE:
                raise busy from error
            time.sleep(0.01)
            continue
        if _is_still(path, handle):
            return handle
        os.close(handle)  # the run before us has just removed it: take a new one


def _lock(handle: int) -> None:
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]


def _is_still(path: Path, handle: int) -> bool:
    if os.name == "nt":
        return True  # there an open file cannot have been removed
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def _give_back(path: Path, handle: int) -> None:
    if os.name != "nt":
        remove(path)  # while it is still ours: who opens it now finds out
    os.close(handle)
    if os.name == "nt":  # which removes no open file; another run may have it already
        remove(path)


def _sweep_locks(folder: Path, ours: Path) -> None:
    """Removes the lock files of killed runs: those that nobody holds."""
    for path in folder.glob(f".*{_LOCK_SUFFIX}"):
        if path != ours:
            with suppress(OSError):
                handle = os.open(path, os.O_RDWR)
                try:
                    _lock(handle)
                except OSError:
                    os.close(handle)
                else:
                    _give_back(path, handle)


@contextmanager
def all_or_none(
    targets: Collection[Path],
    *,
    replace: Callable[[Path], bool] = lambda path: False,
    sources: Iterable[Path] = (),
) -> Iterator[Callable[[Path], Path]]:
    """Gives a temporary path for every target, all of them in one folder; they get their names
    together at the end.

    `replace`: which targets may exist already. If one cannot be put in its place, those before it
    are taken back.
    """
    first = next(iter(targets))
    with temporary_folder(first) as temporary:
        try:
            yield lambda target: temporary / target.name
        except FileError as fault:  # nobody should read about a place that is gone
            inside, outside = f"{temporary}{os.sep}", f"{first.parent}{os.sep}"
            raise FileError(str(fault).replace(inside, outside)) from fault
        _commit(
            [path for path in targets if (temporary / path.name).exists()],
            temporary,
            replace,
            tuple(sources),
        )


def _commit(
    targets: list[Path], temporary: Path, replace: Callable[[Path], bool], sources: tuple[Path, ...]
) -> None:
    done: list[tuple[Path, bool, Path | None]] = []
    try:
        for target in targets:
            new = temporary / target.name
            check_target(target, force=replace(target), sources=sources, folder=new.is_dir())
            try:
                done.append((target, *move_in(new, target, temporary)))
            except OSError as error:
                raise write_error(target, error) from error
        sync_folder(targets[0].parent)
    except BaseException:
        for target, existed, old in reversed(done):
            to_the_end(partial(_undo, target, existed, old))
        raise


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
