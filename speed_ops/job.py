"""What a user asks for, and the recipe it is stored as so that anybody can repeat it on another
model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .engine.settings import EraseSettings
from .errors import FileError, InputError, SettingsError
from .files.header import MAX_HEADER_BYTES
from .provenance import LISTED_NAMES, header_size, package_version, widest_certificate
from .recipe import Recipe, RecipeConcept, RecipeRetain
from .text.concept_list import Concept, ConceptList
from .text.kinds import kind_of
from .text.names import clean_name, fold, has_invisible, invisible_note, quoted
from .text.plan import RowPlan
from .text.retain_set import (
    RetainSet,
    builtin_retain,
    builtin_retain_sets,
    retain_from_names,
    retain_from_texts,
    union,
)
from .text.tokens import Position

HELD_OUT_SHARE = 0.1
"""Share of the kept names that nodes and command line hold out of the edit, to judge preservation
on; at most as many as the effort says."""
MAX_STRENGTH = 100.0
"""Far beyond any use: at 1 a concept has become its anchor."""
OWN_HEADER = 1_000_000
"""Bytes of a header that are left to a model whose own header is not known; none has needed half of
it.
"""
_POSITIONS = ("positions", "retain_positions")
_BEFORE = {"pooled": False}
"""What a stored recipe without these settings means: it is older than they are, and must give the
edit it gave then.
"""


@dataclass(frozen=True)
class Job:
    """What a user asks for, before any model is looked at."""

    concepts: tuple[Concept, ...]
    retain: RetainSet
    settings: EraseSettings
    plan: RowPlan

    @classmethod
    def of(
        cls, concepts: Sequence[Concept], retain: RetainSet | None, settings: EraseSettings
    ) -> Job:
        """The job with the rows that its settings ask for; without names to keep, the built-in ones
        for its kinds.
        """
        if not concepts:
            raise InputError("There is nothing to erase: name at least one concept.")
        plan = (
            RowPlan.context(settings.effort, len(concepts))
            if settings.rows == "context"
            else RowPlan.bare()
        )
        return cls(
            tuple(concepts), default_retain(concepts) if retain is None else retain, settings, plan
        )


def default_retain(concepts: Sequence[Concept]) -> RetainSet:
    """The built-in names to keep for the kinds of these concepts."""
    names = dict.fromkeys(
        name for concept in concepts for name in kind_of(concept.kind).retain_sets
    )
    return union(builtin_retain(name) for name in names)


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
            f"The strength is {str(value)[:40]}: it must be a number from {-MAX_STRENGTH:g} to"
            f" {MAX_STRENGTH:g}."
        )
    return float(value)


@dataclass(frozen=True)
class StoredJob:
    """A job read from a recipe, with what else the recipe says about carrying it out."""

    job: Job
    strength: float
    clip_skip: int | None
    notes: tuple[str, ...]
    """What differs from the day the recipe was written, one sentence each."""


def recipe_of(
    job: Job,
    *,
    strength: float = 1.0,
    clip_skip: int | None = None,
    family: str = "",
    base_hash: str = "",
    encoder_hash: str = "",
    history: Sequence[Recipe] = (),
) -> Recipe:
    """Everything that decides the edit, and which model it was made for. `history`: what was erased
    from it before.
    """
    concepts = tuple(
        RecipeConcept(one.target, one.anchor, one.kind, one.aliases) for one in job.concepts
    )
    kinds = dict.fromkeys(one.kind for one in job.concepts)
    templates = [
        template.text for kind in kinds for template in job.plan.solve_templates(kind_of(kind))
    ]
    return Recipe(
        concepts=concepts,
        settings=job.settings.to_dict(),
        seed=job.settings.seed,
        contexts=tuple(dict.fromkeys(templates)),
        rows=_plan_values(job.plan) | {"strength": float(strength), "clip_skip": clip_skip},
        retain=_stored_retain(job.retain),
        family=family,
        package_version=package_version(),
        base_hash=base_hash,
        encoder_hash=encoder_hash,
        history=tuple(history),
    )


def job_of(recipe: Recipe, what: str = "The recipe") -> StoredJob:
    """The job a recipe describes. Anybody may have written it: every value is checked before any
    work.
    """
    if recipe.redacted:
        raise FileError(
            f"{what} is redacted: it has hashes instead of names, so it cannot be repeated."
        )
    notes: list[str] = [
        f"{what} has an unknown field {name!r}, which is ignored." for name in recipe.unknown
    ]
    notes += _about_history(recipe, what)
    concepts = ConceptList(
        tuple(_concept(one, n, what) for n, one in enumerate(recipe.concepts, 1))
    )
    settings = _settings(recipe.settings, what, notes)
    retain = _retain(recipe.retain, what, notes)
    cleaned = [name for concept in concepts for name in concept.cleaned]
    notes += [*([invisible_note(cleaned)] if cleaned else ()), *retain.notes]
    job = dataclasses.replace(
        Job.of(tuple(concepts), retain, settings), plan=_plan(recipe.rows, settings, what)
    )
    rebuilt = recipe_of(job)
    if recipe.contexts and recipe.contexts != rebuilt.contexts:
        notes.append(
            f"{what} was written with other prompt templates: the result will differ a little."
        )
    return StoredJob(job, _strength(recipe.rows, what), _clip_skip(recipe.rows, what), tuple(notes))


def _about_history(recipe: Recipe, what: str) -> list[str]:
    count = sum(len(earlier.concepts) for earlier in recipe.history)
    if not count:
        return []
    others = "another concept" if count == 1 else f"{count:,} other concepts"
    those = "that recipe" if len(recipe.history) == 1 else f"those {len(recipe.history)} recipes"
    return [
        f"{what} was made on a model from which {others} had been erased before: for the same"
        f" result, apply {those} first."
    ]


def check_storable(
    job: Job, *, history: Sequence[Recipe] = (), salt: str | None = None, beside: int = OWN_HEADER
) -> None:
    """Refuses before the work lists so long that no file could hold what is known after it.

    `history` as for `recipe_of`. `salt`: names will be hashes, which may be longer. `beside`: bytes
    of the header that the source has of its own.
    """
    recipe = recipe_of(job, history=history)
    concepts, kept = [(one.target, one.kind) for one in job.concepts], job.retain.names
    if salt is not None:
        recipe = recipe.redacted_with(salt)
        concepts = [(stored.target, stored.kind) for stored in recipe.concepts]
        kept = (*kept, *[recipe.concepts[0].target] * LISTED_NAMES)
    size = header_size(recipe, widest_certificate(concepts, kept, job.settings.to_dict()))
    if size > MAX_HEADER_BYTES - beside:
        raise FileError(
            f"With these lists the recipe and the certificate are {size / 1e6:.1f} MB, too long for"
            " a file header: shorten them."
        )


def same_work(first: Recipe, second: Recipe) -> bool:
    """Whether two recipes ask for the same edit, whatever model, program version or spelling they
    were written for.
    """
    return _work_alone(first).to_json() == _work_alone(second).to_json()


def _work_alone(recipe: Recipe) -> Recipe:
    return dataclasses.replace(
        recipe, family="", package_version="", base_hash="", encoder_hash="", history=()
    )


def _concept(stored: RecipeConcept, number: int, what: str) -> Concept:
    where = f"{what}, concept {number}"
    kind_of(stored.kind)
    written = (stored.target, stored.anchor, *stored.aliases)
    names = [clean_name(name, where) for name in written]
    cleaned = tuple(fold(name) for name in written if has_invisible(name))
    return Concept(
        names[0], names[1], stored.kind, tuple(filter(None, names[2:])), number, what, cleaned
    )


def _settings(values: dict[str, Any], what: str, notes: list[str]) -> EraseSettings:
    known = {item.name for item in dataclasses.fields(EraseSettings)}
    notes += [
        f"{what} has an unknown setting {name!r}, which is ignored."
        for name in values
        if name not in known
    ]
    return EraseSettings.from_dict(
        _BEFORE | {name: value for name, value in values.items() if name in known}
    )


def _stored_retain(retain: RetainSet) -> tuple[RecipeRetain, ...]:
    """Built-in lists by name where that gives the very same set again; users' lists, and shortened
    ones, in full.
    """
    builtin = builtin_retain_sets()
    by_name = [
        _stored_source(retain, i, in_full=source.label not in builtin)
        for i, source in enumerate(retain.sources)
    ]
    notes: list[str] = []
    if _retain(tuple(by_name), "", notes).names == retain.names and not notes:
        return tuple(by_name)
    return tuple(_stored_source(retain, i, in_full=True) for i in range(len(retain.sources)))


def _stored_source(retain: RetainSet, index: int, *, in_full: bool) -> RecipeRetain:
    source = retain.sources[index]
    if not in_full:
        return RecipeRetain(source.label, source.sha256, source.kind)
    names = [
        name for name, origin in zip(retain.names, retain.origins, strict=True) if origin == index
    ]
    own = retain_from_names(names, source.label, source.kind)
    return RecipeRetain(source.label, own.sources[0].sha256, source.kind, own.names)


def _retain(stored: tuple[RecipeRetain, ...], what: str, notes: list[str]) -> RetainSet:
    parts = []
    for one in stored:
        if one.names is not None:
            where = f"{what}, retain list {quoted(one.label)}"
            parts.append(
                retain_from_texts(((where, name) for name in one.names), one.label, one.kind)
            )
            continue
        parts.append(builtin_retain(one.label))
        if one.sha256 and parts[-1].sources[0].sha256 != one.sha256:
            notes.append(
                f"The built-in list {quoted(one.label)} has changed since {what} was written."
            )
    return union(parts)


def _plan_values(plan: RowPlan) -> dict[str, Any]:
    values = {item.name: getattr(plan, item.name) for item in dataclasses.fields(plan)}
    for name in _POSITIONS:
        values[name] = [place.name for place in Position if place in values[name]]
    return values


def _plan(values: dict[str, Any], settings: EraseSettings, what: str) -> RowPlan:
    """The stored choice of rows over the defaults of the settings' mode."""
    base = RowPlan() if settings.rows == "context" else RowPlan.bare()
    changes: dict[str, Any] = {}
    for item in dataclasses.fields(base):
        if item.name in values:
            default = getattr(base, item.name)
            value = values[item.name]
            changes[item.name] = _positions(value, what) if item.name in _POSITIONS else value
            if not isinstance(changes[item.name], type(default)) or isinstance(
                value, bool
            ) != isinstance(default, bool):
                raise SettingsError(
                    f"{what}: {item.name!r} is {str(value)[:40]!r}, which is the wrong type of"
                    " value."
                )
    return dataclasses.replace(base, **changes)


def _positions(value: Any, what: str) -> Position:
    known = {place.name: place for place in Position}
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2 ** len(known):
        return Position(value)
    names = value if isinstance(value, list) else [value]
    total = Position(0)
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise SettingsError(
                f"{what}: {str(name)[:40]!r} is not a token position: choose from"
                f" {', '.join(map(str, known))}."
            )
        total |= known[name]
    return total


def _strength(values: dict[str, Any], what: str) -> float:
    try:
        return check_strength(values.get("strength", 1.0))
    except SettingsError as fault:
        raise SettingsError(f"{what}: {fault}") from fault


def _clip_skip(values: dict[str, Any], what: str) -> int | None:
    value = values.get("clip_skip")
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or not -100 <= value <= -1
    ):
        raise SettingsError(
            f"{what}: clip_skip is {str(value)[:40]!r}, but must be a whole number from -100 to -1."
        )
    return value
