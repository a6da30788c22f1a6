"""A LoRA file is the exact edit: read back under any naming, and by ComfyUI's own loader."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pico
import pytest
import torch
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.engine.edits import LayerEdit
from speed_erase.speed_ops.errors import ExistsError, FileError, SettingsError
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.files.lora import read_lora, write_lora
from speed_erase.speed_ops.models.architecture import Architecture, LayerKey
from speed_erase.speed_ops.models.detect import detect, layers
from speed_erase.speed_ops.models.families import by_name

ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6}


def model(family: str, layout: str = "ldm") -> tuple[Architecture, list[LayerKey]]:
    shapes = pico.unet_shapes(pico.SMALL[family], layout)
    return detect(shapes), layers(detect(shapes), shapes, "KV")


def random_edits(keys: list[LayerKey], rank: int = 3, scale: float = 1.0) -> dict[str, LayerEdit]:
    generator = torch.Generator().manual_seed(rank)
    edits = {}
    for layer in keys:
        up = torch.randn(layer.shape[0], rank, generator=generator, dtype=torch.float64)
        down = torch.randn(rank, layer.shape[1], generator=generator, dtype=torch.float64)
        edits[layer.canonical] = LayerEdit(up * scale, down / scale)  # unbalanced on purpose
    return edits


def error(found: LayerEdit, wanted: LayerEdit) -> float:
    return float((found.delta() - wanted.delta()).norm() / wanted.delta().norm())


@pytest.mark.parametrize("family", pico.FAMILIES)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_what_is_written_is_read_back(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    architecture, keys = model(family)
    edits = random_edits(keys, scale=1e4)  # float16 could not hold these factors as they are
    done = write_lora(
        tmp_path / "a.safetensors",
        edits,
        keys,
        architecture,
        dtype=dtype,
        metadata={"speed.note": "x"},
    )
    back = read_lora(tmp_path / "a.safetensors", keys)
    assert (
        set(back.edits) == set(edits)
        and back.unmatched == ()
        and back.metadata["speed.note"] == "x"
    )
    for key, edit in edits.items():
        assert error(back.edits[key], edit) < ROUNDING[dtype]
    assert 0 < done < ROUNDING[dtype]


def test_the_same_edits_give_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the order in which they and the metadata are given; other edits give others."""
    architecture, keys = model("sdxl")
    edits, about = random_edits(keys), {f"speed.{letter}": letter for letter in "abcdefgh"}
    turned = dict(reversed(edits.items())), dict(reversed(about.items()))
    write_lora(tmp_path / "a.safetensors", edits, keys, architecture, metadata=about)
    write_lora(tmp_path / "b.safetensors", turned[0], keys, architecture, metadata=turned[1])
    write_lora(
        tmp_path / "c.safetensors", random_edits(keys, 2), keys, architecture, metadata=about
    )
    first, second, other = ((tmp_path / f"{name}.safetensors").read_bytes() for name in "abc")
    assert first == second != other


def test_the_file_is_kohya_s(tmp_path: Path) -> None:
    architecture, keys = model("sd1")
    write_lora(tmp_path / "a.safetensors", random_edits(keys), keys, architecture)
    content = load_file(tmp_path / "a.safetensors")
    base = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_v"
    up, down, alpha = (
        content[f"{base}.lora_up.weight"],
        content[f"{base}.lora_down.weight"],
        content[f"{base}.alpha"],
    )
    assert up.shape == (4, 3) and down.shape == (3, 768) and alpha.shape == () and float(alpha) == 3
    assert all(value.dtype == torch.float16 for value in content.values())
    assert torch.allclose(up.double().norm(dim=0), down.double().norm(dim=1), rtol=1e-2)
    metadata = Checkpoint.open(tmp_path / "a.safetensors").metadata
    assert metadata["ss_base_model_version"] == "sd_v1" and metadata["ss_network_dim"] == "3"


@pytest.mark.parametrize("layout", ["ldm", "diffusers"])
def test_a_lora_fits_either_layout_of_its_model(tmp_path: Path, layout: str) -> None:
    architecture, keys = model("sd1", "diffusers" if layout == "ldm" else "ldm")
    edits = random_edits(keys)
    write_lora(tmp_path / "a.safetensors", edits, keys, architecture)
    assert set(read_lora(tmp_path / "a.safetensors", model("sd1", layout)[1]).edits) == set(edits)


NAMINGS = {
    "kohya ldm": lambda layer: (
        "lora_unet_" + layer.ldm_path.replace(".", "_"),
        "lora_up",
        "lora_down",
    ),
    "kohya diffusers": lambda layer: (
        "lora_unet_" + layer.diffusers_path.replace(".", "_"),
        "lora_up",
        "lora_down",
    ),
    "generic": lambda layer: (f"diffusion_model.{layer.ldm_path}", "lora_up", "lora_down"),
    "generic peft": lambda layer: (f"diffusion_model.{layer.ldm_path}", "lora_B", "lora_A"),
    "diffusers peft": lambda layer: (f"unet.{layer.diffusers_path}", "lora_B", "lora_A"),
}


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("alpha", [None, 1.0])
def test_other_namings_and_scales_are_understood(
    tmp_path: Path, naming: str, alpha: float | None
) -> None:
    _, keys = model("sd1")
    edits = random_edits(keys)
    content = {"lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight": torch.ones(4, 1)}
    for layer in keys:
        base, up, down = NAMINGS[naming](layer)
        content[f"{base}.{up}.weight"] = edits[layer.canonical].up.float()
        content[f"{base}.{down}.weight"] = edits[layer.canonical].down.float()
        if alpha is not None:
            content[f"{base}.alpha"] = torch.tensor(alpha)
    save_file(content, tmp_path / "a.safetensors")
    back = read_lora(tmp_path / "a.safetensors", keys)
    assert back.unmatched == ("lora_te_text_model_encoder_layers_0_mlp_fc1",)
    for key, edit in edits.items():
        assert error(back.edits[key], edit.scaled(1.0 if alpha is None else alpha / 3)) < 1e-6


def test_bad_edits_write_nothing(tmp_path: Path) -> None:
    architecture, keys = model("sd1")
    good = random_edits(keys)
    key, edit = next(iter(good.items()))
    path = tmp_path / "a.safetensors"
    for edits, reason in (
        ({}, "nothing to write"),
        ({key.replace("to_k", "to_kk"): edit}, "did you mean"),
        ({key: LayerEdit(edit.up[:1], edit.down)}, "the layer is"),
        ({key: LayerEdit(edit.up * torch.nan, edit.down)}, "NaN or infinite"),
        ({key: edit.scaled(1e12)}, "too large for float16"),
    ):
        with pytest.raises(FileError, match=reason):
            write_lora(path, edits, keys, architecture)
    with pytest.raises(SettingsError, match="float16, bfloat16 or float32"):
        write_lora(path, good, keys, architecture, dtype=torch.float64)
    path.write_bytes(b"mine")
    with pytest.raises(ExistsError):
        write_lora(path, good, keys, architecture)
    assert [entry.name for entry in tmp_path.iterdir()] == [
        "a.safetensors"
    ] and path.read_bytes() == b"mine"


def test_bad_files_are_sentences(tmp_path: Path) -> None:
    keys = model("sd1")[1]
    path = tmp_path / "a.safetensors"
    base = keys[0].lora_base
    up, down = torch.ones(4, 2), torch.ones(2, 768)
    pair = {f"{base}.lora_up.weight": up, f"{base}.lora_down.weight": down}
    for content, reason in (
        ({"a": up}, "not a LoRA"),
        ({"lora_te_x.lora_up.weight": up}, "edits none of this model's text layers"),
        ({f"{base}.lora_up.weight": up}, "without both factors"),
        (pair | {f"{base}.dora_scale": up}, "plain LoRA"),
        (pair | {f"{base}.lora_down.weight": torch.ones(2, 1024)}, "the layer is"),
        (pair | {f"{base}.lora_down.weight": torch.ones(2, 768, 1, 1)}, "the layer is"),
        (pair | {f"{base}.lora_up.weight": up * torch.inf}, "NaN or infinite"),
        (pair | {f"{base}.alpha": torch.ones(2)}, "not one number"),
    ):
        save_file({key: value.clone() for key, value in content.items()}, path)
        with pytest.raises(FileError, match=reason):
            read_lora(path, keys)
    pico.write_checkpoint(tmp_path / "model.safetensors")
    with pytest.raises(FileError, match="not a LoRA"):
        read_lora(tmp_path / "model.safetensors", keys)


def test_a_zero_edit_is_stored_as_zero(tmp_path: Path) -> None:
    architecture, keys = model("sd1")
    zero = {key: edit.scaled(0.0) for key, edit in random_edits(keys).items()}
    done = write_lora(tmp_path / "a.safetensors", zero, keys, architecture)
    assert done == 0
    assert all(
        not edit.delta().any()
        for edit in read_lora(tmp_path / "a.safetensors", keys).edits.values()
    )


@pytest.mark.comfy
@pytest.mark.parametrize("family", pico.FAMILIES)
def test_comfyui_s_loader_finds_every_layer_and_adds_the_edit(
    tmp_path: Path, family: str, comfyui: Path
) -> None:
    """ComfyUI's own key map and patch arithmetic, on the published structure of each family."""
    import comfy.lora
    import comfy.utils

    shape = pico.FAMILIES[family]
    config = {
        "num_res_blocks": [shape.res_blocks] * len(shape.depths),
        "channel_mult": [1] * len(shape.depths),
        "transformer_depth": [depth for depth in shape.depths for _ in range(shape.res_blocks)],
        "transformer_depth_output": [
            depth for depth in shape.depths for _ in range(shape.res_blocks + 1)
        ],
        "transformer_depth_middle": shape.middle,
    }
    weights = pico.tensors(pico.unet_shapes(shape, "ldm", "diffusion_model."), dtype=torch.float32)
    keys = layers(by_name(family), {key: tuple(value.shape) for key, value in weights.items()})
    theirs = comfy.utils.unet_to_diffusers(config)
    assert all(
        theirs[f"{layer.diffusers_path}.weight"] == f"{layer.ldm_path}.weight" for layer in keys
    )

    edits = random_edits(keys)
    write_lora(tmp_path / "a.safetensors", edits, keys, by_name(family), dtype=torch.float32)
    host = SimpleNamespace(
        state_dict=lambda: weights, model_config=SimpleNamespace(unet_config=config)
    )
    loaded = comfy.lora.load_lora(
        load_file(tmp_path / "a.safetensors"), comfy.lora.model_lora_keys_unet(host, {})
    )
    assert set(loaded) == set(edits)
    for key, edit in edits.items():
        patched = comfy.lora.calculate_weight(
            [(1.0, loaded[key], 1.0, None, None)], weights[key].clone(), key
        )
        assert torch.allclose(patched.double(), weights[key].double() + edit.delta(), atol=1e-5)


def test_metadata_is_text_only(tmp_path: Path) -> None:
    architecture, keys = model("sd1")
    write_lora(
        tmp_path / "a.safetensors",
        random_edits(keys),
        keys,
        architecture,
        metadata={"n": json.dumps([1])},
    )
    assert all(
        isinstance(value, str)
        for value in Checkpoint.open(tmp_path / "a.safetensors").metadata.values()
    )
