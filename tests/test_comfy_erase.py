"""SpeedErase inside ComfyUI: real MODEL and CLIP objects, the real sampler, and what the layers really give."""

from __future__ import annotations

import time

import mini_checkpoints as mini
import pytest
import torch
from graph import concepts, erased, retained, sample, value_outputs

pytestmark = pytest.mark.comfy


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch, comfyui):
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path_factory.getbasetemp() / "embeddings"))


@pytest.fixture(scope="module")
def sd15(comfyui):
    return mini.load(mini.shared("sd15"))


def left(model, erased_model, clip, target: str = "Van Gogh", anchor: str = "art") -> float:
    """Worst layer: distance of the target's last token from the anchor's, as a share of what it was."""
    before, goal = value_outputs(model, clip, target), value_outputs(model, clip, anchor)
    after = value_outputs(erased_model, clip, target)
    row, goal_row = (len(token_ids(clip, name)) for name in (target, anchor))
    shares = [(after[k][row] - goal[k][goal_row]).norm() / (before[k][row] - goal[k][goal_row]).norm() for k in before]
    assert len(shares) > 0
    return float(max(shares))


def token_ids(clip, text: str) -> list[int]:
    section = next(iter(clip.tokenize(text).values()))[0]
    ids = [pair[0] for pair in section]
    return ids[1 : ids.index(49407)]


def moved(model, erased_model, clip, prompt: str, row: bool = False) -> float:
    """Worst layer: how far all rows of a prompt (or that of its last token) moved, relative to their size."""
    before, after = value_outputs(model, clip, prompt), value_outputs(erased_model, clip, prompt)
    part = len(token_ids(clip, prompt)) if row else slice(None)
    return float(max((after[k][part] - before[k][part]).norm() / before[k][part].norm() for k in before))


@pytest.mark.parametrize("family", ["sd15", "sd21", "sdxl"])
def test_a_target_becomes_its_anchor_in_a_real_forward_pass(comfyui, family):
    model, clip, _ = mini.load(mini.shared(family))
    patched, lora, erasure, report, chart = erased(model, clip)
    assert left(model, patched, clip) < 0.05
    assert left(model, model, clip) == pytest.approx(1.0)
    assert moved(model, patched, clip, "Claude Monet", row=True) < 0.02
    assert moved(model, patched, clip, "Van Gogh", row=True) > 0.3
    assert "Van Gogh" in report and len(lora) == 3 * len(erasure.edits)
    assert chart.shape[0] == 1 and chart.shape[3] == 3 and 0 <= float(chart.min()) < float(chart.max()) <= 1


def test_the_default_preset_edits_whole_prompts_and_keeps_the_empty_one(sd15):
    model, clip, _ = sd15
    patched, _, erasure, report, _ = erased(model, clip, preset="auto")
    assert "(in context" in report and "Held-out names" in report
    assert moved(model, patched, clip, "") < 1e-4
    assert moved(model, patched, clip, "a landscape by Claude Monet") < 0.1
    prompt = "a landscape by Van Gogh"
    rows = clip.encode_from_tokens(clip.tokenize(prompt))[0].double()
    after = value_outputs(patched, clip, prompt)
    before = value_outputs(model, clip, prompt)
    for key, edit in erasure.edits.items():  # the sampler meets the edit that was certified, row by row
        assert torch.allclose((after[key] - before[key]).double(), rows @ edit.delta().T, atol=1e-4)


def test_the_cached_model_is_never_touched(sd15):
    model, clip, _ = sd15
    weights = {key: value.clone() for key, value in model.model.state_dict().items()}
    first = sample(model, clip, "Van Gogh", steps=2)
    patched = erased(model, clip)[0]
    assert not model.patches and patched.model is model.model
    for _ in range(2):  # alternately, as two samplers in one graph do
        changed = sample(patched, clip, "Van Gogh", steps=2)
        again = sample(model, clip, "Van Gogh", steps=2)
        assert torch.equal(first, again) and not torch.equal(first, changed)
    model.unpatch_model(model.offload_device)
    assert all(torch.equal(value, weights[key]) for key, value in model.model.state_dict().items())


def test_strength_zero_is_the_model_itself_and_strength_does_not_solve_again(sd15):
    model, clip, _ = sd15
    none = erased(model, clip, strength=0.0)
    assert none[0] is model
    half, whole = erased(model, clip, strength=0.5), erased(model, clip, strength=1.0)
    assert "taken from memory" in half[3] and "taken from memory" in whole[3]
    prompt = "a landscape by Van Gogh"
    out = [value_outputs(one, clip, prompt) for one in (model, half[0], whole[0])]
    for key in out[0]:
        middle = (out[0][key] + out[2][key]) / 2
        assert torch.allclose(out[1][key], middle, atol=1e-4)


def test_a_second_erasure_holds_the_first(sd15):
    model, clip, _ = sd15
    first = erased(model, clip, "Van Gogh -> art")[0]
    second, _, _, report, _ = erased(first, clip, "Salvador Dali -> art")
    assert "Held where an earlier erasure put them: Van Gogh." in report
    for name in ("Van Gogh", "Salvador Dali"):
        assert left(model, second, clip, name) < 0.1
    assert "Held where" not in erased(model, clip, "Salvador Dali -> art")[3]


def style_lora(model) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    state = {}
    for key, value in model.model.state_dict().items():
        if key.endswith("attn2.to_v.weight"):
            base = key.removesuffix(".weight")
            state[f"{base}.lora_up.weight"] = torch.randn(value.shape[0], 4, generator=generator) * 0.05
            state[f"{base}.lora_down.weight"] = torch.randn(4, value.shape[1], generator=generator) * 0.05
    return state


def test_style_lora_before_and_after(sd15):
    import comfy.sd

    model, clip, _ = sd15
    styled = comfy.sd.load_lora_for_models(model, None, style_lora(model), 1.0, 0)[0]
    prompt = "a landscape by Van Gogh"
    assert left(styled, erased(styled, clip)[0], clip) < 0.05
    plain = erased(model, clip)[0]
    with_lora = comfy.sd.load_lora_for_models(plain, None, style_lora(model), 1.0, 0)[0]
    base, delta = value_outputs(plain, clip, prompt), value_outputs(with_lora, clip, prompt)
    expected = value_outputs(styled, clip, prompt)
    original = value_outputs(model, clip, prompt)
    for key in base:  # the later LoRA adds what it always adds
        assert torch.allclose(delta[key] - base[key], expected[key] - original[key], atol=1e-3)


def test_a_clip_lora_and_clip_skip_change_what_is_erased(sd15):
    model, clip, _ = sd15
    skipped = clip.clone()
    skipped.clip_layer(-2)
    patched = erased(model, skipped)[0]
    assert left(model, patched, skipped) < 0.05
    changed = clip.clone()
    key = "clip_l.transformer.text_model.encoder.layers.1.mlp.fc1.weight"
    shape = clip.patcher.model.state_dict()[key].shape
    assert changed.add_patches({key: (torch.full(shape, 0.02),)}) == [key]
    assert left(model, erased(model, changed)[0], changed) < 0.05


def test_a_hundred_concepts(sd15):
    model, clip, _ = sd15
    text = "\n".join(f"Painter Number {i} of Utopia" for i in range(100))
    report = erased(model, clip, text, preset="multi")[3]
    assert "100 concepts" in report


def test_second_run_with_one_more_concept_encodes_little(sd15, tmp_path, monkeypatch):
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path))
    model, clip, _ = sd15
    first = erased(model, clip, "Joan Miro", preset="auto")[3]
    second = erased(model, clip, "Joan Miro\nMark Rothko", preset="auto")[3]
    count = [int(report.split(" texts encoded")[0].split("\n")[-1]) for report in (first, second)]
    assert 0 < count[1] < count[0] / 3, (first, second)


def test_wrong_clip_is_refused(sd15, comfyui):
    from speed_erase.speed_ops.errors import SpeedError

    model, _, _ = sd15
    other = mini.load(mini.shared("sd21"))[1]
    with pytest.raises(SpeedError, match=r"CLIP does not belong.*clip_h of width 1024.*clip_l of width 768"):
        erased(model, other)


def test_other_families_are_refused_by_name(sd15, comfyui):
    import comfy.sd

    from speed_erase.speed_ops.errors import SpeedError

    model = comfy.sd.load_diffusion_model(str(mini.shared("sd3")))
    with pytest.raises(SpeedError, match=r"Stable Diffusion 3 model\. Supported are Stable Diffusion 1\.x"):
        erased(model, sd15[1])


def test_nan_weights_are_refused(sd15):
    from speed_erase.speed_ops.errors import SpeedError

    model, clip, _ = sd15
    broken = model.clone()
    key = next(k for k in model.model.state_dict() if k.endswith("attn2.to_v.weight"))
    shape = model.model.state_dict()[key].shape
    broken.add_patches({key: (torch.full(shape, float("nan")),)})
    with pytest.raises(SpeedError, match="NaN or Inf"):
        erased(broken, clip, "Somebody Else")


def test_names_are_literal(sd15):
    from speed_erase.nodes.host.text import HostTextEncoder
    from speed_erase.speed_ops.architectures import by_name

    encoder = HostTextEncoder(sd15[1], by_name("sd1"))
    plain = encoder.token_ids("Hulk film")
    inside = encoder.token_ids("Hulk (film)")
    assert [i for i in inside if i in plain] == plain and len(inside) == len(plain) + 2
    assert len(encoder.token_ids("embedding:foo")) == len(encoder.token_ids("embedding :foo")) >= 3
    assert encoder.token_ids("{a|b}") and encoder.token_ids("") == []


def test_trimmed_rows_are_the_public_ones_and_the_fingerprint_follows_the_weights(sd15):
    from speed_erase.nodes.host.text import HostTextEncoder
    from speed_erase.speed_ops.architectures import by_name

    clip = sd15[1]
    encoder = HostTextEncoder(clip, by_name("sd1"))
    rows = encoder.encode(["a (very) old house", "Snoopy"], [77, 4])
    public = clip.encode_from_tokens(clip.tokenize(r"a \(very\) old house"))[0]
    assert torch.allclose(rows[0], public, atol=1e-5) and rows[1].shape == (4, 768)
    assert encoder.notes == []
    other = clip.clone()
    assert HostTextEncoder(other, by_name("sd1")).fingerprint == encoder.fingerprint
    key = "clip_l.transformer.text_model.encoder.layers.1.mlp.fc1.weight"
    other.add_patches({key: (torch.full(clip.patcher.model.state_dict()[key].shape, 0.02),)})
    assert HostTextEncoder(other, by_name("sd1")).fingerprint != encoder.fingerprint
    other.clip_layer(-2)
    assert len({HostTextEncoder(c, by_name("sd1")).fingerprint for c in (clip, other)}) == 2


def test_the_fingerprint_is_the_command_lines(sd15):
    from speed_erase.nodes.host.text import HostTextEncoder
    from speed_erase.speed_ops.architectures import by_name
    from speed_erase.speed_ops.files.checkpoint import Checkpoint
    from speed_erase.speed_ops.text.clip_encoder import ClipTextEncoder
    from speed_erase.speed_ops.text.clip_tokenizer import ClipTokenizer

    family = by_name("sd1")
    file = Checkpoint.open(mini.shared("sd15"))
    theirs = ClipTextEncoder(file, family.encoders, ClipTokenizer.from_package())
    assert HostTextEncoder(sd15[1], family).fingerprint == theirs.fingerprint


def test_running_out_of_gpu_memory_falls_back_and_is_said(sd15, monkeypatch):
    import comfy.model_management

    from speed_erase.nodes.host.text import HostTextEncoder
    from speed_erase.speed_ops.architectures import by_name
    from speed_erase.speed_ops.text.clip_encoder import ClipTextEncoder

    encoder = HostTextEncoder(sd15[1], by_name("sd1"))
    wanted = encoder.encode(["Snoopy", "a dog"], [4, 4])
    real, gpu = ClipTextEncoder.encode, encoder._trimmed

    def exhausted(self, prompts, lengths, progress=None):
        if self is gpu:
            raise comfy.model_management.OOM_EXCEPTION("out of memory")
        return real(self, prompts, lengths, progress)

    monkeypatch.setattr(ClipTextEncoder, "encode", exhausted)
    got = encoder.encode(["Snoopy", "a dog"], [4, 4])
    assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))
    assert encoder.notes == ["The GPU ran out of memory: texts were encoded on the CPU."]


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
    patched.unpatch_model(device)


@pytest.mark.parametrize(
    "stage", ["fingerprint", "concepts", "retain names", "retain contexts", "layers", "certificate"]
)
def test_interrupt_stops_every_stage_within_a_second_and_leaves_nothing(sd15, monkeypatch, stage):
    import comfy.model_management as host

    from speed_erase.nodes.host.progress import HostProgress

    model, clip, _ = sd15
    real, pressed = HostProgress.__call__, []

    def press(self, now: str, done: int, total: int) -> None:
        real(self, now, done, total)
        if now == stage and not pressed:
            pressed.append(time.monotonic())
            host.interrupt_current_processing(True)

    monkeypatch.setattr(HostProgress, "__call__", press)
    before, name = dict(model.patches), f"Interrupted While {stage}"
    with pytest.raises(host.InterruptProcessingException):
        erased(model, clip, name, preset="auto", seed=3)
    assert time.monotonic() - pressed[0] < 1.0
    assert model.patches == before
    report = erased(model, clip, name, preset="auto", seed=3)[3]
    assert name in report and "taken from memory" not in report


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_narrow_storage_agrees_with_float32(comfyui, dtype):
    wide, clip, _ = mini.load(mini.shared("sd15"))
    narrow = mini.load(mini.shared("sd15"), model_options={"dtype": dtype})[0]
    assert narrow.model_dtype() == dtype
    patched, _, _, report, _ = erased(narrow, clip)
    assert left(narrow, patched, clip) < 0.07
    if dtype == torch.float8_e4m3fn:
        assert "would drown the edit" in report
    else:
        assert f"Rounding to {str(dtype).removeprefix('torch.')}" in report
    assert "Rounding" not in erased(wide, clip)[3]


def test_concepts_without_a_retain_set_use_the_built_in_one(comfyui):
    from speed_erase.nodes.solving import job_from
    from speed_erase.speed_ops.errors import SpeedError
    from speed_erase.speed_ops.settings import EraseSettings

    chosen = job_from(concepts("Van Gogh"), None, EraseSettings()).retain
    assert {source.label for source in chosen.sources} == {"artists", "styles", "scenes"}
    assert job_from(concepts("Van Gogh"), retained(), EraseSettings()).retain == retained()
    with pytest.raises(SpeedError, match="no concept to erase"):
        job_from((), None, EraseSettings())
