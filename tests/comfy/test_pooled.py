"""The pooled path inside ComfyUI: what its layer gives in a real forward pass, also when stored and
loaded again.
"""

from __future__ import annotations

from collections import namedtuple

import mini_checkpoints as mini
import pytest
import torch
from graph import erased, run, sample

from speed_erase.speed_ops.inputs import POOLED

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("own_cache")]

KEY = "diffusion_model.label_emb.0.0.weight"
TEXT = 1280
Case = namedtuple("Case", "family model clip vae patched lora erasure report")


@pytest.fixture(scope="module", params=["sdxl", "sdxl-refiner"])
def case(comfyui, own_cache, request) -> Case:
    model, clip, vae = mini.load(mini.shared(request.param))
    patched, lora, erasure, report, _ = erased(model, clip)
    return Case(request.param, model, clip, vae, patched, lora, erasure, report)


def effective(model) -> torch.Tensor:
    from speed_erase.nodes.host.weights import effective_weight

    return effective_weight(model, KEY)


def output(model, clip, prompt: str) -> torch.Tensor:
    """What the layer gives for a prompt while ComfyUI samples."""
    outputs: list[torch.Tensor] = []
    layer = model.model.diffusion_model.label_emb[0][0]
    handle = layer.register_forward_hook(
        lambda module, inputs, result: outputs.append(result[0].clone()) and None
    )
    try:
        sample(model, clip, prompt)
    finally:
        handle.remove()
    return outputs[0]


def test_the_target_s_output_becomes_the_anchor_s_and_kept_names_stay(case):
    before = {
        name: output(case.model, case.clip, name)
        for name in ("Van Gogh", "art", "Claude Monet", "")
    }
    after = {name: output(case.patched, case.clip, name) for name in before}
    way = (before["Van Gogh"] - before["art"]).norm()
    assert (after["Van Gogh"] - before["art"]).norm() < 0.05 * way
    assert (after["Claude Monet"] - before["Claude Monet"]).norm() < 0.02 * way
    assert (after[""] - before[""]).norm() < 1e-4 * way
    assert KEY in case.erasure.edits and POOLED in case.erasure.certificate.other_inputs


def test_only_the_text_s_columns_change(case):
    old, new = effective(case.model), effective(case.patched)
    assert torch.equal(old[:, TEXT:], new[:, TEXT:]) and not torch.equal(
        old[:, :TEXT], new[:, :TEXT]
    )
    assert erased(case.model, case.clip, strength=0.0)[0] is case.model
    half = effective(erased(case.model, case.clip, strength=0.5)[0])
    assert torch.allclose(half, (old + new) / 2, atol=1e-6) and torch.equal(
        half[:, TEXT:], old[:, TEXT:]
    )


def test_stored_as_lora_and_checkpoint_it_is_the_same(case, tmp_path, monkeypatch):
    import folder_paths

    import nodes
    from speed_erase.nodes.save_erased_model import SaveErasedModel
    from speed_erase.nodes.speed_apply_erasure import SpeedApplyErasure

    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))
    monkeypatch.setitem(
        folder_paths.folder_names_and_paths, "loras", ([str(tmp_path / "loras")], {".safetensors"})
    )
    choice = {
        "filename_prefix": "one",
        "lora": True,
        "checkpoint": True,
        "diffusion_model": False,
        "recipe": True,
    }
    kinds = {"dtype": "same as source", "overwrite": False}
    wired = {"model": case.patched, "clip": case.clip, "vae": case.vae}
    text = run(SaveErasedModel, erasure=case.erasure, **choice, **kinds, **wired)[0]
    files = {line.split(": ")[0]: line.split(": ")[1].split(" (")[0] for line in text.splitlines()}
    old, new = effective(case.model), effective(case.patched)
    size = (new - old).norm()
    name = files["LoRA"].rsplit("/", 1)[1]
    (loaded,) = nodes.LoraLoaderModelOnly().load_lora_model_only(case.model, name, 1.0)
    assert (effective(loaded) - new).norm() < 1e-3 * size
    applied = run(SpeedApplyErasure, model=case.model, lora=name, strength=1.0)[0]
    assert (effective(applied) - new).norm() < 1e-3 * size
    baked = effective(mini.load(files["Checkpoint"])[0])
    assert torch.equal(baked, new.half().float()), "but for the storage's rounding"
    assert torch.equal(baked[:, TEXT:], old[:, TEXT:])


def test_off_in_the_settings(case):
    from speed_erase.nodes.speed_settings import SpeedSettings

    settings = run(SpeedSettings, pooled="off")[0]
    patched, _, erasure, _, _ = erased(case.model, case.clip, settings=settings)
    assert settings == {"pooled": False} and KEY not in erasure.edits
    assert not erasure.certificate.other_inputs
    assert torch.equal(effective(patched), effective(case.model))


def test_a_second_erasure_holds_the_first_there_too(case):
    second = erased(case.patched, case.clip, "Henri Rousseau -> art")[0]
    goal, start = (output(case.model, case.clip, name) for name in ("art", "Van Gogh"))
    assert (output(second, case.clip, "Van Gogh") - goal).norm() < 0.06 * (start - goal).norm()


@pytest.mark.parametrize("skip", [None, -1, -3])
def test_pooled_embeddings_are_comfyui_s(case, skip):
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    clip = case.clip.clone()
    clip.clip_layer(skip) if skip is not None else None
    prompts = ["", "Snoopy", r"a \(very\) old house by the sea, oil on canvas"]
    expected = [
        clip.encode_from_tokens(clip.tokenize(text), return_pooled=True)[1][0] for text in prompts
    ]
    literal = [text.replace("\\", "") for text in prompts]
    encoder = open_text(clip, by_name(case.family))
    assert encoder.notes == []
    rows, embeddings = encoder.encode_both(literal, [0, 3, 77])
    assert [len(row) for row in rows] == [0, 3, 77]
    for _ in range(2):  # once trimmed, once through ComfyUI's own call
        for embedding, reference in zip(embeddings, expected, strict=True):
            assert (embedding - reference).abs().max() < 1e-4 * reference.abs().max()
        encoder._agrees = False
        embeddings = encoder.encode_both(literal, [0, 3, 77])[1]


def test_a_changed_projection_is_another_encoder(case):
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    first = open_text(case.clip, by_name(case.family))
    patched = case.clip.clone()
    key = "clip_g.transformer.text_projection.weight"
    assert patched.add_patches({key: (torch.full((1280, 1280), 0.001),)}) == [key]
    second = open_text(patched, by_name(case.family))
    assert (
        first.fingerprint == second.fingerprint
        and first.pooled_fingerprint != second.pooled_fingerprint
    )
