"""`speed-erase demo`: the whole path on a machine that has no model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..settings import EraseSettings
from ..studio.products import PRODUCTS
from ..text.phrases import parse_concepts
from ..text.retain import builtin_retain
from .console import Console
from .options import command
from .wanted import Wanted

CONCEPTS = "Vincent van Gogh | Van Gogh -> art\nClaude Monet | Monet -> art"
RETAIN_NAMES = 250
CONTEXT_NAMES = 24
"""Few, as contexts are what takes the time; a real run looks at up to 200."""
MODEL = "demo-model.safetensors"


def add_to(commands: Any) -> None:
    """Declares the subcommand."""
    help = "Make a small synthetic checkpoint, erase two concepts from it and show the certificate. Needs no model."
    parser = command(commands, "demo", run, help)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), metavar="DIR", help="default: demo-out")


def run(args: argparse.Namespace, console: Console) -> int:
    """Everything in the folder of the demo is the demo's: it is overwritten."""
    from ..pipeline import HELD_OUT_SHARE, Job
    from ..studio.demo_checkpoint import write_demo_checkpoint
    from ..studio.outputs import output_folder
    from ..studio.reading import Reading
    from .cleaning import clean_file, show

    model = args.out / MODEL
    settings = EraseSettings.preset("auto", held_out=HELD_OUT_SHARE, context_names=CONTEXT_NAMES)
    retain = builtin_retain("artists").limit(RETAIN_NAMES)
    job = Job.of(parse_concepts(CONCEPTS, "style"), retain, settings)
    with output_folder(args.out):
        write_demo_checkpoint(model, force=True, progress=console.progress)
        console.say(f"{model}: a synthetic Stable Diffusion 1.x checkpoint: real keys, real tokenizer, random weights.")
        wanted = Wanted(args.out, PRODUCTS, name="demo-model", force=True)
        result = clean_file(model, job, Reading(), 1.0, wanted, console.note, console.progress)
    console.say()
    show(result, console)
    report = result.saved.paths["report"]
    console.say(f"Open {report} in a browser. Then try:")
    console.say(f"  speed-erase verify {result.saved.paths['checkpoint']} --base {model}")
    return 0
