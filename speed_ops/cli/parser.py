"""The command line's grammar: all commands, the nearest match to an unknown name, and completion in
shells.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import PACKAGE_VERSION, UsageError, suggestion
from .commands import COMMANDS
from .console import visible_lines, write_result
from .options import SHARED_FLAGS, path_or_url

_EPILOG = """\
examples:
  speed-erase demo
  speed-erase erase model.safetensors --concepts "Van Gogh -> art" --retain artists --out cleaned
  speed-erase verify cleaned/model-erased.safetensors --base model.safetensors

exit codes: 0 success, 1 failed or rejected by a check, 2 invalid arguments."""
_COMPLETING = "_ARGCOMPLETE"
"""Set by argcomplete's script when a shell asks what could come next."""
_CHOICE = re.compile(
    r"argument (?P<name>.+?): invalid choice: (?P<value>.+?) \(choose from (?P<choices>.+)\)",
    re.DOTALL,
)


_IN_OUR_WORDS = (
    (r"the following arguments are required: (.+)", r"Missing \1"),
    (r"unrecognized arguments: (.+)", r"Unexpected \1"),
    (r"argument (\S+): expected (?:one|at least one) argument", r"\1 needs a value"),
    (r"argument (\S+): invalid float value: (.+)", r"Invalid \1 \2. Use a number"),
    (r"argument (\S+): invalid int value: (.+)", r"Invalid \1 \2. Use a whole number"),
)
"""What argparse says -> what we say."""


class Parser(argparse.ArgumentParser):
    """Raises bad usage like every other fault, and answers an unknown name with the nearest one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses. A misspelled flag is reported before argparse misses the required one."""
        words = list(sys.argv[1:] if args is None else args)
        # a line that is wrong somewhere can be completed elsewhere
        if _COMPLETING not in os.environ:
            self._refuse_unknown_flags(words)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Called by argparse with half a sentence."""
        for pattern, words in _IN_OUR_WORDS:
            message = re.sub(pattern, words, message)
        text = message[:1].upper() + message[1:]
        if match := _CHOICE.fullmatch(message):
            value, choices = _literal(match["value"]), re.findall(r"[\w.-]+", match["choices"])
            text = f"Invalid {match['name']} {value!r}"
            if match["name"] == "COMMAND":
                text = f"There is no command {value!r}"
            text += f"{suggestion(value, choices)}. Use one of: {', '.join(choices)}"
        raise UsageError(f"{text}. See `{self.prog} --help`.")

    def format_help(self) -> str:
        """The help, with the flags that all commands share at its end."""
        self._action_groups.sort(key=lambda group: group.title == SHARED_FLAGS)
        return super().format_help()

    def _refuse_unknown_flags(self, words: Sequence[str]) -> None:
        flags = self._option_string_actions
        for word in words:
            # What comes after a command is for the command's own parser.
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                return
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in word and name not in flags:
                raise UsageError(
                    f"There is no option {name}{suggestion(name, flags)}. See `{self.prog} --help`."
                )

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help and version, which argparse would let Python fail to write at the very end."""
        write_result(visible_lines(message.removesuffix("\n")))


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text.partition(", maybe you meant")[0]))
    except (ValueError, SyntaxError):
        return text


def build_parser() -> Parser:
    """All subcommands."""
    parser = Parser(
        prog="speed-erase",
        description=("Erase concepts from text-to-image models, without training."),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"speed-erase {PACKAGE_VERSION}",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add_to(commands)
    return parser


def complete(parser: Parser) -> None:
    """Answers a shell that asks for completions, and ends; otherwise does nothing. Arguments that
    are paths are completed with files.
    """
    if _COMPLETING not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:
        raise SystemExit(1) from None
    commands = next(
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    for action in (action for command in commands.choices.values() for action in command._actions):
        if action.type in (Path, path_or_url):
            action.completer = argcomplete.FilesCompleter()
    no_files = argcomplete.SuppressCompleter()
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=no_files)
