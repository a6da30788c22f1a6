"""From sockets to an erased MODEL: the engine between ComfyUI's text encoder and ComfyUI's patches."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..speed_ops.encoders.cache import CachedEncoder, EmbeddingCache
from ..speed_ops.engine.rows import Rows
from ..speed_ops.engine.settings import EraseSettings
from ..speed_ops.erase import EditableModel, Outcome, at_strength
from ..speed_ops.erase import erase as erase_job
from ..speed_ops.files.tensors import tensors_hash
from ..speed_ops.job import Job, check_storable, check_strength, recipe_of
from ..speed_ops.progress import Announce
from .earlier import held_rows, notes_on, remember
from .host.patching import rounding_note, with_edits
from .host.progress import HostProgress, outside_inference_mode, stoppable
from .host.text import HostTextEncoder
from .host.weights import open_model

_KEPT = 4
_erased: OrderedDict[str, Outcome] = OrderedDict()
"""The last few outcomes by content of everything they depend on: changing only the strength computes no edit again."""


@dataclass(frozen=True, eq=False)
class Wired:
    """MODEL and CLIP, checked against each other."""

    model: EditableModel
    encoder: HostTextEncoder
    reader: CachedEncoder
    cache: EmbeddingCache
    progress: HostProgress


@contextmanager
def wire(model: Any, clip: Any, settings: EraseSettings) -> Iterator[Wired]:
    """Opens both for reading; a model of another family or a CLIP of another model is refused here."""
    progress = HostProgress()
    progress("fingerprint", 0, 1)
    host = open_model(model, settings.layers)
    encoder = HostTextEncoder(clip, host.architecture)
    cache = EmbeddingCache()
    try:
        yield Wired(host, encoder, CachedEncoder(encoder, cache), cache, progress)
    finally:
        encoder.close()


@outside_inference_mode
def erase(model: Any, clip: Any, job: Job, strength: float, announce: Announce | None = None) -> tuple[Any, Outcome]:
    """The erased clone and what is known about it, at the strength that is used."""
    strength = check_strength(strength)
    check_storable(job)
    with wire(model, clip, job.settings) as wired:
        held = held_rows(model, job.concepts, wired.reader, wired.progress)
        base = tensors_hash(wired.model.weights.items())
        outcome, again = _erase_once(wired, job, held, base, announce)
        outcome = at_strength(outcome, strength, wired.model.weights, wired.progress)
    notes = notes_on(model, held)
    notes += ["The edit was not computed again: only the strength changed."] if again else []
    notes += [rounding_note(model, outcome.edits), *wired.encoder.notes, wired.cache.problem]
    recipe = recipe_of(
        job,
        strength=strength,
        clip_skip=clip.layer_idx,
        family=wired.model.architecture.name,
        base_hash=f"layers:{base}",
        encoder_hash=wired.encoder.fingerprint,
    )
    outcome = replace(outcome, recipe=recipe, notes=tuple(filter(None, notes)))
    return apply(model, outcome), outcome


@outside_inference_mode
def apply(model: Any, outcome: Outcome) -> Any:
    """A clone with the erasure on it, which remembers what was erased; strength 0 is the model itself."""
    if outcome.strength == 0:
        return model
    clone = with_edits(model, outcome.edits, outcome.strength)
    remember(clone, model, outcome)
    return clone


def _erase_once(
    wired: Wired, job: Job, held: Rows | None, base: str, announce: Announce | None
) -> tuple[Outcome, bool]:
    key = _job_key(wired, job, held, base)
    if key in _erased:
        _erased.move_to_end(key)
        return _erased[key], True
    progress = wired.progress
    outcome = stoppable(
        lambda: erase_job(job, wired.model, wired.reader, hold=held, progress=progress, announce=announce),
        lambda: progress.computes,
    )
    assert outcome.rows is not None
    # The kept rows are the bulk and are not needed any more.
    nothing = Rows(outcome.rows.retain.values[:0].clone(), (), (), ())
    _erased[key] = replace(outcome, rows=replace(outcome.rows, retain=nothing, held_out=None, witnesses=None))
    while len(_erased) > _KEPT:
        _erased.popitem(last=False)
    return _erased[key], False


def _job_key(wired: Wired, job: Job, held: Rows | None, base: str) -> str:
    total = hashlib.sha256(f"{base} {wired.encoder.fingerprint} {job.settings!r} {job.plan!r}".encode())
    for concept in job.concepts:
        total.update(f"{concept.as_line()}\0{concept.kind}\n".encode())
    for index, name in enumerate(job.retain.names):
        total.update(f"{name}\0{job.retain.kind_of_name(index, '')}\n".encode())
    if held is not None:
        total.update(tensors_hash([("held", held.values)]).encode())
    return total.hexdigest()
