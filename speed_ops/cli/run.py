"""`run`: runs a job file. Written by hand, five lines are enough."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoints.output_files import PRODUCTS, OutputFiles, parse_products
from ..errors import UsageError
from ..recipe import Recipe, job_of
from .console import Console
from .erase import erase_model
from .many_models import clean_many
from .options import (
    STDIN,
    add_dry_run,
    add_json_lines,
    add_name,
    add_text_setup,
    as_usage_errors,
    command,
    text_setup_from,
)

_EXAMPLE = """\
example of a job file:
  model: model.safetensors
  concepts: [Van Gogh -> art]
  retain: [artists]
  output: cleaned"""


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = "Run a job file (YAML or JSON) or a recipe. Flags override it."
    parser = command(subparsers, "run", run, help, _EXAMPLE)
    help = "a .yaml or .json file; - reads YAML from standard input"
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help=help)
    help = "use this model instead; repeatable"
    parser.add_argument(
        "--model", action="append", default=[], type=Path, metavar="PATH", help=help
    )
    help = "use this folder for the results instead"
    parser.add_argument("--out", type=Path, metavar="DIR", help=help)
    add_name(parser)
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")
    add_dry_run(parser)
    add_json_lines(parser)
    add_text_setup(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """One model as `erase` does it, several as `batch` does."""
    recipe = _read(args.recipe)
    fields = recipe.run
    models, output = args.model or list(fields.models), args.out or fields.output
    if not models:
        raise UsageError(f"{args.recipe} names no model. Give --model PATH.")
    if output is None:
        raise UsageError(f"{args.recipe} names no folder for the results. Give --out DIR.")
    stored = job_of(recipe, str(args.recipe))
    for sentence in stored.notes:
        console.note(sentence)
    with as_usage_errors():
        outputs = OutputFiles(
            output,
            parse_products(fields.save or PRODUCTS),
            args.name or fields.name,
            args.force or fields.force,
            fields.strict,
            fields.no_names,
        )
    text = text_setup_from(args, stored.clip_skip)
    text = replace(
        text,
        tokenizer=text.tokenizer or fields.tokenizer,
        text_encoders=text.text_encoders or fields.text_encoders,
        cache=text.cache if fields.cache else None,
    )
    if len(models) == 1:
        return erase_model(models[0], stored, text, outputs, console, args.dry_run)
    from ..checkpoints.batch import Candidate

    candidates = [Candidate(path, outputs, str(path)) for path in models]
    return clean_many(candidates, stored, text, console, args.dry_run)


def _read(path: Path) -> Recipe:
    if path != STDIN:
        return Recipe.read(path)
    content = sys.stdin.buffer.read(1_000_000) if sys.stdin is not None else b""
    return Recipe.from_yaml(content, "The recipe", Path())
