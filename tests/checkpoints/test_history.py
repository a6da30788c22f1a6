"""A model that is erased once more remembers what was erased before."""

from __future__ import annotations

import json
from pathlib import Path

import mini
import pytest

from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.provenance import load_recipe

pytestmark = pytest.mark.usefixtures("own_cache")


def erase(model: Path, what: str, out: Path, *more: str) -> Path:
    assert (
        main(
            [
                "erase",
                str(model),
                "--concepts",
                what,
                *mini.QUICK,
                "--out",
                str(out),
                "--quiet",
                *more,
            ]
        )
        == 0
    )
    return next(out.glob("*-erased.safetensors"))


def test_erasing_again_keeps_the_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "m.safetensors"
    mini.write_model(base)
    first = erase(base, "Van Gogh -> art", tmp_path / "1")
    second = erase(first, "Monet -> art", tmp_path / "2")
    third = erase(second, "Snoopy -> dog", tmp_path / "3", "--no-names")
    assert load_recipe(first).history == ()
    assert [one.concepts[0].target for one in load_recipe(second).history] == ["Van Gogh"]
    assert len(load_recipe(third).history) == 2
    for file in (tmp_path / "3").iterdir():
        content = file.read_bytes().lower()
        assert not [name for name in (b"van gogh", b"monet", b"snoopy") if name in content]
    for file, before in ((first, base), (second, first)):
        assert main(["verify", str(file), "--base", str(before), "--quiet"]) == 0
    erase(second, "Snoopy -> dog", tmp_path / "c", "--save", "recipe,checkpoint")
    (recipe,) = (tmp_path / "c").glob("*-recipe.json")
    given = ["--recipe", str(recipe), "--quiet"]
    assert main(["verify", str(third), "--base", str(second), *given]) == 0
    capsys.readouterr()
    assert (
        main(["apply", str(recipe), str(base), "--out", str(tmp_path / "d"), "--save", "recipe"])
        == 0
    )
    assert "2 other concepts" in capsys.readouterr().err
    assert len(json.loads(recipe.read_text())["history"]) == 2
