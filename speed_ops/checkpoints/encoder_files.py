"""The text encoders of a model: in the model's own file, or in files of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import FileError
from ..files.checkpoint import Checkpoint
from ..files.tensors import tensors_hash
from ..models.architecture import Architecture, FamilyEncoder
from ..models.keys import Shapes, encoder_keys, spelling

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

    Args:
        family: The model's family.
        model: The model's own file.
        paths: Files of text encoders, in any order.
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


def encoder_hash(tensors: Checkpoint | EncoderFiles, architecture: Architecture) -> str:
    """Of the text encoders in a file, or in the files that hold them; empty when there are none."""
    named = [
        (f"{encoder.name}.{name}", key)
        for encoder in architecture.every_encoder
        for name, key in sorted(encoder_keys(encoder, tensors.keys())[1].items())
    ]
    return tensors_hash((name, tensors[key]) for name, key in named) if named else ""
