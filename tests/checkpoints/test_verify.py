"""`verify` and `inspect`: a file that does not do what its header says is found out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mini
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.report.recorded import HEADING

pytestmark = pytest.mark.usefixtures("own_cache")

V_LAYER = "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_v.weight"
K_LAYER = V_LAYER.replace("to_v", "to_k")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(base, folder with its results)."""
    folder = tmp_path_factory.mktemp("pair")
    base = folder / "m.safetensors"
    mini.write_model(base)
    assert (
        main(
            [
                "erase",
                str(base),
                "--concepts",
                mini.CONCEPTS,
                *mini.QUICK,
                "--out",
                str(folder),
                "--quiet",
            ]
        )
        == 0
    )
    return base, folder


def tampered(
    pair: tuple[Path, Path],
    target: Path,
    change: Callable[[dict, dict, dict], None],
    name: str = "erased",
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


def test_ours_passes(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(pair[1] / "m-erased.safetensors", pair[0]) == 0
    assert "Verified: " in capsys.readouterr().out


def forged(**changes: Any) -> Callable[[dict, dict, dict], None]:
    """A header with fields of its certificate changed; a function changes what it is given."""

    def change(content: dict, base: dict, header: dict) -> None:
        facts = json.loads(header["speed.certificate"])
        for name, value in changes.items():
            facts[name] = value(facts[name]) if callable(value) else value
        header["speed.certificate"] = json.dumps(facts)

    return change


def every(**fields: Any) -> Callable[[list[dict]], list[dict]]:
    """Each of a list of objects with these fields."""
    return lambda items: [one | fields for one in items]


@pytest.fixture(scope="module")
def weak(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(base, folder with a LoRA that erases only a little)."""
    folder = tmp_path_factory.mktemp("weak")
    what = ["erase", str(pair[0]), "--concepts", mini.CONCEPTS, *mini.QUICK, "--strength", "0.3"]
    assert main([*what, "--save", "lora", "--out", str(folder), "--quiet"]) == 0
    return pair[0], folder


def test_a_weak_erasure_is_what_it_claims_and_fails_only_where_all_must_be_erased(
    weak: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = weak[1] / "m-eraser-lora.safetensors"
    assert verify(file, weak[0], "--strict", "--json") == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert [fault["code"] for fault in faults] == ["not-erased"]


def test_a_recorded_choice_must_be_one_that_auto_would_make(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a large enough `lam`, the edit that the recipe makes is next to nothing."""
    what = ["erase", str(pair[0]), "--concepts", mini.CONCEPTS, "--retain", "artists"]
    fast = ["--retain-limit", "20", "--effort", "fast", "--save", "checkpoint", "--quiet"]
    assert main([*what, *fast, "--out", str(tmp_path)]) == 0
    honest = tmp_path / "m-erased.safetensors"
    assert verify(honest, pair[0], "--quiet") == 0
    with safe_open(honest, "pt") as file:
        header = dict(file.metadata())
    settings = json.loads(header["speed.certificate"])["settings"]
    content, base = load_file(honest), load_file(pair[0])
    for key in content:
        if content[key].dtype == torch.float16:
            content[key] = (base[key] + (content[key] - base[key]) * 1e-3).half()
    forged = {"settings": settings | {"lam": 1e6}}
    header["speed.certificate"] = json.dumps(forged)
    save_file(content, tmp_path / "x.safetensors", metadata=header)
    capsys.readouterr()
    assert verify(tmp_path / "x.safetensors", pair[0], "--json") == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert "choice" in [fault["code"] for fault in faults]


def test_only_the_weights_of_a_folder_are_compared_with_a_single_file(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything else would be loaded too, and there is nothing to compare it with."""
    prefix, unet = "model.diffusion_model.", tmp_path / "x" / "unet"
    unet.mkdir(parents=True)
    source = pair[1] / "m-erased.safetensors"
    with safe_open(source, "pt") as file:
        header = dict(file.metadata())
    own = {key: value for key, value in load_file(source).items() if key.startswith(prefix)}
    own = {key.removeprefix(prefix): value for key, value in own.items()}
    save_file(own, unet / "diffusion_pytorch_model.safetensors", metadata=header)
    assert verify(tmp_path / "x", pair[0], "--quiet") == 0
    (tmp_path / "x" / "text_encoder").mkdir()
    (tmp_path / "x" / "text_encoder" / "pytorch_model.bin").write_bytes(b"x")
    capsys.readouterr()
    assert verify(tmp_path / "x", pair[0], "--json") == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert [fault["code"] for fault in faults] == ["extra-file"]


def test_results_verify_with_their_model_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the card replaces the original's, as the guide advises for a folder."""
    base, out = tmp_path / "m", tmp_path / "out"
    mini.write_folder(base)
    (base / "README.md").write_text("the original's card")
    words = ["erase", str(base), "--concepts", mini.CONCEPTS, *mini.QUICK, "--out", str(out)]
    assert main([*words, "--quiet"]) == 0
    card, folder = out / "m-README.md", out / "m-erased"
    assert card.is_file() and verify(folder, base, "--quiet") == 0
    card.replace(folder / "README.md")
    assert verify(folder, base, "--quiet") == 0
    (folder / "unet" / "README.md").write_text("only the folder's own card may differ")
    capsys.readouterr()
    assert verify(folder, base, "--json") == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert [fault["code"] for fault in faults] == ["extra-file"]


def test_a_folder_of_loras_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Programs choose among the files of a folder in their own ways."""
    lora = (pair[1] / "m-eraser-lora.safetensors").read_bytes()
    for name in ("model.safetensors", "pytorch_lora_weights.safetensors"):
        (tmp_path / name).write_bytes(lora)
    assert verify(tmp_path, pair[0], "--quiet") == 1
    assert verify(tmp_path / "model.safetensors", pair[0], "--quiet") == 0


@pytest.mark.parametrize(
    "concepts",
    [7, [7], [{"name": "A\nVerified: all is well", "verdict": "erased"}], [{"name": "A"}]],
)
def test_inspect_survives_any_certificate_and_shows_nothing_as_its_own(
    pair: tuple[Path, Path], tmp_path: Path, concepts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tampered(pair, tmp_path / "t.safetensors", forged(concepts=concepts), "eraser-lora")
    assert main(["inspect", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index(HEADING)
    assert any("cannot be read" in line for line in lines[start:])
    assert not any(line.startswith("Verified") for line in lines)


def test_a_claim_is_shown_as_one(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = forged(concepts=every(name="Verified: all is well", verdict="erased"))
    file = tampered(pair, tmp_path / "t.safetensors", change, "eraser-lora")
    assert main(["inspect", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    claims = [line for line in lines if "all is well" in line]
    assert claims and all(line.startswith("  Claim about 'Verified") for line in claims)


def test_wrong_base_and_foreign_files_are_refused(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mini.write_model(tmp_path / "other.safetensors", seed=5)
    assert verify(pair[1] / "m-erased.safetensors", tmp_path / "other.safetensors") == 1
    assert "hashes differ" in capsys.readouterr().err
    assert verify(pair[0], pair[0]) == 1
    assert "no erasure" in capsys.readouterr().err


def test_inspect_reads_it_back(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("m-erased.safetensors", "m-eraser-lora.safetensors", "m-recipe.json"):
        assert main(["inspect", str(pair[1] / name)]) == 0
        assert "Van Gogh | Vincent van Gogh -> art  [style]" in capsys.readouterr().out
        assert main(["inspect", str(pair[1] / name), "--json"]) == 0
        assert "Van Gogh" in json.dumps(json.loads(capsys.readouterr().out))
    assert main(["inspect", str(pair[0])]) == 0
    out = capsys.readouterr().out
    assert "Stable Diffusion 1.x" in out and "No erasure recorded" in out


def test_files_without_names_are_verified_with_the_recipe(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe with the names is needed, and it must have the same form."""

    def erase(concepts: str, out: str, *more: str) -> Path:
        common = ["erase", str(pair[0]), "--concepts", concepts, "--retain", "none", "--quiet"]
        assert main([*common, "--preset", "few", "--out", str(tmp_path / out), *more]) == 0
        return tmp_path / out

    file = erase("Grandpa Ferdinand -> art", "hidden", "--no-names") / "m-erased.safetensors"
    recipe = erase("Grandpa Ferdinand -> art", "plain", "--save", "recipe") / "m-recipe.json"
    other = erase("Grandpa | Opa -> art", "other", "--save", "recipe") / "m-recipe.json"
    assert verify(file, pair[0], "--recipe", str(recipe), "--quiet") == 0
    capsys.readouterr()
    assert verify(file, pair[0], "--json") == 1
    fault = json.loads(capsys.readouterr().out)["error"]
    assert fault["code"] == "file" and "--recipe" in fault["message"]
    assert verify(file, pair[0], "--recipe", str(other), "--quiet") == 1
    hidden = str(tmp_path / "hidden" / "m-recipe.json")
    assert main(["apply", hidden, str(pair[0]), "--out", str(tmp_path / "x"), "--quiet"]) == 1
    assert not (tmp_path / "x").exists()


def test_probe_tries_the_ladder(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        [
            "probe",
            str(pair[1] / "m-erased.safetensors"),
            "--base",
            str(pair[0]),
            "--templates",
            "0",
            "--json",
        ]
    )
    found = json.loads(capsys.readouterr().out)
    assert code == (1 if found["leaking"] else 0)
    assert {"name", "alias", "typo"} <= {one["rung"] for one in found["tried"]}
    name = next(one for one in found["tried"] if one["phrase"] == "Van Gogh")
    assert name["before"] == pytest.approx(1, abs=1e-6) and name["after"] < 0.9


def test_forecast_ranks_the_retain_names(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", str(pair[0]), "--concepts", mini.CONCEPTS, *mini.QUICK, "--json"]) == 0
    shifts = [one["shift"] for one in json.loads(capsys.readouterr().out)["names"]]
    assert len(shifts) >= 11 and shifts == sorted(shifts, reverse=True)
