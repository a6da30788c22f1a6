"""CLIP's and T5's tokenizers from whichever copy of their vocabulary is at hand; never a download.

All sources of CLIP's give the same ids (tested), so embeddings cached through one are valid through
another.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from ..errors import FileError, InputError
from ..files.checkpoint import Checkpoint

# Odd enough that two vocabularies or two ways to split words show.
_SAMPLE = (
    "A photo of d'Artagnan's dog, 1984!",
    "Beyoncé (film) {a|b} #7",
    "葛飾北斎 🤖 naïve ½",
    "we're they've ... x_y",
)


INVERSION = re.compile(r"(?<!\S)embedding:(\S+)")
"""ComfyUI's spelling of a textual inversion: a file whose vectors stand for a word."""


class LiteralTokenizer:
    """A subclass says which words would act as control tokens and where its vocabulary comes
    from.
    """

    control: re.Pattern[str]
    knows_inversions = True
    """False: there is nowhere to look for one, so a text that names one is refused, not read as
    words.
    """

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        sample = json.dumps([self.token_ids(text) for text in _SAMPLE])
        self.fingerprint = hashlib.sha256(sample.encode()).hexdigest()[:16]

    def token_ids(self, text: str) -> list[int]:
        """Ids of the literal text, without start and end tokens."""
        bad = self.control.search(text)
        if bad:
            raise InputError(
                f"The text contains '{bad.group()}', which would start or end the prompt:"
                " remove it."
            )
        if not self.knows_inversions and (named := INVERSION.search(text)):
            raise InputError(
                f"'{named.group()}' is a textual inversion, which only ComfyUI can look up: erase"
                f" it there, or write 'embedding :{named.group(1)}' if you mean the words."
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                "The text contains half a character (a lone surrogate): remove it."
            ) from error
        return list(self._encode(text))


MERGES = "bpe_simple_vocab_16e6.txt.gz"
_PACKAGES = ("clip", "open_clip")
_COUNT = 49152 - 256 - 2
"""Merges that the vocabulary uses; the file goes on with more."""
_PRINTABLE = (
    *range(ord("!"), ord("~") + 1),
    *range(ord("¡"), ord("¬") + 1),
    *range(ord("®"), ord("ÿ") + 1),
)


def installed_merges() -> Path | None:
    """The list inside an installed package, which is found but not imported; None where there is
    none.
    """
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
        raise FileError(
            f"CLIP's merges in '{file}' cannot be read ({error}): install the package again."
        ) from error
    if len(merges) != _COUNT:
        raise FileError(
            f"'{file}' has {len(merges)} merges instead of CLIP's {_COUNT}: install the package"
            " again."
        )
    return merges


def vocabulary(merges: list[tuple[str, str]]) -> dict[str, int]:
    """Token -> id: bytes, bytes that end a word, merges, then start and end."""
    # A byte that does not print is spelled by the next letter from U+0100 on, and stands after
    # those that do.
    letters = [chr(byte) for byte in _PRINTABLE]
    letters += [chr(256 + place) for place in range(256 - len(letters))]
    words = [*letters, *(letter + "</w>" for letter in letters), *map("".join, merges)]
    return {word: place for place, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}


START_TOKEN = 49406
END_TOKEN = 49407
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class ClipTokenizer(LiteralTokenizer):
    """Literal text to token ids. `from_files`, `from_comfyui` and `from_package` make one."""

    control = re.compile(r"<\|(?:start|end)oftext\|>", re.IGNORECASE)

    @classmethod
    def from_files(cls, folder: str | Path) -> ClipTokenizer:
        """From a folder with `vocab.json` and `merges.txt`: a diffusers model's `tokenizer`, or
        ComfyUI's own.
        """
        vocab, merges = Path(folder) / "vocab.json", Path(folder) / "merges.txt"
        for file in (vocab, merges):
            if not file.is_file():
                raise FileError(
                    f"There is no '{file.name}' in '{folder}': give a folder with a CLIP tokenizer."
                )
        return cls(_load_files(vocab, merges))

    @classmethod
    def from_comfyui(cls, checkout: str | Path) -> ClipTokenizer:
        """From a ComfyUI checkout."""
        return cls.from_files(Path(checkout) / "comfy" / "sd1_tokenizer")

    @classmethod
    def from_package(cls) -> ClipTokenizer:
        """From an installed package that has the vocabulary: `instant-clip-tokenizer`, else one
        with CLIP itself.
        """
        try:
            from instant_clip_tokenizer import Tokenizer
        except ImportError as error:  # there is none for Python 3.13
            if file := installed_merges():
                return cls.from_merges(file)
            raise FileError(
                "No CLIP tokenizer was found: install 'speed-erase[cli]', or give a folder with"
                " vocab.json and merges.txt (a diffusers model's 'tokenizer', or"
                " 'comfy/sd1_tokenizer' of a ComfyUI checkout)."
            ) from error
        tokenizer = Tokenizer()
        return cls(lambda text: tokenizer.encode(_normalise(text)))

    @classmethod
    def from_merges(cls, file: Path) -> ClipTokenizer:
        """From the list of merges that CLIP was published with."""
        merges = read_merges(file)
        return cls(_byte_pairs(vocabulary(merges), merges))


def find_tokenizer(
    path: str | Path | None = None, comfyui: str | Path | None = None
) -> ClipTokenizer:
    """The tokenizer that belongs to a model folder, else ComfyUI's, else the package's.

    `path`: a tokenizer folder or a diffusers model folder; one that holds no tokenizer is refused,
    not passed over.
    """
    if path is not None:
        inner = [Path(path) / name for name in ("tokenizer", "tokenizer_2")]
        return ClipTokenizer.from_files(next((folder for folder in inner if folder.is_dir()), path))
    if comfyui is not None:
        return ClipTokenizer.from_comfyui(comfyui)
    return ClipTokenizer.from_package()


def _load_files(vocab: Path, merges: Path) -> Callable[[str], list[int]]:
    from tokenizers.models import BPE

    try:
        return _byte_pairs(*BPE.read_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises bare exceptions for anything it cannot read
        raise FileError(
            f"The CLIP tokenizer in '{vocab.parent}' cannot be read ({error})."
        ) from error


def _byte_pairs(words: dict[str, int], merges: list[tuple[str, str]]) -> Callable[[str], list[int]]:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(
        models.BPE(words, merges, unk_token="<|endoftext|>", end_of_word_suffix="</w>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    split = pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _normalise(text: str) -> str:
    """Composed, and in lower case without regard to neighbours: `Σ` is `σ` at the end of a word
    too.
    """
    return (
        text
        if text.isascii()
        else "".join(letter.lower() for letter in unicodedata.normalize("NFC", text))
    )


T5_END_TOKEN = 1
T5_PAD_TOKEN = 0
T5_FILE = "tokenizer.json"
T5_IN_COMFYUI = Path("comfy", "text_encoders", "t5_tokenizer")


class T5Tokenizer(LiteralTokenizer):
    """Literal text to token ids. `from_files` makes one."""

    control = re.compile(r"</s>|<pad>|<unk>|<extra_id_\d+>")

    def __init__(self, encode: Callable[[str], list[int]], size: int) -> None:
        super().__init__(encode)
        self.size = size
        """Number of tokens."""

    @classmethod
    def from_files(cls, folder: Path) -> T5Tokenizer:
        """From a folder with `tokenizer.json`: of a diffusers model, or ComfyUI's own."""
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(folder / T5_FILE))
        except Exception as error:  # the library raises bare exceptions for anything it cannot read
            raise FileError(f"The tokenizer in '{folder}' cannot be read ({error}).") from error
        if (tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<pad>")) != (
            T5_END_TOKEN,
            T5_PAD_TOKEN,
        ):
            raise FileError(
                f"The tokenizer in '{folder}' is not T5's: its end token is not {T5_END_TOKEN}."
            )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(
            lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
            tokenizer.get_vocab_size(),
        )


_T5_FOLDERS = ("tokenizer_3", "tokenizer_2")
"""T5's in a diffusers folder of SD3 and of Flux."""
_CLIP_FILE = "vocab.json"


def clip_words(given: Path | None, holders: Sequence[Checkpoint]) -> ClipTokenizer:
    """The tokenizer given (a folder or a ComfyUI checkout), else the model folder's own, else the
    package's.
    """
    words = _find_clip_words(given, holders)
    words.knows_inversions = False
    return words


def _find_clip_words(given: Path | None, holders: Sequence[Checkpoint]) -> ClipTokenizer:
    if given is not None and not _is_t5_alone(given):
        if (given / "comfy" / "sd1_tokenizer").is_dir():
            return find_tokenizer(comfyui=given)
        return find_tokenizer(given)
    for holder in holders:
        if holder.is_folder and (holder.path / "tokenizer" / _CLIP_FILE).is_file():
            return find_tokenizer(holder.path)
    return find_tokenizer()


def t5_words(given: Path | None, holders: Sequence[Checkpoint]) -> T5Tokenizer:
    """The tokenizer given, else the model folder's own, else that of a ComfyUI checkout around the
    files or known.
    """
    for folder in _t5_places(given, holders):
        if (folder / T5_FILE).is_file() and not (folder / _CLIP_FILE).is_file():
            words = T5Tokenizer.from_files(folder)
            words.knows_inversions = False
            return words
    where = "" if given is None else f" in {given}"
    raise FileError(
        f"No T5 tokenizer was found{where}: give --tokenizer PATH, a ComfyUI checkout or a folder"
        f" with T5's {T5_FILE} (`tokenizer_2` of a Flux or `tokenizer_3` of an SD3 diffusers"
        " folder)."
    )


def _is_t5_alone(folder: Path) -> bool:
    """A folder given for T5's sake: CLIP's words then come from elsewhere."""
    clip = [folder / name / _CLIP_FILE for name in ("tokenizer", "tokenizer_2", ".")]
    return (folder / T5_FILE).is_file() and not any(file.is_file() for file in clip)


def _t5_places(given: Path | None, holders: Sequence[Checkpoint]) -> Iterator[Path]:
    """Folders in which T5's tokenizer may stand, the likeliest first."""
    if given is not None:
        yield from (given / T5_IN_COMFYUI, *(given / name for name in _T5_FOLDERS), given)
        if not (given / _CLIP_FILE).is_file():  # else it was given for CLIP's sake
            return
    folders = [holder.path.resolve() for holder in holders if holder.is_folder]
    yield from (
        folder / name for near in folders for folder in (near, near.parent) for name in _T5_FOLDERS
    )
    around = [parent for holder in holders for parent in holder.path.resolve().parents]
    named = os.environ.get("COMFYUI_PATH")
    known = [*around, *([Path(named)] if named else []), *Path(__file__).resolve().parents]
    yield from (
        checkout / T5_IN_COMFYUI for checkout in (*known, Path.home() / "comfy" / "ComfyUI")
    )
