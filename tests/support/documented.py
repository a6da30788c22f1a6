"""Runs the commands that the command line guide shows, compares their output with the page, and
rewrites its blocks.

    python tests/support/documented.py            lists where the page and the program differ
    python tests/support/documented.py --write    rewrites the page with the program's output

All blocks run in order in one temporary folder, as later ones use files that earlier ones wrote.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

from speed_erase.speed_ops.cli.main import main as speed_erase

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "command-line.md"

_FENCE = "```console\n"
_BLOCK = re.compile(
    r"^```console\n\$ (?P<command>.+)\n(?P<shown>(?:.*\n)*?)```$(?:\n\nExit code (?P<code>\d+)\b)?",
    re.MULTILINE,
)


_PROGRESS = re.compile(r"[A-Z][a-z ]+: [\d.]+(?: [kMG]B)? of [\d.]+(?: [kMG]B)?$")
"""Progress, which is shown every few seconds: how often depends on the machine."""


@dataclass(frozen=True)
class Block:
    """A command as the page shows it."""

    command: str
    shown: tuple[str, ...]
    code: int
    """What the paragraph below says ("Exit code 1"), or 0."""


@dataclass(frozen=True)
class Run:
    """What a command of the page really did."""

    command: str
    output: tuple[str, ...]
    """stdout and stderr in the order in which they were written."""
    code: int


def blocks(page: str) -> list[Block]:
    """All commands of a page, in order; refuses a block that cannot be read."""
    commands = [
        Block(match["command"], tuple(match["shown"].splitlines()), int(match["code"] or 0))
        for match in _BLOCK.finditer(page)
    ]
    if len(commands) != page.count(_FENCE) or any(
        line.startswith("$ ") for block in commands for line in block.shown
    ):
        raise ValueError(
            "A console block must hold one command, in its first line, and what the command says."
        )
    return commands


def run_blocks(page: str) -> list[Run]:
    """Runs every command of a page in a temporary folder, which is gone afterwards."""
    runs = []
    waiting = list(_BEFORE)
    with tempfile.TemporaryDirectory(prefix="documented-") as folder, _inside(Path(folder)):
        for block in blocks(page):
            if waiting and block.command.startswith(waiting[0][0]):
                waiting.pop(0)[1]()
            runs.append(_run(block.command))
    return runs


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """In the folder, with a cache of its own and nothing of the user's settings."""
    before, threads = Path.cwd(), torch.get_num_threads()
    variables = {"SPEED_ERASE_CACHE": "cache", "COLUMNS": "80", "NO_COLOR": "1"}
    with patch.dict(os.environ, variables):
        for name in ("COMFYUI_PATH", "FORCE_COLOR", "PYTHON_COLORS"):
            os.environ.pop(name, None)
        os.chdir(folder)
        # more of them wait for each other when other programs use the processors
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            os.chdir(before)


def _run(command: str) -> Run:
    words, lines = shlex.split(command), None
    if words[-3:-1] == ["|", "head"]:
        lines, words = int(words[-1].removeprefix("-")), words[:-3]
    if words[0] != "speed-erase" or "|" in words:
        raise ValueError(
            f"Only speed-erase can be run, with `| head -N` after it at most: {command}"
        )
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream):
        code = speed_erase(words[1:])
    shown = [line for line in stream.getvalue().splitlines() if not _PROGRESS.match(line)]
    return Run(command, tuple(line.rstrip() for line in shown[:lines]), code)


def _fill_models() -> None:
    """Two good models and one that ends in its header."""
    Path("models").mkdir()
    for name in ("one", "two"):
        shutil.copyfile("demo-out/demo-model.safetensors", f"models/{name}.safetensors")
    with open("demo-out/demo-model.safetensors", "rb") as file:
        Path("models/broken.safetensors").write_bytes(file.read(1000))


def _write_job() -> None:
    """The job file that the page shows."""
    (shown,) = re.findall(
        r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    Path("job.yaml").write_text(shown, encoding="utf-8")


def _write_pickle() -> None:
    Path("old-model.ckpt").write_bytes(b"\x80\x02}.")


_BEFORE: tuple[tuple[str, Callable[[], None]], ...] = (
    ("speed-erase batch", _fill_models),
    ("speed-erase run", _write_job),
    ("speed-erase erase old-model.ckpt", _write_pickle),
)
"""What happens before a command, each once and in this order."""


VARIES: tuple[tuple[str, str], ...] = (
    (r"\b[0-9a-f]{32,64}\b", "<hash>"),
    (r"(?<![\w.])\d+(\.\d+)? (s|min)\b", "<time>"),
    (r"(?<![\w.])(?!0\.0 )\d+(\.\d+)? (GB|MB|kB)\b", r"<size> \2"),
    (r"-?\d+(\.\d+)?%", "<share>"),
    (r"(?<![\w.-])\d+\.\d+(e[+-]\d\d)?(?!\w|\.\w)", "<value>"),
    # Measured values decide which names are worth encoding in prompts, and which changed most.
    (r"\d+(?=, <time>| (?:prompts|texts|bare names|read from the cache)\b)", "<count>"),
    (r"(?<=ost affected: ).+", "<names>"),
    # The width of columns.
    (r"(?<=\S) {2,}", " "),
)
"""What may differ between two machines, and what replaces it in a comparison. All else must be
equal. Help texts have one width: COLUMNS is set for every run.
"""


def shape(lines: Sequence[str]) -> list[str]:
    """The lines without what may vary."""
    plain = list(lines)
    for pattern, replacement in VARIES:
        plain = [re.sub(pattern, replacement, line) for line in plain]
    return plain


def compare(block: Block, run: Run) -> list[str]:
    """Where the page shows something else than the command said; empty: nowhere."""
    lines = list(
        difflib.unified_diff(
            shape(block.shown), shape(run.output), "page", "program", lineterm="", n=0
        )
    )
    return lines if block.code == run.code else [*lines, _wrong_code(block, run)]


def differences(page: str, runs: Sequence[Run]) -> list[str]:
    """The same for all commands of a page."""
    shown = blocks(page)
    if [block.command for block in shown] != [run.command for run in runs]:
        return ["The commands of the page are not those that were run."]
    report = []
    for block, run in zip(shown, runs, strict=True):
        if lines := compare(block, run):
            report += [f"$ {block.command}", *lines]
    return report


def _wrong_code(block: Block, run: Run) -> str:
    last = run.output[-1] if run.output else "nothing"
    return (
        f"`{block.command}` ends with exit code {run.code}, the page says {block.code}. Its last"
        f" words: {last}"
    )


def rewritten(page: str, runs: Sequence[Run]) -> str:
    """The page with the output of the runs; refused where a command fails and the page does not say
    that it does.
    """
    for block, run in zip(blocks(page), runs, strict=True):
        if block.code != run.code:
            raise ValueError(_wrong_code(block, run))
    waiting = iter(runs)

    def with_output(match: re.Match[str]) -> str:
        block, start = match[0], match.start()
        lines = "".join(f"{line}\n" for line in next(waiting).output)
        return block[: match.start("shown") - start] + lines + block[match.end("shown") - start :]

    return _BLOCK.sub(with_output, page)


def main() -> int:
    """The command line of this file."""
    parser = argparse.ArgumentParser(
        description="Compare the command line guide with its commands."
    )
    parser.add_argument("--write", action="store_true", help="rewrite the blocks of the page")
    write = parser.parse_args().write
    page = PAGE.read_text(encoding="utf-8")
    runs = run_blocks(page)
    report = differences(page, runs)
    print("\n".join(report) or "The page is up to date.")
    if write:
        PAGE.write_text(rewritten(page, runs), encoding="utf-8")
    return 0 if write or not report else 1


if __name__ == "__main__":
    sys.exit(main())
