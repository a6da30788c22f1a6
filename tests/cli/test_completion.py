"""Shells complete what the parser knows, at once, by scripts that they really run."""

from __future__ import annotations

import json
import os
import shutil
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
    open({seen!r}, "a").write(" ".join(sorted({{"torch", "numpy", "transformers", "rich"}} & set(sys.modules))) + "\\n")
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
        eval "$(speed-erase completion bash)"
        COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
        function=$(complete -p speed-erase | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        "$function" speed-erase
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", line],
        env=os.environ | {"PATH": f"{home / 'bin'}:{os.environ['PATH']}"},
        cwd=home / "files",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return sorted(word.strip() for word in done.stdout.split("\n") if word.strip())


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("speed-erase ba", ["batch"]),
        ("speed-erase erase --retain-l", ["--retain-limit"]),
        ("speed-erase erase m --preset ", ["auto", "context", "few", "implicit", "multi"]),
        ("speed-erase erase m --kind st", ["style"]),
        ("speed-erase erase m --retain ch", ["characters"]),
        ("speed-erase erase m --retain artists,sc", ["artists,scenes"]),
        ("speed-erase erase m --save checkpoint,re", ["checkpoint,recipe", "checkpoint,report"]),
        ("speed-erase erase m --budget har", ["hardly"]),
        ("speed-erase erase mod", ["model.safetensors"]),
        ("speed-erase batch --recipe rec", ["recipe.json"]),
        ("speed-erase erase m --concepts mod", []),
        ("speed-erase erase m --redact --salt mod", []),
        ("speed-erase verify m --salt-file rec", ["recipe.json"]),
        ("speed-erase completion ", ["bash", "fish", "zsh"]),
        ("speed-erase frobnicate --v", ["--version"]),
        ("speed-erase erase --frobnicate x --preset imp", ["implicit"]),
    ],
)
def test_bash_completes(home: Path, line: str, wanted: list[str]) -> None:
    found = bash(home, line)
    assert found == wanted
    assert set((home / "seen").read_text().split()) == set()


def test_the_watch_sees_what_is_imported(home: Path) -> None:
    """The negative control: a program that imports numpy is caught."""
    program = home / "bin" / "speed-erase"
    program.write_text(program.read_text().replace("import atexit, os", "import atexit, os, numpy"))
    assert bash(home, "speed-erase ba") == ["batch"]
    assert (home / "seen").read_text().split() == ["numpy"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(
    shell: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script.count("speed-erase") >= 1 and "_ARGCOMPLETE" in script
    assert main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shell": shell, "script": script.rstrip("\n")}
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here to run the script")
    done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
def test_fish_completes(home: Path) -> None:
    script = "speed-erase completion fish | source; complete -C 'speed-erase erase m --kind st'"
    environment = os.environ | {"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "HOME": str(home)}
    done = subprocess.run(
        ["fish", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["style"]


_ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'autoload -Uz compinit; compinit -u -D; eval "$(speed-erase completion zsh)"; print rea""dy'
zpty -r shell line '*ready*'
zpty -w -n shell $'speed-erase erase m --kind sty\\t'
zpty -r shell line '*style*'
print -r -- found
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh here")
def test_zsh_completes(home: Path) -> None:
    environment = os.environ | {
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "HOME": str(home),
        "TERM": "dumb",
    }
    done = subprocess.run(
        ["zsh", "-f", "-c", _ZSH], env=environment, capture_output=True, text=True, timeout=60
    )
    assert "found" in done.stdout, done.stderr


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    assert main(["completion", "bash"]) == 1
    said = capsys.readouterr().err
    assert (
        "argcomplete" in said
        and "pip install 'speed-erase[cli]'" in said
        and len(said.splitlines()) == 1
    )
    assert main(["--version"]) == 0
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    assert main(["erase"]) == 1
    assert capsys.readouterr().err == ""
