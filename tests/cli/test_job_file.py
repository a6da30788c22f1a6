"""A job file and the flags of `erase` are two ways to say one thing, and a hostile file is one
sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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

from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.job_file import MOST_BYTES, read_job
from speed_erase.speed_ops.cli.main import build_parser
from speed_erase.speed_ops.cli.options import job_from, outputs_from, strength_from, text_setup_from
from speed_erase.speed_ops.errors import SpeedError, UsageError

pytestmark = pytest.mark.usefixtures("own_cache")

YAML = """
model: m.safetensors
concepts:
  - Van Gogh | Vincent van Gogh -> art
  - name: Claude Monet
    aliases: [Monet]
  - {name: nudity, anchor: "", kind: implicit}
  - file: more.txt
kind: style
keep:
  lists: [artists, styles]
  files: mine.csv
  names: [Aunt Mathilda, "C# major"]
  column: who
  limit: 40
settings: {preset: few, budget: 8%, threshold: 0.5, ipf: false, seed: 7, effort: quick}
strength: 0.8
text: {encoders: [clip.safetensors], tokenizer: tokens, clip_skip: 2, cache: false}
output: {folder: out, save: [recipe, lora], name: mine, force: true, strict: true, redact: true, salt_file: salt}
"""

TOML = """
model = "m.safetensors"
concepts = [
  "Van Gogh | Vincent van Gogh -> art",
  {name = "Claude Monet", aliases = ["Monet"]},
  {name = "nudity", anchor = "", kind = "implicit"},
  {file = "more.txt"},
]
kind = "style"
strength = 0.8
[keep]
lists = ["artists", "styles"]
files = "mine.csv"
names = ["Aunt Mathilda", "C# major"]
column = "who"
limit = 40
[settings]
preset = "few"
budget = "8%"
threshold = 0.5
ipf = false
seed = 7
effort = "quick"
[text]
encoders = ["clip.safetensors"]
tokenizer = "tokens"
clip_skip = 2
cache = false
[output]
folder = "out"
save = ["recipe", "lora"]
name = "mine"
force = true
strict = true
redact = true
salt_file = "salt"
"""

FLAGS = [
    "--concepts",
    "Van Gogh | Vincent van Gogh -> art",
    "--concepts",
    "Claude Monet | Monet",
    "--strength",
    "0.8",
]
FLAGS += [
    "--concepts-file",
    "more.txt",
    "--retain",
    "artists,styles",
    "--retain-file",
    "mine.csv",
    "--preset",
    "few",
]
FLAGS += [
    "--retain-column",
    "who",
    "--retain-limit",
    "40",
    "--budget",
    "8%",
    "--threshold",
    "0.5",
    "--no-ipf",
]
FLAGS += [
    "--seed",
    "7",
    "--effort",
    "quick",
    "--text-encoder",
    "clip.safetensors",
    "--tokenizer",
    "tokens",
]
FLAGS += [
    "--clip-skip",
    "2",
    "--no-cache",
    "--save",
    "lora,recipe",
    "--name",
    "mine",
    "--force",
    "--strict",
]
FLAGS += ["--redact", "--salt-file", "salt", "--out", "out"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lists that the jobs name, and the jobs."""
    (tmp_path / "more.txt").write_text("Frida Kahlo -> painter  # a comment")
    (tmp_path / "mine.csv").write_text("who,when\nUncle Oswald,1920\n")
    (tmp_path / "salt").write_text("sea")
    (tmp_path / "job.yaml").write_text(YAML)
    (tmp_path / "job.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def meaning(args: argparse.Namespace) -> tuple[Any, ...]:
    """All that the arguments decide."""
    notes: list[str] = []
    outputs = outputs_from(args, notes.append, args.name)
    text = text_setup_from(args)
    job = job_from(args, notes.append)
    lines = [(one.as_line(), one.kind) for one in job.concepts]
    encoding = dataclasses.replace(text, cache=None), text.cache is None
    return lines, job.retain.names, job.settings, job.plan, strength_from(args), outputs, encoding


def test_yaml_toml_and_flags_say_the_same(folder: Path) -> None:
    models, order = read_job(Path("job.yaml"))
    assert models == [Path("m.safetensors")]
    in_yaml, in_toml = meaning(order), meaning(read_job(Path("job.toml"))[1])
    assert in_yaml == in_toml
    flags = meaning(build_parser().parse_args(["erase", "m.safetensors", *FLAGS]))
    assert [line for line in in_yaml[0] if line[0] != "nudity ->"] == flags[0]
    assert ("nudity ->", "implicit") in in_yaml[0] and "C# major" in order.retain_names
    assert in_yaml[2:] == flags[2:]


def test_paths_are_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    models, order = read_job(Path("../job.yaml"))
    paths = [
        *models,
        *order.concepts_file,
        *order.retain_file,
        *order.text_encoder,
        order.tokenizer,
        order.out,
    ]
    assert all(path.parent.resolve() == folder.resolve() for path in (*paths, order.salt_file))
    (folder / "absolute.yaml").write_text(
        "model: /m.safetensors\nconcepts: [a]\noutput: {folder: ~/out}"
    )
    models, order = read_job(folder / "absolute.yaml")
    assert models == [Path("/m.safetensors")] and order.out == Path.home() / "out"


PRINTED = [
    ["--concepts", "a -> b"],
    ["--concepts", "a #7 -> b\nc | d ->", "--kind", "object", "--retain", "none"],
    ["--concepts", "yes -> no", "--concepts", "1984", "--strength", "-0.5", "--name", "007"],
    ["--concepts", "Théophile → “art”", "--budget", "0.08", "--layers", "KV", "--held-out", "0"],
    [flag for flag in FLAGS if flag not in ("--out", "out")],
]


@pytest.mark.parametrize("flags", PRINTED)
def test_a_printed_job_says_what_the_command_says(
    folder: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["erase", "dir/m.safetensors", *flags, "--out", "out"]
    assert main([*arguments, "--print-job"]) == 0
    printed = capsys.readouterr().out
    (folder / "printed.yaml").write_text(printed, encoding="utf-8")
    models, order = read_job(Path("printed.yaml"))
    assert models == [Path("dir/m.safetensors")]
    assert meaning(order) == meaning(build_parser().parse_args(arguments))
    assert main([*arguments, "--print-job", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == yaml.safe_load(printed)
    assert not (folder / "out").exists()


def test_a_printed_job_holds_no_secret(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "erase",
        "m.safetensors",
        "--concepts",
        "a",
        "--out",
        "out",
        "--redact",
        "--salt",
        "tell nobody",
    ]
    assert main([*arguments, "--print-job"]) == 0
    out = capsys.readouterr()
    assert "tell nobody" not in out.out and "redact: true" in out.out and "holds no salt" in out.err
    assert main(
        ["erase", "m.safetensors", "--concepts-file", "-", "--out", "out", "--print-job"]
    ) in (1, 2)


WRONG = {
    "modle: m.safetensors": "did you mean 'model'?",
    "model: m\nconcepts: [a]\noutput: {folder: o}\nsetings: {}": "did you mean 'settings'?",
    "model: m\nconcepts: [a]\noutput: {foldr: o}": "did you mean 'folder'?",
    "model: m\nconcepts: [a]\noutput: {folder: o}\nsettings: {treshold: 1}": (
        "did you mean 'threshold'?"
    ),
    "model: m\nconcepts: [{nmae: a}]\noutput: {folder: o}": "did you mean 'name'?",
    "model: m\nconcepts: [{name: a, file: b}]\noutput: {folder: o}": "`name`, or a `file` alone",
    "model: m\nconcepts: [{anchor: a}]\noutput: {folder: o}": "give its `name`",
    "model: m\nconcepts: [1984]\noutput: {folder: o}": "put it in quotes",
    "model: m\nconcepts: [{name: yes}]\noutput: {folder: o}": "put it in quotes",
    "model: m\nconcepts: [{name: a -> b}]\noutput: {folder: o}": "an arrow",
    "model: m\nconcepts: [{name: a, aliases: [b | c]}]\noutput: {folder: o}": "contains '|'",
    'model: m\nconcepts: [{name: "a -\\u200b> b"}]\noutput: {folder: o}': "an arrow",
    "model: m\nconcepts: [{name: a, kind: smell}]\noutput: {folder: o}": "smell",
    "model: m\nconcepts: []\noutput: {folder: o}": "nothing to erase",
    "model: m\nconcepts: [a]": "where the results go",
    "concepts: [a]\noutput: {folder: o}": "`model`",
    "model: m\nmodels: [n]\nconcepts: [a]\noutput: {folder: o}": "not both",
    "models: []\nconcepts: [a]\noutput: {folder: o}": "names no model",
    "model: {a: b}\nconcepts: [a]\noutput: {folder: o}": "must be a path",
    "model: m\nconcepts: [a]\noutput: [o]": "mapping",
    "model: m\nconcepts: [a]\noutput: {folder: o, force: 1}": "true or false",
    "model: m\nconcepts: [a]\noutput: {folder: o, save: [everything]}": "everything",
    "model: m\nconcepts: [a]\noutput: {folder: o, redact: true}": "--redact needs a salt",
    "model: m\nconcepts: [a]\noutput: {folder: o}\nstrength: .nan": "strength is nan",
    "model: m\nconcepts: [a]\noutput: {folder: o}\nstrength: true": "must be a number",
    "model: m\nconcepts: [a]\noutput: {folder: o}\nkeep: {limit: 2.5}": "whole number",
    "model: m\nconcepts: [a]\noutput: {folder: o}\nkeep: {lists: [artist]}": (
        "did you mean 'artists'?"
    ),
    "model: m\nconcepts: [a]\noutput: {folder: o}\nsettings: {threshold: high}": "threshold",
    "model: m\nconcepts: [a]\noutput: {folder: o}\nsettings: {preset: [few]}": "`settings.preset`",
    "model: m\nmodel: n": "'model' occurs twice",
    "a: &x [1]\nb: *x": "refers to another place",
    "[" * 100: "nested too deeply",
    "- model": "must be a mapping",
    "model: !!python/object/apply:os.system [id]": "cannot be read as YAML",
    "model: 2024-01-01": "put it in quotes",
    "? [a, b]\n: c": "cannot be read as YAML",
    "model: m\n  bad: [": "cannot be read as YAML",
    "model: " + "9" * 5000: "cannot be read as YAML",
    "": "must be a mapping",
    "--- 1\n--- 2": "cannot be read as YAML",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_makes_no_sense_is_one_sentence(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPEED_ERASE_SALT", raising=False)
    (folder / "bad.yaml").write_text(text)
    before = sorted(folder.rglob("*"))
    assert main(["run", "bad.yaml"]) == 2
    said = capsys.readouterr().err
    assert (
        WRONG[text] in said and len(said.splitlines()) == 1 and sorted(folder.rglob("*")) == before
    )


def test_bad_toml_is_one_sentence_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("model = ", "a = " + "[" * 100_000, "model = 1\nmodel = 2", "model = 1979-05-27"):
        (folder / "bad.toml").write_text(text)
        assert main(["run", "bad.toml"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_no_job_costs_much(folder: Path) -> None:
    """References that stand for 10^9 entries, keys without end, and a file without end."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    keys = "\n".join(f"k{n}: 1" for n in range(20_000))
    for text in ("\n".join(lines), keys):
        (folder / "bad.yaml").write_text(text)
        started = time.monotonic()
        with pytest.raises(UsageError):
            read_job(Path("bad.yaml"))
        assert time.monotonic() - started < 20
    (folder / "bad.yaml").write_text("#" * (MOST_BYTES + 1))
    with pytest.raises(SpeedError, match="longer than 500 kB"):
        read_job(Path("bad.yaml"))


WORDS = (
    "model",
    "models",
    "concepts",
    "output",
    "folder",
    "settings",
    "preset",
    "keep",
    "text",
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
    words=st.lists(st.sampled_from(WORDS), max_size=40), suffix=st.sampled_from(["yaml", "toml"])
)
def test_no_file_is_more_than_a_sentence(folder: Path, words: list[str], suffix: str) -> None:
    (folder / f"any.{suffix}").write_text("".join(words), encoding="utf-8")
    with contextlib.suppress(SpeedError):
        models, order = read_job(Path(f"any.{suffix}"))
        assert models and order.out is not None


@pytest.mark.parametrize("name", ["missing.yaml", "job.json", "job", "folder.yaml"])
def test_what_is_no_job_file_is_refused(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "folder.yaml").mkdir()
    assert main(["run", name]) in (1, 2)
    assert len(capsys.readouterr().err.splitlines()) == 1


def small(*models: Path, out: Path) -> dict[str, Any]:
    return {
        **(
            {"model": str(models[0])}
            if len(models) == 1
            else {"models": [str(model) for model in models]}
        ),
        "concepts": [mini.CONCEPTS],
        "keep": {"lists": ["artists"], "limit": 12},
        "settings": {"preset": "few"},
        "output": {"folder": str(out), "save": ["lora", "recipe"]},
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
    assert main(["run", "job.yaml", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)["error"]
    assert said["code"] == "missing-package" and "pip install 'speed-erase[cli]'" in said["message"]
    assert read_job(Path("job.toml"))[0] == [Path("m.safetensors")]
