"""From sockets to an erased MODEL: the engine between ComfyUI's text encoder and ComfyUI's
patches.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..speed_ops.encoders.cache import CachedEncoder, EmbeddingCache
from ..speed_ops.engine.rows import Rows
from ..speed_ops.engine.settings import EraseSettings
from ..speed_ops.erase import erase as erase_job
from ..speed_ops.erasure import Erasure
from ..speed_ops.files.tensors import tensors_hash
from ..speed_ops.inputs import TOKENS
from ..speed_ops.job import Job, check_strength
from ..speed_ops.model import EditableModel
from ..speed_ops.recipe import recipe_of
from ..speed_ops.strength import at_strength
from ..speed_ops.text.concept_list import Concept
from .host.patching import rounding_note, with_edits
from .host.progress import HostProgress, outside_inference_mode, stoppable
from .host.public_text import WiredText, open_inversions, open_text
from .host.weights import open_model
from .previous_erasures import held_rows, notes_on, remember

_KEPT = 4
_erased: OrderedDict[str, Erasure] = OrderedDict()
"""The last few outcomes by content of everything they depend on: changing only the strength
computes no edit again.
"""


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
    """Opens both for reading; a model of another family or a CLIP of another model is refused here.

    So is a concept that names a textual inversion which is not there. `hidden`: those inputs of the
    node that shows how far the work is.
    """
    progress = HostProgress(hidden)
    progress("fingerprint", 0, 1)
    host = open_model(model, settings.layers)
    encoder = open_text(clip, host.architecture)
    inversions = open_inversions(clip, host.architecture)
    inversions.check(name for concept in concepts for name in (*concept.phrases, concept.anchor))
    cache = EmbeddingCache()
    try:
        yield Wired(
            host,
            encoder,
            CachedEncoder(encoder, cache, host.push, inversions.stored_as),
            cache,
            progress,
        )
    finally:
        encoder.close()


@outside_inference_mode
def erase(
    model: Any, clip: Any, job: Job, strength: float, hidden: Any = None
) -> tuple[Any, Erasure]:
    """The erased clone and what is known about it, at the strength that is used."""
    strength = check_strength(strength)
    recipe = recipe_of(job, strength=strength, clip_skip=clip.layer_idx)
    recipe.check_size()
    with wire(model, clip, job.settings, job.concepts, hidden) as wired:
        held = held_rows(model, job.concepts, wired.reader, wired.model, wired.progress)
        base = _base_hash(wired.model, job.settings.pooled)
        outcome, again = _erase_once(wired, job, held, base)
        outcome = at_strength(outcome, strength, wired.model, wired.progress)
    notes = [*outcome.notes, *notes_on(model, held.get(TOKENS))]
    notes += ["The edit was not computed again: only the strength changed."] if again else []
    unread = [
        n for n, layers in wired.model.inputs.items() if layers and not wired.reader.width_of(n)
    ]
    if job.settings.pooled and unread:
        notes.append("The pooled path stays unedited: no CLIP that makes pooled text is wired in.")
    notes += [rounding_note(model, outcome.edits), *wired.encoder.notes, wired.cache.problem]
    notes += [wired.model.architecture.note]
    recipe = replace(
        recipe,
        family=wired.model.architecture.name,
        base_hash=f"layers:{base}",
        encoder_hash=wired.encoder.fingerprint,
    )
    outcome = replace(outcome, recipe=recipe, notes=tuple(filter(None, notes)))
    return apply(model, outcome), outcome


@outside_inference_mode
def apply(model: Any, outcome: Erasure) -> Any:
    """A clone with the erasure on it, which remembers what was erased; strength 0 is the model
    itself.
    """
    if outcome.strength == 0:
        return model
    clone = with_edits(model, outcome.edits, outcome.strength)
    remember(clone, model, outcome)
    return clone


def _erase_once(
    wired: Wired, job: Job, held: Mapping[str, Rows], base: str
) -> tuple[Erasure, bool]:
    key = _job_key(wired, job, held, base)
    if key in _erased:
        _erased.move_to_end(key)
        return _erased[key], True
    progress = wired.progress
    outcome = stoppable(
        lambda: erase_job(
            job, wired.model, wired.reader, hold=held, progress=progress, announce=progress.announce
        ),
        lambda: progress.computes,
    )
    rows = {name: row_set.without_kept() for name, row_set in outcome.rows.items()}
    _erased[key] = replace(outcome, rows=rows)
    while len(_erased) > _KEPT:
        _erased.popitem(last=False)
    return _erased[key], False


def _base_hash(model: EditableModel, pooled: bool) -> str:
    """Of all weights that the edit depends on."""
    layers = tensors_hash((model.stored if pooled else model.weights).items())
    return (
        layers
        if model.push is None
        else hashlib.sha256(f"{layers} {model.push.fingerprint}".encode()).hexdigest()
    )


def _job_key(wired: Wired, job: Job, held: Mapping[str, Rows], base: str) -> str:
    total = hashlib.sha256(
        f"{base} {wired.encoder.fingerprint} {job.settings!r} {job.plan!r}".encode()
    )
    for concept in job.concepts:
        total.update(f"{wired.reader.stored_as(concept.as_line())}\0{concept.kind}\n".encode())
    for index, name in enumerate(job.retain.names):
        total.update(
            f"{wired.reader.stored_as(name)}\0{job.retain.kind_of_name(index, '')}\n".encode()
        )
    for name, rows in held.items():
        total.update(tensors_hash([(name, rows.values)]).encode())
    return total.hexdigest()
