"""Tables of papers in one command: erases, generates, scores, and collects what to send us.

    python -m benchmarks.tables sd14.safetensors --server 127.0.0.1:8188 \
        --loras ComfyUI/models/loras --list people/10:names=10_celebrity.csv --out tables \
        -- --clip clip-vit-large --features inception.py:features
    python -m benchmarks.tables flux1-schnell-fp8.safetensors --tables flux ... \
        -- --classifier resnet.py:label

Every concept is erased twice, by the default and by the paper's preset. What follows `--` goes to
`speed-erase evaluate`. Run it again after a stop: it continues where it was. Without a server the
model is the demo's.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from speed_erase.speed_ops.cli.main import main as speed_erase
from speed_erase.speed_ops.evaluate.setup import FOLDER, available, setup_of_paper

from .storage import load_json, save_json, save_text

TABLES = {
    "1": ("instances", "styles"),
    "2": ("people",),
    "flux": ("objects",),
}
PRESETS = {"instances": "few", "styles": "few", "people": "multi", "objects": "few"}
"""The paper's settings for each group of setups."""
RESULTS = "https://github.com/comfyui-speed/ComfyUI-SPEED/issues/new?template=results.yml"


def run(*arguments: object) -> None:
    """One command of ours; its exit code decides whether to go on."""
    if code := speed_erase([str(argument) for argument in arguments]):
        raise SystemExit(code)


def concept_lines(setup: str, lists: dict[str, Path]) -> list[str]:
    """What a setup erases, as lines of a concept list."""
    content = json.loads((FOLDER / f"{setup.split('/')[0]}.json").read_text(encoding="utf-8"))
    anchor = f" -> {content['anchor']}" if content["anchor"] else ""
    specs = setup_of_paper(setup, lists).specs
    names = dict.fromkeys(spec.concept for spec in specs if spec.role == "erase")
    return [f"{name}{anchor} || {content['kind']}" for name in names]


def erase(options: argparse.Namespace, setup: str, preset: str, lists: dict[str, Path]) -> str:
    """Erases what the setup names, unless it is done, and returns what to evaluate."""
    name = f"{setup.replace('/', '-')}-{preset}"
    folder = options.loras or options.out / "erased"
    file = folder / f"{name}-lora.safetensors"
    if not file.exists():
        concepts = options.out / f"{name}.txt"
        save_text(concepts, "\n".join(concept_lines(setup, lists)))
        flags = ["--concepts-file", concepts, "--preset", preset, "--name", name]
        flags += ["--out", folder, "--save", "lora", "--force", *options.erase]
        run("erase", options.original, *flags)
    return f"lora:{file.name}" if options.server else f"lora:{file}"


def evaluate(options: argparse.Namespace, setup: str, lists: dict[str, Path]) -> dict[str, Any]:
    """One block of a table: its columns, the paper's figures and ours."""
    out = options.out / setup.replace("/", "-")
    presets = {"default": "auto", "paper": PRESETS[setup.split("/")[0]]}
    flags = ["--setup", setup, "--original", options.original, "--out", out]
    flags += ["--pictures", options.out / "pictures"]
    for label, preset in presets.items():
        flags += ["--erased", f"SPEED {label}={erase(options, setup, preset, lists)}"]
    for url in options.server:
        flags += ["--server", url]
    for name, path in lists.items():
        flags += ["--list", f"{name}={path}"]
    run("evaluate", *flags, *options.evaluate)
    return dict(load_json(out / "evaluation.json"))


def lists_of(options: argparse.Namespace, setup: str) -> dict[str, Path]:
    """The user's files for a setup, from `--list SETUP:NAME=FILE` and `--list NAME=FILE`."""
    lists = {}
    for text in options.list:
        target, _, path = text.rpartition("=")
        owner, _, name = target.rpartition(":")
        if owner in ("", setup):
            lists[name] = Path(path)
    return lists


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("original", type=Path, help="the model file, also on the servers")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["1", "2"])
    parser.add_argument("--setup", action="append", help="only this setup; repeatable")
    parser.add_argument("--server", action="append", default=[], metavar="URL")
    parser.add_argument("--loras", type=Path, help="the servers' folder for LoRAs")
    parser.add_argument("--list", action="append", default=[], metavar="[SETUP:]NAME=FILE")
    parser.add_argument("--erase", nargs="+", default=[], help="further flags, such as device=cuda")
    parser.add_argument("--out", type=Path, required=True)
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end])
    options.evaluate = given[end + 1 :]
    if options.server and not options.loras:
        parser.error("The servers read LoRAs from a folder. Give it with --loras.")
    options.erase = [f"--{flag}" for flag in options.erase]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    groups = [group for table in options.tables for group in TABLES[table]]
    setups = options.setup or [name for name in available() if name.split("/")[0] in groups]
    results = {setup: evaluate(options, setup, lists_of(options, setup)) for setup in setups}
    about = {"torch": torch.__version__, "machine": platform.platform()}
    save_json(options.out / "result.json", {"about": about, "setups": results})
    print(f"Please send us {options.out / 'result.json'}: {RESULTS}")


if __name__ == "__main__":
    main()
