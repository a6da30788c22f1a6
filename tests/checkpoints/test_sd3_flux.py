"""SD3 and Flux from the command line: one layer is edited, text encoders come by path, everything
else stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import mini
import mini_dit
import pico
import pytest
import torch
from safetensors.torch import load_file, save_file
from text_pico import full_prompt

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.encoders import tokenizers as tokenizers
from speed_erase.speed_ops.encoders.tokenizers import T5Tokenizer
from speed_erase.speed_ops.files.lora import read_lora

pytestmark = pytest.mark.usefixtures("own_cache")

CONCEPT = "Van Gogh -> art"
ENTRY = {
    "sd3": "context_embedder.weight",
    "flux-dev": "txt_in.weight",
    "flux-schnell": "txt_in.weight",
}
POOLED = {
    "sd3": "y_embedder.mlp.0.weight",
    "flux-dev": "vector_in.in_layer.weight",
    "flux-schnell": "vector_in.in_layer.weight",
}
ENCODERS = {"sd3": ("t5", "clip_l"), "flux-dev": ("t5",), "flux-schnell": ("clip_l", "t5")}
"""In any order. Flux has CLIP-L for the pooled path alone; SD3's large CLIP-G only where it
matters.
"""
FEW = ("--retain-limit", "4", "--save", "checkpoint,lora,recipe")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, encoders and T5's tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    for family in mini_dit.FAMILIES:
        prefix = "model.diffusion_model." if family == "flux-schnell" else ""
        mini_dit.write_dit(folder / f"{family}.safetensors", family, prefix)
    mini_dit.write_t5(folder / "t5.safetensors")
    for name in ("clip_l", "clip_g"):
        save_file(mini_dit.clip_tensors(name), folder / f"{name}.safetensors")
    mini_dit.write_tokenizer(folder / "words")
    return folder


def given(home: Path, *names: str) -> list[str]:
    """Arguments that name these encoders and the tokenizer."""
    paths = [
        part for name in names for part in ("--text-encoder", str(home / f"{name}.safetensors"))
    ]
    return [*paths, "--tokenizer", str(home / "words")]


def erase(home: Path, family: str, out: Path, *more: str, encoders: tuple[str, ...] = ()) -> int:
    arguments = [
        "erase",
        str(home / f"{family}.safetensors"),
        "--concepts",
        CONCEPT,
        *mini.QUICK,
        *FEW,
    ]
    return main(
        [
            *arguments,
            *given(home, *(encoders or ENCODERS[family])),
            "--out",
            str(out),
            "--quiet",
            *more,
        ]
    )


def rows_of(
    home: Path, family: str, *names: str, encoders: tuple[str, ...] = ()
) -> Iterator[torch.Tensor]:
    """The rows of names' last tokens, found by hand: one in CLIP's 77 rows, one in T5's, which has
    no start token.
    """
    chosen = encoders or ENCODERS[family]
    reading = TextSetup(None, home / "words", tuple(home / f"{one}.safetensors" for one in chosen))
    encoder = reading.encoder(ModelSource.open(home / f"{family}.safetensors")).encoder
    words = T5Tokenizer.from_files(home / "words")
    for name in names:
        whole, last = full_prompt(encoder, name), len(words.token_ids(name)) - 1
        if family != "sd3":
            yield whole[last : last + 1].double()
            continue
        width = 2048 if "clip_g" in chosen else 768
        assert (
            whole.shape == (154, 4096) and whole[:77, :width].all() and not whole[:77, width:].any()
        )
        yield whole[[len(encoder.streams[0].token_ids(name)), 77 + last]].double()


@pytest.mark.parametrize("family", mini_dit.FAMILIES)
def test_target_becomes_anchor_and_nothing_else_changes(
    home: Path, tmp_path: Path, family: str
) -> None:
    encoders = ("clip_g", "t5", "clip_l") if family == "sd3" else ()
    assert erase(home, family, tmp_path, encoders=encoders) == 0
    base = home / f"{family}.safetensors"
    before, after = load_file(base), load_file(tmp_path / f"{family}-erased.safetensors")
    prefix = "model.diffusion_model." if family == "flux-schnell" else ""
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    both = {prefix + ENTRY[family], prefix + POOLED[family]}
    assert before.keys() == after.keys() and changed == (
        both - {POOLED["flux-dev"]} if family == "flux-dev" else both
    )
    old, new = (part[prefix + ENTRY[family]].double() for part in (before, after))
    target, anchor = rows_of(home, family, "Van Gogh", "art", encoders=encoders)
    goal = anchor @ old.T
    left = (target @ new.T - goal).norm(dim=1) / (target @ old.T - goal).norm(dim=1)
    assert left.max() < 0.1, left
    recipe = json.loads((tmp_path / f"{family}-recipe.json").read_text())
    assert recipe["family"] == family
    lora = read_lora(
        tmp_path / f"{family}-eraser-lora.safetensors", ModelSource.open(base).every_layer("V")
    )
    assert not lora.unmatched and len(lora.edits) == len(changed)
    edit = lora.edits[f"diffusion_model.{ENTRY[family]}"]
    assert (new - old - edit.delta()).norm() < 0.02 * (new - old).norm()


@pytest.mark.parametrize("family", ["sd3", "flux-schnell"])
def test_pooled_text_becomes_the_anchor_s_too(home: Path, tmp_path: Path, family: str) -> None:
    encoders = ("clip_g", "clip_l", "t5") if family == "sd3" else ("clip_l", "t5")
    assert erase(home, family, tmp_path, encoders=encoders) == 0
    base = home / f"{family}.safetensors"
    key = ("model.diffusion_model." if family == "flux-schnell" else "") + POOLED[family]
    old, new = (
        load_file(path)[key].double() for path in (base, tmp_path / f"{family}-erased.safetensors")
    )
    setup = TextSetup(None, home / "words", tuple(home / f"{one}.safetensors" for one in encoders))
    encoder = setup.encoder(ModelSource.open(base)).encoder
    target, anchor, empty = (
        row.double() for row in encoder.encode_both(["Van Gogh", "art", ""], [0, 0, 0])[1]
    )
    assert len(target) == old.shape[1]
    assert (new @ target - old @ anchor).norm() < 0.05 * (old @ (target - anchor)).norm()
    assert ((new - old) @ empty).norm() < 0.01 * (old @ empty).norm()


def test_an_encoder_for_pooled_text_may_be_missing(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flux without CLIP-L is edited without its pooled path, and told so; SD3 has zeros where an
    encoder is missing.
    """
    base = home / "flux-dev.safetensors"
    arguments = [
        "erase",
        str(base),
        "--concepts",
        CONCEPT,
        *mini.QUICK,
        *FEW,
        "--out",
        str(tmp_path),
    ]
    assert main([*arguments, *given(home, "t5")]) == 0
    shown = capsys.readouterr().err
    assert "Pooled text input stays unedited, because no CLIP-L was found" in shown
    assert main([*arguments, *given(home, "t5", "clip_l"), "--no-pooled", "--force"]) == 0
    assert "Pooled text input" not in capsys.readouterr().err
    assert torch.equal(
        *(
            load_file(file)[POOLED["flux-dev"]]
            for file in (base, tmp_path / "flux-dev-erased.safetensors")
        )
    )
    setup = TextSetup(None, home / "words", (home / "clip_g.safetensors",))
    encoder = setup.encoder(ModelSource.open(home / "sd3.safetensors")).encoder
    (row,) = encoder.encode_both(["Van Gogh"], [0])[1]
    assert row.shape == (2048,) and not row[:768].any() and row[768:].all()


def test_verify_measures_the_pooled_path(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, base = "flux-schnell", home / "flux-schnell.safetensors"
    assert erase(home, family, tmp_path) == 0
    file = tmp_path / f"{family}-erased.safetensors"
    arguments = ["verify", str(file), "--base", str(base), "--verbose"]
    assert main([*arguments, *given(home, "clip_l", "t5")]) == 0
    assert "Pooled text input:" in capsys.readouterr().out
    assert main(["verify", str(file), "--base", str(base), *given(home, "t5")]) == 1
    assert "not all of its text encoders are here" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["sd3", "flux-dev"])
def test_kept_names_stay_in_both_streams(home: Path, tmp_path: Path, family: str) -> None:
    names = ["Claude Monet", "Frida Kahlo", "Hokusai", "a red chair"]
    (tmp_path / "keep.txt").write_text("\n".join(names))
    keep = ["--retain-file", str(tmp_path / "keep.txt"), "--held-out", "0", "--set", "ipf=false"]
    arguments = [
        "erase",
        str(home / f"{family}.safetensors"),
        "--concepts",
        CONCEPT,
        *mini.QUICK[:2],
        *keep,
    ]
    assert (
        main([*arguments, *given(home, *ENCODERS[family]), "--out", str(tmp_path), "--quiet"]) == 0
    )
    old = load_file(home / f"{family}.safetensors")[ENTRY[family]].double()
    new = load_file(tmp_path / f"{family}-erased.safetensors")[ENTRY[family]].double()

    *kept, target = rows_of(home, family, *names, "Van Gogh")

    def moved(rows: torch.Tensor) -> float:
        return float(((rows @ (new - old).T).norm(dim=1) / (rows @ old.T).norm(dim=1)).max())

    assert max(map(moved, kept)) < 0.02 < 0.2 < moved(target)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sd3", "flux-dev"])
def test_all_commands_work(
    home: Path, tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base, text = str(home / f"{family}.safetensors"), given(home, *ENCODERS[family])
    out = tmp_path / "out"
    rows = (
        ["--set", "rows=context", "--set", "context_names=1", "--effort", "fast"]
        if family == "sd3"
        else []
    )
    assert erase(home, family, out, *rows) == 0
    for name in ("erased", "eraser-lora"):
        file = str(out / f"{family}-{name}.safetensors")
        assert main(["verify", file, "--base", base, *text, "--quiet"]) == 0
    assert main(["inspect", file]) == 0 and main(["inspect", base]) == 0
    assert "1 layer" in capsys.readouterr().out
    assert main(["probe", file, "--base", base, *text, "--json", "--templates", "0"]) in (0, 1)
    tried = json.loads(capsys.readouterr().out)["tried"]
    assert {"name", "case", "typo"} <= {one["rung"] for one in tried} and max(
        one["before"] for one in tried
    ) > 0.9
    assert (
        main(["forecast", base, "--concepts", CONCEPT, *mini.QUICK, *FEW[:2], *text, "--json"]) == 0
    )
    assert len(json.loads(capsys.readouterr().out)["names"]) == 4
    recipe = str(out / f"{family}-recipe.json")
    assert (
        main(
            [
                "apply",
                recipe,
                base,
                *text,
                "--out",
                str(tmp_path / "again"),
                "--quiet",
                "--save",
                "lora",
            ]
        )
        == 0
    )
    names = [tmp_path / folder / f"{family}-eraser-lora.safetensors" for folder in ("out", "again")]
    assert all(
        torch.equal(*pair)
        for pair in zip(*(load_file(name).values() for name in names), strict=True)
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "model.safetensors").write_bytes(Path(base).read_bytes())
    batch = [
        "batch",
        "--recipe",
        recipe,
        "--in",
        str(tmp_path / "in"),
        "--out",
        str(tmp_path / "b"),
        *text,
        "--quiet",
    ]
    assert main(batch) == 0 and (tmp_path / "b" / "model-erased.safetensors").is_file()


def test_a_file_with_its_encoders_inside_needs_no_paths(home: Path, tmp_path: Path) -> None:
    content = mini_dit.write_dit(tmp_path / "sd3.safetensors", "sd3", "model.diffusion_model.")
    parts = {"clip_l": "clip_l", "t5xxl": "t5"}
    for name, file in parts.items():
        tensors = load_file(home / f"{file}.safetensors")
        content |= {
            f"text_encoders.{name}.transformer.{key}": value for key, value in tensors.items()
        }
    save_file(content, tmp_path / "sd3.safetensors")
    arguments = [
        "erase",
        str(tmp_path / "sd3.safetensors"),
        "--concepts",
        CONCEPT,
        *mini.QUICK,
        *FEW[:2],
        "--quiet",
    ]
    assert main([*arguments, "--out", str(tmp_path), "--save", "lora", *given(home)]) == 0
    assert erase(home, "sd3", tmp_path / "parts", "--save", "lora") == 0
    ours, theirs = (
        load_file(folder / "sd3-eraser-lora.safetensors")
        for folder in (tmp_path, tmp_path / "parts")
    )
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("family", ["sd3", "flux-dev"])
def test_diffusers_folders(home: Path, tmp_path: Path, family: str) -> None:
    model = tmp_path / "model"
    components = {"transformer": pico.tensors(mini_dit.model_shapes(family, folder=True), 3)}
    places = {"sd3": {"clip_l": "", "t5": "_3"}, "flux-dev": {"clip_l": "", "t5": "_2"}}[family]
    for name, number in places.items():
        components[f"text_encoder{number}"] = load_file(home / f"{name}.safetensors")
    for name, tensors in components.items():
        (model / name).mkdir(parents=True)
        stem = "diffusion_pytorch_model" if name == "transformer" else "model"
        save_file(tensors, model / name / f"{stem}.safetensors")
    mini_dit.write_tokenizer(model / f"tokenizer{places['t5']}")
    (model / "model_index.json").write_text("{}")
    assert (
        main(
            [
                "erase",
                str(model),
                "--concepts",
                CONCEPT,
                *mini.QUICK,
                *FEW,
                "--out",
                str(tmp_path),
                "--quiet",
            ]
        )
        == 0
    )
    file = "transformer/diffusion_pytorch_model.safetensors"
    before, after = load_file(model / file), load_file(tmp_path / "model-erased" / file)
    edited = {"context_embedder.weight", "time_text_embed.text_embedder.linear_1.weight"}
    assert {key for key in before if not torch.equal(before[key], after[key])} == edited
    for name in components:
        if name != "transformer":
            part = Path(name, "model.safetensors")
            assert (model / part).read_bytes() == (tmp_path / "model-erased" / part).read_bytes()


def test_weights_of_8_bits_get_a_lora(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mini_dit.write_dit(tmp_path / "flux-dev.safetensors", "flux-dev", dtype=torch.float8_e4m3fn)
    arguments = [
        "erase",
        str(tmp_path / "flux-dev.safetensors"),
        "--concepts",
        CONCEPT,
        *mini.QUICK,
        *FEW,
    ]
    assert main([*arguments, *given(home, "t5"), "--out", str(tmp_path / "out")]) == 0
    assert "LoRA instead" in capsys.readouterr().err
    assert not (tmp_path / "out" / "flux-dev-erased.safetensors").exists()
    assert (tmp_path / "out" / "flux-dev-eraser-lora.safetensors").is_file()


REFUSED = {
    "flux-dev": {
        (): "no text encoder T5-XXL",
        ("clip_l",): "no text encoder T5-XXL",
        ("clip_g",): "contains no text encoder that Flux.1 dev uses",
        ("flux-dev", "t5"): "contains no text encoder that Flux.1 dev uses",
        ("t5", "t5"): "both contain T5-XXL",
    },
    "sd3": {
        (): "no text encoder CLIP-L and CLIP-G and T5-XXL",
        ("clip_l", "umt5"): "contains no text encoder that",
    },
}


@pytest.mark.parametrize(
    ("family", "names"), [(family, names) for family in REFUSED for names in REFUSED[family]]
)
def test_missing_and_wrong_encoders_are_a_sentence(
    home: Path,
    tmp_path: Path,
    family: str,
    names: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "umt5" in names and not (home / "umt5.safetensors").exists():
        table = "layer.0.SelfAttention.relative_attention_bias.weight"
        tensors = load_file(home / "t5.safetensors")
        tensors[f"encoder.block.1.{table}"] = tensors[f"encoder.block.0.{table}"].clone()
        save_file(tensors, home / "umt5.safetensors")
    arguments = [
        "erase",
        str(home / f"{family}.safetensors"),
        "--concepts",
        mini.CONCEPTS,
        *mini.QUICK,
    ]
    assert main([*arguments, *given(home, *names), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert (
        REFUSED[family][names] in said and said.count("\n") == 1 and not (tmp_path / "out").exists()
    )
    if "no text encoder T5" in said or not names:
        assert "--text-encoder PATH" in said


def test_what_is_missing_and_what_takes_long_is_said(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = [
        "erase",
        str(home / "sd3.safetensors"),
        "--concepts",
        CONCEPT,
        *mini.QUICK,
        *FEW[:2],
        "--save",
        "lora",
    ]
    assert main([*base, *given(home, "clip_l"), "--out", str(tmp_path / "a")]) == 0
    said = capsys.readouterr().err
    assert "CLIP-G" in said and "T5-XXL" in said and "--text-encoder PATH" in said
    assert "at full length" not in said
    monkeypatch.setattr("speed_erase.speed_ops.checkpoints.text_setup.MANY_TEXTS", 5)
    base[1] = str(home / "flux-dev.safetensors")
    assert main([*base, *given(home, "t5"), "--out", str(tmp_path / "b")]) == 0
    said = capsys.readouterr().err
    assert "T5-XXL encodes up to" in said and "texts at full length" in said
    assert "--effort fast" in said and "given" not in said


def test_no_tokenizer_is_a_sentence_that_says_where_to_get_one(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "T5_IN_COMFYUI", Path("nowhere"))
    base = ["erase", str(home / "flux-dev.safetensors"), "--concepts", mini.CONCEPTS, *mini.QUICK]
    encoder = ["--text-encoder", str(home / "t5.safetensors"), "--out", str(tmp_path / "out")]
    for more in ([], ["--tokenizer", str(tmp_path)]):
        assert main([*base, *encoder, *more]) == 1
        said = capsys.readouterr().err
        assert "T5 tokenizer" in said and "ComfyUI checkout" in said and "tokenizer.json" in said
