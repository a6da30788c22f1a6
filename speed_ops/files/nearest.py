"""The nearest known name, for messages about a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing when no known name is close; append it to the sentence."""
    # difflib is quadratic in the length of a name: a hostile name must not cost seconds.
    close = difflib.get_close_matches(name[:200], list(known)[:5000], n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
