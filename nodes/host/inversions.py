"""Textual inversions in texts, and text that ComfyUI's tokenizer reads literally."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from comfy.sd1_clip import SDTokenizer
from torch import Tensor

from ...speed_ops.encoders.tokenizers import (
    AFTER_INVERSION,
    END_TOKEN,
    INVERSION,
    START_TOKEN,
)
from ...speed_ops.errors import InputError, Notice
from ...speed_ops.text.tokens import long_name

_MAX_TOKENS = 75
"""What CLIP takes between its start and end token."""


def literal(text: str) -> str:
    """Text that ComfyUI's tokenizer reads literally: no weights, no textual inversions."""
    return _unweighted(text).replace("embedding:", "embedding :")


def _unweighted(text: str) -> str:
    return text.replace("(", "\\(").replace(")", "\\)")


def token_key(name: str) -> str:
    """The name of an encoder in the output of ComfyUI's tokenizers."""
    return name.removeprefix("clip_")


@lru_cache(maxsize=1)
def _clip_tokenizer() -> Any:
    return SDTokenizer()


def too_long(name: str) -> Notice | None:
    """Why CLIP cannot take a name; None if it can."""
    if len(name) <= _MAX_TOKENS:  # a token is at least one character
        return None
    sections = _clip_tokenizer().tokenize_with_weights(literal(name))
    ids = [int(pair[0]) for section in sections for pair in section]
    count = sum(token not in (START_TOKEN, END_TOKEN) for token in ids)
    return None if count <= _MAX_TOKENS else long_name(name, count, _MAX_TOKENS)


class Inversions:
    """Textual inversions in texts (`embedding:name`), as ComfyUI's tokenizer finds them."""

    def __init__(self, clip: Any, widths: Mapping[str, int]) -> None:
        """`widths`: {token key of an encoder: width}, for all that must read an inversion."""
        self._clip, self._widths = clip, widths
        self._known: dict[str, dict[str, list[Tensor]]] = {}
        """{name: vectors}: ComfyUI would read the file, or warn that it is missing, each time."""

    def typed(self, text: str) -> str:
        """What a user would type into ComfyUI to mean this text."""
        typed, done = "", 0
        for match in INVERSION.finditer(text):
            if name := self._file_in(match.group(1)):
                typed += f"{literal(text[done : match.start()])}embedding:{_unweighted(name)} "
                done = match.start(1) + len(name)
        return typed + literal(text[done:])

    def check(self, texts: Iterable[str]) -> None:
        """Refuses an inversion that is not there, or was made for other text encoders."""
        for name in (match.group(1) for text in texts for match in INVERSION.finditer(text)):
            vectors = self._vectors(name)
            if not any(vectors.values()):
                raise InputError(
                    f"There is no textual inversion '{name}' in ComfyUI's folder of embeddings. Put"
                    f" it there, or write 'embedding :{name}' if you mean the words."
                )
            shapes = {key: {vector.shape for vector in vectors[key]} for key in vectors}
            if shapes != {key: {(width,)} for key, width in self._widths.items()}:
                raise InputError(
                    f"The textual inversion '{name}' does not fit the text encoders of this model."
                    " Use one that was made for it."
                )

    def stored_as(self, text: str) -> str:
        """A key for the text that changes with the files of the inversions in it."""
        ids: list[str] = []
        for match in INVERSION.finditer(text):
            if name := self._file_in(match.group(1)):
                vectors = self._vectors(name).values()
                ids += [str(vector_id(vector)) for items in vectors for vector in items]
        return f"{text}\0{' '.join(ids)}" if ids else text

    def _file_in(self, word: str) -> str:
        """The start of a word that names an inversion; empty if none does."""
        for name in (word, AFTER_INVERSION.sub("", word)):
            if name and any(self._vectors(name).values()):
                return name
        return ""

    def _vectors(self, name: str) -> dict[str, list[Tensor]]:
        """{encoder: the vectors that ComfyUI reads for it}"""
        if name not in self._known:
            tokens = self._clip.tokenize(f"embedding:{_unweighted(name)}")
            self._known[name] = {}
            for key in self._widths:
                values = [pair[0] for section in tokens[key] for pair in section]
                self._known[name][key] = [value for value in values if isinstance(value, Tensor)]
        return self._known[name]


def vector_id(vector: Tensor) -> int:
    """A negative number for a vector, by its values; the ids of tokens are not negative."""
    digest = hashlib.sha256(vector.detach().float().numpy().tobytes()).digest()
    return -1 - int.from_bytes(digest[:6], "big")


def ids_in(section: Iterable[Any]) -> list[int]:
    """Ids of ComfyUI's tokens; a vector also gets one."""
    return [vector_id(pair[0]) if isinstance(pair[0], Tensor) else int(pair[0]) for pair in section]
