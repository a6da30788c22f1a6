"""A CLIP object as the engine's text encoder: what the model is given, clip skip and CLIP LoRAs included.

CLIP's rows do not depend on what follows them, so names are encoded without padding. ComfyUI's public call cannot do
that; the engine's own encoder can, over the weights that are in effect in the CLIP object. The two are compared once
for each CLIP, and where they differ (text encoders kept in float32, modules changed by other nodes) the public call is
used for everything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import comfy.model_management
import torch
from comfy.sd1_clip import SDClipModel
from torch import Tensor

from ...speed_ops.encoders.clip import ClipTextEncoder
from ...speed_ops.encoders.tokenizers import END_TOKEN, ClipTokenizer
from ...speed_ops.errors import InputError, SpeedError
from ...speed_ops.models.families import Architecture
from ...speed_ops.progress import Progress, part_of
from .progress import check_stop
from .weights import effective_weight, stored_weight

_PROBE = "a photo of d'Artagnan's dog, 1984"
_AGREES_TO = 1e-4
"""Largest difference between trimmed and public rows, as a share of the largest value; real ones differ by 3e-6."""
_FIRST_CHUNK = 256
_LEAST_CHUNK = 4
_PUBLIC_BATCH = 8
_known: WeakKeyDictionary[Any, dict[Any, tuple[bool, str]]] = WeakKeyDictionary()
"""Text encoder module -> {(patches, clip skip): whether trimmed encoding agrees, fingerprint}: hashing takes time."""


def literal(text: str) -> str:
    """Text that ComfyUI's tokenizer reads as it stands: no weights, no textual inversion."""
    return text.replace("(", "\\(").replace(")", "\\)").replace("embedding:", "embedding :")


class HostTextEncoder:
    """A `TextEncoder` (see the engine's text side) over the CLIP that is wired in."""

    def __init__(self, clip: Any, architecture: Architecture) -> None:
        _check_belongs(clip, architecture)
        self._clip = clip
        self._names = [row.name for row in architecture.encoders]
        self._rows = architecture.encoders
        self.notes: list[str] = []
        """What happened on the way that a report should mention."""
        self._tokenizer = ClipTokenizer(_tokens_of(clip, self._names[0]))
        self._trimmed = self._engine_encoder()
        self.context_length = self._trimmed.context_length
        self.width = self._trimmed.width
        self.streams = self._trimmed.streams
        self._chunk, self._on_cpu = _FIRST_CHUNK, False
        known = _known.setdefault(clip.cond_stage_model, {})
        state = (str(clip.patcher.patches_uuid), clip.layer_idx, str(clip.tokenizer_options))
        if state not in known:
            known[state] = self._examined()
        self._agrees, self.fingerprint = known[state]
        if not self._agrees:
            self.notes.append("This is not a standard CLIP, so names were encoded with padding, which is slower.")

    def token_ids(self, text: str) -> list[int]:
        """Tokens of the literal text, without start and end tokens."""
        return self._tokenizer.token_ids(text)

    def encode(self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None = None) -> list[Tensor]:
        """First `lengths[i]` rows of each prompt, float32 on the CPU."""
        out: list[Tensor] = []
        while len(out) < len(prompts):
            part = slice(len(out), len(out) + self._chunk)
            report = part_of(progress, "encode", len(out), len(prompts))
            run = self._trimmed.encode if self._agrees else self._public
            try:
                out += run(prompts[part], lengths[part], report)
            except comfy.model_management.OOM_EXCEPTION:
                self._after_running_out()
        return out

    def close(self) -> None:
        """Gives the memory of the engine's own copy of the text encoder back at once; the next call takes it again."""
        self._trimmed.close()

    def _after_running_out(self) -> None:
        """Smaller chunks first, then the CPU; what was done is kept."""
        if self._chunk <= _LEAST_CHUNK:
            self._move_to_cpu()
            return
        comfy.model_management.soft_empty_cache()
        self._chunk //= 4
        self._note(f"The GPU ran out of memory: texts were encoded {self._chunk} at a time.")

    def _move_to_cpu(self) -> None:
        if self._on_cpu:
            raise SpeedError(
                "There is not enough memory to encode even four texts at a time on the CPU: free some memory."
            )
        self._trimmed.close()
        comfy.model_management.soft_empty_cache()
        self._clip = self._clip.clone()
        self._clip.patcher.load_device = torch.device("cpu")
        self._trimmed, self._on_cpu, self._chunk = self._engine_encoder(), True, _FIRST_CHUNK
        self._note("The GPU ran out of memory: texts were encoded on the CPU.")

    def _note(self, sentence: str) -> None:
        self.notes = [note for note in self.notes if not note.startswith("The GPU")] + [sentence]

    def _engine_encoder(self) -> ClipTextEncoder:
        clip = self._clip
        tensors = _EncoderTensors(clip, self._rows)
        return ClipTextEncoder(tensors, self._rows, self._tokenizer, clip.layer_idx, clip.patcher.load_device)

    def _examined(self) -> tuple[bool, str]:
        try:
            return self._examine()
        except comfy.model_management.OOM_EXCEPTION:
            self._move_to_cpu()
            return self._examine()

    def _examine(self) -> tuple[bool, str]:
        """Whether trimmed rows are the public ones, and the fingerprint that goes with the answer."""
        length = len(self.token_ids(_PROBE)) + 2
        public = self._public([_PROBE], [self.context_length], None)[0]
        trimmed = self._trimmed.encode([_PROBE], [length])[0]
        largest = float(public.abs().max())
        agrees = (
            public.shape[1] == self.width and float((public[:length] - trimmed).abs().max()) <= _AGREES_TO * largest
        )
        if agrees:
            return True, self._trimmed.fingerprint
        digest = hashlib.sha256(self._trimmed.fingerprint.encode() + public.numpy().tobytes())
        return False, f"public {digest.hexdigest()}"

    def _public(self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None) -> list[Tensor]:
        """Through ComfyUI's own call: whole padded prompts, several in one go."""
        out: list[Tensor] = []
        for start in range(0, len(prompts), _PUBLIC_BATCH):
            if progress is not None:
                progress("encode", start, len(prompts))
            part = prompts[start : start + _PUBLIC_BATCH]
            tokens: dict[str, list[Any]] = {}
            for prompt in part:
                for name, sections in self._clip.tokenize(literal(prompt)).items():
                    tokens.setdefault(name, []).append(sections[0])
            rows = self._clip.encode_from_tokens(tokens).float().cpu().reshape(len(part), -1, self.width)
            out += [row[:length].clone() for row, length in zip(rows, lengths[start:], strict=False)]
        return out


def _tokens_of(clip: Any, name: str) -> Callable[[str], list[int]]:
    """Literal text to token ids; it knows the CLIP, not the encoder, which would otherwise refer to itself."""

    def ids_of(text: str) -> list[int]:
        check_stop()
        ids: list[int] = []
        for section in clip.tokenize(literal(text))[name.removeprefix("clip_")]:
            values = [int(pair[0]) for pair in section[1:]]
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
        """By name, without reading anything: an embedding table is large."""
        return {name: tuple(stored_weight(self._patcher, key).shape) for name, key in self._keys.items()}

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


def _check_belongs(clip: Any, architecture: Architecture) -> None:
    """Refuses a CLIP of another family before anything is encoded."""
    parts = {
        name: part.transformer.get_input_embeddings().weight.shape[1]
        for name, part in clip.cond_stage_model.named_children()
        if isinstance(part, SDClipModel)
    }
    wanted: dict[str, int] = {row.name: row.width for row in architecture.encoders}
    if parts != wanted:
        raise InputError(
            f"This CLIP does not belong to this model: it has {_listed(parts)}, but {architecture.title} needs "
            f"{_listed(wanted)}. Wire the CLIP from the same checkpoint."
        )


def _listed(parts: Mapping[str, int]) -> str:
    return " and ".join(f"{name} of width {width}" for name, width in parts.items()) or "no CLIP text encoder"
