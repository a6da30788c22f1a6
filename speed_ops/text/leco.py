"""LECO prompt files (sd-scripts, TOML) as concept lists.

    [[prompts]]
    target = "van gogh"      the name to erase
    positive = "van gogh"    what is pushed away; another text than the target is an alias
    neutral = ""             the replacement; empty: that of the type
    action = "erase"

Weights, resolutions and guidance belong to training, and are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    tomllib = None  # type: ignore[assignment]

Row = tuple[int, list[str], str | None]
"""Number of the entry, names, and the replacement; None: that of the type."""
_KNOWN = {"target", "positive", "unconditional", "neutral", "action"}


def read_leco(text: str, where: str) -> list[Row]:
    """The entries of a file.

    Args:
        text: The file's text.
        where: What messages call it.
    """
    if tomllib is None:
        raise InputError(
            f"{where}: reading TOML needs Python 3.11 or newer. Use it, or write one 'name ->"
            " replacement' per line in a .txt file."
        )
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where} is not valid TOML: {error}.") from error
    entries = content.get("prompts")
    if not isinstance(entries, list) or not entries:
        raise InputError(
            f"{where} has no [[prompts]]. Use a LECO prompt file, or a .txt file with one name per"
            " line."
        )
    return [_row(entry, number, where) for number, entry in enumerate(entries, 1)]


def _row(entry: Any, number: int, where: str) -> Row:
    label = f"{where}, entry {number}"
    if not isinstance(entry, Mapping):
        raise InputError(f"{label}: this is not a table. Write [[prompts]] above each entry.")
    values = {name: entry.get(name, "") for name in _KNOWN}
    for name, value in values.items():
        if not isinstance(value, str):
            raise InputError(f"{label}: '{name}' is not text. Put it in quotation marks.")
    if (values["action"] or "erase") != "erase":
        raise InputError(
            f"{label}: SPEED only erases, but the action is '{values['action'][:40]}'. Remove it."
        )
    target, positive = values["target"], values["positive"]
    names = [target or positive, *([positive] if target and positive not in ("", target) else [])]
    return number, names, values["neutral"].strip() or None
