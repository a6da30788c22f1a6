"""The command line's grammar: all commands, the nearest name to one that is unknown, and completion
in shells.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import UsageError, suggestion
from ..provenance import package_version
from . import evaluate, job_file, machine_commands, read_commands, write_commands
from .console import visible, write_result

COMMANDS = (
    write_commands.add_erase,
    write_commands.add_apply,
    write_commands.add_batch,
    job_file.add_run,
    read_commands.add_inspect,
    read_commands.add_verify,
    read_commands.add_forecast,
    read_commands.add_probe,
    evaluate.add_to,
    machine_commands.add_cache,
    machine_commands.add_bench,
    machine_commands.add_completion,
    write_commands.add_demo,
)

_EPILOG = """\
examples:
  speed-erase demo
  speed-erase erase model.safetensors --concepts "Van Gogh -> art" --retain artists --out cleaned
  speed-erase verify cleaned/model-erased.safetensors --base model.safetensors

exit codes: 0 done; 1 a check refused it, or it failed; 2 bad usage."""
_COMPLETING = "_ARGCOMPLETE"
"""Set by the script of `completion` when a shell asks what could come next."""
_CHOICE = re.compile(
    r"argument (?P<what>.+?): invalid choice: (?P<value>.+?) \(choose from (?P<known>.+)\)",
    re.DOTALL,
)


class Parser(argparse.ArgumentParser):
    """Bad usage is an exception like every other fault, and an unknown name is answered with the
    nearest known one.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses; a wrong flag is named before the required one that it was meant to be is
        missed.
        """
        words = list(sys.argv[1:] if args is None else args)
        # a line that is wrong somewhere can be completed elsewhere
        if _COMPLETING not in os.environ:
            self._refuse_unknown_flags(words)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Called by argparse with half a sentence."""
        text = message[:1].upper() + message[1:]
        if found := _CHOICE.fullmatch(message):
            value, known = _literal(found["value"]), re.findall(r"[\w.-]+", found["known"])
            text = (
                f"{found['what']} cannot be {value!r}"
                if found["what"] != "COMMAND"
                else f"There is no command {value!r}"
            )
            text += f"{suggestion(value, known)}: choose from {', '.join(known)}"
        raise UsageError(f"{text}. See `{self.prog} --help`.")

    def _refuse_unknown_flags(self, words: Sequence[str]) -> None:
        known = self._option_string_actions
        for word in words:
            # What comes after a command is for the command's own parser.
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                return
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in word and name not in known:
                raise UsageError(
                    f"There is no option {name}{suggestion(name, known)}. See `{self.prog} --help`."
                )

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help and version, which argparse would let Python fail to write at the very end."""
        write_result("\n".join(visible(line) for line in message.removesuffix("\n").split("\n")))


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text.partition(", maybe you meant")[0]))
    except (ValueError, SyntaxError):
        return text


def build_parser() -> Parser:
    """All subcommands."""
    parser = Parser(
        prog="speed-erase",
        description=(
            "Erase concepts from text-to-image models in closed form: exact, and without training."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"speed-erase {package_version() or '(not installed)'}",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    return parser


def complete(parser: Parser) -> None:
    """Answers a shell that asks for completions, and ends; otherwise does nothing."""
    if _COMPLETING not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:
        raise SystemExit(1) from None
    argcomplete.autocomplete(parser, always_complete_options=False)
