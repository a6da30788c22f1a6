"""From sockets to an erased MODEL: the engine between ComfyUI's text encoder and ComfyUI's patches.

    SPEED Erase, SPEED Apply Recipe -> `erase_output` -> `run_erase` -> engine -> `apply_erasure`

This module loads the engine, so the nodes import it when they run.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..speed_ops.erase import erase
from ..speed_ops.erasure import Erasure, at_strength
from ..speed_ops.files.tensors import tensors_hash
from ..speed_ops.inputs import INPUT_TITLES, TOKENS
from ..speed_ops.job import Job, check_strength
from ..speed_ops.recipe import recipe_of
from .host.patching import rounding_note, with_edits
from .host.progress import outside_inference_mode, stoppable
from .previous_erasures import held_rows, notes_on, remember
from .wiring import Wired, wire

if TYPE_CHECKING:
    from ..speed_ops.engine.rows import Rows

_RECENT = 4
_recent: OrderedDict[str, Erasure] = OrderedDict()
"""The last erasures by a hash of everything they depend on: a change of the strength alone computes
no edit again.
"""


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
    recipe = recipe_of(job, strength=strength, clip_skip=clip.layer_idx)
    recipe.check_size()
    with wire(model, clip, job.settings, job.concepts, hidden) as wired:
        held = held_rows(model, job.concepts, wired.reader, wired.model, wired.progress)
        base = _base_hash(wired, job)
        erasure, is_recent = _erase_once(wired, job, held, base)
        erasure = at_strength(erasure, strength, wired.model, wired.progress)
    notes = [*erasure.notes, *notes_on(model, held.get(TOKENS))]
    if is_recent:
        notes.append("The edit was not computed again: only the strength changed.")
    inputs = wired.model.inputs
    unread = [name for name in inputs if inputs[name] and not wired.reader.width_of(name)]
    notes += [
        f"{INPUT_TITLES[name]} stays unedited: no CLIP that encodes it is wired in."
        for name in unread
        if job.settings.edits_input(name)
    ]
    notes += [rounding_note(model, erasure.edits), *wired.encoder.notes, wired.cache.problem]
    notes += [wired.model.architecture.note]
    recipe = replace(
        recipe,
        family=wired.model.architecture.name,
        base_hash=f"layers:{base}",
        encoder_hash=wired.encoder.fingerprint,
    )
    erasure = replace(erasure, recipe=recipe, notes=tuple(filter(None, notes)))
    return apply_erasure(model, erasure), erasure


@outside_inference_mode
def apply_erasure(model: Any, erasure: Erasure) -> Any:
    """A clone with the erasure on it, which remembers what was erased; at strength 0 the model
    itself.
    """
    if erasure.strength == 0:
        return model
    clone = with_edits(model, erasure.edits, erasure.strength)
    remember(clone, model, erasure)
    return clone


def _erase_once(
    wired: Wired, job: Job, held: Mapping[str, Rows], base: str
) -> tuple[Erasure, bool]:
    """The erasure at strength 1, and whether it is one of the last few."""
    key = _job_key(wired, job, held, base)
    if key in _recent:
        _recent.move_to_end(key)
        return _recent[key], True
    progress = wired.progress
    erasure = stoppable(
        lambda: erase(
            job, wired.model, wired.reader, hold=held, progress=progress, announce=progress.announce
        ),
        lambda: progress.computes,
    )
    rows = {name: row_set.without_kept() for name, row_set in erasure.rows.items()}
    _recent[key] = replace(erasure, rows=rows)
    while len(_recent) > _RECENT:
        _recent.popitem(last=False)
    return _recent[key], False


def _base_hash(wired: Wired, job: Job) -> str:
    """Hash of all weights that the edit depends on."""
    model = wired.model
    keys = [layer.canonical for layer in model.layers if job.settings.edits_input(layer.text_input)]
    layers = tensors_hash((key, model.stored[key]) for key in keys)
    if model.push is None:
        return layers
    return hashlib.sha256(f"{layers} {model.push.fingerprint}".encode()).hexdigest()


def _job_key(wired: Wired, job: Job, held: Mapping[str, Rows], base: str) -> str:
    digest = hashlib.sha256(
        f"{base} {wired.encoder.fingerprint} {job.settings!r} {job.plan!r}".encode()
    )
    stored_as = wired.reader.stored_as
    for concept in job.concepts:
        digest.update(f"{stored_as(concept.as_line())}\0{concept.kind}\n".encode())
    for index, name in enumerate(job.retain.names):
        digest.update(f"{stored_as(name)}\0{job.retain.kind_of_name(index, '')}\n".encode())
    for name, rows in held.items():
        digest.update(tensors_hash([(name, rows.values)]).encode())
    return digest.hexdigest()
