"""The entry point: runs one command, stops on request, and turns every fault into one sentence and
an exit code.

Only the standard library is imported before `main` runs, so that Ctrl-C during the slow imports is
handled like any other.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

OK, REFUSED, BAD_USAGE, BY_SIGNAL = 0, 1, 2, 128
"""Exit codes. A run that a signal ended returns the last plus the signal's number, as in shells."""
_BROKEN_PIPE = BY_SIGNAL + 13


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; no exception leaves it."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return_large_blocks()
    with _stoppable():
        try:
            return _run(arguments)
        except SystemExit as end:  # --help and --version have been answered
            return int(end.code or 0)
        except BaseException as fault:
            return _answer(fault, arguments)


def _run(arguments: Sequence[str]) -> int:
    from .console import Console, prepare_streams
    from .parser import build_parser, complete

    prepare_streams()
    parser = build_parser()
    complete(parser)
    args = parser.parse_args(arguments)
    lines = getattr(args, "json_lines", False)
    with Console(quiet=args.quiet, machine=args.json, lines=lines, verbose=args.verbose) as console:
        return int(args.run(args, console))


def _answer(fault: BaseException, arguments: Sequence[str]) -> int:
    """Reports what went wrong, to people and to machines; returns the exit code."""
    from ..errors import OutputError, UsageError, error_code
    from .advice import advised
    from .console import Console

    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    unread = isinstance(fault, OutputError)
    machine, lines = (flag in flags and not unread for flag in ("--json", "--json-lines"))
    console = Console(quiet=True, machine=machine, lines=lines)
    if unread and isinstance(fault.__cause__, BrokenPipeError):
        return _BROKEN_PIPE
    if "--debug" in flags and not isinstance(fault, KeyboardInterrupt):
        import traceback

        console.error("".join(traceback.format_exception(fault)).rstrip())
    with suppress(OutputError):
        console.fault(error_code(fault), advised(fault))
    if isinstance(fault, KeyboardInterrupt):
        return BY_SIGNAL + int(getattr(fault, "number", signal.SIGINT))
    return BAD_USAGE if isinstance(fault, UsageError) else REFUSED


class Stopped(KeyboardInterrupt):
    """A signal asked us to end. Like Ctrl-C, it removes unfinished files on its way out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


_STOPPING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
"""Used where they exist: Windows has no SIGHUP, other systems no SIGBREAK."""
_PATIENCE = 1.0
"""Seconds in which a second request counts as the first: some programs that start others pass
Ctrl-C on to them.
"""


@contextmanager
def _stoppable() -> Iterator[None]:
    """The first request to stop raises `Stopped`; a later one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    requests: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not requests:
            requests.append(time.monotonic())
            raise Stopped(number)
        if time.monotonic() - requests[0] > _PATIENCE:
            os._exit(BY_SIGNAL + number)

    before = {}
    for number in (getattr(signal, name) for name in _STOPPING if hasattr(signal, name)):
        # Under `nohup` a signal is ignored, and a program that calls us may have its own way to
        # stop.
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_MMAP_THRESHOLD, _LARGE = -3, 1 << 20


def return_large_blocks() -> bool:
    """Asks the C library to give every freed block of a megabyte or more back to the system.

    By default glibc moves that limit up to 32 MB while it runs. Layers of 10 MB then come from the
    heap and leave holes there: 70 of them grew the process by up to 260 MB, and by nothing with
    this. Returns whether the library accepted it.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    try:
        return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE))
    except (OSError, AttributeError):  # another C library
        return False
