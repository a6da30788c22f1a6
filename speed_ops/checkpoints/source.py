"""A model file as a source: its family, its layers one by one, and its text encoders, wherever they
are.

`ModelSource` is the file, `TextSetup` what a file alone does not say about how text becomes
embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from ..encoders.cache import CachedEncoder, EmbeddingCache
from ..encoders.clip import ClipTextEncoder
from ..encoders.encoder import EncoderPart, JoinedTextEncoder, PairedTextEncoder, TextEncoder
from ..encoders.t5 import T5TextEncoder
from ..encoders.tokenizers import clip_tokenizer, t5_tokenizer
from ..engine.settings import EraseSettings
from ..errors import FileError, UnsupportedModelError
from ..files.checkpoint import Checkpoint, checkpoint_hash
from ..files.tensors import read_scaled, tensors_hash
from ..model import EditableModel
from ..models.architecture import Architecture, FamilyEncoder, LayerKey
from ..models.detect import detect, layers, second_layer
from ..models.keys import Shapes, encoder_keys, spelling
from ..progress import Progress

_TABLES = ("text_model.embeddings.token_embedding.weight", "token_embedding.weight")
_T5_TABLES = ("shared.weight", "encoder.embed_tokens.weight")
_T5_GATE = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"
_UMT5 = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"


@dataclass(frozen=True)
class EncoderFiles:
    """Tensors of all encoders that were found, under the names of a diffusers folder, read when
    asked for.
    """

    available: tuple[FamilyEncoder, ...]
    missing: tuple[FamilyEncoder, ...]
    """Encoders that the family does without."""
    holders: tuple[Checkpoint, ...]
    """The files, each once."""
    locations: dict[str, tuple[Checkpoint, str]]
    second: tuple[FamilyEncoder, ...] = ()
    """Those that feed the second text input, some of them only that."""

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
    """The encoders in the files given, in any order, and for the rest in the model's own file.

    Refused are a file that holds nothing the family reads, two files that hold the same encoder,
    and a family left without an encoder that it needs.
    """
    files = [Checkpoint.open(path) for path in paths]
    selected: dict[str, tuple[Checkpoint, dict[str, str]]] = {}
    for file in files:
        names = [row for row in family.every_encoder if _inside(row, file)]
        if not names:
            titles = " and ".join(row.title for row in family.every_encoder)
            raise FileError(
                f"{file.path} contains no text encoder that {family.title} uses here: it uses"
                f" {titles}."
            )
        for row in names:
            if row.name in selected:
                raise FileError(
                    f"{selected[row.name][0].label} and {file.path} both contain {row.title}: give"
                    " only one of them."
                )
            selected[row.name] = file, _inside(row, file)
    for row in family.every_encoder:
        if row.name not in selected and (keys := encoder_keys(row, model.keys())[1]):
            selected[row.name] = model, keys
    missing = tuple(row for row in family.encoders if row.name not in selected)
    _refuse_missing(family, model, missing)
    return EncoderFiles(
        tuple(row for row in family.encoders if row.name in selected),
        missing,
        tuple({holder.path: holder for holder, _ in selected.values()}.values()),
        {
            f"{row.folder}/{name}": (selected[row.name][0], key)
            for row in family.every_encoder
            if row.name in selected
            for name, key in selected[row.name][1].items()
        },
        (
            ()
            if family.second_input is None
            else tuple(row for row in family.second_input.encoders if row.name in selected)
        ),
    )


def _refuse_missing(
    family: Architecture, model: Checkpoint, missing: Sequence[FamilyEncoder]
) -> None:
    needed = (
        missing
        if len(missing) == len(family.encoders)
        else [row for row in missing if not row.optional]
    )
    if needed:
        titles = " and ".join(row.title for row in needed)
        needs = (
            f"of which {family.title} needs one"
            if needed[0].optional
            else f"which {family.title} needs"
        )
        raise FileError(
            f"{model.label} contains no text encoder {titles}, {needs}.",
            advice="give-text-encoder",
        )


def _inside(row: FamilyEncoder, file: Checkpoint) -> dict[str, str]:
    """{name inside the encoder: key} of one encoder in a file of its own, a checkpoint or a
    diffusers folder.
    """
    if available := encoder_keys(row, file.keys())[1]:
        return available
    return dict(zip(file.shapes, file.shapes, strict=True)) if _is_alone(row, file.shapes) else {}


def _is_alone(row: FamilyEncoder, shapes: Shapes) -> bool:
    """Whether the whole file is this encoder."""
    if spelling(row, shapes) is None:
        return False
    if row.name == "t5xxl":
        return (
            _width(_T5_TABLES, shapes) == row.width and _T5_GATE in shapes and _UMT5 not in shapes
        )
    return _width(_TABLES, shapes) == row.width


def _width(tables: Sequence[str], shapes: Shapes) -> int | None:
    """Width of the token embedding under the first of these names."""
    return next((shapes[name][-1] for name in tables if len(shapes.get(name, ())) == 2), None)


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


@dataclass(frozen=True)
class TextSetup:
    """How text becomes embeddings: what a model file alone does not say."""

    clip_skip: int | None = None
    tokenizer: Path | None = None
    text_encoders: tuple[Path, ...] = ()
    """Other files that hold text encoders; what they do not hold is looked for in the model's
    own.
    """
    cache: EmbeddingCache | None = None
    device: str = "cpu"
    """Where text is encoded and the edit is computed, as torch calls it."""

    def portable(self) -> TextSetup:
        """The same for another machine: one with the same files, in another folder, and with a
        cache of its own.
        """
        tokenizer = self.tokenizer.absolute() if self.tokenizer else None
        return replace(
            self,
            tokenizer=tokenizer,
            text_encoders=tuple(path.absolute() for path in self.text_encoders),
            cache=None,
        )

    def encoder(self, source: ModelSource) -> CachedEncoder:
        """The encoder of a model, read in this way."""
        files = source.encoder_files(self.text_encoders)
        return CachedEncoder(self._plain(source.architecture, files), self.cache)

    def encoder_hash(self, source: ModelSource) -> str:
        """Of the text encoders that are read."""
        return encoder_hash(source.encoder_files(self.text_encoders), source.architecture)

    def _plain(self, family: Architecture, files: EncoderFiles) -> TextEncoder:
        parts: list[EncoderPart] = []
        clips = [row for row in files.available if row.appends == "columns"]
        if clips:
            words = clip_tokenizer(self.tokenizer, files.holders)
            clip = ClipTextEncoder(files, clips, words, self.clip_skip, self.device, files.second)
            column = (
                family.second_input.first_column(files.second[0].name)
                if family.second_input and files.second
                else 0
            )
            parts.append(EncoderPart(clip, family.columns(clips[0].name).start, column))
        for row in files.available:
            if row.appends == "rows":
                t5 = T5TextEncoder(
                    files,
                    row,
                    t5_tokenizer(self.tokenizer, files.holders),
                    self.clip_skip,
                    self.device,
                )
                parts.append(EncoderPart(t5))
        if family.entry is None:
            return parts[0].encoder
        if family.encoders == files.available[:1]:
            return self._with_second(parts[0].encoder, files)
        return JoinedTextEncoder(
            parts,
            family.context_width,
            family.second_input.text_width if family.second_input else 0,
        )

    def _with_second(self, rows: TextEncoder, files: EncoderFiles) -> TextEncoder:
        """An encoder of rows, joined with those for the second text input alone, if found."""
        if not files.second:
            return rows
        words = clip_tokenizer(self.tokenizer, files.holders)
        return PairedTextEncoder(
            rows, ClipTextEncoder(files, files.second, words, None, self.device, files.second)
        )


def encoder_hash(tensors: Checkpoint | EncoderFiles, architecture: Architecture) -> str:
    """Of the text encoders in a file, or in the files that hold them; empty when there are none."""
    named = [
        (f"{encoder.name}.{name}", key)
        for encoder in architecture.every_encoder
        for name, key in sorted(encoder_keys(encoder, tensors.keys())[1].items())
    ]
    return tensors_hash((name, tensors[key]) for name, key in named) if named else ""
