"""From sockets to an erased MODEL: the engine between ComfyUI's text encoder and ComfyUI's patches.

    SPEED Erase, Rerun Recipe -> `erase_output` -> `run_erase` -> engine -> `apply_erasure`

This module loads the engine, so the nodes import it when they run.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..speed_ops.erase import erase
from ..speed_ops.erasure import Erasure, at_strength
from ..speed_ops.errors import Notice
from ..speed_ops.files.tensors import tensors_hash
from ..speed_ops.inputs import INPUT_TITLES, TOKENS
from ..speed_ops.job import Job, check_strength
from ..speed_ops.recipe import recipe_of
from .host.patching import rounding_notes, with_edits
from .host.progress import Workplace, comfy_workplace, outside_inference_mode, stoppable
from .host.weights import effective_weight
from .host.wiring import Wired, wire
from .previous_erasures import held_rows, notes_on, remember

_RECENT = 4
_recent: OrderedDict[str, Erasure] = OrderedDict()
"""The last erasures by a hash of what they depend on: another strength computes no edit again."""


def ram_usage(erasure: Erasure) -> int:
    """Bytes held by an erasure."""
    return sum(edit.up.nbytes + edit.down.nbytes for edit in erasure.edits.values())


# ComfyUI's cache calls this method of node outputs when memory runs short.
Erasure.get_ram_usage = ram_usage  # type: ignore[attr-defined]


@outside_inference_mode
def run_erase(
    model: Any, clip: Any, job: Job, strength: float, hidden: Any = None
) -> tuple[Any, Erasure]:
    """The erased clone and its erasure at the given strength.

    Args:
        model: ComfyUI's MODEL.
        clip: ComfyUI's CLIP.
        job: What to erase and how.
        strength: Factor on the edit.
        hidden: Hidden inputs of the node that shows progress.
    """
    strength = check_strength(strength)
    recipe_of(job, strength=strength, clip_skip=clip.layer_idx).check_size()
    workplace = comfy_workplace()
    return workplace.run(lambda _: _erase(model, clip, job, strength, hidden, workplace))


def _erase(
    model: Any, clip: Any, job: Job, strength: float, hidden: Any, workplace: Workplace
) -> tuple[Any, Erasure]:
    """`run_erase` at a workplace."""
    with wire(model, clip, job.settings.layers, job.concepts, hidden, workplace) as wired:
        editable, reader, progress = wired
        held = held_rows(model, job.concepts, wired)
        base = _base_hash(model, wired, job)
        key = _job_key(wired, job, held, base)
        is_recent = key in _recent
        if not is_recent:
            erasure = stoppable(
                lambda: erase(
                    *(job, editable, reader),
                    hold=held,
                    workplace=workplace,
                    progress=progress,
                    announce=progress.announce,
                ),
                lambda: progress.computes,
            )
            rows = {name: row_set.without_kept() for name, row_set in erasure.rows.items()}
            _recent[key] = replace(erasure, rows=rows)
        _recent.move_to_end(key)
        erasure = workplace.run(
            lambda device: at_strength(_recent[key], strength, editable, progress, device)
        )
    while len(_recent) > _RECENT:
        _recent.popitem(last=False)
    recipe = replace(
        recipe_of(job, strength=strength, clip_skip=clip.layer_idx),
        family=editable.architecture.name,
        base_hash=f"layers:{base}",
        encoder_hash=reader.encoder.fingerprint,
    )
    notes = [*erasure.notes, *notes_on(model, held.get(TOKENS))]
    if is_recent:
        notes.append(
            Notice("Only the strength changed, so SPEED reused the edit.", code="edit_reused")
        )
    notes += [*_unread_notes(wired, job), *rounding_notes(model, erasure.edits, workplace)]
    notes += [*workplace.notes, *reader.encoder.notes, reader.cache.problem if reader.cache else ""]
    notes.append(editable.architecture.note)
    erasure = replace(erasure, recipe=recipe, notes=tuple(filter(None, notes)))
    return apply_erasure(model, erasure), erasure


@outside_inference_mode
def apply_erasure(model: Any, erasure: Erasure) -> Any:
    """A clone that has the erasure and remembers it; at strength 0 the model itself."""
    if erasure.strength == 0:
        return model
    clone = with_edits(model, erasure.edits, erasure.strength)
    remember(clone, erasure)
    return clone


def _unread_notes(wired: Wired, job: Job) -> Iterator[str]:
    for name, layers in wired.model.inputs.items():
        if layers and not wired.reader.width_of(name) and job.settings.edits_input(name):
            yield Notice(
                f"{INPUT_TITLES[name]} stays unedited. Connect the text encoder that it reads.",
                code="input_unedited",
                input=name,
            )


def _base_hash(patcher: Any, wired: Wired, job: Job) -> str:
    """Hash of all weights that the edit depends on. They are read on the CPU, so that what is
    offloaded does not go to the device to be hashed, and every device gives the same hash.
    """
    model = wired.model
    keys = [layer.canonical for layer in model.layers if job.settings.edits_input(layer.text_input)]
    layers = tensors_hash((key, effective_weight(patcher, key)) for key in keys)
    if model.text_part is None:
        return layers
    return hashlib.sha256(f"{layers} {model.text_part.fingerprint}".encode()).hexdigest()


def _job_key(wired: Wired, job: Job, held: Mapping[str, Any], base: str) -> str:
    """`held`: {text input: rows of earlier targets}; `base`: hash of the weights."""
    reader = wired.reader
    digest = hashlib.sha256(
        f"{base} {reader.encoder.fingerprint} {job.settings!r} {job.plan!r}".encode()
    )
    for concept in job.concepts:
        digest.update(f"{reader.stored_as(concept.as_line())}\0{concept.kind}\n".encode())
    for index, name in enumerate(job.retain.names):
        digest.update(f"{reader.stored_as(name)}\0{job.retain.kind_of_name(index, '')}\n".encode())
    for name, rows in held.items():
        digest.update(tensors_hash([(name, rows.values)]).encode())
    return digest.hexdigest()
