"""What a user asks for: concepts, names to keep, settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .engine.settings import EraseSettings
from .errors import InputError, SettingsError
from .inputs import Prompting
from .text.concept_list import Concept
from .text.kinds import kind_of
from .text.plan import RowPlan
from .text.retain_set import RetainSet, builtin_retain, union

HELD_OUT_SHARE = 0.1
"""Share of the protected names that hosts leave unprotected as test names; the effort limits their
number."""
MAX_STRENGTH = 100.0
"""Far beyond any use: at 1 a concept has become its anchor."""


def host_settings(name: str, **changes: Any) -> EraseSettings:
    """A preset as hosts run it, with test names. The paper's presets have none: there, all listed
    names are protected.

    Args:
        name: The preset.
        changes: Settings that differ from it.
    """
    settings = EraseSettings.preset(name, **changes)
    if "held_out" in changes or settings.rows == "bare":
        return settings
    return settings.replace(held_out=HELD_OUT_SHARE)


@dataclass(frozen=True)
class Job:
    """What a user asks for, before any model is opened."""

    concepts: tuple[Concept, ...]
    retain: RetainSet
    settings: EraseSettings
    plan: RowPlan
    blocklists: tuple[str, ...] = ()
    """Lists that concepts came from in a fixed version: `name@sha256:digest`."""

    @classmethod
    def of(
        cls, concepts: Sequence[Concept], retain: RetainSet | None, settings: EraseSettings
    ) -> Job:
        """The job with the rows that its settings ask for.

        Args:
            concepts: What to erase; at least one.
            retain: Names to keep; None means the built-in ones for the concepts' kinds.
            settings: How to erase.
        """
        if not concepts:
            raise InputError("There is nothing to erase. Name at least one concept.")
        plan = (
            RowPlan.context(settings.effort, len(concepts), settings.prompting)
            if settings.rows == "context"
            else RowPlan.bare()
        )
        return cls(
            tuple(concepts), default_retain(concepts) if retain is None else retain, settings, plan
        )

    def prompted(self, usual: Prompting) -> Job:
        """The job for a model that is usually prompted in this way."""
        return replace(self, plan=self.plan.prompted(usual))


def default_retain(concepts: Sequence[Concept]) -> RetainSet:
    """The built-in names to keep for the kinds of these concepts."""
    return union(builtin_retain(label) for label in default_lists(item.kind for item in concepts))


def default_lists(kinds: Iterable[str]) -> list[str]:
    """Labels of the built-in lists that suit these kinds, each once."""
    return list(dict.fromkeys(label for kind in kinds for label in kind_of(kind).retain_sets))


def check_strength(value: float) -> float:
    """A strength that can be applied: finite and within reason. NaN would turn every picture
    black.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not -MAX_STRENGTH <= value <= MAX_STRENGTH
    ):
        raise SettingsError(
            f"The strength is {str(value)[:40]}. Use a number from {-MAX_STRENGTH:g} to"
            f" {MAX_STRENGTH:g}."
        )
    return float(value)
