"""The pooled path of a model file: only its text's columns change, and `verify` measures it like
the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import mini
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.files.lora import read_lora

pytestmark = pytest.mark.usefixtures("own_cache")

KEY = "model.diffusion_model.label_emb.0.0.weight"
TEXT = 1280
Change = Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, str]], None]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, own_cache: None) -> tuple[Path, Path]:
    """(base, folder with its results), of SDXL's refiner."""
    folder = tmp_path_factory.mktemp("pooled")
    base = folder / "m.safetensors"
    mini.write_model(base, "sdxl-refiner")
    assert (
        main(
            [
                "erase",
                str(base),
                "--concepts",
                mini.CONCEPTS,
                *mini.QUICK,
                "--out",
                str(folder),
                "--quiet",
            ]
        )
        == 0
    )
    return base, folder


def test_only_the_text_s_columns_change(pair: tuple[Path, Path]) -> None:
    base, folder = pair
    before, after = load_file(base), load_file(folder / "m-erased.safetensors")
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert KEY in changed and all(key.endswith("attn2.to_v.weight") for key in changed - {KEY})
    bits = [content[KEY][:, TEXT:].contiguous().view(torch.int16) for content in (before, after)]
    assert torch.equal(*bits)
    lora = read_lora(folder / "m-eraser-lora.safetensors", ModelSource.open(base).every_layer("V"))
    assert not lora.unmatched
    delta, wanted = (
        lora.edits[KEY.removeprefix("model.")].delta(),
        (after[KEY].double() - before[KEY].double()),
    )
    assert (delta - wanted).norm() < 0.02 * wanted.norm() and not delta[:, TEXT:].any()
    with safe_open(folder / "m-eraser-lora.safetensors", "pt") as file:
        assert "lora_unet_label_emb_0_0.lora_up.weight" in file.keys()  # noqa: SIM118
    page = (folder / "m-report.html").read_text()
    assert "Pooled text input" in page


def put_back(
    content: dict[str, torch.Tensor], base: dict[str, torch.Tensor], header: dict[str, str]
) -> None:
    content[KEY] = base[KEY]


def touch_sizes(
    content: dict[str, torch.Tensor], base: dict[str, torch.Tensor], header: dict[str, str]
) -> None:
    content[KEY][0, TEXT + 3] += 0.01


def say_nothing(
    content: dict[str, torch.Tensor], base: dict[str, torch.Tensor], header: dict[str, str]
) -> None:
    said = json.loads(header["speed.certificate"])
    del said["other_inputs"]["pooled"]
    header["speed.certificate"] = json.dumps(said)


def boast(
    content: dict[str, torch.Tensor], base: dict[str, torch.Tensor], header: dict[str, str]
) -> None:
    said = json.loads(header["speed.certificate"])
    for part in said["other_inputs"]["pooled"]["drift"]:
        part.update(dict.fromkeys(("median", "p95", "maximum", "mean"), 0.0))
    header["speed.certificate"] = json.dumps(said)


def recipe_without(
    content: dict[str, torch.Tensor], base: dict[str, torch.Tensor], header: dict[str, str]
) -> None:
    recipe = json.loads(header["speed.recipe"])
    recipe["settings"]["pooled"] = False
    header["speed.recipe"] = json.dumps(recipe)


FAULTS: dict[Change, str] = {
    put_back: "edit",
    touch_sizes: "changed-tensor",
    say_nothing: "certificate",
    boast: "certificate",
    recipe_without: "changed-tensor",
}
"""Change -> the code of a fault."""


def test_ours_passes(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("erased", "eraser-lora"):
        file = pair[1] / f"m-{name}.safetensors"
        assert main(["verify", str(file), "--base", str(pair[0]), "--verbose"]) == 0
        assert "Pooled text input:" in capsys.readouterr().out


def codes(
    pair: tuple[Path, Path], name: str, change: Change, target: Path, capsys: pytest.CaptureFixture
) -> list[str]:
    """What `verify` finds in a changed result."""
    source = pair[1] / f"m-{name}.safetensors"
    with safe_open(source, "pt") as file:
        header = dict(file.metadata())
    content = load_file(source)
    change(content, load_file(pair[0]), header)
    save_file(content, target, metadata=header)
    assert main(["verify", str(target), "--base", str(pair[0])]) == 1
    return re.findall(r"^Fault \(([\w-]+)\)", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("change", FAULTS, ids=lambda change: change.__name__)
def test_tampering_with_it_is_found(
    pair: tuple[Path, Path], tmp_path: Path, change: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    found = codes(pair, "erased", change, tmp_path / "m.safetensors", capsys)
    assert FAULTS[change] in found


def test_a_lora_that_edits_the_size_columns_is_found(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def widen(
        content: dict[str, torch.Tensor], base: dict[str, torch.Tensor], header: dict[str, str]
    ) -> None:
        content["lora_unet_label_emb_0_0.lora_down.weight"][0, TEXT + 3] = 0.01

    found = codes(pair, "eraser-lora", widen, tmp_path / "m.safetensors", capsys)
    assert found == ["changed-tensor"]
