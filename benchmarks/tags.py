"""What an edit leaves of a painter in prompts of sentences and of tags, by the prompts that it was
made from (docs/research/models.md, "Sentences and tags").

    python -m benchmarks.tags [--kept N] [--effort fast|normal|thorough] [encoder ...]

Painters become "art". A tenth of the kept painters is held out to judge by. Each edit is made from
one style of prompts, along the curve of its soft prior, and judged by new prompts of both styles:
the share that is left at a drift of held-out painters in prompts of that style.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from .encoders import available
from .frontier.cells import Cell, Method, job_for, least_left, methods

STYLES = ("sentences", "tags", "mixed")
JUDGES = ("sentences", "tags")
DRIFTS = (0.05, 0.1, 0.2, 0.3)


def cells(encoder: object, kept: int, effort: str) -> Iterator[tuple[str, str, Cell]]:
    """(prompts that the edit is made from, prompts that it is judged by, the rows).

    Args:
        encoder: Turns prompts into rows.
        kept: How many painters are kept.
        effort: How many prompts are encoded.
    """
    made = {style: Cell.of(encoder, job_for(1, kept, effort, prompting=style)) for style in STYLES}
    for style, cell in made.items():
        for judge in JUDGES:
            judged = {name: getattr(made[judge].rows, name) for name in ("probes", "held_out")}
            yield style, judge, Cell(replace(cell.rows, **judged), cell.bare)


def line(cell: Cell, method: Method) -> str:
    """What is left at each drift."""
    points = cell.sweep(method)
    return " | ".join(f"{least_left(points, drift):.2f}" for drift in DRIFTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoders", nargs="*", default=["random CLIP-L", "demo model"])
    parser.add_argument("--kept", type=int, default=100)
    parser.add_argument("--effort", default="fast")
    options = parser.parse_args()
    method = next(methods())  # the soft prior, as `auto` uses it
    found = available(None)
    print(f"| encoder | made from | judged by | {' | '.join(f'{d:.2f}' for d in DRIFTS)} |")
    print("| --- | --- | --- |" + " --- |" * len(DRIFTS))
    for name in options.encoders:
        for style, judge, cell in cells(found[name], options.kept, options.effort):
            print(f"| {name} | {style} | {judge} | {line(cell, method)} |", flush=True)


if __name__ == "__main__":
    main()
