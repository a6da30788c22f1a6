"""Memory that is freed goes back to the system."""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_LARGE = 1 << 20


def return_large_blocks() -> bool:
    """Gives every large block of memory pages of its own, which leave with it; False where the system has no such way.

    glibc raises the size from which it does so up to 32 MB as blocks are freed. The layers of a model then come and go
    on the heap and leave it in pieces: a run over many layers grows although it holds one at a time.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE))
    except (OSError, AttributeError):  # another C library
        return False
