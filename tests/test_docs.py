"""What README and docs/cli.md show can be typed: the Python lines run, every command parses, every
link leads on.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
import torch

from speed_erase.speed_ops.cli.parser import build_parser

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/cli.md",
    "docs/engine.md",
    "docs/evaluate.md",
    "docs/fleet.md",
)
COMMAND = re.compile(r"^(?:\$ |    )(?:.*&& )?(speed-erase .+)$", re.MULTILINE)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands(name: str) -> list[str]:
    return [
        line.split(" | head")[0]
        for line in COMMAND.findall(page(name))
        if "speed-erase[" not in line
    ]


def test_the_python_lines_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", page("README.md"), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    generator = torch.Generator().manual_seed(0)
    sizes = {"targets": 1, "anchors": 1, "retain": 40, "invariants": 5}
    given = {name: torch.randn(count, 64, generator=generator) for name, count in sizes.items()}
    weights = {"layer": torch.randn(32, 64, generator=generator)}
    names: dict[str, object] = {"weights": weights, **given}
    exec(code, names)
    edited = names["edited"]
    assert isinstance(edited, dict) and edited["layer"].shape == (32, 64)
    assert (
        not torch.equal(edited["layer"], weights["layer"])
        and "removed in the prompts we optimised" in capsys.readouterr().out
    )


@pytest.mark.parametrize("name", ["README.md", "docs/cli.md", "docs/evaluate.md", "docs/fleet.md"])
def test_commands_parse(name: str) -> None:
    found = commands(name)
    assert len(found) > 1
    for line in found:
        try:
            build_parser().parse_args(shlex.split(line)[1:])
        except SystemExit as end:
            assert end.code == 0, line  # --help and --version


def test_every_command_is_shown() -> None:
    action = next(
        one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction)
    )
    shown = {shlex.split(line)[1] for line in commands("docs/cli.md")}
    assert shown >= set(action.choices)


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page(name)):
        if "://" not in target:
            assert ((ROOT / name).parent / target).exists(), target
