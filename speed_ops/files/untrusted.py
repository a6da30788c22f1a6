"""JSON from files that anybody may have written: bounded, every field checked, every fault a
sentence.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import FileError

_MAX_DIGITS = 40
_MAX_CONTAINERS = 200_000
"""Lists and objects; several times what the longest recipe holds. Empty ones take thirty times the
text they are.
"""


def load_json(content: str | bytes, what: str, limit: int) -> Any:
    """Parse at most `limit` bytes; `what` names them in messages. NaN, infinities and duplicate
    keys are refused.
    """
    if len(content) > limit:  # before it is decoded
        raise FileError(f"{what} {_excess('', limit, len(content))}: it was not read.")
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        if too_large := _excess(text, limit, len(content)):
            raise FileError(f"{what} {too_large}: it was not read.")
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=_bounded_int,
            parse_float=_finite_float,
        )
    except UnicodeDecodeError:
        raise FileError(f"{what} is not UTF-8 text.") from None
    except json.JSONDecodeError as error:
        raise FileError(
            f"{what} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg})."
        ) from None
    except RecursionError:
        raise FileError(f"{what} is nested too deeply: this program did not write it.") from None
    except ValueError as error:
        raise FileError(f"{what} is not acceptable JSON: {error}.") from None
    return value


def dump_json(value: Any, what: str, limit: int) -> str:
    """Compact and stable text: sorted keys, no NaN, ASCII only so that any header can hold it.

    What `load_json` would refuse is refused here, too: what is written can be read.
    """
    try:
        text = json.dumps(
            value, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise FileError(
            f"{what} cannot be stored: {error}. Its values must be plain and finite."
        ) from error
    if too_large := _excess(text, limit, len(text)):
        raise FileError(f"{what} {too_large}, so it is too long to be stored: shorten its lists.")
    load_json(text, what, limit)
    return text


def _excess(text: str, limit: int, size: int) -> str:
    """What is too large about it, as the middle of a sentence; empty: nothing."""
    if size > limit:
        return f"is {size} bytes long, over the limit of {limit}"
    if text.count("[") + text.count("{") > _MAX_CONTAINERS:
        return "contains too many lists and objects"
    return ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number here")


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_MAX_DIGITS]} is too large a number")
    return value


_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d{1,4})?", re.ASCII)
_PLAIN_DEPTH = 4
_PLAIN_ITEMS = 2_000
MAX_TEXT = 2_000


def check_version(found: object, ours: str, what: str) -> None:
    """Accept our own major version and any minor one; refuse what a newer program wrote in a way we
    cannot know.
    """
    match = _VERSION.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        raise FileError(
            f"{what} has no usable version number: it is damaged, or this program did not write it."
        )
    if int(match[1]) > int(ours.split(".")[0]):
        raise FileError(
            f"{what} has version {found}, but this program reads version {ours}: update the"
            " program."
        )


@dataclass(frozen=True)
class Fields:
    """A JSON object under its name for messages."""

    values: Mapping[str, Any]
    what: str

    @classmethod
    def of(cls, value: object, what: str) -> Fields:
        if not isinstance(value, dict):
            raise FileError(f"{what} must be an object with named fields.")
        return cls(value, what)

    def text(self, name: str, default: str | None = None, limit: int = MAX_TEXT) -> str:
        """A string on one line; `default` None means that the field must be there."""
        value = self.values.get(name, default)
        return _text(value, f"{self.what}: field {name!r}", limit)

    def texts(self, name: str, limit: int) -> tuple[str, ...]:
        """A list of at most `limit` strings; absent is empty."""
        return tuple(
            _text(item, f"{self.what}: an entry of {name!r}", MAX_TEXT)
            for item in self.items(name, limit)
        )

    def number(self, name: str, default: int = 0) -> int:
        """A whole number from 0 to 2^64."""
        value = self.values.get(name, default)
        if type(value) is not int or not 0 <= value < 2**64:
            raise FileError(f"{self.what}: field {name!r} must be a whole number from 0 to 2^64.")
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise FileError(f"{self.what}: field {name!r} must be true or false.")
        return value

    def items(self, name: str, limit: int) -> list[Any]:
        """A list of at most `limit` entries; absent is empty."""
        value = self.values.get(name, [])
        if not isinstance(value, list) or len(value) > limit:
            raise FileError(
                f"{self.what}: field {name!r} must be a list of at most {limit} entries."
            )
        return value

    def objects(self, name: str, limit: int) -> list[Fields]:
        """A list of objects, each named by its number."""
        singular = name.removesuffix("s")
        return [
            Fields.of(item, f"{self.what}, {singular} {n}")
            for n, item in enumerate(self.items(name, limit), 1)
        ]

    def plain(self, name: str) -> dict[str, Any]:
        """An object of plain values (text, numbers, lists and objects of them), of modest size."""
        value = self.values.get(name, {})
        if not isinstance(value, dict) or _count(value, _PLAIN_DEPTH) > _PLAIN_ITEMS:
            raise FileError(
                f"{self.what}: field {name!r} must be an object of at most {_PLAIN_ITEMS} plain"
                " values."
            )
        return value

    def unknown(self, known: tuple[str, ...]) -> tuple[str, ...]:
        """Names of fields that are not ours: those of a newer version."""
        return tuple(sorted(name[:100] for name in self.values if name not in known))


def _text(value: object, what: str, limit: int) -> str:
    if not isinstance(value, str):
        raise FileError(f"{what} must be text.")
    if len(value) > limit or _CONTROL.search(value):
        raise FileError(f"{what} must be one line of at most {limit} characters.")
    return value


def _count(value: object, depth: int) -> int:
    """Number of plain values inside; more than any limit where the nesting is deeper than `depth`
    or a text is long.
    """
    if isinstance(value, (dict, list)):
        children = list(value.values()) if isinstance(value, dict) else value
        return (
            sum(_count(child, depth - 1) for child in children) + 1
            if depth > 0
            else _PLAIN_ITEMS + 1
        )
    return _PLAIN_ITEMS + 1 if isinstance(value, str) and len(value) > MAX_TEXT else 1
