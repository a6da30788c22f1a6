"""Which rows of which prompts represent a concept, and how many prompts that makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import SettingsError
from ..inputs import Prompting, RowMode
from .kinds import BARE, CAPTION, TRIAL_TEMPLATES, Kind, Template, context_kind
from .tokens import EXTRA_KEPT_POSITIONS, IN_CONTEXT, Position


@dataclass(frozen=True)
class EffortLimits:
    """How many prompts an erasure may encode."""

    templates: int
    """Most templates around each target."""
    target_prompts: int
    """Prompts of all targets, beyond which each gets fewer templates (not anchors, checks)."""
    names: int
    """Kept names in prompts."""
    captions: int
    """Plain captions without any name."""
    judges: int
    """Names set aside for `auto` to choose by, and as many for the certificate to judge by."""
    considered: int
    """Kept names that are considered at all, drawn by the seed."""


# Where encoding time helps most (docs/research/limits.md, "Where the time goes"): many protected
# names in two prompts each rather than few in many, and both sides in the same templates. On two
# cores a prompt takes CLIP-L 0.1 s and SDXL's pair 0.7 s: `fast` is made for SDXL there, `normal`
# for SD1.x, `thorough` for a GPU.
EFFORTS: dict[str, EffortLimits] = {
    "fast": EffortLimits(
        templates=6, target_prompts=60, names=60, captions=40, judges=16, considered=300
    ),
    "normal": EffortLimits(
        templates=12, target_prompts=300, names=200, captions=150, judges=32, considered=10**6
    ),
    "thorough": EffortLimits(
        templates=17, target_prompts=2000, names=1000, captions=400, judges=100, considered=10**6
    ),
}
MIN_TEMPLATES = 3
"""Fewest templates around each target, however many targets there are."""
_MAXIMA = {
    "templates": 100,
    "retain_templates": 100,
    "probe_templates": 100,
    "trial_templates": TRIAL_TEMPLATES,
    "names": 10**6,
    "captions": 10**4,
    "judges": 10**4,
    "considered": 10**6,
}


@dataclass(frozen=True)
class RowPlan:
    """How much text is made of a name: `bare()` as in the paper, `context()` by default."""

    rows: RowMode = "context"
    """bare: the name alone, at the rows of its kind; context: also inside templates."""
    templates: int = 6
    """Templates around each target."""
    positions: Position = IN_CONTEXT
    """Rows taken from each template, of targets and anchors alike."""
    retain_templates: int = 5
    """Prompts around each kept name that is worth them: the next ones for the next name."""
    retain_positions: Position = IN_CONTEXT
    """Rows taken from those."""
    probe_templates: int = 4
    """Unseen templates in which the result is checked."""
    hold_anchors: bool = True
    """Whether anchors, and templates without a name, are retained: they are where targets go."""
    empty_anchor: Literal["same row", "start"] = "same row"
    """For an empty anchor of a bare name: the same row of the empty prompt, or its start token."""
    names: int = 0
    """Kept names in prompts, the most endangered first."""
    captions: int = 0
    """Built-in captions that are kept, so that ordinary prompts are protected whatever the list."""
    judges: int = 0
    """Kept names for `auto` to choose by, and as many for the certificate; 0: set by the engine."""
    trial_templates: int = 0
    """Templates in which `auto` chooses."""
    considered: int = 10**6
    """Kept names that are considered at all."""
    prompting: Prompting = "auto"
    """How people prompt the model."""

    @classmethod
    def bare(cls) -> RowPlan:
        """As in the paper and its code, which takes the start token for an empty anchor."""
        return cls(rows="bare", hold_anchors=False, empty_anchor="start")

    @classmethod
    def context(
        cls, effort: str = "normal", concepts: int = 1, prompting: Prompting = "auto"
    ) -> RowPlan:
        """Rows of the whole prompt on both sides; fewer templates where there are many concepts.

        Args:
            effort: How many prompts to encode.
            concepts: How many concepts are erased.
            prompting: How people prompt the model.
        """
        limits = EFFORTS[effort]
        share = limits.target_prompts // max(1, concepts)
        return cls(
            templates=max(MIN_TEMPLATES, min(limits.templates, share)),
            positions=Position.INFORMATIVE,
            retain_templates=2,
            retain_positions=Position.INFORMATIVE | EXTRA_KEPT_POSITIONS,
            probe_templates=max(2, min(4, share // 2)),
            names=limits.names,
            captions=limits.captions,
            judges=limits.judges,
            trial_templates=max(1, min(TRIAL_TEMPLATES, share // 3)),
            considered=limits.considered,
            prompting=prompting,
        )

    def prompted(self, usual: Prompting) -> RowPlan:
        """The plan for a model that is usually prompted in this way."""
        return replace(self, prompting=usual) if self.prompting == "auto" else self

    def prompts(self, names: int, limit: int) -> int:
        """Upper bound of the prompts to encode for this many kept names, in addition to the bare
        names; at most `limit` of them are put into prompts.
        """
        if self.rows == "bare":
            return 0
        in_prompts = min(names, limit, self.names)
        return in_prompts * self.retain_templates + self.captions + min(4 * self.judges, names)

    def solve_templates(self, kind: Kind) -> tuple[Template, ...]:
        """Prompts that the edit is made from: the name alone and, in context, in templates."""
        if self.rows == "bare":
            return (BARE,)
        kind = kind.prompted(self.prompting)
        available = kind.templates[:-TRIAL_TEMPLATES] if self.trial_templates else kind.templates
        return (BARE, *available[: self.templates])

    def retain_prompts(self, kind_name: str, rank: int) -> tuple[Template, ...]:
        """Prompts around the kept name of a kind and a rank; captions are prompts already."""
        kind = context_kind(kind_name)
        if kind is CAPTION:
            return (BARE,)
        return _rotate(self.solve_templates(kind), self.retain_templates, rank)

    @staticmethod
    def judging_prompts(
        kind_name: str, templates: Callable[[Kind], Sequence[Template]], rank: int
    ) -> tuple[Template, ...]:
        """Prompts around a name that edits are judged by: two, and the next two for the next name.

        Args:
            kind_name: Kind whose templates fit the name; captions are prompts already.
            templates: The templates of a kind.
            rank: Index of the name.
        """
        kind = context_kind(kind_name)
        return (BARE,) if kind is CAPTION else _rotate(templates(kind), 2, rank)

    def trial_prompts(self, kind: Kind) -> tuple[Template, ...]:
        """Prompts that only `auto` sees."""
        return self.witness_prompts(kind)[: self.trial_templates]

    def witness_prompts(self, kind: Kind) -> tuple[Template, ...]:
        """Prompts around the names that `auto` judges by."""
        return kind.prompted(self.prompting).templates[-TRIAL_TEMPLATES:]

    def unseen_templates(self, kind: Kind) -> tuple[Template, ...]:
        """Prompts that only the check sees."""
        return self.new_prompts(kind)[: self.probe_templates]

    def new_prompts(self, kind: Kind) -> tuple[Template, ...]:
        """Prompts that no edit is made from."""
        return kind.prompted(self.prompting).probe_templates

    def __post_init__(self) -> None:
        if self.rows not in ("bare", "context"):
            raise SettingsError(f"There are no rows {self.rows!r}. Use 'bare' or 'context'.")
        if self.empty_anchor not in ("same row", "start"):
            raise SettingsError(
                f"There is no empty_anchor {self.empty_anchor!r}. Use 'same row' or 'start'."
            )
        for name, high in _MAXIMA.items():
            low = 1 if name == "probe_templates" else 0
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingsError(f"{name} is {value}. Use {low} to {high}.")
        if not self.positions or not self.retain_positions:
            raise SettingsError(
                "No token position was chosen. Choose at least one, such as the last subject token."
            )


def _rotate(templates: Sequence[Template], count: int, rank: int) -> tuple[Template, ...]:
    """The next `count` templates for each rank, from the start again after the last."""
    if not templates:
        return ()
    start = rank * count
    return tuple(dict.fromkeys(templates[(start + i) % len(templates)] for i in range(count)))
