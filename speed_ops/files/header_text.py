"""The JSON of a safetensors header, walked entry by entry.

One object: `__metadata__` holds strings, every other entry `{"dtype", "shape", "data_offsets"}`. It is not parsed as
a whole, so that a hostile header costs memory in proportion to its length.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

MAX_TENSORS = 200_000
_MAX_RANK = 16
_MAX_ENTRY_CHARACTERS = 2_000
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_PAIRS_DECODER = json.JSONDecoder(object_pairs_hook=list)

DTYPE_BITS: dict[str, int] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor's place: `begin` and `end` count from the first byte after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def walk(text: str) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """(tensors in the order of the text, metadata). ValueError, ending a sentence, on anything unexpected."""
    return _Walker(text).header()


class _Walker:
    """A cursor over the header's text. Every refusal is a ValueError whose text ends a sentence."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def header(self) -> tuple[dict[str, TensorEntry], dict[str, str]]:
        entries: dict[str, TensorEntry] = {}
        metadata: dict[str, str] | None = None
        self.expect("{")
        more = not self.accept("}")
        while more:
            name = self.name()
            if name == "__metadata__" and metadata is None:
                metadata = self.metadata()
            elif name == "__metadata__" or name in entries:
                raise ValueError(f"{name[:100]!r} occurs twice")
            elif len(entries) == MAX_TENSORS:
                raise ValueError(f"more than {MAX_TENSORS} tensors")
            else:
                entries[name] = self.entry(name)
            more = self.more()
        self.skip()
        if self.at != len(self.text):
            raise ValueError("something follows after its end")
        return entries, metadata or {}

    def metadata(self) -> dict[str, str]:
        result: dict[str, str] = {}
        self.expect("{")
        more = not self.accept("}")
        while more:
            name = self.name()
            if name in result:
                raise ValueError(f"metadata {name[:100]!r} occurs twice")
            result[name] = self.string(f"metadata {name[:100]!r}")
            if len(result) > MAX_TENSORS:
                raise ValueError("too many metadata entries")
            more = self.more()
        return result

    def entry(self, name: str) -> TensorEntry:
        self.skip()
        end = self.text.find("}", self.at, self.at + _MAX_ENTRY_CHARACTERS)
        if self.text[self.at : self.at + 1] != "{" or end < 0:
            raise ValueError(f"tensor {name[:100]!r} has no description")
        description = self.text[self.at : end + 1]
        if description.count("[") > 2 or description.count("{") > 1:
            raise ValueError(f"tensor {name[:100]!r} has a nested description")
        pairs = _PAIRS_DECODER.decode(description)
        self.at = end + 1
        return _entry(name[:100], pairs)

    def name(self) -> str:
        name = self.string("a name")
        self.expect(":")
        return name

    def string(self, what: str) -> str:
        self.skip()
        if self.text[self.at : self.at + 1] != '"':
            raise ValueError(f"{what} is not a string")
        value, self.at = _DECODER.raw_decode(self.text, self.at)
        value.encode("utf-8")  # half a surrogate pair is a ValueError: no reader accepts it
        return str(value)

    def more(self) -> bool:
        if self.accept("}"):
            return False
        self.expect(",")
        return True

    def accept(self, character: str) -> bool:
        self.skip()
        found = self.text[self.at : self.at + 1] == character
        self.at += found
        return found

    def expect(self, character: str) -> None:
        if not self.accept(character):
            raise ValueError(f"{character!r} is missing at character {self.at}")

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at


def _entry(name: str, pairs: list[tuple[str, object]]) -> TensorEntry:
    """Check one description: exactly three fields, a known type, and as many bytes as the shape needs."""
    if sorted(key for key, _ in pairs) != ["data_offsets", "dtype", "shape"]:
        raise ValueError(f"tensor {name!r} has other fields than dtype, shape and data_offsets")
    fields = dict(pairs)
    dtype, shape, offsets = fields["dtype"], _sizes(fields["shape"]), _sizes(fields["data_offsets"])
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"tensor {name!r} has the unknown type {str(dtype)[:40]!r}")
    if shape is None or len(shape) > _MAX_RANK:
        raise ValueError(f"tensor {name!r} has an impossible shape")
    if offsets is None or len(offsets) != 2:
        raise ValueError(f"tensor {name!r} has impossible offsets")
    size = offsets[1] - offsets[0]
    if size * 8 != math.prod(shape) * DTYPE_BITS[dtype]:
        raise ValueError(f"tensor {name!r} has {size} bytes, which do not fit its shape and type")
    return TensorEntry(dtype, shape, *offsets)


def _sizes(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(item) is int and 0 <= item < 2**60 for item in value):
        return tuple(value)
    return None
