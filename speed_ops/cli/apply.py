"""`speed-erase apply`: solve a recipe again on any model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import FileError
from ..files.header import read_header
from ..files.metadata import read_provenance
from ..files.recipe import Recipe
from .console import Console
from .options import add_reading, command, reading_from
from .wanted import add_wanted, wanted_from


def add_to(commands: Any) -> None:
    """Declares the subcommand."""
    help = "Solve a recipe again on a model: the same concepts, settings and lists, an edit made for its own weights."
    parser = command(commands, "apply", run, help)
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="recipe, or a file with one in its header")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="safetensors file or diffusers folder")
    add_wanted(parser)
    parser.add_argument("--name", default="", metavar="NAME", help="what the results are called (default: the model's)")
    add_reading(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Reads the recipe, then does what `erase` does."""
    recipe = load_recipe(args.recipe)
    from ..recipe_job import job_of
    from .cleaning import clean_file, show

    stored = job_of(recipe, str(args.recipe))
    for text in stored.notes:
        console.note(text)
    wanted = wanted_from(args, console, args.name)
    reading = reading_from(args, stored.clip_skip)
    result = clean_file(args.checkpoint, stored.job, reading, stored.strength, wanted, console.note, console.progress)
    show(result, console)
    return 0


def load_recipe(path: Path) -> Recipe:
    """From a recipe file, or from the header of a file that we wrote."""
    if path.suffix.lower() != ".safetensors":
        return Recipe.read(path)
    found = read_provenance(read_header(path).metadata, str(path))
    if found is None or found.recipe is None:
        raise FileError(f"{path} has no recipe in its header: it was not written by speed-erase.")
    return found.recipe
