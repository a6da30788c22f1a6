"""Literal text to token ids: what every tokenizer here has in common."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable

from ..errors import InputError

# Odd enough that two vocabularies or two ways to split words show.
_SAMPLE = (
    "A photo of d'Artagnan's dog, 1984!",
    "Beyoncé (film) {a|b} #7",
    "葛飾北斎 🤖 naïve ½",
    "we're they've ... x_y",
)


class LiteralTokenizer:
    """A subclass says which words would act as control tokens and where its vocabulary comes from."""

    control: re.Pattern[str]

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        sample = json.dumps([self.token_ids(text) for text in _SAMPLE])
        self.fingerprint = hashlib.sha256(sample.encode()).hexdigest()[:16]

    def token_ids(self, text: str) -> list[int]:
        """Ids of the literal text, without start and end tokens."""
        bad = self.control.search(text)
        if bad:
            raise InputError(f"The text holds '{bad.group()}', which would start or end the prompt: remove it.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError("The text holds half a character (a lone surrogate): remove it.") from error
        return list(self._encode(text))
