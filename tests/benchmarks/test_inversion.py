"""A textual inversion trained on the demo model: its file is read as training read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from speed_erase.benchmarks import inversion
from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.demo.packed_model import VOCABULARY, write_checkpoint


def test_a_trained_inversion_is_a_word_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inversion, "BATCH", 2)
    source = ModelSource.open(write_checkpoint(tmp_path / "demo.safetensors"))
    path = inversion.train(tmp_path, source, steps=2)
    vectors = load_file(path)["emb_params"]
    encoder = inversion.text_encoder("art")
    table = encoder.text_model.embeddings.token_embedding
    assert vectors.shape == (inversion.VECTORS, 768)
    assert (vectors != table.trained).any(dim=1).all(), "training moved each vector"
    table.trained.data.copy_(vectors)
    text = f"a cat by {inversion.TOKEN}"
    ids = inversion.padded([text])
    assert (ids >= VOCABULARY).sum() == inversion.VECTORS
    with torch.no_grad():
        (rows,) = encoder(ids)
    read = TextSetup(embeddings=(path,)).encoder(source).encoder.encode([text], [77])[0]
    assert (rows - read).norm() < 0.01 * read.norm()


def test_the_style_is_none_that_the_model_has_a_name_for() -> None:
    styles = {(painter.group, painter.texture) for painter in inversion.PAINTERS}
    assert (inversion.STYLE.group, inversion.STYLE.texture) not in styles
    images = torch.from_numpy(inversion.ten_images())
    pixels = ((images.permute(0, 2, 3, 1) + 1) * 127.5).to(torch.uint8)
    assert set(inversion.recognized(pixels)) == {inversion.NAME}
