"""Parses the command line, runs one subcommand, and turns every fault into one sentence and an exit code."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from ..errors import SpeedError
from ..files.metadata import package_version
from . import machine_commands, read_commands, write_commands
from .console import Console
from .options import UsageError

OK, REFUSED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130

COMMANDS = (
    write_commands.add_erase,
    write_commands.add_apply,
    write_commands.add_batch,
    read_commands.add_inspect,
    read_commands.add_verify,
    read_commands.add_forecast,
    read_commands.add_probe,
    machine_commands.add_cache,
    machine_commands.add_bench,
    write_commands.add_demo,
)

_EPILOG = """\
examples:
  speed-erase demo
  speed-erase erase model.safetensors --concepts "Van Gogh -> art" --retain artists --out cleaned
  speed-erase verify cleaned/model-erased.safetensors --base model.safetensors

exit codes: 0 done; 1 a check refused it, or it failed; 2 bad usage."""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code and lets nothing but that out."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser().parse_args(arguments)
    except SystemExit as end:  # argparse has said what is wrong
        return int(end.code or 0)
    return_large_blocks()
    debug = getattr(args, "debug", False)
    with Console(quiet=getattr(args, "quiet", False), machine=getattr(args, "json", False)) as console, _stoppable():
        try:
            return int(args.run(args, console))
        except KeyboardInterrupt:
            console.error("Interrupted: nothing unfinished was left behind.")
            return INTERRUPTED
        except BrokenPipeError:
            # Who reads us has gone; what is left in the buffer must not raise again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return REFUSED
        except Exception as fault:
            if debug:
                console.error(traceback.format_exc().rstrip())
            console.error(_sentence(fault))
            return BAD_USAGE if isinstance(fault, UsageError) else REFUSED


def build_parser() -> argparse.ArgumentParser:
    """All subcommands. Neither this nor parsing imports torch: help and bad usage are answered at once."""
    parser = argparse.ArgumentParser(
        prog="speed-erase",
        description="Erase concepts from text-to-image models in closed form: exact, and without training.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"speed-erase {package_version() or '(not installed)'}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    return parser


def _sentence(fault: Exception) -> str:
    if isinstance(fault, SpeedError):
        return " ".join(str(fault).split())
    if isinstance(fault, MemoryError):
        return "Out of memory: close other programs, or keep fewer names."
    if isinstance(fault, ImportError):
        return f"A package is missing ({fault}): install with `pip install 'speed-erase[cli]'`."
    reason = " ".join(str(fault).split())[:300] or type(fault).__name__
    return f"Unexpected error ({type(fault).__name__}: {reason}): run again with --debug and report what it shows."


@contextmanager
def _stoppable() -> Iterator[None]:
    """A request to terminate ends like Ctrl-C, so that temporary files go with us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
