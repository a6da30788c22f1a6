"""Between a job and the recipe that repeats it."""

from __future__ import annotations

import dataclasses
from importlib import import_module

from ..speed_ops.errors import FileError
from ..speed_ops.files.recipe import Recipe, RecipeConcept, RecipeRetain
from ..speed_ops.pipeline import Job
from ..speed_ops.settings import EraseSettings
from ..speed_ops.text.kinds import kind_of
from ..speed_ops.text.phrases import Concept, ConceptList
from ..speed_ops.text.retain import RetainSet, builtin_retain, builtin_retain_sets, retain_from_names, union


def recipe_of(job: Job, family: str, base_hash: str, encoder_hash: str) -> Recipe:
    """Everything needed to solve the job again; names only of lists that nobody else has."""
    kinds = dict.fromkeys(concept.kind for concept in job.concepts)
    templates = [template.text for kind in kinds for template in job.plan.solve_templates(kind_of(kind))]
    rows = {name: _plain(value) for name, value in dataclasses.asdict(job.plan).items()}
    return Recipe(
        concepts=tuple(RecipeConcept(one.target, one.anchor, one.kind, one.aliases) for one in job.concepts),
        settings=job.settings.to_dict(),
        seed=job.settings.seed,
        contexts=tuple(dict.fromkeys(templates)),
        rows=rows,
        retain=tuple(_sources(job.retain)),
        family=family,
        package_version=_version(),
        base_hash=base_hash,
        encoder_hash=encoder_hash,
    )


def job_of(recipe: Recipe) -> tuple[Job, list[str]]:
    """The job, and what differs from when the recipe was written."""
    if recipe.redacted:
        raise FileError("The recipe is redacted: it documents an erasure and cannot repeat it. Use the original one.")
    concepts = ConceptList(
        tuple(
            Concept(one.target, one.anchor, kind_of(one.kind).name, one.aliases, number, "recipe")
            for number, one in enumerate(recipe.concepts, start=1)
        )
    )
    notes = [f"The recipe has fields of a newer version: {', '.join(recipe.unknown)}."] if recipe.unknown else []
    parts = []
    for part in recipe.retain:
        parts.append(_retain_part(part))
        if part.sha256 and parts[-1].sha256 != part.sha256:
            notes.append(f"The retain list '{part.label}' is not the one of the recipe any more.")
    settings = EraseSettings.from_dict(recipe.settings).but(seed=recipe.seed)
    return Job.of(concepts.concepts, union(parts), settings), notes


def _sources(retain: RetainSet) -> list[RecipeRetain]:
    """One entry a source. A built-in list that is whole is named; anything else is written out."""
    parts = []
    for index, source in enumerate(retain.sources):
        names = tuple(name for name, origin in zip(retain.names, retain.origins, strict=True) if origin == index)
        own = retain_from_names(names, source.label, source.kind)
        whole = source.label in builtin_retain_sets() and own.sha256 == builtin_retain(source.label).sha256
        parts.append(RecipeRetain(source.label, own.sha256, source.kind, None if whole else names))
    return parts


def _retain_part(part: RecipeRetain) -> RetainSet:
    if part.names is None:
        return builtin_retain(part.label)
    return retain_from_names(part.names, part.label, part.kind)


def _plain(value: object) -> object:
    """Flags are stored as their number."""
    return value if isinstance(value, (str, int, float, bool)) else int(value.value)  # type: ignore[attr-defined]


def _version() -> str:
    return str(getattr(import_module("..", __package__), "__version__", ""))
