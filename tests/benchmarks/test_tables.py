"""One command for the papers' tables: what it erases, what it evaluates, and what it collects."""

from __future__ import annotations

from pathlib import Path

import pytest

from speed_erase.benchmarks import tables
from speed_erase.benchmarks.storage import load_json, save_json, save_text
from speed_erase.speed_ops.evaluate.setup import available


class Recorder:
    """Stands in for the command line: notes each call, and writes what the next step reads."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, arguments: list[str]) -> int:
        self.calls.append(arguments)
        out = Path(arguments[arguments.index("--out") + 1])
        if arguments[0] == "erase":
            name = arguments[arguments.index("--name") + 1]
            save_text(out / f"{name}-lora.safetensors", "")
        else:
            save_json(out / "evaluation.json", {"setup": self.value("--setup")})
        return 0

    def value(self, flag: str) -> str:
        return self.calls[-1][self.calls[-1].index(flag) + 1]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(tables, "speed_erase", recorder)
    return recorder


def test_both_tables_of_the_paper_are_erased_twice_evaluated_once_and_collected(
    tmp_path: Path, recorder: Recorder
) -> None:
    names = tmp_path / "names.csv"
    save_text(names, "type,text,concept,seed\nerase,A portrait of Adam Driver,Adam Driver,1\n")
    lists = [
        text
        for count in ("10", "50", "100")
        for text in ("--list", f"people/{count}:names={names}")
    ]
    tables.main(["sd14.safetensors", "--out", str(tmp_path / "out"), *lists, "--", "--limit", "2"])
    wanted = {
        name for name in available() if name.split("/")[0] in ("instances", "styles", "people")
    }
    erased = [call for call in recorder.calls if call[0] == "erase"]
    evaluated = [call for call in recorder.calls if call[0] == "evaluate"]
    assert len(erased) == 2 * len(wanted) and len(evaluated) == len(wanted)
    assert {call[call.index("--preset") + 1] for call in erased} == {"auto", "few", "multi"}
    assert all(call[-2:] == ["--limit", "2"] for call in evaluated)
    concepts = (tmp_path / "out" / "people-10-multi.txt").read_text(encoding="utf-8")
    assert concepts.splitlines()[0].startswith("Adam Driver -> ")
    assert set(load_json(tmp_path / "out" / "result.json")["setups"]) == wanted


def test_a_second_call_erases_nothing_again(tmp_path: Path, recorder: Recorder) -> None:
    command = ["flux.safetensors", "--setup", "objects/church", "--out", str(tmp_path)]
    tables.main(command)
    first = len([call for call in recorder.calls if call[0] == "erase"])
    tables.main(command)
    assert first == 2 == len([call for call in recorder.calls if call[0] == "erase"])


def test_a_command_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "speed_erase", lambda arguments: 3)
    with pytest.raises(SystemExit) as stopped:
        tables.main(["x.safetensors", "--setup", "objects/church", "--out", str(tmp_path)])
    assert stopped.value.code == 3 and not (tmp_path / "result.json").exists()
