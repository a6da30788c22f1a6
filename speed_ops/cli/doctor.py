"""`doctor`: what this machine has for an erasure, what is missing, and how to fix it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .console import Console
from .options import command


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    help = "Show what is installed, what is missing and how to fix it."
    parser = command(subparsers, "doctor", run, help)
    help = "a model to look at as well: its family and its text encoders"
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help=help)


def run(args: argparse.Namespace, console: Console) -> int:
    """Examines; missing things do not make the command fail."""
    from ..doctor import examine

    findings = examine(args.file)
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        text = "  ".join(filter(None, (finding.found or "missing", finding.fix)))
        console.say(f"{finding.topic:<{width}}  {text}")
    console.result({"findings": [vars(finding) for finding in findings]})
    return 0
