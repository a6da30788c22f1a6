"""Runs the commands that docs/cli.md shows, compares what they say with the page, and rewrites its
blocks.

    python tests/support/documented.py            says where the page and the program differ
    python tests/support/documented.py --write    puts the program's own words into the page

All blocks run in order in one temporary folder, as later ones use files that earlier ones wrote.
"""

from __future__ import annotations

import argparse
import dataclasses
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
from itertools import groupby
from pathlib import Path
from unittest.mock import patch

import mini_dit
import torch
from safetensors.torch import save_file

from speed_erase.speed_ops.cli.main import main as speed_erase
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.files.header import read_header

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

_FENCE = "```console\n"
_BLOCK = re.compile(
    r"^```console\n\$ (?P<command>.+)\n(?P<shown>(?:.*\n)*?)```$(?:\n\nExit code (?P<code>\d+)\b)?",
    re.MULTILINE,
)


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
    return Run(
        command, tuple(line.rstrip() for line in stream.getvalue().splitlines()[:lines]), code
    )


def _write_sd3() -> None:
    """A miniature with its text encoders in files of their own."""
    mini_dit.write_dit(Path("sd3.safetensors"), "sd3")
    mini_dit.write_t5(Path("t5xxl.safetensors"))
    for name in ("clip_l", "clip_g"):
        save_file(mini_dit.clip_tensors(name), f"{name}.safetensors")
    mini_dit.write_tokenizer(Path("t5-tokenizer"))


def _touch_a_tensor() -> None:
    """A copy of a cleaned file in which one byte outside of the edit differs."""
    shutil.copyfile("cleaned/demo-model-erased.safetensors", "touched.safetensors")
    header = read_header(Path("touched.safetensors"))
    with open("touched.safetensors", "r+b") as file:
        position = header.data_start + header.entries["model.diffusion_model.out.2.weight"].begin
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def _fill_models() -> None:
    """Two good models and one that ends in its header."""
    Path("models").mkdir()
    for name in ("one", "two"):
        shutil.copyfile("demo-out/demo-model.safetensors", f"models/{name}.safetensors")
    with open("demo-out/demo-model.safetensors", "rb") as file:
        Path("models/broken.safetensors").write_bytes(file.read(1000))


def _remove_broken() -> None:
    Path("models/broken.safetensors").unlink()


def _write_job() -> None:
    """The job file that the page shows."""
    (shown,) = re.findall(
        r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    Path("job.yaml").write_text(shown, encoding="utf-8")


def _write_pickle() -> None:
    Path("old-model.ckpt").write_bytes(b"\x80\x02}.")


_BEFORE: tuple[tuple[str, Callable[[], None]], ...] = (
    ("speed-erase erase sd3.safetensors", _write_sd3),
    ("speed-erase verify touched.safetensors", _touch_a_tensor),
    ("speed-erase batch", _fill_models),
    ("speed-erase batch", _remove_broken),
    ("speed-erase run", _write_job),
    ("speed-erase erase old-model.ckpt", _write_pickle),
)
"""What happens before a command, each once and in this order."""


def _listed(names: re.Match[str]) -> str:
    return ", ".join(["<name> <share>"] * names[0].count("<share>"))


VARIES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"\b[0-9a-f]{32,64}\b", "<hash>"),
    (r"\d+\.\d+ s\b", "<seconds>"),
    (r"-?\d+(\.\d+)?%", "<share>"),
    (r"\d\.\de[+-]\d\d\b", "<drift>"),
    (r"(?<![\d.])(?!0\.0 )\d+(\.\d)? (GB|MB|kB)\b", r"<size> \2"),
    (r"<size> [GM]B(?= are free)", "<size>"),
    (r"(?<=the rest takes about )\d+ s\b", "<seconds>"),
    # Measured values decide these: which names are filtered out, which are worth encoding in
    # prompts, what is left.
    (r"(?<= names \()(alone|in prompts), \d+(?=\): drift)", r"\1, <count>"),
    (r"(?<=^Encoding kept names in prompts: )\d+", "<count>"),
    (r"[1-9]\d*(?= texts encoded| read from the cache)", "<count>"),
    (r"(?<=room for )\d+( to \d+)?", "<count>"),
    # How many points of the curve lie below the drifts that are told.
    (r"(?<=Otherwise: )<share> for <share>(, <share> for <share>)*", "<offers>"),
    (
        (
            r"(?<=encoded): about \d+ s on this machine, less with a cache|; those of earlier runs"
            r" come from the cache"
        ),
        "",
    ),
    # The names that moved most, or would; how many are listed does not vary.
    (r"(?<=moved most: ).+(?=\.$)", _listed),
    (r"^\S+(?: \S+)* {2,}<share>$", "<name> <share>"),
    # The width of columns.
    (r"(?<=\S) {2,}", " "),
)
"""What may differ between two machines, and what stands for it in a comparison. All else must be
equal.

The width of help texts is no matter here: COLUMNS is set for every run.
"""


def shape(lines: Sequence[str]) -> list[str]:
    """The lines without what may vary. Those that the program sorts by a measured value are sorted
    by their text.
    """
    plain = [_shape_of(line) for line in lines]
    out: list[str] = []
    for ranked, group in groupby(plain, lambda line: line.startswith(("LEAKS ", "ok "))):
        lines_of_kind = list(group)
        out += sorted(lines_of_kind) if ranked else lines_of_kind
    return out


def _shape_of(line: str) -> str:
    for pattern, stand_in in VARIES:
        line = re.sub(pattern, stand_in, line)
    # Phrases that leak are offered as aliases, the worst first.
    if offered := re.fullmatch(r'  --concepts "(.+) -> (.+)"', line):
        return f"  --concepts {sorted(offered[1].split(' | '))} -> {offered[2]}"
    return line


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


_SETTINGS = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- end of settings -->)", re.DOTALL)


def with_settings(page: str) -> str:
    """The page with a table of the settings that have no flag."""
    defaults = EraseSettings.preset("auto").to_dict()
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for item in dataclasses.fields(EraseSettings):
        if not item.metadata["public"]:
            default = str(defaults[item.name])
            shown = default.lower() if default in ("True", "False") else default
            meaning = item.metadata["help"].replace("|", r"\|")
            lines.append(f"| `{item.name}` | {shown} | {meaning} |")
    table = "\n".join(lines) + "\n"
    return _SETTINGS.sub(lambda _: table, page)


def main() -> int:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description="Compare docs/cli.md with what its commands say.")
    parser.add_argument("--write", action="store_true", help="rewrite the blocks of the page")
    write = parser.parse_args().write
    page = PAGE.read_text(encoding="utf-8")
    runs = run_blocks(page)
    report = differences(page, runs)
    print("\n".join(report) or "The page shows what the program says.")
    if write:
        PAGE.write_text(with_settings(rewritten(page, runs)), encoding="utf-8")
    return 0 if write or not report else 1


if __name__ == "__main__":
    sys.exit(main())
