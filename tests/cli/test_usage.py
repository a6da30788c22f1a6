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

from speed_erase.speed_ops.cli import cache
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.cli.commands import COMMANDS
from speed_erase.speed_ops.cli.options import job_from, settings_from, text_setup_from
from speed_erase.speed_ops.cli.parser import build_parser
from speed_erase.speed_ops.engine.settings import PRESETS, EraseSettings, priority_name
from speed_erase.speed_ops.errors import (
    ERROR_CODES,
    ExistsError,
    FileError,
    InputError,
    SettingsError,
    SpeedError,
    error_code,
    user_message,
)
from speed_erase.speed_ops.job import host_settings

ERASE = ["erase", "m.safetensors", "--concepts", "a -> b", "--out", "out"]
NAMES = [module.__name__.rpartition(".")[2].replace("_", "-") for module in COMMANDS]


def failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and the error code of a command that must fail."""
    exit_code = main([*arguments, "--json"])
    return exit_code, json.loads(capsys.readouterr().out)["error"]["code"]


def subparsers() -> dict[str, argparse.ArgumentParser]:
    action = next(
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(action.choices)


def flags(name: str) -> dict[str, argparse.Action]:
    return {
        flag: action for action in subparsers()[name]._actions for flag in action.option_strings
    }


def test_every_command_is_a_module_of_its_name() -> None:
    assert list(subparsers()) == NAMES


@pytest.mark.parametrize("name", ["erase", "forecast"])
def test_public_settings_have_a_flag_that_shows_the_real_default(name: str) -> None:
    defaults = settings_from(build_parser().parse_args(ERASE)).to_dict()
    by_setting = {action.dest: action for action in flags(name).values()}
    for item in dataclasses.fields(EraseSettings):
        assert (item.name in by_setting) == item.metadata["public"]
        if item.metadata["public"]:
            default = defaults[item.name]
            shown = ("no", "yes")[default] if isinstance(default, bool) else default
            shown = priority_name(default) if item.name == "drift_budget" else shown
            assert by_setting[item.name].help.endswith(f"(default: {shown})"), item.name


def test_at_most_twelve_settings_are_flags() -> None:
    fields = {item.name for item in dataclasses.fields(EraseSettings)}
    assert len({action.dest for action in flags("erase").values()} & fields) <= 12


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_alone_gives_the_preset(preset: str) -> None:
    args = build_parser().parse_args([*ERASE, "--preset", preset])
    assert settings_from(args) == host_settings(preset)


def test_flags_and_assignments_change_the_preset() -> None:
    typed = "--layers KV --seed 7 --held-out 0 --no-pooled --set threshold=0.5 --set iec=false"
    settings = settings_from(build_parser().parse_args([*ERASE, *typed.split()]))
    changes = {"layers": "KV", "seed": 7, "held_out": 0.0, "pooled": False}
    assert settings == EraseSettings.preset("auto", threshold=0.5, iec=False, **changes)


@pytest.mark.parametrize(
    "typed",
    [
        "--set lamda=1",
        "--set lam",
        "--set lam=much",
        "--set lam=-1",
        "--set dpa=true --set rpa=true",
        "--set preset_name=few",
        "--seed 1 --set seed=2",
        "--held-out 0.9",
        "--priority lots",
    ],
)
def test_a_setting_that_cannot_be_is_refused_as_one(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failure([*ERASE, *typed.split()], capsys) == (1, "settings")


@pytest.mark.parametrize("name", ["", *NAMES])
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
    helps = ["--help", *(f"{name} --help" for name in NAMES)]
    arguments = [*helps, "--version", "frobnicate", wrong]
    command = [sys.executable, "-c", pico.standalone(_LIGHT)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{[0] * (len(helps) + 1) + [2, 2]} []"
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
        [*ERASE, "--seed", "much"],
        [*ERASE, "--threshold", "1"],
        [*ERASE, "--preset", "best"],
        [*ERASE, "--kind", "smell"],
        [*ERASE, "--retain", "artist"],
        [*ERASE, "--retain-limit", "0"],
        [*ERASE, "--save", "checkpont"],
        [*ERASE, "--save", ""],
        [*ERASE, "--clip-skip", "0"],
        [*ERASE, "--strength", "nan"],
        ["erase", "m.safetensors", "--concepts", "a -> b -> c", "--out", "out"],
        ["erase", "m.safetensors", "--concepts", "a -> a", "--out", "out"],
        ["bench"],
        ["completion", "bash"],
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
    "m.ckpt": (lambda path: path.write_bytes(b"\x80\x02}q\x00."), "file", "pickle"),
    "lora.safetensors": (_lora, "unsupported-model", "LoRA"),
    "flux.safetensors": (_flux, "unsupported-model", "Flux"),
    "sd3.safetensors": (_sd3, "unsupported-model", "Stable Diffusion 3"),
    "no-text.safetensors": (_no_text, "unsupported-model", ""),
    "truncated.safetensors": (_truncated, "file", ""),
    "lying.safetensors": (_lying, "file", ""),
    "empty.safetensors": (lambda path: path.write_bytes(b""), "file", ""),
    "unet.safetensors": (_unet_alone, "file", ""),
    "missing.safetensors": (lambda path: None, "not-found", ""),
    "folder": (lambda path: path.mkdir(), "file", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_model_is_one_sentence_and_exit_code_1(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, code, word = REFUSED[name]
    make(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    arguments = ["erase", str(tmp_path / name), "--concepts", "a -> b", *mini.QUICK]
    assert main([*arguments, "--out", str(tmp_path / "new" / "out"), "--json"]) == 1
    out = capsys.readouterr()
    lines = [line for line in out.err.splitlines() if not line.startswith(("Encoding", "Note"))]
    assert len(lines) == 1 and lines[0].startswith("speed-erase: ") and lines[0].endswith(".")
    assert json.loads(out.out)["error"]["code"] == code and word in lines[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no-such-file.safetensors", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_existing_files_need_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pico.write_checkpoint(tmp_path / "m.safetensors")
    (tmp_path / "m-recipe.json").write_text("mine")
    arguments = ["erase", str(tmp_path / "m.safetensors"), "--concepts", "a -> b"]
    assert failure([*arguments, "--out", str(tmp_path)], capsys) == (1, "exists")
    assert (tmp_path / "m-recipe.json").read_text() == "mine"


def test_output_must_not_be_the_input(tmp_path: Path) -> None:
    pico.write_checkpoint(tmp_path / "m-erased.safetensors")
    before = (tmp_path / "m-erased.safetensors").read_bytes()
    arguments = ["erase", str(tmp_path / "m-erased.safetensors"), "--concepts", "a -> b"]
    arguments += ["--out", str(tmp_path), "--name", "m", "--force", "--save", "checkpoint"]
    assert main(arguments) == 1
    assert (tmp_path / "m-erased.safetensors").read_bytes() == before


def test_the_cache_can_be_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path))
    assert main(["cache", "--clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == 0


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("balanced", 0.3),
        ("Erase fully", 0.45),
        ("8%", 0.08),
        ("0.08", 0.08),
        (" 12.5 % ", 0.125),
        ("1", 1.0),
    ],
)
def test_a_priority_is_a_word_or_a_number(text: str, share: float) -> None:
    args = build_parser().parse_args([*ERASE, "--priority", text])
    assert settings_from(args).drift_budget == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "offered"), [("8", "8%"), ("balance", "balanced"), ("", "protect-others")]
)
def test_another_priority_is_refused_with_the_right_spelling(text: str, offered: str) -> None:
    with pytest.raises(SettingsError, match=offered):
        settings_from(build_parser().parse_args([*ERASE, "--priority", text]))


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
    message = capsys.readouterr().err
    assert f"did you mean {near}?" in message and len(message.splitlines()) == 1


def test_what_is_like_no_name_is_offered_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    message = capsys.readouterr().err
    assert "did you mean" not in message and ", ".join(NAMES) in message


def test_a_value_that_looks_like_a_flag_is_a_value() -> None:
    args = build_parser().parse_args([*ERASE, "--concepts", "--verso in"])
    assert args.concepts == ["a -> b", "--verso in"]


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
        "concepts": [{"target": "a", "kind": "style"}],
    }
    Path("high.json").write_text(json.dumps(recipe | {"settings": {"threshold": "high"}}))
    arguments = [WRONG[code][0], "--json", *WRONG[code][1:]] if where else [*WRONG[code], "--json"]
    exit_code = main(arguments)
    out = capsys.readouterr()
    result = json.loads(out.out)
    assert result.keys() == {"error"} and result["error"].keys() == {"code", "message"}
    assert result["error"]["code"] == code and exit_code == (2 if code == "usage" else 1)
    assert out.err == f"speed-erase: {result['error']['message']}\n"


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
    path = Path(__file__).parents[2] / "docs" / "guide" / "command-line.md"
    table = path.read_text(encoding="utf-8").partition("| code |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    listed = re.findall(r"`([a-z-]+)`", " ".join(cells))
    assert sorted(listed) == sorted(ERROR_CODES)
    faults = (KeyboardInterrupt(), MemoryError(), ImportError(), RuntimeError())
    codes = {kind.code for kind in _kinds(SpeedError)} | {error_code(fault) for fault in faults}
    codes |= {error_code(_fault(FileError, OSError(number, ""))) for number in errno.errorcode}
    assert codes == set(ERROR_CODES)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (MemoryError(), "memory"),
        (ModuleNotFoundError("No module named 'rich'", name="rich"), "missing-package"),
        (ModuleNotFoundError("No module named 'yaml.x'", name="yaml.x"), "missing-package"),
        (ModuleNotFoundError("No module named 'colour'", name="colour"), "unexpected"),
        (ImportError("cannot import name 'deepcopy' from 'copy'", name="copy"), "unexpected"),
        (ImportError("cannot import name 'Screen' from 'rich'", name="rich"), "unexpected"),
        (OSError(), "unexpected"),
    ],
    ids=repr,
)
def test_faults_of_the_machine_have_codes(
    fault: Exception,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(cache, "run", fail)
    assert failure(["cache"], capsys) == (1, code)
    assert ("pip install" in user_message(fault)) == (code == "missing-package")


def test_a_hash_is_part_of_a_typed_name() -> None:
    args = build_parser().parse_args(
        ["erase", "m.safetensors", "--concepts", "artist #7 -> art", "--out", "out"]
    )
    assert [concept.target for concept in job_from(args, print).concepts] == ["artist #7"]


@pytest.mark.parametrize("text", ["@list.txt", "@./concepts"])
def test_a_file_is_not_taken_for_a_name(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["erase", "m.safetensors", "--concepts", text, "--out", "out"]) == 2
    assert "--concepts-file" in capsys.readouterr().err


def test_lists_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Typed:
        buffer = io.BytesIO(b"Van Gogh -> art\nClaude Monet")

    monkeypatch.setattr(sys, "stdin", Typed)
    args = build_parser().parse_args(
        ["erase", "m.safetensors", "--concepts-file", "-", "--out", "out"]
    )
    targets = [concept.target for concept in job_from(args, print).concepts]
    assert targets == ["Van Gogh", "Claude Monet"]


def test_standard_input_is_read_once(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["erase", "m.safetensors", "--concepts-file", "-", "--retain-file", "-"]
    assert failure([*arguments, "--out", "out"], capsys) == (2, "usage")


def test_what_is_odd_about_the_lists_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keep.txt").write_text("Claude\u200b Monet", encoding="utf-8")
    arguments = ["erase", str(tmp_path / "m.safetensors"), "--concepts", "Van\u200b Gogh -> art"]
    arguments += ["--retain-file", str(tmp_path / "keep.txt"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Note: ")]
    assert len(notes) == 2 and all("nvisible" in note for note in notes)


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--device", "mps", (2, "usage")),
        ("--device", "cuda:99", (1, "settings")),
        ("--device", "tpu", (2, "usage")),
        ("--threads", "0", (2, "usage")),
        ("--threads", "100000", (2, "usage")),
    ],
)
def test_what_the_machine_lacks_is_refused(
    flag: str,
    value: str,
    expected: tuple[int, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pico.write_checkpoint(tmp_path / "m.safetensors")
    arguments = ["erase", str(tmp_path / "m.safetensors"), "--concepts", "a -> b"]
    arguments += ["--out", str(tmp_path / "out"), flag, value]
    assert failure(arguments, capsys) == expected
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["erase", "apply", "batch", "forecast", "verify", "probe", "run"])
def test_every_long_command_takes_a_device_and_threads(name: str) -> None:
    assert {"--device", "--threads"} <= flags(name).keys()


def test_threads_are_used_by_every_thread_that_starts_later() -> None:
    before = torch.get_num_threads()
    try:
        args = build_parser().parse_args([*ERASE, "--threads", "1", "--device", "cpu"])
        text_setup_from(args)
        with ThreadPoolExecutor(1) as pool:
            assert torch.get_num_threads() == pool.submit(torch.get_num_threads).result() == 1
    finally:
        torch.set_num_threads(before)
