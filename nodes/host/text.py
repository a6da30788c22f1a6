"""CLIP encoders of a CLIP object: what the model is given, clip skip and CLIP LoRAs included.

CLIP's rows do not depend on what follows them, so names are encoded without padding. ComfyUI's
public call cannot do that; the engine's own encoder can, over the weights that are in effect in the
CLIP object. The two are compared once for each CLIP, and where they differ (text encoders kept in
float32, modules changed by other nodes) the public call is used for everything; so it is for texts
that name a textual inversion.
"""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import comfy.model_management
import torch
from comfy.sd1_clip import SDTokenizer
from torch import Tensor

from ...speed_ops.encoders.clip import ClipTextEncoder
from ...speed_ops.encoders.encoder import RowsAndPooled
from ...speed_ops.encoders.tokenizers import END_TOKEN, INVERSION, START_TOKEN, ClipTokenizer
from ...speed_ops.errors import InputError, SpeedError
from ...speed_ops.models.architecture import FamilyEncoder
from ...speed_ops.progress import Progress, part_of
from ...speed_ops.text.tokens import long_name
from .progress import check_stop
from .weights import effective_weight, stored_weight

_PROBE = "a photo of d'Artagnan's dog, 1984"
_AGREES_TO = 1e-4
"""Largest difference between trimmed and public rows, as a share of the largest value; real ones
differ by 3e-6.
"""
_FIRST_CHUNK = 256
_LEAST_CHUNK = 4
_PUBLIC_BATCH = 8
_known: WeakKeyDictionary[Any, dict[Any, tuple[bool, str, str]]] = WeakKeyDictionary()
"""Text encoder module -> {(patches, clip skip): whether trimmed encoding agrees, fingerprint, that
of pooled ones}: hashing takes time."""


def literal(text: str) -> str:
    """Text that ComfyUI's tokenizer reads as it stands: no weights, no textual inversion."""
    return _unweighted(text).replace("embedding:", "embedding :")


def _unweighted(text: str) -> str:
    return text.replace("(", "\\(").replace(")", "\\)")


def token_key(name: str) -> str:
    """Under which name ComfyUI's tokenizers give an encoder its tokens."""
    return name.removeprefix("clip_")


_MOST_TOKENS = 75
"""What CLIP takes between its start and end token."""


@lru_cache(maxsize=1)
def _clip_tokenizer() -> Any:
    return SDTokenizer()


def too_long(name: str) -> str:
    """Why CLIP cannot take a name, in a sentence; empty where it can."""
    if len(name) <= _MOST_TOKENS:  # a token is at least one character
        return ""
    tokens = [
        pair
        for section in _clip_tokenizer().tokenize_with_weights(literal(name))
        for pair in section
    ]
    count = sum(int(pair[0]) not in (START_TOKEN, END_TOKEN) for pair in tokens)
    return "" if count <= _MOST_TOKENS else long_name(name, count, _MOST_TOKENS)


_AFTER_INVERSION = re.compile(r"(?:'s|[^\w'])+$")
"""What a prompt may put behind a name without a space; ComfyUI would take it for a part of the
file's name.
"""


class Inversions:
    """Textual inversions in texts (`embedding:name`), as ComfyUI's tokenizer finds them. All else
    is literal.
    """

    def __init__(self, clip: Any, widths: Mapping[str, int]) -> None:
        """`widths`: {encoder, under its name in ComfyUI's tokens: width} of those that must be able
        to read one.
        """
        self._clip, self._widths = clip, widths
        self._known: dict[str, dict[str, list[Tensor]]] = {}
        """{name: vectors}: ComfyUI reads the file anew each time, and warns each time that there is
        none.
        """

    def typed(self, text: str) -> str:
        """What a user would type into ComfyUI to mean this text."""
        out, done = "", 0
        for found in INVERSION.finditer(text):
            if name := self._file_in(found.group(1)):
                out += f"{literal(text[done : found.start()])}embedding:{_unweighted(name)} "
                done = found.start(1) + len(name)
        return out + literal(text[done:])

    def check(self, texts: Iterable[str]) -> None:
        """Refuses an inversion that is not there, or was made for other text encoders."""
        for name in (found.group(1) for text in texts for found in INVERSION.finditer(text)):
            vectors = self._vectors(name)
            if not any(vectors.values()):
                raise InputError(
                    f"There is no textual inversion '{name}' in ComfyUI's folder of embeddings: put"
                    f" it there, or write 'embedding :{name}' if you mean the words."
                )
            shapes = {
                key: {tuple(vector.shape) for vector in part} for key, part in vectors.items()
            }
            if shapes != {key: {(width,)} for key, width in self._widths.items()}:
                raise InputError(
                    f"The textual inversion '{name}' was made for another model: its vectors do not"
                    " fit the text encoders of this one."
                )

    def stored_as(self, text: str) -> str:
        """The text and, where it names inversions, what is in their files."""
        names = [self._file_in(found.group(1)) for found in INVERSION.finditer(text)]
        parts = [part for name in names if name for part in self._vectors(name).values()]
        ids = " ".join(str(vector_id(vector)) for part in parts for vector in part)
        return f"{text}\0{ids}" if ids else text

    def _file_in(self, word: str) -> str:
        """The part of a word that names an inversion; empty where none does."""
        shorter = _AFTER_INVERSION.sub("", word)
        return next(
            (
                name
                for name in dict.fromkeys((word, shorter))
                if name and any(self._vectors(name).values())
            ),
            "",
        )

    def _vectors(self, name: str) -> dict[str, list[Tensor]]:
        """{encoder: the vectors that ComfyUI reads for it}"""
        if name not in self._known:
            tokens = self._clip.tokenize(f"embedding:{_unweighted(name)}")
            self._known[name] = {
                key: [
                    pair[0]
                    for section in tokens[key]
                    for pair in section
                    if isinstance(pair[0], Tensor)
                ]
                for key in self._widths
            }
        return self._known[name]


def vector_id(vector: Tensor) -> int:
    """A number for a vector that stands for a token, by its values; tokens have numbers from 0
    on.
    """
    return -1 - int.from_bytes(
        hashlib.sha256(vector.detach().float().numpy().tobytes()).digest()[:6], "big"
    )


def ids_in(section: Iterable[Any]) -> list[int]:
    """Ids of ComfyUI's tokens, some of which may be vectors."""
    return [vector_id(pair[0]) if isinstance(pair[0], Tensor) else int(pair[0]) for pair in section]


class InChunks(RowsAndPooled):
    """Encodes as many texts at once as memory allows: fewer after running out of it, then on the
    CPU.
    """

    def __init__(self, clip: Any) -> None:
        self._clip = clip
        self.notes: list[str] = []
        """What happened on the way that a report should mention."""
        self._chunk, self._on_cpu = _FIRST_CHUNK, False
        self.pooled_width = 0
        """Width of the pooled embedding that it gives besides the rows; 0: none."""
        self.pooled_fingerprint = ""
        """Like that of the rows, of the pooled embeddings."""

    @abstractmethod
    def _run(
        self,
        prompts: Sequence[str],
        lengths: Sequence[int],
        progress: Progress | None,
        *,
        pools: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """First `lengths[i]` rows of each prompt, float32 on the CPU, and with `pools` each one's
        pooled embedding.
        """

    def _moved(self) -> None:
        """Called when the text encoder is to run on the CPU from now on."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Gives memory back; the next call takes it again."""

    def _encoded(
        self,
        prompts: Sequence[str],
        lengths: Sequence[int],
        progress: Progress | None,
        *,
        pools: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        out: list[Tensor] = []
        pooled: list[Tensor] = []
        while len(out) < len(prompts):
            part = slice(len(out), len(out) + self._chunk)
            report = part_of(progress, "encode", len(out), len(prompts))
            try:
                rows, whole = self._run(prompts[part], lengths[part], report, pools=pools)
            except comfy.model_management.OOM_EXCEPTION:
                self._after_running_out()
                continue
            out += rows
            pooled += whole
        return out, pooled

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
                "There is not enough memory to encode even four texts at a time on the CPU: free"
                " some memory."
            )
        self._clip = self._clip.clone()
        self._clip.patcher.load_device = torch.device("cpu")
        self._on_cpu, self._chunk = True, _FIRST_CHUNK
        self._moved()
        comfy.model_management.soft_empty_cache()
        self._note("The GPU ran out of memory: texts were encoded on the CPU.")

    def _note(self, sentence: str) -> None:
        self.notes = [note for note in self.notes if not note.startswith("The GPU")] + [sentence]


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
        """`rows`: those whose columns stand side by side; the others of the CLIP object are left
        out.

        `pooled`: those of them whose pooled embeddings the model reads, from `pooled_column` on.
        `rows_are_read`: False where that is all it reads of them, as Flux does.
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
        known = _known.setdefault(clip.cond_stage_model, {})
        state = (str(clip.patcher.patches_uuid), clip.layer_idx, str(clip.tokenizer_options))
        if state not in known:
            known[state] = self._examined()
        self._agrees, self.fingerprint, self.pooled_fingerprint = known[state]
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
        """Gives the memory of the engine's own copy of the text encoder back at once; the next call
        takes it again.
        """
        self._trimmed.close()

    def _moved(self) -> None:
        self._trimmed.close()
        self._trimmed = self._engine_encoder()

    def _engine_encoder(self) -> ClipTextEncoder:
        clip = self._clip
        tensors = _EncoderTensors(clip, self._rows)
        skip, device = clip.layer_idx if self._rows_are_read else None, clip.patcher.load_device
        return ClipTextEncoder(tensors, self._rows, self._tokenizer, skip, device, self._pooled)

    def _examined(self) -> tuple[bool, str, str]:
        try:
            return self._examine()
        except comfy.model_management.OOM_EXCEPTION:
            self._move_to_cpu()
            return self._examine()

    def _examine(self) -> tuple[bool, str, str]:
        """Whether trimmed rows are the public ones, and the fingerprints of rows and pooled
        embeddings.
        """
        length = len(self.token_ids(_PROBE)) + 2 if self._rows_are_read else 0
        pools = self.pooled_width > 0
        whole = [self.context_length if self._rows_are_read else 0]
        public, pooled = self._public([_PROBE], whole, None, pools=pools)
        own: list[Tensor] = []
        if pools:
            trimmed, own = self._trimmed.encode_both([_PROBE], [length])
        else:
            trimmed = self._trimmed.encode([_PROBE], [length])
        pairs = [
            *zip([rows[:length] for rows in public], trimmed, strict=True),
            *zip(pooled, own, strict=True),
        ]
        own_key = self._trimmed.pooled_fingerprint if pools else ""
        if all(_alike(*pair) for pair in pairs):
            return True, self._trimmed.fingerprint, own_key
        digest = hashlib.sha256(self._trimmed.fingerprint.encode())
        for part in (*public, *pooled):
            digest.update(part.numpy().tobytes())
        return False, f"public {digest.hexdigest()}", f"public {digest.hexdigest()} {own_key}"

    def _public(
        self,
        prompts: Sequence[str],
        lengths: Sequence[int],
        progress: Progress | None,
        *,
        pools: bool = False,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Through ComfyUI's own call: whole padded prompts, several in one go, or one where it has
        to pool it, too.
        """
        out: list[Tensor] = []
        pooled: list[Tensor] = []
        batch = 1 if pools else _PUBLIC_BATCH
        for start in range(0, len(prompts), batch):
            if progress is not None:
                progress("encode", start, len(prompts))
            part = prompts[start : start + batch]
            found, whole = self._clip.encode_from_tokens(
                self._public_tokens(part), return_pooled=True
            )
            out += self._own_rows(found, len(part), lengths[start : start + batch])
            columns = slice(self._pooled_column, self._pooled_column + self.pooled_width)
            pooled += [whole[0, columns].float().cpu()] if pools else []
        return out, pooled

    def _public_tokens(self, prompts: Sequence[str]) -> dict[str, list[Any]]:
        """One section a prompt for our own encoders; the others get none, or one short text where
        they need one.
        """
        own = {token_key(row.name) for row in self._rows}
        tokens: dict[str, list[Any]] = {}
        for prompt in prompts:
            for name, sections in self._clip.tokenize(self._inversions.typed(prompt)).items():
                tokens.setdefault(name, []).extend(sections[:1] if name in own else [])
        if not self._rows_are_read:
            tokens |= {
                name: part[:1] for name, part in self._clip.tokenize("").items() if name not in own
            }
        return tokens

    def _own_rows(self, found: Tensor, count: int, lengths: Sequence[int]) -> list[Tensor]:
        if not self._rows_are_read:
            return [torch.empty(0, self.width) for _ in lengths]
        columns = slice(self._first_column, self._first_column + self.width)
        # Encoders of another kind have their rows below.
        rows = (
            found[0, : count * self.context_length, columns]
            .float()
            .cpu()
            .reshape(count, self.context_length, -1)
        )
        return [row[:length].clone() for row, length in zip(rows, lengths, strict=True)]


def _alike(public: Tensor, trimmed: Tensor) -> bool:
    if public.shape != trimmed.shape:
        return False
    return not public.numel() or float((public - trimmed).abs().max()) <= _AGREES_TO * float(
        public.abs().max()
    )


def _tokens_of(clip: Any, name: str, inversions: Inversions) -> Callable[[str], list[int]]:
    """Text to token ids; it knows the CLIP, not the encoder, which would otherwise refer to
    itself.
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
        """By name, without reading anything: an embedding table is large."""
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
