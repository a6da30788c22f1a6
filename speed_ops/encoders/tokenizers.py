"""CLIP's, T5's, Qwen's and SentencePiece's tokenizers. CLIP's vocabulary ships with the package;
nothing is downloaded.

A model's own copy of CLIP's vocabulary gives the same ids (tested), so embeddings cached through
one are valid through the other.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import environ
from pathlib import Path

from ..errors import FileError, InputError
from ..files.checkpoint import Checkpoint

# Odd enough that two vocabularies, or two ways to split words, give different ids.
_SAMPLE = (
    "A photo of d'Artagnan's dog, 1984!",
    "Beyoncé (film) {a|b} #7",
    "\u845b\u98fe\u5317\u658e \U0001f916 naïve ½",
    "we're they've ... x_y",
)
INVERSION = re.compile(r"(?<!\S)embedding:(\S+)")
"""ComfyUI's spelling of a textual inversion: a file whose vectors act as a word."""
AFTER_INVERSION = re.compile(r"(?:'s|[^\w'])+$")
"""What may follow a name without a space; ComfyUI would take it for part of the file name."""


class LiteralTokenizer:
    """Literal text to token ids. Subclasses define control tokens and read a vocabulary."""

    control: re.Pattern[str]
    """Words that the vocabulary would read as control tokens."""

    def __init__(self, encode: Callable[[str], list[int]], knows_inversions: bool = True) -> None:
        """Wraps the function that encodes text.

        Args:
            encode: Text to ids, without start and end tokens.
            knows_inversions: False refuses texts that name a textual inversion: there is nowhere
                to look it up.
        """
        self._encode = encode
        self.knows_inversions = knows_inversions
        self.inversions: Mapping[str, Sequence[int]] = {}
        """{name: tokens} of the textual inversions that texts may contain."""
        sample = json.dumps([self.token_ids(text) for text in _SAMPLE])
        self.fingerprint = hashlib.sha256(sample.encode()).hexdigest()[:16]

    def token_ids(self, text: str) -> list[int]:
        """Ids of the literal text, without start and end tokens."""
        if control := self.control.search(text):
            raise InputError(
                f"The text contains '{control.group()}', which would start or end the prompt."
                " Remove it."
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                "The text contains half a character (a lone surrogate). Remove it."
            ) from error
        ids, done = [], 0
        for inversion in () if self.knows_inversions else INVERSION.finditer(text):
            name = self._inversion_in(inversion.group(1))
            ids += [*self._encode(text[done : inversion.start()]), *self.inversions[name]]
            done = inversion.start(1) + len(name)
        return ids + list(self._encode(text[done:]))

    def _inversion_in(self, word: str) -> str:
        """The start of a word that names an inversion."""
        for name in (word, AFTER_INVERSION.sub("", word)):
            if name in self.inversions:
                return name
        raise InputError(
            f"There is no file for the textual inversion '{word}'. Write 'embedding :{word}' if you"
            " mean the words.",
            advice="give-inversion",
        )


START_TOKEN = 49406
END_TOKEN = 49407
_CLIP_VOCABULARY = "vocab.json"
_CLIP_MERGES = Path(__file__).resolve().parent / "clip_merges.txt.gz"
_CLIP_MERGE_COUNT = 49152 - 256 - 2
_CLIP_WORD = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_PRINTABLE_BYTES = (
    *range(ord("!"), ord("~") + 1),
    *range(ord("¡"), ord("¬") + 1),
    *range(ord("®"), ord("ÿ") + 1),
)


class ClipTokenizer(LiteralTokenizer):
    """CLIP's tokenizer, from the package's own vocabulary or from a model's files."""

    control = re.compile(r"<\|(?:start|end)oftext\|>", re.IGNORECASE)

    @classmethod
    def from_package(cls, knows_inversions: bool = True) -> ClipTokenizer:
        """With the vocabulary that this package ships."""
        return cls(_packaged_encode(), knows_inversions)

    @classmethod
    def from_files(cls, folder: Path, knows_inversions: bool = True) -> ClipTokenizer:
        """With `vocab.json` and `merges.txt` of a folder: a diffusers model's `tokenizer`."""
        from tokenizers.models import BPE

        files = [folder / _CLIP_VOCABULARY, folder / "merges.txt"]
        for file in files:
            if not file.is_file():
                raise FileError(
                    f"There is no '{file.name}' in '{folder}'. Give a folder with a CLIP tokenizer."
                )
        try:
            encode = _byte_pairs(*BPE.read_file(*map(str, files)))
        except Exception as error:  # the library raises bare exceptions for anything unreadable
            raise FileError(
                f"The CLIP tokenizer in '{folder}' cannot be read ({error})."
            ) from error
        return cls(encode, knows_inversions)


@functools.cache
def _packaged_encode() -> Callable[[str], list[int]]:
    merges = read_merges(_CLIP_MERGES)
    # CLIP's ids: bytes, bytes that end a word, merges, start and end. The bytes that do not print
    # are spelled by letters from U+0100 on and come after those that do.
    letters = [chr(byte) for byte in _PRINTABLE_BYTES]
    letters += [chr(256 + index) for index in range(256 - len(letters))]
    words = [*letters, *(letter + "</w>" for letter in letters), *map("".join, merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return _byte_pairs({word: index for index, word in enumerate(words)}, merges)


def read_merges(path: Path) -> list[tuple[str, str]]:
    """CLIP's merges in their order; the first line of the file is a comment."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()[1:]
        merges = [(first, second) for first, second in (line.split() for line in lines)]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise FileError(
            f"CLIP's merges in '{path}' cannot be read ({error}). Install this package again."
        ) from error
    if len(merges) != _CLIP_MERGE_COUNT:
        raise FileError(
            f"'{path}' has {len(merges)} merges instead of CLIP's {_CLIP_MERGE_COUNT}. Install this"
            " package again."
        )
    return merges


def _byte_pairs(words: dict[str, int], merges: list[tuple[str, str]]) -> Callable[[str], list[int]]:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(
        models.BPE(words, merges, unk_token="<|endoftext|>", end_of_word_suffix="</w>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    split = pre_tokenizers.Split(Regex(_CLIP_WORD), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


class LanguageTokenizer(LiteralTokenizer):
    """The tokenizer of a T5 or of a chat model."""

    size: int
    """Number of tokens."""
    start: tuple[int, ...] = ()
    """Tokens before every prompt."""
    end: tuple[int, ...] = ()
    """Tokens after every prompt, but for a chat template's."""
    pad = 0
    """The token of padding."""

    def template_ids(self, text: str) -> list[int]:
        """Ids of a piece of a chat template, with its control tokens."""
        return list(self._encode(text))


T5_END_TOKEN = 1
T5_PAD_TOKEN = 0
T5_FILE = "tokenizer.json"
T5_IN_COMFYUI = Path("comfy", "text_encoders", "t5_tokenizer")
_T5_FOLDERS = ("tokenizer_3", "tokenizer_2")
"""T5's in a diffusers folder of SD3 and of Flux."""


class T5Tokenizer(LanguageTokenizer):
    """T5's tokenizer. `from_files` makes one."""

    control = re.compile(r"</s>|<pad>|<unk>|<extra_id_\d+>")
    end = (T5_END_TOKEN,)

    @classmethod
    def from_files(cls, folder: Path, knows_inversions: bool = True) -> T5Tokenizer:
        """From a folder with `tokenizer.json`: of a diffusers model, or ComfyUI's own."""
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(folder / T5_FILE))
        except Exception as error:  # the library raises bare exceptions for anything unreadable
            raise FileError(f"The tokenizer in '{folder}' cannot be read ({error}).") from error
        control_ids = [tokenizer.token_to_id(token) for token in ("</s>", "<pad>")]
        if control_ids != [T5_END_TOKEN, T5_PAD_TOKEN]:
            raise FileError(
                f"The tokenizer in '{folder}' is not T5's: its end token is not {T5_END_TOKEN}."
                " Give a folder with T5's tokenizer."
            )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        t5 = cls(
            lambda text: tokenizer.encode(text, add_special_tokens=False).ids, knows_inversions
        )
        t5.size = tokenizer.get_vocab_size()
        return t5


QWEN_IN_COMFYUI = Path("comfy", "text_encoders", "qwen25_tokenizer")
_QWEN_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


_QWEN_CONTROL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *(f"<|{name}_{side}|>" for name in ("object_ref", "box", "quad") for side in ("start", "end")),
    *(f"<|vision_{name}|>" for name in ("start", "end", "pad")),
    *("<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>"),
    *(f"<|fim_{name}|>" for name in ("prefix", "middle", "suffix", "pad")),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
)
"""Qwen's control tokens, which come after its vocabulary in this order."""


class QwenTokenizer(LanguageTokenizer):
    """Qwen's tokenizer. `from_files` makes one."""

    control = re.compile(r"<\|\w+\|>|</?(?:think|tool_call|tool_response)>")

    @classmethod
    def from_files(cls, folder: Path, knows_inversions: bool = True) -> QwenTokenizer:
        """With `vocab.json` and `merges.txt` of a folder: of a model, or ComfyUI's own."""
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

        files = folder / _CLIP_VOCABULARY, folder / "merges.txt"
        try:
            words, merges = models.BPE.read_file(*map(str, files))
        except Exception as error:  # the library raises bare exceptions for anything unreadable
            raise FileError(f"The tokenizer in '{folder}' cannot be read ({error}).") from error
        if any(word.endswith("</w>") for word in words):
            raise FileError(
                f"The tokenizer in '{folder}' is CLIP's. Give a folder with Qwen's tokenizer."
            )
        tokenizer = Tokenizer(models.BPE(words, merges))
        tokenizer.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(_QWEN_WORD), behavior="isolated")
        bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])
        tokenizer.add_special_tokens(list(_QWEN_CONTROL))
        qwen = cls(
            lambda text: tokenizer.encode(text, add_special_tokens=False).ids, knows_inversions
        )
        qwen.size = tokenizer.get_vocab_size()
        qwen.pad = tokenizer.token_to_id(_QWEN_CONTROL[0]) or 0
        return qwen


PIECES = "spiece_model"
"""The key under which ComfyUI's files of a text encoder keep its SentencePiece model."""
_PIECE_FILES = ("tokenizer.model", "spiece.model")
PILE_IN_COMFYUI = Path("comfy", "text_encoders", "t5_pile_tokenizer")


class SentencePieceTokenizer(LanguageTokenizer):
    """The tokenizer of UMT5, Pile-T5 and Gemma, which is in the file of the text encoder."""

    control = re.compile(
        r"</?s>|<(?:pad|unk|bos|eos|mask|extra_id_\d+|(?:start|end)_of_turn|unused\d+)>"
    )

    @classmethod
    def from_model(cls, model: bytes | Path, source: str) -> SentencePieceTokenizer:
        """From the content of a SentencePiece model, or its file; `source`: for messages."""
        from sentencepiece import SentencePieceProcessor

        try:
            pieces = (
                SentencePieceProcessor(model_file=str(model))
                if isinstance(model, Path)
                else SentencePieceProcessor(model_proto=model)
            )
        except Exception as error:  # the library raises bare exceptions for anything unreadable
            raise FileError(f"The tokenizer in '{source}' cannot be read ({error}).") from error
        tokenizer = cls(pieces.encode, knows_inversions=False)
        tokenizer.size = pieces.get_piece_size()
        tokenizer.start, tokenizer.end = (pieces.bos_id(),), (pieces.eos_id(),)
        return tokenizer


def clip_tokenizer(path: Path | None, holders: Sequence[Checkpoint]) -> ClipTokenizer:
    """The tokenizer in the user's folder, else in the model's, else the package's.

    A user's folder that has no tokenizer at all is refused. A ComfyUI checkout, or a folder with
    T5's alone, implies nothing about CLIP's.
    """
    if path is not None:
        folders = [path / name for name in ("tokenizer", "tokenizer_2")] + [path]
        with_clip = [folder for folder in folders if (folder / _CLIP_VOCABULARY).is_file()]
        if with_clip or not any((path / name).exists() for name in (T5_FILE, T5_IN_COMFYUI)):
            return ClipTokenizer.from_files((with_clip or [path])[0], knows_inversions=False)
    for holder in holders:
        folder = holder.path / "tokenizer"
        if holder.is_folder and (folder / _CLIP_VOCABULARY).is_file():
            return ClipTokenizer.from_files(folder, knows_inversions=False)
    return ClipTokenizer.from_package(knows_inversions=False)


def t5_tokenizer(path: Path | None, holders: Sequence[Checkpoint]) -> T5Tokenizer:
    """The tokenizer in the user's folder, else in the model's, else in a ComfyUI checkout."""
    for folder in _t5_folders(path, holders):
        if (folder / T5_FILE).is_file() and not (folder / _CLIP_VOCABULARY).is_file():
            return T5Tokenizer.from_files(folder, knows_inversions=False)
    where = "" if path is None else f" in {path}"
    raise FileError(
        f"No T5 tokenizer was found{where}. Give a ComfyUI checkout or a folder with T5's {T5_FILE}"
        " (`tokenizer_2` of a Flux or `tokenizer_3` of an SD3 diffusers folder).",
        advice="tokenizer",
    )


def qwen_tokenizer(path: Path | None, holders: Sequence[Checkpoint]) -> QwenTokenizer:
    """The tokenizer in the user's folder, else in the model's, else in a ComfyUI checkout."""
    folders = [] if path is None else [path / QWEN_IN_COMFYUI, path / "tokenizer", path]
    for holder in holders:
        folders += _model_folders(holder)
    folders += [checkout / QWEN_IN_COMFYUI for checkout in checkouts(holders)]
    for folder in folders:
        if (folder / _CLIP_VOCABULARY).is_file():
            return QwenTokenizer.from_files(folder, knows_inversions=False)
    where = "" if path is None else f" in {path}"
    raise FileError(
        f"No Qwen tokenizer was found{where}: give a ComfyUI checkout or a folder with Qwen's"
        f" {_CLIP_VOCABULARY} and merges.txt.",
        advice="tokenizer",
    )


def piece_tokenizer(
    path: Path | None, holders: Sequence[Checkpoint], in_comfyui: Path | None = None
) -> SentencePieceTokenizer:
    """The SentencePiece model in the user's folder, else in the files of the model and its
    encoders, else in a ComfyUI checkout.

    Args:
        path: Where the user keeps the tokenizer.
        holders: The files of the model and its encoders.
        in_comfyui: Its folder in a ComfyUI checkout; None: it has none.
    """
    folders = [] if path is None else [path / "tokenizer", path]
    roots = checkouts(holders) if path is None else [path]
    if path is None:
        for holder in holders:
            keys = (key for key in holder.shapes if key.rpartition(".")[2] == PIECES)
            if key := next(keys, None):
                return SentencePieceTokenizer.from_model(
                    holder.read(key).numpy().tobytes(), holder.label
                )
            folders += _model_folders(holder)
    if in_comfyui is not None:
        folders += [root / in_comfyui for root in roots]
    for file in [folder / name for folder in folders for name in _PIECE_FILES]:
        if file.is_file():
            return SentencePieceTokenizer.from_model(file, str(file))
    where = "" if path is None else f" in {path}"
    raise FileError(
        f"No SentencePiece tokenizer was found{where}: give a text encoder file that contains one,"
        f" or a folder with its {' or '.join(_PIECE_FILES)}.",
        advice="tokenizer",
    )


def _model_folders(holder: Checkpoint) -> Iterator[Path]:
    """Folders of a diffusers model in which its tokenizer may be."""
    if holder.is_folder:
        model = holder.path.resolve()
        yield from (model / "tokenizer", model.parent / "tokenizer", model)


def checkouts(holders: Sequence[Checkpoint] = ()) -> Iterator[Path]:
    """Folders that may be a ComfyUI."""
    yield from (parent for holder in holders for parent in holder.path.resolve().parents)
    if comfyui := environ.get("COMFYUI_PATH"):
        yield Path(comfyui)
    yield from (*Path(__file__).resolve().parents, Path.home() / "comfy" / "ComfyUI")


def _t5_folders(path: Path | None, holders: Sequence[Checkpoint]) -> Iterator[Path]:
    """Folders in which T5's tokenizer may be, the likeliest first."""
    if path is not None:
        yield from (path / T5_IN_COMFYUI, *(path / name for name in _T5_FOLDERS), path)
        if not (path / _CLIP_VOCABULARY).is_file():  # a CLIP tokenizer implies nothing about T5's
            return
    for model in [holder.path.resolve() for holder in holders if holder.is_folder]:
        for folder in (model, model.parent):
            yield from (folder / name for name in _T5_FOLDERS)
    yield from (checkout / T5_IN_COMFYUI for checkout in checkouts(holders))
