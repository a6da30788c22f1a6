"""The commands about this machine: `cache`, `bench` and `completion`."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from ..engine.settings import PRESETS, EraseSettings
from ..errors import SettingsError, UsageError
from .console import Console
from .options import command, offer


def add_cache(commands: Any) -> None:
    """Declares the command."""
    parser = command(commands, "cache", run_cache, "Show or clear the cache of text embeddings.")
    parser.add_argument("--clear", action="store_true", help="remove everything in it")


def run_cache(args: argparse.Namespace, console: Console) -> int:
    """Shows, after clearing if asked."""
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


_LAYERS = (320,) * 5 + (640,) * 5 + (1280,) * 6
_WIDTH = 768


def add_bench(commands: Any) -> None:
    """Declares the command."""
    help = (
        "Time the edit on random weights and embeddings with the shapes of Stable Diffusion 1.x."
        " Nothing is written."
    )
    parser = command(commands, "bench", run_bench, help)
    offer(
        parser.add_argument(
            "--concepts", default="1,10", metavar="LIST", help="how many to erase (default: 1,10)"
        )
    )
    offer(
        parser.add_argument(
            "--retain", type=int, default=1000, metavar="N", help="how many to keep (default: 1000)"
        )
    )
    preset = parser.add_argument(
        "--preset", default="few", metavar="NAME", help="settings to time (default: few)"
    )
    offer(preset, *PRESETS)


def run_bench(args: argparse.Namespace, console: Console) -> int:
    """One run for each number of concepts."""
    try:
        counts = [int(part) for part in args.concepts.split(",")]
        settings = EraseSettings.preset(args.preset)
    except (ValueError, SettingsError) as fault:
        raise UsageError(f"Cannot run the benchmark: {fault}") from fault
    if not all(0 < count <= 10_000 for count in counts) or not 0 <= args.retain <= 100_000:
        raise UsageError("Give from 1 to 10,000 concepts and from 0 to 100,000 names to keep.")
    import torch

    results = [_time(count, args.retain, settings) for count in counts]
    where = (
        f"{torch.get_num_threads()} of {os.cpu_count()} processors, torch {torch.__version__}, CPU"
    )
    console.table(
        ("Concepts", "kept names", "edit", "certificate", "all"),
        [
            (
                str(r["concepts"]),
                str(r["retain"]),
                *(f"{r[k]:.2f} s" for k in ("solve", "certificate", "all")),
            )
            for r in results
        ],
    )
    console.say(f"{len(_LAYERS)} layers, {_WIDTH} wide; preset {args.preset}; {where}.")
    console.result({"where": where, "preset": args.preset, "runs": results})
    return 0


def _time(count: int, retain: int, settings: EraseSettings) -> dict[str, Any]:
    import torch

    from ..solver import solve

    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    # Half of the dimensions, so that a null space is left as in a real text encoder.
    basis = random(_WIDTH // 2, _WIDTH) / 20
    weights = {f"layer.{i}": random(outputs, _WIDTH) / 28 for i, outputs in enumerate(_LAYERS)}
    targets, anchors = random(count, _WIDTH), random(1, _WIDTH).expand(count, -1)
    kept = random(retain, _WIDTH // 2) @ basis if retain else None
    started = time.perf_counter()
    erasure = solve(weights, targets, anchors, kept, random(77, _WIDTH // 2) @ basis, settings)
    whole = time.perf_counter() - started
    measured = erasure.certificate.seconds.get("certificate", 0.0)
    return {
        "concepts": count,
        "retain": retain,
        "solve": whole - measured,
        "certificate": measured,
        "all": whole,
    }


def add_completion(commands: Any) -> None:
    """Declares the command."""
    help = (
        "Print a script that makes a shell complete commands, flags, files and names of built-in"
        " lists."
    )
    parser = command(commands, "completion", run_completion, help, _COMPLETION)
    parser.add_argument(
        "shell", choices=("bash", "zsh", "fish"), help="the shell that is to run the script"
    )


_COMPLETION = """\
use it:
  bash  eval "$(speed-erase completion bash)" in ~/.bashrc
  zsh   eval "$(speed-erase completion zsh)" in ~/.zshrc, after compinit
  fish  speed-erase completion fish > ~/.config/fish/completions/speed-erase.fish"""


def run_completion(args: argparse.Namespace, console: Console) -> int:
    """The shell asks us for completions when it needs them, so the script never gets old."""
    try:
        from argcomplete import shellcode
    except ImportError as error:
        raise ImportError("argcomplete", name="argcomplete") from error
    script = shellcode(["speed-erase"], shell=args.shell).strip()
    console.page(script)
    console.result({"shell": args.shell, "script": script})
    return 0
