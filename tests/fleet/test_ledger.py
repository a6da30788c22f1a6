"""The ledger: what a killed run wrote counts, half a line does not, and one run at a time holds
it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speed_erase.speed_ops.errors import BusyError, FileError
from speed_erase.speed_ops.fleet.ledger import LedgerEntry, open_ledger, read_ledger


def lines(path: Path) -> list[str]:
    return [json.loads(line)["model"] for line in path.read_text().splitlines()]


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "made" / "ledger.jsonl"
    first = LedgerEntry(
        "a",
        "cleaned",
        stamp="1",
        job="j",
        files={"lora": "a.safetensors"},
        seconds=1.5,
        machine="m",
    )
    with open_ledger(path) as ledger:
        ledger.add(first)
        ledger.add(LedgerEntry("b\n\u2028ä", "failed", "why", "file"))
        assert len(lines(path)) == 2, "a line is on the disk before the run goes on"
    with open_ledger(path) as ledger:
        assert ledger.entries == {
            "a": first,
            "b\n\u2028ä": LedgerEntry("b\n\u2028ä", "failed", "why", "file"),
        }


def test_the_last_word_counts_and_the_rest_goes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with open_ledger(path) as ledger:
        for status in ("failed", "failed", "cleaned"):
            ledger.add(LedgerEntry("a", status))
        ledger.add(LedgerEntry("b", "cleaned"))
        assert lines(path) == ["a", "a", "b"], "the same thing twice is one line"
    assert read_ledger(path).entries["a"].status == "cleaned"
    assert lines(path) == ["a", "a", "b"], "reading changes nothing"
    with open_ledger(path):
        assert lines(path) == ["a", "b"]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_half_a_line_at_the_end_was_not_written(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ledger.jsonl"
    with open_ledger(path) as ledger:
        ledger.add(LedgerEntry("a", "cleaned"))
        ledger.add(LedgerEntry("b", "cleaned"))
    path.write_bytes(path.read_bytes()[:-cut])
    with open_ledger(path) as ledger:
        assert set(ledger.entries) == {"a"}
        ledger.add(LedgerEntry("c", "cleaned"))
    assert lines(path) == ["a", "c"]


@pytest.mark.parametrize(
    "line",
    [
        *("nonsense", "[]", "7", '{"model": 1, "status": "cleaned"}', '{"model": "a"}'),
        *("[" * 100_000, '{"model":' * 100_000, '{"model": "a", "status": "b", "detail": NaN}'),
        *(
            f'{{"model": "a", "status": "b", {field}}}'
            for field in ('"files": {"lora": 7}', '"files": []', '"seconds": "1"', '"stamp": {}')
        ),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(LedgerEntry("a", "cleaned").line() + f"{line}\n".encode())
    with pytest.raises(FileError, match="2"), open_ledger(path):
        pass


def test_a_field_of_a_later_version_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"model": "a", "status": "cleaned", "colour": "red"}\n')
    assert read_ledger(path).entries == {"a": LedgerEntry("a", "cleaned")}


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with open_ledger(path), pytest.raises(BusyError), open_ledger(path):
        pass
