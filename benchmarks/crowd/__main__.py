"""`python -m benchmarks.crowd train|judge|run|answers|...|page`: the image tests."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ..storage import default_folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--data", type=Path, default=default_folder("crowd"), help="weights, runs")
    help = "a: a bidirectional text encoder (mpnet), b: a causal one (SmolLM2), c: mpnet and a "
    help += "transformer instead of a U-Net; each in its own --data"
    parser.add_argument("--world", choices=["a", "b", "c"], default="a", help=help)
    help = "folder of the text encoder (default: SPEED_MPNET or SPEED_SMOLLM2)"
    parser.add_argument("--encoder", type=Path, help=help)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train the model, or continue")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--steps", type=int, help="6000, in world c 3500, unless this is given")
    commands.add_parser("judge", help="train the judge on renderings")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--count", type=int, default=100, help="images on each side of a run")
    some = argparse.ArgumentParser(add_help=False)
    some.add_argument("--task", action="append", help="only this task; may be repeated")
    commands.add_parser("run", parents=[shared, some], help="all runs without a result")
    commands.add_parser("choices", parents=[shared, some], help="the default without its knee")
    commands.add_parser("answers", parents=[shared], help="tables of world c's own questions")
    out = argparse.ArgumentParser(add_help=False)
    out.add_argument("--out", type=Path, default=Path("docs/research/image-tests"))
    help = "compare measures with images, over the stored runs"
    commands.add_parser("signals", parents=[shared, out], help=help)
    stored = commands.add_parser("store", parents=[shared, out], help="runs and images to the page")
    stored.add_argument("--name", help="of another training of the same world, such as a2")
    commands.add_parser("page", parents=[out], help="the page from what is stored next to it")
    perform(parser.parse_args())


def perform(options: argparse.Namespace) -> None:
    from ..training import Log
    from .entry import answer
    from .judge import train_judge
    from .report import store, store_signals, write_page
    from .run import Runner
    from .tasks import TASKS
    from .worlds import WORLDS

    world = WORLDS[options.world]

    def runner(folder: Path, count: int) -> Runner:
        return Runner(world.crowd(folder, world.text(folder, options.encoder)), count)

    if options.command == "page":
        print(write_page(options.out))
        return
    if options.command == "judge":
        print(train_judge(options.data))
        return
    if options.command == "train":
        text = world.text(options.data, options.encoder)
        plan = world.plan(seed=options.seed)
        plan = replace(plan, steps=options.steps or plan.steps)
        world.trainer(options.data, plan, text).run(Log(options.data))
        return
    runs = runner(options.data, options.count)
    if options.command == "run":
        chosen = [world.tasks[name] for name in options.task or world.tasks]
        runs.run_all(chosen, world.methods)
    elif options.command == "signals":
        store_signals(runs, options.out)
    elif options.command == "answers":
        print(answer(runs))
    elif options.command == "choices":
        runs.choices(TASKS[name] for name in options.task or TASKS)
    else:
        store(runs, options.out, options.name or options.world)


if __name__ == "__main__":
    main()
