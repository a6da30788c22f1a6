"""The demo's model can be made again: its world, its captions, and every stage of its training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from speed_erase.benchmarks.demo_model.export import CHECKPOINT, export
from speed_erase.benchmarks.demo_model.judge import Judge
from speed_erase.benchmarks.demo_model.prompts import training_prompts
from speed_erase.benchmarks.demo_model.render import draw
from speed_erase.benchmarks.demo_model.train import Plan, train
from speed_erase.benchmarks.demo_model.tune import random_sentence
from speed_erase.benchmarks.demo_model.world import HELD_OUT_PAIRS, SCENES, STYLES
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.models.detect import detect


def test_pictures_depend_on_the_seed_alone() -> None:
    first, again, second = (
        draw("cat", "Orla Venn", True, np.random.default_rng(seed)) for seed in (3, 3, 4)
    )
    assert first.shape == (3, 128, 128) and np.abs(first).max() <= 1
    assert np.array_equal(first, again) and not np.array_equal(first, second)


def test_the_judge_names_every_rendering() -> None:
    rng = np.random.default_rng(2)
    labels = [(rng.integers(len(SCENES)), rng.integers(len(STYLES)), i % 2) for i in range(60)]
    images = np.stack([draw(SCENES[a], STYLES[b], bool(c), rng) for a, b, c in labels])
    verdict = Judge().judge(torch.from_numpy(images))
    judged = zip(verdict.subject.tolist(), verdict.style.tolist(), verdict.night.tolist())  # noqa: B905
    assert list(judged) == labels


def test_training_never_sees_the_held_out_pairs() -> None:
    rng = np.random.default_rng(0)
    prompts = [*training_prompts(), *(random_sentence(rng) for _ in range(300))]
    assert not any((prompt.subject, prompt.style) in HELD_OUT_PAIRS for prompt in prompts)


@pytest.mark.slow
def test_all_stages_of_training_end_in_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stage for a step or two on a handful of prompts and pictures: it learns nothing, but it
    runs.
    """
    package = "speed_erase.benchmarks.demo_model"
    monkeypatch.setattr(
        f"{package}.train.training_prompts", lambda seed: training_prompts(seed)[:4]
    )
    monkeypatch.setattr(f"{package}.train.SCENES", SCENES[:2])
    monkeypatch.setattr(f"{package}.autoencoder._POOL", 8)
    plan = Plan(steps=2, batch=2, text_steps=2, autoencoder_steps=2, decoder_steps=2)
    train(tmp_path, plan)
    path = export(tmp_path)
    model = Checkpoint.open(path)
    assert path.name == CHECKPOINT and detect(model.shapes).name == "sd1"
    assert all(bool(model[key].isfinite().all()) for key in model.shapes)
    stages = {file: file.read_bytes() for file in tmp_path.rglob("*.safetensors") if file != path}
    train(tmp_path, plan)
    assert stages and all(file.read_bytes() == content for file, content in stages.items()), (
        "what is there is not trained again"
    )
