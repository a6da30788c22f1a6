"""The three answers that people want, from a certificate: is it gone, did anything else change, and
what changed most. Every output shows this one summary; `details` has the measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import Notice
from ..inputs import INPUT_TITLES
from .certificate import Certificate, ConceptResult, Drift, Verdict, helped_by_more
from .verdicts import decimals, verdict_in_words

Level = Literal["none", "tiny", "small", "visible"]
Advice = Literal[
    "compare",
    "find_leaks",
    "save",
    "use_auto",
    "erase_fully",
    "closer_replacement",
    "raise_strength",
    "protect_fewer",
]
"""What to do next."""
ADVICE_WORDS: dict[Advice, str] = {
    "compare": "Generate a few images with the original and with this model, and compare them.",
    "find_leaks": "Check for loopholes: aliases, typos and descriptions that still work.",
    "use_auto": "Use the auto preset, which edits names inside whole prompts.",
    "erase_fully": "Choose the priority 'erase fully', or a higher limit.",
    "closer_replacement": (
        "Choose a replacement closer to the original, such as 'oil painting' instead of 'art'."
    ),
    "raise_strength": "Raise the strength in steps of 0.1. Side effects grow with it.",
    "protect_fewer": "Protect fewer names that are similar to the concept.",
}
"""What reports and the UI say; the command line has its own words, with flags."""

# From images (docs/research/image-tests): up to a mean drift of 0.3 the protected painters and
# subjects are recognized as before, up to 0.6 in all but two or three of a hundred images.
LEVELS: tuple[tuple[float, Level], ...] = ((0.10, "none"), (0.30, "tiny"), (0.60, "small"))
LEVEL_MARKS = tuple(mark for mark, _ in LEVELS)
LEVEL_WORDS: dict[Level, str] = {
    "none": "no visible change expected",
    "tiny": "tiny changes, seen only side by side",
    "small": "small changes; still recognizable",
    "visible": "visible changes",
}
WORST_WORDS = {level: words.partition(";")[0] for level, words in LEVEL_WORDS.items()}
"""The same, for the most affected name."""
GROUPS: dict[str, str] = {
    "kept": "Protected names",
    "filtered": "Listed but unprotected names",
    "held_out": "Test names",
}
"""What people call the groups of names whose drift is measured."""
PLACES: dict[str, str] = {"bare": "alone", "context": "in prompts"}
"""What people call the places where it is measured."""
BLANK_BELOW = 1e-6
"""Drift of the blank prompt that counts as none: rounding."""
SHOWN_AFFECTED = 5
_LISTED = 5  # concepts with a line of their own in text; the least erased ones


def level_of(drift: float) -> Level:
    """How visible a drift is, by images of our test models."""
    return next((level for limit, level in LEVELS if drift < limit), "visible")


@dataclass(frozen=True)
class SideEffects:
    """What else changed."""

    level: Level
    mean: float
    """Of the group that moved most: test names where there are any, else protected ones."""
    limit: float | None
    most_affected: tuple[tuple[str, float], ...]
    """Names with their drift, the most affected first."""

    @property
    def worst_level(self) -> Level:
        """That of the most affected name."""
        return level_of(self.most_affected[0][1]) if self.most_affected else self.level

    @property
    def worst_words(self) -> str:
        """The same in words, where it differs from that of all names."""
        return "" if self.worst_level == self.level else WORST_WORDS[self.worst_level]

    def text(self, names: int = 1) -> str:
        """In words, with the most affected names; the latter are none where `names` is 0."""
        if not self.most_affected or not names:
            return LEVEL_WORDS[self.level]
        shown = ", ".join(name for name, _ in self.most_affected[:names])
        text = f"{LEVEL_WORDS[self.level]}; most affected: {shown}"
        return f"{text} ({self.worst_words})" if self.worst_words else text


@dataclass(frozen=True)
class Summary:
    """What people need to know about an erasure."""

    concepts: tuple[tuple[ConceptResult, str], ...]
    """Each with its replacement, the least erased first."""
    counts: dict[Verdict, int]
    side_effects: SideEffects | None
    """None where no names were measured."""
    protected: SideEffects | None
    """The same for protected names alone."""
    unlisted: SideEffects | None
    """The same for test names, which show what happens to names on no list."""
    unprotected: SideEffects | None
    """The same for listed names that a preset of the paper leaves out."""
    blank_prompt_unchanged: bool
    why: Notice | None
    """Why a concept is not erased, in one sentence."""
    advice: tuple[Advice, ...]
    """What to do next, the most helpful first."""

    @property
    def verdict(self) -> Verdict:
        """That of the least erased concept."""
        return max(self.counts, key=_WORST_LAST.index)

    def effects(self) -> Iterator[tuple[str, SideEffects]]:
        """What changed in each group of names, by what people call the group."""
        groups = {
            "Protected names": self.protected,
            "Unlisted names": self.unlisted,
            "Unprotected names": self.unprotected,
        }
        yield from ((name, group) for name, group in groups.items() if group is not None)

    def lines(self) -> Iterator[str]:
        """The answers as text, one line per concept for the least erased ones."""
        listed = self.concepts if len(self.concepts) <= _LISTED + 1 else self.concepts[:_LISTED]
        for concept, replacement in listed:
            yield f"{concept_title(concept.name, replacement)}: {verdict_in_words(concept.verdict)}"
        rest = Counter(concept.verdict for concept, _ in self.concepts[len(listed) :])
        if rest:
            yield f"and {more_in_words(rest)}"
        if self.why is not None:
            yield str(self.why)
        if self.side_effects is not None:
            yield f"Other names: {self.side_effects.text()}"


_WORST_LAST: tuple[Verdict, ...] = ("erased", "unproven", "weakened", "stands")
_WHY_CODES = (
    "bare_names_only",
    "settings_too_weak",
    "limit_reached",
    "as_erased_as_possible",
    "limit_hardly_helps",
)


def more_in_words(counts: dict[Verdict, int] | Counter[Verdict]) -> str:
    """Concepts that have no line of their own: `95 more, all erased`."""
    total = sum(counts.values())
    if len(counts) == 1:
        return f"{total:,} more, all {verdict_in_words(next(iter(counts)))}"
    parts = [f"{counts[name]:,} {verdict_in_words(name)}" for name in _WORST_LAST if name in counts]
    return f"{total:,} more: {', '.join(parts)}"


def advice_in_words(advice: Sequence[Advice]) -> list[Notice]:
    """The sentences of advice that has any, each with the advice as its code."""
    return [Notice(ADVICE_WORDS[key], code=key) for key in advice if key in ADVICE_WORDS]


def concept_title(name: str, replacement: str | None) -> str:
    """A concept with what it becomes."""
    if replacement is None:
        return name
    return f"{name} \N{RIGHTWARDS ARROW} {replacement or '(nothing)'}"


def summarize(certificate: Certificate, replacements: Sequence[str] = ()) -> Summary:
    """The summary of a certificate.

    Args:
        certificate: What was measured.
        replacements: What each concept becomes, in the certificate's order, where that is known.
    """
    known: Sequence[str | None] = replacements or [None] * len(certificate.concepts)
    concepts = sorted(
        zip(certificate.concepts, known, strict=True), key=lambda pair: -_remaining(pair[0])
    )
    return Summary(
        concepts=tuple(concepts),  # type: ignore[arg-type]
        counts=dict(Counter(concept.verdict for concept in certificate.concepts)),
        side_effects=_side_effects(certificate, ("held_out", "filtered", "kept")),
        protected=_side_effects(certificate, ("kept",)),
        unlisted=_side_effects(certificate, ("held_out",)),
        unprotected=_side_effects(certificate, ("filtered",)),
        blank_prompt_unchanged=blank_prompt_drift(certificate) < BLANK_BELOW,
        why=next((n for n in certificate.warnings if n.code in _WHY_CODES), None),
        advice=tuple(_advice(certificate)),
    )


def blank_prompt_drift(certificate: Certificate) -> float:
    """How far the blank prompt moved, at most."""
    return max([certificate.sot_drift or 0.0, *certificate.null_text_drift])


def _remaining(concept: ConceptResult) -> float:
    """What sorts concepts: the score, and untested ones first."""
    return float("inf") if concept.score is None else concept.score


def _side_effects(certificate: Certificate, names: Sequence[str]) -> SideEffects | None:
    limit = None if certificate.curve is None else certificate.curve.budget
    return side_effects([group for group in certificate.drift if group.group in names], limit)


def side_effects(groups: Sequence[Drift], limit: float | None = None) -> SideEffects | None:
    """What happened to these groups of names; None without any."""
    if not groups:
        return None
    affected: dict[str, float] = {}
    for group in groups:
        for name, drift in group.worst:
            affected[name] = max(drift, affected.get(name, 0.0))
    ranked = sorted(affected.items(), key=lambda item: -item[1])[:SHOWN_AFFECTED]
    mean = max(group.mean for group in _judging(groups))
    return SideEffects(level_of(mean), mean, limit, tuple(ranked))


def _judging(groups: Sequence[Drift]) -> Sequence[Drift]:
    """The groups that describe unlisted names best: in prompts, and test names if any."""
    in_prompts = [group for group in groups if group.where == "context"] or groups
    return [group for group in in_prompts if group.group == "held_out"] or in_prompts


def _advice(certificate: Certificate) -> Iterator[Advice]:
    verdicts = {concept.verdict for concept in certificate.concepts}
    if verdicts <= {"erased"}:
        yield "compare"
        yield "find_leaks"
        yield "save"
        return
    codes = {notice.code for notice in certificate.warnings}
    if "unproven" in verdicts or codes & {"bare_names_only", "settings_too_weak"}:
        yield "use_auto"
        return
    if certificate.curve is not None and helped_by_more(certificate.curve) is not None:
        yield "erase_fully"
    yield "closer_replacement"
    yield "raise_strength"
    if certificate.curve is not None and certificate.curve.in_the_way:
        yield "protect_fewer"


def details(certificate: Certificate) -> Iterator[Notice]:
    """All measurements, for people who ask for them, and then all warnings."""
    yield from measurements(certificate)
    for name, part in certificate.other_inputs.items():
        yield Notice(f"{INPUT_TITLES[name]}:")
        yield from (Notice(f"  {line}", **line.data) for line in details(part))
    yield from (Notice(f"Note: {notice}", **notice.data) for notice in certificate.warnings)


def measurements(certificate: Certificate) -> Iterator[Notice]:
    """What was measured at the text input of a certificate."""
    for concept in certificate.concepts:
        yield _concept_details(concept)
    for group in certificate.drift:
        yield drift_line(group)
    if certificate.sot_drift is not None:
        drift = blank_prompt_drift(certificate)
        yield Notice(
            f"Blank prompt: drift at most {drift:.1g}",
            code="measured_blank_prompt",
            drift=f"{drift:.1g}",
        )
    rooms = [layer.room for layer in certificate.layers]
    rank = max(layer.rank for layer in certificate.layers)
    seconds = sum(certificate.seconds.values())
    yield Notice(
        f"{len(rooms)} layers, rank {rank}, {min(rooms)} free dimensions, {seconds:.2f} s",
        code="measured_layers",
        layers=len(rooms),
        rank=rank,
        room=min(rooms),
        seconds=seconds,
    )
    if (curve := certificate.curve) is not None:
        judges = "tuning names" if curve.unseen else "protected names"
        limit = "" if curve.budget is None else f" (limit {curve.budget:g})"
        yield Notice(
            f"Chosen trade-off: {curve.chosen.left:.2f} remaining, drift"
            f" {curve.chosen.drift:.2f}{limit}, judged on {curve.names} {judges}",
            code="measured_trade_off",
            left=curve.chosen.left,
            drift=curve.chosen.drift,
            limit="–" if curve.budget is None else curve.budget,
            names=curve.names,
            judges=judges,
        )
    if certificate.rounds:
        leaks = " -> ".join(f"{round_.mean_leak:.0%}" for round_ in certificate.rounds)
        dropped = "" if certificate.rounds[-1].kept else "; the last round helped too little"
        yield Notice(
            f"Adversarial rounds: leak {leaks}{dropped}", code="measured_rounds", leaks=leaks
        )


def _concept_details(concept: ConceptResult) -> Notice:
    parts = [f"{concept.solved_median:.2f} in the prompts that made the edit"]
    if concept.score is not None:
        parts.insert(0, f"score {decimals(concept.score, 1.0)} (erased up to 1)")
        parts.append(f"{concept.probe_median:.2f} in new prompts")
    if concept.probe_to_go is not None:
        parts.append(f"distance to the replacement {concept.probe_to_go:.2f}")
    verdict = verdict_in_words(concept.verdict)
    return Notice(
        f"{concept.name}: {verdict}; remaining: {', '.join(parts)}",
        code="measured_concept" if concept.score is None else "measured_score",
        concept=concept.name,
        verdict=verdict,
        solved=concept.solved_median,
        score=concept.score,
        probed=concept.probe_median,
        to_go="–" if concept.probe_to_go is None else concept.probe_to_go,
    )


def drift_line(group: Drift) -> Notice:
    """A group of names: how far they moved, and which moved most."""
    worst = ", ".join(f"{name} {drift:.2f}" for name, drift in group.worst[:3])
    return Notice(
        f"{GROUPS[group.group]} ({PLACES[group.where]}, {group.names}): drift mean"
        f" {decimals(group.mean, *LEVEL_MARKS)}, median {group.median:.2f}, 95th percentile"
        f" {group.p95:.2f}, maximum {group.maximum:.2f}; most affected: {worst}",
        code="measured_group",
        group=group_title(group),
        names=group.names,
        mean=group.mean,
        median=group.median,
        p95=group.p95,
        maximum=group.maximum,
        worst=worst,
    )


def group_title(group: Drift) -> str:
    """Which names, and where: `Test names, in prompts`."""
    return f"{GROUPS[group.group]}, {PLACES[group.where]}"
