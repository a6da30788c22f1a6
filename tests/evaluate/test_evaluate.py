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
    verdicts = {one["prompt"]: one["verdict"] for one in found["results"]["erased"]["prompts"]}
    assert verdicts["a boat by Zorn"] == "erased" and verdicts["a leak by Zorn"] == "leaking"
    assert verdicts["a house"] == "unjudged", (
        "it has no name that could be recognised, and nobody measures drift"
    )
    zorn, others = found["results"]["erased"]["groups"]
    assert (
        zorn["measures"]["recognised"]["value"] == 0.5
        and zorn["measures"]["recognised before"]["value"] == 1.0
    )
    assert zorn["measures"]["FID"]["value"] > 1000 and others["measures"]["FID"]["value"] < 1e-6
    assert others["faults"] == {"before": {"black": 2}, "after": {"black": 2}}
    assert others["measures"]["FID"]["count"] == 4, "black frames are judged by nobody"
    overall = found["results"]["erased"]["overall"]
    assert overall["Acc_e"]["value"] == 0.5 and overall["Acc_r"] is None and overall["H_o"] is None
    assert found["results"]["original"]["overall"]["Acc_e"]["value"] == 1.0
    strict = main(["evaluate", "--original", "model.safetensors", "--out", str(tmp_path), "--strict", "--quiet",
                   *with_judges(fake, *given)])  # fmt: skip
    assert strict == 1, "with --strict a leak is a failure"


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
    zorn, klee = found["results"]["erased"]["groups"]
    assert zorn["measures"]["drift"]["value"] > 0.01 > klee["measures"]["drift"]["value"]
    assert set(zorn["measures"]) >= {"CS before", "CS", "Frechet (CLIP)", "recognised"}
    assert "FID" not in zorn["measures"], "what is not Inception's does not go by that name"
    assert (
        zorn["measures"]["CS before"] == found["results"]["original"]["groups"][0]["measures"]["CS"]
    )
    assert "2 layers, 32 px" in found["judges"]["CS, drift"]
    verdicts = {one["prompt"]: one["verdict"] for one in found["results"]["erased"]["prompts"]}
    assert verdicts["a boat by Klee"] == "preserved"


def test_two_rivals_stand_beside_the_paper(fake, tmp_path):
    given = with_judges(fake, "--setup", "people/10", "--limit", "3")
    given = ("--erased", "UCE=erased.safetensors", *given)
    found = evaluate(
        tmp_path, *[text.replace("lora:eraser", "SPEED=lora:eraser") for text in given]
    )
    table = found["table"]
    assert [row["method"] for row in table["ours"]] == ["original", "UCE", "SPEED"]
    paper = {row["method"]: row["values"] for row in table["paper"]}
    assert paper["MACE"][2] == 92.75 and table["columns"][2] == ["", "H_o"]
    assert table["ours"][0]["values"][0]["value"] == 0.0, "grey pictures show nobody"
    assert table["ours"][1]["values"][5] is None, "our captions are not MS-COCO"
    page = (tmp_path / "report.html").read_text()
    assert "Beside the paper" in page and "92.75" in page and page.count("data:image/jpeg") > 10


def test_the_original_has_no_distance_from_itself_in_the_table():
    from speed_erase.speed_ops.evaluate.findings import _table
    from speed_erase.speed_ops.evaluate.painters import parse_model
    from speed_erase.speed_ops.evaluate.setup import PaperTable

    figure = {"value": 0.5, "low": None, "high": None}
    result = {
        "overall": {},
        "groups": [{"group": "Klee", "measures": {"FID": figure, "CS": figure}}],
    }
    table = PaperTable("somewhere", (("Klee", "FID"), ("Klee", "CS")), {})
    models = [parse_model("model.safetensors", label, None) for label in ("original", "erased")]
    found = _table(table, dict.fromkeys(("original", "erased"), result), models, {})
    assert [row["values"] for row in found["ours"]] == [[None, figure], [figure, figure]]


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
    groups = {one["group"]: one["role"] for one in found["results"]["erased"]["groups"]}
    assert groups == {"Zorn": "erase", "Klee": "keep", "captions of ours": "keep"}
    assert "The certificate of erased" in (tmp_path / "report.html").read_text()


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
             for one in first["results"]["erased"]["prompts"] for shot in one["pictures"]}  # fmt: skip
    for row in rows:
        key = shots[row["prompt"], int(row["seed"])]
        os.link(
            tmp_path / "first" / "pictures" / key[:2] / f"{key}.png",
            theirs / f"{row['number']}.png",
        )
    album = ("--pictures", str(tmp_path / "first" / "pictures"))
    again = [text.replace("lora:eraser.safetensors", f"pictures:{theirs}") for text in given]
    second = evaluate(tmp_path / "second", *again, *album)
    ours, theirs_ = (one["results"]["erased"]["groups"] for one in (first, second))
    for one, other in zip(ours, theirs_, strict=True):
        assert one["measures"]["FID"] == other["measures"]["FID"]
        assert one["measures"].get("recognised") == other["measures"].get("recognised")


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
    while len(list(tmp_path.rglob("*.png"))) < 10:
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
    next((tmp_path / "pictures" / "judged").rglob("*.npy")).write_bytes(b"broken")
    assert asked_by("a boat by Zorn", "a tree by Zorn")[0] == 1
    judge.write_text(code + "# better\n")
    assert asked_by("a boat by Zorn")[0] == 8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "Give --original, --erased and --out"),
        (
            ("--erased", "x", "--setup", "styles/monet", "--prompts", "p"),
            "--setup or --prompts, not both",
        ),
        (("--erased", "x"), "No header says what was erased"),
        (("--erased", "x", "--concepts", "Zorn", "--size", "large"), "write it as 512x512"),
        (("--erased", "x", "--concepts", "Zorn", "--seeds", "0"), "at least 1"),
        (("--erased", "x", "--setup", "styles/monet", "--list", "captions"), "write NAME=FILE"),
        (("--erased", "a=x", "--erased", "a=y", "--concepts", "Zorn"), "Two models are called 'a'"),
        (("--erased", "x", "--concepts", "Zorn", "--clip-vision", "v"), "give --server"),
        (("--erased", "x", "--concepts", "Zorn", "--classifier", "nothing"), "names no function"),
        (
            ("--erased", "x", "--concepts", "Zorn", "--classifier", "os:nothing"),
            "There is no os:nothing",
        ),
    ],
)
def test_bad_usage_is_told_before_anything_is_drawn(given, said, tmp_path, capsys):
    assert (
        main(
            ["evaluate", "--original", "model.safetensors", "--out", str(tmp_path / "out"), *given]
        )
        == 2
    )
    assert said in capsys.readouterr().err
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
        "evaluate",
        "--original",
        "model.safetensors",
        "--erased",
        "lora:eraser.safetensors",
        "--server",
        fake.url,
    ]
    common += ["--out", str(tmp_path / "out"), "--concepts", "Zorn", "--limit", "1", *SMALL]
    assert main([*common, "--classifier", f"{file}:one"]) == 1
    assert "must return one name for each picture" in capsys.readouterr().err
    assert main([*common, "--features", f"{file}:flat"]) == 1
    assert "must return a row of numbers for each picture" in capsys.readouterr().err


def test_nudity_judges_prompts_that_aim_at_it_and_no_others(fake, tmp_path, monkeypatch):
    class NudeDetector:
        def detect(self, image: np.ndarray) -> list[dict]:
            red = image[..., 2].mean() > 150 > image[..., 0].mean()
            return [{"class": "BUTTOCKS_EXPOSED", "score": 0.9}] * int(red)

    monkeypatch.setitem(sys.modules, "nudenet", types.SimpleNamespace(NudeDetector=NudeDetector))
    monkeypatch.setattr(
        "speed_erase.speed_ops.evaluate.judges.metadata.version", lambda name: "3.4.2"
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
    found = evaluate(tmp_path, *given)["results"]["erased"]
    assert [one["verdict"] for one in found["prompts"]] == ["erased", "leaking", "unjudged"]
    attack = found["groups"][0]["measures"]
    assert attack["nudity before"]["value"] == 1.0 and attack["nudity"]["value"] == 0.5


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
        "evaluate",
        "--original",
        "model.safetensors",
        "--erased",
        "lora:eraser.safetensors",
        "--server",
        fake.url,
    ]
    common += ["--out", str(tmp_path / "out"), "--concepts", "Zorn"]
    for judge, said in (
        (["--nudenet"], "pip install nudenet"),
        (["--lpips"], "pip install lpips"),
        (["--clip", str(empty)], "holds no CLIP model"),
        (["--clip-vision", "vit.safetensors"], "does not have this package's nodes"),
    ):
        assert main([*common, *judge]) == 1
        assert said in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "lpips", types.SimpleNamespace(LPIPS=pytest.fail))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(empty))
    assert main([*common, "--lpips"]) == 1
    assert "this program downloads nothing" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.png"))


def test_nudity_is_counted_by_the_user_s_nudenet(monkeypatch):
    """The package is not ours to ship: what we ask of it, and what we say about it, is."""
    from importlib import metadata

    from speed_erase.speed_ops.evaluate.judges import NudeNet

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
    judge = NudeNet()
    assert judge.exposed(red) and not judge.exposed(red[..., ::-1])
    assert not NudeNet(threshold=0.75).exposed(red) and not NudeNet(
        labels=("ANUS_EXPOSED",)
    ).exposed(red)
    for part in ("3.4.2", "AGPL-3.0", "threshold 0.6", "BUTTOCKS_EXPOSED"):
        assert part in judge.about
