"""Reads files that anyone may have written, in bounded pieces, and JSON and YAML with every field
checked. Every fault is one sentence.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import FileError, NotFoundError, suggestion
from ..text.names import open_at_once

MAX_TEXT = 2_000
MAX_YAML_BYTES = 500_000
"""PyYAML reads a tenth of a megabyte per second; longer lists belong in files of their own."""
_CHUNK = 4 << 20
_MAX_DIGITS = 40
_MAX_CONTAINERS = 200_000
"""Lists and objects. An empty one takes thirty times the memory of its text."""
_MAX_DEPTH = 4
_MAX_VALUES = 2_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d{1,4})?", re.ASCII)


@contextmanager
def reading(label: Path | str) -> Iterator[None]:
    """Turns what the operating system refuses, or an impossible path, into a FileError."""
    try:
        yield
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {label}. Check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"Cannot read {label}: {reason}.") from error


def chunks(
    path: Path, label: Path | str, start: int = 0, stop: int | None = None
) -> Iterator[bytes]:
    """The bytes of a file, or of a part of it, piece by piece.

    Args:
        path: The file.
        label: What messages call it.
        start: Offset of the first byte.
        stop: Offset after the last byte; None for the end of the file.
    """
    with reading(label):
        handle = path.open("rb")
    with handle:
        handle.seek(start)
        remaining = (os.fstat(handle.fileno()).st_size if stop is None else stop) - start
        while remaining > 0:
            with reading(label):
                chunk = handle.read(min(_CHUNK, remaining))
            if not chunk:
                raise FileError(f"{label} became shorter while it was read.")
            yield chunk
            remaining -= len(chunk)


def read_bounded(path: Path, limit: int, label: str = "") -> bytes:
    """The content of a file, cut one byte after the limit, so that `load_json` refuses it.

    Args:
        path: The file.
        limit: Most bytes that are parsed.
        label: What it is called in messages, if not by its path.
    """
    with reading(label or path), open(path, "rb", opener=open_at_once) as handle:
        return handle.read(limit + 1)


def load_json(
    content: str | bytes, title: str, limit: int, containers: int = _MAX_CONTAINERS
) -> Any:
    """Parses JSON without NaN, infinities and duplicate keys.

    Args:
        content: The text, or its bytes in UTF-8.
        title: What it is called in messages.
        limit: Most bytes that are parsed.
        containers: Most lists and objects in it.
    """
    text = _decoded(content, title, limit)
    if excess := _excess(text, limit, containers):
        raise FileError(f"{title} {excess}, so it was not read.")
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=_bounded_int,
            parse_float=_finite_float,
        )
    except json.JSONDecodeError as error:
        raise FileError(
            f"{title} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg})."
        ) from None
    except RecursionError:
        raise FileError(
            f"{title} is nested too deeply, so it was not read. Use a file that speed-erase wrote."
        ) from None
    except ValueError as error:
        raise FileError(f"{title} is not acceptable JSON: {error}.") from None


def load_yaml(content: str | bytes, title: str) -> Any:
    """Parses YAML into plain data. References are refused: a few lines of them can expand to more
    than any memory holds.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("it contains a reference (*), which is not allowed here")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if len(set(keys)) != len(keys):
                raise ValueError("a key occurs twice in one mapping")
            return super().construct_mapping(node, deep)

    text = _decoded(content, title, MAX_YAML_BYTES)
    try:
        return yaml.load(text, Loader)
    except RecursionError:
        raise FileError(f"{title} is nested too deeply.") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"{title} cannot be read as YAML: {reason}.") from None


def dump_json(value: Any, title: str, limit: int) -> str:
    """Compact, stable text: sorted keys, no NaN, ASCII only so that any header can hold it.

    Args:
        value: Plain data.
        title: What it is called in messages.
        limit: Most bytes that `load_json` will accept.
    """
    try:
        text = json.dumps(
            value, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise FileError(
            f"{title} cannot be stored: {error}. Its values must be plain and finite."
        ) from error
    if excess := _excess(text, limit):
        raise FileError(f"{title} {excess}, so it is too long to be stored. Shorten its lists.")
    load_json(text, title, limit)
    return text


def check_version(version: object, ours: str, title: str) -> bool:
    """Whether `version` is newer than ours but readable; refuses a newer major version.

    Args:
        version: As stored.
        ours: The version that this program writes.
        title: What the file is called in messages.
    """
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if match is None:
        raise FileError(f"{title} has no usable version number. Use a file that speed-erase wrote.")
    stored, current = (int(match[1]), int(match[2])), tuple(map(int, ours.split(".")))
    if stored[0] > current[0]:
        raise FileError(
            f"{title} has version {version}, but this program reads version {ours}. Update the"
            " program."
        )
    return stored > current


def finite(value: Any, default: float = 0.0) -> float:
    """A finite number, or the default for anything else."""
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if valid else default


@dataclass(frozen=True)
class Fields:
    """A mapping of untrusted values, and what it is called in messages."""

    values: Mapping[str, Any]
    title: str

    @classmethod
    def of(cls, value: object, title: str) -> Fields:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise FileError(f"{title} must be an object with named fields.")
        return cls(value, title)

    def text(self, name: str, default: str | None = None) -> str:
        """A string on one line; without a default the field is required."""
        return _text(self.values.get(name, default), f"{self.title}: field {name!r}")

    def texts(self, name: str, limit: int) -> tuple[str, ...]:
        """At most `limit` strings; a single string is a list of one, absent is empty."""
        return tuple(
            _text(item, f"{self.title}: an entry of {name!r}") for item in self.items(name, limit)
        )

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number; None where it is absent or null.

        Args:
            name: The field.
            low: Smallest allowed value.
            high: Largest allowed value.
        """
        value = self.values.get(name)
        if value is not None and (type(value) is not int or not low <= value <= high):
            raise FileError(
                f"{self.title}: field {name!r} must be a whole number from {low} to {high}."
            )
        return value

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise FileError(f"{self.title}: field {name!r} must be a number.")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise FileError(f"{self.title}: field {name!r} must be true or false.")
        return value

    def items(self, name: str, limit: int) -> list[Any]:
        """A list of at most `limit` entries; a single string is a list of one, absent is empty."""
        value = self.values.get(name, [])
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, (list, tuple)) or len(value) > limit:
            raise FileError(
                f"{self.title}: field {name!r} must be a list of at most {limit} entries."
            )
        return list(value)

    def objects(self, name: str, limit: int) -> list[Fields]:
        """A list of objects, each named by its number."""
        return [
            Fields.of(item, f"{self.title}, {name.removesuffix('s')} {number}")
            for number, item in enumerate(self.items(name, limit), 1)
        ]

    def plain(self, name: str) -> dict[str, Any]:
        """An object of plain values (text, numbers, lists and objects of them), of modest size."""
        value = self.values.get(name, {})
        if not isinstance(value, dict) or _count(value, _MAX_DEPTH) > _MAX_VALUES:
            raise FileError(
                f"{self.title}: field {name!r} must be an object of at most {_MAX_VALUES} plain"
                " values."
            )
        return value

    def unknown(self, expected: Iterable[str]) -> tuple[str, ...]:
        """Names of fields that are not among the known ones."""
        return tuple(sorted(name[:100] for name in self.values.keys() - set(expected)))

    def refuse_unknown(self, expected: Iterable[str]) -> None:
        """Refuses a field that is not known, with the nearest name that is."""
        expected = list(expected)
        for name in self.unknown(expected):
            near = suggestion(name, expected) or f". Use one of: {', '.join(expected)}"
            raise FileError(f"{self.title}: there is no field {name!r}{near}.")


def _decoded(content: str | bytes, title: str, limit: int) -> str:
    if len(content) > limit:
        raise FileError(
            f"{title} is {len(content)} bytes long, over the limit of {limit}, so it was not read."
        )
    try:
        return content.decode("utf-8-sig") if isinstance(content, bytes) else content
    except UnicodeDecodeError:
        raise FileError(f"{title} is not UTF-8 text. Save it as UTF-8.") from None


def _excess(text: str, limit: int, containers: int = _MAX_CONTAINERS) -> str:
    """What is too large about a text, as the middle of a sentence; empty when nothing is."""
    if len(text) > limit:
        return f"is {len(text)} bytes long, over the limit of {limit}"
    if text.count("[") + text.count("{") > containers:
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


def _text(value: object, title: str) -> str:
    if not isinstance(value, str):
        quotes = "" if value is None or isinstance(value, (list, dict)) else ": put it in quotes"
        raise FileError(f"{title} must be text{quotes}.")
    if len(value) > MAX_TEXT or _CONTROL.search(value):
        raise FileError(f"{title} must be one line of at most {MAX_TEXT} characters.")
    return value


def _count(value: object, depth: int) -> int:
    """Number of plain values inside; over the limit where the nesting is deeper than `depth`, or a
    value is not plain.
    """
    if isinstance(value, (dict, list)):
        children = list(value.values()) if isinstance(value, dict) else value
        if depth == 0:
            return _MAX_VALUES + 1
        return 1 + sum(_count(child, depth - 1) for child in children)
    too_long = isinstance(value, str) and len(value) > MAX_TEXT
    plain = value is None or isinstance(value, (str, int, float))
    return _MAX_VALUES + 1 if too_long or not plain else 1
