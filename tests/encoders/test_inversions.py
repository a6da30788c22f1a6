"""Textual inversions from files: they act as the words whose vectors they hold."""

from __future__ import annotations

from pathlib import Path

import mini
import pytest
import torch
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer
from speed_erase.speed_ops.errors import FileError, InputError

TABLE = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"
NAME = "Orla Venn"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inversions") / "m.safetensors"
    mini.write_model(path)
    return path


@pytest.fixture(scope="module")
def vectors(model: Path) -> torch.Tensor:
    """Those of the tokens of a name."""
    return load_file(model)[TABLE][ClipTokenizer.from_package().token_ids(NAME)].float()


def rows(model: Path, file: Path, text: str) -> torch.Tensor:
    encoder = TextSetup(embeddings=(file,)).encoder(ModelSource.open(model)).encoder
    return encoder.encode([text], [77])[0]


@pytest.mark.parametrize("key", ["emb_params", "clip_l", "<my-style>"])
@pytest.mark.parametrize("text", ["{}", "a house by {}, oil on canvas", "{}'s sketch"])
def test_the_rows_are_those_of_the_words(
    model: Path, vectors: torch.Tensor, tmp_path: Path, key: str, text: str
) -> None:
    file = tmp_path / "my-style.safetensors"
    save_file({key: vectors}, file)
    read = rows(model, file, text.format("embedding:my-style"))
    assert torch.equal(read, rows(model, file, text.format(NAME)))
    assert not torch.equal(read, rows(model, file, text.format("Claude Monet")))


def test_the_cache_knows_one_file_from_another(
    model: Path, vectors: torch.Tensor, tmp_path: Path
) -> None:
    file, source = tmp_path / "x.safetensors", ModelSource.open(model)
    prints = []
    for factor in (1.0, 2.0):
        save_file({"emb_params": factor * vectors}, file)
        prints.append(TextSetup(embeddings=(file,)).encoder(source).encoder.fingerprint)
    prints.append(TextSetup().encoder(source).encoder.fingerprint)
    assert len(set(prints)) == 3


def test_what_does_not_fit_is_refused(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"emb_params": torch.zeros(2, 3)}, file)
    with pytest.raises(FileError):
        rows(model, file, "embedding:x")
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(2, 3)}, file)
    with pytest.raises(FileError):
        rows(model, file, "embedding:x")
    save_file({"emb_params": torch.full((2, 768), torch.nan)}, file)
    with pytest.raises(FileError):
        rows(model, file, "embedding:x")
    with pytest.raises(InputError):
        TextSetup().encoder(ModelSource.open(model)).encoder.streams[0].token_ids("embedding:x")
