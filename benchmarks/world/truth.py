"""Does the certificate tell the truth? Its residual and drift against what the judge sees, over all
stored runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speed_erase.speed_ops.certificate.certificate import bars_of

from .measures import spearman

GONE = 0.10
"""A concept counts as gone in the pictures if at most this share more is recognised than when the
prompts say its anchor."""
HARMED = 0.03
"""The rest counts as harmed if its accuracy fell by more than this share."""


@dataclass(frozen=True)
class Case:
    """One erased concept of one run."""

    task: str
    method: str
    concept: str
    probe: float
    seen: float
    """Share of its pictures that are still recognised."""
    floor: float = 0.0
    """The same for the untouched model where the prompts say the anchor."""

    @property
    def gone(self) -> bool:
        return self.seen <= self.floor + GONE

    @property
    def bar(self) -> float:
        """Where the certificate's verdict about this kind of thing turns."""
        return bars_of({"subject": "object", "implicit": "implicit"}.get(self.task, "style")).erased


@dataclass(frozen=True)
class Truth:
    """Rank correlations, agreement at the certificate's bar, and the bar that would agree best."""

    cases: tuple[Case, ...]
    rank: float
    agreement: float
    wrong: tuple[Case, ...]
    best_bar: tuple[float, float]
    """Range of bars on the residual that agree with the pictures most often."""
    best_agreement: float
    drift_rank: float
    """Rank correlation of drift in unseen kept prompts with the change of their pictures."""
    unharmed_drift: float | None
    """Largest drift of a run whose pictures were unharmed."""
    harmed_drift: float | None
    """Smallest drift of a run whose pictures were harmed."""

    @property
    def unsafe(self) -> int:
        """Cases that the certificate calls erased and the pictures do not."""
        return sum(not case.gone for case in self.wrong)


def cases_of(results: Sequence[dict[str, Any]]) -> list[Case]:
    """Every erased concept that has both a certificate and pictures."""
    found = []
    floors = {
        result["task"]: result.get("floor", {}) for result in results if result["method"] == "none"
    }
    for result in results:
        floor = floors.get(result["task"], {})
        named = result.get("certificate", {}).get("by_concept", {})
        for concept, (_, probe) in named.items():
            if probe is not None and concept in result.get("by_concept", {}):
                seen = result["by_concept"][concept]
                found.append(
                    Case(
                        result["task"],
                        result["method"],
                        concept,
                        probe,
                        seen,
                        floor.get(concept, 0.0),
                    )
                )
    return found


def agreement(cases: Sequence[Case], bar: float | None = None) -> float:
    """Share of cases where residual below the bar (None: its kind's own) and gone in the pictures
    say the same.
    """
    return sum(
        (case.probe <= (case.bar if bar is None else bar)) == case.gone for case in cases
    ) / len(cases)


def truth(results: Sequence[dict[str, Any]]) -> Truth | None:
    """The whole comparison; None without cases."""
    cases = cases_of(results)
    if not cases:
        return None
    levels = sorted({case.probe for case in cases})
    bars = [
        (low + high) / 2
        for low, high in zip([0.0, *levels], [*levels, levels[-1] + 0.1], strict=True)
    ]
    scores = [agreement(cases, bar) for bar in bars]
    best = [bar for bar, score in zip(bars, scores, strict=True) if score == max(scores)]
    drifts = [r for r in results if "change" in r and r["method"] != "none"]
    moved = [(r["values"]["drift"], _kept_change(r)) for r in drifts]
    loss = {r["task"]: r["acc_r"] for r in results if r["method"] == "none"}
    harmed = [
        (r["values"]["drift"], loss[r["task"]] - r["acc_r"] > HARMED)
        for r in drifts
        if r["task"] in loss
    ]
    return Truth(
        tuple(cases),
        spearman([case.probe for case in cases], [case.seen for case in cases]),
        agreement(cases),
        tuple(case for case in cases if (case.probe <= case.bar) != case.gone),
        (min(best), max(best)),
        max(scores),
        spearman([a for a, _ in moved], [b for _, b in moved]) if len(moved) > 2 else float("nan"),
        max((drift for drift, bad in harmed if not bad), default=None),
        min((drift for drift, bad in harmed if bad), default=None),
    )


def _kept_change(result: dict[str, Any]) -> float:
    change = result["change"]
    kept = [value for name, value in change.items() if name != "erased"]
    return sum(kept) / max(1, len(kept))
