"""The certificate: what was erased, what was kept and what still stands, measured on the weights without sampling.

A residual compares outputs: |(W + dW) c1 - W c*| / |W c1 - W c*|, 1 for an untouched target, 0 for one that has become
its anchor. It says what is left of the target, so the way that a row went straight on beyond its anchor is taken off: a
stronger edit leaves no more of it. Drift is |dW c0| / |W c0|. A concept counts as erased only on rows in contexts that
the solve never saw: cross attention reads every row of a prompt, so the rows that were solved for prove nothing by
themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

ERASED_BELOW = 0.35
"""Residual in unseen contexts up to which a concept counts as erased. On the living model painters at 0.46 were in no
picture any more, at 0.53 in half of them (docs/proof, the curve `aim`), but a subject at 0.35 to 0.38 was in half of
its pictures and more: the bar stays below both."""
STANDS_ABOVE = 0.5
"""Residual from which the concept counts as standing; between the two it is weakened."""


@dataclass(frozen=True)
class ConceptResult:
    """One erased concept."""

    name: str
    verdict: str
    """erased, weakened, stands, or unproven where no unseen context was given."""
    solved_median: float
    """Residual on the rows of the solve, median over layers."""
    solved_worst: float
    probe_median: float | None
    """Residual on rows in contexts the solve never saw."""
    probe_worst: float | None
    energy_lost: float
    """Share of the change that compressing the concept's rows gave up."""


@dataclass(frozen=True)
class Drift:
    """How far a group of retain names moved, over names and layers."""

    group: str
    """kept, filtered or held_out."""
    where: str
    """bare or context."""
    names: int
    median: float
    p95: float
    maximum: float
    worst: tuple[tuple[str, float], ...]
    """The names that moved most, by their median over layers."""


@dataclass(frozen=True)
class LayerFacts:
    """What the solve did in one layer."""

    key: str
    kept: int
    added: int
    room: int
    """Dimension of the null space left for erasing."""
    rank: int
    change: float
    """|dW| / |W|."""


@dataclass(frozen=True)
class Round:
    """The leak before an adversarial round (round 0: after the first solve)."""

    number: int
    mean_leak: float
    worst_leak: float


@dataclass(frozen=True)
class Certificate:
    """Serialises to JSON and prints as a short text."""

    concepts: tuple[ConceptResult, ...]
    drift: tuple[Drift, ...]
    sot_drift: float | None
    null_text_drift: tuple[float, ...]
    """Drift of each row of the empty prompt after SOT, largest over layers."""
    layers: tuple[LayerFacts, ...]
    rounds: tuple[Round, ...]
    seconds: dict[str, float]
    warnings: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for `json.dumps`."""
        return asdict(self)

    def short(self) -> dict[str, Any]:
        """What goes into a file's header: no per-layer and no per-token lists."""
        whole = self.to_json()
        whole["null_text_drift"] = max(self.null_text_drift, default=None)
        whole["layers"] = len(self.layers)
        return whole

    def text(self) -> str:
        """A few lines for people."""
        from .certificate_text import describe

        return describe(self)


def verdict(solved: float, probed: float | None) -> str:
    """erased, weakened or stands by the unseen contexts; without any, nothing is proven."""
    if probed is None:
        return "unproven"
    left = max(solved, probed)
    return "erased" if left <= ERASED_BELOW else "weakened" if left < STANDS_ABOVE else "stands"
