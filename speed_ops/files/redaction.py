"""Salted hashes in the place of names, for files that should not say what was erased."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable
from typing import Any

from ..errors import SettingsError

_MARK = "redacted:"


class Redactor:
    """Replaces names under one salt; the same name gives the same hash, whatever its case and spacing."""

    def __init__(self, salt: bytes | str) -> None:
        self._salt = salt.encode() if isinstance(salt, str) else bytes(salt)
        if not self._salt:
            raise SettingsError(
                "The salt is empty: give some secret text, or names could be guessed from their hashes."
            )

    def __call__(self, name: str) -> str:
        """The hash that stands for `name`; the empty name and hashes stay as they are."""
        if not name or name.startswith(_MARK):
            return name
        folded = " ".join(name.casefold().split())
        return _MARK + hmac.new(self._salt, folded.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]

    def everywhere(self, value: Any, names: Iterable[str]) -> Any:
        """A JSON value with `names` replaced wherever they stand in its texts (not in keys): certificates name them."""
        text = json.dumps(value, ensure_ascii=False, default=str).lower()
        # Only the names that occur: a retain list of 100,000 would make a pattern that takes minutes.
        ordered = sorted({name for name in names if name and _quoted(name) in text}, key=len, reverse=True)
        if not ordered:
            return value
        pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, ordered))})(?!\w)", re.IGNORECASE)
        return self._replace(value, pattern)

    def _replace(self, value: Any, pattern: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: self(match[0]), value)
        if isinstance(value, dict):
            return {key: self._replace(item, pattern) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._replace(item, pattern) for item in value]
        return value


def _quoted(name: str) -> str:
    """A name as it stands in lowered JSON text."""
    return json.dumps(name, ensure_ascii=False)[1:-1].lower()
