"""`speed-erase cache`: what the embedding cache holds."""

from __future__ import annotations

import argparse
from typing import Any

from .console import Console
from .options import command


def add_to(commands: Any) -> None:
    """Declares the subcommand."""
    parser = command(commands, "cache", run, "Show or clear the cache of text embeddings.")
    parser.add_argument("--clear", action="store_true", help="remove everything in it")


def run(args: argparse.Namespace, console: Console) -> int:
    """Shows, after clearing if asked."""
    from ..text.embedding_cache import EmbeddingCache

    cache = EmbeddingCache()
    freed = cache.clear() if args.clear else 0
    info = cache.info()
    if args.clear:
        console.say(f"Freed {freed / 1e6:.1f} MB.")
    console.say(
        f"{info.folder}: {info.bytes / 1e6:.1f} MB of {info.limit_bytes / 1e6:.0f} MB in {info.files} files; "
        f"text encoders: {info.encoders}."
    )
    console.result({**vars(info), "folder": str(info.folder), "freed": freed})
    return 0
