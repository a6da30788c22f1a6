"""A model file as a source: its family, its layers one by one, and its text encoders, which may be
in files of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ..encoders.encoder import RootMeanSquareNorm, RowFunction, TwoLayerNetwork
from ..engine.settings import EraseSettings
from ..errors import FileError, UnsupportedModelError
from ..files.checkpoint import Checkpoint
from ..files.tensors import EDITABLE, read_scaled, tensors_hash
from ..model import EditableModel, LazyWeights
from ..models.architecture import Architecture, FamilyEncoder, LayerKey
from ..models.detect import detect, layers, second_layer
from ..models.keys import encoder_keys, find_entry, spelling

_TABLES = ("text_model.embeddings.token_embedding.weight", "token_embedding.weight")
_CHAT_TABLES = ("model.embed_tokens.weight",)
_T5_TABLES = ("shared.weight", "encoder.embed_tokens.weight")
_T5_GATE = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"
_OWN_DISTANCES = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"


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

    def every_layer(self, which: str) -> list[LayerKey]:
        """The layers that an edit of `which` reaches, and the one that reads the second text
        input.
        """
        shapes = self.checkpoint.shapes
        second = second_layer(self.architecture, shapes)
        return [*layers(self.architecture, shapes, which), *([second] if second else [])]

    def edited_layers(self, settings: EraseSettings) -> list[LayerKey]:
        """The layers that an erasure with these settings may edit."""
        layers = self.every_layer(settings.layers)
        return [layer for layer in layers if settings.edits_input(layer.text_input)]

    def text_columns(self, layer: LayerKey) -> int:
        """How many columns of a layer read text, from the first on."""
        return self.architecture.text_columns(layer.text_input) or layer.shape[1]

    def model(self, which: str) -> EditableModel:
        """What an erasure sees of it; weights are read when they are asked for."""
        checkpoint, available = self.checkpoint, self.every_layer(which)
        keys = {layer.canonical: layer.file_key for layer in available}

        def read(key: str) -> Tensor:
            return read_scaled(checkpoint.read, checkpoint.shapes, keys[key])[0]

        return EditableModel(self.architecture, tuple(available), LazyWeights(keys, read))

    def text_part(self) -> RowFunction | None:
        """What the model does to each row before the edited layers; None: nothing."""
        part = self.architecture.text_part
        layout = find_entry(self.checkpoint.shapes, self.architecture)
        if part is None or layout is None:
            return None

        def read(name: str) -> Tensor:
            shapes = self.checkpoint.shapes
            return read_scaled(self.checkpoint.read, shapes, layout.prefix + name)[0]

        if part.norm is not None:
            return RootMeanSquareNorm(read(f"{part.modules[0]}.weight"), part.norm)
        return TwoLayerNetwork(
            [(read(f"{path}.weight"), read(f"{path}.bias")) for path in part.layers]
        )

    def takes_edits(self, which: str) -> bool:
        """Whether an edit can be baked in: not into 8 bits, where it would drown in rounding."""
        dtypes = self.checkpoint.dtypes
        return all(dtypes[layer.file_key] in EDITABLE for layer in self.every_layer(which))

    def encoder_files(self, files: tuple[Path, ...] = ()) -> EncoderFiles:
        """The family's text encoders in these files, and otherwise in the model's own."""
        if files not in self._encoders:
            self._encoders[files] = gather_encoders(self.architecture, self.checkpoint, files)
        return self._encoders[files]


@dataclass(frozen=True)
class EncoderFiles:
    """The text encoders that were found. Tensors have the names of a diffusers folder and are read
    when asked for.
    """

    available: tuple[FamilyEncoder, ...]
    missing: tuple[FamilyEncoder, ...]
    """Encoders that the family can do without."""
    second: tuple[FamilyEncoder, ...]
    """Those that feed the second text input, some of them only that."""
    holders: tuple[Checkpoint, ...]
    """The files, each once."""
    locations: dict[str, tuple[Checkpoint, str]]

    def keys(self) -> Iterable[str]:
        return self.locations.keys()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: holder.shapes[key] for name, (holder, key) in self.locations.items()}

    def __getitem__(self, name: str) -> Tensor:
        holder, key = self.locations[name]
        return holder.read(key)


def gather_encoders(
    family: Architecture, model: Checkpoint, paths: Sequence[Path | str] = ()
) -> EncoderFiles:
    """Finds the encoders in the files given, and the others in the model's own file.

    Refuses a file that holds nothing the family reads, two files that hold the same encoder,
    and a family left without an encoder that it needs.

    Args:
        family: The model's family.
        model: The model's own file.
        paths: Files of text encoders, in any order.
    """
    selected: dict[str, tuple[Checkpoint, dict[str, str]]] = {}
    for file in [Checkpoint.open(path) for path in paths]:
        contents = {encoder: _keys_inside(encoder, file) for encoder in family.every_encoder}
        if not any(contents.values()):
            titles = " and ".join(encoder.title for encoder in contents)
            raise FileError(
                f"{file.path} contains no text encoder that {family.title} uses here: it uses"
                f" {titles}."
            )
        for encoder, keys in contents.items():
            if keys and encoder.name in selected:
                raise FileError(
                    f"{selected[encoder.name][0].label} and {file.path} both contain"
                    f" {encoder.title}. Give only one."
                )
            if keys:
                selected[encoder.name] = file, keys
    for encoder in family.every_encoder:
        if encoder.name not in selected and (keys := encoder_keys(encoder, model.keys())[1]):
            selected[encoder.name] = model, keys
    missing = tuple(encoder for encoder in family.encoders if encoder.name not in selected)
    _refuse_missing(family, model, missing)
    second = family.second_input.encoders if family.second_input else ()
    return EncoderFiles(
        available=tuple(encoder for encoder in family.encoders if encoder not in missing),
        missing=missing,
        second=tuple(encoder for encoder in second if encoder.name in selected),
        holders=tuple({holder.path: holder for holder, _ in selected.values()}.values()),
        locations={
            f"{encoder.folder}/{name}": (selected[encoder.name][0], key)
            for encoder in family.every_encoder
            if encoder.name in selected
            for name, key in selected[encoder.name][1].items()
        },
    )


def _refuse_missing(
    family: Architecture, model: Checkpoint, missing: Sequence[FamilyEncoder]
) -> None:
    needed = [encoder for encoder in missing if not encoder.optional]
    if len(missing) == len(family.encoders):
        needed = list(missing)
    if needed:
        titles = " and ".join(encoder.title for encoder in needed)
        title = family.title
        needs = f"and {title} needs one" if needed[0].optional else f"which {title} needs"
        raise FileError(
            f"{model.label} contains no text encoder {titles}, {needs}.",
            advice="give-text-encoder",
        )


def _keys_inside(encoder: FamilyEncoder, file: Checkpoint) -> dict[str, str]:
    """{name inside the encoder: key} of one encoder in a checkpoint, a diffusers folder, or a file
    that is this encoder.
    """
    if keys := encoder_keys(encoder, file.keys())[1]:
        return keys
    shapes, is_t5 = file.shapes, not encoder.causal
    names = _TABLES if encoder.appends == "columns" else _CHAT_TABLES
    tables = [shapes.get(name, ()) for name in (_T5_TABLES if is_t5 else names)]
    width = next((shape[-1] for shape in tables if len(shape) == 2), None)
    if spelling(encoder, shapes) is None or width != encoder.hidden_width:
        return {}
    is_plain = encoder.name == "t5xxl"
    if is_t5 and (_T5_GATE not in shapes or (_OWN_DISTANCES in shapes) == is_plain):
        return {}
    return {key: key for key in shapes}


def encoder_hash(tensors: Checkpoint | EncoderFiles, architecture: Architecture) -> str:
    """Hash of the text encoders in a file, or in the files that hold them; empty if there are
    none.
    """
    named = [
        (f"{encoder.name}.{name}", key)
        for encoder in architecture.every_encoder
        for name, key in sorted(encoder_keys(encoder, tensors.keys())[1].items())
    ]
    return tensors_hash((name, tensors[key]) for name, key in named) if named else ""
