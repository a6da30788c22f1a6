"""Flags, exit codes, and one sentence for every fault."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import mini
import pico
import pytest
import torch
from safetensors.torch import save_file

from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.main import COMMANDS, build_parser
from speed_erase.speed_ops.cli.options import settings_from
from speed_erase.speed_ops.engine.settings import PRESETS, EraseSettings
from speed_erase.speed_ops.errors import SpeedError
from speed_erase.speed_ops.job import HELD_OUT_SHARE

ERASE = ["erase", "m.safetensors", "--concepts", "a -> b", "--out", "out"]


def subparsers() -> dict[str, argparse.ArgumentParser]:
    action = next(one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(action.choices)


def test_flags_are_the_settings() -> None:
    fields = {item.name for item in dataclasses.fields(EraseSettings)}
    for name in ("erase", "forecast"):
        flags = {action.dest: action for action in subparsers()[name]._actions}
        assert fields <= flags.keys()
        for item in dataclasses.fields(EraseSettings):
            flag = flags[item.name]
            if item.name != "preset_name":
                own = item.name == "drift_budget"  # people say it in words
                assert own or flag.help.replace("%%", "%").startswith(item.metadata["help"])
                assert flag.default is None
                assert own == ("--budget" in flag.option_strings)
                assert own or f"--{item.name.replace('_', '-')}" in flag.option_strings


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_alone_gives_the_preset(preset: str) -> None:
    args = build_parser().parse_args([*ERASE, "--preset", preset])
    assert settings_from(args) == EraseSettings.preset(preset, held_out=HELD_OUT_SHARE)


def test_flags_change_the_preset() -> None:
    more = ["--threshold", "0.5", "--ipf", "--no-iec", "--layers", "KV", "--seed", "7", "--held-out", "0"]
    settings = settings_from(build_parser().parse_args([*ERASE, *more]))
    wanted = {"threshold": 0.5, "ipf": True, "iec": False, "layers": "KV", "seed": 7, "held_out": 0.0}
    assert settings == EraseSettings.preset("auto", **wanted)


@pytest.mark.parametrize("name", ["", *(add.__name__.removeprefix("add_") for add in COMMANDS)])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*([name] if name else []), "--help"]) == 0
    assert "usage: speed-erase" in capsys.readouterr().out


def test_help_needs_neither_rich_nor_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "transformers", "tokenizers", "instant_clip_tokenizer"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["erase", "--help"]) == 0
    assert main(["cache", "--json"]) == 0


_LIGHT = """
from speed_erase.speed_ops.cli.main import main
codes = [main(arguments.split()) for arguments in sys.argv[1:]]
print(codes, sorted({"torch", "numpy", "transformers", "safetensors", "rich"} & set(sys.modules)))
"""


def test_help_and_bad_usage_do_not_wait_for_torch() -> None:
    """Which takes seconds to import. A real command does load it, so the check can fail."""
    wrong = "erase m.safetensors --concepts a --retain no-such-list --out out"
    arguments = ["--help", "--version", "erase --help", "batch --help", "frobnicate", wrong]
    command = [sys.executable, "-c", pico.standalone(_LIGHT)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 2, 2] []"
    done = subprocess.run([*command, "inspect no-such.safetensors"], capture_output=True, text=True, check=True)
    assert "torch" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["erase"],
        ["erase", "m.safetensors", "--out", "out"],
        [*ERASE, "--threshold", "much"],
        [*ERASE, "--threshold", "-1"],
        [*ERASE, "--dpa", "--rpa"],
        [*ERASE, "--preset", "best"],
        [*ERASE, "--kind", "smell"],
        [*ERASE, "--retain", "artist"],
        [*ERASE, "--retain-limit", "0"],
        [*ERASE, "--save", "checkpont"],
        [*ERASE, "--save", ""],
        [*ERASE, "--salt", "x"],
        [*ERASE, "--clip-skip", "0"],
        [*ERASE, "--strength", "nan"],
        ["erase", "m.safetensors", "--concepts", "a -> b -> c", "--out", "out"],
        ["erase", "m.safetensors", "--concepts", "a -> a", "--out", "out"],
        ["bench", "--concepts", "0"],
        ["batch", "--recipe", "r.json", "--in", ".", "--out", "out", "--jobs", "0"],
    ],
)
def test_bad_usage_is_exit_code_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out = capsys.readouterr()
    assert out.out == "" and "Traceback" not in out.err
    assert list(tmp_path.iterdir()) == []


def _lora(path: Path) -> None:
    save_file({"lora_unet_x.lora_up.weight": torch.ones(2, 2), "lora_unet_x.lora_down.weight": torch.ones(2, 2)}, path)


def _flux(path: Path) -> None:
    keys = ("double_blocks.0.img_attn.qkv.weight", "txt_in.weight")
    save_file({key: torch.ones(2, 2) for key in keys}, path)


def _sd3(path: Path) -> None:
    save_file({"model.diffusion_model.joint_blocks.0.context_block.attn.qkv.weight": torch.ones(2, 2)}, path)


def _no_text(path: Path) -> None:
    save_file({"conv_in.weight": torch.ones(2, 2)}, path)


def _truncated(path: Path) -> None:
    pico.write_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-100])


def _lying(path: Path) -> None:
    path.write_bytes((10**15).to_bytes(8, "little") + b"{}")


def _unet_alone(path: Path) -> None:
    save_file(mini.unet_tensors("sd1"), path)


REFUSED = {
    "m.ckpt": (lambda path: path.write_bytes(b"\x80\x02}q\x00."), "pickle"),
    "lora.safetensors": (_lora, "LoRA"),
    "flux.safetensors": (_flux, "Flux"),
    "sd3.safetensors": (_sd3, "Stable Diffusion 3"),
    "no-text.safetensors": (_no_text, "without text cross attention"),
    "truncated.safetensors": (_truncated, "bytes"),
    "lying.safetensors": (_lying, "header"),
    "empty.safetensors": (lambda path: path.write_bytes(b""), "bytes long"),
    "unet.safetensors": (_unet_alone, "no text encoder"),
    "missing.safetensors": (lambda path: None, "no file"),
    "folder": (lambda path: path.mkdir(), "no model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_model_is_one_sentence_and_exit_code_1(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, word = REFUSED[name]
    make(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    code = main(
        ["erase", str(tmp_path / name), "--concepts", "a -> b", *mini.QUICK, "--out", str(tmp_path / "new" / "out")]
    )
    out = capsys.readouterr()
    assert code == 1 and word in out.err and out.out == ""
    lines = [line for line in out.err.splitlines() if not line.startswith(("Encoding", "Note"))]
    assert len(lines) == 1 and lines[0].startswith("speed-erase: ") and lines[0].endswith(".")
    assert sorted(tmp_path.rglob("*")) == before


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no-such-file.safetensors", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_existing_files_need_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pico.write_checkpoint(tmp_path / "m.safetensors")
    (tmp_path / "m-recipe.json").write_text("mine")
    code = main(["erase", str(tmp_path / "m.safetensors"), "--concepts", "a -> b", "--out", str(tmp_path)])
    assert code == 1 and "already exists" in capsys.readouterr().err
    assert (tmp_path / "m-recipe.json").read_text() == "mine"


def test_output_must_not_be_the_input(tmp_path: Path) -> None:
    pico.write_checkpoint(tmp_path / "m-erased.safetensors")
    before = (tmp_path / "m-erased.safetensors").read_bytes()
    arguments = ["erase", str(tmp_path / "m-erased.safetensors"), "--concepts", "a -> b", "--out", str(tmp_path)]
    assert main([*arguments, "--name", "m", "--force", "--save", "checkpoint"]) == 1
    assert (tmp_path / "m-erased.safetensors").read_bytes() == before


def test_cache_and_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path))
    assert main(["cache", "--clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == 0
    assert main(["bench", "--concepts", "1", "--retain", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["all"] > 0


@pytest.mark.parametrize(
    ("said", "meant"), [("some", 0.1), ("hardly", 0.03), ("8%", 0.08), ("0.08", 0.08), (" 12.5 % ", 0.125), ("1", 1.0)]
)
def test_a_budget_is_a_word_or_a_number(said: str, meant: float) -> None:
    args = build_parser().parse_args([*ERASE, "--budget", said])
    assert settings_from(args).drift_budget == pytest.approx(meant)


@pytest.mark.parametrize(
    ("said", "why"), [("8", "write 8%"), ("lots", "say hardly"), ("sme", "did you mean"), ("", "say")]
)
def test_another_budget_is_refused_with_the_right_spelling(said: str, why: str) -> None:
    with pytest.raises(SpeedError, match=why):
        settings_from(build_parser().parse_args([*ERASE, "--budget", said]))
