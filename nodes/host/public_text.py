"""Any CLIP object as the engine's text encoder.

CLIP encoders are run by the engine, without padding (`text`). All others read the whole prompt, or
have a template set around it: they are run by ComfyUI's own call, which knows how, and the rows of
a name are found by their tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from comfy.sd1_clip import SDClipModel
from torch import Tensor

from ...speed_ops.encoders.encoder import (
    BATCH_TOKENS,
    EncoderPart,
    JoinedTextEncoder,
    PairedTextEncoder,
    TextEncoder,
)
from ...speed_ops.errors import InputError
from ...speed_ops.files.tensors import tensors_hash
from ...speed_ops.models.architecture import Architecture, FamilyEncoder
from ...speed_ops.progress import Progress
from ...speed_ops.text.tokens import Stream
from .chunks import InChunks
from .inversions import Inversions, ids_in, token_key
from .progress import check_stop
from .text import HostTextEncoder
from .weights import effective_weight, raw_weight

_LETTER = "x"
"""A text of one token that no template ends with."""
_hashes: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
"""Text encoder module -> {encoder: hash of its stored weights}: T5-XXL has ten gigabytes of
them.
"""
_cuts: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()
"""Text encoder module -> {encoder: rows of its template that the model is not given}: finding out
takes a prompt.
"""


class WiredText(TextEncoder, Protocol):
    """What the nodes need of a CLIP object."""

    @property
    def notes(self) -> list[str]:
        """What happened on the way that a report should mention."""


def open_text(clip: Any, architecture: Architecture) -> WiredText:
    """The family's encoders that are wired in. Refuses a CLIP of another family."""
    present = _family_encoders(clip, architecture)
    path = architecture.second_input
    widths = _widths(clip)
    pooled = [row for row in path.encoders if widths.get(row.name) == row.width] if path else []
    column = path.first_column(pooled[0].name) if path and pooled else 0
    parts: list[EncoderPart] = []
    side_by_side = [row for row in present if row.appends == "columns"]
    if side_by_side:
        start = architecture.first_column(side_by_side[0].name)
        encoder = HostTextEncoder(clip, side_by_side, start, pooled, column)
        parts.append(EncoderPart(encoder, start, column))
    parts += [EncoderPart(PublicTextEncoder(clip, row)) for row in present if row.appends == "rows"]
    if len(parts) > 1 or parts[0].encoder.width != architecture.context_width:
        return _Joined(parts, architecture.context_width, path.text_width if path else 0)
    if side_by_side or not pooled:
        return parts[0].encoder  # type: ignore[return-value]
    return _Paired(
        parts[0].encoder, HostTextEncoder(clip, pooled, 0, pooled, column, rows_are_read=False)
    )


def open_inversions(clip: Any, architecture: Architecture) -> Inversions:
    """The textual inversions that all of those encoders can read."""
    widths = _widths(clip)
    return Inversions(
        clip,
        {
            token_key(row.name): row.width
            for row in architecture.every_encoder
            if widths.get(row.name) == row.width
        },
    )


def _notes(*encoders: TextEncoder) -> list[str]:
    return list(
        dict.fromkeys(note for encoder in encoders for note in getattr(encoder, "notes", []))
    )


class _Joined(JoinedTextEncoder):
    @property
    def notes(self) -> list[str]:
        return _notes(*(part.encoder for part in self._parts))


class _Paired(PairedTextEncoder):
    @property
    def notes(self) -> list[str]:
        return _notes(self._rows, self._pooled)


class PublicTextEncoder(InChunks):
    """A `TextEncoder` with one stream, run by `encode_from_tokens`."""

    def __init__(self, clip: Any, row: FamilyEncoder) -> None:
        super().__init__(clip)
        self._row, self._key = row, token_key(row.name)
        self.width = row.width
        self._inversions = Inversions(clip, {self._key: row.width})
        empty, letter = self._section(""), self._section(_LETTER)
        pairs = enumerate(zip(empty, letter, strict=False))
        before = next((i for i, (a, b) in pairs if a != b), len(empty))
        after = 1 if row.padding != "none" else len(empty) - before
        cuts = _cuts.setdefault(clip.cond_stage_model, {})
        if row.name not in cuts:
            cuts[row.name] = (
                0 if row.padding != "none" else len(empty) - self._rows_of([""])[0].shape[0]
            )
        self._cut = cut = cuts[row.name]
        # Padded to what this tokenizer pads to, which an option of it may change.
        self.context_length = len(empty) if row.padding != "none" else row.length
        stream = Stream(
            _tokens_between(
                clip, self._key, before, after if row.padding == "none" else None, self._inversions
            ),
            self.context_length,
            before=before - cut,
            causal=row.causal,
            padding=row.padding,
            after=after,
        )
        self.streams = (stream,)
        self.fingerprint = self._fingerprint()

    def close(self) -> None:
        """ComfyUI looks after the memory of its models."""

    def _section(self, text: str) -> list[int]:
        """Tokens of the text in its template, with everything around it; a long one has further
        sections.
        """
        return ids_in(self._clip.tokenize(self._inversions.typed(text))[self._key][0])

    def _run(
        self,
        prompts: Sequence[str],
        lengths: Sequence[int],
        progress: Progress | None,
        *,
        pools: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        counts = [len(self._section(prompt)) for prompt in prompts]
        out: list[Tensor] = [Tensor()] * len(prompts)
        for done, batch in _batches(counts, self._row.batchable):
            if progress is not None:
                progress("encode", done, len(prompts))
            for i, rows in zip(batch, self._rows_of([prompts[i] for i in batch]), strict=True):
                if rows.shape[0] < lengths[i]:
                    raise InputError(
                        f"The text encoder gave {rows.shape[0]} rows for '{prompts[i][:60]}', too"
                        " few."
                    )
                out[i] = rows[: lengths[i]].clone()
        return out, []

    def _rows_of(self, prompts: Sequence[str]) -> list[Tensor]:
        """All rows that the model receives of each prompt; their sections are equally long."""
        tokens: dict[str, list[Any]] = {}
        for prompt in prompts:
            for name, sections in self._clip.tokenize(self._inversions.typed(prompt)).items():
                tokens.setdefault(name, []).extend(sections[:1] if name == self._key else [])
        for name, sections in self._clip.tokenize("").items():
            # ComfyUI does without an encoder that the model can do without, else one short text
            # must do.
            if name != self._key and not self._row.optional:
                tokens[name] = sections[:1]
        check_stop()
        rows = self._clip.encode_from_tokens(tokens)[0].float().cpu()
        return list(rows.reshape(len(prompts), -1, rows.shape[-1]))

    def _fingerprint(self) -> str:
        """Hash of the weights in effect, clip skip, tokenizer and its options."""
        clip = self._clip
        options = (
            f"{self._row.name} {clip.layer_idx} {clip.tokenizer_options}"
            f" {self._section('a (b) 7!')} {self._cut}"
        )
        patched = sorted(
            key for key in clip.patcher.patches if key.startswith(f"{self._row.name}.")
        )
        hashes = _hashes.setdefault(clip.cond_stage_model, {})
        if self._row.name not in hashes:
            hashes[self._row.name] = tensors_hash(self._stored())
        stored = hashes[self._row.name]
        added = tensors_hash((key, effective_weight(clip.patcher, key)) for key in patched)
        return f"public {hashlib.sha256(f'{options} {stored} {added}'.encode()).hexdigest()}"

    def _stored(self) -> Any:
        """(key, weight as it is stored) of this encoder, one by one."""
        for key, value in sorted(self._clip.cond_stage_model.state_dict().items()):
            # GGUF's wish for room
            if key.startswith(f"{self._row.name}.") and not key.endswith(".temp.weight"):
                check_stop()
                yield key, raw_weight(self._clip.patcher, key, value)


def _batches(counts: Sequence[int], batchable: bool) -> list[tuple[int, list[int]]]:
    """(prompts done before, indices) of prompts with equally many tokens, at most `BATCH_TOKENS` of
    them together.
    """
    order = sorted(range(len(counts)), key=lambda i: counts[i])
    batches: list[tuple[int, list[int]]] = []
    for done, i in enumerate(order):
        size = max(1, BATCH_TOKENS // max(1, counts[i])) if batchable else 1
        if batches and counts[batches[-1][1][0]] == counts[i] and len(batches[-1][1]) < size:
            batches[-1][1].append(i)
        else:
            batches.append((done, [i]))
    return batches


def _tokens_between(
    clip: Any, key: str, before: int, after: int | None, inversions: Inversions
) -> Callable[[str], list[int]]:
    """Text to token ids, without what stands around it; `after` None: up to the first end token."""
    end = None if after is not None else int(clip.tokenize("")[key][0][before][0])

    def ids_of(text: str) -> list[int]:
        check_stop()
        ids = [
            token
            for section in clip.tokenize(inversions.typed(text))[key]
            for token in ids_in(section)
        ]
        if after is not None:
            return ids[before : len(ids) - after]
        return ids[before : ids.index(end, before)] if end in ids[before:] else ids[before:]

    return ids_of


def _family_encoders(clip: Any, architecture: Architecture) -> list[FamilyEncoder]:
    """The family's encoders that the CLIP object has."""
    widths = _widths(clip)
    needed: dict[str, int] = {row.name: row.width for row in architecture.encoders}
    present = [row for row in architecture.encoders if widths.get(row.name) == row.width]
    foreign = set(widths) - set(needed) - {row.name for row in architecture.every_encoder}
    missing = [
        row
        for row in architecture.encoders
        if row not in present and (not row.optional or row.name in widths)
    ]
    if missing or foreign or not present:
        raise InputError(
            f"This CLIP does not belong to this model: it has {_listed(widths)}, but"
            f" {architecture.title} needs {_listed(needed)}. Wire the CLIP from the same"
            " checkpoint."
        )
    return present


def _widths(clip: Any) -> dict[str, int]:
    """{encoder: width} of all that the CLIP object holds."""
    return {
        name: part.transformer.get_input_embeddings().weight.shape[1]
        for name, part in clip.cond_stage_model.named_children()
        if isinstance(part, SDClipModel)
    }


def _listed(widths: Mapping[str, int]) -> str:
    listed = " and ".join(f"{name} of width {width}" for name, width in widths.items())
    return listed or "no text encoder"
