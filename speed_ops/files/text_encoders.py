"""A family's text encoders wherever they are: in the model's file or in files of their own, known by their keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..architectures import Architecture, TextEncoder, encoder_keys, spelling
from ..errors import FileError
from .checkpoint import Checkpoint
from .unet_keys import Shapes

_TABLES = ("text_model.embeddings.token_embedding.weight", "token_embedding.weight")
_T5_TABLES = ("shared.weight", "encoder.embed_tokens.weight")
_T5_GATE = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"
_UMT5 = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"


@dataclass(frozen=True)
class EncoderFiles:
    """Tensors of all encoders that were found, under the names of a diffusers folder, read when asked for."""

    found: tuple[TextEncoder, ...]
    missing: tuple[TextEncoder, ...]
    """Encoders that the family does without."""
    holders: tuple[Checkpoint, ...]
    """The files, each once."""
    places: dict[str, tuple[Checkpoint, str]]

    def keys(self) -> Iterable[str]:
        return self.places.keys()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: holder.shapes[key] for name, (holder, key) in self.places.items()}

    def __getitem__(self, name: str) -> Tensor:
        holder, key = self.places[name]
        return holder.read(key)


def gather_encoders(family: Architecture, model: Checkpoint, given: Sequence[Path | str] = ()) -> EncoderFiles:
    """The encoders in the files given, in any order, and for the rest in the model's own file.

    Refused are a file that holds nothing the family reads, two files that hold the same encoder, and a family left
    without an encoder that it needs.
    """
    files = [Checkpoint.open(path) for path in given]
    chosen: dict[str, tuple[Checkpoint, dict[str, str]]] = {}
    for file in files:
        names = [row for row in family.encoders if _inside(row, file)]
        if not names and not _is_pooled_only(family, file):
            wanted = " and ".join(row.title for row in family.encoders)
            raise FileError(f"{file.path} holds no text encoder that {family.title} reads here: it reads {wanted}.")
        for row in names:
            if row.name in chosen:
                raise FileError(f"{chosen[row.name][0].path} and {file.path} both hold {row.title}: give one of them.")
            chosen[row.name] = file, _inside(row, file)
    for row in family.encoders:
        if row.name not in chosen and (keys := encoder_keys(row, model.keys())[1]):
            chosen[row.name] = model, keys
    missing = tuple(row for row in family.encoders if row.name not in chosen)
    _refuse_missing(family, model, missing)
    return EncoderFiles(
        tuple(row for row in family.encoders if row.name in chosen),
        missing,
        tuple({holder.path: holder for holder, _ in chosen.values()}.values()),
        {
            f"{row.folder}/{name}": (chosen[row.name][0], key)
            for row in family.encoders
            if row.name in chosen
            for name, key in chosen[row.name][1].items()
        },
    )


def _refuse_missing(family: Architecture, model: Checkpoint, missing: Sequence[TextEncoder]) -> None:
    needed = missing if len(missing) == len(family.encoders) else [row for row in missing if not row.optional]
    if needed:
        titles = " and ".join(row.title for row in needed)
        which = "those that you use" if needed[0].optional else "each of them" if len(needed) > 1 else "it"
        raise FileError(
            f"{model.path} holds no text encoder {titles}, from which {family.title} gets its text: give {which} with "
            "--text-encoder PATH (a safetensors file or folder)."
        )


def _inside(row: TextEncoder, file: Checkpoint) -> dict[str, str]:
    """{name inside the encoder: key} of one encoder in a file of its own, a checkpoint or a diffusers folder."""
    if found := encoder_keys(row, file.keys())[1]:
        return found
    return dict(zip(file.shapes, file.shapes, strict=True)) if _is_alone(row, file.shapes) else {}


def _is_alone(row: TextEncoder, shapes: Shapes) -> bool:
    """Whether the whole file is this encoder."""
    if spelling(row, shapes) is None:
        return False
    if row.name == "t5xxl":
        return _width(_T5_TABLES, shapes) == row.width and _T5_GATE in shapes and _UMT5 not in shapes
    return _width(_TABLES, shapes) == row.width


def _is_pooled_only(family: Architecture, file: Checkpoint) -> bool:
    """CLIP-L beside Flux: the model has a use for it, the edit has none."""
    return family.pooled is not None and "clip_l" in family.pooled.encoders and _width(_TABLES, file.shapes) == 768


def _width(tables: Sequence[str], shapes: Shapes) -> int | None:
    """Width of the token embedding under the first of these names."""
    return next((shapes[name][-1] for name in tables if len(shapes.get(name, ())) == 2), None)
