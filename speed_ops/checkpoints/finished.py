"""Whether a job was done on a model before: the model has the edit, or the results are there."""

from __future__ import annotations

from pathlib import Path

from ..errors import SpeedError
from ..files.checkpoint import Checkpoint
from ..provenance import header_recipe
from ..recipe import Recipe, StoredJob, recipe_of, same_form
from .erased_file import open_erased
from .output_files import OutputFiles, Product
from .preflight import made_by, possible_outputs
from .source import ModelSource
from .text_setup import TextSetup
from .verify import verify_file


def already_applied(checkpoint: Checkpoint, recipe: Recipe) -> bool:
    """Whether the header records this job, as the last one or an earlier one."""
    applied, earlier = header_recipe(checkpoint.metadata), recipe.as_earlier()
    return applied is not None and (
        same_form(recipe, applied)
        or any(same_form(earlier, previous) for previous in applied.history)
    )


def finished(
    path: Path, stored: StoredJob, text: TextSetup, outputs: OutputFiles, label: str = ""
) -> dict[Product, Path]:
    """The results, if all exist and this job made them from this very model; else none.

    Args:
        path: The model.
        stored: The job.
        text: How text becomes embeddings.
        outputs: Where the results go.
        label: URL or path of the model, for messages.
    """
    source = ModelSource.open(path, label)
    possible = possible_outputs(source, stored.job, outputs, lambda sentence: None)
    paths = possible.paths(path)
    if not all(result.exists() for result in paths.values()):
        return {}
    recipe = recipe_of(stored.job, strength=stored.strength, clip_skip=text.clip_skip)
    with_recipe = {result for product, result in paths.items() if product not in ("card", "report")}
    expected = recipe.without_names() if outputs.no_names else recipe
    if not with_recipe or made_by(expected, source, with_recipe) != with_recipe:
        return {}
    if outputs.no_names:
        weights = [paths[product] for product in ("checkpoint", "lora") if product in paths]
        if not weights or not all(_erases(file, path, recipe, text) for file in weights):
            return {}
    return paths


def _erases(file: Path, base: Path, recipe: Recipe, text: TextSetup) -> bool:
    """Whether a file without names does what a recipe asks for, by measurement: nothing in the file
    distinguishes this job from another one with as many names.
    """
    try:
        return not verify_file(open_erased(file, base, recipe=recipe), text).faults
    except SpeedError:
        return False
