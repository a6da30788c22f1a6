"""Quantised weights: read with their scale, or not at all. Raw integers are never taken for
weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import mini
import pytest
import torch
from safetensors.torch import save_file

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.errors import FileError
from speed_erase.speed_ops.files.tensors import read_scaled

KEY = "layer.weight"
LAYER = "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_v.weight"


def note(**said: object) -> torch.Tensor:
    return torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)


def read(**tensors: torch.Tensor) -> tuple[torch.Tensor, bool]:
    stored = {f"layer.{name}": value for name, value in tensors.items()}
    return read_scaled(stored.__getitem__, stored, KEY)


@pytest.mark.parametrize("name", ["weight_scale", "scale_weight"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (6,), (6, 1), (6, 2), (6, 4), (6, 8)], ids=str)
def test_a_weight_is_read_with_its_scale(
    name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    stored = torch.randint(-100, 100, (6, 8), generator=generator).to(dtype)
    scale = torch.rand(shape, generator=generator) + 0.5
    value, scaled = read(weight=stored, **{name: scale})
    assert scaled and value.dtype == torch.float32 and value.shape == (6, 8)
    for row in range(6):
        for column in range(8):
            if scale.numel() == 1:
                factor = scale.reshape(())
            else:
                blocks = scale.reshape(6, -1)
                factor = blocks[row, column * blocks.shape[1] // 8]
            assert value[row, column] == stored[row, column].float() * factor


def test_per_output_scales_of_square_weights_go_along_the_outputs() -> None:
    value, _ = read(
        weight=torch.ones(4, 4).to(torch.float8_e4m3fn), weight_scale=torch.arange(1.0, 5.0)
    )
    assert torch.equal(value, torch.arange(1.0, 5.0)[:, None].expand(4, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_plain_numbers_stay_as_they_are(dtype: torch.dtype) -> None:
    value, scaled = read(weight=torch.ones(2, 2, dtype=dtype))
    assert value.dtype == dtype and not scaled
    value, scaled = read(weight=torch.ones(2, 2).to(torch.float8_e4m3fn))
    assert value.dtype == torch.float8_e4m3fn and not scaled, "fp8 is a number without a scale, too"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"weight": torch.ones(6, 8, dtype=torch.int8)}, "8-bit integers without their scale"),
        (
            {"weight": torch.ones(6, 4, dtype=torch.uint8), "weight_scale": torch.ones(6)},
            r"packed numbers \(U8\)",
        ),
        ({"weight": torch.ones(6, 8, dtype=torch.uint8)}, r"packed numbers \(U8\)"),
        (
            {"weight": torch.ones(6, 8, dtype=torch.int32), "weight_scale": torch.ones(6)},
            r"packed numbers \(I32\)",
        ),
        ({"weight": torch.ones(6, 8, dtype=torch.int16)}, r"packed numbers \(I16\)"),
        ({"weight": torch.ones(6, 8, dtype=torch.bool)}, r"packed numbers \(BOOL\)"),
        (
            {"weight": torch.ones(8, dtype=torch.int8), "weight_scale": torch.ones(())},
            "packed numbers",
        ),
        (
            {"weight": torch.ones(6, 8, dtype=torch.int8), "weight_scale": torch.ones(5)},
            "scale of an unknown form",
        ),
        (
            {"weight": torch.ones(6, 8, dtype=torch.int8), "weight_scale": torch.ones(6, 3)},
            "scale of an unknown form",
        ),
        (
            {"weight": torch.ones(6, 8, dtype=torch.int8), "weight_scale": torch.ones(8)},
            "scale of an unknown form",
        ),
        (
            {
                "weight": torch.ones(6, 8, dtype=torch.int8),
                "weight_scale": torch.ones(6, dtype=torch.uint8),
            },
            "single number",
        ),
        (
            {
                "weight": torch.ones(6, 8, dtype=torch.int8),
                "weight_scale": torch.ones(6),
                "weight_zero_point": torch.ones(6),
            },
            "changed otherwise",
        ),
        (
            {
                "weight": torch.ones(6, 8, dtype=torch.int8),
                "weight_scale": torch.ones(6),
                "comfy_quant": note(format="int8_tensorwise", convrot=True),
            },
            "changed otherwise",
        ),
    ],
)
def test_what_means_something_else_is_refused_with_what_to_use(
    tensors: dict[str, torch.Tensor], words: str
) -> None:
    with pytest.raises(FileError, match=rf"^Tensor .*{words}.*\. Use the fp16"):
        read(**tensors)


def test_a_plain_note_beside_integers_is_understood() -> None:
    value, scaled = read(
        weight=torch.full((2, 2), 3, dtype=torch.int8),
        weight_scale=torch.tensor(0.5),
        comfy_quant=note(format="int8_x"),
    )
    assert scaled and torch.equal(value, torch.full((2, 2), 1.5))


def test_layers_of_a_model_file_are_read_so(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    content = mini.write_model(path)
    weight = content[LAYER].float()
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    stored = (weight / scale).round().to(torch.int8)
    save_file(content | {LAYER: stored, LAYER.removesuffix("weight") + "weight_scale": scale}, path)
    source = ModelSource.open(path)
    (key,) = [layer.canonical for layer in source.every_layer("V") if layer.file_key == LAYER]
    read_back = source.model("V").weights[key]
    assert (read_back - weight).abs().max() <= 0.51 * scale.max()
    assert not source.takes_edits("V")
    save_file(content | {LAYER: stored}, path)
    with pytest.raises(FileError, match="without their scale"):
        ModelSource.open(path).model("V").weights[key]


def test_text_encoders_are_read_so(tmp_path: Path) -> None:
    path, key = (
        tmp_path / "m.safetensors",
        "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight",
    )
    content = mini.write_model(path)
    weight = content[key].float()
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    stored = {key: (weight / scale).round().to(torch.int8)}

    def rows() -> torch.Tensor:
        encoder = TextSetup().encoder(ModelSource.open(path)).encoder
        return encoder.encode(["a house"], [5])[0]

    plain = rows()
    save_file(content | stored | {key.removesuffix("weight") + "weight_scale": scale}, path)
    assert (rows() - plain).norm() < 0.02 * plain.norm()
    save_file(content | stored, path)
    with pytest.raises(FileError, match="without their scale"):
        rows()
