"""What an edit leaves of a painter in prompts of sentences and of tags, by the prompts that it was
made from (docs/research/models.md, "Sentences and tags").

    python -m benchmarks.tags [--encoder clip|mpnet|smollm2] [--blocks N] [--concepts N] [--kept N]
                              [--effort fast|normal|thorough]

The encoder is a CLIP-L with random weights, or a trained one whose folder `SPEED_MPNET` or
`SPEED_SMOLLM2` names. Painters become "art"; a tenth of the kept painters is held out to judge by.
Each edit is made from one style of prompts, along the curve of its soft prior, and judged by new
prompts of both styles: the share that is left where held-out painters, in prompts of that style,
drift by so much.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from .encoders import DEPTH, mpnet, random_clip, smollm2
from .frontier.cells import Cell, job_for, least_left, methods

STYLES = ("sentences", "tags", "mixed")
JUDGES = ("sentences", "tags")
DRIFTS = (0.05, 0.1, 0.2, 0.3)
EACH = 3
"""Every third point of the curve is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", choices=("clip", "mpnet", "smollm2"), default="clip")
    parser.add_argument("--blocks", type=int, default=DEPTH)
    parser.add_argument("--concepts", type=int, default=1)
    parser.add_argument("--kept", type=int, default=100)
    parser.add_argument("--effort", default="fast")
    options = parser.parse_args()
    trained = {"mpnet": mpnet, "smollm2": smollm2}.get(options.encoder)
    encoder = trained() if trained else random_clip(options.blocks)
    if encoder is None:
        parser.error(f"SPEED_{options.encoder.upper()} names no folder with that encoder.")
    size = options.concepts, options.kept, options.effort
    made = {style: Cell.of(encoder, job_for(*size, prompting=style)) for style in STYLES}
    soft = next(methods())  # the soft prior, as `auto` uses it
    print(f"| made from | judged by | {' | '.join(f'{drift:.2f}' for drift in DRIFTS)} |")
    print("| --- | --- |" + " --- |" * len(DRIFTS))
    for judge in JUDGES:
        judged = {name: getattr(made[judge].rows, name) for name in ("probes", "held_out")}
        for style, cell in made.items():
            cell = Cell(replace(cell.rows, **judged), cell.bare)
            method = replace(soft, values=cell.along(soft.settings)[::EACH])
            points = cell.sweep(method)
            left = " | ".join(f"{least_left(points, drift):.2f}" for drift in DRIFTS)
            print(f"| {style} | {judge} | {left} |", flush=True)


if __name__ == "__main__":
    main()
