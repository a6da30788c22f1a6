"""CLIP encoders of a CLIP object: what the model is given, clip skip and CLIP LoRAs included.

CLIP's rows do not depend on what follows them, so names are encoded without padding. ComfyUI's
public call cannot do that; the engine's own encoder can, over the weights that are in effect in the
CLIP object. The two are compared once for each CLIP, and where they differ (text encoders kept in
float32, modules changed by other nodes) the public call is used for everything; so it is for texts
that name a textual inversion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import comfy.model_management
import torch
from comfy.sd1_clip import SDTokenizer
from torch import Tensor

from ...speed_ops.encoders.clip import ClipTextEncoder
from ...speed_ops.encoders.tokenizers import END_TOKEN, INVERSION, START_TOKEN, ClipTokenizer
from ...speed_ops.models.architecture import FamilyEncoder
from ...speed_ops.progress import Progress
from ...speed_ops.text.tokens import long_name
from .chunks import InChunks
from .inversions import Inversions, ids_in, literal, token_key
from .progress import check_stop
from .weights import effective_weight, stored_weight

_PROBE = "a photo of d'Artagnan's dog, 1984"
_AGREES_TO = 1e-4
"""Largest difference between trimmed and public rows, as a share of the largest value; real ones
differ by 3e-6.
"""
_PUBLIC_BATCH = 8
_examined: WeakKeyDictionary[Any, dict[Any, tuple[bool, str, str]]] = WeakKeyDictionary()
"""Text encoder module -> {(patches, clip skip, options): whether trimmed encoding agrees,
fingerprint of rows, fingerprint of pooled embeddings}. Hashing takes time.
"""
_MAX_TOKENS = 75
"""What CLIP takes between its start and end token."""


@lru_cache(maxsize=1)
def _clip_tokenizer() -> Any:
    return SDTokenizer()


def too_long(name: str) -> str:
    """Why CLIP cannot take a name, in a sentence; empty if it can."""
    if len(name) <= _MAX_TOKENS:  # a token is at least one character
        return ""
    tokens = [
        pair
        for section in _clip_tokenizer().tokenize_with_weights(literal(name))
        for pair in section
    ]
    count = sum(int(pair[0]) not in (START_TOKEN, END_TOKEN) for pair in tokens)
    return "" if count <= _MAX_TOKENS else long_name(name, count, _MAX_TOKENS)


class HostTextEncoder(InChunks):
    """A `TextEncoder` (see the engine's text side) over the CLIP encoders that are wired in."""

    def __init__(
        self,
        clip: Any,
        rows: Sequence[FamilyEncoder],
        first_column: int = 0,
        pooled: Sequence[FamilyEncoder] = (),
        pooled_column: int = 0,
        *,
        rows_are_read: bool = True,
    ) -> None:
        """
        Args:
            clip: ComfyUI's CLIP.
            rows: Encoders whose columns are side by side; others in the CLIP are left out.
            first_column: Where their columns begin in what the model reads.
            pooled: Those of them whose pooled embeddings the model reads.
            pooled_column: Where the pooled embeddings begin.
            rows_are_read: False if the model reads only the pooled embeddings, like Flux.
        """
        super().__init__(clip)
        self._rows, self._pooled = tuple(rows), tuple(pooled)
        self._first_column, self._pooled_column, self._rows_are_read = (
            first_column,
            pooled_column,
            rows_are_read,
        )
        self._inversions = Inversions(clip, {token_key(row.name): row.width for row in rows})
        self._tokenizer = ClipTokenizer(_tokens_of(clip, rows[0].name, self._inversions))
        self._trimmed = self._engine_encoder()
        self.context_length = self._trimmed.context_length
        self.width = self._trimmed.width
        self.pooled_width = self._trimmed.pooled_width
        self.streams = self._trimmed.streams
        states = _examined.setdefault(clip.cond_stage_model, {})
        state = (str(clip.patcher.patches_uuid), clip.layer_idx, str(clip.tokenizer_options))
        if state not in states:
            try:
                states[state] = self._examine()
            except comfy.model_management.OOM_EXCEPTION:
                self._move_to_cpu()
                states[state] = self._examine()
        self._agrees, self.fingerprint, self.pooled_fingerprint = states[state]
        if not self._agrees:
            self.notes.append(
                "This is not a standard CLIP, so names were encoded with padding, which is slower."
            )

    def token_ids(self, text: str) -> list[int]:
        """Tokens of the literal text, without start and end tokens."""
        return self._tokenizer.token_ids(text)

    def _run(
        self,
        prompts: Sequence[str],
        lengths: Sequence[int],
        progress: Progress | None,
        *,
        pools: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        if not self._agrees or any(INVERSION.search(prompt) for prompt in prompts):
            return self._public(prompts, lengths, progress, pools=pools)
        if pools:
            return self._trimmed.encode_both(prompts, lengths, progress)
        return self._trimmed.encode(prompts, lengths, progress), []

    def close(self) -> None:
        """Frees the engine's copy of the text encoder until the next call."""
        self._trimmed.close()

    def _on_moved(self) -> None:
        self._trimmed.close()
        self._trimmed = self._engine_encoder()

    def _engine_encoder(self) -> ClipTextEncoder:
        clip = self._clip
        tensors = _EncoderTensors(clip, self._rows)
        skip, device = clip.layer_idx if self._rows_are_read else None, clip.patcher.load_device
        return ClipTextEncoder(tensors, self._rows, self._tokenizer, skip, device, self._pooled)

    def _examine(self) -> tuple[bool, str, str]:
        """Whether trimmed rows are the public ones, and the fingerprints of rows and pooled
        embeddings.
        """
        length = len(self.token_ids(_PROBE)) + 2 if self._rows_are_read else 0
        pools = self.pooled_width > 0
        padded = [self.context_length if self._rows_are_read else 0]
        public, public_pooled = self._public([_PROBE], padded, None, pools=pools)
        trimmed_pooled: list[Tensor] = []
        if pools:
            trimmed, trimmed_pooled = self._trimmed.encode_both([_PROBE], [length])
        else:
            trimmed = self._trimmed.encode([_PROBE], [length])
        pairs = [
            *zip([rows[:length] for rows in public], trimmed, strict=True),
            *zip(public_pooled, trimmed_pooled, strict=True),
        ]
        pooled_key = self._trimmed.pooled_fingerprint if pools else ""
        if all(_alike(*pair) for pair in pairs):
            return True, self._trimmed.fingerprint, pooled_key
        digest = hashlib.sha256(self._trimmed.fingerprint.encode())
        for values in (*public, *public_pooled):
            digest.update(values.numpy().tobytes())
        key = f"public {digest.hexdigest()}"
        return False, key, f"{key} {pooled_key}"

    def _public(
        self,
        prompts: Sequence[str],
        lengths: Sequence[int],
        progress: Progress | None,
        *,
        pools: bool = False,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Encodes padded prompts with ComfyUI's own call: several at once, or one at a time if
        pooled embeddings are needed.
        """
        out: list[Tensor] = []
        pooled: list[Tensor] = []
        batch = 1 if pools else _PUBLIC_BATCH
        for start in range(0, len(prompts), batch):
            if progress is not None:
                progress("encode", start, len(prompts))
            tokens = self._public_tokens(prompts[start : start + batch])
            rows, embedding = self._clip.encode_from_tokens(tokens, return_pooled=True)
            out += self._rows_in(rows, lengths[start : start + batch])
            if pools:
                columns = slice(self._pooled_column, self._pooled_column + self.pooled_width)
                pooled.append(embedding[0, columns].float().cpu())
        return out, pooled

    def _public_tokens(self, prompts: Sequence[str]) -> dict[str, list[Any]]:
        """One section per prompt for these encoders. Other encoders get none, or one short text if
        they need one.
        """
        keys = {token_key(row.name) for row in self._rows}
        tokens: dict[str, list[Any]] = {}
        for prompt in prompts:
            for name, sections in self._clip.tokenize(self._inversions.typed(prompt)).items():
                tokens.setdefault(name, []).extend(sections[:1] if name in keys else [])
        if not self._rows_are_read:
            for name, sections in self._clip.tokenize("").items():
                if name not in keys:
                    tokens[name] = sections[:1]
        return tokens

    def _rows_in(self, output: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """The rows of each prompt in the output of ComfyUI's call."""
        if not self._rows_are_read:
            return [torch.empty(0, self.width) for _ in lengths]
        columns = slice(self._first_column, self._first_column + self.width)
        # The rows of other kinds of encoders follow.
        rows = output[0, : len(lengths) * self.context_length, columns].float().cpu()
        prompts = rows.reshape(len(lengths), self.context_length, -1)
        return [prompt[:length].clone() for prompt, length in zip(prompts, lengths, strict=True)]


def _alike(public: Tensor, trimmed: Tensor) -> bool:
    if public.shape != trimmed.shape:
        return False
    if not public.numel():
        return True
    return float((public - trimmed).abs().max()) <= _AGREES_TO * float(public.abs().max())


def _tokens_of(clip: Any, name: str, inversions: Inversions) -> Callable[[str], list[int]]:
    """Text to token ids. It refers to the CLIP and not to the encoder, to avoid a reference
    cycle.
    """

    def ids_of(text: str) -> list[int]:
        check_stop()
        ids: list[int] = []
        for section in clip.tokenize(inversions.typed(text))[token_key(name)]:
            values = ids_in(section[1:])
            ids += values[: values.index(END_TOKEN)] if END_TOKEN in values else values
        return ids

    return ids_of


class _EncoderTensors:
    """The CLIP object's weights in effect, under the names of a diffusers folder."""

    def __init__(self, clip: Any, rows: Sequence[Any]) -> None:
        self._patcher = clip.patcher
        self._keys = dict(_folder_keys(clip.patcher.model.state_dict(), rows))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{name: shape}, without reading weights."""
        return {
            name: tuple(stored_weight(self._patcher, key).shape) for name, key in self._keys.items()
        }

    def keys(self) -> Iterator[str]:
        return iter(self._keys)

    def __getitem__(self, key: str) -> Tensor:
        return effective_weight(self._patcher, self._keys[key])


def _folder_keys(present: Sequence[str], rows: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for row in rows:
        start = f"{row.name}.transformer."
        for key in present:
            if key.startswith(start):
                yield f"{row.folder}/{key[len(start) :]}", key
