"""`python -m benchmarks.demo_model`: train the demo's model, or continue, and pack it.

About 100 minutes on one core. The folder then has the packed model and the whole checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..storage import default_folder
from .export import export
from .train import Plan, train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo_model", description=__doc__)
    parser.add_argument("--data", type=Path, default=default_folder("demo_model"))
    parser.add_argument("--steps", type=int, default=Plan.steps, help="steps of the U-Net")
    parser.add_argument("--seed", type=int, default=Plan.seed)
    options = parser.parse_args()
    train(options.data, Plan(steps=options.steps, seed=options.seed))
    print(export(options.data))


if __name__ == "__main__":
    main()
