"""One job on many models as one page: what became of each concept in each model, side effects, a
pair of images where something can generate them, and what could not be compared.

What is known about a result is in its header, so a page covers earlier runs too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..certificate.verdicts import VERDICT_WORDS, verdict_in_words
from ..checkpoints.batch import Candidate, Done
from ..checkpoints.no_names import mentions_name
from ..errors import FileError, SpeedError
from ..files.atomic import write_bytes
from ..files.checkpoint import Checkpoint
from ..models.detect import detect
from ..provenance import Claim, read_provenance
from ..recipe import StoredJob, recipe_of
from ..report.html import template
from .pairs import Drawing, Pair, ResultKind, draw_pairs
from .recorded_effects import SideEffects as SideEffects
from .recorded_effects import level_in_words, recorded_effects

PAGE, DATA = "overview.html", "overview.json"
MAX_COLUMNS = 12
"""Concepts that have a column, those that are least erased anywhere first."""
_WORST_LAST = ("erased", "unproven", "weakened", "stands")


@dataclass(frozen=True)
class Compared:
    """One model."""

    model: str
    family: str
    claims: dict[str, Claim]
    """By concept."""
    effects: SideEffects | None
    report: str
    """Path of its report, relative to the page; empty without one."""
    pairs: tuple[Pair, ...] = ()
    no_images: str = ""
    """Why it has no images."""


def write_overview(
    folder: Path,
    candidates: Sequence[Candidate],
    results: Sequence[Done],
    stored: StoredJob,
    drawings: Sequence[Drawing] = (),
    note: Callable[[str], None] = lambda sentence: None,
) -> tuple[Path, Path]:
    """Writes the page and the JSON file; returns their paths.

    Args:
        folder: Where they go.
        candidates: The models of the job.
        results: What became of each.
        stored: The job.
        drawings: What can generate images, and how; the first that knows a model does.
        note: Called with what is being done.
    """
    hidden = any(candidate.outputs.no_names for candidate in candidates)
    hides = mentions_name(recipe_of(stored.job)) if hidden else lambda text: False
    rows, missing = [], []
    for number, (candidate, done) in enumerate(zip(candidates, results, strict=True), 1):
        name = f"model {number}" if hides(candidate.name) else candidate.name
        try:
            if done.status == "failed" or candidate.known is not None:
                raise FileError(done.detail)
            row = _row(folder, candidate, name, hides)
        except SpeedError as fault:
            missing.append((name, "not shown" if hides(str(fault)) else str(fault)))
            continue
        note(f"{name}: generating images.")
        pairs, reason = draw_pairs(
            candidate.path, *_result(candidate), stored.job.concepts, list(row.claims), drawings
        )
        rows.append(replace(row, pairs=pairs, no_images="not shown" if hides(reason) else reason))
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / PAGE, folder / DATA
    write_bytes(data, json.dumps(_plain(rows, missing), indent=1).encode(), force=True)
    write_bytes(page, _page(rows, missing).encode("utf-8", "replace"), force=True)
    return page, data


def _row(folder: Path, candidate: Candidate, name: str, hides: Callable[[str], bool]) -> Compared:
    """What the header of a model's results records."""
    header = read_provenance(Checkpoint.open(_result(candidate)[0]).metadata, name)
    if header is None:
        raise FileError("Its result records no erasure.")
    claims, problem = header.claims()
    if problem:
        raise FileError(problem)
    report, link = candidate.paths().get("report"), ""
    if report is not None and report.exists() and not hides(report.name):
        link = quote(report.relative_to(folder).as_posix(), errors="surrogateescape")
    return Compared(
        name,
        detect(Checkpoint.open(candidate.path).shapes).title,
        {claim.name: claim for claim in claims},
        recorded_effects(header),
        link,
    )


def _result(candidate: Candidate) -> tuple[Path, ResultKind]:
    """The file that records what was done."""
    paths = candidate.paths()
    if "checkpoint" in paths:
        return paths["checkpoint"], "checkpoint"
    if "lora" in paths:
        return paths["lora"], "lora"
    raise FileError("Neither a checkpoint nor a LoRA was written, so nothing records it.")


def _columns(rows: Sequence[Compared]) -> list[str]:
    """Every concept, the least erased first."""
    worst: dict[str, tuple[int, float]] = {}
    for row in rows:
        for name, claim in row.claims.items():
            rank = _WORST_LAST.index(claim.verdict), claim.left or 0.0
            worst[name] = max(rank, worst.get(name, rank))
    return sorted(worst, key=lambda name: worst[name], reverse=True)


def _page(rows: Sequence[Compared], missing: Sequence[tuple[str, str]]) -> str:
    columns = _columns(rows)
    verdicts = [claim.verdict for row in rows for claim in row.claims.values()]
    erased = sum(verdict == "erased" for verdict in verdicts)
    page = {
        "headline": f"{erased:,} of {len(verdicts):,} erased",
        "models": f"{len(rows):,} model{'' if len(rows) == 1 else 's'}",
        "rows": rows,
        "concepts": columns[:MAX_COLUMNS],
        "more": len(columns) - MAX_COLUMNS,
        "words": {verdict: verdict_in_words(verdict) for verdict in VERDICT_WORDS},
        "level_in_words": level_in_words,
        "missing": missing,
        "package_version": "",
    }
    return str(template(Path(__file__).with_name("overview.html")).render(page))


def _plain(rows: Sequence[Compared], missing: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "models": [
            {
                "model": row.model,
                "family": row.family,
                "concepts": [asdict(claim) for claim in row.claims.values()],
                "side_effects": None if row.effects is None else asdict(row.effects),
                "images": len(row.pairs),
            }
            for row in rows
        ],
        "not_compared": [{"model": model, "reason": reason} for model, reason in missing],
    }
