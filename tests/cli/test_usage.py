"""Flags, exit codes, and one sentence for every fault."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import io
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mini
import pico
import pytest
import torch
from safetensors.torch import save_file

from speed_erase.speed_ops.cli import machine_commands
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.main import build_parser
from speed_erase.speed_ops.cli.options import job_from, settings_from, text_setup_from
from speed_erase.speed_ops.cli.parser import COMMANDS
from speed_erase.speed_ops.engine.settings import PRESETS, EraseSettings
from speed_erase.speed_ops.errors import (
    ERROR_CODES,
    ExistsError,
    FileError,
    InputError,
    SpeedError,
    error_code,
)
from speed_erase.speed_ops.job import HELD_OUT_SHARE

ERASE = ["erase", "m.safetensors", "--concepts", "a -> b", "--out", "out"]


def subparsers() -> dict[str, argparse.ArgumentParser]:
    action = next(
        one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction)
    )
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
    more = [
        "--threshold",
        "0.5",
        "--ipf",
        "--no-iec",
        "--layers",
        "KV",
        "--seed",
        "7",
        "--held-out",
        "0",
    ]
    settings = settings_from(build_parser().parse_args([*ERASE, *more]))
    wanted = {
        "threshold": 0.5,
        "ipf": True,
        "iec": False,
        "layers": "KV",
        "seed": 7,
        "held_out": 0.0,
    }
    assert settings == EraseSettings.preset("auto", **wanted)


@pytest.mark.parametrize("name", ["", *(add.__name__.removeprefix("add_") for add in COMMANDS)])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*([name] if name else []), "--help"]) == 0
    assert "usage: speed-erase" in capsys.readouterr().out


def test_help_needs_neither_rich_nor_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "transformers", "tokenizers"):
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
    done = subprocess.run(
        [*command, "inspect no-such.safetensors"], capture_output=True, text=True, check=True
    )
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
        [*ERASE, "--salt-file", "x"],
        [*ERASE, "--redact"],
        [*ERASE, "--redact", "--salt", ""],
        [*ERASE, "--redact", "--salt", "x", "--salt-file", "y"],
        [*ERASE, "--redact", "--salt", "\udcff"],
        [*ERASE, "--clip-skip", "0"],
        [*ERASE, "--strength", "nan"],
        ["erase", "m.safetensors", "--concepts", "a -> b -> c", "--out", "out"],
        ["erase", "m.safetensors", "--concepts", "a -> a", "--out", "out"],
        ["bench", "--concepts", "0"],
        ["batch", "--recipe", "r.json", "--in", ".", "--out", "out", "--jobs", "0"],
    ],
)
def test_bad_usage_is_exit_code_2(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out = capsys.readouterr()
    assert out.out == "" and "Traceback" not in out.err
    assert list(tmp_path.iterdir()) == []


def _lora(path: Path) -> None:
    save_file(
        {
            "lora_unet_x.lora_up.weight": torch.ones(2, 2),
            "lora_unet_x.lora_down.weight": torch.ones(2, 2),
        },
        path,
    )


def _flux(path: Path) -> None:
    keys = ("double_blocks.0.img_attn.qkv.weight", "txt_in.weight")
    save_file({key: torch.ones(2, 2) for key in keys}, path)


def _sd3(path: Path) -> None:
    save_file(
        {"model.diffusion_model.joint_blocks.0.context_block.attn.qkv.weight": torch.ones(2, 2)},
        path,
    )


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
        [
            "erase",
            str(tmp_path / name),
            "--concepts",
            "a -> b",
            *mini.QUICK,
            "--out",
            str(tmp_path / "new" / "out"),
        ]
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
    code = main(
        ["erase", str(tmp_path / "m.safetensors"), "--concepts", "a -> b", "--out", str(tmp_path)]
    )
    assert code == 1 and "already exists" in capsys.readouterr().err
    assert (tmp_path / "m-recipe.json").read_text() == "mine"


def test_output_must_not_be_the_input(tmp_path: Path) -> None:
    pico.write_checkpoint(tmp_path / "m-erased.safetensors")
    before = (tmp_path / "m-erased.safetensors").read_bytes()
    arguments = [
        "erase",
        str(tmp_path / "m-erased.safetensors"),
        "--concepts",
        "a -> b",
        "--out",
        str(tmp_path),
    ]
    assert main([*arguments, "--name", "m", "--force", "--save", "checkpoint"]) == 1
    assert (tmp_path / "m-erased.safetensors").read_bytes() == before


def test_cache_and_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path))
    assert main(["cache", "--clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == 0
    assert main(["bench", "--concepts", "1", "--retain", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["all"] > 0


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("some", 0.3),
        ("hardly", 0.05),
        ("8%", 0.08),
        ("0.08", 0.08),
        (" 12.5 % ", 0.125),
        ("1", 1.0),
    ],
)
def test_a_budget_is_a_word_or_a_number(said: str, meant: float) -> None:
    args = build_parser().parse_args([*ERASE, "--budget", said])
    assert settings_from(args).drift_budget == pytest.approx(meant)


@pytest.mark.parametrize(
    ("said", "why"),
    [("8", "write 8%"), ("lots", "say hardly"), ("sme", "did you mean"), ("", "say")],
)
def test_another_budget_is_refused_with_the_right_spelling(said: str, why: str) -> None:
    with pytest.raises(SpeedError, match=why):
        settings_from(build_parser().parse_args([*ERASE, "--budget", said]))


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["ersae"], "'erase'"),
        (["--versoin"], "'--version'"),
        (["erase", "m.safetensors", "--concpets", "a -> b", "--out", "out"], "'--concepts'"),
        (["erase", "m.safetensors", "--concepts", "a -> b", "--otu", "out"], "'--out'"),
        (["erase", "m.safetensors", "--concepts=a -> b", "--otu=out"], "'--out'"),
        ([*ERASE, "--preset", "implict"], "'implicit'"),
        ([*ERASE, "--kind", "stile"], "'style'"),
        ([*ERASE, "--retain", "artist"], "'artists'"),
        ([*ERASE, "--device", "cdua"], "'cuda'"),
    ],
)
def test_the_nearest_name_is_offered(
    arguments: list[str],
    near: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert f"did you mean {near}?" in said and len(said.splitlines()) == 1


def test_what_is_like_no_name_is_offered_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert "There is no command 'xyzzy': choose from erase," in capsys.readouterr().err


def test_a_value_that_looks_like_a_flag_is_a_value() -> None:
    args = build_parser().parse_args([*ERASE, "--concepts", "--verso in the style"])
    assert [part.text for part in args.concepts] == ["a -> b", "--verso in the style"]


WRONG = {
    "usage": ["erase", "m.safetensors"],
    "unsupported-model": ["erase", "lora.safetensors", "--concepts", "a -> b", "--out", "out"],
    "not-found": ["run", "missing.yaml"],
    "file": ["inspect", "empty.safetensors"],
    "settings": ["apply", "high.json", "m.safetensors", "--out", "out"],
    "input": ["erase", "m.safetensors", "--concepts-file", "bad.txt", "--out", "out"],
}


@pytest.mark.parametrize("code", WRONG)
@pytest.mark.parametrize("where", ["", "first"])
def test_errors_are_json_for_programs(
    code: str,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    _lora(Path("lora.safetensors"))
    Path("empty.safetensors").write_bytes(b"")
    Path("bad.txt").write_text("a -> b -> c")
    recipe = {
        "schema": "speed.recipe",
        "version": "1.0",
        "seed": 0,
        "concepts": [{"target": "a", "kind": "style"}],
    }
    Path("high.json").write_text(json.dumps(recipe | {"settings": {"threshold": "high"}}))
    arguments = [WRONG[code][0], "--json", *WRONG[code][1:]] if where else [*WRONG[code], "--json"]
    exit_code = main(arguments)
    out = capsys.readouterr()
    said = json.loads(out.out)
    assert said.keys() == {"error"} and said["error"].keys() == {"code", "message"}
    assert said["error"]["code"] == code and exit_code == (2 if code == "usage" else 1)
    assert out.err == f"speed-erase: {said['error']['message']}\n"


def _fault(kind: type[SpeedError], cause: BaseException | None) -> SpeedError:
    fault = kind("It failed.")
    fault.__cause__ = cause
    return fault


def test_what_the_system_says_tells_files_apart() -> None:
    assert error_code(_fault(FileError, OSError(errno.ENOSPC, "full"))) == "no-space"
    assert (
        error_code(_fault(FileError, _fault(FileError, OSError(errno.ENOSPC, "full"))))
        == "no-space"
    )
    assert error_code(_fault(FileError, _fault(ExistsError, None))) == "exists"
    assert error_code(_fault(FileError, PermissionError(errno.EACCES, "no"))) == "permission"
    assert error_code(_fault(FileError, ValueError("no number"))) == "file"
    assert error_code(_fault(InputError, OSError(errno.ENOSPC, "full"))) == "input"


def _kinds(base: type[SpeedError]) -> set[type[SpeedError]]:
    return {base}.union(*(_kinds(kind) for kind in base.__subclasses__()))


def test_the_page_lists_every_code_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    table = page.partition("| code |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(ERROR_CODES)
    others = (KeyboardInterrupt(), MemoryError(), ImportError(), RuntimeError())
    said = {kind.code for kind in _kinds(SpeedError)} | {error_code(fault) for fault in others}
    said |= {error_code(_fault(FileError, OSError(number, ""))) for number in errno.errorcode}
    assert said == set(ERROR_CODES)


def test_memory_and_missing_packages_have_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for fault, code in (
        (MemoryError(), "memory"),
        (ImportError("no rich"), "missing-package"),
        (OSError(), "unexpected"),
    ):

        def fail(*_: object, fault: Exception = fault) -> None:
            raise fault

        monkeypatch.setattr(machine_commands, "run_cache", fail)
        assert main(["cache", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_a_hash_is_part_of_a_typed_name() -> None:
    args = build_parser().parse_args(
        ["erase", "m.safetensors", "--concepts", "artist #7 -> art", "--out", "out"]
    )
    assert [one.target for one in job_from(args, print).concepts] == ["artist #7"]


@pytest.mark.parametrize("said", ["@list.txt", "@./concepts"])
def test_a_file_is_not_taken_for_a_name(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["erase", "m.safetensors", "--concepts", said, "--out", "out"]) == 2
    assert "--concepts-file" in capsys.readouterr().err


def test_lists_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Typed:
        buffer = io.BytesIO(b"Van Gogh -> art\nClaude Monet")

    monkeypatch.setattr(sys, "stdin", Typed)
    args = build_parser().parse_args(
        ["erase", "m.safetensors", "--concepts-file", "-", "--out", "out"]
    )
    assert [one.target for one in job_from(args, print).concepts] == ["Van Gogh", "Claude Monet"]


def test_standard_input_is_read_once(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "erase",
        "m.safetensors",
        "--concepts-file",
        "-",
        "--retain-file",
        "-",
        "--out",
        "out",
    ]
    assert main(arguments) == 2 and "only once" in capsys.readouterr().err


def test_what_is_odd_about_the_lists_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keep.txt").write_text("Claude\u200b Monet", encoding="utf-8")
    arguments = ["erase", str(tmp_path / "m.safetensors"), "--concepts", "Van\u200b Gogh -> art"]
    assert (
        main(
            [
                *arguments,
                "--retain-file",
                str(tmp_path / "keep.txt"),
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 1
    )
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Note: ")]
    assert len(notes) == 2 and all("nvisible" in note for note in notes)


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        (["--device", "mps"], 2, "double precision"),
        (["--device", "cuda:99"], 1, "CUDA"),
        (["--device", "tpu"], 2, "no device"),
        (["--threads", "0"], 2, "--threads is 0"),
        (["--threads", "100000"], 2, "cores of this machine"),
    ],
)
def test_a_machine_without_it_is_one_sentence(
    more: list[str], code: int, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pico.write_checkpoint(tmp_path / "m.safetensors")
    arguments = [
        "erase",
        str(tmp_path / "m.safetensors"),
        "--concepts",
        "a -> b",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*arguments, *more]) == code
    said = capsys.readouterr().err
    assert word in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["erase", "apply", "batch", "forecast", "verify", "probe", "run"])
def test_every_long_command_takes_a_device_and_threads(name: str) -> None:
    flags = {flag for action in subparsers()[name]._actions for flag in action.option_strings}
    assert {"--device", "--threads"} <= flags


def test_threads_are_used_by_every_thread_that_starts_later() -> None:
    before = torch.get_num_threads()
    try:
        args = build_parser().parse_args([*ERASE, "--threads", "1", "--device", "cpu"])
        text_setup_from(args)
        with ThreadPoolExecutor(1) as pool:
            assert torch.get_num_threads() == pool.submit(torch.get_num_threads).result() == 1
    finally:
        torch.set_num_threads(before)
