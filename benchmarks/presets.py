"""Seconds of 100 concepts against 1,734 names by each preset: what a user waits for once all is
encoded.
"""

from __future__ import annotations

from pathlib import Path

from speed_erase.speed_ops import EraseSettings, solve

from .shapes import SHAPES, problem
from .timing import one_of_each_size, timed

CONCEPTS, NAMES = 100, 1734
PRESETS = ("auto", "context", "few", "multi")


def run(out: Path | None) -> None:
    """A table for both shapes."""
    from .solve import save

    rows = [_row(family, preset) for family in SHAPES for preset in PRESETS]
    lines = ["| shapes | preset | edit | certificate | in all |", "|" + "---|" * 5]
    for r in rows:
        seconds = " | ".join(f"{r[part]:.2f} s" for part in ("edit", "certificate", "all"))
        lines.append(f"| {r['family']} | {r['preset']} | {seconds} |")
    print("\n".join(lines))
    if out is not None:
        save(out, "presets", rows, "\n".join(lines))


def _row(family: str, preset: str) -> dict:
    settings = EraseSettings.preset(preset)
    weights, rows = problem(family, CONCEPTS, NAMES)
    solve(one_of_each_size(weights), *rows, settings)
    seconds, erasure = timed(lambda: solve(weights, *rows, settings))
    proof = erasure.certificate.seconds["certificate"]  # type: ignore[attr-defined]
    return {
        "family": family,
        "preset": preset,
        "edit": seconds - proof,
        "certificate": proof,
        "all": seconds,
    }
