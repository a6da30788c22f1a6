"""Parses the command line, runs one subcommand, and turns every fault into one sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from ..errors import SpeedError
from ..versions import package_version
from . import apply, batch, bench, cache, demo, erase, forecast, inspect_file, probe, verify
from .console import Console
from .memory import return_large_blocks
from .usage import UsageError

OK, REFUSED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
COMMANDS = (erase, apply, batch, inspect_file, verify, forecast, probe, cache, bench, demo)
_EPILOG = """\
examples:
  speed-erase demo
  speed-erase erase model.safetensors --concepts "Van Gogh -> art" --retain artists --out cleaned
  speed-erase verify cleaned/model-erased.safetensors --base model.safetensors

exit codes: 0 done, 1 refused by a check or failed, 2 bad usage."""


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
        description="Erase concepts from text-to-image models in closed form: exact, in seconds, without training.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"speed-erase {package_version() or '(not installed)'}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add_to(commands)
    return parser


def _sentence(fault: Exception) -> str:
    if isinstance(fault, SpeedError):
        return " ".join(str(fault).split())
    if isinstance(fault, MemoryError):
        return "The memory is used up: close other programs, or use a shorter retain list."
    if isinstance(fault, ImportError):
        return f"A package is missing ({fault}): install with `pip install 'speed-erase[cli]'`."
    reason = " ".join(str(fault).split())[:300] or type(fault).__name__
    return (
        f"This should not happen ({type(fault).__name__}: {reason}): run again with --debug and report what it shows."
    )


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
