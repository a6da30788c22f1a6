"""JSON from files that anybody may have written: bounded, and every fault a sentence."""

from __future__ import annotations

import json
import math
from typing import Any

from ..errors import FileError

_MAX_DIGITS = 40
_MAX_CONTAINERS = 200_000
"""Lists and objects; several times what the longest recipe holds. Empty ones take thirty times the text they are."""


def load(content: str | bytes, what: str, limit: int) -> Any:
    """Parse at most `limit` bytes; `what` names them in messages. NaN, infinities and duplicate keys are refused."""
    if len(content) > limit:
        raise FileError(
            f"{what} is {len(content)} bytes long, more than the {limit} that are reasonable: it was not read."
        )
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        if text.count("[") + text.count("{") > _MAX_CONTAINERS:
            raise FileError(f"{what} holds more lists and objects than are reasonable: it was not read.")
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
        raise FileError(f"{what} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}).") from None
    except RecursionError:
        raise FileError(f"{what} is nested too deeply to be ours.") from None
    except ValueError as error:
        raise FileError(f"{what} is not acceptable JSON: {error}.") from None
    return value


def dump(value: Any) -> str:
    """Compact and stable text: sorted keys, no NaN, ASCII only so that any header can hold it."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))


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
