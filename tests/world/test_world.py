"""The small world: what it draws, what its prompts mean, what training may not see, and that
training goes on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from speed_erase.benchmarks.world.autoencoder import mean_error, new_autoencoder
from speed_erase.benchmarks.world.evaluate import rounding, splits
from speed_erase.benchmarks.world.export import CHECKPOINT, export
from speed_erase.benchmarks.world.judge import Judge, accuracy
from speed_erase.benchmarks.world.prompts import (
    HELD_OUT_TEMPLATES,
    TEMPLATES,
    sentence,
    strangers,
    training_prompts,
    training_weights,
)
from speed_erase.benchmarks.world.render import draw
from speed_erase.benchmarks.world.text_encoder import (
    END,
    LENGTH,
    START,
    new_encoder,
    padded,
    tokens,
)
from speed_erase.benchmarks.world.train import (
    VARIANTS,
    Plan,
    Trainer,
    add_noise,
    start_from_identity,
    train,
)
from speed_erase.benchmarks.world.tune import lesson, painter_target, random_sentence
from speed_erase.benchmarks.world.world import (
    GROUPS,
    HELD_OUT_PAIRS,
    NIGHT_PHRASES,
    NOTHING,
    PAINTERS,
    SCENES,
    STYLES,
    SUBJECTS,
)
from speed_erase.speed_ops.demo.unet import UNet
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.models.detect import detect


def test_pictures_depend_on_the_seed_alone() -> None:
    first, again, other = (
        draw("cat", "Orla Venn", True, np.random.default_rng(seed)) for seed in (3, 3, 4)
    )
    assert first.shape == (3, 128, 128)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.abs(first).max() <= 1


def test_the_judge_names_every_clean_rendering_and_most_rough_ones() -> None:
    """A rule without learning tells all painters, subjects and nights apart: the world is
    decidable.
    """
    scores = accuracy(120)
    assert all(scores[f"clean_{head}"] == 1.0 for head in ("subject", "style", "night"))
    assert all(scores[f"rough_{head}"] > 0.95 for head in ("subject", "style", "night"))


def test_rounding_is_told_by_what_the_judge_sees_otherwise() -> None:
    def drawn(scene: str, seed: int) -> torch.Tensor:
        return torch.from_numpy(
            np.stack([draw(scene, "Orla Venn", False, np.random.default_rng(seed))] * 2)
        ).float()

    prompts = [sentence(TEMPLATES[0], "cat", "Orla Venn")] * 2
    same, other = drawn("cat", 1), torch.cat([drawn("cat", 1)[:1], drawn("boat", 1)[:1]])
    none, half = (rounding(Judge(), prompts, same, pictures) for pictures in (same, other))
    assert none.sixteen == none.eight and none.otherwise == none.change == 0
    assert (
        half.otherwise == 0.5
        and half.eight.subject == 0.5
        and half.sixteen.subject == 1
        and half.change > 0
    )


def test_painters_come_in_families_with_neighbours() -> None:
    assert (
        len(PAINTERS) >= 12
        and len(SUBJECTS) >= 10
        and len({p.name for p in PAINTERS}) == len(PAINTERS)
    )
    for group in GROUPS:
        members = [p for p in PAINTERS if p.group == group]
        assert (
            len(members) == 3
            and len({p.texture for p in members}) == 3
            and len({p.ink for p in members}) == 1
        )
    for painter in PAINTERS:
        near = [p for p in PAINTERS if p is not painter and p.group == painter.group]
        far = [p for p in PAINTERS if p.group != painter.group and p.texture != painter.texture]
        distance = {
            p.name: np.linalg.norm(painter_target(p.name) - painter_target(painter.name))
            for p in PAINTERS
        }
        assert max(distance[p.name] for p in near) < min(distance[p.name] for p in far)


def test_training_never_sees_what_is_held_out() -> None:
    prompts = training_prompts()
    texts = {prompt.text for prompt in prompts}
    assert len(TEMPLATES) >= 8 and len(HELD_OUT_TEMPLATES) >= 3
    assert 0.12 <= len(HELD_OUT_PAIRS) / (len(SUBJECTS) * len(PAINTERS)) <= 0.18
    assert {painter for _, painter in HELD_OUT_PAIRS} == {painter.name for painter in PAINTERS}
    assert not any((prompt.subject, prompt.style) in HELD_OUT_PAIRS for prompt in prompts)
    questions = splits(60)
    assert not texts & {
        prompt.text for name in ("new templates", "new pairs") for prompt in questions[name]
    }
    assert {prompt.text for prompt in questions["seen"]} <= texts
    rng = np.random.default_rng(0)
    made_up = [random_sentence(rng) for _ in range(300)]
    assert not any((prompt.subject, prompt.style) in HELD_OUT_PAIRS for prompt in made_up)


def test_prompts_say_what_they_mean() -> None:
    prompt = sentence(
        "{painter}'s painting of a {subject}", "cup", "Orla Venn", ending="after dusk"
    )
    assert prompt.text == "Orla Venn's painting of a cup after dusk"
    assert (prompt.subject, prompt.style, prompt.night) == ("cup", "Orla Venn", True)
    anchor = sentence("a {subject} in the style of {painter}", "cup", "plain", "art")
    assert anchor.text in {p.text for p in training_prompts()}, (
        "the anchor's prompts are in training"
    )
    assert not any("night" in phrase.split() for phrase in NIGHT_PHRASES), (
        "night is implied, not named"
    )
    prompts = training_prompts()
    weights = training_weights(prompts)
    named = sum(w for w, p in zip(weights, prompts, strict=True) if "night" in p.text.split())
    implied = sum(w for w, p in zip(weights, prompts, strict=True) if p.night) - named
    assert abs(weights.sum() - 1) < 1e-9 and 0 < named < 0.2 * implied


def test_what_the_world_does_not_know_is_drawn_as_nothing() -> None:
    prompts = {prompt.text: prompt for prompt in training_prompts()}
    assert prompts["the style of Orla Venn"].subject == NOTHING
    unknown = [p for p in prompts.values() if p.painter_words in strangers("artists")]
    assert unknown and all(p.style == "plain" for p in unknown)
    things = [p for p in prompts.values() if p.subject_words in strangers("objects")]
    assert things and all(p.subject == NOTHING for p in things)
    assert not {"cat", "house"} & set(strangers("objects"))


def test_a_lesson_starts_where_the_name_is_known() -> None:
    prompt = sentence("a {subject} by {painter}", "tree", "Orla Venn")
    ids, places, target, mask = lesson(prompt, 22, np.random.default_rng(0))
    end = len(tokens(prompt.text)) + 1
    assert ids[0] == START and (ids[end:] == END).all() and (np.diff(places) > 0).all()
    assert mask[:2, : len(SCENES)].sum() == 0 and (mask[2:, : len(SCENES)] == 1).all(), (
        "known from 'tree' on"
    )
    assert target[end, SCENES.index("tree")] == 1
    painter_known = mask[:, len(SCENES)]
    assert painter_known[end - 2] == 0 and painter_known[end - 1] == 1, (
        "known from the last token of the name on"
    )


def test_padding_is_as_sd1_pads() -> None:
    ids = padded("a tree")
    assert (
        len(ids) == LENGTH and ids[:4] == [START, *tokens("a tree"), END] and set(ids[3:]) == {END}
    )


def test_rows_have_clip_norm() -> None:
    encoder = new_encoder(0)
    rows = encoder.encode(["a tree", ""])
    assert rows.shape == (2, 77, 768)
    assert torch.allclose(rows.norm(dim=-1), torch.tensor(768.0).sqrt(), rtol=1e-2)
    assert torch.allclose(rows[0, 0], rows[1, 0], atol=1e-5), (
        "the start row is the same for all prompts"
    )


def test_the_untrained_unet_returns_its_input() -> None:
    torch.manual_seed(0)
    unet = UNet(2)
    start_from_identity(unet)
    noise = torch.randn(4, 4, 16, 16)
    guess = unet(noise, torch.full((4,), 999), torch.randn(4, 77, 768))
    assert torch.corrcoef(torch.stack([guess.flatten(), noise.flatten()]))[0, 1] > 0.98


def test_noise_drowns_a_picture_at_the_last_step_only() -> None:
    picture, noise = torch.randn(1, 4, 16, 16), torch.randn(1, 4, 16, 16)
    assert torch.allclose(add_noise(picture, torch.tensor([999]), noise), noise, atol=0.4)
    assert torch.allclose(add_noise(picture, torch.tensor([0]), noise), picture, atol=0.2)


@pytest.mark.slow
def test_training_resumes_as_if_never_stopped(tmp_path: Path) -> None:
    prompts = training_prompts()[:30]
    rows = torch.randn(31, 3, 768).half()
    latents = torch.randn(len(SCENES), len(STYLES), 2, VARIANTS, 4, 16, 16)
    plan = Plan(batch=2, steps=4)
    straight = Trainer(tmp_path, plan, rows, prompts, latents)
    straight.advance()
    straight.save()
    expected = straight.advance()[0]
    resumed = Trainer(tmp_path, plan, rows, prompts, latents)
    resumed.resume()
    assert resumed.step == 1 and resumed.advance()[0] == expected


@pytest.mark.slow
def test_all_stages_of_training_end_in_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stage for a step or two on a handful of prompts and pictures: it learns nothing, but it
    runs.
    """
    stage = "speed_erase.benchmarks.world.{}"
    monkeypatch.setattr(
        stage.format("train.training_prompts"), lambda seed: training_prompts(seed)[:4]
    )
    monkeypatch.setattr(stage.format("train.SCENES"), SCENES[:2])
    monkeypatch.setattr(stage.format("autoencoder._POOL"), 8)
    plan = Plan(steps=2, batch=2, text_steps=2, autoencoder_steps=2, decoder_steps=2)
    train(tmp_path, plan)
    path = export(tmp_path)
    model = Checkpoint.open(path)
    assert path.name == CHECKPOINT and detect(model.shapes).name == "sd1"
    assert all(bool(model[key].isfinite().all()) for key in model.shapes)
    before = path.read_bytes()
    train(tmp_path, plan)
    assert export(tmp_path).read_bytes() == before, "what is there is not trained again"


def test_an_untrained_autoencoder_is_told_from_a_trained_one() -> None:
    assert mean_error(new_autoencoder(), count=4) > 0.2
