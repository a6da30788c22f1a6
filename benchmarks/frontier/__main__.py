"""`python -m benchmarks.frontier run|report`: what remains against what drifts, on text encoders.

`run` measures every cell and continues where it stopped; `report` writes docs/research/limits.md.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from ..storage import default_folder, load_json, save_json

COUNTS = (1, 10, 50, 100)


def run(folder: Path, mpnet: Path | None) -> None:
    from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache

    from ..encoders import available
    from .cells import Cell, job_for, methods

    path = folder / "frontier.json"
    cells = (load_json(path) if path.exists() else {}).get("cells", {})

    def measure(key: str, encoder: CachedEncoder, count: int, *kept: object) -> tuple[Cell, dict]:
        cell, job = cells.setdefault(key, {}), job_for(count, *kept)  # type: ignore[arg-type]
        rows = Cell.of(encoder, job)
        cell["default"] = asdict(rows.default(job.settings))
        print(f"{key}: {cell['default']}", flush=True)
        save_json(path, {"cells": cells})
        return rows, cell

    for name, encoder in available(mpnet).items():
        cached = CachedEncoder(encoder, EmbeddingCache(folder / "rows"))
        for count in COUNTS:
            rows, cell = measure(f"{name}, {count}", cached, count)
            for method in methods():
                key = f"{method.name}|{'ours' if method.ours else 'bare'}"
                if key not in cell:
                    cell[key] = [asdict(point) for point in rows.sweep(method)]
                    save_json(path, {"cells": cells})
        measure(f"{name}, 100 (1,000 protected)", cached, 100, 1000, "thorough")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontier", description=__doc__)
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--data", type=Path, default=default_folder("frontier"))
    parser.add_argument("--mpnet", type=Path, help="all-mpnet-base-v2 (default: SPEED_MPNET)")
    parser.add_argument("--out", type=Path, default=Path("docs/research"))
    options = parser.parse_args()
    if options.command == "run":
        run(options.data, options.mpnet)
    else:
        from .report import write

        path = options.data / "frontier.json"
        write(load_json(path) if path.exists() else {}, options.out)


if __name__ == "__main__":
    main()
