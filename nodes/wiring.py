"""MODEL and CLIP as the engine sees them, opened for reading while a node runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..speed_ops.encoders.cache import CachedEncoder, EmbeddingCache
from ..speed_ops.engine.settings import EraseSettings
from ..speed_ops.model import EditableModel
from ..speed_ops.text.concept_list import Concept
from .host.progress import HostProgress
from .host.public_text import WiredText, open_inversions, open_text
from .host.weights import open_model


@dataclass(frozen=True, eq=False)
class Wired:
    """MODEL and CLIP, checked against each other."""

    model: EditableModel
    encoder: WiredText
    reader: CachedEncoder
    cache: EmbeddingCache
    progress: HostProgress


@contextmanager
def wire(
    model: Any,
    clip: Any,
    settings: EraseSettings,
    concepts: Sequence[Concept] = (),
    hidden: Any = None,
) -> Iterator[Wired]:
    """Opens MODEL and CLIP for reading. Refuses a family that is not supported, a CLIP of another
    model, and a concept that names a missing textual inversion.

    Args:
        model: ComfyUI's MODEL.
        clip: ComfyUI's CLIP.
        settings: They decide which layers are opened.
        concepts: Texts that will be read.
        hidden: Hidden inputs of the node that shows progress.
    """
    progress = HostProgress(hidden)
    progress("fingerprint", 0, 1)
    editable = open_model(model, settings.layers)
    encoder = open_text(clip, editable.architecture)
    inversions = open_inversions(clip, editable.architecture)
    inversions.check(name for concept in concepts for name in (*concept.phrases, concept.anchor))
    cache = EmbeddingCache()
    reader = CachedEncoder(encoder, cache, editable.push, inversions.stored_as)
    try:
        yield Wired(editable, encoder, reader, cache, progress)
    finally:
        encoder.close()
