"""Recipes and headers: what is written is read back, newer minor versions too; nonsense is one
sentence.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pico
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from speed_erase.speed_ops.checkpoints.source import encoder_hash
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import (
    ExistsError,
    FileError,
    InputError,
    NotFoundError,
    SpeedError,
)
from speed_erase.speed_ops.files.checkpoint import Checkpoint, file_hash
from speed_erase.speed_ops.files.header import MAX_HEADER_BYTES, encode_header, parse_header
from speed_erase.speed_ops.files.tensors import tensors_hash
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.models.architecture import LayerKey
from speed_erase.speed_ops.models.detect import detect, layers
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.provenance import (
    MAX_CERTIFICATE_BYTES,
    build_metadata,
    history_of,
    read_provenance,
)
from speed_erase.speed_ops.recipe import (
    MAX_HISTORY,
    Recipe,
    RecipeConcept,
    RecipeRetain,
    job_of,
    recipe_of,
    same_form,
)
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.names import MAX_ALIASES, MAX_CONCEPTS, MAX_LISTS, MAX_NAME
from speed_erase.speed_ops.text.retain_set import RetainSet, parse_retain, retain_from_names, union

RECIPE = Recipe(
    concepts=(
        RecipeConcept("Van Gogh", "art", "style", ("Vincent van Gogh",)),
        RecipeConcept('Ünïcödé 🦊 "quoted" O\'Hara', "", "person"),
    ),
    settings={
        "method": "speed",
        "threshold": 0.1,
        "ipf": True,
        "layers": "V",
        "list": [1, 2.5, None, "x"],
    },
    contexts=("a painting in the style of {name}",),
    rows={"rows": "context", "templates": 6},
    retain=(
        RecipeRetain("artists", "ab" * 32),
        RecipeRetain("mine.txt", "cd" * 32, "style", ("Monet", "Klee")),
    ),
    family="sd1",
    package_version="0.1.0",
    base_hash="12" * 32,
    encoder_hash="34" * 32,
)
CERTIFICATE = {
    "concepts": [{"name": "Van Gogh", "score": 0.99}],
    "warnings": ["van gogh still shines through Monet's room"],
    "settings": {"method": "Monet"},
}


def test_a_recipe_is_read_back(tmp_path: Path) -> None:
    RECIPE.write(tmp_path / "r.json")
    assert Recipe.read(tmp_path / "r.json") == RECIPE
    assert RECIPE.to_json().isascii() and "\n" not in RECIPE.to_json()
    with pytest.raises(ExistsError):
        RECIPE.write(tmp_path / "r.json")


def changed(**fields: object) -> str:
    return json.dumps(json.loads(RECIPE.to_json()) | fields)


def test_newer_minor_versions_and_unknown_fields_are_accepted() -> None:
    recipe = Recipe.from_json(changed(version="1.7", future={"a": [1]}))
    assert recipe == RECIPE and recipe.unknown == ("future",)
    assert Recipe.from_json(b"\xef\xbb\xbf" + RECIPE.to_json().encode()) == RECIPE


NONSENSE = [
    "{",
    "[]",
    "{}",
    changed(schema="speed.other"),
    changed(version="2.0"),
    changed(version=1.0),
    changed(future={"a": [1]}),
    changed(model="m.safetensors"),
    changed(concepts=[]),
    changed(concepts=[1984]),
    changed(concepts=["a -> b -> c"]),
    changed(concepts=[{"anchor": "art"}]),
    changed(concepts=[{"target": "  "}]),
    changed(concepts=[{"target": "a\nb"}]),
    changed(concepts=[{"target": "a" * 2001}]),
    changed(concepts=[{"target": "a", "aliases": ["b"] * 101}]),
    changed(concepts=[{"file": "/etc/passwd"}]),
    changed(retain=["artist"]),
    changed(retain=[{"file": "/etc/passwd"}]),
    changed(strength="1"),
    changed(clip_skip=1.5),
    changed(names=1),
    changed(settings={"a": list(range(3000))}),
    changed(settings={"a": [[[[[]]]]]}),
    RECIPE.to_json()[:-1] + ',"family":"x"}',
    changed(settings={"a": float("nan")}),
    RECIPE.to_json().replace("2.5", "1e999"),
    RECIPE.to_json().replace("2.5", "9" * 5000),
    "[" * 100_000,
    "[" + " " * 16_000_001,
]


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_a_sentence(text: str) -> None:
    with pytest.raises(SpeedError) as caught:
        Recipe.from_json(text, "r.json")
    message = str(caught.value)
    assert message.startswith("r.json") and "\n" not in message and len(message) < 600


def test_bad_bytes_and_missing_files_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not UTF-8"):
        Recipe.from_json(b"\xff\xfe{}")
    with pytest.raises(NotFoundError):
        Recipe.read(tmp_path / "missing.json")
    for path in (tmp_path, "a\0b"):
        with pytest.raises(FileError, match="Cannot read"):
            Recipe.read(path)
    with pytest.raises(FileError, match="plain and finite"):
        replace(RECIPE, settings={"a": object()}).to_json()


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutated_recipes_are_read_or_refused(count: int) -> None:
    dice = random.Random(count)
    pieces = [
        "{",
        "}",
        "[",
        "]",
        '"',
        ",",
        ":",
        "null",
        "-1",
        "1e400",
        "NaN",
        "\\ud800",
        "\\u0000",
        "\x00",
        "true",
        "🦊",
    ]
    outcomes = [0, 0]
    for _ in range(count):
        text = RECIPE.to_json()
        for _ in range(dice.randint(1, 3)):
            place = dice.randrange(len(text))
            text = (
                text[:place]
                + dice.choice([dice.choice(pieces), ""])
                + text[place + dice.randint(0, 8) :]
            )
        try:
            recipe = Recipe.from_json(text)
            assert Recipe.from_json(recipe.to_json()) == recipe
            outcomes[0] += 1
        except FileError:
            outcomes[1] += 1
    assert min(outcomes) > 0


def test_headers_are_read_back(tmp_path: Path) -> None:
    metadata = build_metadata(by_name("sdxl"), "checkpoint", RECIPE, CERTIFICATE, title="clean")
    assert metadata["modelspec.title"] == "clean" and metadata["modelspec.implementation"] == "sgm"
    content = pico.tensors({"a": (2, 2)})
    save_file(content, tmp_path / "a.safetensors", metadata=metadata)
    found = read_provenance(Checkpoint.open(tmp_path / "a.safetensors").metadata)
    assert found is not None
    assert (found.recipe, found.certificate) == (RECIPE, CERTIFICATE)
    assert (found.base_hash, found.encoder_hash) == (RECIPE.base_hash, RECIPE.encoder_hash)
    assert read_provenance({"modelspec.title": "somebody else's"}) is None


def test_headers_keep_what_the_source_says() -> None:
    existing = {"modelspec.architecture": "stable-diffusion-v2-768-v", "modelspec.title": "old"}
    metadata = build_metadata(
        by_name("sd2"), "checkpoint", RECIPE, {}, existing=existing, title="new"
    )
    assert (
        metadata["modelspec.architecture"] == "stable-diffusion-v2-768-v"
        and metadata["modelspec.title"] == "new"
    )
    lora = build_metadata(by_name("sd1"), "lora", RECIPE, {})
    assert lora["modelspec.architecture"] == "stable-diffusion-v1/lora"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"speed.version": "2.0"}, "Update"),
        ({"speed.version": "one"}, "no usable version"),
        ({"speed.recipe": "{"}, "not valid JSON"),
        ({"speed.certificate": "[]"}, "must be an object"),
        ({"speed.certificate": "[" * (MAX_CERTIFICATE_BYTES + 1)}, "over the limit"),
        ({"speed.certificate": "[" * 3_000_000}, "too many lists"),
        ({"speed.base_hash": "a" * 5000}, "at most 2000"),
    ],
)
def test_bad_headers_are_sentences(change: dict[str, str], reason: str) -> None:
    metadata = build_metadata(by_name("sd1"), "lora", RECIPE, CERTIFICATE)
    assert read_provenance(metadata | {"speed.version": "1.9", "speed.more": "x"}) is not None
    with pytest.raises(FileError, match=reason):
        read_provenance(metadata | change)


def test_impossible_certificates_are_refused() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for certificate, reason in (
        ({"a": float("nan")}, "cannot be stored"),
        ({"a": "x" * MAX_CERTIFICATE_BYTES}, "too long"),
        ({"a": 10**50}, "a number of 51 digits"),
        ({"a": deep}, "cannot be stored|too many|too deeply"),
    ):
        with pytest.raises(FileError, match=reason):
            build_metadata(by_name("sd1"), "lora", RECIPE, certificate)


def layers_hash(checkpoint: Checkpoint, found: list[LayerKey]) -> str:
    """As the nodes hash the layers of a model that is loaded already."""
    return tensors_hash((layer.canonical, checkpoint.read(layer.file_key)) for layer in found)


def test_hashes_tell_models_apart_and_layouts_not(tmp_path: Path) -> None:
    folder = pico.write_folder(tmp_path / "model")
    to_ldm = {
        f"unet/{diffusers}": f"model.diffusion_model.{ldm}"
        for ldm, diffusers, _ in pico.names(pico.SMALL["sd1"])
    }
    text = ("text_encoder/", "cond_stage_model.transformer.")
    single = {
        to_ldm.get(key, key.replace(*text)): value
        for key, value in folder.items()
        if not key.startswith("vae/")
    }
    save_file(single, tmp_path / "a.safetensors")
    one, other = Checkpoint.open(tmp_path / "model"), Checkpoint.open(tmp_path / "a.safetensors")
    family = detect(one.shapes)
    assert layers_hash(one, layers(family, one.shapes)) == layers_hash(
        other, layers(family, other.shapes)
    )
    assert encoder_hash(one, family) == encoder_hash(other, family) != ""
    assert one.sha256() != other.sha256() == file_hash(tmp_path / "a.safetensors")

    key = layers(family, other.shapes)[0].file_key
    save_file(single | {key: single[key] + 1}, tmp_path / "b.safetensors")
    edited = Checkpoint.open(tmp_path / "b.safetensors")
    assert layers_hash(edited, layers(family, edited.shapes)) != layers_hash(
        other, layers(family, other.shapes)
    )
    assert encoder_hash(edited, family) == encoder_hash(other, family)
    assert encoder_hash(Checkpoint.open(tmp_path / "model" / "unet"), family) == ""


def _job(concepts: str = "Van Gogh -> art", retain: RetainSet | None = None) -> Job:
    return Job.of(
        parse_concepts(concepts, "style"), retain or RetainSet(), EraseSettings.preset("few")
    )


def test_what_can_be_asked_for_can_be_stored_and_read_back() -> None:
    """One set of limits for both sides: the longest lists that are accepted come back whole."""
    names = retain_from_names((f"name {i}" for i in range(250_000)), "long")
    lists = union(parse_retain(f"name {i}", f"list {i}") for i in range(MAX_LISTS))
    aliases = " | ".join(f"alias {i}" for i in range(MAX_ALIASES))
    long = "n" * MAX_NAME
    for job in (
        _job(retain=names),
        _job(retain=lists),
        _job(f"Van Gogh | {aliases} -> art"),
        _job(f"{long} -> {long[1:]}x"),
        _job(
            "\n".join(
                f"Painter {i} of the school of Barbizon -> art {i}" for i in range(MAX_CONCEPTS)
            )
        ),
    ):
        stored = recipe_of(job)
        stored.check_size()
        assert recipe_of(job_of(Recipe.from_json(stored.to_json())).job) == stored
        assert_header_can_be_read(job)


def assert_header_can_be_read(job: Job) -> None:
    """What fits is written with as long a certificate as it may get, and read back."""
    recipe = recipe_of(job)
    numbers = dict.fromkeys("abcdef", -1.2345678901234567e-100)  # no number has a longer text
    results = [{"name": concept.target, "kind": "style"} | numbers for concept in job.concepts]
    proof = {"concepts": results, "other_inputs": {"pooled": {"concepts": results}}}
    raw = encode_header({}, build_metadata(by_name("sd1"), "lora", recipe, proof))
    header = parse_header(raw[8:], 0, Path("m.safetensors"))
    provenance = read_provenance(header.metadata)
    assert provenance is not None and provenance.recipe == recipe
    assert provenance.certificate == proof


@pytest.mark.parametrize(("letter", "count"), [('"', 185_000), ("é", 106_000)])
def test_what_a_header_escapes_once_more_counts_as_often(letter: str, count: int) -> None:
    """The recipe's own quotes and backslashes are escaped in a header: it takes more room than the
    recipe's file.
    """
    names = [f"{letter * 20} {i}" for i in range(count)]
    job = _job(retain=retain_from_names(names, "long"))
    assert len(recipe_of(job).to_json()) < MAX_HEADER_BYTES - 2_000_000, "alone it would fit"
    with pytest.raises(FileError):
        recipe_of(job).check_size()
    fewer = _job(retain=retain_from_names(names[: count // 4 * 3], "long"))
    recipe_of(fewer).check_size()
    assert_header_can_be_read(fewer)


def test_the_sources_own_header_counts() -> None:
    job = _job(retain=retain_from_names((f"name {i}" for i in range(250_000)), "long"))
    recipe_of(job).check_size(5_000_000)
    with pytest.raises(FileError):
        recipe_of(job).check_size(13_000_000)


names = st.text(st.characters(exclude_categories=("Cs",)), max_size=MAX_NAME + 5)


@given(
    st.lists(st.tuples(names, names, st.lists(names, max_size=3)), min_size=1, max_size=4),
    st.lists(st.tuples(st.text(max_size=40), st.lists(names, max_size=4)), max_size=3),
    st.integers(0, 2**63 - 1),
)
def test_whatever_is_accepted_comes_back(entries: list, lists: list, seed: int) -> None:
    """Any text at all as name, alias, anchor or label of a list: refused at once, or stored and
    read back the same.
    """
    lines = [
        f"{target} | {' | '.join(aliases)} -> {anchor}" if aliases else f"{target} -> {anchor}"
        for target, anchor, aliases in entries
    ]
    try:
        concepts = parse_concepts("\n".join(lines), "person", comments=False)
        retain = union(parse_retain("\n".join(kept), label) for label, kept in lists)
        job = Job.of(concepts, retain, EraseSettings.preset("few", seed=seed))
    except SpeedError:
        return
    stored = recipe_of(job, strength=-100.0, clip_skip=-100)
    stored.check_size()
    back = Recipe.from_json(stored.to_json())
    again = job_of(back)
    assert (
        back == stored
        and recipe_of(again.job, strength=again.strength, clip_skip=again.clip_skip) == stored
    )
    hidden = stored.without_names()
    assert Recipe.from_json(hidden.to_json()) == hidden


def test_what_a_reader_would_refuse_is_not_written(tmp_path: Path) -> None:
    for recipe, reason in (
        (replace(RECIPE, contexts=("x",) * 1001), "at most 1000 entries"),
        (replace(RECIPE, settings={"a": list(range(3000))}), "plain values"),
        (replace(RECIPE, settings={"a": 10**50}), "a number of 51 digits"),
        (replace(RECIPE, clip_skip=-1000), "whole number"),
        (replace(RECIPE, family="two\nlines"), "one line"),
        (replace(RECIPE, concepts=()), "no concept"),
        (replace(RECIPE, history=(RECIPE.as_earlier(),) * (MAX_HISTORY + 1)), "at most 50"),
    ):
        with pytest.raises(FileError, match=reason):
            recipe.write(tmp_path / "r.json")
        with pytest.raises(FileError, match=reason):
            build_metadata(by_name("sd1"), "lora", recipe, {})
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_stored_is_refused_before_the_work() -> None:
    aliases = " | ".join(f"alias {i}" for i in range(MAX_ALIASES + 1))
    with pytest.raises(InputError, match=f"101 aliases. Use at most {MAX_ALIASES}"):
        _job(f"Van Gogh | {aliases} -> art")
    with pytest.raises(InputError, match="101 lists"):
        union(parse_retain(f"name {i}", f"list {i}") for i in range(MAX_LISTS + 1))
    for long in ("é" * 40, "["):
        names = retain_from_names((f"{long} {i}" for i in range(200_001)), "wide")
        with pytest.raises(FileError):
            recipe_of(_job(retain=names)).check_size()


def test_a_recipe_remembers_what_was_erased_before() -> None:
    first = build_metadata(by_name("sd1"), "checkpoint", RECIPE, {})
    history = history_of(first)
    (earlier,) = history
    assert (
        earlier.concepts == RECIPE.concepts
        and earlier.settings == RECIPE.settings
        and earlier.rows == RECIPE.rows
    )
    assert (earlier.base_hash, earlier.package_version) == (
        RECIPE.base_hash,
        RECIPE.package_version,
    )
    assert earlier.retain == (
        RECIPE.retain[0],
        replace(RECIPE.retain[1], names=()),
    ), "the hash stands for the names"

    second = replace(recipe_of(_job("Snoopy -> dog"), history=history), base_hash="56" * 32)
    assert Recipe.from_json(second.to_json()) == second and same_form(
        second, recipe_of(_job("Snoopy -> dog"))
    )
    third = history_of(build_metadata(by_name("sd1"), "checkpoint", second, {}))
    assert [one.concepts[0].target for one in third] == [
        "Van Gogh",
        "Snoopy",
    ], "flat, the oldest first"
    assert all(one.history == () for one in third)
    (note,) = job_of(second, "r.json").notes
    assert "2 other concepts" in note
    assert not job_of(recipe_of(_job())).notes


def test_a_recipe_without_names_has_none_of_its_history_either() -> None:
    history = history_of(build_metadata(by_name("sd1"), "lora", RECIPE, {}))
    recipe = recipe_of(
        _job("Snoopy | Beagle -> dog", parse_retain("Klee", "mine")), history=history
    )
    assert {"Van Gogh", "Vincent van Gogh", "Snoopy", "Beagle", "dog", "Klee"} <= set(recipe.names)
    hidden = recipe.without_names()
    text = hidden.to_json().lower()
    assert not [name for name in (*recipe.names, "mine", "cd" * 32) if f'"{name.lower()}"' in text]
    assert Recipe.from_json(hidden.to_json()) == hidden and hidden.names == ()
    assert not hidden.has_names and not hidden.history[0].has_names
    assert hidden.without_names() == hidden and not same_form(hidden, recipe)
    assert [len(part.names or ()) for part in hidden.retain] == [1]
    later = recipe_of(_job("Klee -> art"), history=[hidden.as_earlier()])
    assert set(later.names) == {"Klee", "art"}


def test_a_history_is_bounded_and_old_or_odd_headers_have_none() -> None:
    recipe = replace(RECIPE, history=(RECIPE.as_earlier(),) * MAX_HISTORY)
    assert len(history_of(build_metadata(by_name("sd1"), "lora", recipe, {}))) == MAX_HISTORY
    assert history_of({}) == history_of({"modelspec.title": "x"}) == ()
    metadata = build_metadata(by_name("sd1"), "lora", RECIPE, {})
    assert (
        history_of(metadata | {"speed.recipe": "{"})
        == history_of(metadata | {"speed.version": "9.0"})
        == ()
    )
    assert Recipe.from_json(changed()).history == () and "history" not in RECIPE.to_json()
    for history in (5, [1], [{"concepts": []}]):
        with pytest.raises(FileError):
            Recipe.from_json(changed(history=history))


def test_a_long_history_is_refused_before_the_work() -> None:
    long = replace(
        RECIPE,
        concepts=tuple(RecipeConcept(f"{'x' * 290} {i}", "", "style") for i in range(MAX_CONCEPTS)),
    )
    recipe_of(_job(), history=[long.as_earlier()] * 2).check_size()
    with pytest.raises(FileError):
        recipe_of(_job(), history=[long.as_earlier()] * 5).check_size()


@pytest.mark.parametrize("field", ["model", "output", "tokenizer", "text_encoders"])
def test_the_home_of_nobody_is_one_sentence(field: str, tmp_path: Path) -> None:
    content = f"concepts: [Klee -> art]\n{field}: ~no such user/x\n"
    with pytest.raises(FileError, match="home folder"):
        Recipe.from_yaml(content, "The recipe", tmp_path)
