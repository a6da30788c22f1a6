"""Z-Image from the command line: its text encoder block by block, its norm, one edited layer."""

from __future__ import annotations

from pathlib import Path

import mini
import mini_qwen
import pytest
import torch
from safetensors.torch import load_file

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.errors import FileError, InputError
from speed_erase.speed_ops.text.kinds import Prompt
from speed_erase.speed_ops.text.requests import RowRequest
from speed_erase.speed_ops.text.tokens import Position

pytestmark = pytest.mark.usefixtures("own_cache")
LAYER, NORM = "cap_embedder.1.weight", "cap_embedder.0.weight"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    mini_qwen.write_z_image(folder / "model.safetensors")
    mini_qwen.write_qwen(folder / "qwen.safetensors")
    mini_qwen.write_words(folder / "words")
    return folder


def erase(home: Path, out: Path, *more: str) -> int:
    texts = ["--text-encoder", str(home / "qwen.safetensors"), "--tokenizer", str(home / "words")]
    command = ["erase", str(home / "model.safetensors"), "--concepts", "Van Gogh -> art"]
    return main([*command, *mini.QUICK, "--retain-limit", "4", *texts, "--out", str(out), *more])


def test_the_target_becomes_its_replacement_and_nothing_else_changes(
    home: Path, tmp_path: Path
) -> None:
    assert erase(home, tmp_path, "--save", "checkpoint,lora,recipe", "--quiet") == 0
    before = load_file(home / "model.safetensors")
    after = load_file(tmp_path / "model-erased.safetensors")
    assert {key for key in before if not torch.equal(before[key], after[key])} == {LAYER}
    text = TextSetup(None, home / "words", (home / "qwen.safetensors",))
    encoder = text.encoder(ModelSource.open(home / "model.safetensors")).encoder
    (stream,) = encoder.streams
    rows = []
    for name in ("Van Gogh", "art"):
        (row,) = stream.rows(Position.LAST_SUBJECT, stream.locate(Prompt.bare(name)))
        states = encoder.encode([name], [row + 1])[0][row]
        rows.append(torch.nn.functional.rms_norm(states, states.shape, before[NORM], 1e-5))
    target, anchor = rows
    goal = anchor @ before[LAYER].T
    start, end = (target @ weights[LAYER].T for weights in (before, after))
    assert (end - goal).norm() < 0.1 * (start - goal).norm()


def test_an_erased_file_is_verified(home: Path, tmp_path: Path) -> None:
    assert erase(home, tmp_path, "--save", "checkpoint", "--quiet") == 0
    command = ["verify", str(tmp_path / "model-erased.safetensors")]
    command += ["--base", str(home / "model.safetensors"), "--tokenizer", str(home / "words")]
    assert main([*command, "--text-encoder", str(home / "qwen.safetensors")]) == 0


def test_rows_go_through_the_norm_of_the_model(home: Path) -> None:
    text = TextSetup(None, home / "words", (home / "qwen.safetensors",))
    reader = text.encoder(ModelSource.open(home / "model.safetensors"))
    (pushed,) = reader.rows([RowRequest("art", (4,))])
    (plain,) = reader.encoder.encode(["art"], [5])
    weight = load_file(home / "model.safetensors")[NORM]
    expected = torch.nn.functional.rms_norm(plain[4], (mini_qwen.WIDTH,), weight, 1e-5)
    assert torch.allclose(pushed[0], expected, atol=1e-4)


def test_what_is_missing_is_named(home: Path, tmp_path: Path) -> None:
    source = ModelSource.open(home / "model.safetensors")
    with pytest.raises(FileError) as missing:
        TextSetup().encoder(source)
    assert missing.value.data["advice"] == "give-text-encoder"
    with pytest.raises((FileError, InputError)) as other:
        mini_qwen.write_words(tmp_path / "clip", "o</w>")
        TextSetup(None, tmp_path / "clip", (home / "qwen.safetensors",)).encoder(source)
    assert "CLIP" in str(other.value)
