"""Cleaning a LoRA: the same rank and format, without the concept, and verified."""

from __future__ import annotations

import json
from pathlib import Path

import mini
import pytest
import torch
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.cli.main import main
from speed_erase.speed_ops.errors import FileError
from speed_erase.speed_ops.files.lora import read_lora
from speed_erase.speed_ops.files.lora_copy import differing, write_copy

OUTSIDE = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_q"
RANK = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and a LoRA of random factors with a layer that reads no text."""
    folder = tmp_path_factory.mktemp("lora")
    model, lora = folder / "m.safetensors", folder / "lora.safetensors"
    mini.write_model(model)
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in ModelSource.open(model).every_layer("KV"):
        out, width = layer.shape
        tensors |= {
            f"{layer.lora_base}.lora_up.weight": torch.randn(out, RANK, generator=generator),
            f"{layer.lora_base}.lora_down.weight": torch.randn(RANK, width, generator=generator),
            f"{layer.lora_base}.alpha": torch.tensor(2.0),
        }
    tensors |= {
        f"{OUTSIDE}.lora_up.weight": torch.randn(8, 2, generator=generator),
        f"{OUTSIDE}.lora_down.weight": torch.randn(2, 8, generator=generator),
    }
    tensors = {key: value.half() for key, value in tensors.items()}
    save_file(tensors, lora, metadata={"ss_tag_frequency": "{}"})
    return model, lora


def clean(files: tuple[Path, Path], *flags: str) -> int:
    model, lora = map(str, files)
    words = ["clean-lora", lora, "--base", model, "--concepts", "Van Gogh -> art"]
    words += ["--retain", "artists", "--retain-limit", "12", "--preset", "few"]
    return main([*words, "--json", "--no-cache", *flags])


def test_the_name_is_gone_and_all_else_is_as_it_was(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, lora = files
    out = tmp_path / "clean.safetensors"
    assert clean(files, "--out", str(out)) == 0
    result = json.loads(capsys.readouterr().out)
    before, after = load_file(lora), load_file(out)
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed and all(key.endswith("lora_down.weight") for key in changed)
    assert {key: (value.shape, value.dtype) for key, value in before.items()} == {
        key: (value.shape, value.dtype) for key, value in after.items()
    }
    (concept,) = result["measured"]["concepts"]
    assert concept["solved_median"] < 0.01  # but for half precision
    assert result["experimental"]  # the verdict above is not about images
    assert result["outside"] == [OUTSIDE] and 0 < result["editable"] < 1
    edits = read_lora(lora, ModelSource.open(model).every_layer("KV")).edits
    inside = sum(float(edit.norm()) ** 2 for edit in edits.values())
    extra = before[f"{OUTSIDE}.lora_up.weight"].double()
    extra = extra @ before[f"{OUTSIDE}.lora_down.weight"].double()
    share = inside / (inside + float(extra.square().sum()))
    assert result["editable"] == pytest.approx(share, rel=1e-4)

    assert clean(files, "--verify", str(out)) == 0
    assert clean(files, "--verify", str(lora)) == 1  # the negative control
    verified, refused = capsys.readouterr().out.split("\n}\n{\n")
    assert json.loads(verified + "}")["differs"] == []
    assert json.loads("{" + refused)["differs"] == sorted(changed)
    assert clean(files, "--out", str(out)) == 2  # exists


def test_a_weak_lora_cannot_hide_what_it_loses(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the model with the LoRA keeps would be nearly all, whatever becomes of the LoRA."""
    model, lora = files
    weak, effects = tmp_path / "weak.safetensors", []
    tensors = load_file(lora)
    save_file({key: v / 64 if key.endswith("up.weight") else v for key, v in tensors.items()}, weak)
    for number, file in enumerate((lora, weak)):
        flags = ("--held-out", "0.5", "--out", str(tmp_path / f"{number}.safetensors"))
        assert clean((model, file), *flags) == 0
        (group,) = json.loads(capsys.readouterr().out)["measured"]["drift"]
        assert group["names"] == 12, "every listed name is measured"
        effects.append(group["maximum"])
    assert effects[1] > 0.01 and effects[1] == pytest.approx(effects[0], rel=0.2)


def test_a_changed_tensor_outside_is_found(files: tuple[Path, Path], tmp_path: Path) -> None:
    _, lora = files
    out = tmp_path / "copy.safetensors"
    write_copy(lora, out, {})
    assert differing(lora, out, {}) == []
    tensors = load_file(out)
    tensors[f"{OUTSIDE}.lora_up.weight"][0, 0] += 1
    save_file(tensors, out)
    assert differing(lora, out, {}) == [f"{OUTSIDE}.lora_up.weight"]
    with pytest.raises(FileError):
        write_copy(lora, lora, {}, force=True)


def test_a_lora_that_reads_no_text_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, lora = files
    tensors = {key: value for key, value in load_file(lora).items() if key.startswith(OUTSIDE)}
    save_file(tensors, tmp_path / "other.safetensors")
    assert clean((model, tmp_path / "other.safetensors"), "--out", str(tmp_path / "x")) == 1
    assert not (tmp_path / "x").exists()
