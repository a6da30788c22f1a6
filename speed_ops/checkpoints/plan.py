"""What a run would read, encode and write. Everything is checked that can be checked, and nothing
is written.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..encoders.cache import CachedEncoder
from ..encoders.encoder import TextEncoder, TowerEncoder, equivalent_prompts
from ..errors import FileError, NoSpaceError
from ..job import Job
from ..recipe import StoredJob
from ..text.requests import RowRequest, all_pairs, usable_names
from ..text.retain_set import drop_targets
from ..text.tokens import Stream, StreamKey
from .output_files import OutputFiles, Product
from .preflight import preflight
from .text_setup import TextSetup

QUICK_PARAMETERS = 10**9
"""For encoders up to this size, SDXL's two among them, the cache is looked at: larger ones take
long to fingerprint.
"""
_REPORT_BYTES = 30_000
_CARD_BYTES = 3_000


@dataclass(frozen=True)
class Plan:
    """What one run would do."""

    model: Path
    family: str
    """The family's title."""
    layers: int
    reads: dict[str, int]
    """{file or folder: bytes}"""
    texts: int
    """Upper bound on texts to encode."""
    cached: int | None
    """Lower bound on those in the cache; None where looking would take long."""
    seconds: float
    """Estimated seconds to encode what is not cached."""
    writes: dict[Product, tuple[Path, int]]
    """Where each result goes, and its approximate size in bytes."""
    free: int
    """Bytes free on the disk that they go to."""
    notes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of all results."""
        return sum(size for _, size in self.writes.values())

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        writes = {
            product: {"path": str(path), "bytes": size}
            for product, (path, size) in self.writes.items()
        }
        return vars(self) | {"model": str(self.model), "writes": writes, "notes": list(self.notes)}


def plan_file(path: Path, stored: StoredJob, text: TextSetup, outputs: OutputFiles) -> Plan:
    """What `clean_file` would do with the same arguments; refuses what it would refuse.

    Args:
        path: The model.
        stored: What to erase, and how strongly.
        text: How text becomes embeddings.
        outputs: What to write and where.
    """
    notes: list[str] = []
    source, recipe, paths, _ = preflight(path, stored, text, outputs, notes.append)
    job = stored.job.prompted(source.architecture.prompting)
    encoder, files = text.encoder(source), source.encoder_files(text.text_encoders)
    needed = _texts(encoder.encoder.streams, encoder.encoder.context_length, job)
    quick = sum(math.prod(shape) for shape in files.shapes.values()) <= QUICK_PARAMETERS
    cached = _cached(encoder, needed.requests, quick)
    count = len({request.text for request in needed.requests}) + needed.prompts
    prompts = equivalent_prompts(encoder.encoder, count - needed.names, needed.names)
    seconds = _seconds_per_prompt(encoder.encoder) * prompts * (count - (cached or 0)) / count
    encoder.encoder.close()
    layers = source.edited_layers(job.settings)
    rank = min(needed.target_rows, job.settings.rows_per_concept * len(job.concepts))
    sizes: dict[Product, int] = {
        "checkpoint": source.checkpoint.size,
        # Upper bound: two factors per layer in half precision.
        "lora": sum(2 * min(rank, *layer.shape) * sum(layer.shape) for layer in layers),
        "recipe": len(recipe.to_json()),
        "card": _CARD_BYTES,
        "report": _REPORT_BYTES,
    }
    plan = Plan(
        model=path,
        family=source.architecture.title,
        layers=len(layers),
        reads={str(model.path): model.size for model in (source.checkpoint, *files.holders)},
        texts=count,
        cached=cached,
        seconds=seconds,
        writes={product: (path, sizes[product]) for product, path in paths.items()},
        free=_free_space(outputs.folder),
        notes=tuple(notes),
    )
    refuse_without_space([plan])
    return plan


def refuse_without_space(plans: Iterable[Plan]) -> None:
    """Refuses results that the disk cannot hold, all of them together."""
    needed: dict[int, int] = {}
    for plan in plans:
        folder = next(iter(plan.writes.values()))[0].parent
        disk = os.stat(_existing(folder)).st_dev
        needed[disk] = needed.get(disk, 0) + plan.size
        if needed[disk] > plan.free:
            raise NoSpaceError(
                f"The results need about {needed[disk] / 1e9:.2f} GB, but the disk of {folder} has "
                f"{plan.free / 1e9:.2f} GB free. Free some space or choose another folder."
            )


def _free_space(folder: Path) -> int:
    """Bytes free where a folder is, or would be made; refuses one that cannot be written to."""
    existing = _existing(folder)
    if not existing.is_dir():
        raise FileError(
            f"Cannot write to {folder}: {existing} is a file, not a folder. Choose another path."
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FileError(
            f"Cannot write to {folder}: you do not have permission. Choose another folder."
        )
    return shutil.disk_usage(existing).free


def _existing(folder: Path) -> Path:
    return next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path())


class _Texts(NamedTuple):
    """The texts that a job needs."""

    requests: list[RowRequest]
    """The empty prompt, the concepts and their anchors, and the kept names alone: known
    beforehand.
    """
    names: int
    """How many of those are kept names alone."""
    prompts: int
    """Upper bound on prompts around kept names; the weights decide which."""
    target_rows: int


def _texts(streams: Sequence[Stream], length: int, job: Job) -> _Texts:
    """The texts of a job for an encoder with these streams and `length` rows per padded prompt."""
    plan, taken = job.plan, [set[StreamKey]() for _ in job.concepts]
    solved = all_pairs(streams, job.concepts, plan.solve_templates, plan, taken)
    pairs = list(solved)
    if plan.trial_templates:
        pairs += all_pairs(streams, job.concepts, plan.trial_prompts, plan, taken)
    pairs += all_pairs(streams, job.concepts, plan.unseen_templates, plan, taken)
    in_context = [request for pair in pairs for request in (pair.target, pair.anchor)]
    usable = usable_names(streams, drop_targets(job.retain, job.concepts)[0])[0]
    considered = usable[: plan.considered + 2 * plan.judges]
    bare = [request for _, name in considered for request in name.bare]
    return _Texts(
        requests=[RowRequest("", tuple(range(length))), *in_context, *bare],
        names=len(bare),
        prompts=plan.prompts(len(bare), job.settings.context_names),
        target_rows=sum(len(pair.target.rows) for pair in solved),
    )


def _cached(encoder: CachedEncoder, requests: Sequence[RowRequest], quick: bool) -> int | None:
    """How many of the texts are stored with all the rows that are asked for."""
    if encoder.cache is None or not encoder.cache.info().files:
        return 0
    if not quick:
        return None
    rows: dict[str, set[int]] = {}
    for request in requests:
        rows.setdefault(request.text, set()).update(request.rows)
    keys = [(text, row) for text in rows for row in rows[text]]
    cached = encoder.cache.read(encoder.encoder.fingerprint, encoder.encoder.width, keys)
    return sum(all((text, row) in cached for row in rows[text]) for text in rows)


def _seconds_per_prompt(encoder: TextEncoder) -> float:
    """Estimated seconds per prompt, from one block of each encoder (all of T5-XXL is slow)."""
    if encoder.parts:
        return sum(map(_seconds_per_prompt, encoder.parts))
    return encoder.trial() if isinstance(encoder, TowerEncoder) else 0.0
