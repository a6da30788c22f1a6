"""`python -m benchmarks.frontier run|rows|pictures|comfy|report`: what is left against what drifts,
on real encoders.

python -m benchmarks.frontier run --mpnet FOLDER        every cell; goes on where it stopped
python -m benchmarks.frontier report --out docs         docs/frontier.md and its pictures
python -m benchmarks.frontier rows --mpnet FOLDER       ten concepts by what is encoded
python -m benchmarks.frontier pictures --world FOLDER   the model that draws: pictures and attacks
python -m benchmarks.frontier comfy --comfyui FOLDER    two painters in the real ComfyUI
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from ..world.storage import default_folder, load_json, save_json

COUNTS = (1, 10, 50, 100)


def _run(options: argparse.Namespace) -> None:
    from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache

    from .cells import Cell, as_json, job_for, methods
    from .clip_rows import table
    from .encoders import found

    path = options.data / "frontier.json"
    known = load_json(path) if path.exists() else {}
    cache = EmbeddingCache(options.data / "rows")
    if options.clip_rows:
        known["clip rows"] = [list(line) for line in table(options.clip_rows)]
        save_json(path, known)
    for name, encoder in found(options.data, options.mpnet).items():
        if options.encoder and name not in options.encoder:
            continue
        plain = encoder.encoder if isinstance(encoder, CachedEncoder) else encoder
        for count in options.concepts or COUNTS:
            cell = known.setdefault("cells", {}).setdefault(f"{name}, {count}", {})
            job = job_for(count)
            rows = Cell.of(CachedEncoder(plain, cache), job)
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
            default, _ = Cell.of(CachedEncoder(plain, cache), job).default(job.settings)
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

    from .cells import Cell, as_json, job_for
    from .encoders import found

    path = options.data / "frontier.json"
    known = load_json(path) if path.exists() else {}
    cache = EmbeddingCache(options.data / "rows")
    for name, encoder in found(options.data, options.mpnet).items():
        plain = encoder.encoder if isinstance(encoder, CachedEncoder) else encoder
        own = known.setdefault("rows", {}).setdefault(name, {})
        job = job_for(10)
        known["rows budget"] = job.settings.drift_budget
        for variation, changes in VARIATIONS.items():
            if variation in own:
                continue
            varied = replace(job, plan=replace(job.plan, **changes))
            cell = Cell.of(CachedEncoder(plain, cache), varied)
            own[variation] = as_json([cell.default(job.settings)[0]])[0]
            if not changes:
                for value in SOFTNESS:
                    point, _ = cell.default(job.settings.replace(softness=value))
                    own[f"softness {value:g}"] = as_json([point])[0]
            save_json(path, known)
            print(f"{name}: {variation} {own[variation]}", flush=True)


TASKS, RELEASES = ("one", "three", "half", "subject", "implicit"), ("auto", "auto_1")
ATTACKED, RADII = ("auto", "auto_at3", "auto_at3_more"), (0.1, 0.2)


def _pictures(options: argparse.Namespace) -> None:
    from ..world.attacks import Attack
    from ..world.matrix import method_named, task_named
    from ..world.model import World
    from ..world.run import Runner, attack_all

    path = options.data / "frontier.json"
    known = load_json(path) if path.exists() else {}
    world = World(options.world)
    runner = Runner(world, 36)
    found = [
        runner.run(task_named(task), method_named(method)) for task in TASKS for method in RELEASES
    ]
    trained = options.world / "training.json"
    steps = (
        f"one training of {load_json(trained)['step']:,} steps"
        if trained.exists()
        else "the model in the box"
    )
    known["pictures of"] = steps
    known["pictures"] = [
        {
            "task": run["task"],
            "method": run["method"],
            "h_o": run["h_o"],
            "drift": run["values"]["drift"],
        }
        for run in found
    ]
    radii = {f"{radius:g}": Attack(radius=radius) for radius in RADII}
    attacks = attack_all(
        Runner(world, 24), [(task_named("one"), method_named(name), radii) for name in ATTACKED]
    )
    known["attacks"] = [
        {
            "method": run["method"],
            "success": {radius: hit["after"] for radius, hit in run["attacks"].items()},
        }
        for run in attacks
    ]
    save_json(path, known)


FIRST_BUDGETS = ("0.03", "0.04", "0.05", "0.1")
"""Beside the default: where the first release's erasure is reached for a fraction of its drift."""
IN_COMFY = {
    "untrained, as in transformers": "transformers",
    "untrained, as published": "CLIP",
    "random CLIP-L": None,
}
"""CLIP-L's weights there."""


def _comfy(options: argparse.Namespace) -> None:
    from .encoders import random_checkpoint
    from .in_comfy import DEFAULT, FIRST, NOW, measured

    path = options.data / "frontier.json"
    known = load_json(path) if path.exists() else {}
    budgets = [DEFAULT] if options.package else [*FIRST_BUDGETS, DEFAULT]
    for name in options.encoder or IN_COMFY:
        checkpoint = random_checkpoint(options.data, IN_COMFY[name], channels=320)
        found = measured(checkpoint, options.comfyui, options.package, budgets)
        known.setdefault("comfy", {}).setdefault(name, {})[FIRST if options.package else NOW] = (
            found
        )
        save_json(path, known)
        print(f"{name}: {json.dumps(found, indent=1)}", flush=True)


def _report(options: argparse.Namespace) -> None:
    from .report import write

    path = options.data / "frontier.json"
    write(load_json(path) if path.exists() else {}, options.out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontier", description=__doc__)
    parser.add_argument("--data", type=Path, default=default_folder().parent / "frontier")
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
    pictures = commands.add_parser(
        "pictures", help="what the model that draws shows: pictures, and attacks on them"
    )
    pictures.add_argument("--world", type=Path, default=default_folder())
    pictures.set_defaults(run=_pictures)
    comfy = commands.add_parser(
        "comfy", help="two painters in the real ComfyUI, judged from outside"
    )
    checkout = os.environ.get("COMFYUI_PATH", str(Path.home() / "comfy" / "ComfyUI"))
    comfy.add_argument(
        "--comfyui", type=Path, default=Path(checkout), help="its checkout (default: COMFYUI_PATH)"
    )
    comfy.add_argument(
        "--encoder", action="append", choices=tuple(IN_COMFY), help="only this one; may be repeated"
    )
    comfy.add_argument(
        "--package",
        type=Path,
        help="folder that holds the first release as 'speed_erase', to compare",
    )
    comfy.set_defaults(run=_comfy)
    report = commands.add_parser("report", help="tables and pictures of what was measured")
    report.add_argument("--out", type=Path, default=Path("docs"))
    report.set_defaults(run=_report)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
