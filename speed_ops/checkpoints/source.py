"""A model file as a source: its family, and its layers one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ..engine.settings import EraseSettings
from ..errors import UnsupportedModelError
from ..files.checkpoint import Checkpoint, checkpoint_hash
from ..files.tensors import read_scaled
from ..model import EditableModel
from ..models.architecture import Architecture, LayerKey
from ..models.detect import detect, layers, second_layer
from ..models.keys import encoder_keys
from ..progress import Progress
from .encoder_files import EncoderFiles, gather_encoders


class LayerWeights(Mapping[str, Tensor]):
    """{canonical key: `o x d`}, each read from the file when asked for and not held."""

    def __init__(self, checkpoint: Checkpoint, selected: list[LayerKey]) -> None:
        self._checkpoint = checkpoint
        self._keys = {layer.canonical: layer.file_key for layer in selected}

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
    _encoders: dict[tuple[Path, ...], EncoderFiles] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def open(cls, path: Path | str, label: str = "") -> ModelSource:
        """Reads headers only; refuses a model that cannot be edited. Messages call it `label`, or
        by its path.
        """
        checkpoint = Checkpoint.open(path, label)
        family = detect(checkpoint.shapes)
        if not family.on_command_line:
            raise UnsupportedModelError(
                f"{checkpoint.label} is a {family.title} model, which is edited in ComfyUI only.",
                advice="use-comfyui",
            )
        return cls(checkpoint, family)

    def layers(self, which: str) -> list[LayerKey]:
        """The layers that an edit of `which` reaches."""
        return layers(self.architecture, self.checkpoint.shapes, which)

    def every_layer(self, which: str) -> list[LayerKey]:
        """Those, and the one that reads the second text input."""
        second = second_layer(self.architecture, self.checkpoint.shapes)
        return [*self.layers(which), *([second] if second else [])]

    def edited_layers(self, settings: EraseSettings) -> list[LayerKey]:
        """The layers that an erasure with these settings may edit."""
        layers = self.every_layer(settings.layers)
        return [layer for layer in layers if settings.edits_input(layer.text_input)]

    def model(self, which: str) -> EditableModel:
        """What an erasure sees of it; weights are read when they are asked for."""
        available = self.every_layer(which)
        return EditableModel(
            self.architecture, tuple(available), LayerWeights(self.checkpoint, available)
        )

    def takes_edits(self, which: str) -> bool:
        """Whether an edit can be baked in: not into weights of 8 bits, where it would drown in
        rounding.
        """
        return not self.checkpoint.low_precision_keys(
            layer.file_key for layer in self.every_layer(which)
        )

    def encoder_files(self, files: tuple[Path, ...] = ()) -> EncoderFiles:
        """The family's text encoders in these files, and otherwise in the model's own."""
        if files not in self._encoders:
            self._encoders[files] = gather_encoders(self.architecture, self.checkpoint, files)
        return self._encoders[files]

    def base_hash(self, progress: Progress | None = None) -> str:
        """sha256 of the file."""
        return checkpoint_hash(self.checkpoint, progress)

    @property
    def has_encoders(self) -> bool:
        """Whether the file itself holds text encoders."""
        return any(
            encoder_keys(row, self.checkpoint.shapes)[1] for row in self.architecture.encoders
        )
