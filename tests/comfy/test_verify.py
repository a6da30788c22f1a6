"""Files that ComfyUI's own savers rewrite still verify; files that somebody trained on do not."""

from __future__ import annotations

import json
from pathlib import Path

import mini
import mini_checkpoints
import pytest
import torch
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.cli import main

pytestmark = pytest.mark.comfy


def faults(file: Path, base: Path, recipe: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    main(["verify", str(file), "--base", str(base), "--recipe", str(recipe), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert "error" not in answer, answer
    return [fault["code"] for fault in answer["faults"]]


@pytest.mark.parametrize("family", ["sd15", "sdxl"])
def test_comfyui_s_savers_keep_a_file_verifiable(
    comfyui: Path,
    shared_embeddings: None,
    tmp_path: Path,
    family: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import comfy.sd
    import comfy.utils

    base = mini_checkpoints.shared(family)
    erase = ["erase", str(base), "--concepts", mini.CONCEPTS, *mini.QUICK, "--quiet"]
    assert main([*erase, "--name", "m", "--out", str(tmp_path)]) == 0
    model, clip, vae = mini_checkpoints.load(tmp_path / "m-erased.safetensors")
    saved, recipe = tmp_path / "saved.safetensors", tmp_path / "m-recipe.json"
    comfy.sd.save_checkpoint(str(saved), model, clip=clip, vae=vae, metadata={})
    assert faults(saved, base, recipe, capsys) == []
    alone = tmp_path / "alone.safetensors"
    comfy.sd.save_checkpoint(str(alone), model, metadata={})
    assert faults(alone, base, recipe, capsys) == []
    if family == "sdxl":
        return  # slow, and only its text encoders are saved otherwise
    content = {
        key: value.bfloat16() if value.is_floating_point() else value
        for key, value in load_file(saved).items()
    }
    save_file(content, tmp_path / "cast.safetensors")
    assert faults(tmp_path / "cast.safetensors", base, recipe, capsys) == []
    content = load_file(saved)
    key = "model.diffusion_model.input_blocks.0.0.weight"
    content[key] = content[key] + 1e-3 * torch.randn(content[key].shape).to(content[key])
    save_file(content, tmp_path / "tuned.safetensors")
    assert faults(tmp_path / "tuned.safetensors", base, recipe, capsys) == ["changed-tensor"]
    lora = load_file(tmp_path / "m-eraser-lora.safetensors")
    patched, _ = comfy.sd.load_lora_for_models(mini_checkpoints.load(base)[0], None, lora, 1.0, 0)
    with torch.inference_mode():
        comfy.sd.save_checkpoint(str(alone), patched, metadata={})
    assert faults(alone, base, recipe, capsys) == []
