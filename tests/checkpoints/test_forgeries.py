"""Nothing gets past `verify`: every dishonest file fails by name, every honest variant passes."""

from __future__ import annotations

import json
from pathlib import Path

import forge
import forgeries
import pytest
import torch

from speed_erase.speed_ops.checkpoints.differences import converted
from speed_erase.speed_ops.cli import main

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def smithy(tmp_path_factory: pytest.TempPathFactory) -> forge.Forge:
    return forge.Forge(tmp_path_factory.mktemp("forge"))


def verified(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Exit code and codes of the faults."""
    capsys.readouterr()
    code = main(["verify", *arguments, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert "error" not in answer, answer
    assert answer["verified"] == (not answer["faults"])
    return code, [fault["code"] for fault in answer["faults"]]


@pytest.mark.parametrize("name", forgeries.FORGERIES)
def test_a_forgery_fails_by_name(
    smithy: forge.Forge, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, change, expected = forgeries.FORGERIES[name]
    arguments = smithy.changed(kind, change, tmp_path / "x.safetensors")
    code, faults = verified(arguments, capsys)
    assert code == 1 and expected in faults, faults


@pytest.mark.parametrize("name", forgeries.FOLDER_FORGERIES)
def test_a_forged_folder_fails_by_name(
    smithy: forge.Forge, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = forgeries.FOLDER_FORGERIES[name]
    code, faults = verified(smithy.changed_folder(change, tmp_path / "x"), capsys)
    assert code == 1 and expected in faults, faults


@pytest.mark.parametrize("name", forgeries.BROKEN)
def test_a_broken_file_is_refused(
    smithy: forge.Forge, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loaders may read what is not sound in different ways."""
    arguments = smithy.broken(forgeries.BROKEN[name], tmp_path / "x.safetensors")
    capsys.readouterr()
    assert main(["verify", *arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "file"


@pytest.mark.parametrize("name", forgeries.BROKEN_FOLDERS)
def test_a_folder_that_leads_elsewhere_is_refused(
    smithy: forge.Forge, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On another machine, the link leads to other weights."""
    arguments = smithy.changed_folder(forgeries.BROKEN_FOLDERS[name], tmp_path / "x")
    capsys.readouterr()
    assert main(["verify", *arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "file"


@pytest.mark.parametrize("name", forgeries.VARIANTS)
def test_an_honest_variant_passes(
    smithy: forge.Forge, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, change = forgeries.VARIANTS[name]
    arguments = smithy.changed(kind, change, tmp_path / "x.safetensors")
    assert verified(arguments, capsys) == (0, [])


@pytest.mark.parametrize("name", forgeries.FOLDER_VARIANTS)
def test_an_honest_folder_passes(
    smithy: forge.Forge, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = forgeries.FOLDER_VARIANTS[name]
    assert verified(smithy.changed_folder(change, tmp_path / "x"), capsys) == (0, [])


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (torch.tensor([0.9]), torch.tensor([0]), False),
        (torch.tensor([2.0]), torch.tensor([2]), True),
        (torch.tensor([2]), torch.tensor([2.4]), False),
        (torch.tensor([0.1]), torch.tensor([0.1]).bfloat16(), True),
        (torch.tensor([0.1]).half(), torch.tensor([0.1]).half().bfloat16().float(), True),
        (torch.tensor([0.1]), torch.tensor([0.1]).half() * 1.01, False),
    ],
)
def test_only_rounding_counts_as_the_same(
    before: torch.Tensor, after: torch.Tensor, same: bool
) -> None:
    """Buffers come as whole numbers or as fractions: cut to a whole number, a noise schedule of
    fractions would be all zeros.
    """
    assert converted(before, after) == same


def test_there_are_enough_of_both() -> None:
    assert len(forgeries.FORGERIES) + len(forgeries.FOLDER_FORGERIES) >= 40
    assert len(forgeries.VARIANTS) + len(forgeries.FOLDER_VARIANTS) >= 20
