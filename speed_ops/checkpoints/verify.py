"""Does a file do what its header says? The weights are measured again; nothing in the header is taken on trust.

The difference between the file and its base is measured on the recipe's own prompts and held against the header's
certificate; every tensor that was not to be edited is compared byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..certificate.certificate import GROUPS, PLACES, Certificate, ConceptResult, Drift, verdict, verdict_in_words
from ..certificate.measure import measure_edits
from ..concepts.names import quoted, same_name_key
from ..engine.auto import settle_rows
from ..engine.edits import LayerEdit
from ..engine.problem import prepare
from ..errors import FileError, UnsupportedModelError
from ..files.checkpoint import Checkpoint
from ..files.lora import read_lora
from ..files.metadata import Provenance, history_of, read_provenance
from ..files.recipe import Recipe
from ..files.rewrite import strange_files
from ..files.tensors import read_scaled
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
        faults += strange_files(source.checkpoint, file)
        edits = _differences(source, published, faults)
    faults += _origin_faults(said, source, recipe, salt)
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
    settings = settle_rows(stored.job.settings, len(stored.job.concepts))
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
    faults = (*erased.faults, *broken_claims(erased.said, measured))
    notes = (*stored.notes, *missing_encoders(source, text), *_not_measured(erased.said.certificate))
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
        delta = _weight(published, key) - _weight(source.checkpoint, key)
        if not bool(torch.isfinite(delta).all()):
            faults.append(f"{layer.file_key} contains NaN or Inf.")
        elif bool((delta != 0).any()):
            edits[layer.canonical] = _dense(delta)
    return edits


def _weight(model: Checkpoint, key: str) -> torch.Tensor:
    return read_scaled(model.read, model.shapes, key)[0].double()


def _dense(delta: torch.Tensor) -> LayerEdit:
    """A dense difference as an edit: the identity is the other factor, on the shorter side."""
    outputs, width = delta.shape
    if outputs < width:
        return LayerEdit(torch.eye(outputs, dtype=delta.dtype), delta)
    return LayerEdit(delta, torch.eye(width, dtype=delta.dtype))


def _zero(shape: torch.Size) -> LayerEdit:
    return LayerEdit(torch.zeros(shape[0], 1, dtype=torch.float64), torch.zeros(1, shape[1], dtype=torch.float64))


def _origin_faults(said: Provenance, source: ModelSource, recipe: Recipe | None, salt: str | None) -> list[str]:
    """Where the header contradicts itself, or the base, about what the file was made from."""
    stored = said.recipe
    assert stored is not None
    faults = [] if said.base_hash else ["The header does not say which file it was made from."]
    if (said.base_hash, said.encoder_hash) != (stored.base_hash, stored.encoder_hash):
        faults.append("The header and the recipe in it name different files that it was made from.")
    history = history_of(source.checkpoint.metadata)
    if stored.history and recipe is not None and salt:
        history = replace(recipe, history=history).redacted_with(salt).history
    if stored.history and stored.history != history:
        faults.append("The header names earlier erasures that are not those of the base.")
    return faults


LEFT_TOLERANCE = 0.05
"""How much more of a concept may be left than was certified: what half precision costs an edit."""
DRIFT_TOLERANCE = 0.02
"""How much further kept names may move than was certified."""
_SETTLED = ("rows_per_concept", "threshold", "lam", "softness")
"""Settings that `auto` chooses: the certificate has its choice, the recipe what was asked for."""
_VERDICTS = ("erased", "weakened", "stands", "unproven")
"""The best first. Unproven is not better than any."""


def broken_claims(said: Provenance, measured: Certificate) -> list[str]:
    """Where the measurement is worse than the claim, or claim and recipe are not about the same, one sentence each.

    Concepts go by their order, as names may be hashes.
    """
    claimed, recipe = said.certificate, said.recipe
    assert recipe is not None
    faults = _concept_faults(_list(claimed, "concepts"), recipe, measured)
    faults += _drift_faults(_list(claimed, "drift"), measured.drift)
    empty = {"sot_drift": measured.sot_drift or 0.0, "null_text_drift": max(measured.null_text_drift, default=0.0)}
    for name, found in empty.items():
        if found > (bound := _number(claimed.get(name))) + DRIFT_TOLERANCE:
            faults.append(f"The empty prompt moves by {found:.1%}; the certificate says {bound:.1%}.")
    if "layers" in claimed and claimed["layers"] != len(measured.layers):
        count = str(claimed["layers"])[:40]
        faults.append(f"The certificate is about {count} layers, the recipe about {len(measured.layers)}.")
    return faults + list(_setting_faults(claimed, recipe))


def _concept_faults(claims: list[dict[str, Any]], recipe: Recipe, measured: Certificate) -> list[str]:
    if len(claims) != len(measured.concepts):
        return [f"The certificate covers {len(claims)} concepts, the recipe {len(measured.concepts)}."]
    faults: list[str] = []
    for claim, stored, found in zip(claims, recipe.concepts, measured.concepts, strict=True):
        name = quoted(found.name)
        if same_name_key(str(claim.get("name"))) != same_name_key(stored.target):
            faults.append(f"The certificate speaks of another concept in the place of {name}.")
        if claim.get("kind", found.kind) != found.kind:
            faults.append(f"The certificate judges {name} as another kind of concept than the recipe.")
        faults += _number_faults(claim, found)
        best, shown = _best_verdict(claim, found), claim.get("verdict")
        if shown not in _VERDICTS or _VERDICTS.index(shown) < _VERDICTS.index(best):
            words = verdict_in_words(shown)[:40]
            faults.append(f"The certificate calls {name} {words}, but it is {verdict_in_words(best)}.")
    return faults


_SHARES = {
    "probe_median": "is left in unseen prompts",
    "solved_median": "is left in the prompts we optimised",
    "probe_worst": "is left in unseen prompts, in the worst layer",
    "solved_worst": "is left in the prompts we optimised, in the worst layer",
    "energy_lost": "of the edit was lost by compressing rows",
}


def _number_faults(claim: dict[str, Any], found: ConceptResult) -> Iterator[str]:
    """Where more is left of a concept than the certificate says."""
    for field, words in _SHARES.items():
        share, said = getattr(found, field), _number(claim.get(field), -math.inf)
        if share is not None and share > said + LEFT_TOLERANCE:
            shown = "does not say" if said == -math.inf else f"says {said:.0%}"
            yield f"{quoted(found.name)}: {share:.0%} {words}; the certificate {shown}."


def _best_verdict(claim: dict[str, Any], found: ConceptResult) -> str:
    """The best verdict that the claim's own numbers allow, and the measurement with the tolerance in its favour.

    Bars are those of the kind that the recipe gives.
    """
    solved, probed = (_number(claim.get(name), math.inf) for name in ("solved_median", "probe_median"))
    own = verdict(solved, None if claim.get("probe_median") is None else probed, found.kind)
    lenient = None if found.probe_median is None else found.probe_median - LEFT_TOLERANCE
    return max(own, verdict(found.solved_median - LEFT_TOLERANCE, lenient, found.kind), key=_VERDICTS.index)


_GROUPS = {"kept": ("kept", "filtered"), "held_out": ("held_out",)}
"""Kept and filtered names are one group here: which was which is not stored."""
_SIZES = {"median": "median", "p95": "95th percentile", "maximum": "maximum", "mean": "mean"}


def _drift_faults(claims: list[dict[str, Any]], measured: tuple[Drift, ...]) -> list[str]:
    told = [str((one.get("group"), one.get("where"))) for one in claims]
    known = {str((group, part.where)) for part in measured for group in _GROUPS[part.group]}
    faults = []
    if len(set(told)) != len(told) or not known.issuperset(told):
        faults.append("The certificate speaks of names that the recipe does not give, or twice of the same.")
    for part in measured:
        names = f"the {GROUPS[part.group].lower()} ({PLACES[part.where]})"
        said = [one for one in claims if one.get("group") in _GROUPS[part.group] and one.get("where") == part.where]
        if not said:
            faults.append(f"The certificate says nothing about {names}.")
            continue
        if any(_number(one.get("names"), math.inf) > part.names for one in said):
            faults.append(f"The certificate speaks of more names than there are among {names}.")
        for field, words in _SIZES.items():
            bound, found = max(_number(one.get(field)) for one in said), getattr(part, field)
            if found > bound + DRIFT_TOLERANCE:
                faults.append(f"The {words} drift of {names} is {found:.1%}; the certificate says {bound:.1%}.")
        listed = max((_number(pair[1]) for one in said for pair in _pairs(one.get("worst"))), default=0.0)
        if part.worst and part.worst[0][1] > listed + DRIFT_TOLERANCE:
            faults.append(f"One of {names} moves by {part.worst[0][1]:.1%}; the certificate lists none that far.")
    return faults


def _setting_faults(claimed: dict[str, Any], recipe: Recipe) -> Iterator[str]:
    """Where the certificate was made with other settings than the recipe asks for."""
    settings, asked = claimed.get("settings"), recipe.settings
    chosen = _SETTLED if asked.get("preset_name") == "auto" else ()
    for name, value in settings.items() if isinstance(settings, dict) else ():
        if name in asked and name not in chosen and value != asked[name]:
            yield f"The certificate was made with {name} {str(value)[:40]}, the recipe says {str(asked[name])[:40]}."
    curve = claimed.get("curve")
    budget = curve.get("budget") if isinstance(curve, dict) else None
    if budget is not None and budget != asked.get("drift_budget", budget):
        yield f"The certificate names a budget of {str(budget)[:40]}, the recipe {str(asked['drift_budget'])[:40]}."


def _not_measured(claimed: dict[str, Any]) -> list[str]:
    """What a header may say that no measurement of the finished file can check."""
    found = [words for name, words in (("curve", "the trade-off"), ("rounds", "leaks")) if claimed.get(name)]
    return [f"What the header says about {' and '.join(found)} was not measured again."] if found else []


def _pairs(listed: Any) -> list[list[Any]]:
    """Entries of a list of names with their drift."""
    return [pair for pair in listed if isinstance(pair, list) and len(pair) == 2] if isinstance(listed, list) else []


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
