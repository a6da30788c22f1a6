"""The one family of exceptions, and the nearest known name for a message about one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpeedError(Exception):
    """Base of everything this package raises on purpose."""


class SettingsError(SpeedError, ValueError):
    """A setting is out of its range, or two settings contradict each other."""


class InputError(SpeedError, ValueError):
    """Embeddings, weights or names cannot be used as they are."""


class FileError(SpeedError):
    """A file cannot be read, is not what it claims to be, or cannot be written."""


class UnsupportedModelError(SpeedError):
    """The model has no layer that this package knows how to edit."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing when no known name is close; append it to the sentence."""
    # difflib is quadratic in the length of a name: a hostile name must not cost seconds.
    close = difflib.get_close_matches(name[:200], list(known)[:5000], n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
