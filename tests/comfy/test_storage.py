"""However a model's weights are stored and loaded: half precision, fp8, quantised by ComfyUI or
others, offloaded.
"""

from __future__ import annotations

import json

import mini_checkpoints as mini
import mini_families as minis
import pytest
import torch
from graph import erased, left, moved, notices, run, sample, value_outputs
from safetensors.torch import load_file, save_file
from watching import at_layers, name_rows

from speed_erase.speed_ops.errors import FileError, UnsupportedModelError

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("shared_embeddings")]

TEXT_LAYERS = (".attn2.to_v.weight", ".attn2.to_k.weight")


@pytest.fixture(scope="module")
def quantised(comfyui, tmp_path_factory):
    """SD1.5 whose text layers are stored as ComfyUI's own quantiser stores them: fp8, a scale, a
    note.
    """
    out = {}
    for key, value in load_file(mini.shared("sd15")).items():
        out[key] = value
        if key.endswith(TEXT_LAYERS):
            scale, base = value.float().abs().max() / 448, key.removesuffix("weight")
            out[key] = (value.float() / scale).to(torch.float8_e4m3fn)
            note = json.dumps({"format": "float8_e4m3fn"}).encode()
            out |= {
                f"{base}weight_scale": scale,
                f"{base}comfy_quant": torch.tensor(list(note), dtype=torch.uint8),
            }
    path = tmp_path_factory.mktemp("quantised") / "quantised.safetensors"
    save_file(out, path)
    return mini.load(path)


@pytest.fixture(scope="module")
def in_fp8(comfyui):
    """SD1.5 loaded in fp8 without scales."""
    return mini.load(mini.shared("sd15"), model_options={"dtype": torch.float8_e4m3fn})


@pytest.fixture(params=["fp8", "comfy_quant"])
def in_8_bits(request):
    """Either of them."""
    return request.getfixturevalue("in_fp8" if request.param == "fp8" else "quantised")


def differs_from_the_edit(model, patched, clip, erasure) -> float:
    """Worst layer: what the erasure adds in a real forward pass against what it should add, as a
    share of that.
    """
    prompt = "a landscape by Van Gogh"
    rows = clip.encode_from_tokens(clip.tokenize(prompt))[0].double()
    before, after = value_outputs(model, clip, prompt), value_outputs(patched, clip, prompt)
    expected = {key: rows @ edit.delta().T for key, edit in erasure.edits.items()}
    return max(
        float(((after[k] - before[k]).double() - want).norm() / want.norm())
        for k, want in expected.items()
    )


def test_half_precision_agrees_with_float32(sd15):
    wide, clip, _ = sd15
    assert "rounding" not in notices(erased(wide, clip)[2])
    for dtype in (torch.float16, torch.bfloat16):
        narrow = mini.load(
            mini.shared("sd15"), model_options={"dtype": dtype}, output_clip=False, output_vae=False
        )[0]
        assert narrow.model_dtype() == dtype
        patched, _, erasure, _, _ = erased(narrow, clip)
        assert left(narrow, patched, clip) < 0.07
        assert f"torch.{notices(erasure)['rounding']['dtype']}" == str(dtype)


def test_fp8_gets_the_exact_edit_where_a_plain_patch_would_lose_it(in_fp8):
    import comfy.sd

    model, clip, _ = in_fp8
    assert model.model_dtype() == torch.float8_e4m3fn
    patched, lora, erasure, _, _ = erased(model, clip)
    assert notices(erasure)["stored_too_coarse"]["layers"] == 7
    assert left(model, patched, clip) < 0.07
    assert differs_from_the_edit(model, patched, clip, erasure) < 1e-3
    stock = comfy.sd.load_lora_for_models(model, None, lora, 1.0, 0)[0]
    assert differs_from_the_edit(model, stock, clip, erasure) > 0.05, (
        "the control: baked into fp8 it is lost"
    )


def test_original_and_erased_in_turn(in_8_bits):
    model, clip, _ = in_8_bits
    patched = erased(model, clip)[0]
    first, changed, again = (
        sample(candidate, clip, "Van Gogh", steps=2) for candidate in (model, patched, model)
    )
    assert torch.equal(first, again) and not torch.equal(first, changed)


def test_comfyuis_own_quantised_layers_are_read_and_edited_exactly(quantised, sd15):
    model, clip, _ = quantised
    patched, _, erasure, _, _ = erased(model, clip)
    assert notices(erasure)["stored_too_coarse"]["layers"] == 7
    assert differs_from_the_edit(model, patched, clip, erasure) < 1e-4
    assert (
        left(model, patched, clip) < 0.05
        and moved(model, patched, clip, "Claude Monet", row=True) < 0.02
    )


def test_a_checkpoint_in_8_bits_is_refused_before_anything_is_written(
    in_8_bits, tmp_path, monkeypatch
):
    import folder_paths

    from speed_erase.nodes.save_erased_model import SaveErasedModel

    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))
    model, clip, vae = in_8_bits
    patched, _, erasure, _, _ = erased(model, clip)
    choice = {
        "lora": True,
        "checkpoint": True,
        "diffusion_model": False,
        "recipe": True,
        "overwrite": True,
    }
    inputs = {"filename_prefix": "x", "model": patched, "clip": clip, "vae": vae, **choice}
    with pytest.raises(FileError):
        run(SaveErasedModel, erasure=erasure, dtype="same as source", **inputs)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    run(SaveErasedModel, erasure=erasure, dtype="float16", **inputs)
    saved = tmp_path / "checkpoints" / "x.safetensors"
    assert not any(key.endswith(("comfy_quant", "weight_scale")) for key in load_file(saved))
    baked, its_clip, _ = mini.load(saved)
    expected, got = (
        value_outputs(candidate, its_clip, "Van Gogh") for candidate in (patched, baked)
    )
    assert all(torch.allclose(expected[key], got[key], rtol=1e-2, atol=1e-2) for key in expected)


def test_weights_read_the_same_however_the_model_is_loaded(sd15):
    from speed_erase.nodes.host.weights import open_model

    model, clip, _ = sd15
    patched, device = erased(model, clip)[0], torch.device("cpu")
    states = [dict(open_model(patched).weights)]
    for memory in (0, 1):  # whole, then with every layer offloaded as --lowvram does
        patched.unpatch_model(device)
        patched.load(device, lowvram_model_memory=memory)
        states.append(dict(open_model(patched).weights))
        assert all(torch.equal(value, states[0][key]) for key, value in states[-1].items())
        untouched = dict(open_model(model).weights)
        assert not any(torch.equal(value, states[0][key]) for key, value in untouched.items())
        rows = torch.randn(5, 768, generator=torch.Generator().manual_seed(0))
        for key, weight in states[0].items():  # what a layer gives, patched in place or on the fly
            layer = patched.model.get_submodule(key.removesuffix(".weight"))
            assert torch.allclose(layer(rows), rows @ weight.T, atol=1e-5)
    patched.unpatch_model(device)


@pytest.fixture(scope="module")
def in_gguf(comfyui):
    """The mini Wan as the extension for GGUF files loads a model, and a CLIP."""
    import gguf_double

    return gguf_double.load_model("wan"), minis.load_text("wan")


def gguf_outputs(model, clip, prompt: str) -> dict[str, torch.Tensor]:
    """What the value layers give for the last token of a bare name ({key: o})."""
    from speed_erase.nodes.host.weights import open_model
    from speed_erase.nodes.host.wiring import open_text

    host = open_model(model)
    passes = at_layers("wan", model, clip, list(host.weights), prompt)
    (row,) = name_rows(open_text(clip, host.architecture), prompt)
    return {key: outputs[row] for key, (_, outputs) in passes.items()}


def test_a_gguf_model_is_edited_exactly(in_gguf):
    from speed_erase.nodes.host.weights import open_model

    model, clip = in_gguf
    read = dict(open_model(model).weights)
    for key, (inputs, outputs) in at_layers("wan", model, clip, list(read), "art").items():
        assert torch.allclose(outputs, inputs @ read[key].T, atol=1e-5), (
            "what is read is what the layer computes with"
        )
    before = {
        prompt: gguf_outputs(model, clip, prompt) for prompt in ("Van Gogh", "art", "Claude Monet")
    }
    patched, _, erasure, _, _ = erased(model, clip, settings={"ipf": False, "held_out": 0.0})
    after = {prompt: gguf_outputs(patched, clip, prompt) for prompt in ("Van Gogh", "Claude Monet")}
    for key in read:
        goal = before["art"][key]
        assert (after["Van Gogh"][key] - goal).norm() < 0.05 * (
            before["Van Gogh"][key] - goal
        ).norm()
        assert (
            after["Claude Monet"][key] - before["Claude Monet"][key]
        ).norm() < 1e-4 * goal.norm()
        # Read while the erased clone is loaded, whose patches the layer would add.
        assert torch.equal(dict(open_model(model).weights)[key], read[key])
        expected = read[key].double() + erasure.edits[key].delta()
        assert (dict(open_model(patched).weights)[key] - expected).norm() < 1e-5 * expected.norm()
    again = gguf_outputs(model, clip, "Van Gogh")
    assert all(torch.equal(again[key], before["Van Gogh"][key]) for key in read)


def test_a_gguf_model_is_saved_unpacked_or_not_at_all(in_gguf, own_output):
    from speed_erase.nodes.host.weights import open_model
    from speed_erase.nodes.save_erased_model import SaveErasedModel

    model, clip = in_gguf
    patched, _, erasure, _, _ = erased(model, clip)
    choice = {
        "lora": False,
        "checkpoint": False,
        "diffusion_model": True,
        "recipe": False,
        "overwrite": True,
    }
    inputs = {"filename_prefix": "x", "model": patched, "erasure": erasure, **choice}
    with pytest.raises(FileError):
        run(SaveErasedModel, dtype="same as source", **inputs)
    run(SaveErasedModel, dtype="float16", **inputs)
    saved = minis.load_model("wan", file=own_output / "diffusion_models" / "x.safetensors")
    expected = open_model(patched).weights
    for key, weight in open_model(saved).weights.items():
        assert torch.equal(weight, expected[key].half().float())


def test_a_gguf_text_encoder_has_a_fingerprint_of_its_bytes(comfyui):
    import gguf_double

    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    clips = [gguf_double.packed_text("wan", changed) for changed in (False, False, True)]
    first, same, changed_encoder = (open_text(clip, by_name("wan")) for clip in clips)
    assert first.fingerprint == same.fingerprint != changed_encoder.fingerprint
    with torch.inference_mode():
        host = clips[0].encode_from_tokens(clips[0].tokenize("Van Gogh"))[0]
    assert torch.allclose(first.encode(["Van Gogh"], [5])[0], host[:5], atol=1e-4)


def int8_layout(monkeypatch) -> str:
    """The host's layout of int8 with a scale; one of that kind where the host knows fp8 alone."""
    import comfy.quant_ops as host

    if not hasattr(host, "LAYOUTS"):
        return "TensorWiseINT8Layout"

    class Int8Layout(host.QuantizedLayout):
        @classmethod
        def quantize(cls, tensor, scale=None, **options):
            scale = tensor.abs().max() / 127 if scale is None else scale
            return (tensor / scale).round().to(torch.int8), {
                "scale": scale,
                "orig_dtype": tensor.dtype,
            }

        @staticmethod
        def dequantize(qdata, scale, orig_dtype, **options):
            return qdata.to(orig_dtype) * scale.to(orig_dtype)

        @classmethod
        def get_plain_tensors(cls, qtensor):
            return qtensor._qdata, qtensor._layout_params["scale"]

    monkeypatch.setitem(host.LAYOUTS, "Int8Layout", Int8Layout)
    return "Int8Layout"


def test_int8_with_scales_is_read_and_edited_exactly(comfyui, monkeypatch):
    import comfy.quant_ops as host

    layout = int8_layout(monkeypatch)
    model, clip, _ = mini.load(mini.shared("sd15-tiny"))
    (layer,) = (m for n, m in model.model.named_modules() if n.endswith("attn2.to_v"))
    plain = layer.weight.detach().float().clone()
    packed = host.QuantizedTensor.from_float(plain, layout)
    layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    layer.convert_weight = lambda weight, inplace=False, **rest: (
        weight.dequantize() if isinstance(weight, host.QuantizedTensor) else weight
    )
    layer.set_weight = lambda *args, **kwargs: None
    from speed_erase.nodes.host.weights import open_model

    (weight,) = open_model(model).weights.values()
    assert (
        torch.equal(weight, packed.dequantize())
        and 0 < (weight - plain).norm() < 0.02 * plain.norm()
    )
    patched, _, erasure, _, _ = erased(model, clip)
    assert notices(erasure)["stored_too_coarse"]["layers"] == 1
    (edited,) = open_model(patched).weights.values()
    (edit,) = erasure.edits.values()
    assert (edited - weight - edit.delta()).norm() < 1e-5 * edit.norm()


class PackedTensor(torch.Tensor):
    """A tensor whose values mean something else, as those of several quantisers do."""


@pytest.mark.parametrize(
    ("pack", "named"),
    [
        (lambda w: w.to(torch.int8), "int8"),
        (lambda w: torch.zeros(w.numel() // 2, 1, dtype=torch.uint8), "uint8"),
        (lambda w: w.as_subclass(PackedTensor), "PackedTensor"),
        (lambda w: w.to("meta"), "float32"),
    ],
    ids=["int8", "4 bits", "a class of its own", "elsewhere"],
)
def test_weights_packed_by_others_are_refused_with_the_way_round(comfyui, pack, named):

    model, clip, _ = mini.load(mini.shared("sd15-tiny"))
    for name, module in model.model.named_modules():
        if name.endswith("attn2.to_v"):
            del module.weight
            module.weight = pack(torch.zeros(320, 768))
    state = model.model.state_dict()
    state |= {
        f"{n}.weight": m.weight for n, m in model.model.named_modules() if n.endswith("attn2.to_v")
    }
    model.model.state_dict = lambda: state
    with pytest.raises(UnsupportedModelError, match=named):
        erased(model, clip)
