"""The entry point: runs one command, stops when asked to, and turns every fault into one sentence
and an exit code.

Only the standard library is imported before `main` runs, so that Ctrl-C during the slow imports is
answered like any other.
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
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from .parser import Parser

OK, REFUSED, BAD_USAGE, BY_SIGNAL = 0, 1, 2, 128
"""Exit codes; of a run that a signal ended, the last plus the signal's number, as shells say it."""
_BROKEN_PIPE = BY_SIGNAL + 13


def main(argv: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code and lets nothing but that out."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _fill_closed_streams()
    with _stoppable():
        try:
            return _run(arguments)
        except SystemExit as end:  # --help and --version have been answered
            return int(end.code or 0)
        except BaseException as fault:
            return _answer(fault, arguments)


def _run(arguments: Sequence[str]) -> int:
    from .console import Console
    from .parser import complete

    parser = build_parser()
    complete(parser)
    args = parser.parse_args(arguments)
    return_large_blocks()
    lines = getattr(args, "json_lines", False)
    with Console(quiet=args.quiet, machine=args.json, lines=lines) as console:
        return int(args.run(args, console))


def _answer(fault: BaseException, arguments: Sequence[str]) -> int:
    """Says what went wrong, to people and to machines; returns the exit code."""
    from ..errors import OutputError, UsageError, error_code, sentence_of
    from .console import Console

    given = arguments[: arguments.index("--")] if "--" in arguments else arguments
    gone = isinstance(fault, OutputError)
    console = Console(
        machine="--json" in given and not gone, lines="--json-lines" in given and not gone
    )
    if gone and isinstance(fault.__cause__, BrokenPipeError):
        return _BROKEN_PIPE
    if "--debug" in given and not isinstance(fault, KeyboardInterrupt):
        import traceback

        console.error("".join(traceback.format_exception(fault)).rstrip())
    with suppress(OutputError):
        console.fault(error_code(fault), sentence_of(fault))
    if isinstance(fault, KeyboardInterrupt):
        return BY_SIGNAL + int(getattr(fault, "number", signal.SIGINT))
    return BAD_USAGE if isinstance(fault, UsageError) else REFUSED


def build_parser() -> Parser:
    """All subcommands. Neither this nor parsing imports torch: help and bad usage are answered at
    once.
    """
    from .parser import build_parser as build

    return build()


class Stopped(KeyboardInterrupt):
    """A signal asked us to end. Like Ctrl-C, it takes unfinished files with it on its way out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


_STOPPING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
"""Each where the system has it: Windows has no SIGHUP, others no SIGBREAK."""
_PATIENCE = 1.0
"""Seconds in which a second request counts as the first: some programs that start others pass
Ctrl-C on to them.
"""


@contextmanager
def _stoppable() -> Iterator[None]:
    """The first request to stop raises `Stopped`; a later one ends the process at once, whatever it
    is busy with.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not asked:
            asked.append(time.monotonic())
            raise Stopped(number)
        if time.monotonic() - asked[0] > _PATIENCE:
            _end(number)

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


def _end(number: int) -> NoReturn:
    os._exit(BY_SIGNAL + number)


def _fill_closed_streams() -> None:
    """Keeps the numbers 0 to 2 from the files that are opened next: where one is closed, that file
    would get its number, and with it whatever a library prints."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)


_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_LARGE = 1 << 20


def return_large_blocks() -> bool:
    """Gives every large block of memory pages of its own, which leave with it; False where the
    system has no such way.

    glibc raises the size from which it does so up to 32 MB as blocks are freed. The layers of a
    model then come and go on the heap and leave it in pieces: a run over many layers grows although
    it holds one at a time.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    try:
        return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE))
    except (OSError, AttributeError):  # another C library
        return False
