"""A recipe that a person wrote and the flags of `erase` ask for the same; a hostile file is one
sentence.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import mini
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speed_erase.speed_ops.checkpoints.output_files import PRODUCTS
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.options import job_from, strength_from
from speed_erase.speed_ops.cli.parser import build_parser
from speed_erase.speed_ops.errors import SpeedError
from speed_erase.speed_ops.files.schema import MAX_YAML_BYTES
from speed_erase.speed_ops.recipe import Recipe, RunFields, job_of

pytestmark = pytest.mark.usefixtures("own_cache")

YAML = """
model: m.safetensors
concepts:
  - Van Gogh | Vincent van Gogh -> art
  - target: Claude Monet
    aliases: [Monet]
  - {target: nudity, anchor: "", kind: theme}
  - file: more.txt
kind: style
retain:
  - artists
  - {file: mine.csv, column: who}
  - {names: [Aunt Mathilda, "C# major"]}
retain_limit: 4000
settings: {preset: few, priority: 8%, threshold: 0.5, ipf: false, seed: 7, effort: fast}
strength: 0.8
clip_skip: 2
text_encoders: clip.safetensors
tokenizer: tokens
cache: false
output: out
save: [recipe, lora]
name: mine
force: true
strict: true
no_names: true
"""
FLAGS = ["--concepts", "Van Gogh | Vincent van Gogh -> art", "--concepts", "Claude Monet | Monet"]
FLAGS += ["--concepts", "nudity -> || theme", "--concepts-file", "more.txt"]
FLAGS += ["--retain", "artists", "--retain-file", "mine.csv", "--retain-column", "who"]
FLAGS += ["--preset", "few", "--priority", "8%", "--set", "threshold=0.5", "--set", "ipf=false"]
FLAGS += ["--set", "seed=7", "--effort", "fast", "--strength", "0.8", "--out", "out"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lists that the recipe names, and the recipe."""
    (tmp_path / "more.txt").write_text("Frida Kahlo -> painter  # a comment")
    (tmp_path / "mine.csv").write_text("who,when\nUncle Oswald,1920\n")
    (tmp_path / "r.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_recipe_and_flags_ask_for_the_same(folder: Path) -> None:
    stored = job_of(Recipe.read(folder / "r.yaml"))
    args = build_parser().parse_args(["erase", "m.safetensors", *FLAGS])
    job = job_from(args, lambda note: None)
    assert [(item.as_line(), item.kind) for item in stored.job.concepts] == [
        (item.as_line(), item.kind) for item in job.concepts
    ]
    assert stored.job.retain.names == (*job.retain.names, "Aunt Mathilda", "C# major")
    assert (stored.job.settings, stored.job.plan) == (job.settings, job.plan)
    assert (stored.strength, stored.clip_skip) == (strength_from(args), -2)


def test_five_lines_are_enough_and_json_is_as_good(folder: Path) -> None:
    short = {"model": "m.safetensors", "concepts": ["Van Gogh"], "output": "out"}
    (folder / "s.yaml").write_text(yaml.safe_dump(short))
    (folder / "s.json").write_text(json.dumps(short))
    recipe = Recipe.read(folder / "s.yaml")
    assert recipe == Recipe.read(folder / "s.json")
    args = build_parser().parse_args(["erase", "m", "--concepts", "Van Gogh", "--out", "out"])
    stored, job = job_of(recipe).job, job_from(args, lambda note: None)
    assert (stored.retain.names, stored.settings, stored.plan) == (
        job.retain.names,
        job.settings,
        job.plan,
    )


def test_run_fields_are_read_and_paths_are_relative_to_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    here = Path("..")
    assert Recipe.read(here / "r.yaml").run == RunFields(
        models=(here / "m.safetensors",),
        output=here / "out",
        save=("recipe", "lora"),
        name="mine",
        force=True,
        strict=True,
        no_names=True,
        text_encoders=(here / "clip.safetensors",),
        tokenizer=here / "tokens",
        cache=False,
    )
    (folder / "a.yaml").write_text("model: /m.safetensors\nconcepts: [a]\noutput: ~/out")
    run = Recipe.read(folder / "a.yaml").run
    assert run.models == (Path("/m.safetensors"),) and run.output == Path.home() / "out"


GOOD = "model: m\nconcepts: [a]\noutput: o\n"
WRONG = [
    "modle: m.safetensors",
    GOOD + "setings: {}",
    GOOD + "settings: {treshold: 1}",
    GOOD + "settings: {threshold: high}",
    GOOD + "settings: {preset: [few]}",
    GOOD + "force: 1",
    GOOD + "save: [everything]",
    GOOD + "strength: .nan",
    GOOD + "strength: true",
    GOOD + "retain_limit: 2.5",
    GOOD + "retain: [artist]",
    GOOD + "name: a/b",
    "model: m\nconcepts: [a]",
    "concepts: [a]\noutput: o",
    "model: []\nconcepts: [a]\noutput: o",
    "model: {a: b}\nconcepts: [a]\noutput: o",
    "model: m\noutput: o\nconcepts: []",
    "model: m\noutput: o\nconcepts: [{tagret: a}]",
    "model: m\noutput: o\nconcepts: [{target: a, file: b}]",
    "model: m\noutput: o\nconcepts: [{anchor: a}]",
    "model: m\noutput: o\nconcepts: [1984]",
    "model: m\noutput: o\nconcepts: [{target: yes}]",
    "model: m\noutput: o\nconcepts: [{target: a, kind: smell}]",
    "model: m\nmodel: n",
    "a: &x [1]\nb: *x",
    "[" * 100,
    "- model",
    "model: !!python/object/apply:os.system [id]",
    "model: 2024-01-01\nconcepts: [a]\noutput: o",
    "? [a, b]\n: c",
    "model: m\n  bad: [",
    "model: " + "9" * 5000,
    "",
    "--- 1\n--- 2",
]


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_makes_no_sense_is_one_sentence(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.yaml").write_text(text)
    before = sorted(folder.rglob("*"))
    assert main(["run", "bad.yaml", "--json"]) in (1, 2)
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["code"] in ("file", "usage", "settings", "input")
    assert len(captured.err.splitlines()) == 1 and sorted(folder.rglob("*")) == before


def test_a_misspelled_field_is_answered_with_the_nearest(folder: Path) -> None:
    (folder / "bad.yaml").write_text(GOOD + "setings: {}")
    with pytest.raises(SpeedError, match="did you mean 'settings'"):
        Recipe.read(folder / "bad.yaml")


def test_no_recipe_costs_much(folder: Path) -> None:
    """References that expand to 10^9 entries, keys without end, and a file without end."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    keys = "\n".join(f"k{n}: 1" for n in range(20_000))
    for text in ("\n".join(lines), keys, "#" * (MAX_YAML_BYTES + 1)):
        (folder / "bad.yaml").write_text(text)
        started = time.monotonic()
        with pytest.raises(SpeedError):
            Recipe.read(folder / "bad.yaml")
        assert time.monotonic() - started < 20


WORDS = (
    "model",
    "concepts",
    "output",
    "file",
    "settings",
    "preset",
    "retain",
    "target",
    ": ",
    "- ",
    "\n",
    "  ",
)
WORDS += (
    "{",
    "}",
    "[",
    "]",
    "&a",
    "*a",
    "<<: ",
    "!!set ",
    "!!binary ",
    "? ",
    "|",
    ">",
    "'",
    '"',
    "#",
    "%",
    "@",
    "---",
    "a",
)
WORDS += (
    "1",
    ".inf",
    "0x",
    "1:30:00",
    "2024-13-45",
    "~",
    "null",
    "yes",
    "\t",
    "\0",
    "\x1b",
    "é",
    "=",
    "[[",
    "]]",
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    words=st.lists(st.sampled_from(WORDS), max_size=40), suffix=st.sampled_from(["yaml", "json"])
)
def test_no_file_is_more_than_a_sentence(folder: Path, words: list[str], suffix: str) -> None:
    (folder / f"any.{suffix}").write_text("".join(words), encoding="utf-8")
    with contextlib.suppress(SpeedError):
        assert job_of(Recipe.read(folder / f"any.{suffix}")).job.concepts


@pytest.mark.parametrize("name", ["missing.yaml", "missing.json", "r", "folder.yaml"])
def test_what_is_not_a_recipe_is_refused(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "folder.yaml").mkdir()
    assert main(["run", name]) in (1, 2)
    assert len(capsys.readouterr().err.splitlines()) == 1


def small(*models: Path, out: Path) -> dict[str, Any]:
    return {
        "model": [str(model) for model in models],
        "concepts": [mini.CONCEPTS],
        "retain": ["artists"],
        "retain_limit": 12,
        "settings": {"preset": "few"},
        "output": str(out),
        "save": ["lora", "recipe"],
    }


def test_a_job_does_what_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mini.write_model(tmp_path / "a.safetensors")
    mini.write_model(tmp_path / "b.safetensors", seed=1)
    common = [
        "erase",
        str(tmp_path / "a.safetensors"),
        "--concepts",
        mini.CONCEPTS,
        *mini.QUICK,
        "--quiet",
    ]
    assert main([*common, "--save", "lora,recipe", "--out", str(tmp_path / "by flags")]) == 0

    (tmp_path / "one.yaml").write_text(
        yaml.safe_dump(small(Path("a.safetensors"), out=Path("by file")))
    )
    assert main(["run", str(tmp_path / "one.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"].keys() == {"lora", "recipe"}
    recipes = [(tmp_path / name / "a-recipe.json").read_bytes() for name in ("by flags", "by file")]
    assert recipes[0] == recipes[1]

    class Typed:
        buffer = io.BytesIO(json.dumps(small(Path("a.safetensors"), out=Path("typed"))).encode())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", Typed)
    assert main(["run", "-", "--quiet"]) == 0
    assert (tmp_path / "typed" / "a-recipe.json").read_bytes() == recipes[0]

    written = ["run", "by file/a-recipe.json", "--model", "b.safetensors", "--quiet"]
    assert main(written) == 2, "it does not say where the results go"
    assert main([*written, "--out", "again"]) == 0
    assert len(list((tmp_path / "again").iterdir())) == len(PRODUCTS)


def test_several_models_go_one_after_the_other_and_are_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mini.write_model(tmp_path / "a.safetensors")
    mini.write_model(tmp_path / "b.safetensors", seed=1)
    (tmp_path / "broken.safetensors").write_bytes(b"")
    models = [Path(f"{name}.safetensors") for name in ("a", "broken", "b")]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(small(*models, out=Path("out"))))
    for status in ("cleaned", "skipped"):
        assert main(["run", str(tmp_path / "job.yaml"), "--json-lines"]) == 1
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one.get("status") for one in said] == [status, "failed", status, None]
    assert len(list((tmp_path / "out").iterdir())) == 4
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump(small(models[0], models[0], out=Path("out2")))
    )
    assert main(["run", str(tmp_path / "job.yaml")]) == 1
    assert "would both be written" in capsys.readouterr().err


def test_without_the_package_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["run", "r.yaml", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)["error"]
    assert said["code"] == "missing-package" and "pip install 'speed-erase[cli]'" in said["message"]
