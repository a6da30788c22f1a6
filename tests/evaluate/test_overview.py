"""One job on many models as one page: what it compares, what it could not, and hostile names."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import mini
import pytest

from speed_erase.speed_ops.checkpoints.batch import (
    Candidate,
    Done,
    classify,
    clean_one,
    find_models,
)
from speed_erase.speed_ops.checkpoints.output_files import OutputFiles
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.cli.main import main
from speed_erase.speed_ops.demo.packed_model import write_checkpoint
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.evaluate.local import LOCAL_SAMPLING, LocalBackend
from speed_erase.speed_ops.evaluate.overview import write_overview
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.recipe import StoredJob, recipe_of
from speed_erase.speed_ops.text.concept_list import Concept
from speed_erase.speed_ops.text.retain_set import parse_retain

HOSTILE = "<img src=x onerror=alert(1)>"
CONCEPTS = (Concept(HOSTILE, "art", "style"), Concept("Orla Venn", "art", "style"))


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def stored() -> StoredJob:
    retain = parse_retain("Claude Monet\nEdgar Degas\nPaul Klee", "friends", "style")
    return StoredJob(Job.of(CONCEPTS, retain, EraseSettings.preset("few")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, a small one of another family, and a broken file."""
    folder = tmp_path_factory.mktemp("models")
    write_checkpoint(folder / "demo <b>.safetensors")
    mini.write_model(folder / "orla venn.safetensors", "sdxl")
    (folder / "broken.safetensors").write_bytes(b"no model")
    return folder


def results(
    folder: Path, stored: StoredJob, outputs: OutputFiles
) -> tuple[list[Candidate], list[Done]]:
    candidates = classify(find_models(folder, outputs), stored, None)
    work = (TextSetup(), lambda sentence: None, threading.Event())
    return candidates, [clean_one(candidate, stored, *work) for candidate in candidates]


@pytest.fixture(scope="module")
def overview(folder: Path, stored: StoredJob, tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("out")
    outputs = OutputFiles(out, ("lora", "report"))
    models, done = results(folder, stored, outputs)
    drawings = [(LocalBackend(), replace(LOCAL_SAMPLING, steps=2))]
    page, data = write_overview(out, models, done, stored, drawings)
    return Page(page.read_text(encoding="utf-8")), json.loads(data.read_text())


def test_models_of_different_families_are_compared(overview) -> None:
    page, data = overview
    models = {model["model"]: model for model in data["models"]}
    assert set(models) == {"demo <b>.safetensors", "orla venn.safetensors"}
    assert len({model["family"] for model in models.values()}) == 2
    for model in models.values():
        assert [claim["name"] for claim in model["concepts"]] == [HOSTILE, "Orla Venn"]
        assert model["side_effects"]["most_affected"]
    badges = [
        attrs for tag, attrs in page.tags if tag == "span" and "badge" in attrs.get("class", "")
    ]
    assert len(badges) == 4
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert len(links) == 2 and "demo%20%3Cb%3E-report.html" in links


def test_what_can_be_drawn_is_drawn_and_the_rest_is_named(overview) -> None:
    page, data = overview
    images = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 4 and all(src.startswith("data:image/jpeg;base64,") for src in images)
    assert images[2] != images[3], "Orla Venn before and after"
    (missing,) = data["not_compared"]
    assert missing["model"] == "broken.safetensors" and missing["reason"] in page.text
    assert "orla venn.safetensors, images:" in page.text.replace("\n", "")


def test_no_name_becomes_markup(overview) -> None:
    page, _ = overview
    assert "script" not in {tag for tag, _ in page.tags}
    assert all("onerror" not in attrs for _, attrs in page.tags)
    assert HOSTILE in page.text and "demo <b>.safetensors" in page.text


def test_without_names_none_is_on_the_page(folder: Path, stored: StoredJob, tmp_path: Path) -> None:
    outputs = OutputFiles(tmp_path, ("lora", "report"), no_names=True)
    models, done = results(folder, stored, outputs)
    drawings = [(LocalBackend(), replace(LOCAL_SAMPLING, steps=1))]
    page, data = write_overview(tmp_path, models, done, stored, drawings)
    for file in (page, data):
        text = file.read_text(encoding="utf-8").lower()
        assert "orla" not in text and "onerror" not in text and "concept 2" in text
        assert "monet" not in text and "degas" not in text and "klee" not in text


def test_the_command_writes_it_again_from_finished_results(
    stored: StoredJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    mini.write_model(tmp_path / "in" / "a.safetensors")
    recipe_of(stored.job).write(tmp_path / "r.json")
    words = ["batch", "--recipe", str(tmp_path / "r.json"), "--in", str(tmp_path / "in")]
    words += ["--out", str(tmp_path / "out"), "--save", "lora,recipe", "--no-cache"]
    assert main(words) == 0
    assert not (tmp_path / "out" / "overview.html").exists()
    assert main([*words, "--overview"]) == 0
    (model,) = json.loads((tmp_path / "out" / "overview.json").read_text())["models"]
    assert model["model"] == "a.safetensors" and len(model["concepts"]) == 2
    capsys.readouterr()
    assert main([*words, "--server", "http://127.0.0.1:1"]) == 2
