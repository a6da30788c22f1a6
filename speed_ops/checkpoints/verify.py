"""Does a file do what its header says? The weights are measured again; nothing in the header is taken on trust.

The difference between the file and its base is measured on the recipe's own prompts and held against the header's
certificate; every tensor that was not to be edited is compared byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..certificate.certificate import GROUPS, PLACES, Certificate, Drift, verdict_in_words
from ..certificate.measure import measure_edits
from ..engine.edits import LayerEdit
from ..engine.problem import prepare
from ..errors import FileError, UnsupportedModelError
from ..files.checkpoint import Checkpoint
from ..files.lora import read_lora
from ..files.metadata import Provenance, read_provenance
from ..files.recipe import Recipe
from ..gather import gather
from ..job import StoredJob, job_of, same_work
from ..models.detect import is_lora
from ..progress import Progress
from .clean import missing_encoders
from .source import ModelSource, TextSetup


@dataclass(frozen=True)
class Verification:
    """What was found."""

    claimed: dict[str, Any]
    """The header's certificate."""
    measured: Certificate
    faults: tuple[str, ...]
    """Where file and header disagree, one sentence each; empty: the file does what it says."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ErasedFile:
    """A file of ours beside the model it was made from, and the difference between the two."""

    said: Provenance
    stored: StoredJob
    source: ModelSource
    edits: dict[str, LayerEdit]
    """By canonical key; only layers that differ."""
    faults: tuple[str, ...]
    """Differences that are no edit of ours."""


def open_erased(
    file: Path,
    base: Path,
    *,
    recipe: Recipe | None = None,
    salt: str | None = None,
    progress: Progress | None = None,
) -> ErasedFile:
    """Reads what was added to the base. `recipe` and `salt`: for a redacted file."""
    published = Checkpoint.open(file)
    said = _provenance(published)
    stored = _stored_job(said, recipe, salt, file)
    source = ModelSource.open(base)
    if said.base_hash and source.base_hash(progress) != said.base_hash:
        raise FileError(f"{base} is not the file that {file} was made from: their hashes differ.")
    if is_lora(published.shapes):
        edits, faults = _lora_edits(published, source)
    else:
        edited = {layer.file_key for layer in source.layers("KV")}
        faults = compare_tensors(source.checkpoint, published, edited, progress)
        edits = _differences(source, published, faults)
    ours = {layer.canonical for layer in source.layers(stored.job.settings.layers)}
    faults += [f"The layer {key} is edited, but the recipe leaves it alone." for key in edits if key not in ours][:5]
    return ErasedFile(said, stored, source, {key: edits[key] for key in edits if key in ours}, tuple(faults))


def verify_file(
    file: Path,
    base: Path,
    setup_of: Callable[[int | None], TextSetup],
    *,
    recipe: Recipe | None = None,
    salt: str | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Measures the difference between `file` (checkpoint, folder or LoRA) and its base on the recipe's own prompts.

    `setup_of`: how text is read, given the recipe's clip skip.
    """
    erased = open_erased(file, base, recipe=recipe, salt=salt, progress=progress)
    stored, source = erased.stored, erased.source
    settings = stored.job.settings
    weights = source.model(settings.layers).weights
    text = setup_of(stored.clip_skip)
    rows = gather(text.encoder(source), weights, stored.job, progress)
    problem = prepare(
        rows.targets,
        rows.anchors,
        rows.retain,
        rows.invariants,
        settings,
        **rows.judges(stored.job.concepts),
    )
    whole = {key: erased.edits.get(key) or _zero(weights[key].shape) for key in weights}
    measured = measure_edits(weights, whole, problem, progress)
    faults = (*erased.faults, *broken_claims(erased.said.certificate, measured))
    notes = (*stored.notes, *missing_encoders(source, text))
    return Verification(erased.said.certificate, measured, faults, notes)


def _provenance(published: Checkpoint) -> Provenance:
    said = read_provenance(published.metadata, str(published.path))
    if said is None:
        raise FileError(f"{published.path} says nothing about an erasure in its header: there is nothing to verify.")
    if said.recipe is None:
        raise FileError(f"{published.path} has no recipe in its header: what it erases is not known.")
    return said


def _stored_job(said: Provenance, recipe: Recipe | None, salt: str | None, file: Path) -> StoredJob:
    assert said.recipe is not None
    if not said.recipe.redacted:
        return job_of(said.recipe, f"The recipe of {file.name}")
    if recipe is None or not salt:
        raise FileError(f"{file} is redacted: to verify it, give the unredacted recipe and the salt.")
    if not same_work(recipe.redacted_with(salt), said.recipe):
        raise FileError(f"The recipe and salt given are not those that {file} was made with.")
    return job_of(recipe, "The recipe given")


def _lora_edits(published: Checkpoint, source: ModelSource) -> tuple[dict[str, LayerEdit], list[str]]:
    try:
        found = read_lora(published.path, source.layers("KV"))
    except UnsupportedModelError as fault:
        raise FileError(str(fault)) from fault
    return found.edits, [f"The LoRA also edits {name}, which our erasures never do." for name in found.unmatched[:5]]


def _differences(source: ModelSource, published: Checkpoint, faults: list[str]) -> dict[str, LayerEdit]:
    """What was added to each layer, exactly; a layer without any difference is left out."""
    edits = {}
    for layer in source.layers("KV"):
        key = layer.file_key
        if source.checkpoint.shapes[key] != published.shapes.get(key):
            continue  # the comparison has said so
        delta = published.read(layer.file_key).double() - source.checkpoint.read(layer.file_key).double()
        if not bool(torch.isfinite(delta).all()):
            faults.append(f"{layer.file_key} contains NaN or Inf.")
        elif bool((delta != 0).any()):
            edits[layer.canonical] = _dense(delta)
    return edits


def _dense(delta: torch.Tensor) -> LayerEdit:
    """A dense difference as an edit: the identity is the other factor, on the shorter side."""
    outputs, width = delta.shape
    if outputs < width:
        return LayerEdit(torch.eye(outputs, dtype=delta.dtype), delta)
    return LayerEdit(delta, torch.eye(width, dtype=delta.dtype))


def _zero(shape: torch.Size) -> LayerEdit:
    return LayerEdit(torch.zeros(shape[0], 1, dtype=torch.float64), torch.zeros(1, shape[1], dtype=torch.float64))


LEFT_TOLERANCE = 0.05
"""How much more of a concept may be left than was certified: what half precision costs an edit."""
DRIFT_TOLERANCE = 0.02
"""How much further kept names may move than was certified."""


def broken_claims(claimed: dict[str, Any], measured: Certificate) -> list[str]:
    """Where the measurement is worse than the claim, one sentence each.

    Concepts go by their order, as names may be hashes.
    """
    faults = _concept_faults(_list(claimed, "concepts"), measured)
    faults += _drift_faults(_list(claimed, "drift"), measured.drift)
    empty = [_number(claimed.get("sot_drift")), _number(claimed.get("null_text_drift"))]
    found = max([measured.sot_drift or 0.0, *measured.null_text_drift])
    if found > max(empty) + DRIFT_TOLERANCE:
        faults.append(f"The empty prompt moves by {found:.1%}; the certificate says {max(empty):.1%}.")
    return faults


def _concept_faults(claims: list[dict[str, Any]], measured: Certificate) -> list[str]:
    if len(claims) != len(measured.concepts):
        return [f"The certificate covers {len(claims)} concepts, the recipe {len(measured.concepts)}."]
    faults = []
    for claim, found in zip(claims, measured.concepts, strict=True):
        for name, where in (("probe_median", "in unseen prompts"), ("solved_median", "in the prompts we optimised")):
            left = getattr(found, name)
            said = _number(claim.get(name), default=math.inf if claim.get(name) is None else -math.inf)
            if left is not None and left > said + LEFT_TOLERANCE:
                faults.append(f"{found.name!r}: {left:.0%} is left {where}; the certificate says {said:.0%}.")
        if claim.get("verdict") == "erased" and found.verdict in ("stands", "unproven"):
            faults.append(f"The certificate calls {found.name!r} erased, but it is {verdict_in_words(found.verdict)}.")
    return faults


def _drift_faults(claims: list[dict[str, Any]], measured: tuple[Drift, ...]) -> list[str]:
    """Kept and filtered names are one group here: which was which is not stored."""
    faults = []
    for part in measured:
        names = f"the {GROUPS[part.group].lower()} ({PLACES[part.where]})"
        groups = ("held_out",) if part.group == "held_out" else ("kept", "filtered")
        said = [one for one in claims if one.get("group") in groups and one.get("where") == part.where]
        if not said:
            faults.append(f"The certificate says nothing about {names}.")
            continue
        for name, share in (("p95", "95 %"), ("maximum", "100 %")):
            bound = max(_number(one.get(name)) for one in said)
            found = getattr(part, name)
            if found > bound + DRIFT_TOLERANCE:
                faults.append(f"{share} of {names} move by up to {found:.1%}; the certificate says {bound:.1%}.")
    return faults


def _list(values: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = values.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _number(value: Any, default: float = 0.0) -> float:
    """A finite number, or the default for anything else."""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if ok else default


_CHUNK = 4 << 20
_LISTED = 5


def compare_tensors(
    source: Checkpoint,
    copy: Checkpoint,
    edited: Collection[str],
    progress: Progress | None = None,
) -> list[str]:
    """One sentence for each kind of difference outside `edited`; the source's averaged second copy may be missing."""
    averaged = set(source.ema_keys())
    missing = [key for key in source.shapes if key not in copy.shapes and key not in averaged]
    extra = [key for key in copy.shapes if key not in source.shapes]
    common = [key for key in source.shapes if key in copy.shapes]
    reshaped = [k for k in common if (source.shapes[k], source.dtypes[k]) != (copy.shapes[k], copy.dtypes[k])]
    changed, done, total = [], 0, source.size
    for key in common:
        if key not in edited and key not in reshaped:
            if not _equal(source, copy, key):
                changed.append(key)
            done += _place(source, key)[1]
            if progress:
                progress("compare", min(done, total), total)
    if progress:
        progress("compare", total, total)
    found = (
        ("is missing", "are missing", missing),
        ("is new", "are new", extra),
        ("has a different shape or type", "have a different shape or type", reshaped),
        ("differs from the base but is not edited", "differ from the base but are not edited", changed),
    )
    return [_sentence(one, many, keys) for one, many, keys in found if keys]


def _sentence(one: str, many: str, keys: list[str]) -> str:
    shown = ", ".join(keys[:_LISTED]) + (", ..." if len(keys) > _LISTED else "")
    return f"1 tensor {one}: {shown}." if len(keys) == 1 else f"{len(keys)} tensors {many}: {shown}."


def _place(model: Checkpoint, key: str) -> tuple[int, int]:
    """Where a tensor begins in its file, and its size in bytes."""
    part = model.part_of(key)
    entry = part.header.entries[key[len(part.prefix) :]]
    return part.header.data_start + entry.begin, entry.end - entry.begin


def _equal(source: Checkpoint, copy: Checkpoint, key: str) -> bool:
    ours, size = _place(source, key)
    theirs, _ = _place(copy, key)
    try:
        with source.part_of(key).file.open("rb") as first, copy.part_of(key).file.open("rb") as second:
            first.seek(ours)
            second.seek(theirs)
            while size > 0:
                count = min(_CHUNK, size)
                if first.read(count) != second.read(count):
                    return False
                size -= count
    except OSError as error:
        raise FileError(f"Cannot read {copy.path}: {error.strerror or error}.") from error
    return True
