"""Families without CLIP from the command line: text encoder block by block, tokenizer from files,
what the model does to text first, and the edited layers.
"""

from __future__ import annotations

from pathlib import Path

import mini
import mini_chat
import pytest
import torch
from safetensors.torch import load_file

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.errors import FileError, InputError
from speed_erase.speed_ops.models.families import ARCHITECTURES
from speed_erase.speed_ops.text.kinds import Prompt
from speed_erase.speed_ops.text.requests import RowRequest
from speed_erase.speed_ops.text.tokens import Position

pytestmark = pytest.mark.usefixtures("own_cache")


class Home:
    """The files that a user has."""

    def __init__(self, folder: Path, family: str) -> None:
        self.family = family
        self.model = mini_chat.write_model(folder / "model.safetensors", family)
        self.encoder = mini_chat.write_encoder(folder / "encoder.safetensors", family)
        self.words = mini_chat.write_tokenizer(folder / "words", family)

    @property
    def flags(self) -> list[str]:
        words = [] if self.words is None else ["--tokenizer", str(self.words)]
        return ["--text-encoder", str(self.encoder), *words]

    @property
    def text(self) -> TextSetup:
        return TextSetup(None, self.words, (self.encoder,))

    def erase(self, out: Path, *more: str) -> int:
        command = ["erase", str(self.model), "--concepts", "Van Gogh -> art", *mini.QUICK]
        return main([*command, "--retain-limit", "4", *self.flags, "--out", str(out), *more])


@pytest.fixture(scope="module", params=mini_chat.MODELS)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("models"), request.param)


@pytest.fixture(scope="module")
def z_image(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("models"), "z-image")


def test_every_family_of_the_command_line_without_clip_is_here() -> None:
    without_clip = {
        family.name
        for family in ARCHITECTURES
        if family.on_command_line and all(row.appends == "rows" for row in family.every_encoder)
    }
    assert without_clip == {*mini_chat.MODELS, "flux2-klein-9b"}


def test_the_target_becomes_its_replacement_and_the_file_is_verified(
    home: Home, tmp_path: Path
) -> None:
    assert home.erase(tmp_path, "--save", "checkpoint,lora,recipe", "--quiet") == 0
    before = load_file(home.model)
    after = load_file(tmp_path / "model-erased.safetensors")
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed == {f"{path}.weight" for path in mini_chat.EDITED[home.family]}
    reader = home.text.encoder(ModelSource.open(home.model))
    (stream,) = reader.encoder.streams
    requests = [
        RowRequest(name, stream.rows(Position.LAST_SUBJECT, stream.locate(Prompt.bare(name))))
        for name in ("Van Gogh", "art")
    ]
    target, anchor = (rows[0] for rows in reader.rows(requests))
    for key in changed:
        goal = anchor @ before[key].T
        start, end = (target @ weights[key].T for weights in (before, after))
        assert (end - goal).norm() < 0.1 * (start - goal).norm()
    command = ["verify", str(tmp_path / "model-erased.safetensors"), "--base", str(home.model)]
    assert main([*command, *home.flags]) == 0


def test_rows_go_through_what_the_model_does_to_them(home: Home) -> None:
    reader = home.text.encoder(ModelSource.open(home.model))
    row = reader.encoder.streams[0].before
    (received,) = reader.rows([RowRequest("art", (row,))])
    (plain,) = reader.encoder.encode(["art"], [row + 1])
    weights, rows = load_file(home.model), plain[row:]
    if home.family in ("z-image", "lumina-2"):
        rows = _normed(rows, weights["cap_embedder.0.weight"], 1e-5)
    elif home.family == "qwen-image":
        rows = _normed(rows, weights["txt_norm.weight"], 1e-6)
    elif home.family in ("wan", "ltxv"):
        first, second = {
            "wan": ("text_embedding.0", "text_embedding.2"),
            "ltxv": ("caption_projection.linear_1", "caption_projection.linear_2"),
        }[home.family]
        rows = rows @ weights[f"{first}.weight"].T + weights[f"{first}.bias"]
        rows = torch.nn.GELU(approximate="tanh")(rows)
        rows = rows @ weights[f"{second}.weight"].T + weights[f"{second}.bias"]
    assert torch.allclose(received, rows, atol=1e-4) and rows.norm() > 1e-2


def _normed(rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(rows, (len(weight),), weight, epsilon)


def test_what_is_missing_is_named(z_image: Home, tmp_path: Path) -> None:
    source = ModelSource.open(z_image.model)
    with pytest.raises(FileError) as missing:
        TextSetup().encoder(source)
    assert missing.value.data["advice"] == "give-text-encoder"
    with pytest.raises((FileError, InputError)) as other:
        mini_chat.write_words(tmp_path / "clip", "o</w>")
        TextSetup(None, tmp_path / "clip", (z_image.encoder,)).encoder(source)
    assert "CLIP" in str(other.value)


def test_an_encoder_of_another_family_is_refused(z_image: Home, tmp_path: Path) -> None:
    """UMT5 has T5-XXL's width; Gemma's keys are spelled as Qwen's."""
    for family, other in (("wan", "ltxv"), ("ltxv", "wan"), ("z-image", "lumina-2")):
        model = mini_chat.write_model(tmp_path / f"{family}.safetensors", family)
        encoder = mini_chat.write_encoder(tmp_path / f"{other}-text.safetensors", other)
        with pytest.raises(FileError):
            TextSetup(None, None, (encoder,)).encoder(ModelSource.open(model))


def test_a_tokenizer_that_is_nowhere_is_asked_for(tmp_path: Path) -> None:
    home = Home(tmp_path, "auraflow")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError) as refusal:
        TextSetup(None, tmp_path / "empty", (home.encoder,)).encoder(ModelSource.open(home.model))
    assert refusal.value.data["advice"] == "tokenizer"
