"""`doctor`: what is there is named, and what is missing comes with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import mini
import pytest
import torch

from speed_erase.speed_ops import doctor
from speed_erase.speed_ops.cli import main
from speed_erase.speed_ops.doctor import Finding, examine


def by_topic(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.topic: finding for finding in findings}


def checkout(folder: Path, version: str) -> Path:
    (folder / "comfy").mkdir()
    (folder / "comfy" / "model_patcher.py").touch()
    (folder / "comfyui_version.py").write_text(f'# a note of 2026\n__version__ = "{version}"\n')
    return folder


def test_it_names_torch_and_the_device() -> None:
    found = by_topic(examine())
    assert found["torch"].found == torch.__version__ and not found["torch"].fix
    assert found["device"].found and found["SPEED"].found


@pytest.mark.parametrize("used", ["cuda", "cpu"])
def test_a_gpu_is_named_and_whether_it_is_used(monkeypatch, used) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "RTX 3060")
    monkeypatch.setattr(doctor, "best_device", lambda: used)
    finding = by_topic(examine())["device"]
    assert finding.found == "RTX 3060" and bool(finding.fix) == (used == "cpu")


@pytest.mark.parametrize(("version", "fine"), [("0.7.0", True), ("0.33.1", True), ("0.6.9", False)])
def test_an_old_comfyui_comes_with_the_command_that_updates_it(tmp_path, version, fine) -> None:
    finding = by_topic(examine(comfyui=checkout(tmp_path, version)))["ComfyUI"]
    assert finding.found.startswith(version)
    assert (finding.fix == "") is fine and (fine or str(tmp_path) in finding.fix)


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch) -> None:
    import pkgutil

    monkeypatch.setattr(pkgutil, "iter_modules", lambda: iter(()))
    finding = by_topic(examine())["command line"]
    assert not finding.found and finding.fix.startswith('pip install "speed-erase[cli]"')


def test_a_model_is_shown_with_its_family_and_text_encoders(tmp_path, capsys) -> None:
    path = tmp_path / "model.safetensors"
    mini.write_model(path)
    assert main(["doctor", str(path), "--json"]) == 0
    found = {item["topic"]: item for item in json.loads(capsys.readouterr().out)["findings"]}
    assert found["model"]["found"].startswith("Stable Diffusion 1.x")
    assert found["CLIP-L"] == {"topic": "CLIP-L", "found": "in the model file", "fix": ""}


def test_a_file_that_is_no_model_is_a_finding_and_not_a_fault(tmp_path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    finding = by_topic(examine(tmp_path / "x.safetensors"))["model"]
    assert not finding.found and finding.fix
