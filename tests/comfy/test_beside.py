"""Weights that ComfyUI packs, scales and patches in ways of its own: read as what the layer
computes, and edited beside the layer.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import mini_checkpoints as mini
import pytest
import torch
from graph import erased, left, notices, run, sample, value_outputs
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.errors import UnsupportedModelError

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("shared_embeddings")]

VALUES = ".attn2.to_v.weight"
PROMPT = "a landscape by Van Gogh"
FORMATS = ["nvfp4", "mxfp8", "int8_tensorwise", "int8 convrot", "convrot_w4a4", "asym_w4a8_int8"]
SUFFIX = {"_scale": "weight_scale", "_scale_2": "weight_scale_2", "_s_rel": "weight_s_rel"}
SUFFIX |= {"_s_channel": "weight_s_channel", "_codebook": "weight_codebook", "": "weight"}


def pack(weight: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    """A weight as files store it in one of ComfyUI's formats, by the end of its key."""
    import comfy.quant_ops as host

    kind = name.partition(" ")[0] if " " not in name else "int8_tensorwise"
    if kind not in getattr(host, "QUANT_ALGOS", {}):
        pytest.skip(f"this ComfyUI has no {kind}")
    options: dict[str, Any] = {"scale": "recalculate"} if kind == "nvfp4" else {}
    note: dict[str, Any] = {"format": kind}
    if " " in name:
        note["params"] = {"convrot": True, "convrot_groupsize": 256}
        options = note["params"] | {"per_channel": True}
    layout = host.QUANT_ALGOS[kind]["comfy_tensor_layout"]
    packed = host.QuantizedTensor.from_float(weight.float(), layout, **options)
    stored = {SUFFIX[key]: value for key, value in packed.state_dict("").items()}
    stored["comfy_quant"] = torch.tensor(list(json.dumps(note).encode()), dtype=torch.uint8)
    return {
        key: value.view(torch.uint8) if "e8m0" in str(value.dtype) else value
        for key, value in stored.items()
    }


def with_packed_values(folder: Any, name: str, extra: dict[str, torch.Tensor]) -> Any:
    """SD1.5 with packed value layers, loaded from its file; `extra` goes beside each of them."""
    tensors = load_file(mini.shared("sd15"))
    for key in [key for key in tensors if key.endswith(VALUES)]:
        base = key.removesuffix("weight")
        for leaf, value in (pack(tensors.pop(key), name) | extra).items():
            tensors[base + leaf] = value.contiguous().clone()
    path = folder / "packed.safetensors"
    save_file(tensors, path)
    return mini.load(path)


def layers_of(model: Any) -> dict[str, Any]:
    return {f"{n}.weight": m for n, m in model.model.named_modules() if n.endswith("attn2.to_v")}


def shift(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {key: (after[key] - before[key]).double() for key in before}


def is_the_edit(model: Any, patched: Any, clip: Any, erasure: Any, *, chained: int = 1) -> bool:
    """Whether each layer gives exactly what the erasure adds to it, in a real forward pass."""
    rows = clip.encode_from_tokens(clip.tokenize(PROMPT))[0].double()
    moved = shift(*(value_outputs(candidate, clip, PROMPT) for candidate in (model, patched)))
    wanted = {key: chained * rows @ edit.delta().T for key, edit in erasure.edits.items()}
    return all((moved[key] - want).norm() < 1e-4 * want.norm() for key, want in wanted.items())


@pytest.fixture(scope="module", params=FORMATS)
def packed(request, comfyui, tmp_path_factory):
    return with_packed_values(tmp_path_factory.mktemp("packed"), request.param, {})


def test_every_packed_format_is_read_as_numbers_and_edited_exactly(packed, own_output):
    from speed_erase.nodes.host.weights import open_model
    from speed_erase.nodes.save_erased_model import SaveErasedModel

    model, clip, _ = packed
    read = dict(open_model(model).weights)
    for key, layer in layers_of(model).items():
        assert read[key].shape == layer.weight.shape, "logical, not that of the bytes"
        assert torch.equal(read[key], layer.weight.dequantize().float())
    first, _, erasure, _, _ = erased(model, clip)
    assert is_the_edit(model, first, clip, erasure)
    for key, weight in open_model(first).weights.items():
        assert torch.allclose(weight, read[key] + erasure.edits[key].delta().float(), atol=1e-5)
    choice = {"lora": False, "checkpoint": False, "diffusion_model": True, "recipe": False}
    inputs = {"filename_prefix": "x", "overwrite": True, "erasure": erasure, **choice}
    run(SaveErasedModel, model=first, dtype="float16", **inputs)
    (saved,) = own_output.rglob("*.safetensors")
    stored = load_file(saved)
    assert not any(key.endswith(("comfy_quant", "weight_scale")) for key in stored)
    for key, weight in open_model(first).weights.items():
        name = next(name for name in stored if name.endswith(key.partition(".")[2]))
        assert torch.equal(stored[name].float(), weight.half().float())


def test_a_packed_layer_keeps_its_fast_matmul_and_nothing_of_the_edit(packed):
    model, clip, _ = packed
    patched, _, erasure, _, _ = erased(model, clip)
    fast: set[bool] = set()
    handles = [
        layer.register_forward_hook(lambda module, *_: fast.add(not module.weight_function))
        for layer in layers_of(model).values()
    ]
    before = sample(model, clip, PROMPT)
    changed = sample(patched, clip, PROMPT)
    for handle in handles:
        handle.remove()
    assert fast == {True}, "a function on the weight makes ComfyUI unpack it in every pass"
    assert not any("forward" in layer.__dict__ for layer in layers_of(model).values())
    del patched, erasure
    assert torch.equal(sample(model, clip, PROMPT), before) and not torch.equal(before, changed)


@pytest.fixture(scope="module")
def in_fp8(comfyui):
    return mini.load(mini.shared("sd15"), model_options={"dtype": torch.float8_e4m3fn})


def test_edits_add_up_along_a_chain_of_nodes(in_fp8):
    from speed_erase.nodes.host.patching import with_edits
    from speed_erase.nodes.host.weights import edits_on, open_model

    model, clip, _ = in_fp8
    patched, _, erasure, _, _ = erased(model, clip)
    twice = with_edits(patched, erasure.edits, 1.0)
    assert is_the_edit(model, twice, clip, erasure, chained=2)
    assert is_the_edit(model, patched, clip, erasure), "the first clone is as it was"
    assert set(edits_on(twice).values()) == {2} and set(edits_on(patched).values()) == {1}
    read, base = dict(open_model(twice).weights), dict(open_model(model).weights)
    for key, edit in erasure.edits.items():
        assert torch.allclose(read[key], base[key] + 2 * edit.delta().float(), atol=1e-5)


@pytest.mark.parametrize("stored", ["sd15", "in_fp8"])
def test_an_edit_needs_no_hooks(stored, request):
    """Dynamic VRAM has none: a model with hooks is read from the disk a second time."""
    model, clip, _ = request.getfixturevalue(stored)
    patched = erased(model, clip)[0]
    assert not patched.hook_patches and patched.forced_hooks is None
    assert bool(patched.patches) == (stored == "sd15")


def test_small_layers_that_the_memory_manager_gives_no_wrapper_are_edited(in_fp8, monkeypatch):
    """As dynamic VRAM loads a model: modules of up to 16 KB get no function on their weights."""
    import comfy.model_patcher as host

    model, clip, _ = in_fp8
    load = host.ModelPatcher.load

    def without_functions(self, *args, **kwargs):
        load(self, *args, **kwargs)
        for module in self.model.modules():
            if hasattr(module, "weight_function"):
                module.weight_function = []

    patched, _, erasure, _, _ = erased(model, clip)
    monkeypatch.setattr(host.ModelPatcher, "load", without_functions)
    assert is_the_edit(model, patched, clip, erasure)


def in_two_steps(model: Any, clip: Any) -> dict[str, list[torch.Tensor]]:
    """What each value layer gives for the same text in two steps of sampling."""
    outputs: dict[str, list[torch.Tensor]] = {key: [] for key in layers_of(model)}
    handles = [
        layer.register_forward_hook(lambda *args, key=key: outputs[key].append(args[2].clone()))
        for key, layer in layers_of(model).items()
    ]
    sample(model, clip, PROMPT, steps=2)
    for handle in handles:
        handle.remove()
    assert all(len(steps) == 2 for steps in outputs.values())
    return outputs


def differs(steps: list[torch.Tensor]) -> float:
    return float((steps[1] - steps[0]).norm() / steps[0].norm())


@pytest.fixture
def stores_patched_weights(monkeypatch):
    """As dynamic VRAM patches a weight: exact in the first pass, and from then on rounded to what
    the layer stores.
    """
    import comfy.float
    import comfy.lora
    import comfy.model_patcher as host
    import comfy.quant_ops as quants

    def patching(key: str, changes: list[Any], stored: torch.Tensor) -> Any:
        kept: list[torch.Tensor] = []

        def patched(weight: torch.Tensor) -> torch.Tensor:
            if kept:
                return kept[0].to(weight)
            exact = comfy.lora.calculate_weight(changes, weight.float().clone(), key)
            if isinstance(stored, quants.QuantizedTensor):
                again = stored.requantize_from_float(
                    exact, scale="recalculate", stochastic_rounding=7
                )
                kept.append(again.dequantize())
            else:
                kept.append(comfy.float.stochastic_rounding(exact, stored.dtype, seed=7))
            return exact.to(weight)

        return patched

    real, functions = host.ModelPatcher.load, []

    def load(self: Any, *args: Any, **kwargs: Any) -> None:
        patches, self.patches = self.patches, {}
        real(self, *args, **kwargs)
        self.patches = patches
        for key, changes in patches.items():
            layer = self.model.get_submodule(key.removesuffix(".weight"))
            functions.append(layer)
            layer.weight_function = [patching(key, changes, layer.weight)]

    monkeypatch.setattr(host.ModelPatcher, "load", load)
    yield
    for layer in functions:
        layer.weight_function = []


@pytest.mark.parametrize("stored", ["fp8", "nvfp4", "int8_tensorwise"])
def test_every_step_has_the_same_edit_where_patched_weights_are_rounded_after_the_first(
    stored, in_fp8, tmp_path, stores_patched_weights
):
    import comfy.sd

    packed = stored != "fp8"
    model, clip, _ = with_packed_values(tmp_path, stored, {}) if packed else in_fp8
    patched, lora, erasure, _, _ = erased(model, clip)
    assert is_the_edit(model, patched, clip, erasure)
    assert all(differs(steps) == 0 for steps in in_two_steps(patched, clip).values())
    stock = comfy.sd.load_lora_for_models(model, None, lora, 1.0, 0)[0]
    steps = in_two_steps(stock, clip)
    assert max(map(differs, steps.values())) > 1e-3, "the control: a patch is rounded"


def test_the_note_on_rounding_covers_the_steps_after_the_first(comfyui, stores_patched_weights):
    options = {"model_options": {"dtype": torch.bfloat16}}
    model, clip, _ = mini.load(mini.shared("sd15"), **options)
    patched, _, erasure, _, _ = erased(model, clip)
    noted = notices(erasure)["rounding"]["worst"]
    plain, steps = in_two_steps(model, clip), in_two_steps(patched, clip)
    for key, (first, second) in steps.items():
        edit = (first - plain[key][0]).norm()
        assert 0 < (second - first).norm() < 1.5 * noted * edit


@pytest.mark.parametrize("holds_old_blocks", [True, False])
def test_an_edit_that_another_package_passes_over_is_reported(in_fp8, holds_old_blocks, caplog):
    """One that runs the blocks that it copied before."""
    model, clip, _ = in_fp8
    patched = erased(model, clip)[0]
    blocks = [m for n, m in model.model.named_modules() if n.endswith("attn2")]
    if holds_old_blocks:
        for block in blocks:
            block.forward = copy.deepcopy(block).forward
    try:
        with caplog.at_level("WARNING", "speed_erase"):
            sample(patched, clip, PROMPT, steps=2)
    finally:
        for block in blocks:
            block.__dict__.pop("forward", None)
    records = [record for record in caplog.records if record.name == "speed_erase"]
    assert len(records) == holds_old_blocks


def test_an_edit_is_added_once_where_hooks_bring_the_wrapper_along_again(in_fp8):
    from comfy.patcher_extension import WrappersMP

    model, clip, _ = in_fp8
    patched, _, erasure, _, _ = erased(model, clip)
    (wrapper,) = patched.get_wrappers(WrappersMP.APPLY_MODEL, "speed_erase")
    patched.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "another", wrapper)
    assert is_the_edit(model, patched, clip, erasure)


def test_a_scale_before_the_weight_is_part_of_what_is_read(comfyui, tmp_path):
    """ModelOpt's smoothing: the layer computes W (x * s)."""
    from speed_erase.nodes.host.weights import open_model

    scale = torch.linspace(0.5, 2.0, 768)
    model, clip, _ = with_packed_values(tmp_path, "nvfp4", {"pre_quant_scale": scale})
    rows = clip.encode_from_tokens(clip.tokenize(PROMPT))[0]
    outputs, read = value_outputs(model, clip, PROMPT), dict(open_model(model).weights)
    for key, weight in read.items():
        assert torch.equal(weight, layers_of(model)[key].weight.dequantize().float() * scale)
        assert (outputs[key] - rows @ weight.T).norm() < 1e-2 * outputs[key].norm()
    patched, _, erasure, _, _ = erased(model, clip)
    assert is_the_edit(model, patched, clip, erasure)
    assert left(model, patched, clip) < 0.1


def lora_of(model: Any, *, kind: str = "lora") -> dict[str, torch.Tensor]:
    """A LoRA on every value layer, large enough to matter."""
    generator, state = torch.Generator().manual_seed(7), {}
    for key, layer in layers_of(model).items():
        outputs, width = layer.weight.shape
        base = key.removesuffix(".weight")
        names = {"lora": ["lora_up", "lora_down"]}.get(kind)
        up, down = (
            torch.randn(outputs, 4, generator=generator) * 0.05,
            torch.randn(4, width, generator=generator) * 0.05,
        )
        if names:
            state |= {f"{base}.lora_up.weight": up, f"{base}.lora_down.weight": down}
        else:
            for number in (1, 2):
                state |= {f"{base}.hada_w{number}_a": up, f"{base}.hada_w{number}_b": down}
    return state


def bypassed(model: Any, clip: Any = None, **options: Any) -> tuple[Any, Any]:
    import comfy.sd

    if not hasattr(comfy.sd, "load_bypass_lora_for_models"):
        pytest.skip("this ComfyUI loads no LoRA in bypass mode")
    state = options.get("state") or lora_of(model, kind=options.get("kind", "lora"))
    return comfy.sd.load_bypass_lora_for_models(model, clip, state, 0.8, 0.8)


@pytest.mark.parametrize("stored", ["sd15", "in_fp8"])
def test_a_lora_in_bypass_mode_is_part_of_what_is_erased(stored, request, own_output):
    from speed_erase.nodes.host.weights import open_model
    from speed_erase.nodes.save_erased_model import SaveErasedModel

    model, clip, _ = request.getfixturevalue(stored)
    styled, _ = bypassed(model)
    rows = clip.encode_from_tokens(clip.tokenize(PROMPT))[0]
    outputs, read = value_outputs(styled, clip, PROMPT), dict(open_model(styled).weights)
    plain = dict(open_model(model).weights)
    for key, weight in read.items():
        assert (weight - plain[key]).norm() > 0.1 * plain[key].norm()
        assert torch.allclose(outputs[key], rows @ weight.T, atol=1e-3)
    patched, _, erasure, _, _ = erased(styled, clip)
    assert is_the_edit(styled, patched, clip, erasure)
    assert left(styled, patched, clip) < 0.07
    choice = {"lora": False, "checkpoint": False, "diffusion_model": True, "recipe": False}
    inputs = {"filename_prefix": "x", "overwrite": True, "erasure": erasure, **choice}
    run(SaveErasedModel, model=patched, dtype="float16", **inputs)
    stored_file = load_file(next(own_output.rglob("*.safetensors")))
    for key, weight in open_model(patched).weights.items():
        name = next(name for name in stored_file if name.endswith(key.partition(".")[2]))
        assert torch.equal(stored_file[name].float(), weight.half().float())


def test_a_bypass_adapter_that_is_no_lora_is_refused(sd15):
    model, clip, _ = sd15
    styled, _ = bypassed(model, kind="loha")
    with pytest.raises(UnsupportedModelError, match="bypass"):
        erased(styled, clip)


def test_a_bypass_lora_on_the_text_encoder_has_rows_of_its_own(sd15):
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    model, clip, _ = sd15
    path = "clip_l.transformer.text_model.encoder.layers.0.mlp.fc1"
    weight = clip.cond_stage_model.get_submodule(path).weight
    name = "lora_te_text_model_encoder_layers_0_mlp_fc1"
    up, down = torch.full((weight.shape[0], 1), 0.3), torch.full((1, weight.shape[1]), 0.3)
    state = {f"{name}.lora_up.weight": up, f"{name}.lora_down.weight": down}
    _, styled = bypassed(model, clip, state=state)
    encoders = [open_text(candidate, by_name("sd1")) for candidate in (clip, styled)]
    plain, changed = (encoder.encode(["Van Gogh"], [4])[0] for encoder in encoders)
    host = styled.encode_from_tokens(styled.tokenize("Van Gogh"))[0][:4]
    assert torch.allclose(changed, host, atol=1e-4) and not torch.allclose(changed, plain)
    assert encoders[0].fingerprint != encoders[1].fingerprint


@pytest.mark.parametrize(
    ("kind", "named"), [("MingImage", "Ming-Image"), ("ZImagePixelSpace", "Z-Image in pixel space")]
)
def test_a_relative_that_only_comfyui_can_recognize_is_refused(sd15, monkeypatch, kind, named):
    """By metadata that is not among the weights."""
    from speed_erase.nodes.host.weights import open_model

    model = sd15[0].clone()
    monkeypatch.setattr(model, "model", type(kind, (torch.nn.Module,), {})())
    with pytest.raises(UnsupportedModelError, match=named):
        open_model(model)


def test_a_model_in_another_process_is_refused(sd15, monkeypatch):
    from speed_erase.nodes.host.weights import open_model

    model = sd15[0].clone()
    monkeypatch.setattr(model, "model", object())
    with pytest.raises(UnsupportedModelError, match="--use-process-isolation"):
        open_model(model)
