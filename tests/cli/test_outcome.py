"""What people read after an erasure: the three answers, in few lines and with few numbers."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measured
import pytest

from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.console import Console
from speed_erase.speed_ops.cli.outcome import show_erasure
from speed_erase.speed_ops.demo.packed_model import write_checkpoint
from speed_erase.speed_ops.errors import Notice

MOST = 12
"""Lines, and numbers, of the default output for one concept."""


def numbers(text: str) -> list[str]:
    """Numbers of a text, but not those in names of files."""
    return re.findall(r"(?<![\w.-])\d[\d,.]*\b(?![\w-])", text)


@pytest.fixture(scope="module")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("demo") / "model.safetensors")


def test_one_concept_is_twelve_lines_and_twelve_numbers_at_most(
    demo_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path / "cache"))
    command = ["erase", str(demo_model), "--concepts", "Orla Venn | the Copper Hand -> art"]
    command += ["--retain", "artists", "--retain-limit", "40", "--effort", "fast"]
    light = [*command, "--save", "lora,report"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr()
    assert len(output.out.splitlines()) <= MOST and len(numbers(output.out)) <= MOST
    assert len(output.err.splitlines()) <= 2 and len(numbers(output.err)) <= 4
    assert output.out.isprintable() is False and "\x1b" not in output.out + output.err
    assert main([*light, "--out", str(tmp_path / "more"), "--verbose"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > len(output.out.splitlines())
    assert main([*light, "--out", str(tmp_path / "json"), "--json"]) == 0
    (concept,) = json.loads(capsys.readouterr().out)["certificate"]["concepts"]
    assert 0 <= concept["score"] <= 1 and concept["verdict"] == "erased"


def shown(capsys: pytest.CaptureFixture[str], *concepts: Any, **changes: Any) -> str:
    """The output for these results."""
    proof = measured.certificate(concepts, **changes)
    report = SimpleNamespace(lines=lambda verbose=False: [], dropped=(), unusable=())
    report.encoded = report.reused = 0
    report.prompting = report.style = "tags"
    done = measured.erasure(proof, text_report=report)
    cleaned = SimpleNamespace(
        erasure=done,
        source=Path("model.safetensors"),
        files={"checkpoint": Path("out") / "model-erased.safetensors"},
        notes=(),
        lora_error=None,
        rounding=None,
        seconds=24.0,
    )
    show_erasure(cleaned, Console())  # type: ignore[arg-type]
    return capsys.readouterr().out


@pytest.mark.parametrize("verdict", ["erased", "weakened", "stands", "unproven"])
def test_only_an_erased_concept_is_ready_to_be_checked(
    verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    curve = measured.curve(3, 0.1)
    out = shown(capsys, measured.with_verdict("Monet", verdict), curve=curve)
    assert ("speed-erase probe" in out) == (verdict == "erased")
    assert ("Try: --" in out) == (verdict != "erased")


def test_the_suggested_priority_is_a_higher_one(capsys: pytest.CaptureFixture[str]) -> None:
    weak = measured.with_verdict("Monet", "stands")
    for budget, suggestion in ((0.02, "erase-fully"), (0.45, "0.9")):
        curve = measured.curve(2, budget)
        out = shown(capsys, weak, curve=curve)
        assert f"--priority {suggestion}" in out


def test_the_most_affected_name_is_shown_whatever_group_it_is_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The paper's presets protect some of the listed names and leave out the others."""
    kept = measured.drift("kept", 0.02, (("Monet", 0.12),))
    left_out = measured.drift("filtered", 0.2, (("Harper", 0.34),))
    out = shown(capsys, measured.with_verdict("cat", "erased"), drift=(kept, left_out))
    assert "Harper" in out and "Monet" not in out


def test_a_hundred_concepts_and_warnings_stay_short(capsys: pytest.CaptureFixture[str]) -> None:
    many = [measured.with_verdict(f"name {i}", "erased") for i in range(100)]
    warnings = tuple(Notice(f"{i}", code="rival") for i in range(50))
    assert len(shown(capsys, *many, warnings=warnings).splitlines()) < 30


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_an_agent_reads_plain_lines_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AI_AGENT", "CLAUDECODE", "CODEX_SANDBOX", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("WT_SESSION", "1")
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, Terminal(io.BytesIO(), encoding="utf-8"))
    assert Console().decorated
    monkeypatch.setenv("AI_AGENT", "1")
    assert not Console().decorated


def test_a_pipe_gets_no_colors_and_no_empty_lines(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, measured.with_verdict("Monet", "erased"))
    assert "\x1b" not in out and "" not in out.splitlines()
