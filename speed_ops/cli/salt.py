"""The salt of redacted files: given as text, in a file, or in a variable, so that somebody knows it
afterwards.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import FileError, NotFoundError, UsageError

SALT_VARIABLE = "SPEED_ERASE_SALT"
_LONGEST = 4096


def add_salt(group: Any, what: str, made: str = "") -> None:
    """The ways to give a salt."""
    text = group.add_argument(
        "--salt", metavar="TEXT", help=f"{what} (default: the variable {SALT_VARIABLE})"
    )
    text.completer = lambda **_: ()  # a shell would offer files
    group.add_argument(
        "--salt-file", type=Path, metavar="FILE", help=f"a file with that salt{made}"
    )


def salt_from(args: argparse.Namespace, make: Callable[[Path], str] | None = None) -> str | None:
    """The salt that was given, if one was; `make` makes the file of one where there is none."""
    if args.salt is not None and args.salt_file is not None:
        raise UsageError("Give --salt or --salt-file, not both.")
    if args.salt == "":
        raise UsageError(
            "The salt is empty: give some secret text, or names could be guessed from their hashes."
        )
    if args.salt_file is None:
        return _checked(args.salt or os.environ.get(SALT_VARIABLE) or None)
    try:
        return _read_salt(args.salt_file)
    except NotFoundError:
        if make is None:
            raise
        return make(args.salt_file)


def _checked(salt: str | None) -> str | None:
    try:
        (salt or "").encode()
    except UnicodeEncodeError:
        raise UsageError("The salt is not UTF-8 text: give another one.") from None
    return salt


def _read_salt(file: Path) -> str:
    try:
        with file.open("rb") as handle:
            content = handle.read(_LONGEST + 1)
        salt = content.decode().strip()
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no salt file {file}: check the path.") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{file} is not a salt file: it is not UTF-8 text.") from error
    except (OSError, ValueError) as error:
        raise FileError(
            f"Cannot read {file}: {getattr(error, 'strerror', None) or error}."
        ) from error
    if not salt or len(content) > _LONGEST:
        wrong = f"it is longer than {_LONGEST} bytes" if salt else "it is empty"
        raise FileError(f"{file} is not a salt file: {wrong}.")
    return salt


def make_salt(file: Path, note: Callable[[str], None]) -> str:
    """Makes the file, readable by its owner alone; it appears with its content. Of two runs at once
    one makes it.
    """
    temporary = file.with_name(f".{file.name[:80]}.{secrets.token_hex(6)}.speed-tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(handle, "w", encoding="ascii") as stream:
                stream.write(secrets.token_hex(16) + "\n")
                stream.flush()
                os.fsync(handle)
            _name_unless_taken(temporary, file)
        finally:
            with suppress(OSError):
                temporary.unlink()
    except OSError as error:
        raise FileError(f"Cannot write {file}: {error.strerror or error}.") from error
    note(
        f"a new random salt is in {file}. Keep this file: it proves which names are behind the"
        " hashes."
    )
    return _read_salt(file)


def _name_unless_taken(temporary: Path, file: Path) -> None:
    with suppress(FileExistsError):
        try:
            os.link(temporary, file)
        except FileExistsError:
            raise
        except (OSError, NotImplementedError):  # a file system without links
            os.rename(temporary, file)
