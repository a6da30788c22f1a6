"""Names that others chose, such as members of an archive, keys of a store or values in a workflow:
the one function that makes a path of such a name.
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

from ..errors import FileError

_SEPARATOR = re.compile(r"[/\\]")
_NEVER = re.compile(r"[\x00-\x1f\x7f:\ud800-\udfff]")
"""NUL and line breaks, what Windows takes for a drive or a stream, and halves of characters."""
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def path_inside(root: Path, name: str, *, follow_links: bool = False) -> Path:
    """The path below a folder. Refuses a name that would lead out of it, on this or another
    operating system.

    Args:
        root: The folder; nothing in it needs to exist.
        name: The path below it, with slashes or backslashes.
        follow_links: Whether links in the folder may lead out of it, because its owner made them.
    """
    # Some programs take wide dots and slashes for plain ones.
    for spelling in (name, unicodedata.normalize("NFKC", name)):
        parts = _SEPARATOR.split(spelling)
        if not all(part.strip(" .") and part[-1] not in " ." for part in parts):
            raise _outside(root, name)
    parts = _SEPARATOR.split(name)
    if _NEVER.search(name) or any(map(_DEVICE.fullmatch, parts)):
        raise _outside(root, name)
    path = root.joinpath(*parts)
    if not follow_links:
        try:
            inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
        except OSError:  # a circle of links
            inside = False
        if not inside:
            raise _outside(root, name)
    return path


def _outside(root: Path, name: str) -> FileError:
    return FileError(
        f"{name[:80]!r} is not the name of a file inside {root.name or root}. Rename it.", name=name
    )
