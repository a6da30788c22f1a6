"""One erasure does its work once."""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter
from dataclasses import replace
from pathlib import Path

import mini
import pytest

from speed_erase.speed_ops.certificate.certificate import ConceptResult
from speed_erase.speed_ops.cli import main

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "sd1.safetensors"
    mini.write_model(path, "sd1")
    return path


def calls(command: list[str]) -> Counter[str]:
    """How often each of our functions runs during a command."""
    profile = cProfile.Profile()
    assert profile.runcall(main, command) == 0
    counts: Counter[str] = Counter()
    for (file, _, name), (primitive, *_) in pstats.Stats(profile).stats.items():
        if "speed_ops" in file:
            counts[name] += primitive
    return counts


@pytest.mark.parametrize("strength", ["1", "0.5"])
def test_nothing_is_computed_twice(model: Path, tmp_path: Path, strength: str) -> None:
    flags = [
        "--retain",
        "artists",
        "--retain-limit",
        "30",
        "--effort",
        "fast",
        "--quiet",
        "--strength",
    ]
    command = ["erase", str(model), "--concepts", "Van Gogh -> art", *flags, strength]
    counts = calls([*command, "--out", str(tmp_path)])
    for name in ("embed", "prepare", "recipe_of", "gather_encoders"):
        assert counts[name] == 1, name
    assert counts["parse_retain"] <= 2, "the list that was asked for, and the captions"
    assert counts["fold"] < 10_000 and counts["same_name_key"] < 5_000


def test_nothing_left_is_a_measurement() -> None:
    """0.0 in new prompts is not a missing number."""
    gone = ConceptResult("gone", 0.0, 0.0, 0.0, 0.0, 0.0)
    untested = replace(gone, probe_median=None)
    assert (gone.score, gone.verdict) == (0.0, "erased")
    assert (untested.score, untested.verdict) == (None, "unproven")
    assert replace(gone, solved_median=0.9).left == 0.0 != replace(untested, solved_median=0.9).left
