"""How text becomes embeddings: what a model file alone does not say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..architectures import Architecture
from ..files.hashing import encoder_hash
from ..files.text_encoders import EncoderFiles
from ..text.cached_encoder import CachedEncoder
from ..text.clip_encoder import ClipTextEncoder
from ..text.embedding_cache import EmbeddingCache
from ..text.encoder import TextEncoder
from ..text.joined_encoder import JoinedTextEncoder, Part
from ..text.t5_encoder import T5TextEncoder
from .model_source import ModelSource
from .tokenizers import clip_words, t5_words


@dataclass(frozen=True)
class Reading:
    """Settings of the text side."""

    clip_skip: int | None = None
    tokenizer: Path | None = None
    text_encoders: tuple[Path, ...] = ()
    """Other files that hold text encoders; what they do not hold is looked for in the model's own."""
    cache: EmbeddingCache | None = None

    def encoder(self, source: ModelSource) -> CachedEncoder:
        """The encoder of a model, read in this way."""
        files = source.encoder_files(self.text_encoders)
        return CachedEncoder(self._plain(source.architecture, files), self.cache)

    def encoder_hash(self, source: ModelSource) -> str:
        """Of the text encoders that are read."""
        return encoder_hash(source.encoder_files(self.text_encoders), source.architecture)

    def _plain(self, family: Architecture, files: EncoderFiles) -> TextEncoder:
        parts: list[Part] = []
        beside = [row for row in files.found if not row.below]
        if beside:
            clip = ClipTextEncoder(files, beside, clip_words(self.tokenizer, files.holders), self.clip_skip)
            parts.append(Part(clip, family.columns(beside[0].name).start))
        for row in files.found:
            if row.below:
                t5 = T5TextEncoder(files, row, t5_words(self.tokenizer, files.holders), self.clip_skip)
                parts.append(Part(t5))
        if family.entry is None or family.encoders == files.found[:1]:
            return parts[0].encoder
        return JoinedTextEncoder(parts, family.context_width)
