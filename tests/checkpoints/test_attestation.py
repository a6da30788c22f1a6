"""A statement travels with a file: its digests and its numbers are checked, never believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forge
import forgeries
import pytest

from speed_erase.speed_ops.checkpoints.attestation import Attestation
from speed_erase.speed_ops.cli import main
from speed_erase.speed_ops.errors import FileError

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def attested(tmp_path_factory: pytest.TempPathFactory) -> tuple[forge.Forge, Path]:
    smithy = forge.Forge(tmp_path_factory.mktemp("attest"))
    file, statement = smithy.folder / "out" / "m-erased.safetensors", smithy.folder / "s.json"
    what = ["attest", str(file), "--base", str(smithy.base), "--out", str(statement), "--quiet"]
    assert main(what) == 0
    return smithy, statement


def codes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    main(["verify", *arguments, "--json"])
    return [fault["code"] for fault in json.loads(capsys.readouterr().out)["faults"]]


def test_a_statement_is_in_toto_and_verifies(
    attested: tuple[forge.Forge, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    smithy, statement = attested
    file = smithy.folder / "out" / "m-erased.safetensors"
    content = json.loads(statement.read_text())
    assert content["_type"] == "https://in-toto.io/Statement/v1"
    assert [subject["name"] for subject in content["subject"]] == [file.name]
    what = [str(file), "--base", str(smithy.base), "--attestation", str(statement)]
    assert codes(what, capsys) == []


def concepts(**fields: Any) -> Callable[[dict], None]:
    return lambda content: [
        concept.update(fields) for concept in content["predicate"]["measured"]["concepts"]
    ]


TAMPERED: dict[str, tuple[Callable[[dict], Any], str]] = {
    "file": (lambda c: c["subject"][0]["digest"].update(sha256="0" * 64), "attested-file"),
    "base": (lambda c: c["predicate"].update(base="0" * 64), "attested-base"),
    "recipe": (lambda c: c["predicate"]["recipe"].update(strength=0.5), "attested-recipe"),
    "digest": (lambda c: c["predicate"].update(recipeDigest="0" * 64), "attested-recipe"),
    "numbers": (concepts(probe_median=0.0), "attested-numbers"),
    "verdict": (concepts(verdict="perfect"), "attested-numbers"),
    "more numbers": (
        lambda c: c["predicate"]["measured"].update(images_checked=10**6),
        "attested-numbers",
    ),
    "no numbers": (lambda c: c["predicate"].update(measured={}), "attested-numbers"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_false_statement_fails_by_name(
    attested: tuple[forge.Forge, Path],
    what: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    smithy, statement = attested
    change, expected = TAMPERED[what]
    content = json.loads(statement.read_text())
    change(content)
    (tmp_path / "s.json").write_text(json.dumps(content))
    file = smithy.folder / "out" / "m-erased.safetensors"
    arguments = [str(file), "--base", str(smithy.base), "--attestation", str(tmp_path / "s.json")]
    assert expected in codes(arguments, capsys)


def test_nothing_false_is_attested(attested: tuple[forge.Forge, Path], tmp_path: Path) -> None:
    change = forgeries.FORGERIES["unedited"][1]
    arguments = attested[0].changed("erased", change, tmp_path / "x.safetensors")
    assert main(["attest", *arguments, "--out", str(tmp_path / "s.json"), "--quiet"]) == 1
    assert not (tmp_path / "s.json").exists()


def test_a_statement_that_names_a_file_twice_is_refused(
    attested: tuple[forge.Forge, Path], tmp_path: Path
) -> None:
    """Other tools would take either digest."""
    content = json.loads(attested[1].read_text())
    content["subject"] = [
        content["subject"][0] | {"digest": {"sha256": "0" * 64}},
        content["subject"][0],
    ]
    (tmp_path / "s.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match="twice"):
        Attestation.read(tmp_path / "s.json")


@pytest.mark.parametrize("path", [(), ("predicate",)])
def test_a_statement_with_more_than_is_checked_is_refused(
    attested: tuple[forge.Forge, Path], tmp_path: Path, path: tuple[str, ...]
) -> None:
    content = json.loads(attested[1].read_text())
    (content[path[0]] if path else content)["certified"] = "by someone"
    (tmp_path / "s.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match="certified"):
        Attestation.read(tmp_path / "s.json")


def test_every_file_of_a_folder_is_attested(
    attested: tuple[forge.Forge, Path], tmp_path: Path
) -> None:
    """Loaders read more than the weights that an erasure reads."""
    smithy, _ = attested
    folder, statement = smithy.folder / "out" / "pipeline-erased", tmp_path / "s.json"
    what = ["attest", str(folder), "--base", str(smithy.pipeline), "--out", str(statement)]
    assert main([*what, "--quiet"]) == 0
    files = {part.relative_to(folder).as_posix() for part in folder.rglob("*") if part.is_file()}
    assert set(Attestation.read(statement).files) == files and "model_index.json" in files
