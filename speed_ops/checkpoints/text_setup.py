"""How text becomes embeddings: what a model file alone does not define, what a user should know
about it before the long work, and what it costs a worker.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..encoders.cache import CachedEncoder, EmbeddingCache
from ..encoders.clip import ClipTextEncoder
from ..encoders.encoder import EncoderPart, JoinedTextEncoder, TextEncoder, Workplace
from ..encoders.language_model import language_model_encoder
from ..encoders.tokenizers import clip_tokenizer
from ..encoders.tower import RESIDENT_BYTES
from ..errors import Notice
from ..inputs import INPUT_TITLES, POOLED
from ..job import Job
from ..text.retain_set import drop_targets
from .source import EncoderFiles, ModelSource, encoder_hash

MANY_TEXTS = 300
"""More texts than this are worth a warning where an encoder of billions of parameters reads each of
them at full length.
"""
BASE_MEMORY = 1_000_000_000
"""Bytes a worker takes for any model: Python, torch and transformers, rows, and one layer at a
time. Generous: with it SDXL asks for 2.6 GB, and its measured peak is 1.45 GB
(docs/research/benchmarks.md)."""
LARGE_ENCODER = 6
"""A text encoder that is not held whole takes its size in float32 divided by this, at most (see
`RESIDENT_BYTES`).
"""
SAMPLES = 6
SAMPLE_BYTES = 4096
"""How many of an encoder's matrices are sampled, and how many bytes of each: training or merging
changes all of them.
"""


@dataclass(frozen=True)
class TextSetup:
    """How text becomes embeddings: what a model file alone does not define."""

    clip_skip: int | None = None
    tokenizer: Path | None = None
    text_encoders: tuple[Path, ...] = ()
    """Other files that hold text encoders; the others are looked for in the model's own file."""
    embeddings: tuple[Path, ...] = ()
    """Files of textual inversions that concepts may name."""
    cache: EmbeddingCache | None = None
    device: str = "cpu"
    """Where text is encoded and the edit is computed, as torch calls it."""

    def portable(self) -> TextSetup:
        """The same for another machine, with the same files and a cache of its own."""
        return replace(
            self,
            tokenizer=self.tokenizer.absolute() if self.tokenizer else None,
            text_encoders=tuple(path.absolute() for path in self.text_encoders),
            embeddings=tuple(path.absolute() for path in self.embeddings),
            cache=None,
        )

    def workplace(self) -> Workplace:
        """The device, for one model: if its memory runs out, the CPU goes on."""
        return Workplace(self.device)

    def encoder(self, source: ModelSource, workplace: Workplace | None = None) -> CachedEncoder:
        """The encoder of a model, read in this way; `workplace`: where it runs."""
        files = source.encoder_files(self.text_encoders)
        plain = self._plain(source, files, workplace or self.workplace())
        return CachedEncoder(plain, self.cache, source.text_part())

    def encoder_hash(self, source: ModelSource) -> str:
        """Hash of the text encoders that are read."""
        return encoder_hash(source.encoder_files(self.text_encoders), source.architecture)

    def _plain(self, source: ModelSource, files: EncoderFiles, workplace: Workplace) -> TextEncoder:
        family = source.architecture
        parts: list[EncoderPart] = []
        second = family.second_input
        column = second.first_column(files.second[0].name) if second and files.second else 0
        clips = [row for row in files.available if row.appends == "columns"]
        if clips or files.second:
            words = clip_tokenizer(self.tokenizer, files.holders)
            # Where no rows of CLIP are read, clip skip is not meant for it.
            skip = self.clip_skip if clips else None
            rows, second_rows = clips or files.second, files.second
            clip = ClipTextEncoder(
                files, rows, words, skip, workplace.device, second_rows, self.embeddings
            )
            clip.workplace = workplace
            start = family.first_column(clips[0].name) if clips else 0
            parts.append(EncoderPart(clip, start, column, rows_are_read=bool(clips)))
        for row in files.available:
            if row.appends == "rows":
                encoder = language_model_encoder(
                    *(files, row, self.tokenizer, files.holders, self.clip_skip, workplace.device)
                )
                encoder.workplace = workplace
                parts.append(EncoderPart(encoder))
        if len(parts) == 1 and parts[0].encoder.width == family.context_width:
            return parts[0].encoder
        return JoinedTextEncoder(parts, family.context_width, second.text_width if second else 0)


def before_starting(source: ModelSource, job: Job, text: TextSetup) -> list[str]:
    """What a user should know before the long work: what is missing, and how much text a slow
    encoder has to read.

    Args:
        source: The model.
        job: What to erase.
        text: How text becomes embeddings.
    """
    notes = [*missing_encoders(source, text), *_unread_input(source, job, text)]
    encoders = source.encoder_files(text.text_encoders).available
    slow = [
        encoder.title
        for encoder in encoders
        if encoder.appends == "rows" and encoder.padding == "informative"
    ]
    count = _max_texts(job)
    if slow and count > MANY_TEXTS:
        once = "" if text.cache is None else " the first time (then they are cached)"
        advice = "keep-fewer-names" if job.settings.effort == "fast" else "less-effort"
        sentence = (
            f"{slow[0]} encodes up to {count} texts at full length, which takes hours on a"
            f" CPU{once}."
        )
        notes.append(Notice(sentence, advice=advice))
    return notes


def missing_encoders(source: ModelSource, text: TextSetup) -> list[str]:
    """A sentence where the family can do without an encoder, and does here."""
    missing = source.encoder_files(text.text_encoders).missing
    if not missing:
        return []
    titles = " and ".join(f"no {encoder.title}" for encoder in missing)
    were, pronoun = ("were", "them") if len(missing) > 1 else ("was", "it")
    sentence = (
        f"N{titles[1:]} {were} found. Text is encoded without {pronoun}, as ComfyUI would do;"
        f" the result applies only to prompts encoded without {pronoun}."
    )
    return [Notice(sentence, advice="give-text-encoder")]


def _unread_input(source: ModelSource, job: Job, text: TextSetup) -> list[str]:
    """A sentence where no encoder here can encode the second text input: its layer stays as it
    is.
    """
    second = source.architecture.second_input
    readable = text.encoder(source).width_of(POOLED) > 0
    if second is None or not job.settings.edits_input(POOLED) or readable:
        return []
    available = source.encoder_files(text.text_encoders).second
    if available:  # a diffusers folder without the last blocks, which the rows do without
        titles = " and ".join(encoder.title for encoder in available)
        reason = f"{titles} lacks its last layers here"
    else:
        reason = f"no {' or '.join(encoder.title for encoder in second.encoders)} was found"
    sentence = f"{INPUT_TITLES[POOLED]} stays unedited, because {reason}."
    return [Notice(sentence, advice="give-text-encoder")]


def _max_texts(job: Job) -> int:
    """Upper bound on the prompts to encode: kept names, the most endangered of them in context, the
    concepts and their anchors.
    """
    plan, usable = job.plan, len(drop_targets(job.retain, job.concepts)[0].names)
    names = min(plan.considered, usable)
    phrases = sum(len(concept.phrases) + 1 for concept in job.concepts)
    each = 1 + plan.templates + plan.probe_templates + plan.trial_templates
    return names + plan.prompts(names, job.settings.context_names) + phrases * each


@dataclass(frozen=True)
class Survey:
    """What the headers of one model show before any work."""

    memory: int
    """Bytes that a worker needs for it."""
    encoder: str
    """The same for models that have the same text encoder, as far as samples show."""
    size: int
    """Bytes of the model."""
    family: str
    """The family's title."""


ReadBytes = Callable[[Path, int, int], bytes]
"""Bytes of a file from one offset to another."""


def survey(path: Path, text: TextSetup, read: ReadBytes, label: str = "") -> Survey:
    """Reads headers, and through `read` a few kilobytes of the text encoder.

    Args:
        path: The model, or a local file of the same size with its header.
        text: How text becomes embeddings.
        read: Reads bytes of a file.
        label: URL or path of the model, for messages.
    """
    source = ModelSource.open(path, label)
    files = source.encoder_files(text.text_encoders)
    return Survey(
        _memory_for(files),
        _sample_of(files, read),
        source.checkpoint.size,
        source.architecture.title,
    )


def _memory_for(files: EncoderFiles) -> int:
    """The model itself is read and written layer by layer, and counts for little."""
    total, shapes = BASE_MEMORY, files.shapes
    for row in files.available:
        inside = [shapes[name] for name in shapes if name.startswith(f"{row.folder}/")]
        size = 4 * sum(math.prod(shape) for shape in inside)
        total += size if size <= RESIDENT_BYTES else max(RESIDENT_BYTES, size // LARGE_ENCODER)
    return total


def _sample_of(files: EncoderFiles, read: ReadBytes) -> str:
    """Hash of the layout of text encoders and of some of their weights."""
    digest, shapes = hashlib.sha256(), files.shapes
    for name in sorted(shapes):
        digest.update(f"{name} {shapes[name]}\n".encode())
    names = sorted(name for name, shape in shapes.items() if len(shape) == 2)
    for name in names[:: max(1, len(names) // SAMPLES)]:
        holder, key = files.locations[name]
        shard, start, stop = holder.span(key)
        digest.update(read(shard.file, start, min(start + SAMPLE_BYTES, stop)))
    return digest.hexdigest()
