"""MODEL and CLIP as the engine sees them, opened for reading while a node runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from comfy.sd1_clip import SDClipModel

from ...speed_ops.encoders.cache import CachedEncoder, EmbeddingCache
from ...speed_ops.encoders.encoder import EncoderPart, JoinedTextEncoder, TextEncoder
from ...speed_ops.errors import InputError
from ...speed_ops.model import EditableModel
from ...speed_ops.models.architecture import Architecture, FamilyEncoder
from ...speed_ops.text.concept_list import Concept
from .inversions import Inversions, token_key
from .progress import HostProgress
from .public_text import PublicTextEncoder
from .text import HostTextEncoder
from .text_part import HostTextPart
from .weights import Workplace, open_model


class Wired(NamedTuple):
    """MODEL and CLIP, checked against each other."""

    model: EditableModel
    reader: CachedEncoder
    progress: HostProgress


@contextmanager
def wire(
    model: Any,
    clip: Any,
    layers: str,
    concepts: Sequence[Concept],
    hidden: Any = None,
    workplace: Workplace | None = None,
) -> Iterator[Wired]:
    """Opens MODEL and CLIP for reading. Refuses a family that is not supported, a CLIP of another
    model, and a concept that names a missing textual inversion.

    Args:
        model: ComfyUI's MODEL.
        clip: ComfyUI's CLIP.
        layers: Which layers are opened: `V` or `KV`.
        concepts: Texts that will be read.
        hidden: Hidden inputs of the node that shows progress.
        workplace: Where to compute; None: on the CPU.
    """
    progress, workplace = HostProgress(hidden), workplace or Workplace()
    progress("fingerprint", 0, 1)
    editable = open_model(model, layers, workplace)
    row = editable.architecture.text_part
    width = editable.layers[0].shape[1]
    part = HostTextPart(model, row, width, workplace) if row else None
    encoder = open_text(clip, editable.architecture, part)
    widths = _widths(clip)
    every_encoder = editable.architecture.every_encoder
    inversions = Inversions(
        clip,
        {
            token_key(row.name): row.hidden_width
            for row in every_encoder
            if widths.get(row.name) == row.hidden_width
        },
    )
    inversions.check(name for concept in concepts for name in (*concept.phrases, concept.anchor))
    each_row = part if row and not row.mixes else None
    reader = CachedEncoder(encoder, EmbeddingCache(), each_row, inversions.stored_as)
    try:
        yield Wired(replace(editable, text_part=part), reader, progress)
    finally:
        encoder.close()
        workplace.tidy_up()


def open_text(
    clip: Any, architecture: Architecture, part: HostTextPart | None = None
) -> TextEncoder:
    """The family's encoders that are wired in. Refuses a CLIP of another family.

    CLIP encoders are run by the engine, all others by ComfyUI's own call.

    Args:
        clip: ComfyUI's CLIP.
        architecture: The family of the model.
        part: What the model does to text; where that mixes the rows of a prompt, the rows that come
            out of it are the encoder's.
    """
    mixing = part if part is not None and part.part.mixes else None
    widths = _widths(clip)
    present = _family_encoders(widths, architecture)
    clips = [row for row in present if row.appends == "columns"]
    second = architecture.second_input
    pooled: list[FamilyEncoder] = []
    if second and not second.mean:
        pooled = [row for row in second.encoders if widths.get(row.name) == row.width]
    parts: list[EncoderPart] = []
    if clips or pooled:
        start = architecture.first_column(clips[0].name) if clips else 0
        column = second.first_column(pooled[0].name) if second and pooled else 0
        read = bool(clips)
        encoder = HostTextEncoder(clip, clips or pooled, start, pooled, column, rows_are_read=read)
        parts.append(EncoderPart(encoder, start, column, rows_are_read=read))
    parts += [
        EncoderPart(PublicTextEncoder(clip, row, mixing, pools=bool(second and second.mean)))
        for row in present
        if row.appends == "rows"
    ]
    width = architecture.context_width if mixing is None else mixing.width
    if len(parts) == 1 and parts[0].encoder.width == width:
        return parts[0].encoder
    return JoinedTextEncoder(parts, width, second.text_width if second else 0)


def _family_encoders(widths: Mapping[str, int], architecture: Architecture) -> list[FamilyEncoder]:
    """The family's encoders that the CLIP object has."""
    needed = {row.name: row.hidden_width for row in architecture.encoders}
    present = [row for row in architecture.encoders if widths.get(row.name) == row.hidden_width]
    known = {row.name for row in architecture.every_encoder} | {*architecture.other_encoders}
    foreign = set(widths) - known
    missing = [
        row
        for row in architecture.encoders
        if row not in present and (not row.optional or row.name in widths)
    ]
    if missing or foreign or not present:
        raise InputError(
            f"This CLIP does not fit the model. It has {_listed(widths)}, but"
            f" {architecture.title} needs {_listed(needed)}. Connect the CLIP from the same"
            " checkpoint."
        )
    return present


def _widths(clip: Any) -> dict[str, int]:
    """{encoder: width} of all that the CLIP object holds."""
    return {
        name: module.transformer.get_input_embeddings().weight.shape[1]
        for name, module in clip.cond_stage_model.named_children()
        if isinstance(module, SDClipModel)
    }


def _listed(widths: Mapping[str, int]) -> str:
    listed = " and ".join(f"{name} of width {width}" for name, width in widths.items())
    return listed or "no text encoder"
