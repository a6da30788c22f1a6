"""A model file as a source: its layers one by one, and the text encoder that it carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..architectures import Architecture, LayerKey, Which, detect, encoder_keys, layers
from ..files.checkpoint import Checkpoint
from ..files.hashing import checkpoint_hash, encoder_hash
from ..text.cached_encoder import CachedEncoder
from ..text.clip_encoder import ClipTextEncoder
from ..text.clip_tokenizer import ClipTokenizer, find_tokenizer
from ..text.embedding_cache import EmbeddingCache

Progress = Callable[[str, int, int], None]


class LayerWeights(Mapping[str, Tensor]):
    """{canonical key: `o x d`}, each read from the file when asked for and not held."""

    def __init__(self, checkpoint: Checkpoint, chosen: list[LayerKey]) -> None:
        self._checkpoint = checkpoint
        self._keys = {layer.canonical: layer.file_key for layer in chosen}

    def __getitem__(self, key: str) -> Tensor:
        file_key = self._keys[key]
        weight = self._checkpoint.read(file_key)
        scale_key = file_key.removesuffix("weight") + "scale_weight"
        if weight.element_size() == 1 and scale_key in self._checkpoint.shapes:  # fp8 that is stored with its scale
            return weight.float() * self._checkpoint.read(scale_key).float()
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@dataclass(frozen=True)
class ModelSource:
    """A checkpoint whose family is known. Make one with `ModelSource.open`."""

    checkpoint: Checkpoint
    architecture: Architecture

    @classmethod
    def open(cls, path: Path | str) -> ModelSource:
        """Reads headers only; refuses what is no model that can be edited."""
        checkpoint = Checkpoint.open(path)
        return cls(checkpoint, detect(checkpoint.shapes))

    def layers(self, which: Which) -> list[LayerKey]:
        """The layers that an edit of `which` reaches."""
        return layers(self.architecture, self.checkpoint.shapes, which)

    def weights(self, which: Which) -> LayerWeights:
        """Their weights, lazily."""
        return LayerWeights(self.checkpoint, self.layers(which))

    def takes_edits(self, which: Which) -> bool:
        """Whether an edit can be baked in: not into weights of 8 bits, where it would drown in rounding."""
        return not self.checkpoint.low_precision_keys(layer.file_key for layer in self.layers(which))

    def encoder(
        self,
        clip_skip: int | None = None,
        tokenizer: Path | str | None = None,
        cache: EmbeddingCache | None = None,
        text_encoder: Path | str | None = None,
    ) -> CachedEncoder:
        """The family's text encoders from the file itself, or from another file that holds them."""
        holder = self.checkpoint if text_encoder is None else Checkpoint.open(text_encoder)
        words = find_words(tokenizer, holder)
        return CachedEncoder(ClipTextEncoder(holder, self.architecture.encoders, words, clip_skip), cache)

    def base_hash(self, progress: Progress | None = None) -> str:
        """sha256 of the file."""
        return checkpoint_hash(self.checkpoint, progress)

    def encoder_hash(self, text_encoder: Path | str | None = None) -> str:
        """Of the text encoders in the file, or in the other file that holds them."""
        holder = self.checkpoint if text_encoder is None else Checkpoint.open(text_encoder)
        return encoder_hash(holder, self.architecture)

    @property
    def has_encoders(self) -> bool:
        """Whether the file itself holds text encoders."""
        return any(encoder_keys(row, self.checkpoint.shapes)[1] for row in self.architecture.encoders)


def find_words(given: Path | str | None, holder: Checkpoint) -> ClipTokenizer:
    """The tokenizer given (a folder or a ComfyUI checkout), else the model folder's own, else the package's."""
    if given is not None:
        if (Path(given) / "comfy" / "sd1_tokenizer").is_dir():
            return find_tokenizer(comfyui=given)
        return find_tokenizer(given)
    if holder.is_folder and (holder.path / "tokenizer" / "vocab.json").is_file():
        return find_tokenizer(holder.path)
    return find_tokenizer()
