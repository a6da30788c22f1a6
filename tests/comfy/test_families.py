"""Every transformer family in the real ComfyUI: loaded, erased, sampled, saved and loaded again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mini_families as minis
import pytest
import torch
from graph import erased, run
from watching import at_layers, name_rows, sample

from speed_erase.speed_ops.encoders.cache import CachedEncoder
from speed_erase.speed_ops.errors import InputError
from speed_erase.speed_ops.text.kinds import Prompt

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("shared_embeddings")]

TARGET, ANCHOR, KEPT = "Van Gogh", "art", "Claude Monet"
PROMPTS = ("", TARGET, "a (very) old house by d'Artagnan, 1984!")


def test_the_recorded_keys_are_comfyuis(comfyui) -> None:
    """Those by which families are tested where there is no ComfyUI."""
    path = Path(__file__).parents[1] / "models" / "recorded_keys.json"
    for name, keys in json.loads(path.read_text(encoding="utf-8")).items():
        assert {key: list(value.shape) for key, value in minis.smallest(name).items()} == keys, name


@pytest.fixture(scope="module", params=minis.MINIS)
def wired(request: pytest.FixtureRequest, comfyui) -> Any:
    """Name, MODEL and CLIP of one family."""
    return request.param, minis.load_model(request.param), minis.load_text(request.param)


def test_a_family_from_loading_to_loading_again(wired, own_output) -> None:
    import comfy.lora
    import comfy.sd
    import comfy.utils

    from speed_erase.nodes.erasing import wire
    from speed_erase.nodes.host.weights import effective_weight, open_model
    from speed_erase.nodes.save_erased_model import SaveErasedModel
    from speed_erase.speed_ops.engine.settings import EraseSettings
    from speed_erase.speed_ops.text.requests import whole_prompt

    name, model, clip = wired
    with wire(model, clip, EraseSettings()) as parts:
        family, encoder = parts.model.architecture, parts.encoder
        assert family.name == minis.MINIS[name].family
        keys, every = list(parts.model.weights), [layer.canonical for layer in parts.model.layers]
        assert len(every) == len(keys) + (family.pooled is not None)
        # T5 alone has nothing to pool
        pooled = list(parts.model.pooled) if encoder.pooled_width else []
        # Embeddings are ComfyUI's, and what the edited layers receive is what the edit is made
        # from.
        for text in PROMPTS:
            with torch.inference_mode():
                host = clip.encode_from_tokens(
                    clip.tokenize(text.replace("(", "\\(").replace(")", "\\)"))
                )[0].clone()
            whole = whole_prompt(encoder.streams, Prompt.bare(text))
            (own,) = encoder.encode([text], [max(whole.rows) + 1])
            own = own[list(whole.rows)]
            host = host[list(whole.rows)]
            assert (own - host).norm() <= 1e-4 * host.norm()
        bare = whole_prompt(encoder.streams, Prompt.bare(TARGET))
        (pushed,) = parts.reader.rows([bare])
        before = {
            prompt: at_layers(name, model, clip, keys + pooled, prompt)
            for prompt in (TARGET, ANCHOR, KEPT)
        }
        for received, _ in (before[TARGET][key] for key in pooled):
            (whole,) = encoder.encode_both([TARGET], [0])[1]
            with torch.inference_mode():
                host = clip.encode_from_tokens(clip.tokenize(TARGET), return_pooled=True)[1][
                    0
                ].clone()
            assert (host - whole).norm() <= 1e-4 * whole.norm()
            # in the model's own type
            assert (received[: len(whole)] - whole).norm() <= 2e-3 * whole.norm()
        for received, _ in (before[TARGET][key] for key in keys):
            assert (received[list(bare.rows)] - pushed).norm() <= 2e-3 * pushed.norm()
        rows = {prompt: name_rows(encoder, prompt) for prompt in (TARGET, ANCHOR, KEPT)}

    # No name filtered out or set aside, so that each kept one is protected.
    everyone = {"ipf": False, "held_out": 0.0}
    erased_model, _, erasure, report, _ = erased(model, clip, settings=everyone)
    assert list(erasure.edits) == keys + pooled
    if family.note:
        assert family.note in report
    after = {
        prompt: at_layers(name, erased_model, clip, keys + pooled, prompt)
        for prompt in (TARGET, KEPT)
    }
    for key in pooled:
        way = (before[TARGET][key][1] - before[ANCHOR][key][1]).norm()
        assert (after[TARGET][key][1] - before[ANCHOR][key][1]).norm() < 0.05 * way
        assert (after[KEPT][key][1] - before[KEPT][key][1]).norm() < 0.02 * way
    for key in keys:
        goal = before[ANCHOR][key][1][rows[ANCHOR]]
        old, new = (part[TARGET][key][1][rows[TARGET]] for part in (before, after))
        assert (new - goal).norm() < 0.05 * (old - goal).norm()
        kept = before[KEPT][key][1][rows[KEPT]]
        assert (after[KEPT][key][1][rows[KEPT]] - kept).norm() < 0.02 * kept.norm()

    two_steps = [sample(name, one, clip, TARGET, steps=2) for one in (model, erased_model, model)]
    assert all(bool(torch.isfinite(one).all()) for one in two_steps)
    assert torch.equal(two_steps[0], two_steps[2]) and not torch.equal(two_steps[0], two_steps[1])
    assert erased(model, clip, strength=0.0, settings=everyone)[0] is model

    choice = {
        "lora": True,
        "checkpoint": False,
        "diffusion_model": True,
        "recipe": True,
        "overwrite": True,
    }
    run(
        SaveErasedModel,
        erasure=erasure,
        filename_prefix="x",
        dtype="as the source",
        model=erased_model,
        **choice,
    )
    stored = comfy.utils.load_torch_file(
        str(own_output / "loras" / "x.safetensors"), safe_load=True
    )
    stock = comfy.sd.load_lora_for_models(model, None, stored, 1.0, 0)[0]
    saved = minis.load_model(name, file=own_output / "diffusion_models" / "x.safetensors")
    assert [layer.canonical for layer in open_model(saved).layers] == every
    for key in keys + pooled:
        plain, wanted = effective_weight(model, key), effective_weight(erased_model, key)
        size = (wanted - plain).norm()
        assert (effective_weight(stock, key) - wanted).norm() < 1e-3 * size
        assert torch.equal(effective_weight(saved, key), wanted.half().float())


@pytest.fixture(scope="module")
def t5(comfyui) -> Any:
    """A CLIP object with a T5 alone."""
    return minis.load_text("ltxv")


def test_the_fingerprint_covers_what_changes_an_embedding(t5) -> None:
    def changed(change: str) -> str:
        clip = t5.clone()
        if change == "clip skip":
            clip.clip_layer(-2)
        elif change == "a tokenizer option":
            clip.set_tokenizer_option("t5xxl_min_length", 64)
        elif change == "a LoRA":
            key = "t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q.weight"
            assert clip.add_patches(
                {key: (torch.full(clip.patcher.model.state_dict()[key].shape, 0.02),)}
            ) == [key]
        encoder = open_text(clip, by_name("ltxv"))
        host = clip.encode_from_tokens(clip.tokenize(TARGET))[0].clone()
        assert torch.allclose(encoder.encode([TARGET], [4])[0], host[:4], atol=1e-4), change
        return encoder.fingerprint

    from speed_erase.nodes.host.public_text import open_text
    from speed_erase.speed_ops.models.families import by_name

    changes = ("nothing", "clip skip", "a tokenizer option", "a LoRA")
    with torch.inference_mode():
        assert len({changed(change) for change in changes}) == 4 and changed("nothing") == changed(
            "nothing"
        )


def test_names_are_literal_in_every_template(t5) -> None:
    from speed_erase.nodes.host.public_text import open_text
    from speed_erase.speed_ops.models.families import by_name

    for name, clip in (("z-image", minis.load_text("z-image")), ("ltxv", t5)):
        (stream,) = open_text(clip, by_name(name)).streams
        plain, inside = stream.token_ids("Hulk film"), stream.token_ids("Hulk (film)")
        assert len(inside) > len(plain) and stream.token_ids("") == []
        whole = [int(pair[0]) for pair in next(iter(clip.tokenize("Hulk film").values()))[0]]
        assert ",".join(map(str, plain)) in ",".join(map(str, whole))


def test_no_text_is_encoded_twice_and_no_encoder_that_is_not_asked_for(
    comfyui, monkeypatch
) -> None:
    from comfy.sd1_clip import SDClipModel

    from speed_erase.nodes.host.public_text import open_text
    from speed_erase.speed_ops.models.families import by_name
    from speed_erase.speed_ops.text.requests import RowRequest

    clip = minis.load_text("sd3")
    encoder = open_text(clip, by_name("sd3"))
    real, ran = SDClipModel.encode, []

    def counting(self: Any, tokens: Any) -> Any:
        ran.extend((self is clip.cond_stage_model.t5xxl, tuple(one)) for one in tokens)
        return real(self, tokens)

    monkeypatch.setattr(SDClipModel, "encode", counting)
    asked = [RowRequest(text, (1, 80)) for text in ("a dog", "a cat", "a dog")]
    CachedEncoder(encoder).rows(asked)
    assert len(ran) == 2 and all(of_t5 for of_t5, _ in ran), (
        "CLIP is run by the engine, T5 once for each text"
    )


def test_a_clip_of_another_family_is_refused(t5, comfyui) -> None:
    from speed_erase.nodes.host.public_text import open_text
    from speed_erase.speed_ops.models.families import by_name

    for family in ("wan", "z-image", "sd1", "auraflow"):
        with pytest.raises(
            InputError, match=r"CLIP does not belong to this model: it has t5xxl of width 4096"
        ):
            open_text(t5, by_name(family))


def test_the_edit_counts_loras_on_the_layers_and_on_the_way_to_them(t5) -> None:
    """A LoRA on the network before the edited layers changes what they read; one on them, what they
    do with it.
    """
    from speed_erase.nodes.host.weights import open_model

    model = minis.load_model("ltxv")
    keys = list(open_model(model).weights)
    patched = model.clone()
    way = "diffusion_model.caption_projection.linear_1.weight"
    change = {
        key: (0.02 * torch.randn(model.model.state_dict()[key].shape),) for key in (keys[0], way)
    }
    assert sorted(patched.add_patches(change)) == sorted(change)
    settings = {"ipf": False, "held_out": 0.0}
    after = erased(patched, t5, settings=settings)[0]
    seen = {prompt: at_layers("ltxv", patched, t5, keys, prompt) for prompt in (TARGET, ANCHOR)}
    edited = at_layers("ltxv", after, t5, keys, TARGET)
    from speed_erase.nodes.host.public_text import open_text
    from speed_erase.speed_ops.models.families import by_name

    encoder = open_text(t5, by_name("ltxv"))
    (row,), (goal_row,) = (name_rows(encoder, prompt) for prompt in (TARGET, ANCHOR))
    for key in keys:
        goal = seen[ANCHOR][key][1][goal_row]
        assert (edited[key][1][row] - goal).norm() < 0.05 * (
            seen[TARGET][key][1][row] - goal
        ).norm()


def test_a_transformer_in_fp8_gets_the_exact_edit(t5) -> None:
    from speed_erase.nodes.host.weights import open_model

    model = minis.load_model("ltxv", torch.float8_e4m3fn)
    keys = list(open_model(model).weights)
    patched, _, erasure, report, _ = erased(model, t5)
    assert "2 layers are stored in 8 bits or less" in report
    before, after = (at_layers("ltxv", one, t5, keys, TARGET) for one in (model, patched))
    for key in keys:
        wanted = before[key][0].double() @ erasure.edits[key].delta().T
        assert ((after[key][1] - before[key][1]).double() - wanted).norm() < 1e-3 * wanted.norm()
