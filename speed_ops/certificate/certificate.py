"""The certificate: what was erased, what was kept and what still stands, measured on the weights without sampling.

A residual compares outputs: |(W + dW) c1 - W c*| / |W c1 - W c*|, 1 for an untouched target, 0 for one that has become
its anchor. It says what is left of the target, so the way that a row went straight on beyond its anchor is taken off: a
stronger edit leaves no more of it. Drift is |dW c0| / |W c0|. A concept counts as erased only on rows in contexts that
were not optimised for: cross attention reads every row of a prompt, so the rows that the edit was made from prove
nothing by themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..engine.adversarial import Round

Verdict = Literal["erased", "weakened", "stands", "unproven"]
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
    verdict: Verdict
    """erased, weakened, stands, or unproven where no unseen context was given; people read `verdict_in_words`."""
    solved_median: float
    """Residual on the rows that the edit was made from, median over layers."""
    solved_worst: float
    probe_median: float | None
    """Residual on rows in other contexts."""
    probe_worst: float | None
    energy_lost: float
    """Share of the change that compressing the concept's rows gave up."""


@dataclass(frozen=True)
class Drift:
    """How far a group of kept names moved, over names and layers."""

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
    """What the edit is in one layer."""

    key: str
    kept: int
    added: int
    room: int
    """Dimension of the null space left for erasing."""
    rank: int
    change: float
    """|dW| / |W|."""


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
        return describe(self)


def verdict(solved: float, probed: float | None) -> Verdict:
    """erased, weakened or stands by the unseen contexts; without any, nothing is proven."""
    if probed is None:
        return "unproven"
    left = max(solved, probed)
    return "erased" if left <= ERASED_BELOW else "weakened" if left < STANDS_ABOVE else "stands"


VERDICT_WORDS: dict[str, str] = {
    "erased": "erased",
    "weakened": "weakened",
    "stands": "still there",
    "unproven": "unproven",
}
"""Stored verdict -> the words that people read."""
GROUPS: dict[str, str] = {"kept": "Kept names", "filtered": "Filtered names", "held_out": "Held-out names"}
"""What people call the groups of names whose drift is measured."""
PLACES: dict[str, str] = {"bare": "alone", "context": "in prompts"}
"""What people call the places where it is measured."""
_LISTED = 12  # concepts printed one by one; longer lists are summed up


def verdict_in_words(stored: object) -> str:
    """A stored verdict for people; anything else that a header may hold, as it is."""
    return VERDICT_WORDS.get(str(stored), str(stored))


def describe(certificate: Certificate) -> str:
    """A short report: verdicts, what was preserved, the model's invariants, warnings."""
    lines = _concepts(certificate.concepts) + [_drift(part) for part in certificate.drift]
    if certificate.sot_drift is not None:
        worst = max([certificate.sot_drift, *certificate.null_text_drift])
        lines.append(f"Empty prompt: drift at most {worst:.1e}.")
    rooms = [layer.room for layer in certificate.layers]
    room = f"{max(rooms)}" if min(rooms) == max(rooms) else f"{min(rooms)} to {max(rooms)}"
    ranks = {layer.rank for layer in certificate.layers}
    lines.append(
        f"{len(rooms)} layer{'s' if len(rooms) != 1 else ''}, rank {max(ranks)}, "
        f"null space of {room} dimensions, "
        f"{sum(certificate.seconds.values()):.2f} s."
    )
    chosen = certificate.settings
    if chosen.get("preset_name") == "auto":
        rows = f"{chosen['rows_per_concept']} rows per concept"
        lines.append(f"auto chose threshold {chosen['threshold']:g} and at most {rows}.")
    if certificate.rounds:
        leaks = " -> ".join(f"{turn.mean_leak:.0%}" for turn in certificate.rounds)
        dropped = (
            "" if certificate.rounds[-1].kept else " (the last round did not lower the leak enough and was dropped)"
        )
        lines.append(f"Adversarial rounds: leak {leaks}{dropped}.")
    return "\n".join(lines + [f"Warning: {text}" for text in certificate.warnings])


def _concepts(concepts: tuple[ConceptResult, ...]) -> list[str]:
    if len(concepts) <= _LISTED:
        return [_concept(concept) for concept in concepts]
    counts: dict[str, int] = {}
    for concept in concepts:
        counts[concept.verdict] = counts.get(concept.verdict, 0) + 1
    listed = ", ".join(f"{count} {verdict_in_words(name)}" for name, count in sorted(counts.items()))
    weakest = sorted(concepts, key=lambda concept: -(concept.probe_median or concept.solved_median))[:5]
    return [f"{len(concepts)} concepts: {listed}. Least erased:", *[_concept(concept) for concept in weakest]]


def _concept(concept: ConceptResult) -> str:
    shown = verdict_in_words(concept.verdict)
    solved = f"{1 - concept.solved_median:.0%} removed in the prompts we optimised"
    if concept.probe_median is None:
        return f"{concept.name}: {shown} ({solved}; not checked in other prompts)."
    return f"{concept.name}: {shown} ({solved}, {1 - concept.probe_median:.0%} in unseen prompts)."


def _drift(part: Drift) -> str:
    worst = ", ".join(f"{name} {value:.1%}" for name, value in part.worst[:3])
    drift = f"drift median {part.median:.1%}, 95th percentile {part.p95:.1%}, maximum {part.maximum:.1%}"
    return f"{GROUPS[part.group]} ({PLACES[part.where]}, {part.names}): {drift}; moved most: {worst}."
