"""Which rows of which prompts stand for a concept, and how many prompts that makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import SettingsError
from .kinds import BARE, ON_TRIAL, Kind, Template
from .tokens import IN_CONTEXT, KEPT_BESIDES, Position


@dataclass(frozen=True)
class Effort:
    """How many prompts an erasure may encode."""

    templates: int
    """At most this many around each target."""
    target_prompts: int
    """Prompts of all targets together, beyond which each gets fewer templates: anchors and checks
    come on top.
    """
    names: int
    """Kept names in prompts."""
    captions: int
    """Plain captions without any name."""
    judges: int
    """Names set aside for `auto` to choose by, and as many for the certificate to judge by."""
    considered: int
    """Kept names that are looked at at all, drawn by the seed."""


# Where encoding time goes best, by measurement (docs/frontier.md, "Where the time goes"): many kept
# names in two prompts each rather than few in many, and both sides in the same templates. On two
# cores a prompt takes CLIP-L 0.1 s and SDXL's pair 0.7 s: `quick` is made for SDXL there, `normal`
# for SD1.x, `thorough` for a GPU.
EFFORTS: dict[str, Effort] = {
    "quick": Effort(
        templates=6, target_prompts=60, names=60, captions=40, judges=16, considered=300
    ),
    "normal": Effort(
        templates=12, target_prompts=300, names=200, captions=150, judges=32, considered=10**6
    ),
    "thorough": Effort(
        templates=17, target_prompts=2000, names=1000, captions=400, judges=100, considered=10**6
    ),
}
FEWEST_TEMPLATES = 3
"""Around each target, however many there are."""


@dataclass(frozen=True)
class RowPlan:
    """How much text is made of a name. `RowPlan.bare()` is the paper's choice, `RowPlan.context()`
    the default.

    The defaults of the fields are those of the first release, whose recipes do not name the later
    ones.
    """

    rows: Literal["bare", "context"] = "context"
    """bare: the name alone, at the rows its kind says; context: the name alone and inside
    templates.
    """
    templates: int = 6
    """Templates around each target."""
    positions: Position = IN_CONTEXT
    """Rows taken from each template, of targets and anchors alike."""
    retain_templates: int = 5
    """Prompts around each kept name that is worth them. Where `rotate` is on, another selection for
    each name.
    """
    retain_positions: Position = IN_CONTEXT
    """Rows taken from those."""
    probe_templates: int = 4
    """Unseen templates in which the result is checked."""
    hold_anchors: bool = True
    """Whether anchors, and templates with the name left out, are retained like names: they are
    where targets go.
    """
    empty_anchor: Literal["same row", "start"] = "same row"
    """What stands for an empty anchor of a bare name: the same row of the empty prompt, or its
    start token.
    """
    rotate: bool = False
    """Whether the kept names share the targets' templates out among themselves, so that each is met
    by some.
    """
    names: int = 0
    """Kept names in prompts, the most endangered first; 0: those that an unprotected edit moves
    more than the mean.
    """
    captions: int = 0
    """Built-in plain captions among the kept, so that ordinary prompts are protected whatever the
    list.
    """
    judges: int = 0
    """Kept names set aside for `auto` to choose by, and as many for the certificate; 0: the engine
    sets some aside.
    """
    trial_templates: int = 0
    """Templates in which `auto` chooses."""
    considered: int = 10**6
    """Kept names that are looked at at all."""

    @classmethod
    def bare(cls) -> RowPlan:
        """As in the paper and its released code, which takes the start token where the anchor is
        empty.
        """
        return cls(rows="bare", hold_anchors=False, empty_anchor="start")

    @classmethod
    def context(cls, effort: str = "normal", concepts: int = 1) -> RowPlan:
        """Rows of the whole prompt on both sides; fewer templates where there are many concepts."""
        size = EFFORTS[effort]
        share = size.target_prompts // max(1, concepts)
        return cls(
            templates=max(FEWEST_TEMPLATES, min(size.templates, share)),
            positions=Position.SPREAD,
            retain_templates=2,
            retain_positions=Position.SPREAD | KEPT_BESIDES,
            probe_templates=max(2, min(4, share // 2)),
            rotate=True,
            names=size.names,
            captions=size.captions,
            judges=size.judges,
            trial_templates=max(1, min(ON_TRIAL, share // 3)),
            considered=size.considered,
        )

    def prompts(self, names: int) -> int:
        """Whole prompts to encode for this many kept names, in addition to the bare names.

        An upper bound: what repeats is encoded once.
        """
        if self.rows == "bare":
            return 0
        inside = min(names, self.names or names)
        return inside * self.retain_templates + self.captions + min(4 * self.judges, names)

    def solve_templates(self, kind: Kind) -> tuple[Template, ...]:
        """Prompts that the edit is made from: the name alone, and the first templates of its kind
        if in context.
        """
        if self.rows == "bare":
            return (BARE,)
        last = len(kind.templates) - (ON_TRIAL if self.trial_templates else 0)
        return (BARE, *kind.templates[: min(self.templates, last)])

    def retain_prompts(self, kind: Kind, place: int) -> tuple[Template, ...]:
        """Prompts around the kept name at a place of the ranking."""
        if not self.rotate:
            return kind.templates[: self.retain_templates]
        return _turn(self.solve_templates(kind), self.retain_templates, place)

    def trial_prompts(self, kind: Kind) -> tuple[Template, ...]:
        """Prompts that only `auto` sees."""
        return kind.templates[-ON_TRIAL:][: self.trial_templates]

    def witness_prompts(self, kind: Kind) -> tuple[Template, ...]:
        """The same, all of them: names to judge by go round them."""
        return kind.templates[-ON_TRIAL:]

    def unseen_templates(self, kind: Kind) -> tuple[Template, ...]:
        """Prompts that only the check sees."""
        return kind.probe_templates[: self.probe_templates]

    def __post_init__(self) -> None:
        if self.rows not in ("bare", "context"):
            raise SettingsError(f"Rows are 'bare' or 'context', not {self.rows!r}.")
        if self.empty_anchor not in ("same row", "start"):
            raise SettingsError(
                f"The empty anchor is 'same row' or 'start', not {self.empty_anchor!r}."
            )
        limits = {
            "templates": 100,
            "retain_templates": 100,
            "probe_templates": 100,
            "trial_templates": ON_TRIAL,
        }
        counts = {"names": 10**6, "captions": 10**4, "judges": 10**4, "considered": 10**6}
        for name, high in (limits | counts).items():
            low = 1 if name == "probe_templates" else 0
            if not low <= getattr(self, name) <= high:
                raise SettingsError(
                    f"{name} is {getattr(self, name)}: it must be from {low} to {high}."
                )
        if not self.positions or not self.retain_positions:
            raise SettingsError(
                "No token position was chosen: choose at least one, such as the last subject token."
            )


def judging_prompts(templates: Sequence[Template], place: int) -> tuple[Template, ...]:
    """Prompts around a name that others are judged by: two, and another pair for the next name."""
    return _turn(tuple(templates), 2, place)


def _turn(templates: tuple[Template, ...], count: int, place: int) -> tuple[Template, ...]:
    """`count` of the templates, going round them from name to name."""
    if not templates:
        return ()
    start = place * count
    return tuple(dict.fromkeys(templates[(start + step) % len(templates)] for step in range(count)))
