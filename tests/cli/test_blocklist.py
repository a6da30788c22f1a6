"""A block list counts in one version only, and everything made with it says which."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mini
import pytest

from speed_erase.speed_ops.checkpoints.blocked import not_erased_of
from speed_erase.speed_ops.cli import main
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.recipe import Recipe
from speed_erase.speed_ops.text.concept_list import parse_concepts

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_pinned_list_is_erased_and_recorded(tmp_path: Path) -> None:
    mini.write_model(tmp_path / "m.safetensors")
    blocked = tmp_path / "blocked.txt"
    blocked.write_text("Claude Monet -> art\n")
    label = f"blocked.txt@sha256:{hashlib.sha256(blocked.read_bytes()).hexdigest()}"
    pinned = str(tmp_path / label)
    model = str(tmp_path / "m.safetensors")
    erase = ["erase", model, *mini.QUICK, "--quiet", "--blocklist", pinned]
    assert main([*erase, "--save", "recipe,report", "--out", str(tmp_path / "a")]) == 0
    recipe = Recipe.read(tmp_path / "a" / "m-recipe.json")
    assert recipe.blocklists == (label,)
    assert [concept.target for concept in recipe.concepts] == ["Claude Monet"]
    assert label in (tmp_path / "a" / "m-report.html").read_text()
    (tmp_path / "r.json").write_text('{"concepts": ["Van Gogh -> art"], "retain": []}')
    (tmp_path / "in").mkdir()
    mini.write_model(tmp_path / "in" / "m.safetensors")
    batch = ["batch", "--recipe", str(tmp_path / "r.json"), "--in", str(tmp_path / "in")]
    batch += ["--blocklist", pinned, "--save", "recipe", "--quiet", "--out", str(tmp_path / "b")]
    assert main(batch) == 0
    both = Recipe.read(tmp_path / "b" / "m-recipe.json")
    assert [concept.target for concept in both.concepts] == ["Van Gogh", "Claude Monet"]
    assert both.blocklists == (label,) and not both.without_names().blocklists
    blocked.write_text("Claude Monet -> art\nnobody\n")
    assert main([*erase, "--out", str(tmp_path / "c")]) == 1
    assert not (tmp_path / "c").exists()
    assert main([*erase[:-1], "blocked.txt", "--out", str(tmp_path / "c")]) == 2


def test_a_file_is_verified_against_a_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a header says about block lists counts for nothing; the list itself is compared."""
    model, result = tmp_path / "m.safetensors", tmp_path / "out" / "m-erased.safetensors"
    mini.write_model(model)
    erase = ["erase", str(model), "--concepts", mini.CONCEPTS, *mini.QUICK]
    assert main([*erase, "--save", "checkpoint", "--quiet", "--out", str(result.parent)]) == 0
    for content, expected in (
        ("vincent VAN gogh -> art\n", []),
        ("Van Gogh -> art\nClaude Monet -> art\n", ["blocked"]),
        ("Van Gogh | Starry Night -> art\n", ["blocked"]),
        ("Van Gogh -> a painter\n", ["blocked"]),
        ("Van Gogh -> art || object\n", ["blocked"]),
    ):
        blocked = tmp_path / "blocked.txt"
        blocked.write_text(content)
        pinned = f"{blocked}@sha256:{hashlib.sha256(blocked.read_bytes()).hexdigest()}"
        verify = ["verify", str(result), "--base", str(model), "--blocklist", pinned, "--json"]
        capsys.readouterr()
        assert main(verify) == bool(expected)
        faults = json.loads(capsys.readouterr().out)["faults"]
        assert [fault["code"] for fault in faults] == expected


@pytest.mark.parametrize(
    ("family", "name", "same"),
    [
        ("sd1", "vAN gOGH", True),
        ("sd1", "van\u200b  gogh", True),
        ("sd1", "van g\u043egh", False),
        ("flux", "vAN gOGH", False),
        ("flux", "Van\u200b  Gogh", True),
    ],
)
def test_a_name_counts_as_the_text_encoders_read_it(family: str, name: str, same: bool) -> None:
    blocked = parse_concepts("Van Gogh -> art", "style")
    job = SimpleNamespace(concepts=tuple(parse_concepts(f"{name} -> art", "style")))
    source = SimpleNamespace(architecture=by_name(family))
    erased: Any = SimpleNamespace(stored=SimpleNamespace(job=job), source=source)
    measured: Any = SimpleNamespace(concepts=(SimpleNamespace(verdict="erased"),))
    assert bool(not_erased_of(blocked, erased, measured)) != same
