"""CLIP's byte-pair tokenizer from whichever copy of its vocabulary is at hand; never a download.

All sources give the same ids (tested), so embeddings cached through one are valid through another.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

from ..errors import FileError
from .clip_vocabulary import installed_merges, read_merges, vocabulary
from .literal_tokenizer import LiteralTokenizer

START_TOKEN = 49406
END_TOKEN = 49407

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class ClipTokenizer(LiteralTokenizer):
    """Literal text to token ids. `from_files`, `from_comfyui` and `from_package` make one."""

    control = re.compile(r"<\|(?:start|end)oftext\|>", re.IGNORECASE)

    @classmethod
    def from_files(cls, folder: str | Path) -> ClipTokenizer:
        """From a folder with `vocab.json` and `merges.txt`: a diffusers model's `tokenizer`, or ComfyUI's own."""
        vocab, merges = Path(folder) / "vocab.json", Path(folder) / "merges.txt"
        for file in (vocab, merges):
            if not file.is_file():
                raise FileError(f"There is no '{file.name}' in '{folder}': give a folder with a CLIP tokenizer.")
        return cls(_load_files(vocab, merges))

    @classmethod
    def from_comfyui(cls, checkout: str | Path) -> ClipTokenizer:
        """From a ComfyUI checkout."""
        return cls.from_files(Path(checkout) / "comfy" / "sd1_tokenizer")

    @classmethod
    def from_package(cls) -> ClipTokenizer:
        """From an installed package that has the vocabulary: `instant-clip-tokenizer`, else one with CLIP itself."""
        try:
            from instant_clip_tokenizer import Tokenizer
        except ImportError as error:  # there is none for Python 3.13
            if file := installed_merges():
                return cls.from_merges(file)
            raise FileError(
                "No CLIP tokenizer was found: install 'speed-erase[cli]', or give a folder with vocab.json and "
                "merges.txt (a diffusers model's 'tokenizer', or 'comfy/sd1_tokenizer' of a ComfyUI checkout)."
            ) from error
        tokenizer = Tokenizer()
        return cls(lambda text: tokenizer.encode(_normalise(text)))

    @classmethod
    def from_merges(cls, file: Path) -> ClipTokenizer:
        """From the list of merges that CLIP was published with."""
        merges = read_merges(file)
        return cls(_byte_pairs(vocabulary(merges), merges))


def find_tokenizer(path: str | Path | None = None, comfyui: str | Path | None = None) -> ClipTokenizer:
    """The tokenizer that belongs to a model folder, else ComfyUI's, else the package's.

    `path`: a tokenizer folder or a diffusers model folder; one that holds no tokenizer is refused, not passed over.
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
        raise FileError(f"The CLIP tokenizer in '{vocab.parent}' cannot be read ({error}).") from error


def _byte_pairs(words: dict[str, int], merges: list[tuple[str, str]]) -> Callable[[str], list[int]]:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(words, merges, unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    split = pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _normalise(text: str) -> str:
    """Composed, and in lower case without regard to neighbours: `Σ` is `σ` at the end of a word too."""
    return text if text.isascii() else "".join(letter.lower() for letter in unicodedata.normalize("NFC", text))
