"""Subcommands of `python -m benchmarks.world` that erase, compare, attack and report.

All imports are late: training must not need the engine, and the help should come at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_commands(commands: Any, comfy: argparse.ArgumentParser) -> None:
    """Adds erase, compare, sweep, attack, confirm and report; `comfy` brings --comfy and --seed."""
    add = commands.add_parser
    command = add(
        "erase", help="one task by one method: numbers, and a sheet of pictures before and after"
    )
    command.add_argument("--task", default="one")
    command.add_argument("--method", default="auto")
    _size(command)
    command.add_argument("--out", type=Path)
    command.set_defaults(run=_erase)

    for name, text, run in (
        ("compare", "the matrix of tasks and methods; stop it and go on at will", _compare),
        ("sweep", "curves: a cheap pass over the weights, pictures for the marked points", _sweep),
        ("attack", "white-box attacks before and after adversarial rounds", _attack),
    ):
        command = add(name, help=text)
        command.add_argument(
            "--quick", action="store_true", help="a short version of about ten minutes"
        )
        _size(command)
        command.set_defaults(run=run)

    command = add(
        "confirm", parents=[comfy], help="some runs again with the stock KSampler in ComfyUI"
    )
    command.add_argument("--task", default="one")
    command.add_argument("--method", action="append")
    _size(command)
    command.set_defaults(run=_confirm)

    command = add("report", help="tables, curves and pictures of the stored runs")
    command.add_argument("--out", type=Path, default=Path("docs/proof/tidy"))
    _size(command)
    command.set_defaults(run=_report)


def _size(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--count",
        type=int,
        default=36,
        help="pictures of each side in a run (default: %(default)s)",
    )
    command.add_argument("--threads", type=int, default=2)


def _runner(options: argparse.Namespace) -> Any:
    import torch

    from .matrix import QUICK
    from .model import World
    from .run import Runner

    torch.set_num_threads(options.threads)
    quick = getattr(options, "quick", False)
    return Runner(
        World(options.data), QUICK if quick else options.count, lambda text: print(text, flush=True)
    )


def _erase(options: argparse.Namespace) -> None:
    from .matrix import method_named, task_named
    from .run import line
    from .sheet import save_sheet

    runner = _runner(options)
    task, method = task_named(options.task), method_named(options.method)
    print(line(runner.run(task, method)))
    if options.out:
        import torch

        before, after = runner.untouched(task), runner.pictures(task, method)
        columns = min(12, len(before))
        save_sheet(options.out, torch.cat([before[:columns], after[:columns]]), columns)


def _compare(options: argparse.Namespace) -> None:
    from .matrix import full_jobs, quick_jobs
    from .run import run_all

    run_all(_runner(options), quick_jobs() if options.quick else full_jobs())


def _sweep(options: argparse.Namespace) -> None:
    from .matrix import sweep_jobs
    from .run import line

    runner = _runner(options)
    for job in sweep_jobs(options.quick):
        result = (
            runner.run(job.task, job.method)
            if job.pictures
            else runner.values(job.task, job.method)
        )
        print(f"{job.task.name:9s} {job.method.name:28s} {line(result)}", flush=True)
    runner.world.text.save()


def _attack(options: argparse.Namespace) -> None:
    from .matrix import attack_jobs
    from .run import attack_all

    attack_all(_runner(options), attack_jobs(options.quick))


def _confirm(options: argparse.Namespace) -> None:
    from .comfy_run import hand_over
    from .confirm import confirm
    from .matrix import method_named, task_named

    hand_over(options.comfy)
    methods = [method_named(name) for name in options.method or ("none", "auto", "speed_few")]
    confirm(_runner(options), task_named(options.task), methods)


def _report(options: argparse.Namespace) -> None:
    from .report import write_report

    write_report(_runner(options), options.out)
