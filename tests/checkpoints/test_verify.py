"""`verify`, `inspect` and redaction: a file that does not do what its header says is found out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mini
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.cli import main as main

pytestmark = pytest.mark.usefixtures("own_cache")

V_LAYER = "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_v.weight"
K_LAYER = V_LAYER.replace("to_v", "to_k")
SALT = "a secret of the studio"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(base, folder with its results)."""
    folder = tmp_path_factory.mktemp("pair")
    base = folder / "m.safetensors"
    mini.write_model(base)
    assert main(["erase", str(base), "--concepts", mini.CONCEPTS, *mini.QUICK, "--out", str(folder), "--quiet"]) == 0
    return base, folder


def tampered(
    pair: tuple[Path, Path], target: Path, change: Callable[[dict, dict, dict], None], name: str = "erased"
) -> Path:
    """A copy of a result with `change(its tensors, the base's tensors, its header)`."""
    source = pair[1] / f"m-{name}.safetensors"
    with safe_open(source, "pt") as file:
        header = dict(file.metadata())
    content = load_file(source)
    change(content, load_file(pair[0]), header)
    save_file(content, target, metadata=header)
    return target


def verify(file: Path, base: Path, *more: str) -> int:
    return main(["verify", str(file), "--base", str(base), *more])


def restore_one(content: dict, base: dict, header: dict) -> None:
    content[V_LAYER] = base[V_LAYER]


def restore_all(content: dict, base: dict, header: dict) -> None:
    content.update({key: value for key, value in base.items() if key.endswith("attn2.to_v.weight")})


def touch_key_layer(content: dict, base: dict, header: dict) -> None:
    content[K_LAYER] = content[K_LAYER] * 1.5


def touch_other(content: dict, base: dict, header: dict) -> None:
    content["first_stage_model.quant_conv.bias"] = content["first_stage_model.quant_conv.bias"] + 1


def drop_other(content: dict, base: dict, header: dict) -> None:
    del content["first_stage_model.quant_conv.bias"]


def add_other(content: dict, base: dict, header: dict) -> None:
    content["backdoor"] = torch.ones(3)


def boast(content: dict, base: dict, header: dict) -> None:
    facts = json.loads(header["speed.certificate"])
    for concept in facts["concepts"]:
        concept.update(probe_median=0.0, solved_median=0.0, verdict="erased")
    header["speed.certificate"] = json.dumps(facts)


def claim_no_drift(content: dict, base: dict, header: dict) -> None:
    facts = json.loads(header["speed.certificate"])
    facts["drift"] = []
    header["speed.certificate"] = json.dumps(facts)


def damage_retained(content: dict, base: dict, header: dict) -> None:
    content.update({k: v + 0.2 * v.flip(1) for k, v in content.items() if k.endswith("attn2.to_v.weight")})


CHANGES = (
    restore_all,
    touch_key_layer,
    touch_other,
    drop_other,
    add_other,
    boast,
    claim_no_drift,
    damage_retained,
)


def test_ours_passes(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(pair[1] / "m-erased.safetensors", pair[0]) == 0
    assert "does what its header says" in capsys.readouterr().out


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_tampering_is_found(
    pair: tuple[Path, Path],
    tmp_path: Path,
    change: Callable[[dict, dict, dict], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tampered(pair, tmp_path / "t.safetensors", change)
    assert verify(file, pair[0]) == 1
    out = capsys.readouterr()
    assert "Fault:" in out.out and "FAILED" in out.out and "Traceback" not in out.err


def test_weakened_lora_is_found(pair: tuple[Path, Path], tmp_path: Path) -> None:
    def halve(content: dict, base: dict, header: dict) -> None:
        content.update({key: value * 0.5 for key, value in content.items() if key.endswith("lora_up.weight")})

    file = tampered(pair, tmp_path / "t.safetensors", halve, "eraser-lora")
    assert verify(file, pair[0], "--quiet") == 1
    assert verify(pair[1] / "m-eraser-lora.safetensors", pair[0], "--quiet") == 0


def test_wrong_base_and_foreign_files_are_refused(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mini.write_model(tmp_path / "other.safetensors", seed=5)
    assert verify(pair[1] / "m-erased.safetensors", tmp_path / "other.safetensors") == 1
    assert "hashes differ" in capsys.readouterr().err
    assert verify(pair[0], pair[0]) == 1
    assert "nothing to verify" in capsys.readouterr().err


def test_inspect_reads_it_back(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("m-erased.safetensors", "m-eraser-lora.safetensors", "m-recipe.json"):
        assert main(["inspect", str(pair[1] / name)]) == 0
        assert "Van Gogh | Vincent van Gogh -> art  [style]" in capsys.readouterr().out
        assert main(["inspect", str(pair[1] / name), "--json"]) == 0
        assert "Van Gogh" in json.dumps(json.loads(capsys.readouterr().out))
    assert main(["inspect", str(pair[0])]) == 0
    out = capsys.readouterr().out
    assert "Stable Diffusion 1.x" in out and "nothing about an erasure" in out


def test_redacted_files_name_nobody_and_verify_with_the_salt(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept.txt").write_text("Aunt Mathilda\nUncle Oswald\n")
    common = [
        "erase",
        str(pair[0]),
        "--concepts",
        "Grandpa Ferdinand -> art",
        "--retain-file",
        str(tmp_path / "kept.txt"),
        "--preset",
        "few",
    ]
    assert main([*common, "--out", str(tmp_path / "r"), "--redact", "--salt", SALT, "--quiet"]) == 0
    assert main([*common, "--out", str(tmp_path / "c"), "--save", "recipe", "--quiet"]) == 0
    for file in (tmp_path / "r").iterdir():
        content = file.read_bytes().lower()
        for name in (b"ferdinand", b"mathilda", b"oswald", SALT.encode()):
            assert name not in content, (file, name)
    file, recipe = tmp_path / "r" / "m-erased.safetensors", str(tmp_path / "c" / "m-recipe.json")
    assert verify(file, pair[0], "--recipe", recipe, "--salt", SALT, "--quiet") == 0
    capsys.readouterr()
    assert verify(file, pair[0]) == 1
    assert "give the unredacted recipe and the salt" in capsys.readouterr().err
    assert verify(file, pair[0], "--recipe", recipe, "--salt", "wrong", "--quiet") == 1
    assert (
        main(["apply", str(tmp_path / "r" / "m-recipe.json"), str(pair[0]), "--out", str(tmp_path / "x"), "--quiet"])
        == 1
    )
    assert not (tmp_path / "x").exists()


def test_probe_tries_the_ladder(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["probe", str(pair[1] / "m-erased.safetensors"), "--base", str(pair[0]), "--templates", "0", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (1 if found["leaking"] else 0)
    assert {"name", "alias", "typo"} <= {one["rung"] for one in found["tried"]}
    name = next(one for one in found["tried"] if one["phrase"] == "Van Gogh")
    assert name["before"] == pytest.approx(1, abs=1e-6) and name["after"] < 0.9


def test_forecast_ranks_the_retain_names(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", str(pair[0]), "--concepts", mini.CONCEPTS, *mini.QUICK, "--json"]) == 0
    shifts = [one["shift"] for one in json.loads(capsys.readouterr().out)["names"]]
    assert len(shifts) >= 11 and shifts == sorted(shifts, reverse=True)
