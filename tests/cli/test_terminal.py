"""Whatever a file holds and wherever the output goes: nothing acts on the terminal, and nothing
ends in a traceback.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import mini
import pico
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.console import Console, visible

HIDDEN = "Monet\u202eevil\u200b\U000e0041\u3164"
"""A name as a recipe may have it."""
HOSTILE = f"{HIDDEN}\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\r\nVerified: all is well\u2028"
"""Text as other parts of a file may have it."""


def tame(text: str) -> bool:
    """Whether a terminal shows the text and does nothing else with it."""
    return all(
        char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        for char in text
    )


def recipe(target: str = HIDDEN) -> dict[str, Any]:
    concept = {"target": target, "anchor": target, "kind": target, "aliases": [target]}
    retain = [{"label": target, "sha256": "", "kind": "", "names": [target]}]
    return {
        "schema": "speed.recipe",
        "version": "1.9",  # fields of a newer version are not refused
        "concepts": [concept],
        "settings": {"preset_name": HOSTILE},
        "rows": {"strength": HOSTILE},
        "retain": retain,
        HOSTILE: 1,
    }


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A recipe and a model whose names, headers and keys are hostile."""
    (tmp_path / "r.json").write_text(json.dumps(recipe()), encoding="utf-8")
    proof = {"concepts": [{"name": HOSTILE, "verdict": HOSTILE, "probe_median": 0.5}]}
    header = {
        "speed.version": "1.0",
        "speed.recipe": json.dumps(recipe()),
        "speed.certificate": json.dumps(proof),
    }
    model = tmp_path / "m\x1b[31m\u202e.safetensors"
    save_file({HOSTILE: torch.ones(2, 2)}, model, metadata=header | {"speed.base_hash": HIDDEN})
    return {"recipe": tmp_path / "r.json", "model": model}


@pytest.mark.parametrize("name", ["recipe", "model"])
def test_inspect_shows_what_is_hidden(
    files: dict[str, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(files[name])]) == 0
    out = capsys.readouterr()
    assert tame(out.out + out.err)
    for shown in (
        "\\x1b[2J",
        "\\x9b31m",
        "\\x7f",
        "\\u202e",
        "\\u200b",
        "\\U000e0041",
        "\\u3164",
        "\\r\\nVerifi",  # a value is cut to 40 characters
    ):
        assert shown in out.out, shown
    assert not any(line.lstrip().startswith("Verifi") for line in out.out.splitlines())


@pytest.mark.parametrize("name", ["recipe", "model"])
def test_json_says_the_same_and_is_tame(
    files: dict[str, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(files[name]), "--json"]) == 0
    out = capsys.readouterr().out
    facts = json.loads(out)
    stored = facts["recipe"] if name == "recipe" else facts["recorded"]["recipe"]
    concept = stored["concepts"][0]
    assert tame(out) and concept["target"] == concept["aliases"][0] == HIDDEN
    assert facts["file"] == str(files[name]) and stored["settings"]["preset_name"] == HOSTILE


@pytest.mark.parametrize("more", [[], ["--json"], ["--debug"]])
def test_errors_are_tame(
    files: dict[str, Path], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    odd = str(files["model"])
    wrong = (
        ["erase", odd, "--concepts", "a -> b", "--out", "out"],
        ["verify", odd, "--base", odd],
        ["apply", str(files["recipe"]), odd, "--out", "out"],
        ["inspect", odd + "\x1b[0m missing.safetensors"],
        ["inspect", odd, "\x1b[31mextra"],
        ["\x1b[31mfrob"],
        ["erase", "--\x1b[31mfrob"],
        ["run", odd],
    )
    for arguments in wrong:
        assert main([*arguments, *more]) in (1, 2)
        out = capsys.readouterr()
        assert tame(out.out + out.err) and out.err


@given(st.text(alphabet=st.characters(), max_size=60))
def test_every_line_is_tame_and_json_is_exact(text: str) -> None:
    assert tame(visible(text)) and "\n" not in visible(text)
    if tame(text) and "\n" not in text and not set(text) - set("abc áß葛 \t"):
        assert visible(text) == text


@given(st.text(alphabet=st.characters(), max_size=60))
def test_json_is_the_value_in_every_encoding(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch, io.StringIO() as written:
        patch.setattr("sys.stdout", written)
        Console(machine=True).result({text: text})
        output = written.getvalue()
    assert tame(output) and output.isascii() and json.loads(output) == {text: text}


def test_names_that_people_write_stay_as_they_are() -> None:
    for name in (
        "Théophile Steinlen",
        "葛飾北斎",
        "Itō Jakuchū",
        "שלום",
        "a\tb",
        "🤖",
        "naïve ½",
        "50 % → “art”",
    ):
        assert visible(name) == name


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "latin-1", "utf-8"])
def test_a_console_without_our_characters_shows_escapes(tmp_path: Path, encoding: str) -> None:
    name = "Théo → “Łódź” 葛"
    (tmp_path / "r.json").write_text(json.dumps(recipe(name)), encoding="utf-8")
    done = subprocess.run(
        mini.command("inspect", tmp_path / "r.json"),
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == b""
    assert name.encode(encoding, "backslashreplace") in done.stdout


def shell(line: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line in a shell: the line calls it `COMMAND`."""
    command = shlex.join(mini.command(*arguments))
    return subprocess.run(
        ["bash", "-c", line.replace("COMMAND", command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plain") / "r.json"
    content = recipe("Monet") | {
        "concepts": [{"target": f"name {n}", "anchor": "", "kind": ""} for n in range(9)]
    }
    file.write_text(json.dumps(content))
    return file


QUIET = ("Traceback", "Exception ignored", "Errno")


@pico.linux
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("COMMAND >&-", 0),
        ("COMMAND 2>&-", 0),
        ("COMMAND <&- >&- 2>&-", 0),
        ("COMMAND 2>/dev/full", 0),
        ("COMMAND >/dev/full", 1),
        ("COMMAND >/dev/full 2>&1", 1),
        ("COMMAND | true; exit ${PIPESTATUS[0]}", 141),
    ],
)
@pytest.mark.parametrize("more", [["--json"], [], ["--help"]])
def test_a_stream_that_takes_nothing(plain: Path, line: str, code: int, more: list[str]) -> None:
    if "| true" in line:  # it has gone for sure
        line = line.replace("COMMAND", "(sleep 0.3; exec COMMAND)")
    done = shell(line, "inspect", plain, *more)
    assert done.returncode == code, done.stderr
    assert not any(word in done.stderr for word in QUIET)
    if line == "COMMAND >/dev/full":
        assert os.strerror(errno.ENOSPC) in done.stderr and len(done.stderr.splitlines()) == 1


@pico.linux
@pytest.mark.parametrize(
    "line", ["COMMAND >&-", "COMMAND 2>&-", "COMMAND 2>/dev/full", "COMMAND >/dev/full"]
)
def test_errors_keep_their_code_on_a_dead_stream(plain: Path, line: str) -> None:
    for arguments, code in (
        ([plain.parent / "no.json", "--json"], 1),
        (["--frobnicate", "--json"], 2),
    ):
        done = shell(line, "inspect", *arguments)
        assert done.returncode == code and not any(word in done.stderr for word in QUIET)


@pytest.fixture
def odd_name(tmp_path: Path) -> Path:
    """A file name that isn't UTF-8."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff\xfe.safetensors"))
    try:
        path.touch()
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    return path


def test_names_that_are_no_text_can_be_given_and_shown(
    odd_name: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path / "cache"))
    mini.write_model(odd_name)
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/out\xfd"))
    arguments = ["erase", str(odd_name), "--concepts", mini.CONCEPTS, *mini.QUICK]
    arguments += ["--out", str(out), "--save", "checkpoint,recipe,report"]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert tame(output) and "out\\udcfd/m\\udcff\\udcfe-erased.safetensors" in output
    copy = out / odd_name.name.replace(".safetensors", "-erased.safetensors")
    assert main(["inspect", str(copy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(copy)


def test_inspect_shows_what_was_erased_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = recipe("Monet")
    earlier = [
        {key: value for key, value in recipe(name).items() if key != HOSTILE}
        for name in ("Frida Kahlo", HIDDEN)
    ]
    (tmp_path / "r.json").write_text(
        json.dumps(content | {"history": [earlier[0] | {"base_hash": "aa"}, earlier[1]]})
    )
    assert main(["inspect", str(tmp_path / "r.json")]) == 0
    output = capsys.readouterr().out
    assert tame(output)
    assert output.index("Frida Kahlo") < output.index("sha256 aa") < output.rindex("Monet\\u202e")
    assert main(["inspect", str(tmp_path / "r.json"), "--json"]) == 0
    history = json.loads(capsys.readouterr().out)["recipe"]["history"]
    assert [entry["concepts"][0]["target"] for entry in history] == ["Frida Kahlo", HIDDEN]
