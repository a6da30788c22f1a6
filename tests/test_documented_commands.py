"""The command line guide shows what its commands print today: every block is run and compared."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from documented import (
    PAGE,
    Block,
    Run,
    blocks,
    compare,
    differences,
    rewritten,
    run_blocks,
    shape,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def runs(page: str) -> list[Run]:
    """All commands of the page, run once for all tests."""
    return run_blocks(page)


def test_the_page_shows_what_the_commands_print(page: str, runs: list[Run]) -> None:
    report = differences(page, runs)
    hint = "If the program is right, run `python tests/support/documented.py --write`."
    assert not report, "\n".join([*report, hint])


def test_what_fails_is_what_the_page_says_fails(page: str, runs: list[Run]) -> None:
    failed = [run.command for run in runs if run.code]
    assert failed == [block.command for block in blocks(page) if block.code]
    assert [command.split()[1] for command in failed] == ["batch", "erase"]


def test_no_path_of_the_machine_is_shown(page: str, runs: list[Run]) -> None:
    said = "\n".join(line for run in runs for line in run.output)
    assert not re.search(r"""(^|[\s'"(`])(/\w|[A-Z]:\\)""", page + said, re.MULTILINE)


def altered_lines(block: Block) -> Iterator[Block]:
    """The block with each line left out, said twice, and with one word changed."""
    for index, line in enumerate(block.shown):
        before, after = block.shown[:index], block.shown[index + 1 :]
        yield replace(block, shown=(*before, *after))
        yield replace(block, shown=(*before, line, line, *after))
        # A word that is compared as it is, unlike a name in a list of those that moved.
        words = re.findall(r"(?<![<\w])[A-Za-z]{3,}(?![\w>])", shape([line])[0])
        if words:
            yield replace(block, shown=(*before, line.replace(words[-1], "something"), *after))


def test_every_line_and_word_counts(page: str, runs: list[Run]) -> None:
    tried = 0
    for block, run in zip(blocks(page), runs, strict=True):
        for altered in altered_lines(block):
            tried += 1
            assert compare(altered, run), altered
    assert tried > 100


RUN = r"(?s)(^\$ speed-erase run[^\n]*\n).*?^```"
ERROR = r"\1speed-erase: There is no file job.yaml. Check the path.\n```"
ALTERED = {
    "two lines swapped": (r"(^\$ speed-erase inspect.*\n)(.*\n)(.*\n)", r"\1\3\2"),
    "another file": (r"demo-model-eraser-lora", "other-model-eraser-lora"),
    "another unit": (r"\d MB\b", "0 kB"),
    "an error in place of a result": (RUN, ERROR),
    "an error that the page documents": (RUN, rf"{ERROR}\n\nExit code 1."),
    "a failure that the page leaves out": (r"^Exit code 1\.", ""),
    "a failure that is none": (r"(?s)(^\$ speed-erase demo\n.*?^```\n)", r"\1\nExit code 1.\n"),
    "another command": (r"^\$ speed-erase demo$", "$ speed-erase demo --json"),
    "a command less": (r"(?s)^```console\n\$ speed-erase run .*?^```\n", ""),
}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_page_is_noticed(page: str, runs: list[Run], name: str) -> None:
    pattern, replacement = ALTERED[name]
    altered, count = re.subn(pattern, replacement, page, count=1, flags=re.MULTILINE)
    assert count == 1, f"nothing on the page matches {pattern}"
    assert differences(altered, runs)


SAME = {
    "hash": ("sha256 is " + "0a" * 32, "sha256 is " + "b1" * 32),
    "time": ("Writing: 324 MB, 0.4 s", "Writing: 324 MB, 12 s"),
    "size": ("report.html  (25.4 kB)", "report.html  (1.0 kB)"),
    "share": ("38% -> 26%", "100% -> 5.5%"),
    "value": ("drift at most 2.6e-15", "drift at most 0.03"),
    "count": ("Encoding 306 prompts", "Encoding 12 prompts"),
    "names": (
        "expected; most affected: Paul Poiret",
        "expected; most affected: Cassandre, Dora Maar",
    ),
    "columns": ("a.safetensors   cleaned", "a.safetensors cleaned"),
}
DIFFERENT = {
    "unit": ("report.html  (25.4 kB)", "report.html  (25.4 MB)"),
    "version": ("model-1.5.safetensors", "model-2.1.safetensors"),
    "exact count": ("1 of 2 concepts erased", "2 of 2 concepts erased"),
    "verdict": ("Orla Venn -> art  erased", "Orla Venn -> art  weakened"),
}


@pytest.mark.parametrize("name", SAME)
def test_another_machine_is_no_difference(name: str) -> None:
    here, elsewhere = SAME[name]
    assert here != elsewhere and shape([here]) == shape([elsewhere])


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_no_machine_changes_counts(name: str) -> None:
    before, after = DIFFERENT[name]
    assert shape([before]) != shape([after])


def test_order_matters() -> None:
    assert shape(["a", "b"]) != shape(["b", "a"])


FAILING = "```console\n$ speed-erase inspect missing.safetensors\n```\n"


def test_an_error_is_never_written_as_an_example() -> None:
    runs = run_blocks(FAILING)
    assert runs[0].code == 1 and "exit code 1, the page says 0" in "\n".join(
        differences(FAILING, runs)
    )
    with pytest.raises(ValueError, match="exit code 1, the page says 0"):
        rewritten(FAILING, runs)
    said = f"{FAILING}\nExit code 1.\n"
    written = rewritten(said, runs)
    assert differences(said, runs) and not differences(written, runs)
    assert written == said.replace("\n```\n", f"\n{runs[0].output[0]}\n```\n")


@pytest.mark.parametrize(
    "text", ["```console\nspeed-erase demo\n```", "```console\n$ speed-erase a\n$ ls\n```\n"]
)
def test_a_block_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="one command"):
        blocks(text)


@pytest.mark.parametrize(
    "command", ["rm -r models", "speed-erase cache | tail -3", "speed-erase cache | wc | head -1"]
)
def test_only_our_own_program_is_run(command: str) -> None:
    with pytest.raises(ValueError, match="Only speed-erase"):
        run_blocks(f"```console\n$ {command}\n```\n")


def test_a_run_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPEED_ERASE_CACHE", "mine")
    run_blocks("```console\n$ speed-erase cache --clear\n```\n")
    assert Path.cwd() == tmp_path and os.environ["SPEED_ERASE_CACHE"] == "mine"
    assert not list(tmp_path.iterdir())
