"""A stand-in for one habit of Windows: a file that is open or mapped is neither replaced, renamed
nor removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch


class InUse(PermissionError):
    """What Windows raises: error 32, a sharing violation."""

    winerror = 32


def in_use(path: Any) -> bool:
    """Whether this process has the file, or one below the folder, open or mapped (Linux knows)."""
    wanted = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    wanted = os.path.join(wanted, os.path.basename(os.path.abspath(path)))
    found = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            found.append(os.readlink(entry.path))
        except OSError:
            continue
    found += [
        line.split(maxsplit=5)[5]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/" in line
    ]
    return any(name == wanted or name.startswith(wanted + os.sep) for name in found)


@contextmanager
def habits_of_windows() -> Iterator[None]:
    """Inside, `os.replace`, `os.rename`, `os.unlink` and `os.remove` refuse what Windows would
    refuse.

    Lock files are exempt: where they are removed while they are held, it is on a path that Windows
    does not take.
    """

    def guarded(real: Any, count: int) -> Any:
        def call(*paths: Any, **options: Any) -> Any:
            if options.get("dir_fd") is None:
                for path in paths[:count]:
                    if in_use(path) and not str(path).endswith(".speed-lock"):
                        raise InUse(
                            13,
                            "The process cannot access the file because it is being used",
                            str(path),
                        )
            return real(*paths, **options)

        return call

    with (
        patch("os.replace", guarded(os.replace, 2)),
        patch("os.rename", guarded(os.rename, 2)),
        patch("os.unlink", guarded(os.unlink, 1)),
        patch("os.remove", guarded(os.remove, 1)),
    ):
        yield
