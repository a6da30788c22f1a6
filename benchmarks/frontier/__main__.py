"""`python -m benchmarks.frontier run|rows|report`: what is left against what drifts, on real
encoders.

python -m benchmarks.frontier run --mpnet FOLDER        every cell; goes on where it stopped
python -m benchmarks.frontier report --out docs         docs/frontier.md and its pictures
python -m benchmarks.frontier rows --mpnet FOLDER       ten concepts by what is encoded
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from ..storage import default_folder, load_json, save_json

COUNTS = (1, 10, 50, 100)


def _run(options: argparse.Namespace) -> None:
    from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache

    from ..encoders import available
    from .cells import Cell, as_json, job_for, methods
    from .clip_rows import table

    path = options.data / "frontier.json"
    known = load_json(path) if path.exists() else {}
    cache = EmbeddingCache(options.data / "rows")
    if options.clip_rows:
        known["clip rows"] = [list(line) for line in table(options.clip_rows)]
        save_json(path, known)
    for name, encoder in available(options.mpnet).items():
        if options.encoder and name not in options.encoder:
            continue
        for count in options.concepts or COUNTS:
            cell = known.setdefault("cells", {}).setdefault(f"{name}, {count}", {})
            job = job_for(count)
            rows = Cell.of(CachedEncoder(encoder, cache), job)
            default, certificate = rows.default(job.settings)
            cell["default"] = as_json([default])[0]
            cell["curve"] = certificate.to_json()["curve"]
            print(f"{name}, {count}: default {default}", flush=True)
            for method in methods():
                key = f"{method.name}|{'ours' if method.ours else 'bare'}"
                if key not in cell:
                    cell[key] = as_json(rows.sweep(method))
                    save_json(path, known)
                    print(f"  {key}: {json.dumps(cell[key][:2])} ...", flush=True)
            save_json(path, known)
        crowd = f"{name}, 100 of 1,000 kept"
        if crowd not in known["cells"] and not options.concepts:
            job = job_for(100, 1000, "thorough")
            default, _ = Cell.of(CachedEncoder(encoder, cache), job).default(job.settings)
            known["cells"][crowd] = {"default": as_json([default])[0]}
            save_json(path, known)


VARIATIONS: dict[str, dict[str, int]] = {
    "default: 200 names in 2 prompts, 12 templates, 150 captions": {},
    "50 names in 8 prompts": {"names": 50, "retain_templates": 8},
    "100 names in 4 prompts": {"names": 100, "retain_templates": 4},
    "400 names in 1 prompt": {"names": 400, "retain_templates": 1},
    "400 names in 2 prompts": {"names": 400},
    "no captions": {"captions": 0},
    "400 captions": {"captions": 400},
    "4 templates": {"templates": 4},
    "17 templates": {"templates": 17},
}
SOFTNESS = (0.001, 0.01, 0.1, 1.0)


def _rows(options: argparse.Namespace) -> None:
    from dataclasses import replace

    from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache

    from ..encoders import available
    from .cells import Cell, as_json, job_for

    path = options.data / "frontier.json"
    known = load_json(path) if path.exists() else {}
    cache = EmbeddingCache(options.data / "rows")
    for name, encoder in available(options.mpnet).items():
        own = known.setdefault("rows", {}).setdefault(name, {})
        job = job_for(10)
        known["rows budget"] = job.settings.drift_budget
        for variation, changes in VARIATIONS.items():
            if variation in own:
                continue
            varied = replace(job, plan=replace(job.plan, **changes))
            cell = Cell.of(CachedEncoder(encoder, cache), varied)
            own[variation] = as_json([cell.default(job.settings)[0]])[0]
            if not changes:
                for value in SOFTNESS:
                    point, _ = cell.default(job.settings.replace(softness=value))
                    own[f"softness {value:g}"] = as_json([point])[0]
            save_json(path, known)
            print(f"{name}: {variation} {own[variation]}", flush=True)


def _report(options: argparse.Namespace) -> None:
    from .report import write

    path = options.data / "frontier.json"
    write(load_json(path) if path.exists() else {}, options.out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontier", description=__doc__)
    parser.add_argument("--data", type=Path, default=default_folder("frontier"))
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure every cell")
    run.add_argument(
        "--mpnet", type=Path, help="folder of all-mpnet-base-v2 (default: SPEED_MPNET)"
    )
    given = os.environ.get("SPEED_CLIP_ROWS")
    run.add_argument(
        "--clip-rows",
        type=Path,
        default=Path(given) if given else None,
        help="rows of a real CLIP-L",
    )
    run.add_argument("--encoder", action="append", help="only this one; may be repeated")
    run.add_argument(
        "--concepts", type=int, action="append", help="only this many; may be repeated"
    )
    run.set_defaults(run=_run)
    rows = commands.add_parser("rows", help="ten concepts by what is encoded")
    rows.add_argument("--mpnet", type=Path)
    rows.set_defaults(run=_rows)
    report = commands.add_parser("report", help="tables and pictures of what was measured")
    report.add_argument("--out", type=Path, default=Path("docs"))
    report.set_defaults(run=_report)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
