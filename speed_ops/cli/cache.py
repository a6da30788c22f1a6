"""`cache`: shows or clears the cache of text embeddings."""

from __future__ import annotations

import argparse
from typing import Any

from .console import Console
from .options import command


def add_to(subparsers: Any) -> None:
    """Declares the command."""
    parser = command(subparsers, "cache", run, "Show or clear the cache of text embeddings.")
    parser.add_argument("--clear", action="store_true", help="remove everything in it")


def run(args: argparse.Namespace, console: Console) -> int:
    """Clears the cache if asked, then shows it."""
    from ..encoders.cache import EmbeddingCache

    cache = EmbeddingCache()
    freed = cache.clear() if args.clear else 0
    info = cache.info()
    if args.clear:
        console.say(f"Freed {freed / 1e6:.1f} MB.")
    console.say(
        f"{info.folder}: {info.files} files for {info.encoders} text encoders,"
        f" {info.bytes / 1e6:.1f} MB (limit {info.limit_bytes / 1e6:.0f} MB)."
    )
    console.result({**vars(info), "folder": str(info.folder), "freed": freed})
    return 0
