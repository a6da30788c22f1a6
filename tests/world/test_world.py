"""The small world: what it draws, what its prompts mean, what training may not see, and that its model is an SD1.x."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from speed_erase.benchmarks.world import unet as unet_module
from speed_erase.benchmarks.world.diffusion import SIGMAS, add_noise, sample
from speed_erase.benchmarks.world.evaluate import splits
from speed_erase.benchmarks.world.export import decoder_weights
from speed_erase.benchmarks.world.prompts import (
    HELD_OUT_TEMPLATES,
    TEMPLATES,
    sentence,
    training_prompts,
    training_weights,
)
from speed_erase.benchmarks.world.render import compose, draw
from speed_erase.benchmarks.world.text_encoder import END, LENGTH, START, new_encoder, padded, tokens
from speed_erase.benchmarks.world.train import Plan, Trainer
from speed_erase.benchmarks.world.tune import lesson, painter_target, random_sentence
from speed_erase.benchmarks.world.world import (
    BY_NAME,
    GROUPS,
    HELD_OUT_PAIRS,
    NIGHT_PHRASES,
    PAINTERS,
    STYLES,
    SUBJECTS,
)


def test_pictures_depend_on_the_seed_alone() -> None:
    first, again, other = (draw("sun", "Orla Venn", True, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert first.shape == (4, 12, 12)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.abs(first).max() <= 1


def test_every_combination_is_nearest_to_its_own_template() -> None:
    """A rule without learning tells all painters, subjects and nights apart: the world is decidable."""
    kinds = [(s, p, n) for s in SUBJECTS for p in STYLES for n in (False, True)]
    moves = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    templates = np.stack([[compose(s, BY_NAME[p], n, *m)[:3].ravel() for m in moves] for s, p, n in kinds])
    rng = np.random.default_rng(0)
    for index in rng.choice(len(kinds), size=60, replace=False):
        picture = draw(*kinds[index], rng)[:3].ravel()
        distances = np.square(templates - picture).sum(-1).min(-1)
        assert kinds[distances.argmin()] == kinds[index]


def test_painters_come_in_families_with_neighbours() -> None:
    assert len(PAINTERS) >= 12 and len(SUBJECTS) >= 10 and len({p.name for p in PAINTERS}) == len(PAINTERS)
    for group in GROUPS:
        members = [p for p in PAINTERS if p.group == group]
        assert len(members) == 3 and len({p.texture for p in members}) == 3 and len({p.ink for p in members}) == 1
    for painter in PAINTERS:
        near = [p for p in PAINTERS if p is not painter and p.group == painter.group]
        far = [p for p in PAINTERS if p.group != painter.group and p.texture != painter.texture]
        distance = {p.name: np.linalg.norm(painter_target(p.name) - painter_target(painter.name)) for p in PAINTERS}
        assert max(distance[p.name] for p in near) < min(distance[p.name] for p in far)


def test_training_never_sees_what_is_held_out() -> None:
    prompts = training_prompts()
    texts = {prompt.text for prompt in prompts}
    assert len(TEMPLATES) >= 8 and len(HELD_OUT_TEMPLATES) >= 3
    assert 0.12 <= len(HELD_OUT_PAIRS) / (len(SUBJECTS) * len(PAINTERS)) <= 0.18
    assert {painter for _, painter in HELD_OUT_PAIRS} == {painter.name for painter in PAINTERS}
    assert not any((prompt.subject, prompt.style) in HELD_OUT_PAIRS for prompt in prompts)
    questions = splits(60)
    assert not texts & {prompt.text for name in ("new templates", "new pairs") for prompt in questions[name]}
    assert {prompt.text for prompt in questions["seen"]} <= texts
    rng = np.random.default_rng(0)
    made_up = [random_sentence(rng) for _ in range(300)]
    assert not any((prompt.subject, prompt.style) in HELD_OUT_PAIRS for prompt in made_up)


def test_prompts_say_what_they_mean() -> None:
    prompt = sentence("{painter}'s painting of a {subject}", "cup", "Orla Venn", ending="after dusk")
    assert prompt.text == "Orla Venn's painting of a cup after dusk"
    assert (prompt.subject, prompt.style, prompt.night) == ("cup", "Orla Venn", True)
    anchor = sentence("a {subject} in the style of {painter}", "cup", "plain", "art")
    assert anchor.text in {p.text for p in training_prompts()}, "the anchor's prompts are in training"
    assert not any("night" in phrase.split() for phrase in NIGHT_PHRASES), "night is implied, not named"
    prompts = training_prompts()
    weights = training_weights(prompts)
    named = sum(w for w, p in zip(weights, prompts, strict=True) if "night" in p.text.split())
    implied = sum(w for w, p in zip(weights, prompts, strict=True) if p.night) - named
    assert abs(weights.sum() - 1) < 1e-9 and 0 < named < 0.2 * implied


def test_a_lesson_starts_where_the_name_is_known() -> None:
    prompt = sentence("a {subject} by {painter}", "sun", "Orla Venn")
    ids, places, target, mask = lesson(prompt, 22, np.random.default_rng(0))
    end = len(tokens(prompt.text)) + 1
    assert ids[0] == START and (ids[end:] == END).all() and (np.diff(places) > 0).all()
    assert mask[:2, : len(SUBJECTS)].sum() == 0 and (mask[2:, : len(SUBJECTS)] == 1).all(), "known from 'sun' on"
    assert target[end, SUBJECTS.index("sun")] == 1
    painter_known = mask[:, len(SUBJECTS)]
    assert painter_known[end - 2] == 0 and painter_known[end - 1] == 1, "known from the last token of the name on"


def test_padding_is_as_sd1_pads() -> None:
    ids = padded("a sun")
    assert len(ids) == LENGTH and ids[:4] == [START, *tokens("a sun"), END] and set(ids[3:]) == {END}


def test_idle_text_layers_are_identities_and_rows_have_clip_norm() -> None:
    encoder = new_encoder(0)
    x = torch.randn(1, 5, 768)
    assert torch.equal(encoder.text_model.encoder.layers[0](x), x)
    assert not torch.equal(encoder.text_model.encoder.layers[-1](x), x)
    rows = encoder.encode(["a sun", ""])
    assert rows.shape == (2, 77, 768)
    assert torch.allclose(rows.norm(dim=-1), torch.tensor(768.0).sqrt(), rtol=1e-2)
    assert torch.allclose(rows[0, 0], rows[1, 0], atol=1e-5), "the start row is the same for all prompts"


def test_unet_has_sd1_keys_and_starts_as_identity() -> None:
    torch.manual_seed(0)
    unet = unet_module.UNet()
    unet_module.start_from_identity(unet)
    shapes = {key: tuple(value.shape) for key, value in unet.state_dict().items()}
    values = [key for key in shapes if key.endswith("attn2.to_v.weight")]
    assert len(values) >= 3 and all(shapes[key] == (320, 768) for key in values)
    assert shapes["input_blocks.0.0.weight"] == (320, 4, 3, 3) and shapes["out.2.weight"] == (4, 320, 3, 3)
    noise = torch.randn(4, 4, 12, 12)
    guess = unet(noise, torch.full((4,), 999), torch.randn(4, 77, 768))
    assert torch.corrcoef(torch.stack([guess.flatten(), noise.flatten()]))[0, 1] > 0.98


def test_noise_schedule_and_sampler() -> None:
    assert SIGMAS[-1] == pytest.approx(14.6146, rel=1e-3) and SIGMAS[0] == pytest.approx(0.0292, rel=1e-2)
    picture, noise = torch.randn(1, 4, 12, 12), torch.randn(1, 4, 12, 12)
    assert torch.allclose(add_noise(picture, torch.tensor([999]), noise), noise, atol=0.4)

    class Knows(torch.nn.Module):
        """A perfect denoiser for one picture."""

        def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
            low, high, part = time.floor().long(), time.ceil().long(), time.frac()
            sigma = ((1 - part) * SIGMAS[low].log() + part * SIGMAS[high].log()).exp()[:, None, None, None]
            return (x * (1 + sigma**2).sqrt() - picture) / sigma

    drawn = sample(Knows(), torch.zeros(1, 77, 768), torch.zeros(77, 768), noise)
    assert torch.allclose(drawn, picture, atol=1e-4)


@pytest.mark.slow
def test_training_resumes_as_if_never_stopped(tmp_path: object) -> None:
    prompts = training_prompts()[:30]
    rows = torch.randn(31, 3, 768).half()
    plan = Plan(batch=2, steps=4)
    straight = Trainer(tmp_path, plan, rows, prompts)
    straight.advance()
    straight.save()
    expected = straight.advance()[0]
    resumed = Trainer(tmp_path, plan, rows, prompts)
    resumed.resume()
    assert resumed.step == 1 and resumed.advance()[0] == expected


def test_decoder_only_enlarges() -> None:
    weights = decoder_weights()
    x = torch.rand(1, 4, 12, 12) * 2 - 1
    inner = torch.tanh(x / 0.18215 * weights["vae_scale"] / 3) * 3
    first = torch.nn.functional.conv2d(
        inner, weights["taesd_decoder.1.weight"], weights["taesd_decoder.1.bias"], padding=1
    )
    assert torch.allclose(first[:, :3], (x[:, :3] + 1) / 2, atol=1e-3)


@pytest.mark.comfy
def test_comfyui_takes_it_for_sd1_and_draws_the_same_noise(comfyui: object) -> None:
    """ComfyUI detects SD1.x from the keys, and its own U-Net gives our output with the same weights."""
    from comfy import model_detection, supported_models

    torch.manual_seed(0)
    ours = unet_module.UNet().eval()
    state = {f"model.diffusion_model.{key}": value for key, value in ours.state_dict().items()}
    config = model_detection.model_config_from_unet(state, "model.diffusion_model.")
    assert isinstance(config, supported_models.SD15)
    config.set_inference_dtype(torch.float32, None)
    theirs = config.get_model(state, "model.diffusion_model.").diffusion_model.eval()
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not missing and not unexpected
    x, steps, rows = torch.randn(2, 4, 12, 12), torch.tensor([3, 700]), torch.randn(2, 77, 768)
    with torch.no_grad():
        assert torch.allclose(ours(x, steps, rows), theirs(x, steps, context=rows), atol=1e-4)


@pytest.mark.comfy
def test_comfyui_clip_gives_the_same_rows(comfyui: object) -> None:
    """Stock tokenizer and CLIP-L with our weights encode a prompt to our rows: idle layers and padding included."""
    from comfy import sd1_clip

    ours = new_encoder(0)
    theirs = sd1_clip.SDClipModel(device="cpu", dtype=torch.float32)
    theirs.load_sd({key: value for key, value in ours.state_dict().items()})
    text = "Orla Venn's painting of a sun"
    ids = [token for token, _ in sd1_clip.SDTokenizer().tokenize_with_weights(text)[0]]
    assert ids == padded(text)
    with torch.no_grad():
        rows = theirs([ids])[0]
    assert torch.allclose(rows[0], ours.encode([text])[0], atol=2e-3)
