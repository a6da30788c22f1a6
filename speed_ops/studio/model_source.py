"""A model file as a source: its layers one by one, and the text encoders that it carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..architectures import Architecture, LayerKey, Which, detect, encoder_keys, layers
from ..files.checkpoint import Checkpoint
from ..files.fp8_scale import read_scaled
from ..files.hashing import checkpoint_hash
from ..files.text_encoders import EncoderFiles, gather_encoders

Progress = Callable[[str, int, int], None]


class LayerWeights(Mapping[str, Tensor]):
    """{canonical key: `o x d`}, each read from the file when asked for and not held."""

    def __init__(self, checkpoint: Checkpoint, chosen: list[LayerKey]) -> None:
        self._checkpoint = checkpoint
        self._keys = {layer.canonical: layer.file_key for layer in chosen}

    def __getitem__(self, key: str) -> Tensor:
        return read_scaled(self._checkpoint.read, self._checkpoint.shapes, self._keys[key])[0]

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

    def encoder_files(self, given: Sequence[Path | str] = ()) -> EncoderFiles:
        """The family's text encoders in the file itself, or in the files given."""
        return gather_encoders(self.architecture, self.checkpoint, given)

    def base_hash(self, progress: Progress | None = None) -> str:
        """sha256 of the file."""
        return checkpoint_hash(self.checkpoint, progress)

    @property
    def has_encoders(self) -> bool:
        """Whether the file itself holds text encoders."""
        return any(encoder_keys(row, self.checkpoint.shapes)[1] for row in self.architecture.encoders)
