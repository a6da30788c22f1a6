"""`demo`: erases from a small model that comes with the package, and draws before and after."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .console import Console
from .erase import show_erasure
from .options import command


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Erase a painter and a subject from a small model that comes with the package, and draw"
        " before and after."
    )
    parser = command(subparsers, "demo", run, help)
    out = Path("demo-out")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"default: {out}")
    help = "only put the model into this ComfyUI's models/checkpoints"
    parser.add_argument("--comfyui", type=Path, metavar="DIR", help=help)


def run(args: argparse.Namespace, console: Console) -> int:
    """Overwrites what an earlier demo left in the folder."""
    from ..demo import demo, showcase
    from ..files.atomic import output_folder

    if args.comfyui is not None:
        path, new = demo.place_in_comfyui(args.comfyui, console.progress)
        console.result({"checkpoint": str(path), "new": new})
        console.say(f"The model is in {path}." if new else f"The model was in {path} already.")
        console.say(
            "In ComfyUI, press R and choose it in Load Checkpoint: 128 x 128 pixels, euler,"
            " 12 steps, cfg 3."
        )
        return 0
    with output_folder(args.out):
        cleaned, drawn = demo.run_demo(args.out, note=console.note, progress=console.progress)
    base = args.out / demo.MODEL
    console.say()
    show_erasure(cleaned, console)
    for line in (
        "",
        f"Erased from {base}, a small model that draws:",
        f"  the painter {showcase.PAINTER} (also called {showcase.ALIAS}), and the subject"
        f" {showcase.SUBJECT}.",
        f"{len(drawn)} prompts were drawn before and after, with the same seeds: look at",
        f"  {cleaned.files['pictures']}",
        f"  {cleaned.files['report']}  (in a browser)",
        "Then try:",
        f"  speed-erase verify {cleaned.files['checkpoint']} --base {base}",
        "  speed-erase demo --comfyui DIR    to draw with it in ComfyUI",
    ):
        console.say(line)
    return 0
