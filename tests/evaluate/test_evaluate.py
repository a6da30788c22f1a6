"""The command from end to end on servers that draw colours: what it finds, writes, refuses and
resumes.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import string
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from fake_comfy import BLACK, FakeComfy

from speed_erase.speed_ops.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = ROOT / "tests" / "support" / "fake_comfy.py"
SMALL = ("--size", "16x16", "--seeds", "2")


@pytest.fixture(scope="module")
def fake():
    running = FakeComfy()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """A CLIP with random weights and one token a letter, in the files that real ones have."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    text = {**shape, "vocab_size": 80, "eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 1}
    vision = {**shape, "image_size": 32, "patch_size": 8}
    CLIPModel(
        CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    ).save_pretrained(folder)
    letters = [letter + end for letter in string.ascii_lowercase + ".,'" for end in ("", "</w>")]
    vocabulary = {
        token: number for number, token in enumerate(["<|startoftext|>", "<|endoftext|>", *letters])
    }
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}'
    )
    return folder


def evaluate(out: Path, *given: str, code: int = 0, original: str = "model.safetensors") -> dict:
    models = ("--original", original, "--out", str(out))
    assert main(["evaluate", *models, *given, "--quiet"]) == code
    return json.loads((out / "evaluation.json").read_text())


def result(found: dict, label: str = "erased") -> dict:
    return next(model for model in found["models"] if model["label"] == label)


def refusal(capsys, *given: str) -> tuple[int, dict]:
    """Exit code and error of a command that fails."""
    capsys.readouterr()
    code = main(["evaluate", "--json", *given])
    return code, json.loads(capsys.readouterr().out)["error"]


def with_judges(fake: FakeComfy, *given: str) -> tuple[str, ...]:
    judges = ("--classifier", f"{FUNCTIONS}:by_colour", "--features", f"{FUNCTIONS}:mean_colours")
    return ("--erased", "lora:eraser.safetensors", "--server", fake.url, *SMALL, *judges, *given)


def prompts(folder: Path, *lines: str) -> str:
    file = folder / "mine.txt"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_every_prompt_gets_its_verdict(fake, tmp_path):
    file = prompts(tmp_path, "a boat by Zorn", "a leak by Zorn", "a boat by Klee", "a house", BLACK)
    given = ("--prompts", file, "--concepts", "Zorn -> art")
    found = evaluate(tmp_path, *with_judges(fake, *given))
    verdicts = {one["prompt"]: one["verdict"] for one in result(found)["prompts"]}
    assert verdicts["a boat by Zorn"] == "erased" and verdicts["a leak by Zorn"] == "leaking"
    assert verdicts["a house"] == "unjudged", (
        "it has no name that could be recognised, and nobody measures drift"
    )
    zorn, others = result(found)["groups"]
    assert (
        zorn["measures"]["recognized"]["value"] == 0.5
        and zorn["measures"]["recognized_before"]["value"] == 1.0
    )
    assert zorn["measures"]["fid"]["value"] > 1000 and others["measures"]["fid"]["value"] < 1e-6
    assert others["faults_before"] == {"black": 2} == others["faults_after"]
    assert others["measures"]["fid"]["count"] == 4, "black frames are judged by nobody"
    overall = result(found)["overall"]
    assert overall["acc_e"]["value"] == 0.5 and set(overall) == {"acc_e"}
    assert result(found, "original")["overall"]["acc_e"]["value"] == 1.0
    evaluate(tmp_path, "--strict", *with_judges(fake, *given), code=1)


def test_drift_and_scores_come_from_clip(fake, clip, tmp_path):
    file = prompts(tmp_path, "a boat by Zorn", "a boat by Klee")
    given = (
        "--erased",
        "lora:eraser.safetensors",
        "--server",
        fake.url,
        *SMALL,
        "--clip",
        str(clip),
    )
    found = evaluate(tmp_path, *given, "--prompts", file, "--concepts", "Zorn -> art")
    zorn, klee = result(found)["groups"]
    assert zorn["measures"]["drift"]["value"] > 0.01 > klee["measures"]["drift"]["value"]
    assert set(zorn["measures"]) >= {
        "clip_score_before",
        "clip_score",
        "frechet_clip",
        "recognized",
    }
    assert "fid" not in zorn["measures"], "what is not Inception's does not go by that name"
    assert (
        zorn["measures"]["clip_score_before"]
        == result(found, "original")["groups"][0]["measures"]["clip_score"]
    )
    assert "2 layers, 32 px" in found["scorers"]["clip"]
    verdicts = {one["prompt"]: one["verdict"] for one in result(found)["prompts"]}
    assert verdicts["a boat by Klee"] == "preserved"


def test_two_rivals_stand_beside_the_paper(fake, tmp_path):
    given = with_judges(fake, "--setup", "people/10", "--limit", "3")
    given = ("--erased", "UCE=erased.safetensors", *given)
    found = evaluate(
        tmp_path, *[text.replace("lora:eraser", "SPEED=lora:eraser") for text in given]
    )
    table = found["table"]
    assert list(table["ours"]) == ["original", "UCE", "SPEED"]
    assert table["paper"]["MACE"][2] == 92.75 and table["columns"][2] == ["", "h_o"]
    assert table["ours"]["original"][0] == 0.0, "grey pictures show nobody"
    assert table["ours"]["UCE"][5] is None, "our captions are not MS-COCO"
    page = (tmp_path / "report.html").read_text()
    assert "92.75" in page and page.count("data:image/jpeg") > 10


def test_the_original_has_no_distance_from_itself_in_the_table(fake, tmp_path):
    given = with_judges(fake, "--setup", "styles/monet", "--limit", "1")
    table = evaluate(tmp_path, *given)["table"]
    values = {
        label: [
            value for (_, name), value in zip(table["columns"], row, strict=True) if name == "fid"
        ]
        for label, row in table["ours"].items()
    }
    assert set(values["original"]) == {None} and None not in values["erased"][:5]


def test_the_page_holds_its_pictures_and_escapes_what_others_wrote(fake, tmp_path):
    file = prompts(tmp_path, "<script>alert(1)</script> by Zorn", "a tree by Klee")
    evaluate(tmp_path, *with_judges(fake, "--prompts", file, "--concepts", "Zorn -> art"))
    page = (tmp_path / "report.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and 'src="data:image/jpeg' in page
    assert str(ROOT) not in page, "a page that is shared says nothing about this machine"


def test_concepts_come_from_the_header_of_the_erased_file(fake, tmp_path):
    from speed_erase.speed_ops.recipe import Recipe, RecipeConcept

    recipe = Recipe(concepts=(RecipeConcept("Zorn", "art", "style"),), settings={})
    curve = {"in_the_way": [["Klee", 0.5]], "chosen": "not a curve"}
    metadata = {"speed.version": "1.0", "speed.recipe": recipe.to_json()}
    metadata["speed.certificate"] = json.dumps(
        {"concepts": [{"name": "Zorn", "verdict": "erased"}], "curve": curve}
    )
    server = FakeComfy(metadata=metadata)
    try:
        found = evaluate(tmp_path, *with_judges(server, "--limit", "1"))
    finally:
        server.stop()
    groups = {one["group"]: one["role"] for one in result(found)["groups"]}
    assert groups == {"Zorn": "erase", "Klee": "keep", "captions of ours": "keep"}
    assert "What erased claims" in (tmp_path / "report.html").read_text()


def test_pictures_of_another_program_are_judged_the_same(fake, tmp_path):
    """How methods come in that ComfyUI cannot run: draw from our list elsewhere, and give the
    folder.
    """
    file = prompts(tmp_path, "a boat by Zorn", "a boat by Klee")
    given = with_judges(fake, "--prompts", file, "--concepts", "Zorn -> art")
    first = evaluate(tmp_path / "first", *given)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    rows = list(csv.DictReader((tmp_path / "first" / "prompts.csv").open()))
    shots = {(one["prompt"], shot["seed"]): shot["after"]
             for one in result(first)["prompts"] for shot in one["images"]}  # fmt: skip
    for row in rows:
        key = shots[row["prompt"], int(row["seed"])]
        os.link(
            tmp_path / "first" / "pictures" / key[:2] / f"{key}.png",
            theirs / f"{row['number']}.png",
        )
    album = ("--pictures", str(tmp_path / "first" / "pictures"))
    again = [text.replace("lora:eraser.safetensors", f"pictures:{theirs}") for text in given]
    second = evaluate(tmp_path / "second", *again, *album)
    ours, theirs_ = (result(one)["groups"] for one in (first, second))
    for one, other in zip(ours, theirs_, strict=True):
        assert one["measures"]["fid"] == other["measures"]["fid"]
        assert one["measures"].get("recognized") == other["measures"].get("recognized")


def test_a_killed_run_goes_on_where_it_was(fake, tmp_path):
    """The process is killed without a word while it draws; the next one draws only what is
    missing.
    """
    file = prompts(tmp_path, *(f"a boat number {number} by Klee" for number in range(40)))
    command = [
        sys.executable,
        "-m",
        "speed_erase.speed_ops.cli",
        "evaluate",
        "--original",
        "model.safetensors",
    ]
    command += [
        "--out",
        str(tmp_path),
        "--prompts",
        file,
        "--erased",
        "lora:eraser.safetensors",
        "--server",
        fake.url,
    ]
    done = len(fake.drawn)
    running = subprocess.Popen(
        [*command, *SMALL], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while len(list((tmp_path / "pictures").glob("??/*.png"))) < 10:
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    running.wait()
    kept = len(list(tmp_path.rglob("*.png")))
    assert 10 <= kept < 160 and not (tmp_path / "evaluation.json").exists()
    assert main(["evaluate", *command[4:], *SMALL, "--quiet"]) == 0
    assert len(list(tmp_path.rglob("*.png"))) == 160
    assert len(fake.drawn) - done <= 160 + 1, (
        "at most the picture that was under way is drawn again"
    )


def test_nobody_is_asked_twice_about_a_picture(fake, tmp_path):
    """Not by a second run, nor by one with more prompts; but another judge, or a damaged file, is a
    reason to ask.
    """
    judge, asked = tmp_path / "mine.py", tmp_path / "asked"
    code = f"""
def count(pictures):
    with open({str(asked)!r}, "a") as log:
        log.write("x" * len(pictures))

def names(pictures):
    count(pictures)
    return ["Zorn"] * len(pictures)

def rows(pictures):
    count(pictures)
    return [[one.getpixel((0, 0))[0], 1.0] for one in pictures]
"""
    judge.write_text(code)

    def asked_by(*lines: str) -> tuple[int, dict]:
        asked.write_text("")
        given = (
            "--erased",
            "lora:eraser.safetensors",
            "--server",
            fake.url,
            *SMALL,
            "--concepts",
            "Zorn -> art",
        )
        given = (*given, "--classifier", f"{judge}:names", "--features", f"{judge}:rows")
        found = evaluate(tmp_path, *given, "--prompts", prompts(tmp_path, *lines))
        return len(asked.read_text()), found

    count, first = asked_by("a boat by Zorn")
    assert count == 8 and asked_by("a boat by Zorn") == (0, first)
    assert asked_by("a boat by Zorn", "a tree by Zorn")[0] == 8
    next((tmp_path / "pictures" / "scores").rglob("*.npy")).write_bytes(b"broken")
    assert asked_by("a boat by Zorn", "a tree by Zorn")[0] == 1
    judge.write_text(code + "# better\n")
    assert asked_by("a boat by Zorn")[0] == 8


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((), "--erased"),
        (("--erased", "x", "--setup", "styles/monet", "--prompts", "p"), "--prompts"),
        (("--erased", "x"), "--concepts"),
        (("--erased", "x", "--concepts", "Zorn", "--size", "large"), "--size"),
        (("--erased", "x", "--concepts", "Zorn", "--seeds", "0"), "--seeds"),
        (("--erased", "x", "--setup", "styles/monet", "--list", "captions"), "--list"),
        (("--erased", "a=x", "--erased", "a=y", "--concepts", "Zorn"), "'a'"),
        (("--erased", "x", "--concepts", "Zorn", "--clip-vision", "v"), "--clip-vision"),
        (("--erased", "x", "--concepts", "Zorn", "--classifier", "nothing"), "'nothing'"),
        (("--erased", "x", "--concepts", "Zorn", "--classifier", "os:nothing"), "os:nothing"),
    ],
)
def test_bad_usage_is_told_before_anything_is_drawn(given, named, tmp_path, capsys):
    models = ("--original", "model.safetensors", "--out", str(tmp_path / "out"))
    code, error = refusal(capsys, *models, *given)
    assert code == 2 and error["code"] == "usage" and named in error["message"]
    assert not list(tmp_path.rglob("*.png"))


def test_the_setups_are_listed_without_torch():
    code = (
        "import sys; from speed_erase.speed_ops.cli.main import main; main(['evaluate',"
        " '--setups']); "
    )
    code += "assert 'torch' not in sys.modules, 'slow'"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "styles/van-gogh" in shown.stdout and "Table 9" in shown.stdout


def test_functions_that_return_nonsense_are_refused(fake, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "def one(pictures):\n    return ['x']\n\ndef flat(pictures):\n    return [1.0] *"
        " len(pictures)\n"
    )
    common = [
        *("--original", "model.safetensors", "--erased", "lora:eraser.safetensors"),
        *("--server", fake.url, "--out", str(tmp_path / "out"), "--concepts", "Zorn"),
        *("--limit", "1", *SMALL),
    ]
    for judge in (("--classifier", f"{file}:one"), ("--features", f"{file}:flat")):
        code, error = refusal(capsys, *common, *judge)
        assert code == 1 and error["code"] == "settings" and judge[1] in error["message"]


def test_nudity_judges_prompts_that_aim_at_it_and_no_others(fake, tmp_path, monkeypatch):
    class NudeDetector:
        def detect(self, image: np.ndarray) -> list[dict]:
            red = image[..., 2].mean() > 150 > image[..., 0].mean()
            return [{"class": "BUTTOCKS_EXPOSED", "score": 0.9}] * int(red)

    monkeypatch.setitem(sys.modules, "nudenet", types.SimpleNamespace(NudeDetector=NudeDetector))
    monkeypatch.setattr(
        "speed_erase.speed_ops.evaluate.scorers.metadata.version", lambda name: "3.4.2"
    )
    file = tmp_path / "mine.csv"
    lines = (
        "prompt,type,concept,group",
        "one of Zorn,erase,,attack",
        "a leak of Zorn,erase,,attack",
        "Zorn,erase,Zorn,",
    )
    file.write_text("\n".join(lines) + "\n")
    given = (
        "--erased",
        "lora:eraser.safetensors",
        "--server",
        fake.url,
        *SMALL,
        "--nudenet",
        "--prompts",
        str(file),
    )
    found = result(evaluate(tmp_path, *given))
    assert [one["verdict"] for one in found["prompts"]] == ["erased", "leaking", "unjudged"]
    attack = found["groups"][0]["measures"]
    assert attack["nudity_before"]["value"] == 1.0 and attack["nudity"]["value"] == 0.5


def test_judges_that_are_not_there_are_refused_before_anything_is_drawn(
    fake, tmp_path, capsys, monkeypatch
):
    """Nothing is downloaded in their place."""
    import torch

    for package in ("nudenet", "lpips"):
        monkeypatch.setitem(sys.modules, package, None)
    empty = tmp_path / "empty"
    empty.mkdir()
    common = [
        *("--original", "model.safetensors", "--erased", "lora:eraser.safetensors"),
        *("--server", fake.url, "--out", str(tmp_path / "out"), "--concepts", "Zorn"),
    ]
    for judge, expected in (
        (["--nudenet"], "missing-package"),
        (["--lpips"], "missing-package"),
        (["--clip", str(empty)], "file"),
        (["--clip-vision", "vit.safetensors"], "input"),
    ):
        code, error = refusal(capsys, *common, *judge)
        assert code == 1 and error["code"] == expected
    monkeypatch.setitem(sys.modules, "lpips", types.SimpleNamespace(LPIPS=pytest.fail))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(empty))
    code, error = refusal(capsys, *common, "--lpips")
    assert code == 1 and error["code"] == "input" and str(empty) in error["message"]
    assert not list(tmp_path.rglob("*.png"))


def test_lpips_compares_each_pair_once(fake, tmp_path, monkeypatch):
    import torch

    class Distance(torch.nn.Module):
        def __init__(self, net: str, verbose: bool) -> None:
            super().__init__()

        def forward(self, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
            return (before - after).abs().mean()

    monkeypatch.setitem(sys.modules, "lpips", types.SimpleNamespace(LPIPS=Distance))
    monkeypatch.setattr(
        "speed_erase.speed_ops.evaluate.scorers.metadata.version", lambda name: "0.1.4"
    )
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "alexnet-1.pth").touch()
    file = prompts(tmp_path, "a boat by Zorn", "a boat by Klee")
    models = ("--erased", "lora:eraser.safetensors", "--server", fake.url, *SMALL, "--lpips")
    given = (*models, "--prompts", file, "--concepts", "Zorn -> art")
    found = evaluate(tmp_path, *given)
    zorn, klee = (group["measures"]["lpips"] for group in result(found)["groups"])
    assert zorn["value"] > 0.1 and zorn["count"] == 2 and klee["value"] == 0
    monkeypatch.setattr(Distance, "forward", pytest.fail)
    assert evaluate(tmp_path, *given) == found


def test_nudity_is_counted_by_the_user_s_nudenet(monkeypatch):
    """The package is not ours to ship: what we ask of it, and what we say about it, is."""
    from importlib import metadata

    from speed_erase.speed_ops.evaluate.scorers import nudenet

    class NudeDetector:
        def detect(self, image: np.ndarray) -> list[dict]:
            blue_first = image[0, 0, 0] < image[0, 0, 2]
            score = 0.7 if blue_first else 0.5
            return [
                {"class": "BUTTOCKS_EXPOSED", "score": score},
                {"class": "FACE_FEMALE", "score": 0.99},
            ]

    monkeypatch.setitem(sys.modules, "nudenet", types.SimpleNamespace(NudeDetector=NudeDetector))
    monkeypatch.setattr(metadata, "version", lambda name: "3.4.2")
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 255
    judge = nudenet()
    assert judge.images([red, red[..., ::-1]]) == [True, False]
    assert nudenet(threshold=0.75).images([red]) == [False]
    assert nudenet(labels=("ANUS_EXPOSED",)).images([red]) == [False]
    for part in ("3.4.2", "AGPL-3.0", "threshold 0.6", "BUTTOCKS_EXPOSED"):
        assert part in judge.about
