"""The one family of exceptions, a fault in one sentence and one word, and the nearest known name to
an unknown one.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

PACKAGE_VERSION = "0.1.0"
"""What recipes, reports and `--version` name."""


class SpeedError(Exception):
    """Base of everything this package raises on purpose."""

    code = "unexpected"
    """What kind of fault it is, for programs: see `error_code`."""

    def __init__(self, message: str = "", **data: object) -> None:
        super().__init__(message)
        self.data = data
        """Details for programs and hosts; `advice` is a key that a host turns into its own hint,
        `code` identifies the sentence for translations.
        """


class Notice(str):
    """A sentence for the user, with details for hosts as `SpeedError` has them."""

    data: dict[str, object]

    def __new__(cls, text: str, **data: object) -> Notice:
        notice = super().__new__(cls, text)
        notice.data = data
        return notice

    @property
    def code(self) -> str:
        """Identifies the sentence, for programs and translations."""
        return str(self.data.get("code", ""))

    def to_json(self) -> dict[str, object]:
        """Plain values: the code, the sentence, and what it is about."""
        data = {name: value for name, value in self.data.items() if name != "code"}
        return {"code": self.code, "text": str(self), "data": data}


def notice_of(fault: SpeedError) -> Notice:
    """A fault as a notice: with its own code, else with its kind of fault."""
    return Notice(str(fault), **{"code": error_code(fault), **fault.data})


class SettingsError(SpeedError, ValueError):
    """A setting is out of its range, or two settings contradict each other."""

    code = "settings"


class InputError(SpeedError, ValueError):
    """Embeddings, weights or names cannot be used as they are."""

    code = "input"


class NoRoomError(InputError):
    """What is to be kept leaves nothing to an edit."""


class FileError(SpeedError):
    """A file cannot be read, is not what it claims to be, or cannot be written."""

    code = "file"


class ExistsError(FileError):
    """A file is in the way, and the user did not allow replacing it."""

    code = "exists"


class NotFoundError(FileError):
    """There is no such file."""

    code = "not-found"


class NoSpaceError(FileError):
    """The disk has no room for what is to be written."""

    code = "no-space"


class BusyError(FileError):
    """Another run is at work there."""

    code = "busy"


class UnsupportedModelError(SpeedError):
    """The model has no layer that this package knows how to edit."""

    code = "unsupported-model"


class NoMemoryError(SpeedError):
    """A device has too little memory, and there is nowhere else to go."""

    code = "memory"


class MissingPackageError(SpeedError):
    """A Python package that only some commands need is not installed."""

    code = "missing-package"


class UsageError(SpeedError):
    """The command line, or a job file, makes no sense."""

    code = "usage"


class ServerError(SpeedError):
    """A server that draws for us does not answer, or says that it cannot."""

    code = "server"


class OutputError(SpeedError):
    """The result cannot be written: its reader has gone, or the disk is full."""

    code = "output"


_ERRNO_CODES = {
    errno.ENOENT: "not-found",
    errno.ENOSPC: "no-space",
    errno.EDQUOT: "no-space",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
}
_PACKAGES = frozenset(
    (
        *("numpy", "filelock", "platformdirs", "safetensors", "torch", "transformers"),
        *("tokenizers", "rich", "jinja2", "argcomplete", "PIL", "yaml", "ray", "fsspec"),
        *("nudenet", "lpips", "sentencepiece", "cryptography"),
    )
)
"""The packages that we use and that an install may lack, by the names they are imported with."""
ERROR_CODES = (
    *("usage", "settings", "input", "file", "exists", "not-found", "no-space", "permission"),
    *("busy", "unsupported-model", "missing-package", "memory", "server", "output"),
    *("interrupted", "unexpected"),
)
"""All that `error_code` can say. Programs rely on them: a code may be added, but none changes its
meaning.
"""


def error_code(fault: BaseException) -> str:
    """One word for a fault, for programs."""
    if isinstance(fault, FileError) and fault.code == FileError.code:
        return _code_of_cause(fault)
    if isinstance(fault, SpeedError):
        return fault.code
    if _missing_package(fault):
        return MissingPackageError.code
    if isinstance(fault, KeyboardInterrupt):
        return "interrupted"
    return NoMemoryError.code if isinstance(fault, MemoryError) else SpeedError.code


def _code_of_cause(fault: FileError) -> str:
    """What the operating system said tells a full disk from a wrong path."""
    cause = fault.__cause__
    while isinstance(cause, FileError):
        if cause.code != FileError.code:
            return cause.code
        cause = cause.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    return _ERRNO_CODES.get(number or 0, FileError.code)


def _missing_package(fault: BaseException) -> str:
    """The package of ours that is not installed; empty for every other fault. Another import that
    fails is a fault of the program or of its environment.
    """
    if not isinstance(fault, ModuleNotFoundError):
        return ""
    package = (fault.name or "").partition(".")[0]
    return package if package in _PACKAGES else ""


def user_message(fault: BaseException) -> str:
    """A fault in one sentence for people, whatever it is."""
    text = " ".join(str(fault).split())
    if isinstance(fault, SpeedError):
        return text
    if isinstance(fault, KeyboardInterrupt):
        return "Interrupted: nothing unfinished was left behind."
    if isinstance(fault, MemoryError):
        return "Out of memory. Close other programs, or protect fewer names."
    if _missing_package(fault):
        return f"A package is missing ({text}). Run `pip install 'speed-erase[cli]'`."
    reason = text[:300] or type(fault).__name__
    return f"Unexpected error ({type(fault).__name__}: {reason})."


def suggestion(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing when no known name is close; append it to the sentence."""
    # difflib is quadratic in the length of a name: a hostile name must not cost seconds.
    close = difflib.get_close_matches(name[:200], list(known)[:5000], n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
