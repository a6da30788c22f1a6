"""`clean-lora`: erases concepts from a LoRA, which keeps its rank and its format."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .console import Console
from .options import (
    add_expert_settings,
    add_job,
    add_text_setup,
    command,
    job_from,
    text_setup_from,
)


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = (
        "Experimental: erase concepts from a LoRA. The result has the same rank and format. With"
        " --verify: check that a file is that result. The verdicts can miss visible changes, so"
        " compare images."
    )
    parser = command(subparsers, "clean-lora", run, help)
    parser.add_argument("lora", type=Path, metavar="LORA", help="the LoRA")
    help = "a model that the LoRA is for; its text encoder is read, and nothing is changed"
    parser.add_argument("--base", type=Path, required=True, metavar="BASE", help=help)
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--out", type=Path, metavar="FILE", help="where to write the result")
    help = "a file to compare with the result; exit code 1 if it differs"
    target.add_argument("--verify", type=Path, metavar="FILE", help=help)
    parser.add_argument("--force", action="store_true", help="overwrite a file that exists")
    add_job(parser)
    add_text_setup(parser)
    add_expert_settings(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Cleans the LoRA, or compares a file with the result."""
    job = job_from(args, console.note)
    if args.out is not None and args.out.exists() and not args.force:
        raise UsageError(f"{args.out} exists. Add --force to overwrite it.")
    from ..checkpoints.clean_lora import clean_lora
    from ..files.lora_copy import differing, write_copy

    cleaned = clean_lora(
        args.lora,
        args.base,
        job,
        text_setup_from(args),
        progress=console.progress,
        announce=console.note,
    )
    wrong = []
    if args.out is not None:
        write_copy(args.lora, args.out, cleaned.tensors, force=args.force)
    else:
        wrong = differing(args.lora, args.verify, cleaned.tensors)
    for line in cleaned.erasure.text(console.verbose).splitlines():
        console.say(line)
    console.say(
        f"{cleaned.editable:.0%} of the LoRA's change is in the {len(cleaned.tensors)} layers that"
        " were edited."
    )
    if cleaned.outside:
        console.say(
            f"The other {len(cleaned.outside)} layers are as they were. They can carry the concept"
            " as well: generate images to check."
        )
    if any(name.startswith("lora_te") for name in cleaned.outside):
        console.note("The LoRA changes the text encoder too. Names were read without that change.")
    console.say("Experimental: compare images before you publish.")
    if args.out is not None:
        console.say(f"Saved {args.out}")
    elif wrong:
        console.say(f"FAILED: {args.verify} differs in {len(wrong)} tensors, such as {wrong[0]}.")
    else:
        console.say(f"Verified: {args.verify} is the LoRA without the concepts, and nothing else.")
    certificate = cleaned.erasure.certificate
    console.result(
        {
            "file": str(args.out or args.verify),
            "experimental": True,
            "measured": certificate.to_json() if certificate else None,
            "editable": cleaned.editable,
            "layers": len(cleaned.tensors),
            "outside": list(cleaned.outside),
            "differs": wrong,
        }
    )
    return 1 if wrong else 0
