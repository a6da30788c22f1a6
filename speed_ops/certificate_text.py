"""The certificate in plain words."""

from __future__ import annotations

from .certificate import Certificate, ConceptResult, Drift

_GROUPS = {"kept": "Kept names", "filtered": "Filtered names", "held_out": "Held-out names"}
_LISTED = 12  # concepts printed one by one; longer lists are summed up


def describe(certificate: Certificate) -> str:
    """A short report: verdicts, what was preserved, the model's invariants, warnings."""
    lines = _concepts(certificate.concepts) + [_drift(part) for part in certificate.drift]
    if certificate.sot_drift is not None:
        worst = max([certificate.sot_drift, *certificate.null_text_drift])
        lines.append(f"Empty prompt: moves by {worst:.1e} at most.")
    rooms = [layer.room for layer in certificate.layers]
    ranks = {layer.rank for layer in certificate.layers}
    lines.append(
        f"{len(rooms)} layer{'s' if len(rooms) != 1 else ''}, rank {max(ranks)}, "
        f"null space {min(rooms)} to {max(rooms)} dimensions, "
        f"{sum(certificate.seconds.values()):.2f} s."
    )
    chosen = certificate.settings
    if chosen.get("preset_name") == "auto":
        rows = f"{chosen['rows_per_concept']} rows a concept"
        lines.append(f"auto chose threshold {chosen['threshold']:g}, at most {rows}.")
    if certificate.rounds:
        leaks = " -> ".join(f"{turn.mean_leak:.0%}" for turn in certificate.rounds)
        lines.append(f"Adversarial rounds: leak {leaks}.")
    return "\n".join(lines + [f"Warning: {text}" for text in certificate.warnings])


def _concepts(concepts: tuple[ConceptResult, ...]) -> list[str]:
    if len(concepts) <= _LISTED:
        return [_concept(concept) for concept in concepts]
    counts: dict[str, int] = {}
    for concept in concepts:
        counts[concept.verdict] = counts.get(concept.verdict, 0) + 1
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    weakest = sorted(concepts, key=lambda concept: -(concept.probe_median or concept.solved_median))[:5]
    return [f"{len(concepts)} concepts: {listed}. Weakest:", *[_concept(concept) for concept in weakest]]


def _concept(concept: ConceptResult) -> str:
    solved = f"{1 - concept.solved_median:.0%} gone on the rows solved for"
    if concept.probe_median is None:
        return f"{concept.name}: {concept.verdict} ({solved}; no other context was checked)."
    return f"{concept.name}: {concept.verdict} ({solved}, {1 - concept.probe_median:.0%} in unseen contexts)."


def _drift(part: Drift) -> str:
    place = "in context" if part.where == "context" else "bare"
    worst = ", ".join(f"{name} {value:.1%}" for name, value in part.worst[:3])
    return (
        f"{_GROUPS[part.group]} ({place}, {part.names}): drift median {part.median:.1%}, p95 {part.p95:.1%}, "
        f"max {part.maximum:.1%}; most moved: {worst}."
    )
