"""`--no-names`: no name that was erased or kept occurs in any byte that is written."""

from __future__ import annotations

import html
import json
import shutil
from pathlib import Path
from urllib.parse import quote

import mini
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from speed_erase.speed_ops.checkpoints.erase_file import clean_file
from speed_erase.speed_ops.checkpoints.output_files import PRODUCTS, OutputFiles
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import ExistsError, SpeedError
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.recipe import StoredJob
from speed_erase.speed_ops.text.concept_list import Concept
from speed_erase.speed_ops.text.names import fold
from speed_erase.speed_ops.text.retain_set import parse_retain

pytestmark = pytest.mark.usefixtures("own_cache")
ODD = (
    "O'Brien",
    'Say "hi" Fritz',
    "back\\slash Otto",
    "Zoë Ægir",
    "吉卜力",
    "Über & <b>",
    "🦊 Fuchs",
)
scripts = st.sampled_from(
    [
        "abcdefghij",
        "ABCxyzQ",
        "éüñçøåß",
        "дежзийк",
        "αβγδεζ",
        "漢字吉卜力猫",
        "🦊🐶👩",
        "'\"\\&<>+% ",
    ]
)
words = scripts.flatmap(lambda letters: st.text(letters, min_size=6, max_size=14)).map(fold)
names = st.lists(words, min_size=4, max_size=4, unique_by=str.casefold)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base") / "m.safetensors"
    mini.write_model(path)
    return path


def job_with(target: str, alias: str, anchor: str, kept: str) -> Job:
    concepts = (Concept(target, anchor, "style", (alias,)),)
    return Job.of(concepts, parse_retain(kept, f"{kept}.txt"), EraseSettings.preset("few"))


def erase(model: Path, job: Job, out: Path, **changes: bool) -> bytes:
    """All bytes of all products."""
    outputs = OutputFiles(out, PRODUCTS, no_names=True, **changes)
    clean_file(model, StoredJob(job), TextSetup(), outputs, note=lambda text: None)
    files = sorted(out.iterdir())
    assert len(files) == len(PRODUCTS)
    return b"\n".join(file.read_bytes() for file in files)


def spellings(name: str) -> set[bytes]:
    escaped = json.dumps(name)[1:-1]
    texts = {name, escaped, json.dumps(escaped)[1:-1], json.dumps(name, ensure_ascii=False)[1:-1]}
    texts |= {html.escape(name), html.escape(name).replace("&#x27;", "&#39;"), quote(name)}
    return {form.encode() for text in texts for form in (text, text.lower(), text.upper())}


@pytest.fixture(scope="module")
def plain(base: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What is written for a job whose names occur nowhere else."""
    job = job_with("Xyzzyq", "Plughqx", "Foobarqz", "Quuxzyq")
    return erase(base, job, tmp_path_factory.mktemp("plain"))


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.slow
@example(found=[ODD[0], ODD[1], ODD[2], ODD[3]])
@example(found=[ODD[4], ODD[5], ODD[6], ODD[0]])
@given(found=names)
def test_no_name_occurs_in_any_written_byte(
    base: Path, plain: bytes, tmp_path_factory: pytest.TempPathFactory, found: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("names")
    try:
        job = job_with(*found)
    except SpeedError:
        assume(False)
    assume(len(job.retain.names) == 1 and all(len(name) > 2 for name in found))
    # our own words, and short names that random weights contain
    assume(not any(form in plain for name in found for form in spellings(name)))
    metadata = {
        "modelspec.title": f"A model of {found[0]}",
        "tags": json.dumps(found),
        "link": f"https://example.org/{quote(found[1])}",
        f"about {found[3]}": "x",
        "kind": "toy",
    }
    model = folder / "source.safetensors"
    save_file(load_file(base), model, metadata=metadata)
    content = erase(model, job, folder / "out")
    assert b'"kind":"toy"' in content
    for name in found:
        for form in spellings(name):
            assert form not in content, (name, form)


def test_a_model_that_is_named_after_the_concept_is_not_named(base: Path, tmp_path: Path) -> None:
    model = tmp_path / "Zoë_Ægir style.safetensors"
    shutil.copy(base, model)
    outputs = OutputFiles(tmp_path / "out", PRODUCTS, name="m", no_names=True)
    job = job_with("Zoë Ægir", "Zoe", "art", "Klee")
    clean_file(model, StoredJob(job), TextSetup(), outputs, note=lambda text: None)
    for file in (tmp_path / "out").iterdir():
        content = file.read_bytes()
        assert b"gir style" not in content and "Zoë".encode() not in content


def test_another_job_without_names_is_never_taken_for_done(base: Path, tmp_path: Path) -> None:
    """Nothing in the files tells which names were erased, so they are in the way."""
    erase(base, job_with("Anna", "Annie", "art", "Klee"), tmp_path / "out")
    with pytest.raises(ExistsError):
        erase(base, job_with("Otto", "Ottokar", "art", "Klee"), tmp_path / "out")
