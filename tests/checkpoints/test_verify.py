"""`verify` and `inspect`: a file that does not do what its header says is found out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mini
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.certificate.certificate import BARS, Certificate, ConceptResult, verdict
from speed_erase.speed_ops.checkpoints.claims import LEFT_TOLERANCE, broken_claims
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.recipe import Recipe, RecipeConcept

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
    content.update(
        {k: v + 0.2 * v.flip(1) for k, v in content.items() if k.endswith("attn2.to_v.weight")}
    )


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


def without(*fields: str) -> Callable[[list[dict]], list[dict]]:
    return lambda items: [
        {name: value for name, value in one.items() if name not in fields} for one in items
    ]


def with_settings(**fields: Any) -> Callable[[dict], dict]:
    return lambda settings: settings | fields


def in_recipe(**changes: Any) -> Callable[[dict, dict, dict], None]:
    def change(content: dict, base: dict, header: dict) -> None:
        recipe = json.loads(header["speed.recipe"])
        for name, value in changes.items():
            recipe[name] = value(recipe.get(name)) if callable(value) else value
        header["speed.recipe"] = json.dumps(recipe)

    return change


def no_base(content: dict, base: dict, header: dict) -> None:
    header["speed.base_hash"] = ""


FORGED = {
    "no such verdict": (forged(concepts=every(verdict="perfect")), "calls 'Van Gogh' perfect"),
    "no verdict": (forged(concepts=without("verdict")), "calls 'Van Gogh' None"),
    "verdict of a list": (forged(concepts=every(verdict=["erased"])), "calls 'Van Gogh'"),
    "left in unseen prompts": (
        forged(concepts=every(probe_median=0.0)),
        "is left in unseen prompts; the .* says 0%",
    ),
    "left not said": (forged(concepts=without("probe_median")), "the certificate does not say"),
    "left no number": (forged(concepts=every(solved_median="0")), "the certificate does not say"),
    "left in the worst layer": (
        forged(concepts=every(probe_worst=0.0)),
        "in the worst layer; the certificate says 0%",
    ),
    "another name": (
        forged(concepts=every(name="Picasso")),
        "speaks of another concept in the place of 'Van Gogh'",
    ),
    "another kind": (forged(concepts=every(kind="theme")), "another kind of concept"),
    "more concepts": (forged(concepts=lambda items: items * 2), "covers 2 concepts, the recipe 1"),
    "no concepts": (forged(concepts=[]), "covers 0 concepts, the recipe 1"),
    "kind in the recipe": (in_recipe(concepts=every(kind="theme")), "another kind of concept"),
    "no names": (forged(drift=[]), "says nothing about the kept names"),
    "drift": (
        forged(drift=every(median=0.0, p95=0.0, maximum=0.0, mean=0.0)),
        "maximum drift of the kept names",
    ),
    "largest drift": (
        forged(drift=every(maximum=0.0)),
        "maximum drift of the kept names .* says 0.0%",
    ),
    "drift no number": (forged(drift=every(maximum=None)), "maximum drift of the kept names"),
    "drift by name": (forged(drift=every(worst=[["Monet", 0.0]])), "lists none that far"),
    "how many names": (forged(drift=every(names=10**6)), "more names than there are"),
    "other names": (
        forged(
            drift=lambda items: [
                *items,
                items[0] | {"group": "held_out", "where": "context", "maximum": 0.0},
            ]
        ),
        "names that the recipe does not give",
    ),
    "the same names twice": (
        forged(drift=lambda items: [items[0] | {"maximum": 0.0}, *items]),
        "or twice of the same",
    ),
    "a group of no kind": (
        forged(drift=lambda items: [*items, {"group": [1], "where": {}}]),
        "does not give",
    ),
    "layers": (forged(layers=1000), "is about 1000 layers, the recipe about"),
    "settings": (
        forged(settings=with_settings(method="uce")),
        "made with method uce, the recipe says speed",
    ),
    "budget": (
        forged(settings=with_settings(drift_budget=0.001)),
        "made with drift_budget 0.001, the recipe says",
    ),
    "budget of the curve": (forged(curve={"budget": 0.001}), "names a budget of 0.001, the recipe"),
    "base": (no_base, "does not say which file it was made from"),
    "base in the recipe": (in_recipe(base_hash="00" * 32), "name different files"),
    "history": (
        in_recipe(history=[{"concepts": [{"target": "Picasso", "kind": "style"}]}]),
        "earlier erasures that are not those of the base",
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_claim_is_found(
    pair: tuple[Path, Path], tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = FORGED[what]
    assert verify(tampered(pair, tmp_path / "t.safetensors", change), pair[0]) == 1
    out = capsys.readouterr()
    assert re.search(rf"Fault: .*{words}", out.out), out.out
    assert "Traceback" not in out.err


@pytest.fixture(scope="module")
def weak(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(base, folder with a LoRA that erases only a little)."""
    folder = tmp_path_factory.mktemp("weak")
    what = ["erase", str(pair[0]), "--concepts", mini.CONCEPTS, *mini.QUICK, "--strength", "0.3"]
    assert main([*what, "--save", "lora", "--out", str(folder), "--quiet"]) == 0
    return pair[0], folder


def test_a_better_verdict_than_the_measured_one_is_found(
    weak: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(weak[1] / "m-eraser-lora.safetensors", weak[0]) == 0
    for number, said in enumerate(("erased", "weakened")):
        change = forged(concepts=every(verdict=said))
        file = tampered(weak, tmp_path / f"{number}.safetensors", change, "eraser-lora")
        capsys.readouterr()
        assert verify(file, weak[0]) == 1
        assert (
            f"The certificate calls 'Van Gogh' {said}, but it is still there."
            in capsys.readouterr().out
        )


def claim(
    kind: str, left: float, said: str, to_go: float | None = None, without: str = "", **changes: Any
) -> list[str]:
    """Faults of a header that says this verdict, for a concept of which `left` is left."""
    shown = verdict(left, left, kind, to_go)
    concept = ConceptResult("Van Gogh", shown, left, left, left, left, 0.0, kind, to_go)
    measured = Certificate((concept,), (), 0.0, (), (), (), {}, ())
    recipe = Recipe((RecipeConcept("Van Gogh", "art", kind),), {})
    facts = json.loads(json.dumps(measured.short()))
    facts["concepts"][0] |= {"verdict": said} | changes
    facts["concepts"][0].pop(without, None)
    return broken_claims(facts, recipe, measured)


@pytest.mark.parametrize("kind", BARS)
def test_no_verdict_is_better_than_the_measurement(kind: str) -> None:
    bars, order = BARS[kind], ("erased", "weakened", "stands")
    for left in (0.0, bars.erased, bars.erased + 0.01, bars.stands - 0.01, bars.stands, 0.99):
        for said in order:
            better = order.index(said) < order.index(verdict(left, left, kind))
            assert bool(claim(kind, left, said)) == better, (left, said)
    # Numbers may be off by as much as half precision costs, and a verdict with them, but not by
    # more.
    near, far = bars.erased + LEFT_TOLERANCE - 0.01, bars.erased + LEFT_TOLERANCE + 0.01
    numbers = {
        name: bars.erased
        for name in ("solved_median", "probe_median", "solved_worst", "probe_worst")
    }
    assert not claim(kind, near, "erased", **numbers)
    assert claim(kind, far, "erased", **numbers)


@pytest.mark.parametrize("kind", BARS)
def test_the_way_to_go_is_checked_like_what_is_left(kind: str) -> None:
    arrived = BARS[kind].arrived
    assert arrived is not None

    def said(measured: float, claimed: float | None) -> list[str]:
        """Faults of a header that says erased, for a concept of which all is left and so much of
        the way.
        """
        return claim(kind, 0.9, "erased", to_go=measured, probe_to_go=claimed)

    assert not said(arrived, arrived)
    assert any("of the way is still to go" in fault for fault in said(0.9, arrived))
    assert any("but it is still there" in fault for fault in said(0.9, 0.9))
    assert any("but it is still there" in fault for fault in said(arrived, None)), (
        "not said is not proven"
    )
    assert claim(kind, 0.0, "erased", to_go=0.0, without="probe_to_go"), "it must be stated"


def test_without_unseen_prompts_nothing_counts_as_proven() -> None:
    assert not claim("style", 0.1, "erased") and claim("style", 0.1, "erased", probe_median=None)
    assert not claim("style", 0.9, "unproven"), "who claims nothing is not wrong"


def test_weakened_lora_is_found(pair: tuple[Path, Path], tmp_path: Path) -> None:
    def halve(content: dict, base: dict, header: dict) -> None:
        content.update(
            {key: value * 0.5 for key, value in content.items() if key.endswith("lora_up.weight")}
        )

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


def test_what_was_added_to_a_folder_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, copy = tmp_path / "pipeline", tmp_path / "out" / "pipeline-erased"
    mini.write_folder(base)
    arguments = [
        "erase",
        str(base),
        "--concepts",
        mini.CONCEPTS,
        *mini.QUICK,
        "--save",
        "checkpoint",
        "--quiet",
    ]
    assert main([*arguments, "--out", str(copy.parent)]) == 0
    assert verify(copy, base) == 0
    (copy / "unet_2").mkdir()
    (copy / "unet_2" / "x.safetensors").write_bytes(
        next((base / "unet").glob("*.safetensors")).read_bytes()
    )
    assert verify(copy, base) == 1
    assert "unet_2/x.safetensors is no part of the model" in capsys.readouterr().out
