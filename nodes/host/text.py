"""Text encoders of a CLIP object: what the model is given, clip skip and CLIP LoRAs included.

CLIP's rows do not depend on what follows them, so names are encoded without padding. ComfyUI's
public call cannot do that; the engine's own encoder can, over the weights that are in effect in the
CLIP object. The two are compared once for each CLIP. Where they differ (text encoders kept in
float32, modules changed by other nodes), and for texts that name a textual inversion, the public
call is used.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import comfy.model_management
import torch
from torch import Tensor

from ...speed_ops.devices import out_of_memory
from ...speed_ops.encoders.clip import ClipTextEncoder
from ...speed_ops.encoders.encoder import Encoded, TextEncoder
from ...speed_ops.encoders.tokenizers import END_TOKEN, INVERSION, ClipTokenizer
from ...speed_ops.encoders.tower import RESIDENT_BYTES
from ...speed_ops.errors import Notice, SpeedError
from ...speed_ops.models.architecture import FamilyEncoder
from ...speed_ops.progress import Progress, part_of
from .beside import bypass_id
from .inversions import Inversions, ids_in, token_key
from .progress import Result, check_stop
from .weights import CPU, effective_weight, stored_weight

_SHORT_OF_MEMORY = "out_of_gpu_memory"
_FIRST_CHUNK = 256
_MIN_CHUNK = 4
_PROBE = "a photo of d'Artagnan's dog, 1984"
_AGREES_TO = 1e-4
"""Largest difference of trimmed and public rows, relative to the largest value; usual is 3e-6."""
_PUBLIC_BATCH = 8
_examined: WeakKeyDictionary[Any, dict[Any, tuple[bool, str, str]]] = WeakKeyDictionary()
"""Text encoder module -> {(patches, clip skip, options): whether trimmed encoding agrees,
fingerprint of rows, fingerprint of pooled embeddings}. Hashing takes time.
"""


class InChunks(TextEncoder):
    """Encodes as many texts at once as memory allows: fewer after running out, then on the CPU."""

    def __init__(self, clip: Any, rows: Sequence[FamilyEncoder]) -> None:
        """`rows`: the encoders that are run; others in the CLIP are left out."""
        self._clip = clip
        self._inversions = Inversions(clip, {token_key(row.name): row.hidden_width for row in rows})
        self._keys = {token_key(row.name) for row in rows}
        self._notes: list[Notice] = []
        self._chunk, self._on_cpu = _FIRST_CHUNK, False

    @property
    def notes(self) -> list[str]:
        return list(self._notes)

    @abstractmethod
    def _run(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None, pools: bool
    ) -> Encoded:
        """`_encoded`, of prompts that are hoped to fit into memory."""

    def _encoded(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None, pools: bool
    ) -> Encoded:
        out: list[Tensor] = []
        pooled: list[Tensor] = []
        while len(out) < len(prompts):
            chunk = slice(len(out), len(out) + self._chunk)
            report = part_of(progress, "encode", len(out), len(prompts))
            try:
                rows, embeddings = self._run(prompts[chunk], lengths[chunk], report, pools=pools)
            except RuntimeError as fault:
                if not out_of_memory(fault):
                    raise
            else:
                out += rows
                pooled += embeddings
                continue
            self._after_running_out()  # not in the handler, whose traceback holds tensors
        return out, pooled

    def _or_on_cpu(self, work: Callable[[], Result]) -> Result:
        """What a small piece of work returns, on the CPU if there is no memory for even that."""
        try:
            return work()
        except RuntimeError as fault:
            if not out_of_memory(fault):
                raise
        self._move_to_cpu()
        return work()

    def _after_running_out(self) -> None:
        """Smaller chunks first, then the CPU; what was done is kept."""
        if self._chunk <= _MIN_CHUNK:
            self._move_to_cpu()
            return
        comfy.model_management.soft_empty_cache()
        self._chunk //= 4
        self._note(
            Notice(
                f"The GPU ran out of memory, so SPEED encoded {self._chunk} prompts at a time.",
                code=_SHORT_OF_MEMORY,
                at_once=self._chunk,
            )
        )

    def _move_to_cpu(self) -> None:
        if self._on_cpu:
            raise SpeedError(
                "There is not enough memory to encode four prompts at a time on the CPU. Close"
                " other programs, and run again."
            )
        self._clip = on_cpu(self._clip)
        self._on_cpu, self._chunk = True, _FIRST_CHUNK
        comfy.model_management.soft_empty_cache()
        self._note(
            Notice(
                "The GPU ran out of memory, so SPEED encoded the prompts on the CPU.",
                code=_SHORT_OF_MEMORY,
                device="cpu",
            )
        )

    def _note(self, notice: Notice) -> None:
        """Replaces an earlier notice with the same code."""
        self._notes = [note for note in self._notes if note.code != notice.code] + [notice]

    def _tokens(self, prompts: Sequence[str], *, fill: bool) -> dict[str, list[Any]]:
        """One section per prompt, as ComfyUI's own call takes them. Encoders that are not run get
        none; with `fill` one short text, for a CLIP object that cannot do without them.
        """
        tokens: dict[str, list[Any]] = {}
        for prompt in prompts:
            for name, sections in self._clip.tokenize(self._inversions.typed(prompt)).items():
                tokens.setdefault(name, []).extend(sections[:1] if name in self._keys else [])
        if fill:
            for name, sections in self._clip.tokenize("").items():
                if name not in self._keys:
                    tokens[name] = sections[:1]
        return tokens


class HostTextEncoder(InChunks):
    """The CLIP encoders that are wired in."""

    def __init__(
        self,
        clip: Any,
        rows: Sequence[FamilyEncoder],
        first_column: int,
        pooled: Sequence[FamilyEncoder],
        pooled_column: int,
        *,
        rows_are_read: bool,
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
        super().__init__(clip, rows)
        self._rows, self._pooled = tuple(rows), tuple(pooled)
        self._first_column, self._pooled_column = first_column, pooled_column
        self._rows_are_read, self._has_room = rows_are_read, False
        self._tokenizer = ClipTokenizer(_tokens_of(clip, rows[0].name, self._inversions))
        self._trimmed = self._engine_encoder()
        self.context_length = self._trimmed.context_length
        self.width = self._trimmed.width
        self.pooled_width = self._trimmed.pooled_width
        self.streams = self._trimmed.streams
        states = _examined.setdefault(clip.cond_stage_model, {})
        patches = f"{clip.patcher.patches_uuid} {bypass_id(clip.patcher)}"
        state = (patches, clip.layer_idx, str(clip.tokenizer_options))
        if state not in states:
            states[state] = self._or_on_cpu(self._examine)
        self._agrees, self.fingerprint, self.pooled_fingerprint = states[state]
        if not self._agrees:
            self._note(
                Notice(
                    "This is not a standard CLIP, so SPEED encoded names with padding, which is"
                    " slower.",
                    code="encoded_with_padding",
                )
            )

    def close(self) -> None:
        """Frees the engine's copy of the text encoder until the next call."""
        self._trimmed.close()
        self._has_room = False

    def _make_room(self) -> None:
        """Asks ComfyUI for the memory of the engine's copy, if that is not there yet."""
        device = self._clip.patcher.load_device
        if not self._has_room and device.type != "cpu":
            comfy.model_management.free_memory(self._tensors.bytes_to_run, device)
        self._has_room = True

    def _run(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None, pools: bool
    ) -> Encoded:
        if not self._agrees or any(INVERSION.search(prompt) for prompt in prompts):
            return self._public(prompts, lengths, progress, pools=pools)
        self._make_room()
        if pools:
            return self._trimmed.encode_both(prompts, lengths, progress)
        return self._trimmed.encode(prompts, lengths, progress), []

    def _move_to_cpu(self) -> None:
        self._trimmed.close()
        super()._move_to_cpu()
        self._trimmed = self._engine_encoder()

    def _engine_encoder(self) -> ClipTextEncoder:
        device = self._clip.patcher.load_device
        self._tensors = _EncoderTensors(self._clip, self._rows, device)
        return self._encoder_of(self._tensors, device)

    def _encoder_of(self, tensors: _EncoderTensors, device: torch.device) -> ClipTextEncoder:
        skip = self._clip.layer_idx if self._rows_are_read else None
        return ClipTextEncoder(tensors, self._rows, self._tokenizer, skip, device, self._pooled)

    def _examine(self) -> tuple[bool, str, str]:
        """Whether trimmed rows are the public ones; fingerprints of rows and pooled embeddings."""
        length = len(self.streams[0].token_ids(_PROBE)) + 2 if self._rows_are_read else 0
        pools = self.pooled_width > 0
        padded = [self.context_length if self._rows_are_read else 0]
        public, public_pooled = self._public([_PROBE], padded, None, pools=pools)
        trimmed_pooled: list[Tensor] = []
        self._make_room()
        if pools:
            trimmed, trimmed_pooled = self._trimmed.encode_both([_PROBE], [length])
        else:
            trimmed = self._trimmed.encode([_PROBE], [length])
        pairs = [
            *zip([rows[:length] for rows in public], trimmed, strict=True),
            *zip(public_pooled, trimmed_pooled, strict=True),
        ]
        # Read on the CPU, so that what is offloaded does not go to the device to be hashed.
        hashed = self._encoder_of(_EncoderTensors(self._clip, self._rows, CPU), CPU)
        pooled_key = hashed.pooled_fingerprint if pools else ""
        if all(_alike(*pair) for pair in pairs):
            return True, hashed.fingerprint, pooled_key
        digest = hashlib.sha256(hashed.fingerprint.encode())
        for values in (*public, *public_pooled):
            digest.update(values.numpy().tobytes())
        key = f"public {digest.hexdigest()}"
        return False, key, f"{key} {pooled_key}"

    def _public(
        self, prompts: Sequence[str], lengths: Sequence[int], progress: Progress | None, pools: bool
    ) -> Encoded:
        """Encodes padded prompts with ComfyUI's own call; those that pool one at a time."""
        out: list[Tensor] = []
        pooled: list[Tensor] = []
        batch = 1 if pools else _PUBLIC_BATCH
        for start in range(0, len(prompts), batch):
            if progress is not None:
                progress("encode", start, len(prompts))
            tokens = self._tokens(prompts[start : start + batch], fill=not self._rows_are_read)
            rows, embedding = self._clip.encode_from_tokens(tokens, return_pooled=True)
            out += self._rows_in(rows, lengths[start : start + batch])
            if pools:
                columns = slice(self._pooled_column, self._pooled_column + self.pooled_width)
                pooled.append(embedding[0, columns].float().cpu())
        return out, pooled

    def _rows_in(self, output: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """The rows of each prompt in the output of ComfyUI's call."""
        if not self._rows_are_read:
            return [torch.empty(0, self.width) for _ in lengths]
        columns = slice(self._first_column, self._first_column + self.width)
        # The rows of other kinds of encoders follow.
        rows = output[0, : len(lengths) * self.context_length, columns].float().cpu()
        prompts = rows.reshape(len(lengths), self.context_length, -1)
        return [prompt[:length].clone() for prompt, length in zip(prompts, lengths, strict=True)]


def on_cpu(clip: Any) -> Any:
    """A clone of a CLIP object that runs on the CPU."""
    # Under dynamic VRAM a patcher belongs to its device: it has to be an ordinary one, over a
    # model that is loaded again. Some loaders cannot do that.
    dynamic = getattr(clip.patcher, "is_dynamic", None)
    try:
        clone = clip.clone(disable_dynamic=True) if dynamic and dynamic() else clip.clone()
    except RuntimeError:
        clone = clip.clone()
    patcher = clone.patcher
    clone.cond_stage_model, patcher.load_device = patcher.model, CPU
    if hasattr(patcher, "register_load_device"):
        patcher.register_load_device(CPU)
    return clone


def _alike(public: Tensor, trimmed: Tensor) -> bool:
    if public.shape != trimmed.shape:
        return False
    if not public.numel():
        return True
    return float((public - trimmed).abs().max()) <= _AGREES_TO * float(public.abs().max())


def _tokens_of(clip: Any, name: str, inversions: Inversions) -> Callable[[str], list[int]]:
    """Text to token ids. It refers to the CLIP, as the encoder would make a reference cycle."""

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

    def __init__(self, clip: Any, rows: Sequence[FamilyEncoder], device: torch.device) -> None:
        self._patcher, self._device = clip.patcher, device
        self._keys: dict[str, str] = {}
        present = clip.patcher.model.state_dict()
        for row in rows:
            start = f"{row.name}.transformer."
            for key in present:
                if key.startswith(start):
                    self._keys[f"{row.folder}/{key.removeprefix(start)}"] = key

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{name: shape}, without reading weights."""
        return {
            name: tuple(stored_weight(self._patcher, key).shape) for name, key in self._keys.items()
        }

    @property
    def bytes_to_run(self) -> int:
        """About how much memory the encoders take in float32, with what they compute."""
        return min(RESIDENT_BYTES, 4 * sum(map(math.prod, self.shapes.values()))) + RESIDENT_BYTES

    def keys(self) -> Iterator[str]:
        return iter(self._keys)

    def __getitem__(self, key: str) -> Tensor:
        return effective_weight(self._patcher, self._keys[key], self._device)
