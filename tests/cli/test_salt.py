"""Redacted files can be proved later: their salt is one that somebody has, never one that nobody
saw.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import mini
import pytest

from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli import salt as salts
from speed_erase.speed_ops.cli.salt import SALT_VARIABLE, make_salt
from speed_erase.speed_ops.errors import FileError
from speed_erase.speed_ops.recipe import Recipe

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    mini.write_model(path)
    return path


def redact(model: Path, out: Path, *more: str, save: str = "recipe") -> int:
    common = [
        "erase",
        str(model),
        "--concepts",
        mini.CONCEPTS,
        *mini.QUICK,
        "--redact",
        "--save",
        save,
        "--force",
    ]
    return main([*common, "--out", str(out), *more])


def test_without_a_salt_nothing_is_redacted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(SALT_VARIABLE, raising=False)
    for more in ([], ["--quiet"], ["--dry-run"]):
        assert redact(model, tmp_path / "out", *more) == 2
        said = capsys.readouterr().err
        assert all(word in said for word in ("--salt TEXT", "--salt-file FILE", SALT_VARIABLE))
    assert not list(tmp_path.iterdir())


def test_all_ways_to_give_a_salt_are_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "salt").write_text("sea\n")
    found = []
    for more in (["--salt", "sea"], ["--salt-file", str(tmp_path / "salt")], []):
        monkeypatch.setenv(SALT_VARIABLE, "tears" if more else "sea")
        assert redact(model, tmp_path, "--quiet", *more) == 0
        found.append((tmp_path / "m-recipe.json").read_text())
    assert len(set(found)) == 1 and "Gogh" not in found[0]
    assert redact(model, tmp_path, "--quiet", "--salt", "tears") == 0
    assert (tmp_path / "m-recipe.json").read_text() != found[0]


def test_a_missing_salt_file_is_made_for_its_owner_alone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SALT_VARIABLE, "another")
    file, before = tmp_path / "salt", os.umask(0)
    try:
        assert redact(model, tmp_path / "out", "--salt-file", str(file)) == 0
    finally:
        os.umask(before)
    salt = file.read_text().strip()
    assert len(salt) >= 32 and f"a new random salt is in {file}" in capsys.readouterr().err
    assert os.name == "nt" or stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    first = (tmp_path / "out" / "m-recipe.json").read_text()
    assert redact(model, tmp_path / "out", "--salt-file", str(file)) == 0
    assert (
        tmp_path / "out" / "m-recipe.json"
    ).read_text() == first and file.read_text().strip() == salt
    assert "a new random salt" not in capsys.readouterr().err
    assert redact(model, tmp_path / "out", "--salt", salt) == 0
    assert (tmp_path / "out" / "m-recipe.json").read_text() == first


def test_a_dry_run_makes_no_salt(model: Path, tmp_path: Path) -> None:
    assert redact(model, tmp_path / "out", "--salt-file", str(tmp_path / "salt"), "--dry-run") == 0
    assert not list(tmp_path.iterdir())


def test_runs_at_once_share_the_salt_that_one_of_them_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have seen that there is none before any makes one."""
    together = threading.Barrier(4)
    name = salts._name_unless_taken

    def wait(temporary: Path, file: Path) -> None:
        together.wait(30)
        name(temporary, file)

    monkeypatch.setattr(salts, "_name_unless_taken", wait)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(make_salt(tmp_path / "salt", lambda _: None)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["salt"]


def test_a_file_system_without_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    salt = make_salt(tmp_path / "salt", lambda _: None)
    assert (tmp_path / "salt").read_text().strip() == salt
    assert [path.name for path in tmp_path.iterdir()] == ["salt"]


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"x" * 5000])
def test_what_is_no_salt_is_refused(
    content: bytes, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "salt").write_bytes(content)
    assert redact(model, tmp_path / "out", "--salt-file", str(tmp_path / "salt")) == 1
    assert "is not a salt file" in capsys.readouterr().err
    assert (tmp_path / "salt").read_bytes() == content and not (tmp_path / "out").exists()


def test_a_place_that_takes_no_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="Cannot write"):
        make_salt(tmp_path / "no-folder" / "salt", lambda _: None)


def test_verify_and_probe_read_the_salt_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(SALT_VARIABLE, raising=False)
    salt = tmp_path / "salt"
    assert redact(model, tmp_path / "r", "--salt-file", str(salt), "--quiet", save="lora") == 0
    plain = [
        "erase",
        str(model),
        "--concepts",
        mini.CONCEPTS,
        *mini.QUICK,
        "--save",
        "recipe",
        "--quiet",
    ]
    assert main([*plain, "--out", str(tmp_path / "plain")]) == 0
    lora, recipe = (
        tmp_path / "r" / "m-eraser-lora.safetensors",
        tmp_path / "plain" / "m-recipe.json",
    )
    common = [str(lora), "--base", str(model), "--recipe", str(recipe), "--json"]
    capsys.readouterr()
    for more in (["--salt-file", str(salt)], ["--salt", salt.read_text().strip()]):
        assert main(["verify", *common, *more]) == 0
        assert json.loads(capsys.readouterr().out)["verified"] is True
        assert main(["probe", *common, "--templates", "0", *more]) in (0, 1)
        assert "tried" in json.loads(capsys.readouterr().out)
    monkeypatch.setenv(SALT_VARIABLE, salt.read_text().strip())
    assert main(["verify", *common]) == 0
    assert main(["verify", *common, "--salt-file", str(tmp_path / "no-such")]) == 1
    assert not (tmp_path / "no-such").exists()


def test_a_redacted_batch_is_resumed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(SALT_VARIABLE, raising=False)
    plain = [
        "erase",
        str(model),
        "--concepts",
        mini.CONCEPTS,
        *mini.QUICK,
        "--save",
        "recipe",
        "--quiet",
    ]
    assert main([*plain, "--out", str(tmp_path)]) == 0
    arguments = [
        "batch",
        "--recipe",
        str(tmp_path / "m-recipe.json"),
        "--in",
        str(model.parent),
        "--json",
        "--redact",
    ]
    arguments += [
        "--out",
        str(tmp_path / "out"),
        "--salt-file",
        str(tmp_path / "salt"),
        "--save",
        "lora,recipe",
    ]
    capsys.readouterr()
    for status in ("cleaned", "skipped"):
        assert main(arguments) == 0
        assert [one["status"] for one in json.loads(capsys.readouterr().out)["models"]] == [status]
    assert Recipe.read(tmp_path / "out" / "m-recipe.json").redacted
