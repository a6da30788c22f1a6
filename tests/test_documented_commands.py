"""docs/cli.md shows what its commands say today: every block is run, and the page is held against
the output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from documented import (
    PAGE,
    VARIES,
    Block,
    Run,
    blocks,
    compare,
    differences,
    rewritten,
    run_blocks,
    shape,
    with_settings,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def runs(page: str) -> list[Run]:
    """All commands of the page, run once for all tests."""
    return run_blocks(page)


def test_the_page_shows_what_the_commands_say(page: str, runs: list[Run]) -> None:
    report = differences(page, runs)
    hint = "If the program is right, run `python tests/support/documented.py --write`."
    assert not report, "\n".join([*report, hint])


def test_the_page_lists_every_setting_without_a_flag(page: str) -> None:
    assert page == with_settings(page)
    altered = page.replace("| `lam` |", "| `lamda` |")
    assert altered != page and altered != with_settings(altered)


def test_what_fails_is_what_the_page_says_fails(page: str, runs: list[Run]) -> None:
    failed = [run.command for run in runs if run.code]
    assert failed == [block.command for block in blocks(page) if block.code]
    assert [command.split()[1] for command in failed] == [
        "verify",
        "batch",
        "probe",
        "erase",
        "erase",
    ]
    refused = [
        run.command for run in runs if any(line.startswith("speed-erase: ") for line in run.output)
    ]
    assert refused == [command for command in failed if "old-model.ckpt" in command]


def test_no_path_of_the_machine_is_shown(page: str, runs: list[Run]) -> None:
    said = "\n".join(line for run in runs for line in run.output)
    assert not re.search(r"""(^|[\s'"(`])(/\w|[A-Z]:\\)""", page + said, re.MULTILINE)


def altered_lines(block: Block) -> Iterator[Block]:
    """The block with each line left out, said twice, and with one word changed."""
    for index, line in enumerate(block.shown):
        before, after = block.shown[:index], block.shown[index + 1 :]
        yield replace(block, shown=(*before, *after))
        yield replace(block, shown=(*before, line, line, *after))
        # A word that stands for itself in a comparison, unlike a name in a list of those that
        # moved.
        words = re.findall(r"(?<![<\w])[A-Za-z]{3,}(?![\w>])", shape([line])[0])
        if words:
            yield replace(block, shown=(*before, line.replace(words[-1], "something"), *after))


def test_every_line_and_word_counts(page: str, runs: list[Run]) -> None:
    tried = 0
    for block, run in zip(blocks(page), runs, strict=True):
        for altered in altered_lines(block):
            tried += 1
            assert compare(altered, run), altered
    assert tried > 500


SD3 = r"(?s)(^\$ speed-erase erase sd3\.safetensors[^\n]*\n).*?^```"
ERROR = r"\1speed-erase: There is no file sd3.safetensors.\n```"
ALTERED = {
    "two lines swapped": (r"^(lora  .*\n)(recipe  .*\n)", r"\2\1"),
    "another file": (r"^(report .*)demo-model", r"\1other-model"),
    "another unit": (r" kB\)", " MB)"),
    "another count": (r"^4 layers", "5 layers"),
    "fewer names listed": (r"(moved most: ).*, (.*%\.)$", r"\1\2"),
    "a phrase that leaks no more": (r"^LEAKS ", "ok    "),
    "another alias offered": (r'^(  --concepts ".*) \| .* ->', r"\1 ->"),
    "nothing cached": (r"[1-9]\d*(?= read from the cache)", "0"),
    "an error in place of a result": (SD3, ERROR),
    "an error that the page says is one": (SD3, rf"{ERROR}\n\nExit code 1."),
    "a failure that the page does not say": (r"^Exit code 1\.\n", ""),
    "a failure that is none": (r"(?s)(^\$ speed-erase demo\n.*?^```\n)", r"\1\nExit code 1.\n"),
    "another command": (r"^\$ speed-erase cache$", "$ speed-erase cache --json"),
    "a command less": (r"(?s)^```console\n\$ speed-erase cache --clear\n.*?^```\n", ""),
}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_page_is_noticed(page: str, runs: list[Run], name: str) -> None:
    pattern, replacement = ALTERED[name]
    altered, count = re.subn(pattern, replacement, page, count=1, flags=re.MULTILINE)
    assert count == 1, f"nothing on the page matches {pattern}"
    assert differences(altered, runs)


def test_every_stand_in_is_needed(runs: list[Run]) -> None:
    """After a change of words, a pattern that matches nothing would let another machine fail, and
    only there.
    """
    lines = [line for run in runs for line in run.output]
    for pattern, stand_in in VARIES:
        before, lines = lines, [re.sub(pattern, stand_in, line) for line in lines]
        assert lines != before, pattern


ELSEWHERE = (
    (r"\d+\.\d+ s\b", "98.7 s"),
    (r"-?\d+(\.\d+)?%", "6.5%"),
    (r"\b[0-9a-f]{32,64}\b", "0a" * 16),
    (r"\d\.\de-\d+", "3.2e-01"),
    (r"\d+\.\d kB", "1.0 kB"),
    (r"moved most: .*? (?=6\.5%)", "moved most: Somebody Else, of Ghent "),
)
"""What another machine may say."""


def test_another_machine_is_no_difference(page: str, runs: list[Run]) -> None:
    elsewhere = page
    for pattern, replacement in ELSEWHERE:
        elsewhere, count = re.subn(pattern, replacement, elsewhere)
        assert count, f"nothing on the page matches {pattern}"
    assert not differences(elsewhere, runs)


def test_order_matters_except_where_measured_values_decide_it() -> None:
    assert shape(["a", "b"]) != shape(["b", "a"])
    leaks = ["LEAKS   50% ->  40%  typo: 'x'", "ok     100% ->   5%  name: 'z'"]
    assert shape(leaks) == shape(leaks[::-1])
    assert shape(['  --concepts "a | b | c -> d"']) == shape(['  --concepts "a | c | b -> d"'])
    assert shape(['  --concepts "a | b -> d"']) != shape(['  --concepts "a | b -> e"'])


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
