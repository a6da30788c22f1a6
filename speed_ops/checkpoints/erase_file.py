"""One model file from start to end: opened, checked, erased, saved. Every command that writes a
model goes through here.
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
from ..errors import Notice, SpeedError
from ..files.checkpoint import Checkpoint
from ..files.results import output_lock
from ..inputs import INPUT_TITLES, POOLED
from ..job import Job
from ..progress import Announce, Progress
from ..provenance import history_of, read_provenance
from ..recipe import Recipe, recipe_of, same_work
from ..strength import at_strength
from ..text.retain_set import drop_targets
from .output_files import OutputFiles, Product, parse_products
from .save import CleanedFile, check_paths, output_folder, refuse_unless_erased, save
from .source import ModelSource, TextSetup

Note = Callable[[str], None]
MANY_TEXTS = 300
"""More texts than this are worth a warning where an encoder of billions of parameters reads each of
them at full length.
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
    label: str = "",
) -> CleanedFile:
    """Opens, checks, erases and saves one model.

    Args:
        path: The model.
        job: What to erase.
        text: How text becomes embeddings.
        outputs: What to write and where.
        strength: Scale of the edit.
        note: Called with each sentence that the user should read.
        progress: Called as the work advances.
        label: URL or path of the model, for messages.
    """
    started = time.perf_counter()
    source, recipe, paths, may_replace = preflight(path, job, text, outputs, strength, note, label)
    with output_folder(outputs.folder), output_lock(outputs.folder, outputs.stem(path)):
        # another run may have finished meanwhile
        check_paths(paths, source.checkpoint, may_replace, outputs.label)
        erasure = clean(source, job, text, recipe, progress, note)
        if outputs.strict:
            refuse_unless_erased(erasure)
        result = save(
            erasure,
            source,
            paths,
            may_replace=may_replace,
            no_names=outputs.no_names,
            progress=progress,
        )
    for sentence in (*erasure.notes, *result.notes):
        note(sentence)
    if text.cache is not None and text.cache.problem:
        note(text.cache.problem)
    return replace(result, seconds=time.perf_counter() - started)


def preflight(
    path: Path,
    job: Job,
    text: TextSetup,
    outputs: OutputFiles,
    strength: float,
    note: Note,
    label: str = "",
) -> tuple[ModelSource, Recipe, dict[Product, Path], Callable[[Path], bool]]:
    """Refuses everything that can be refused before the work; arguments as for `clean_file`.

    Returns:
        The model, the recipe, where the results go, and which of them may exist.
    """
    source = ModelSource.open(path, label)
    outputs = possible_outputs(source, job, outputs, note)
    paths = outputs.paths(path, is_folder=source.checkpoint.is_folder)
    recipe = recipe_of(
        job,
        strength=strength,
        clip_skip=text.clip_skip,
        family=source.architecture.name,
        history=history_of(source.checkpoint.metadata),
    )
    recipe.check_size(max(shard.header.data_start for shard in source.checkpoint.parts))
    may_replace = _replaceable(source, paths, recipe, outputs, note)
    check_paths(paths, source.checkpoint, may_replace, outputs.label)
    for sentence in before_starting(source, job, text):
        note(sentence)
    return source, recipe, paths, may_replace


def _replaceable(
    source: ModelSource,
    paths: Mapping[Product, Path],
    recipe: Recipe,
    outputs: OutputFiles,
    note: Note,
) -> Callable[[Path], bool]:
    """Which results may exist already: any with `force`, else those that this same job left
    incomplete.
    """
    if outputs.force:
        return lambda path: True
    existing = [path for path in paths.values() if os.path.lexists(path)]
    if not existing or len(existing) == len(paths):
        return lambda path: False
    ours = made_by(recipe, source, existing)
    if ours:
        note(
            "an earlier run of this job was cut short while it saved: its results are completed"
            " now."
        )
    return lambda path: path in ours


def made_by(recipe: Recipe, source: ModelSource, paths: Iterable[Path]) -> set[Path]:
    """Those files whose own recipe is this one, made from this same model. Reports and files
    without names record no usable recipe.
    """
    recipes = {path: _recipe_in(path) for path in paths}
    candidates = {
        path: stored.base_hash
        for path, stored in recipes.items()
        if stored is not None and same_work(recipe, stored)
    }
    digest = source.base_hash() if candidates else ""
    return {path for path, base_hash in candidates.items() if base_hash == digest}


def _recipe_in(path: Path) -> Recipe | None:
    try:
        if path.suffix == ".json":
            return Recipe.read(path)
        if path.suffix not in (".safetensors", "") and not path.is_dir():
            return None
        provenance = read_provenance(Checkpoint.open(path).metadata, str(path))
    except SpeedError:
        return None
    return provenance.recipe if provenance else None


def clean(
    source: ModelSource,
    job: Job,
    text: TextSetup,
    recipe: Recipe,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Erasure:
    """Erases a job's concepts from a model file, in memory. Nothing is written.

    Args:
        source: The model.
        job: What to erase.
        text: How text becomes embeddings.
        recipe: The job's recipe, with its strength; hashes are added to it.
        progress: Called as the work advances.
        announce: Called with what is about to be done.
    """
    model = source.model(job.settings.layers)
    erasure = erase(
        job, model, text.encoder(source), device=text.device, progress=progress, announce=announce
    )
    erasure = at_strength(erasure, recipe.strength, model, progress)
    recipe = replace(
        recipe, base_hash=source.base_hash(progress), encoder_hash=text.encoder_hash(source)
    )
    return replace(erasure, recipe=recipe)


def forecast_file(
    source: ModelSource, job: Job, text: TextSetup, progress: Progress | None = None
) -> Forecast:
    """Which kept names a job endangers on a model file."""
    return predict(job, source.model(job.settings.layers), text.encoder(source), progress)


def possible_outputs(
    source: ModelSource, job: Job, outputs: OutputFiles, note: Note
) -> OutputFiles:
    """What can be written for this model: weights of 8 bits cannot store an edit, but take a
    LoRA.
    """
    if "checkpoint" not in outputs.products or source.takes_edits(job.settings.layers):
        return outputs
    note(
        f"{source.checkpoint.path.name} stores these layers in 8 bits, too coarse to store an edit:"
        " a LoRA is written instead."
    )
    remaining = {product for product in outputs.products if product != "checkpoint"} | {"lora"}
    return replace(outputs, products=parse_products(sorted(remaining)))


def before_starting(source: ModelSource, job: Job, text: TextSetup) -> list[str]:
    """What a user should know before the long work: what is missing, and how much text a slow
    encoder has to read.
    """
    notes = [*missing_encoders(source, text), *unread_inputs(source, job, text)]
    encoders = source.encoder_files(text.text_encoders).available
    slow = [encoder.title for encoder in encoders if not encoder.causal]
    count = _max_texts(job)
    if slow and count > MANY_TEXTS:
        once = "" if text.cache is None else " the first time (then they are cached)"
        advice = "keep-fewer-names" if job.settings.effort == "quick" else "less-effort"
        notes.append(
            Notice(
                f"{slow[0]} encodes up to {count} texts at full length, which takes hours on a"
                f" CPU{once}.",
                advice=advice,
            )
        )
    return notes


def missing_encoders(source: ModelSource, text: TextSetup) -> list[str]:
    """A sentence where the family can do without an encoder, and does here."""
    missing = source.encoder_files(text.text_encoders).missing
    if not missing:
        return []
    titles = " and ".join(f"no {encoder.title}" for encoder in missing)
    were, pronoun = ("were", "them") if len(missing) > 1 else ("was", "it")
    return [
        Notice(
            f"N{titles[1:]} {were} found. Text is encoded without {pronoun}, as ComfyUI would do;"
            f" the result applies only to prompts encoded without {pronoun}.",
            advice="give-text-encoder",
        )
    ]


def unread_inputs(source: ModelSource, job: Job, text: TextSetup) -> list[str]:
    """A sentence for each text input of the model that no encoder here can encode: its layer then
    stays as it is.
    """
    second, name = source.architecture.second_input, POOLED
    readable = text.encoder(source).width_of(name) > 0
    if second is None or not job.settings.edits_input(name) or readable:
        return []
    available = source.encoder_files(text.text_encoders).second
    if available:  # a diffusers folder without the last blocks, which the rows do without
        reason = f"{' and '.join(encoder.title for encoder in available)} lacks its last layers"
        reason = f"{reason} here"
    else:
        reason = f"no {' or '.join(encoder.title for encoder in second.encoders)} was found"
    return [
        Notice(
            f"{INPUT_TITLES[name]} stays unedited, because {reason}.", advice="give-text-encoder"
        )
    ]


def _max_texts(job: Job) -> int:
    """Upper bound on the prompts to encode: kept names, the most endangered of them in context, the
    concepts and their anchors.
    """
    plan, usable = job.plan, len(drop_targets(job.retain, job.concepts)[0].names)
    names = min(plan.considered, usable)
    phrases = sum(len(concept.phrases) + 1 for concept in job.concepts)
    each = 1 + plan.templates + plan.probe_templates + plan.trial_templates
    return names + plan.prompts(names) + phrases * each
