"""Which rows of which prompts stand for a concept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..concepts.kinds import BARE, Kind, Template
from ..errors import SettingsError
from .tokens import IN_CONTEXT, Position


@dataclass(frozen=True)
class RowPlan:
    """How much text is made of a name. `RowPlan.bare()` is the paper's choice, `RowPlan.context()` the default."""

    rows: Literal["bare", "context"] = "context"
    """bare: the name alone, at the rows its kind says; context: the name alone and inside templates."""
    templates: int = 6
    """Templates around each target."""
    positions: Position = IN_CONTEXT
    """Rows taken from each template, of targets and anchors alike."""
    retain_templates: int = 5
    """Templates around each retain name that is worth its contexts: more of them, less drift, and more to encode
    (docs/proof, the curve `retain_templates`: 0.096 without any, 0.082 with two, 0.065 with five)."""
    retain_positions: Position = IN_CONTEXT
    """Rows taken from those. Without the last padding row prompts need not be padded, which is many times cheaper."""
    probe_templates: int = 4
    """Unseen templates in which the result is checked."""
    hold_anchors: bool = True
    """Whether anchors, and templates with the name left out, are retained like names: they are where targets go."""
    empty_anchor: Literal["same row", "start"] = "same row"
    """What stands for an empty anchor of a bare name: the same row of the empty prompt, or its start token."""

    @classmethod
    def bare(cls) -> RowPlan:
        """As in the paper and its released code, which takes the start token where the anchor is empty."""
        return cls(rows="bare", hold_anchors=False, empty_anchor="start")

    @classmethod
    def context(cls) -> RowPlan:
        """Rows in context on both sides."""
        return cls()

    def solve_templates(self, kind: Kind) -> tuple[Template, ...]:
        """Prompts that the edit is made from: the name alone, and the first templates of its kind if in context."""
        return (BARE, *kind.templates[: self.templates]) if self.rows == "context" else (BARE,)

    def unseen_templates(self, kind: Kind) -> tuple[Template, ...]:
        """Prompts that only the check sees."""
        return kind.probe_templates[: self.probe_templates]

    def __post_init__(self) -> None:
        if self.rows not in ("bare", "context"):
            raise SettingsError(f"Rows are 'bare' or 'context', not {self.rows!r}.")
        if self.empty_anchor not in ("same row", "start"):
            raise SettingsError(f"The empty anchor is 'same row' or 'start', not {self.empty_anchor!r}.")
        for name in ("templates", "retain_templates", "probe_templates"):
            low = 1 if name == "probe_templates" else 0
            if not low <= getattr(self, name) <= 100:
                raise SettingsError(f"{name} is {getattr(self, name)}: it must be from {low} to 100.")
        if not self.positions or not self.retain_positions:
            raise SettingsError("No token position was chosen: choose at least one, such as the last subject token.")
