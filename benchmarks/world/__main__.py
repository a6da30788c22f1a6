"""Living model: `python -m benchmarks.world
train|sample|evaluate|bits|erase|compare|sweep|attack|confirm|report`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .commands import add_commands
from .storage import default_folder


def _train(options: argparse.Namespace) -> None:
    from .export import export
    from .train import Plan, train

    given = {name: getattr(options, name) for name in ("steps", "batch", "seed")}
    train(options.data, Plan(**{name: value for name, value in given.items() if value is not None}))
    export(options.data)


def _sample(options: argparse.Namespace) -> None:
    from .comfy_run import ComfyWorld, hand_over
    from .prompts import PLAIN_TEMPLATES, TEMPLATES, sentence
    from .sheet import save_sheet
    from .world import PAINTERS, PLAIN, SUBJECTS

    hand_over(options.comfy)
    world = ComfyWorld(options.data)
    if options.prompt:
        texts, columns = [text for text in options.prompt for _ in range(8)], 8
    else:
        prompts = [sentence(PLAIN_TEMPLATES[0], subject, PLAIN.name) for subject in SUBJECTS]
        prompts += [
            sentence(TEMPLATES[0], subject, painter.name)
            for painter in PAINTERS
            for subject in SUBJECTS
        ]
        texts, columns = [prompt.text for prompt in prompts], len(SUBJECTS)
    save_sheet(
        options.out or options.data / "samples.png",
        world.sample(world.rows(texts), options.seed),
        columns,
    )


def _evaluate(options: argparse.Namespace) -> None:
    from .comfy_run import ComfyWorld, hand_over
    from .evaluate import evaluate, splits
    from .judge import Judge, accuracy
    from .storage import save_json

    hand_over(options.comfy)
    world = ComfyWorld(options.data)
    scores = evaluate(
        lambda texts: world.sample(world.rows(texts), options.seed),
        Judge(),
        splits(options.count),
    )
    for name, score in scores.items():
        print(f"{name:14s} {score.line()}")
    save_json(
        options.data / "evaluation.json",
        {"judge": accuracy(), "untouched": {name: vars(score) for name, score in scores.items()}},
    )


def _bits(options: argparse.Namespace) -> None:
    from .evaluate import rounding, splits
    from .model import World
    from .storage import load_tensors

    world = World(options.data)
    eight = {key: value.clone() for key, value in world.unet.state_dict().items()}
    sixteen = {
        key: value.half().float()
        for key, value in load_tensors(options.data / "unet.safetensors").items()
    }
    for name, prompts in splits(options.count).items():
        texts = [prompt.text for prompt in prompts]
        pictures = [world.draw(texts, options.seed, weights) for weights in (sixteen, eight)]
        found = rounding(world.judge, prompts, *pictures)
        print(f"{name:14s} 16 bits {found.sixteen.line()}\n{'':14s}  8 bits {found.eight.line()}")
        print(
            f"{'':14s}  seen otherwise {found.otherwise:.1%}, change of colours {found.change:.2%}",
            flush=True,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.world", description=__doc__)
    parser.add_argument(
        "--data",
        type=_path,
        default=default_folder(),
        help="folder of weights (default: %(default)s)",
    )
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("train", help="train all parts, or go on; write the checkpoint")
    command.add_argument("--steps", type=int, help="steps of the U-Net")
    command.add_argument("--batch", type=int)
    command.add_argument("--seed", type=int)
    command.set_defaults(run=_train)

    comfy = argparse.ArgumentParser(add_help=False)
    comfy.add_argument(
        "--comfy",
        type=_path,
        default=_known_checkout(),
        help="ComfyUI checkout (default: %(default)s)",
    )
    comfy.add_argument("--seed", type=int, default=0)
    command = commands.add_parser(
        "sample", parents=[comfy], help="contact sheet of painters and subjects"
    )
    command.add_argument(
        "--prompt", action="append", help="8 pictures of this prompt instead; may be repeated"
    )
    command.add_argument("--out", type=_path)
    command.set_defaults(run=_sample)

    command = commands.add_parser(
        "evaluate", parents=[comfy], help="what the judge sees in the model's pictures"
    )
    command.add_argument("--count", type=int, default=96, help="pictures for each kind of question")
    command.set_defaults(run=_evaluate)
    command = commands.add_parser(
        "bits", help="what storing the trained U-Net in 8 bits costs in pictures"
    )
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--count", type=int, default=96, help="pictures for each kind of question")
    command.set_defaults(run=_bits)
    add_commands(commands, comfy)
    return parser


def _path(text: str) -> Path:
    """A path as meant where the command was typed, also in the child process that runs inside
    ComfyUI's checkout.
    """
    return (Path(os.environ.get("SPEED_WORLD_FROM", ".")) / Path(text).expanduser()).resolve()


def _known_checkout() -> Path | None:
    named = os.environ.get("COMFYUI_PATH")
    return _path(named) if named else None


def main() -> None:
    options = _parser().parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
