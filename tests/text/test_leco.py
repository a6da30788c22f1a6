"""LECO prompt files as concept lists."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from speed_erase.speed_ops.errors import InputError
from speed_erase.speed_ops.text import leco
from speed_erase.speed_ops.text.concept_list import read_concepts
from speed_erase.speed_ops.text.kinds import KINDS

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is new in Python 3.11")
FILE = """
[[prompts]]
target = "van gogh"
positive = "van gogh"
unconditional = ""
neutral = ""
action = "erase"
guidance_scale = 1.0
resolution = 512

[[prompts]]
target = "claude monet"
positive = "monet style"
neutral = "oil painting"
"""


def read(folder: Path, text: str):
    path = folder / "prompts.toml"
    path.write_text(text, encoding="utf-8")
    return read_concepts(path, "style")


@needs_toml
def test_an_erase_entry_is_a_concept(tmp_path: Path) -> None:
    first, second = read(tmp_path, FILE)
    assert (first.target, first.aliases, first.anchor) == ("van gogh", (), KINDS["style"].anchor)
    assert (second.target, second.aliases) == ("claude monet", ("monet style",))
    assert (second.anchor, second.line, second.source) == ("oil painting", 2, "prompts.toml")


@needs_toml
@pytest.mark.parametrize(
    "text",
    [
        "",
        "prompts = 3",
        "prompts = [3]",
        "[[prompts]]\n",
        "[[prompts]]\ntarget = 3",
        '[[prompts]]\ntarget = "x"\naction = "enhance"',
        '[[prompts]]\ntarget = "x"\nneutral = "x"',
        '[[prompts]]\ntarget = "x -> y"',
        "[[prompts]",
        "a = " + "[" * 5000,
    ],
)
def test_anything_else_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        read(tmp_path, text)


def test_an_old_python_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leco, "tomllib", None)
    with pytest.raises(InputError):
        read(tmp_path, FILE)
