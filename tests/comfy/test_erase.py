"""SpeedErase inside ComfyUI: real MODEL and CLIP objects, the real sampler, and what the layers
really give.
"""

from __future__ import annotations

import mini_checkpoints as mini
import pytest
import torch
from graph import concepts, erased, left, moved, notices, retained, run, sample, value_outputs

from speed_erase.speed_ops.errors import (
    InputError,
    NotFoundError,
    SettingsError,
    SpeedError,
    UnsupportedModelError,
)

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("shared_embeddings")]


@pytest.mark.parametrize("family", ["sd15", "sd21", "sdxl", "sdxl-refiner"])
def test_a_target_becomes_its_anchor_in_a_real_forward_pass(comfyui, family):
    model, clip, _ = mini.load(mini.shared(family))
    patched, lora, erasure, report, chart = erased(model, clip)
    assert left(model, patched, clip) < 0.05
    assert left(model, model, clip) == pytest.approx(1.0)
    assert moved(model, patched, clip, "Claude Monet", row=True) < 0.02
    assert moved(model, patched, clip, "Van Gogh", row=True) > 0.3
    assert "Van Gogh" in report and len(lora) == 3 * len(erasure.edits)
    assert (
        chart.shape[0] == 1
        and chart.shape[3] == 3
        and 0 <= float(chart.min()) < float(chart.max()) <= 1
    )


def test_the_default_preset_edits_whole_prompts_and_keeps_the_empty_one(sd15):
    model, clip, _ = sd15
    patched, _, erasure, _, _ = erased(model, clip, preset="auto")
    measured = {(drift.group, drift.where) for drift in erasure.certificate.drift}
    assert {("kept", "context"), ("held_out", "context")} <= measured
    assert moved(model, patched, clip, "") < 1e-4
    assert moved(model, patched, clip, "a landscape by Claude Monet") < 0.1
    prompt = "a landscape by Van Gogh"
    rows = clip.encode_from_tokens(clip.tokenize(prompt))[0].double()
    after = value_outputs(patched, clip, prompt)
    before = value_outputs(model, clip, prompt)
    # the sampler meets the edit that was certified, row by row
    for key, edit in erasure.edits.items():
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
    half, full = erased(model, clip, strength=0.5), erased(model, clip, strength=1.0)
    assert all("edit_reused" in notices(outputs[2]) for outputs in (half, full))
    prompt = "a landscape by Van Gogh"
    out = [value_outputs(patched, clip, prompt) for patched in (model, half[0], full[0])]
    for key in out[0]:
        middle = (out[0][key] + out[2][key]) / 2
        assert torch.allclose(out[1][key], middle, atol=1e-4)


def style_lora(model) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    state = {}
    for key, value in model.model.state_dict().items():
        if key.endswith("attn2.to_v.weight"):
            base = key.removesuffix(".weight")
            state[f"{base}.lora_up.weight"] = (
                torch.randn(value.shape[0], 4, generator=generator) * 0.05
            )
            state[f"{base}.lora_down.weight"] = (
                torch.randn(4, value.shape[1], generator=generator) * 0.05
            )
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


def test_a_hundred_concepts(sd15):
    model, clip, _ = sd15
    text = "\n".join(f"Painter Number {i} of Utopia" for i in range(100))
    report = erased(model, clip, text, preset="multi")[3]
    assert "100 concepts" in report


def test_wrong_clip_is_refused(sd15, comfyui):

    model, _, _ = sd15
    foreign = mini.load(mini.shared("sd21"))[1]
    with pytest.raises(InputError, match=r"clip_h of width 1024.*clip_l of width 768"):
        erased(model, foreign)


def test_other_families_are_refused_by_name(sd15, comfyui):
    import comfy.sd

    model = comfy.sd.load_diffusion_model(str(mini.shared("pixart")))
    with pytest.raises(UnsupportedModelError, match="PixArt"):
        erased(model, sd15[1])


def test_nan_weights_are_refused(sd15):

    model, clip, _ = sd15
    broken = model.clone()
    key = next(k for k in model.model.state_dict() if k.endswith("attn2.to_v.weight"))
    shape = model.model.state_dict()[key].shape
    broken.add_patches({key: (torch.full(shape, float("nan")),)})
    with pytest.raises(SpeedError, match="NaN"):
        erased(broken, clip, "Somebody Else")


def test_an_edit_that_comfyui_does_not_take_is_an_error(sd15, monkeypatch):
    import comfy.sd

    model, clip, _ = sd15
    real = comfy.sd.load_lora_for_models

    def forgetful(patcher, of_clip, state, *strengths):
        first = next(iter(state)).removesuffix(".lora_up.weight")
        return real(
            patcher,
            of_clip,
            {k: v for k, v in state.items() if not k.startswith(f"{first}.")},
            *strengths,
        )

    monkeypatch.setattr(comfy.sd, "load_lora_for_models", forgetful)
    with pytest.raises(UnsupportedModelError, match=r"6 of 7 .*diffusion_model\.input_blocks\.1"):
        erased(model, clip)
    assert not model.patches


def test_progress_rises_through_all_stages(sd15, monkeypatch):
    import comfy.utils

    # Newer versions leave out steps that follow each other within a tenth of a second.
    monkeypatch.setattr(comfy.utils, "PROGRESS_THROTTLE_MIN_INTERVAL", 0.0, raising=False)
    updates: list[tuple[int, int]] = []
    comfy.utils.set_progress_bar_global_hook(
        lambda value, total, *_, **__: updates.append((value, total))
    )
    try:
        erased(sd15[0], sd15[1], "Somebody New", preset="auto")
    finally:
        comfy.utils.set_progress_bar_global_hook(None)
    values = [value for value, _ in updates if value]
    assert (
        len({total for _, total in updates}) == 1
        and values == sorted(values)
        and len(set(values)) > 5
    )
    assert values[0] < 0.3 * updates[0][1] < 0.6 * updates[0][1] < values[-1]


def test_the_certificate_is_that_of_the_strength_used(sd15):
    """In report, chart and certificate alike, however the erasure reaches the model."""
    from speed_erase.nodes.speed_apply_erasure import SpeedApplyErasure

    model, clip, _ = sd15
    full, half = (erased(model, clip, strength=strength) for strength in (1.0, 0.5))
    for patched, _, outcome, report, _ in (full, half):
        (concept,) = outcome.certificate.concepts
        assert concept.solved_median == pytest.approx(left(model, patched, clip), abs=0.02)
        assert ("At strength 0.5" in report) == (outcome.strength == 0.5)
    assert (
        full[2].certificate.concepts[0].solved_median
        < 0.05
        < 0.4
        < half[2].certificate.concepts[0].solved_median
    )
    for drift, double in zip(half[2].certificate.drift, full[2].certificate.drift, strict=True):
        assert drift.maximum == pytest.approx(double.maximum / 2)
    assert not torch.equal(full[4], half[4])
    patched, again = run(SpeedApplyErasure, model=model, strength=0.5, erasure=full[2])
    assert again.certificate.concepts == half[2].certificate.concepts and again.strength == 0.5


@pytest.mark.parametrize("strength", [float("nan"), float("inf"), 1e9])
def test_a_strength_that_is_no_number_is_refused(sd15, strength):
    """A client of the API can send it; the pictures would be black."""
    from speed_erase.nodes.speed_apply_erasure import SpeedApplyErasure
    from speed_erase.nodes.speed_apply_recipe import SpeedApplyRecipe
    from speed_erase.nodes.speed_erase import SpeedErase

    for node in (SpeedErase, SpeedApplyErasure, SpeedApplyRecipe):
        assert isinstance(node.validate_inputs(strength=strength), str)
        assert node.validate_inputs(strength=0.5) is True
    with pytest.raises(SettingsError):
        erased(*sd15[:2], strength=strength)
    outcome = erased(*sd15[:2])[2]
    with pytest.raises(SettingsError):
        run(SpeedApplyErasure, model=sd15[0], strength=strength, erasure=outcome)


def test_concepts_without_a_retain_set_use_the_built_in_one(comfyui):
    from speed_erase.speed_ops.engine.settings import EraseSettings
    from speed_erase.speed_ops.job import Job

    retain = Job.of(concepts("Van Gogh"), None, EraseSettings()).retain
    assert {source.label for source in retain.sources} == {"artists", "styles", "scenes"}
    assert Job.of(concepts("Van Gogh"), retained(), EraseSettings()).retain == retained()
    with pytest.raises(InputError):
        Job.of((), None, EraseSettings())


def test_comfyuis_cache_is_told_the_size_of_an_erasure(sd15):
    erasure = erased(*sd15[:2])[2]
    factors = [factor for edit in erasure.edits.values() for factor in (edit.up, edit.down)]
    assert erasure.get_ram_usage() == sum(factor.nbytes for factor in factors) > 0


def test_the_report_page_is_made_when_it_is_asked_for(sd15):
    from speed_erase.nodes.erase_output import offer_report, page_of

    assert "Van Gogh" in page_of(offer_report(erased(*sd15[:2])[2], 1000))
    with pytest.raises(NotFoundError):
        page_of("0" * 32)
