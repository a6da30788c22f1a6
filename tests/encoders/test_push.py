"""Rows pushed through what a model does to each token before the edited layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from text_pico import tiny_encoder
from torch import nn

from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache
from speed_erase.speed_ops.encoders.push import Push
from speed_erase.speed_ops.errors import UnsupportedModelError
from speed_erase.speed_ops.models.architecture import PushRule
from speed_erase.speed_ops.text.requests import RowRequest

NORM, NETWORK = PushRule("rms_norm", ("norm",), eps=1e-6), PushRule("mlp", ("first", "second"))


def weights(rule: PushRule, width: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"norm.weight": (width,)}
    if rule is NETWORK:
        shapes = {
            "first.weight": (6, width),
            "first.bias": (6,),
            "second.weight": (4, 6),
            "second.bias": (4,),
        }
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


def test_a_norm_is_torchs() -> None:
    module = nn.RMSNorm(8, eps=1e-6)
    module.weight.data = weights(NORM, 8)["norm.weight"]
    rows = torch.randn(5, 8) * 3
    push = Push(NORM, weights(NORM, 8))
    assert push.width == 8 and torch.allclose(push(rows), module(rows), atol=1e-6)


def test_a_network_is_torchs() -> None:
    given = weights(NETWORK, 8)
    first, second = nn.Linear(8, 6), nn.Linear(6, 4)
    for name, layer in (("first", first), ("second", second)):
        layer.weight.data, layer.bias.data = given[f"{name}.weight"], given[f"{name}.bias"]
    rows = torch.randn(5, 8) * 3
    push = Push(NETWORK, given)
    wanted = second(nn.GELU(approximate="tanh")(first(rows)))
    assert push.width == 4 and torch.allclose(push(rows), wanted, atol=1e-5)


def test_its_fingerprint_follows_its_weights_and_missing_ones_are_named() -> None:
    same, other = Push(NETWORK, weights(NETWORK, 8)), Push(NETWORK, weights(NETWORK, 8, seed=1))
    assert same.fingerprint == Push(NETWORK, weights(NETWORK, 8)).fingerprint != other.fingerprint
    with pytest.raises(UnsupportedModelError, match=r"no second\.weight"):
        Push(NETWORK, {"first.weight": torch.ones(6, 8)})


def test_models_with_other_weights_share_what_was_encoded(tmp_path: Path) -> None:
    encoder, asked = tiny_encoder(), [RowRequest("a dog", (1, 2)), RowRequest("", (0,))]
    plain = CachedEncoder(encoder).rows(asked)
    for turn, seed in enumerate((0, 1)):
        push = Push(NETWORK, weights(NETWORK, encoder.width, seed))
        reader = CachedEncoder(encoder, EmbeddingCache(tmp_path), push)
        found = reader.rows(asked)
        assert reader.width == 4 and all(
            torch.equal(a, push(b)) for a, b in zip(found, plain, strict=True)
        )
        assert (reader.encoded, reader.reused) == ((2, 0), (0, 2))[turn]
        assert reader.without_cache().rows(asked)[0].shape == (2, 4)
