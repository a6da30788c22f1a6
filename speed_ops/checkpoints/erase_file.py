"""One model file from start to end: opened, checked, erased, saved. `erase`, `apply`, `batch` and
`demo` share it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ..certificate.forecast import Forecast
from ..erase import erase, predict
from ..erasure import Erasure
from ..errors import SpeedError
from ..files.checkpoint import Checkpoint
from ..files.results import one_at_a_time
from ..job import Job, check_storable, recipe_of, same_work
from ..progress import Announce, Progress
from ..provenance import history_of, read_provenance
from ..recipe import Recipe
from ..strength import at_strength
from ..text.retain_set import drop_targets
from .output_files import OutputFiles, Product, parse_products
from .save import check_paths, output_folder, refuse_unless_erased, save
from .source import ModelSource, TextSetup

Note = Callable[[str], None]
MANY_TEXTS = 300
"""So many texts are worth a warning where each is encoded whole by an encoder of billions of
parameters.
"""


def clean_file(
    path: Path,
    job: Job,
    text: TextSetup,
    outputs: OutputFiles,
    *,
    strength: float = 1.0,
    note: Note,
    progress: Progress | None = None,
) -> Erasure:
    """Opens, checks, erases, saves."""
    started = time.perf_counter()
    source, paths, may_replace = checked(path, job, text, outputs, strength, note)
    with output_folder(outputs.folder), one_at_a_time(outputs.folder, outputs.stem(path)):
        # another run may have finished meanwhile
        check_paths(paths, source.checkpoint, may_replace)
        outcome = clean(source, job, text, strength, progress, note)
        if outputs.strict:
            refuse_unless_erased(outcome)
        outcome = save(
            outcome, source, paths, may_replace=may_replace, salt=outputs.salt, progress=progress
        )
    for sentence in outcome.notes:
        note(sentence)
    if text.cache is not None and text.cache.problem:
        note(text.cache.problem)
    return replace(outcome, seconds=time.perf_counter() - started)


def checked(
    path: Path, job: Job, text: TextSetup, outputs: OutputFiles, strength: float, note: Note
) -> tuple[ModelSource, dict[Product, Path], Callable[[Path], bool]]:
    """The model, where its results go and which of them may exist. Refuses all that can be refused
    before the work.
    """
    source = ModelSource.open(path)
    outputs = possible_outputs(source, job, outputs, note)
    paths = outputs.paths(path, is_folder=source.checkpoint.is_folder)
    recipe = recipe_of(job, strength=strength, clip_skip=text.clip_skip)
    may_replace = _replaceable(source, paths, recipe, outputs, note)
    check_paths(paths, source.checkpoint, may_replace)
    own = max(part.header.data_start for part in source.checkpoint.parts)
    check_storable(
        job, history=history_of(source.checkpoint.metadata), salt=outputs.salt, beside=own
    )
    for sentence in before_starting(source, job, text):
        note(sentence)
    return source, paths, may_replace


def _replaceable(
    source: ModelSource,
    paths: Mapping[Product, Path],
    recipe: Recipe,
    outputs: OutputFiles,
    note: Note,
) -> Callable[[Path], bool]:
    """Which results may exist already: any with `force`, else those that this very job has left
    incomplete.
    """
    if outputs.force:
        return lambda path: True
    there = [path for path in paths.values() if os.path.lexists(path)]
    if not there or len(there) == len(paths):
        return lambda path: False
    ours = made_by(recipe, source, there, outputs.salt)
    if ours:
        note(
            "an earlier run of this job was cut short while it saved: its results are completed"
            " now."
        )
    return lambda path: path in ours


def made_by(
    recipe: Recipe, source: ModelSource, paths: Iterable[Path], salt: str | None
) -> set[Path]:
    """Those of the files that say they were made by this recipe from this very model; reports say
    nothing.
    """
    wanted = recipe.redacted_with(salt) if salt else recipe
    said = {
        path: found
        for path in paths
        if (found := _recipe_in(path)) is not None and same_work(wanted, found)
    }
    digest = source.base_hash() if said else ""
    return {path for path, found in said.items() if found.base_hash == digest}


def _recipe_in(path: Path) -> Recipe | None:
    try:
        if path.suffix == ".json":
            return Recipe.read(path)
        if path.suffix not in (".safetensors", "") and not path.is_dir():
            return None
        said = read_provenance(Checkpoint.open(path).metadata, str(path))
    except SpeedError:
        return None
    return said.recipe if said else None


def clean(
    source: ModelSource,
    job: Job,
    text: TextSetup,
    strength: float = 1.0,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Erasure:
    """Erases a job's concepts from a model file, in memory. Nothing is written."""
    model = source.model(job.settings.layers)
    outcome = erase(
        job, model, text.encoder(source), device=text.device, progress=progress, announce=announce
    )
    outcome = at_strength(outcome, strength, model, progress)
    recipe = recipe_of(
        job,
        strength=strength,
        clip_skip=text.clip_skip,
        family=source.architecture.name,
        base_hash=source.base_hash(progress),
        encoder_hash=text.encoder_hash(source),
        history=history_of(source.checkpoint.metadata),
    )
    return replace(outcome, recipe=recipe, source=str(source.checkpoint.path))


def foresee(
    source: ModelSource, job: Job, text: TextSetup, progress: Progress | None = None
) -> Forecast:
    """Which kept names a job endangers on a model file."""
    return predict(job, source.model(job.settings.layers), text.encoder(source), progress)


def possible_outputs(
    source: ModelSource, job: Job, outputs: OutputFiles, note: Note
) -> OutputFiles:
    """What can be written for this model: weights of 8 bits take no edit, a LoRA works with
    them.
    """
    if "checkpoint" not in outputs.products or source.takes_edits(job.settings.layers):
        return outputs
    note(
        f"{source.checkpoint.path.name} stores these layers in 8 bits, too coarse to store an edit:"
        " a LoRA is written instead."
    )
    others = {product for product in outputs.products if product != "checkpoint"} | {"lora"}
    return replace(outputs, products=parse_products(sorted(others)))


def before_starting(source: ModelSource, job: Job, text: TextSetup) -> list[str]:
    """What a user should know before the long work: what is missing, and how much text a slow
    encoder has to read.
    """
    found = [*missing_encoders(source, text), *unread_pooled(source, job, text)]
    slow = [row.title for row in source.encoder_files(text.text_encoders).found if not row.causal]
    count = _texts(job)
    if slow and count > MANY_TEXTS:
        once = "" if text.cache is None else " the first time (then they are cached)"
        fewer = (
            "keep fewer names (`--retain-limit`)"
            if job.settings.effort == "quick"
            else "use `erase --effort quick`"
        )
        found.append(
            f"{slow[0]} encodes up to {count} texts at full length, which takes hours on a"
            f" CPU{once}. To encode fewer, {fewer}."
        )
    return found


def missing_encoders(source: ModelSource, text: TextSetup) -> list[str]:
    """A sentence where the family can do without an encoder, and does here."""
    missing = source.encoder_files(text.text_encoders).missing
    if not missing:
        return []
    titles = " and ".join(f"no {row.title}" for row in missing)
    were, them = ("were", "them") if len(missing) > 1 else ("was", "it")
    return [
        f"N{titles[1:]} {were} found (give {them} with --text-encoder PATH). Text is encoded"
        f" without {them}, as ComfyUI would do; the result applies only to prompts encoded without"
        f" {them}."
    ]


def unread_pooled(source: ModelSource, job: Job, text: TextSetup) -> list[str]:
    """A sentence where the model reads pooled text that no encoder here can make: that path then
    stays as it is.
    """
    path = source.architecture.pooled
    if path is None or not job.settings.pooled or text.encoder(source).encoder.pooled_width:
        return []
    found = source.encoder_files(text.text_encoders).pooled
    if found:  # a diffusers folder without the last blocks, which the rows do without
        why = f"{' and '.join(row.title for row in found)} lacks its last layers here"
        return [
            f"The pooled path stays unedited, because {why}: give the whole encoder with"
            " --text-encoder PATH."
        ]
    titles = " or ".join(row.title for row in path.encoders)
    return [
        f"The pooled path stays unedited, because no {titles} was found: give it with"
        " --text-encoder PATH."
    ]


def _texts(job: Job) -> int:
    """At most so many prompts: kept names, the most endangered of them in context, the concepts and
    their anchors.
    """
    plan, names = (
        job.plan,
        min(job.plan.considered, len(drop_targets(job.retain, job.concepts)[0].names)),
    )
    phrases = sum(len(concept.phrases) + 1 for concept in job.concepts)
    each = 1 + plan.templates + plan.probe_templates + plan.trial_templates
    return names + plan.prompts(names) + phrases * each
