"""CLIP's vocabulary, made from the list of merges that other packages carry under one file name."""

from __future__ import annotations

import gzip
import zlib
from importlib.util import find_spec
from pathlib import Path

from ..errors import FileError

MERGES = "bpe_simple_vocab_16e6.txt.gz"
_PACKAGES = ("clip", "open_clip")
_COUNT = 49152 - 256 - 2
"""Merges that the vocabulary uses; the file goes on with more."""
_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


def installed_merges() -> Path | None:
    """The list inside an installed package, which is found but not imported; None where there is none."""
    for name in _PACKAGES:
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            if (file := Path(folder) / MERGES).is_file():
                return file
    return None


def read_merges(file: Path) -> list[tuple[str, str]]:
    """The merges in their order, the first line being a comment."""
    try:
        lines = gzip.decompress(file.read_bytes()).decode().split("\n")[1 : _COUNT + 1]
        merges = [(first, second) for first, second in (line.split() for line in lines)]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise FileError(f"CLIP's merges in '{file}' cannot be read ({error}): install the package again.") from error
    if len(merges) != _COUNT:
        raise FileError(f"'{file}' holds {len(merges)} merges, CLIP has {_COUNT}: install the package again.")
    return merges


def vocabulary(merges: list[tuple[str, str]]) -> dict[str, int]:
    """Token -> id: bytes, bytes that end a word, merges, then start and end."""
    # A byte that does not print is spelled by the next letter from U+0100 on, and stands after those that do.
    letters = [chr(byte) for byte in _PRINTABLE]
    letters += [chr(256 + place) for place in range(256 - len(letters))]
    words = [*letters, *(letter + "</w>" for letter in letters), *map("".join, merges)]
    return {word: place for place, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
