"""From concepts and names to an erasure: the one path that the nodes and the command line share.

Only three things differ between the two: who encodes text, where weights are read from, and where the edit goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from .erase import Progress, solve
from .erasure import Erasure
from .forecast import Forecast, forecast
from .rows import Rows
from .settings import EraseSettings
from .text.cached_encoder import CachedEncoder
from .text.encoder import TextEncoder
from .text.gather import Gathered, gather_rows
from .text.phrases import Concept
from .text.plan import RowPlan
from .text.retain import RetainSet, drop_targets

HELD_OUT_SHARE = 0.05
"""Share of the retain names that nodes and command line keep out of the solve, to judge preservation on."""


@dataclass(frozen=True)
class Job:
    """What a user asks for, before any model is looked at."""

    concepts: tuple[Concept, ...]
    retain: RetainSet
    settings: EraseSettings
    plan: RowPlan

    @classmethod
    def of(cls, concepts: Sequence[Concept], retain: RetainSet, settings: EraseSettings) -> Job:
        """The job with the rows that its settings ask for."""
        plan = RowPlan.context() if settings.rows == "context" else RowPlan.bare()
        return cls(tuple(concepts), retain, settings, plan)


@dataclass(frozen=True)
class Outcome:
    """An erasure and the text side's part in it."""

    erasure: Erasure
    gathered: Gathered
    dropped: tuple[str, ...]
    """Retain names left out because they contain a target."""

    def text(self) -> str:
        """The report for people: the certificate, and what happened to the retain list."""
        lines = [self.erasure.certificate.text()]
        if self.dropped:
            lines.append(
                f"{_count(self.dropped, 'retain name')} dropped for containing a target: {_few(self.dropped)}."
            )
        if self.gathered.unusable:
            lines.append(f"{_count(self.gathered.unusable, 'retain name')} unusable: {_few(self.gathered.unusable)}.")
        seconds = sum(self.gathered.seconds.values())
        lines.append(
            f"{self.gathered.encoded} texts encoded, {self.gathered.reused} from the cache, {seconds:.1f} s; "
            f"{self.gathered.in_context} retain names in context."
        )
        return "\n".join(lines)


def erase_model(
    encoder: TextEncoder | CachedEncoder,
    weights: Mapping[str, Tensor],
    job: Job,
    *,
    hold: Rows | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Encodes, solves and certifies. `weights` are the EFFECTIVE ones, `hold` the targets erased from them before."""
    gathered, dropped = gather(encoder, weights, job, progress)
    encoder.close()  # SDXL's two take a gigabyte, which the solve can use
    erasure = solve(
        weights,
        gathered.targets,
        gathered.anchors,
        gathered.retain,
        gathered.invariants,
        job.settings,
        hold=hold,
        probes=gathered.probes,
        progress=progress,
    )
    return Outcome(erasure, gathered, dropped)


def gather(
    encoder: TextEncoder | CachedEncoder, weights: Mapping[str, Tensor], job: Job, progress: Progress | None = None
) -> tuple[Gathered, tuple[str, ...]]:
    """The rows of a job; contexts only for the retain names that the bare forecast finds worth their cost."""
    retain, dropped = drop_targets(job.retain, job.concepts)

    def worth_contexts(targets: Rows, anchors: Rows, bare: Rows) -> list[int]:
        return endangered(forecast(weights, targets, anchors, bare, job.settings), job.settings)

    return gather_rows(encoder, job.concepts, retain, job.plan, worth_contexts, progress), dropped


def endangered(ahead: Forecast, settings: EraseSettings) -> list[int]:
    """IPF on bare names: those with more than `filter_scale` times the mean shift, at most `context_names` of them."""
    if not ahead.shifts:
        return []
    bar = settings.filter_scale * sum(ahead.shifts) / len(ahead.shifts)
    chosen = [place for place, shift in zip(ahead.order, ahead.shifts, strict=True) if shift > bar]
    return chosen[: settings.context_names]


def predict(
    encoder: TextEncoder | CachedEncoder, weights: Mapping[str, Tensor], job: Job, progress: Progress | None = None
) -> Forecast:
    """The blast radius of a job: its retain names by predicted shift, bare, before any edit."""
    retain, _ = drop_targets(job.retain, job.concepts)
    rows = gather_rows(encoder, job.concepts, retain, job.plan, lambda *_: [], progress)
    return forecast(weights, rows.targets, rows.anchors, rows.retain, job.settings)


def _count(items: Sequence[str], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _few(items: Sequence[str]) -> str:
    shown = ", ".join(items[:5])
    return shown if len(items) <= 5 else f"{shown}, ..."
