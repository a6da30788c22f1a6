"""From sockets to an erased MODEL: the engine's pipeline between ComfyUI's encoder and ComfyUI's patches."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import torch

from ..speed_ops.errors import InputError
from ..speed_ops.files.hashing import tensors_hash
from ..speed_ops.pipeline import Job, Outcome, erase_model
from ..speed_ops.recipe_job import recipe_of
from ..speed_ops.rows import Rows
from ..speed_ops.settings import EraseSettings
from ..speed_ops.text.cached_encoder import CachedEncoder
from ..speed_ops.text.embedding_cache import EmbeddingCache
from ..speed_ops.text.kinds import kind_of
from ..speed_ops.text.phrases import Concept
from ..speed_ops.text.retain import RetainSet, builtin_retain, union
from .earlier import held_rows, notes_on, remember
from .host.patching import rounding_note, with_edits
from .host.progress import HostProgress
from .host.stopping import stoppable
from .host.text import HostTextEncoder
from .host.weights import HostModel, open_model
from .host_erasure import HostErasure

_KEPT = 4
_solved: OrderedDict[str, Outcome] = OrderedDict()
"""The last few outcomes by content of everything they depend on: changing only the strength solves nothing again."""

Result = TypeVar("Result")


def outside_inference_mode(function: Callable[..., Result]) -> Callable[..., Result]:
    """Nodes run in inference mode, whose tensors cannot be used freely afterwards; results should be ordinary ones."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Result:
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return wrapped


@dataclass(frozen=True, eq=False)
class Wired:
    """MODEL and CLIP, checked against each other."""

    model: HostModel
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


def job_from(concepts: Sequence[Concept], retain: RetainSet | None, settings: EraseSettings) -> Job:
    """What the sockets ask for; without a retain set, the built-in ones for the concepts' kinds are used."""
    if not len(concepts):
        raise InputError("There is no concept to erase: write one name a line in ConceptList.")
    if retain is None:
        names = dict.fromkeys(name for concept in concepts for name in kind_of(concept.kind).retain_sets)
        retain = union(builtin_retain(name) for name in names)
    return Job.of(tuple(concepts), retain, settings)


@outside_inference_mode
def erase(model: Any, clip: Any, job: Job, strength: float) -> tuple[Any, HostErasure]:
    """The erased clone and what is known about it."""
    with wire(model, clip, job.settings) as wired:
        held = held_rows(model, job.concepts, wired.reader, wired.progress)
        base = tensors_hash(wired.model.weights.items())
        outcome, again = _solve_once(wired, job, held, base)
    edits = dict(outcome.erasure.edits)
    notes = notes_on(model, held)
    notes += ["Solved before with the same inputs: taken from memory."] if again else []
    notes += [rounding_note(model, edits), *wired.encoder.notes, wired.cache.problem]
    result = HostErasure(
        edits=edits,
        architecture=wired.model.architecture,
        layers=wired.model.layers,
        strength=strength,
        concepts=job.concepts,
        certificate=outcome.erasure.certificate,
        recipe=recipe_of(
            job,
            strength=strength,
            clip_skip=clip.layer_idx,
            family=wired.model.architecture.name,
            base_hash=f"layers:{base}",
            encoder_hash=wired.encoder.fingerprint,
        ),
        targets=outcome.erasure.targets,
        report="\n".join(filter(None, [outcome.text(), *notes])),
    )
    return apply(model, result, strength), result


@outside_inference_mode
def apply(model: Any, erasure: HostErasure, strength: float) -> Any:
    """A clone with the erasure on it, which remembers what was erased; strength 0 is the model itself."""
    if strength == 0:
        return model
    clone = with_edits(model, erasure.edits, strength)
    remember(clone, model, erasure)
    return clone


def _solve_once(wired: Wired, job: Job, held: Rows | None, base: str) -> tuple[Outcome, bool]:
    key = _job_key(wired, job, held, base)
    if key in _solved:
        _solved.move_to_end(key)
        return _solved[key], True
    progress, weights = wired.progress, wired.model.weights
    outcome = stoppable(
        lambda: erase_model(wired.reader, weights, job, hold=held, progress=progress), lambda: progress.computes
    )
    # The retain rows are the bulk and are not needed any more.
    nothing = Rows(outcome.gathered.retain.values[:0].clone(), (), (), ())
    _solved[key] = replace(outcome, gathered=replace(outcome.gathered, retain=nothing))
    while len(_solved) > _KEPT:
        _solved.popitem(last=False)
    return _solved[key], False


def _job_key(wired: Wired, job: Job, held: Rows | None, base: str) -> str:
    total = hashlib.sha256(f"{base} {wired.encoder.fingerprint} {job.settings!r} {job.plan!r}".encode())
    for concept in job.concepts:
        total.update(f"{concept.as_line()}\0{concept.kind}\n".encode())
    for index, name in enumerate(job.retain.names):
        total.update(f"{name}\0{job.retain.kind_of_name(index, '')}\n".encode())
    if held is not None:
        total.update(tensors_hash([("held", held.values)]).encode())
    return total.hexdigest()
