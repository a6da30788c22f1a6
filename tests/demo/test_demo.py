"""The demo's model is the same everywhere, and the demo shows what it says: two concepts gone,
the rest kept.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from pathlib import Path

import mini
import numpy as np
import pytest
import torch
from PIL import Image

from speed_erase.benchmarks.demo_model.judge import Judge
from speed_erase.benchmarks.demo_model.world import (
    NOTHING,
    PAINTERS,
    PLAIN,
    SCENES,
    STYLES,
    SUBJECTS,
)
from speed_erase.speed_ops.demo import demo, showcase
from speed_erase.speed_ops.demo.packed_model import (
    CHECKPOINT_SHA256,
    FILE,
    known_names,
    packed,
    text_encoder_layout,
    token_table,
    unpacked,
    write_checkpoint,
)
from speed_erase.speed_ops.errors import FileError
from speed_erase.speed_ops.files.checkpoint import Checkpoint
from speed_erase.speed_ops.models.detect import detect, layers


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked model."""
    return write_checkpoint(tmp_path_factory.mktemp("demo") / "speed_demo.safetensors")


def test_the_packed_model_is_small_and_lists_its_names() -> None:
    assert FILE.stat().st_size < 25_000_000
    names = known_names()
    assert (
        names["painters"] == tuple(painter.name for painter in PAINTERS)
        and names["subjects"] == SUBJECTS
    )
    assert {"MODEL_CARD.md", "LICENSE"} <= {path.name for path in FILE.parent.iterdir()}


def test_the_checkpoint_has_the_same_bytes_everywhere(checkpoint: Path) -> None:
    assert hashlib.sha256(checkpoint.read_bytes()).hexdigest() == CHECKPOINT_SHA256


def test_the_checkpoint_is_a_whole_stable_diffusion_1(checkpoint: Path) -> None:
    model = Checkpoint.open(checkpoint)
    family = detect(model.shapes)
    assert family.name == "sd1" and len(layers(family, model.shapes, "V")) == 4
    assert sum(math.prod(shape) for _, shape in text_encoder_layout(12)) == 123_060_480
    assert all(bool(model[key].isfinite().all()) for key in model.shapes)


def test_the_table_of_tokens_is_made_of_integers() -> None:
    table = token_table()
    assert table.shape == (49408, 768) and torch.equal(table, table.half().float())
    assert table.mean().abs() < 1e-4 and 0.015 < table.std() < 0.02
    assert len(torch.unique(table[:100])) == 256


def test_eight_bits_lose_little() -> None:
    torch.manual_seed(0)
    trained = {"a.weight": torch.randn(40, 30, 3, 3), "a.bias": torch.randn(40)}
    back = unpacked(packed(trained))
    for key, value in trained.items():
        assert (back[key] - value).norm() < 0.01 * value.norm()


def test_the_demo_asks_for_what_the_model_knows() -> None:
    names = known_names()
    assert (
        showcase.PAINTER in names["painters"]
        and showcase.ALIAS in names["aliases"]
        and showcase.SUBJECT in names["subjects"]
    )
    erased = (showcase.PAINTER, showcase.ALIAS, showcase.SUBJECT)
    for column in showcase.COLUMNS:
        assert any(word in column.prompt.split(" by ")[0].split() for word in names["subjects"])
        assert column.erased == any(name in column.prompt for name in erased)


def test_the_model_is_put_into_comfyui_once_and_nothing_is_overwritten(
    tmp_path: Path, checkpoint: Path
) -> None:
    with pytest.raises(FileError, match="models/checkpoints"):
        demo.place_in_comfyui(tmp_path)
    folder = tmp_path / "models" / "checkpoints"
    folder.mkdir(parents=True)
    path, new = demo.place_in_comfyui(tmp_path)
    assert (
        new
        and path == folder / "speed_demo.safetensors"
        and path.read_bytes() == checkpoint.read_bytes()
    )
    assert demo.place_in_comfyui(tmp_path) == (path, False)
    path.write_bytes(b"somebody's own")
    with pytest.raises(FileError, match="another file"):
        demo.place_in_comfyui(tmp_path)
    assert path.read_bytes() == b"somebody's own" and [file.name for file in folder.iterdir()] == [
        path.name
    ]


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The demo's folder and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    out = folder / "demo-out"
    done = mini.run(
        "demo", "--out", out, "--json", timeout=1800, SPEED_ERASE_CACHE=str(folder / "cache")
    )
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


@pytest.mark.slow
def test_the_demo_writes_what_it_says(demo_run: tuple[Path, dict]) -> None:
    out, result = demo_run
    assert [concept["verdict"] for concept in result["certificate"]["concepts"]] == [
        "erased",
        "erased",
    ]
    ends = ("erased.safetensors", "eraser-lora.safetensors", "recipe.json", "README.md")
    ends = (*ends, "report.html")
    names = {"demo-model.safetensors", "before-after.png", *(f"demo-model-{end}" for end in ends)}
    assert {path.name for path in out.iterdir()} == names
    assert (
        hashlib.sha256((out / "demo-model.safetensors").read_bytes()).hexdigest()
        == CHECKPOINT_SHA256
    )
    page = (out / "demo-model-report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2 * len(showcase.COLUMNS)
    assert Image.open(out / "before-after.png").size[0] > 1000


@pytest.mark.slow
def test_what_was_erased_is_gone_from_the_pictures_and_the_rest_is_not(
    demo_run: tuple[Path, dict],
) -> None:
    out, _ = demo_run
    drawn = showcase.before_and_after(
        out / "demo-model.safetensors", out / "demo-model-erased.safetensors"
    )
    for pair in drawn:
        before, after = (_seen(content) for content in (pair.before, pair.after))
        subject, _, painter = pair.prompt.removeprefix("a ").partition(" by ")
        style = {"": PLAIN.name, showcase.ALIAS: showcase.PAINTER}.get(painter, painter)
        assert before == (subject, style), f"{pair.prompt} was not drawn to begin with"
        expected = (
            NOTHING if subject == showcase.SUBJECT else subject,
            PLAIN.name if style == showcase.PAINTER else style,
        )
        assert after == expected, f"{pair.prompt} shows {after}"
        assert pair.erased == (after != before), pair.prompt


def _seen(content: bytes) -> tuple[str, str]:
    """Subject and painter that the judge sees."""
    colours = (
        torch.from_numpy(np.array(Image.open(io.BytesIO(content)))).permute(2, 0, 1)[None] / 127.5
        - 1
    )
    verdict = Judge().judge(colours)
    return SCENES[int(verdict.subject)], STYLES[int(verdict.style)]


@pytest.mark.slow
def test_the_erased_model_is_verified(demo_run: tuple[Path, dict]) -> None:
    out, result = demo_run
    verified = mini.run(
        "verify",
        result["files"]["checkpoint"],
        "--base",
        out / "demo-model.safetensors",
        timeout=900,
    )
    assert verified.returncode == 0, verified.stderr
