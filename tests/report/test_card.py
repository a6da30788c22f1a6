"""The model card: what it contains, what it escapes, and how it is known again."""

from __future__ import annotations

from pathlib import Path

import mini
import pytest

from speed_erase.speed_ops.checkpoints.erase_file import clean_file
from speed_erase.speed_ops.checkpoints.output_files import OutputFiles
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.recipe import StoredJob
from speed_erase.speed_ops.report.card import is_ours, model_card
from speed_erase.speed_ops.text.concept_list import Concept
from speed_erase.speed_ops.text.retain_set import parse_retain

NAME = "A_b|c*"


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("card")
    mini.write_model(folder / "m.safetensors")
    retain = parse_retain("Claude Monet\nEdgar Degas\nPaul Klee", "friends", "style")
    job = Job.of((Concept(NAME, "art", "style"),), retain, EraseSettings.preset("few"))
    outputs = OutputFiles(folder / "out", ("lora", "card"))
    return clean_file(
        folder / "m.safetensors", StoredJob(job), TextSetup(), outputs, note=lambda text: None
    )


def test_the_card_is_written_with_the_files(cleaned) -> None:
    path: Path = cleaned.files["card"]
    erasure = cleaned.erasure
    card, result = path.read_text(), erasure.certificate.concepts[0]
    (row,) = [line for line in card.splitlines() if line.startswith("| A")]
    assert r"A\_b\|c\*" in row and f"{result.left:.0%}" in row
    assert erasure.recipe.base_hash in card and cleaned.files["lora"].name in card


def test_a_card_is_known_until_someone_edits_it(cleaned, tmp_path: Path) -> None:
    base_hash, card = cleaned.erasure.recipe.base_hash, cleaned.files["card"]
    assert is_ours(card, base_hash) and not is_ours(card, "0" * 64)
    edited = tmp_path / card.name
    edited.write_text(card.read_text().replace("## License", "## My license"))
    assert not is_ours(edited, base_hash)
    assert not is_ours(tmp_path / "missing.md", base_hash)


def test_only_a_license_that_hosts_know_is_in_the_front_matter(cleaned) -> None:
    known = model_card(cleaned.erasure, "m", "Apache-2.0")
    other = model_card(cleaned.erasure, "m", "mine: [x]\n---\n<b>")
    assert "\nlicense: apache-2.0\n" in known
    assert "\nlicense:" not in other and "<b>" not in other and r"mine: \[x\] ---" in other
    assert model_card(cleaned.erasure, "m").count("license") < other.count("license") + 2
