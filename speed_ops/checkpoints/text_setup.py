"""How text becomes embeddings: what a model file alone does not say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..encoders.cache import CachedEncoder, EmbeddingCache
from ..encoders.clip import ClipTextEncoder
from ..encoders.encoder import EncoderPart, JoinedTextEncoder, PairedTextEncoder, TextEncoder
from ..encoders.t5 import T5TextEncoder
from ..encoders.tokenizers import clip_tokenizer, t5_tokenizer
from ..models.architecture import Architecture
from .encoder_files import EncoderFiles, encoder_hash
from .source import ModelSource


@dataclass(frozen=True)
class TextSetup:
    """How text becomes embeddings: what a model file alone does not say."""

    clip_skip: int | None = None
    tokenizer: Path | None = None
    text_encoders: tuple[Path, ...] = ()
    """Other files that hold text encoders; what they do not hold is looked for in the model's
    own.
    """
    cache: EmbeddingCache | None = None
    device: str = "cpu"
    """Where text is encoded and the edit is computed, as torch calls it."""

    def portable(self) -> TextSetup:
        """The same for another machine: one with the same files, in another folder, and with a
        cache of its own.
        """
        tokenizer = self.tokenizer.absolute() if self.tokenizer else None
        return replace(
            self,
            tokenizer=tokenizer,
            text_encoders=tuple(path.absolute() for path in self.text_encoders),
            cache=None,
        )

    def encoder(self, source: ModelSource) -> CachedEncoder:
        """The encoder of a model, read in this way."""
        files = source.encoder_files(self.text_encoders)
        return CachedEncoder(self._plain(source.architecture, files), self.cache)

    def encoder_hash(self, source: ModelSource) -> str:
        """Of the text encoders that are read."""
        return encoder_hash(source.encoder_files(self.text_encoders), source.architecture)

    def _plain(self, family: Architecture, files: EncoderFiles) -> TextEncoder:
        parts: list[EncoderPart] = []
        second = family.second_input
        clips = [row for row in files.available if row.appends == "columns"]
        if clips:
            words = clip_tokenizer(self.tokenizer, files.holders)
            clip = ClipTextEncoder(files, clips, words, self.clip_skip, self.device, files.second)
            column = second.first_column(files.second[0].name) if second and files.second else 0
            parts.append(EncoderPart(clip, family.columns(clips[0].name).start, column))
        for row in files.available:
            if row.appends == "rows":
                pieces = t5_tokenizer(self.tokenizer, files.holders)
                t5 = T5TextEncoder(files, row, pieces, self.clip_skip, self.device)
                parts.append(EncoderPart(t5))
        if family.entry is None:
            return parts[0].encoder
        if family.encoders != files.available[:1]:
            return JoinedTextEncoder(
                parts, family.context_width, second.text_width if second else 0
            )
        if not files.second:
            return parts[0].encoder
        # The model reads the others for its second text input alone.
        words = clip_tokenizer(self.tokenizer, files.holders)
        clip = ClipTextEncoder(files, files.second, words, None, self.device, files.second)
        return PairedTextEncoder(parts[0].encoder, clip)
