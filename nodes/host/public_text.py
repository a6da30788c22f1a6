"""Text encoders other than CLIP. They read the whole prompt, or have a template set around it, so
ComfyUI's own call runs them, and the rows of a name are found by their tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from ...speed_ops.encoders.encoder import BATCH_TOKENS, Encoded
from ...speed_ops.errors import InputError
from ...speed_ops.files.tensors import tensors_hash
from ...speed_ops.models.architecture import FamilyEncoder
from ...speed_ops.progress import Progress
from ...speed_ops.text.tokens import Stream
from .inversions import Inversions, ids_in, token_key
from .progress import check_stop
from .text import InChunks
from .text_part import HostTextPart
from .weights import edits_on, effective_weight, raw_weight

_LETTER = "x"
"""A text of one token that no template ends with."""
_hashes: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
"""Text encoder module -> {encoder: hash of its stored weights}; T5-XXL has ten gigabytes."""
_cuts: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()
"""Text encoder module -> {encoder: rows of its template that the model does not receive}."""


class PublicTextEncoder(InChunks):
    """A `TextEncoder` with one stream, run by `encode_from_tokens`."""

    def __init__(
        self,
        clip: Any,
        row: FamilyEncoder,
        mixing: HostTextPart | None = None,
        *,
        pools: bool = False,
    ) -> None:
        """
        Args:
            clip: ComfyUI's CLIP.
            row: The encoder that is run.
            mixing: What the model does to whole prompts before the edited layers.
            pools: Whether the model also reads the mean of a prompt's rows.
        """
        super().__init__(clip, [row])
        self._row, self._mixing = row, mixing
        self._key = token_key((mixing and mixing.part.ids) or row.name)
        self._keys.add(self._key)
        self.width = row.width if mixing is None else mixing.width
        self.pooled_width = self.width if pools else 0
        padded = row.padding != "none"
        empty, letter = self._section(""), self._section(_LETTER)
        pairs = enumerate(zip(empty, letter, strict=False))
        before = next((i for i, (a, b) in pairs if a != b), len(empty))
        after = len(empty) - before
        if padded:  # what follows the end of the template repeats
            repeats = next((n for n, id in enumerate(reversed(empty)) if id != empty[-1]), after)
            after = max(1, after - repeats)
        cuts = _cuts.setdefault(clip.cond_stage_model, {})
        if row.name not in cuts:
            is_certain = padded and row.states == 1  # else another family may share the encoder
            rows = [] if is_certain else self._or_on_cpu(lambda: self._rows_of([""]))
            cuts[row.name] = len(empty) - len(rows[0]) if rows else 0
        self._cut = cuts[row.name]
        # Padded to what this tokenizer pads to, which an option of it may change.
        self.context_length = len(empty) if padded else row.length
        end = empty[before] if padded else None
        stream = Stream(
            _tokens_between(clip, self._key, (before, after), end, self._inversions),
            self.context_length,
            before=before - self._cut,
            causal=row.causal and mixing is None,
            padding=row.padding,
            after=after,
        )
        self.streams = (stream,)
        self.fingerprint = self._fingerprint()
        self.pooled_fingerprint = f"mean {self.fingerprint}" if pools else ""

    def close(self) -> None:
        """ComfyUI looks after the memory of its models."""

    def _section(self, text: str) -> list[int]:
        """Tokens of the text in its template; a long text has further sections."""
        return ids_in(self._clip.tokenize(self._inversions.typed(text))[self._key][0])

    def _run(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None, pools: bool
    ) -> Encoded:
        counts = [len(self._section(prompt)) for prompt in prompts]
        out: list[Tensor] = [Tensor()] * len(prompts)
        means: list[Tensor] = [Tensor()] * len(prompts)
        done = 0
        for batch in _batches(counts, self._row.batchable):
            if progress is not None:
                progress("encode", done, len(prompts))
            for i, rows in zip(batch, self._rows_of([prompts[i] for i in batch]), strict=True):
                if rows.shape[0] < lengths[i]:
                    raise InputError(
                        f"The text encoder returned only {rows.shape[0]} rows for"
                        f" '{prompts[i][:60]}'. Use ComfyUI's own loader for it."
                    )
                out[i] = rows[: lengths[i]].clone()
                means[i] = rows.mean(dim=0)
            done += len(batch)
        return out, means if pools else []

    def _rows_of(self, prompts: Sequence[str]) -> list[Tensor]:
        """All rows that the model receives of each prompt; their sections are equally long."""
        # An optional encoder may be left out of the call.
        tokens = self._tokens(prompts, fill=not self._row.optional)
        check_stop()
        out = self._clip.encode_from_tokens(tokens, return_dict=True)
        rows = out["cond"][0].float().cpu()
        if rows.shape[-1] != self._row.width:
            raise InputError(
                f"This CLIP does not fit the model. Its rows are {rows.shape[-1]} wide, but the"
                f" model reads rows of width {self._row.width}. Connect the CLIP of the same model."
            )
        if self._mixing is not None:
            ids = out.get(f"{self._mixing.part.ids}_ids")
            return [self._mixing(rows, ids)]
        return list(rows.reshape(len(prompts), -1, rows.shape[-1]))

    def _fingerprint(self) -> str:
        """Hash of the weights in effect, clip skip, tokenizer and its options."""
        clip, name = self._clip, self._row.name
        probe = self._section("a (b) 7!")
        options = f"{name} {clip.layer_idx} {clip.tokenizer_options} {probe} {self._cut}"
        patched = sorted(key for key in edits_on(clip.patcher) if key.startswith(f"{name}."))
        hashes = _hashes.setdefault(clip.cond_stage_model, {})
        if name not in hashes:
            hashes[name] = tensors_hash(self._stored())
        stored = hashes[name]
        added = tensors_hash((key, effective_weight(clip.patcher, key)) for key in patched)
        if self._mixing is not None:
            added += self._mixing.fingerprint
        return f"public {hashlib.sha256(f'{options} {stored} {added}'.encode()).hexdigest()}"

    def _stored(self) -> Iterator[tuple[str, Tensor]]:
        """(key, weight as it is stored) of this encoder, one by one."""
        for key, value in sorted(self._clip.cond_stage_model.state_dict().items()):
            # A GGUF model has a buffer for its largest weight.
            if key.startswith(f"{self._row.name}.") and not key.endswith(".temp.weight"):
                check_stop()
                yield key, raw_weight(self._clip.patcher, key, value)


def _batches(counts: Sequence[int], batchable: bool) -> Iterator[list[int]]:
    """Indices of prompts with equally many tokens, at most `BATCH_TOKENS` in a batch."""
    order = sorted(range(len(counts)), key=lambda i: counts[i])
    for count, group in groupby(order, key=lambda i: counts[i]):
        indices = list(group)
        size = max(1, BATCH_TOKENS // max(1, count)) if batchable else 1
        for start in range(0, len(indices), size):
            yield indices[start : start + size]


def _tokens_between(
    clip: Any, key: str, around: tuple[int, int], end: int | None, inversions: Inversions
) -> Callable[[str], list[int]]:
    """Text to token ids, without those before and after it (`around`), or up to token `end`."""
    before, after = around

    def ids_of(text: str) -> list[int]:
        check_stop()
        sections = clip.tokenize(inversions.typed(text))[key]
        ids = [token for section in sections for token in ids_in(section)]
        if end is None:
            return ids[before : len(ids) - after]
        return ids[before : ids.index(end, before)] if end in ids[before:] else ids[before:]

    return ids_of
