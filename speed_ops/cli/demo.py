"""`demo`: erases from the demo model, and generates images before and after."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .console import Console
from .options import command


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Erase a painter and a subject from the demo model, and generate images before and after."
    )
    parser = command(subparsers, "demo", run, help)
    out = Path("demo-out")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"default: {out}")
    help = "only copy the demo model to this ComfyUI's models/checkpoints"
    parser.add_argument("--comfyui", type=Path, metavar="DIR", help=help)


def run(args: argparse.Namespace, console: Console) -> int:
    """Overwrites what an earlier demo left in the folder."""
    from ..demo import demo, showcase
    from ..files.atomic import output_folder

    if args.comfyui is not None:
        path, new = demo.place_in_comfyui(args.comfyui, console.progress)
        console.result({"checkpoint": str(path), "new": new})
        console.say(f"The demo model is in {path}." if new else f"{path} exists already.")
        console.say(
            "In ComfyUI, press R and choose it in Load Checkpoint. Use 128 x 128 pixels, euler,"
            " 12 steps and cfg 3."
        )
        return 0
    from .outcome import show_erasure

    with output_folder(args.out):
        cleaned, _ = demo.run_demo(args.out, note=console.note, progress=console.progress)
    console.say(
        f"Demo done. SPEED erased the painter {showcase.PAINTER} and the subject"
        f" {showcase.SUBJECT} from the demo model."
    )
    show_erasure(cleaned, console)
    console.gap()
    console.say(
        f"Look at {cleaned.files['pictures']}: the same prompts and seeds, before and after."
    )
    console.say("To try it in ComfyUI: speed-erase demo --comfyui DIR")
    return 0
