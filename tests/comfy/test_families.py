"""Every transformer family in the real ComfyUI: loaded, erased, sampled, saved and loaded again."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mini_families as minis
import pytest
import torch
from graph import erased, notices, run
from watching import at_layers, name_rows, sample

from speed_erase.speed_ops.encoders.cache import CachedEncoder
from speed_erase.speed_ops.errors import InputError
from speed_erase.speed_ops.inputs import POOLED
from speed_erase.speed_ops.models.architecture import Architecture
from speed_erase.speed_ops.text.kinds import Prompt

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("shared_embeddings")]

TARGET, ANCHOR, KEPT = "Van Gogh", "art", "Claude Monet"
PROMPTS = ("", TARGET, "a (very) old house by d'Artagnan, 1984!")


def test_the_recorded_keys_are_comfyuis(comfyui) -> None:
    """Those by which families are tested where there is no ComfyUI."""
    path = Path(__file__).parents[1] / "models" / "recorded_keys.json"

    def spelled(key: str) -> str:
        return key.replace(".scale", ".weight")  # newer versions rename the norms so

    recorded = json.loads(path.read_text(encoding="utf-8"))
    for name, keys in recorded.items():
        if not minis.in_this_host(name):
            continue
        shapes = {spelled(key): list(value.shape) for key, value in minis.smallest(name).items()}
        assert shapes == {spelled(key): shape for key, shape in keys.items()}, name


@dataclass
class Case:
    """A family before and after an erasure."""

    name: str
    model: Any
    clip: Any
    architecture: Architecture
    keys: list[str]
    """Layers that read a prompt row by row."""
    pooled: list[str]
    """The layer that reads the pooled embedding, if a wired encoder makes one."""
    all_keys: list[str]
    rows: dict[str, list[int]]
    """Prompt -> rows of its last token."""
    before: dict[str, Any]
    """Prompt -> what goes into the layers and comes out of them."""
    erased: Any
    erasure: Any
    report: str


# No name is filtered out or set aside, so that each kept one is protected.
EVERYONE = {"ipf": False, "held_out": 0.0}


@pytest.fixture(scope="module", params=minis.MINIS)
def case(request: pytest.FixtureRequest, comfyui, own_cache) -> Case:
    from speed_erase.nodes.host.wiring import wire

    name = request.param
    if not minis.in_this_host(name):
        pytest.skip(f"this ComfyUI has no {name}")
    model, clip = minis.load_model(name), minis.load_text(name)
    prompts = (TARGET, ANCHOR, KEPT)
    with wire(model, clip, "V", ()) as (editable, reader, _):
        encoder = reader.encoder
        keys = list(editable.weights)
        # T5 alone has nothing to pool.
        pooled = list(editable.inputs[POOLED]) if encoder.pooled_width else []
        rows = {prompt: name_rows(encoder, prompt) for prompt in prompts}
        before = {prompt: at_layers(name, model, clip, keys + pooled, prompt) for prompt in prompts}
    patched, _, erasure, report, _ = erased(model, clip, settings=EVERYONE)
    return Case(
        name=name,
        model=model,
        clip=clip,
        architecture=editable.architecture,
        keys=keys,
        pooled=pooled,
        all_keys=[layer.canonical for layer in editable.layers],
        rows=rows,
        before=before,
        erased=patched,
        erasure=erasure,
        report=report,
    )


def test_a_family_is_recognized_with_its_layers(case: Case) -> None:
    assert case.architecture.name == minis.MINIS[case.name].family
    assert len(case.all_keys) == len(case.keys) + (case.architecture.second_input is not None)
    assert list(case.erasure.edits) == case.keys + case.pooled
    assert case.architecture.note in case.report


def test_embeddings_are_comfyuis_and_what_the_edited_layers_receive(case: Case) -> None:
    from speed_erase.nodes.host.wiring import wire
    from speed_erase.speed_ops.text.requests import whole_prompt

    with wire(case.model, case.clip, "V", ()) as (_, reader, _):
        encoder, part = reader.encoder, case.architecture.text_part
        for text in PROMPTS:
            escaped = text.replace("(", "\\(").replace(")", "\\)")
            request = whole_prompt(encoder.streams, Prompt.bare(text))
            (rows,) = encoder.encode([text], [max(request.rows) + 1])
            if part is not None and part.mixes:
                host = at_layers(case.name, case.model, case.clip, case.keys[:1], escaped)
                received = host[case.keys[0]][0]
                assert_close(rows, received[: len(rows)], 2e-3)
                assert not received[len(rows) :].any(), "padding is zeros"
                continue
            with torch.inference_mode():
                host = case.clip.encode_from_tokens(case.clip.tokenize(escaped))[0].clone()
            assert_close(rows[list(request.rows)], host[list(request.rows)], 1e-4)

        bare = whole_prompt(encoder.streams, Prompt.bare(TARGET))
        (pushed,) = reader.rows([bare])
        for key in case.keys:
            received, _ = case.before[TARGET][key]
            assert_close(received[list(bare.rows)], pushed, 2e-3)

        for key in case.pooled:
            (embedding,) = encoder.encode_both([TARGET], [0])[1]
            second = case.architecture.second_input
            with torch.inference_mode():
                tokens = case.clip.tokenize(TARGET)
                host = case.clip.encode_from_tokens(tokens, return_pooled=True)
                mean = second is not None and second.mean
                pooled = host[0][0].mean(dim=0) if mean else host[1][0].clone()
            assert_close(pooled, embedding, 1e-4)
            received, _ = case.before[TARGET][key]  # in the model's own type
            assert_close(received[: len(embedding)], embedding, 2e-3)


def test_targets_become_anchors_and_kept_names_stay(case: Case) -> None:
    after = {
        prompt: at_layers(case.name, case.erased, case.clip, case.keys + case.pooled, prompt)
        for prompt in (TARGET, KEPT)
    }
    for key in case.keys:
        goal = case.before[ANCHOR][key][1][case.rows[ANCHOR]]
        start = case.before[TARGET][key][1][case.rows[TARGET]]
        end = after[TARGET][key][1][case.rows[TARGET]]
        assert (end - goal).norm() < 0.05 * (start - goal).norm()
        retained = case.before[KEPT][key][1][case.rows[KEPT]]
        assert_close(after[KEPT][key][1][case.rows[KEPT]], retained, 0.02)
    for key in case.pooled:
        goal, start = case.before[ANCHOR][key][1], case.before[TARGET][key][1]
        distance = (start - goal).norm()
        assert (after[TARGET][key][1] - goal).norm() < 0.05 * distance
        assert (after[KEPT][key][1] - case.before[KEPT][key][1]).norm() < 0.02 * distance


def test_the_erased_model_samples_and_the_original_is_unchanged(case: Case) -> None:
    first, changed, again = (
        sample(case.name, model, case.clip, TARGET, steps=2)
        for model in (case.model, case.erased, case.model)
    )
    assert all(bool(torch.isfinite(latent).all()) for latent in (first, changed, again))
    assert torch.equal(first, again) and not torch.equal(first, changed)
    assert erased(case.model, case.clip, strength=0.0, settings=EVERYONE)[0] is case.model


def test_an_edit_beside_the_layers_does_what_one_in_their_weights_does(case: Case) -> None:
    """So no kernel of this host reads the weight of such a layer without running the layer."""
    from speed_erase.nodes.host.beside import add_runtime_edits

    keys = case.keys + case.pooled

    def outputs(strength: float) -> dict[str, torch.Tensor]:
        clone = case.model.clone()
        add_runtime_edits(clone, case.erasure.edits, strength)
        seen = at_layers(case.name, clone, case.clip, keys, TARGET)
        return {key: seen[key][1] for key in keys}

    stored = at_layers(case.name, case.erased, case.clip, keys, TARGET)
    whole, less = outputs(1.0), outputs(0.9)
    for key in keys:
        distance = (stored[key][1] - case.before[TARGET][key][1]).norm()
        assert (whole[key] - stored[key][1]).norm() < 0.02 * distance
        assert (less[key] - stored[key][1]).norm() > 0.04 * distance, "the control"


def test_saved_files_load_again_as_the_erased_model(case: Case, own_output) -> None:
    import comfy.sd
    import comfy.utils

    from speed_erase.nodes.host.weights import effective_weight, open_model
    from speed_erase.nodes.save_erased_model import SaveErasedModel

    run(
        SaveErasedModel,
        erasure=case.erasure,
        filename_prefix="x",
        dtype="same as source",
        model=case.erased,
        lora=True,
        checkpoint=False,
        diffusion_model=True,
        recipe=True,
        overwrite=True,
    )
    lora = comfy.utils.load_torch_file(str(own_output / "loras" / "x.safetensors"), safe_load=True)
    stock = comfy.sd.load_lora_for_models(case.model, None, lora, 1.0, 0)[0]
    saved = minis.load_model(case.name, file=own_output / "diffusion_models" / "x.safetensors")
    assert [layer.canonical for layer in open_model(saved).layers] == case.all_keys
    for key in case.keys + case.pooled:
        plain, edited = effective_weight(case.model, key), effective_weight(case.erased, key)
        assert (effective_weight(stock, key) - edited).norm() < 1e-3 * (edited - plain).norm()
        assert torch.equal(effective_weight(saved, key), edited.half().float())


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """In norm, as a share of what is expected."""
    assert (actual - expected).norm() <= tolerance * expected.norm()


def test_the_same_encoder_read_in_another_way_is_refused(comfyui) -> None:
    """Z-Image reads one state of Qwen3 4B, Klein three."""
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    families = ("z-image", "flux2-klein-4b")
    if not all(map(minis.in_this_host, families)):
        pytest.skip("this ComfyUI has no Klein")
    for text, family in (families, families[::-1]):
        with torch.inference_mode(), pytest.raises(InputError):
            open_text(minis.load_text(text), by_name(family))


def test_both_models_of_a_pair_are_edited_and_the_text_is_encoded_once(comfyui, own_cache) -> None:
    """Wan 2.2: one model begins a video, the other finishes it. Each has its own text network."""
    clip = minis.load_text("wan")
    high, low = minis.load_model("wan"), minis.load_model("wan")
    key = "diffusion_model.text_embedding.0.weight"
    change = 0.02 * torch.randn(low.model.state_dict()[key].shape)
    assert low.add_patches({key: (change,)}) == [key]
    encoded = []
    for model in (high, low):
        # A seed of its own: another test's erasure of the same model would be remembered.
        patched, _, erasure, _, _ = erased(model, clip, settings=EVERYONE, seed=11)
        encoded.append(erasure.text_report.encoded)
        keys = list(erasure.edits)
        before = {name: at_layers("wan", model, clip, keys, name) for name in (TARGET, ANCHOR)}
        after = at_layers("wan", patched, clip, keys, TARGET)
        for key in keys:
            (start, goal), end = (before[name][key][1] for name in (TARGET, ANCHOR)), after[key][1]
            row, goal_row = _last_token(clip, TARGET), _last_token(clip, ANCHOR)
            distance = (start[row] - goal[goal_row]).norm()
            assert (end[row] - goal[goal_row]).norm() < 0.05 * distance
    assert encoded[0] > 0 and encoded[1] == 0


def _last_token(clip: Any, text: str) -> int:
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    (row,) = name_rows(open_text(clip, by_name("wan")), text)
    return row


def test_an_image_has_the_size_that_is_asked_for(comfyui, monkeypatch) -> None:
    """Whatever a pixel of the latent stands for: 8 pixels in SDXL, 32 in HunyuanImage."""
    import comfy.sample

    from speed_erase.nodes.host.sampling import Sampler

    latents: list[torch.Tensor] = []

    def sampled(model: Any, noise: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        latents.append(noise)
        return noise

    def decoded(latent: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, 64, 128, 3)

    monkeypatch.setattr(comfy.sample, "sample", sampled)
    clip = SimpleNamespace(tokenize=str, encode_from_tokens_scheduled=str)
    widgets = {"steps": 1, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple"}
    widgets |= {"negative": "", "width": 128, "height": 64}
    model = minis.load_model("ltxv")
    for pixels in (8, 16, 32):
        vae = SimpleNamespace(spacial_compression_encode=partial(int, pixels), decode=decoded)
        Sampler(clip, vae, widgets, 1).generate(model, "a dog", 1)
        assert latents[-1].shape[-2:] == (64 // pixels, 128 // pixels)


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

    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    changes = ("nothing", "clip skip", "a tokenizer option", "a LoRA")
    with torch.inference_mode():
        assert len({changed(change) for change in changes}) == 4 and changed("nothing") == changed(
            "nothing"
        )


def test_names_are_literal_in_every_template(t5) -> None:
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    for name, clip in (("z-image", minis.load_text("z-image")), ("ltxv", t5)):
        (stream,) = open_text(clip, by_name(name)).streams
        plain, inside = stream.token_ids("Hulk film"), stream.token_ids("Hulk (film)")
        assert len(inside) > len(plain) and stream.token_ids("") == []
        section = [int(pair[0]) for pair in next(iter(clip.tokenize("Hulk film").values()))[0]]
        assert ",".join(map(str, plain)) in ",".join(map(str, section))


def _tokenizer(name: str, encoder: str, comfyui: Path) -> Any:
    from speed_erase.speed_ops.encoders import tokenizers as words

    if encoder == "t5xxl":
        return words.T5Tokenizer.from_files(comfyui / words.T5_IN_COMFYUI)
    if encoder.startswith("qwen"):
        return words.QwenTokenizer.from_files(comfyui / words.QWEN_IN_COMFYUI)
    if encoder == "pile_t5xl":
        model = comfyui / words.PILE_IN_COMFYUI / "tokenizer.model"
        return words.SentencePieceTokenizer.from_model(model, encoder)
    pieces = minis.pieces(**minis.MINIS[name].pieces).numpy().tobytes()
    return words.SentencePieceTokenizer.from_model(pieces, encoder)


ON_COMMAND_LINE = ("chroma", "auraflow", "wan", "ltxv", "z-image", "lumina-2", "qwen-image")


@pytest.mark.parametrize("name", (*ON_COMMAND_LINE, "flux2-klein-4b", "flux2-klein-9b"))
def test_the_command_line_gives_the_rows_that_comfyui_gives(comfyui, name: str) -> None:
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.encoders.chat import ChatTextEncoder
    from speed_erase.speed_ops.encoders.t5 import T5TextEncoder
    from speed_erase.speed_ops.models.families import by_name

    if not minis.in_this_host(name):
        pytest.skip(f"this ComfyUI has no {name}")
    family = by_name(name)
    (row,) = family.encoders
    assert family.on_command_line
    if row.states > 1:  # of four blocks, as of every nine of the real one
        clip = minis.load_text(name, blocks=row.states + 1)
        piece = getattr(clip.cond_stage_model, row.name)
        piece.layer = list(range(1, row.states + 1))
        piece.options_default = (piece.layer, *piece.options_default[1:])
        small = replace(row, layers=row.states + 1, hidden=-2)
    else:
        clip = minis.load_text(name)
        blocks = getattr(clip.cond_stage_model, row.name).num_layers
        small = replace(row, layers=blocks)
    words, prefix = _tokenizer(name, row.name, comfyui), f"{row.name}.transformer."
    tensors = {
        f"{row.folder}/{key.removeprefix(prefix).replace('.table.', '.')}": value.clone()
        for key, value in clip.cond_stage_model.state_dict().items()
        if key.startswith(prefix)
    }
    table = f"{row.folder}/{'model.embed_tokens' if row.causal else 'shared'}.weight"
    tensors[table] = tensors[table][torch.arange(words.size) % minis.DISTINCT]
    with torch.inference_mode():
        host = open_text(clip, family)
        small = replace(small, length=host.context_length)
        ours = (ChatTextEncoder if row.causal else T5TextEncoder)(tensors, small, words)
        for text in (*PROMPTS, "é (x:1.3)  葛飾\n"):
            assert ours.streams[0].token_ids(text) == host.streams[0].token_ids(text)
            prompt = Prompt.bare(text)
            counts = [
                side.streams[0].count(side.streams[0].locate(prompt)) for side in (ours, host)
            ]
            assert counts[0] == counts[1]
            rows, expected = (side.encode([text], counts[:1])[0] for side in (ours, host))
            assert_close(rows, expected, 2e-5)


def test_a_name_in_quotation_marks_is_encoded(comfyui) -> None:
    """HunyuanImage reads what is inside letter by letter, with another encoder."""
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    clip, text = minis.load_text("hunyuan-image-2.1"), '"Weird Al" Yankovic'
    with torch.inference_mode():
        encoder = open_text(clip, by_name("hunyuan-image-2.1"))
        (host,) = clip.encode_from_tokens(clip.tokenize(text))
        (rows,), (mean,) = encoder.encode_both([text], [len(host)])
    assert_close(rows, host, 1e-4)
    assert_close(mean, host.mean(dim=0), 1e-4)


def test_no_text_is_encoded_twice_and_no_encoder_that_is_not_asked_for(
    comfyui, monkeypatch
) -> None:
    from comfy.sd1_clip import SDClipModel

    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name
    from speed_erase.speed_ops.text.requests import RowRequest

    clip = minis.load_text("sd3")
    encoder = open_text(clip, by_name("sd3"))
    real, ran = SDClipModel.encode, []

    def counting(self: Any, tokens: Any) -> Any:
        ran.extend((self is clip.cond_stage_model.t5xxl, tuple(section)) for section in tokens)
        return real(self, tokens)

    monkeypatch.setattr(SDClipModel, "encode", counting)
    requests = [RowRequest(text, (1, 80)) for text in ("a dog", "a cat", "a dog")]
    CachedEncoder(encoder).rows(requests)
    assert len(ran) == 2 and all(of_t5 for of_t5, _ in ran), (
        "CLIP is run by the engine, T5 once for each text"
    )


def test_a_clip_of_another_family_is_refused(t5, comfyui) -> None:
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    for family in ("wan", "z-image", "sd1", "auraflow"):
        with pytest.raises(InputError):
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
    before = {prompt: at_layers("ltxv", patched, t5, keys, prompt) for prompt in (TARGET, ANCHOR)}
    edited = at_layers("ltxv", after, t5, keys, TARGET)
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    encoder = open_text(t5, by_name("ltxv"))
    (row,), (goal_row,) = (name_rows(encoder, prompt) for prompt in (TARGET, ANCHOR))
    for key in keys:
        goal = before[ANCHOR][key][1][goal_row]
        assert (edited[key][1][row] - goal).norm() < 0.05 * (
            before[TARGET][key][1][row] - goal
        ).norm()


def test_a_transformer_in_fp8_gets_the_exact_edit(t5) -> None:
    from speed_erase.nodes.host.weights import open_model

    model = minis.load_model("ltxv", torch.float8_e4m3fn)
    keys = list(open_model(model).weights)
    patched, _, erasure, _, _ = erased(model, t5)
    assert notices(erasure)["stored_too_coarse"]["layers"] == 2
    before = at_layers("ltxv", model, t5, keys, TARGET)
    after = at_layers("ltxv", patched, t5, keys, TARGET)
    for key in keys:
        expected = before[key][0].double() @ erasure.edits[key].delta().T
        assert_close((after[key][1] - before[key][1]).double(), expected, 1e-3)
