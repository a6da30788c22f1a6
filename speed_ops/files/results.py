"""The files of one run, which belong together: one run at a time under a name, and all of them
appear or none.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import BusyError, FileError
from .atomic import (
    check_target,
    run_uninterrupted,
    swap_into_place,
    sync_folder,
    temporary_folder,
    write_error,
)

_SUFFIX = ".speed-lock"
_PATIENCE = 0.2
"""Seconds that a lock is tried: a sweep may hold it for a moment."""


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Makes the folder if needed; removes it again if it stays empty."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
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
    path = folder / f".{key[:20]}-{checksum:08x}{_SUFFIX}"
    lock = FileLock(path, timeout=_PATIENCE)
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            f"Another run is writing {name} to {folder}: wait for it, or choose another name or"
            " folder."
        ) from error
    except OSError as error:
        raise write_error(path, error) from error
    try:
        _sweep_locks(folder, path)
        yield
    finally:
        run_uninterrupted(partial(_release, lock, path))


def _release(lock: FileLock, path: Path) -> None:
    with suppress(OSError):  # Windows does not remove open files; `release` does it there
        path.unlink(missing_ok=True)
    lock.release()


def _sweep_locks(folder: Path, ours: Path) -> None:
    """Removes the lock files of killed runs: those that no process holds."""
    for path in folder.glob(f".*{_SUFFIX}"):
        if path != ours:
            lock = FileLock(path, timeout=0)
            with suppress(Timeout, OSError):
                lock.acquire()
                _release(lock, path)


@contextmanager
def all_or_none(
    targets: Collection[Path],
    *,
    replace: Callable[[Path], bool] = lambda path: False,
    sources: Iterable[Path] = (),
) -> Iterator[Callable[[Path], Path]]:
    """Gives a temporary path for every target; they get their names together at the end. If one
    cannot, those before it are taken back.

    Args:
        targets: The final names, all in one folder.
        replace: Which targets may exist already.
        sources: Files that must not be a target.
    """
    first = next(iter(targets))
    with temporary_folder(first) as temporary:
        try:
            yield lambda target: temporary / target.name
        except FileError as fault:  # messages name the final paths
            inside, outside = f"{temporary}{os.sep}", f"{first.parent}{os.sep}"
            raise FileError(str(fault).replace(inside, outside), **fault.data) from fault
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
                done.append((target, *swap_into_place(new, target, temporary)))
            except OSError as error:
                raise write_error(target, error) from error
        sync_folder(targets[0].parent)
    except BaseException:
        for target, existed, old in reversed(done):
            run_uninterrupted(partial(_undo, target, existed, old))
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
