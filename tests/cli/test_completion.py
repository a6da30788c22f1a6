"""Bash completes what the parser knows, at once, by the line in the command line guide."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pico
import pytest

from speed_erase.speed_ops.cli import main as main

argcomplete = pytest.importorskip("argcomplete")
pytestmark = pico.posix  # the shells that are completed for

_PROGRAM = """
import atexit, os
from speed_erase.speed_ops.cli import main
end = os._exit
def watched(code):
    heavy = {{"torch", "numpy", "transformers", "rich"}} & set(sys.modules)
    open({seen!r}, "a").write(" ".join(sorted(heavy)) + "\\n")
    end(code)
os._exit = watched
sys.exit(main())
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the program, a few files, and a record of the heavy packages that completing
    has imported.
    """
    program = tmp_path / "bin" / "speed-erase"
    program.parent.mkdir()
    body = pico.standalone(_PROGRAM.format(seen=str(tmp_path / "seen")))
    program.write_text(f"#!{sys.executable}\n{body}")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    (tmp_path / "files").mkdir()
    for name in ("model.safetensors", "recipe.json"):
        (tmp_path / "files" / name).touch()
    return tmp_path


def bash(home: Path, line: str) -> list[str]:
    """What bash offers at the end of a line."""
    script = """
        eval "$(register-python-argcomplete speed-erase)"
        COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
        function=$(complete -p speed-erase | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        "$function" speed-erase
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", line],
        env=os.environ
        | {"PATH": f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"},
        cwd=home / "files",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return sorted(word.strip() for word in done.stdout.split("\n") if word.strip())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("speed-erase ba", ["batch"]),
        ("speed-erase erase --retain-l", ["--retain-limit"]),
        ("speed-erase erase m --preset ", ["auto", "few", "fixed", "implicit", "multi"]),
        ("speed-erase erase m --kind st", ["style"]),
        ("speed-erase erase m --retain ch", ["characters"]),
        ("speed-erase erase m --retain artists,sc", ["artists,scenes"]),
        ("speed-erase erase m --save checkpoint,re", ["checkpoint,recipe", "checkpoint,report"]),
        ("speed-erase erase m --priority bal", ["balanced"]),
        ("speed-erase erase mod", ["model.safetensors"]),
        ("speed-erase batch --recipe rec", ["recipe.json"]),
        ("speed-erase erase m --concepts mod", []),
        ("speed-erase verify m --recipe rec", ["recipe.json"]),
        ("speed-erase erase m --set adversarial_ro", ["adversarial_rounds="]),
        ("speed-erase erase m --retain-limit mod", []),
        ("speed-erase batch --out mod", ["model.safetensors"]),
        ("speed-erase frobnicate --v", ["--version"]),
        ("speed-erase erase --frobnicate x --preset imp", ["implicit"]),
    ],
)
def test_bash_completes(home: Path, line: str, expected: list[str]) -> None:
    assert bash(home, line) == expected
    assert set((home / "seen").read_text().split()) == set()


def test_the_watch_sees_what_is_imported(home: Path) -> None:
    """The negative control: a program that imports numpy is caught."""
    program = home / "bin" / "speed-erase"
    program.write_text(program.read_text().replace("import atexit, os", "import atexit, os, numpy"))
    assert bash(home, "speed-erase ba") == ["batch"]
    assert (home / "seen").read_text().split() == ["numpy"]


def test_without_the_package_nothing_is_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    assert main(["--version"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    assert main(["erase"]) == 1
    assert capsys.readouterr().err == ""
