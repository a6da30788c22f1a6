"""Recipes and headers: what is written is read back, newer minor versions too; nonsense is one sentence."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pico
import pytest
from safetensors.torch import save_file

from speed_erase.speed_ops.checkpoints.source import encoder_hash
from speed_erase.speed_ops.concepts.concept_list import parse_concepts
from speed_erase.speed_ops.concepts.names import MAX_ALIASES, MAX_LISTS, MAX_NAME
from speed_erase.speed_ops.concepts.retain_set import RetainSet, parse_retain, retain_from_names, union
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import FileError, InputError, SettingsError
from speed_erase.speed_ops.files.checkpoint import Checkpoint, checkpoint_hash, file_hash
from speed_erase.speed_ops.files.metadata import build_metadata, read_provenance
from speed_erase.speed_ops.files.recipe import Recipe, RecipeConcept, RecipeRetain, Redactor
from speed_erase.speed_ops.files.tensors import tensors_hash
from speed_erase.speed_ops.job import Job, check_storable, job_of, recipe_of
from speed_erase.speed_ops.models.detect import detect, layers
from speed_erase.speed_ops.models.families import LayerKey, by_name

RECIPE = Recipe(
    concepts=(
        RecipeConcept("Van Gogh", "art", "style", ("Vincent van Gogh",)),
        RecipeConcept('Ünïcödé 🦊 "quoted" O\'Hara', "", "person"),
    ),
    settings={"method": "speed", "threshold": 0.1, "ipf": True, "layers": "V", "list": [1, 2.5, None, "x"]},
    seed=42,
    contexts=("a painting in the style of {name}",),
    rows={"rows": "context", "templates": 6},
    retain=(RecipeRetain("artists", "ab" * 32), RecipeRetain("mine.txt", "cd" * 32, "style", ("Monet", "Klee"))),
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
    with pytest.raises(FileError, match="already exists"):
        RECIPE.write(tmp_path / "r.json")


def changed(**fields: object) -> str:
    return json.dumps(json.loads(RECIPE.to_json()) | fields)


def test_newer_minor_versions_and_unknown_fields_are_accepted() -> None:
    recipe = Recipe.from_json(changed(version="1.7", future={"a": [1]}))
    assert recipe == RECIPE and recipe.unknown == ("future",)
    assert Recipe.from_json(b"\xef\xbb\xbf" + RECIPE.to_json().encode()) == RECIPE


NONSENSE = {
    "is not valid JSON": "{",
    "must be an object": "[]",
    "not a recipe": "{}",
    "update the program": changed(version="2.0"),
    "no usable version": changed(version=1.0),
    "no concept": changed(concepts=[]),
    "concept 1 must be an object": changed(concepts=["Van Gogh"]),
    "field 'target' must be text": changed(concepts=[{"anchor": "art"}]),
    "empty target": changed(concepts=[{"target": "  "}]),
    "one line": changed(concepts=[{"target": "a\nb"}]),
    "at most 2000 characters": changed(concepts=[{"target": "a" * 2001}]),
    "a list of at most": changed(concepts=[{"target": "a", "aliases": ["b"] * 101}]),
    "whole number": changed(seed=-1),
    "a whole number": changed(seed=1.5),
    "true or false": changed(redacted=1),
    "plain values": changed(settings={"a": list(range(3000))}),
    "of at most 2000 plain values": changed(settings={"a": [[[[[]]]]]}),
    "occurs twice": RECIPE.to_json()[:-1] + ',"seed":7}',
    "is not a number here": changed(settings={"a": float("nan")}),
    "too large a number": RECIPE.to_json().replace("42", "1e999"),
    "a number of": RECIPE.to_json().replace("42", "9" * 5000),
    "nested too deeply": "[" * 100_000,
    "over the limit": "[" + " " * 16_000_001,
}


@pytest.mark.parametrize("reason", NONSENSE)
def test_nonsense_is_a_sentence(reason: str) -> None:
    with pytest.raises(FileError, match=reason) as caught:
        Recipe.from_json(NONSENSE[reason], "r.json")
    assert str(caught.value).startswith("r.json") and "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_bad_bytes_and_missing_files_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not UTF-8"):
        Recipe.from_json(b"\xff\xfe{}")
    for path in (tmp_path / "missing.json", tmp_path, "a\0b"):
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
            text = text[:place] + dice.choice([dice.choice(pieces), ""]) + text[place + dice.randint(0, 8) :]
        try:
            recipe = Recipe.from_json(text)
            assert Recipe.from_json(recipe.to_json()) == recipe
            outcomes[0] += 1
        except FileError:
            outcomes[1] += 1
    assert min(outcomes) > 0


def test_redaction_hides_every_name_and_can_be_checked() -> None:
    redacted = RECIPE.redacted_with("pepper")
    text = redacted.to_json()
    for name in (*RECIPE.names, "mine.txt", "cd" * 32):
        assert f'"{name}"' not in text or name == ""
    assert redacted.redacted and Recipe.from_json(text) == redacted
    assert redacted.concepts[0].target == Redactor("pepper")("VAN  gogh") != Redactor("salt")("Van Gogh")
    assert redacted.concepts[1].anchor == "" and redacted.concepts[0].kind == "style"
    assert redacted.retain[0] == RECIPE.retain[0]
    assert redacted.redacted_with("again").concepts == redacted.concepts
    with pytest.raises(SettingsError, match="salt is empty"):
        Redactor("")


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
    metadata = build_metadata(by_name("sd2"), "checkpoint", RECIPE, {}, existing=existing, title="new")
    assert metadata["modelspec.architecture"] == "stable-diffusion-v2-768-v" and metadata["modelspec.title"] == "new"
    lora = build_metadata(by_name("sd1"), "lora", RECIPE, {})
    assert lora["modelspec.architecture"] == "stable-diffusion-v1/lora"


def test_redacted_headers_hide_names_in_the_certificate_too() -> None:
    metadata = build_metadata(by_name("sd1"), "lora", RECIPE, CERTIFICATE, salt="pepper")
    found = read_provenance(metadata)
    assert found is not None and found.recipe is not None and found.recipe.redacted
    proof = {key: value for key, value in found.certificate.items() if key != "settings"}
    assert not any(name.lower() in json.dumps(proof).lower() for name in ("Van Gogh", "Monet"))
    assert "still shines through" in found.certificate["warnings"][0]
    assert found.certificate["concepts"][0]["name"] == found.recipe.concepts[0].target
    assert found.certificate["settings"] == CERTIFICATE["settings"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"speed.version": "2.0"}, "update the program"),
        ({"speed.version": "one"}, "no usable version"),
        ({"speed.recipe": "{"}, "not valid JSON"),
        ({"speed.certificate": "[]"}, "must be an object"),
        ({"speed.certificate": "[" * 3_000_000}, "over the limit"),
        ({"speed.base_hash": "a" * 5000}, "at most 2000"),
    ],
)
def test_bad_headers_are_sentences(change: dict[str, str], reason: str) -> None:
    metadata = build_metadata(by_name("sd1"), "lora", RECIPE, CERTIFICATE)
    assert read_provenance(metadata | {"speed.version": "1.9", "speed.more": "x"}) is not None
    with pytest.raises(FileError, match=reason):
        read_provenance(metadata | change)


def test_impossible_certificates_are_refused() -> None:
    for certificate, reason in (({"a": float("nan")}, "cannot be stored"), ({"a": "x" * 3_000_000}, "too long")):
        with pytest.raises(FileError, match=reason):
            build_metadata(by_name("sd1"), "lora", RECIPE, certificate)


def layers_hash(checkpoint: Checkpoint, found: list[LayerKey]) -> str:
    """As the nodes hash the layers of a model that is loaded already."""
    return tensors_hash((layer.canonical, checkpoint.read(layer.file_key)) for layer in found)


def test_hashes_tell_models_apart_and_layouts_not(tmp_path: Path) -> None:
    folder = pico.write_folder(tmp_path / "model")
    to_ldm = {
        f"unet/{diffusers}": f"model.diffusion_model.{ldm}" for ldm, diffusers, _ in pico.names(pico.SMALL["sd1"])
    }
    text = ("text_encoder/", "cond_stage_model.transformer.")
    single = {to_ldm.get(key, key.replace(*text)): value for key, value in folder.items() if not key.startswith("vae/")}
    save_file(single, tmp_path / "a.safetensors")
    one, other = Checkpoint.open(tmp_path / "model"), Checkpoint.open(tmp_path / "a.safetensors")
    family = detect(one.shapes)
    assert layers_hash(one, layers(family, one.shapes)) == layers_hash(other, layers(family, other.shapes))
    assert encoder_hash(one, family) == encoder_hash(other, family) != ""
    assert checkpoint_hash(one) != checkpoint_hash(other) == file_hash(tmp_path / "a.safetensors")

    key = layers(family, other.shapes)[0].file_key
    save_file(single | {key: single[key] + 1}, tmp_path / "b.safetensors")
    edited = Checkpoint.open(tmp_path / "b.safetensors")
    assert layers_hash(edited, layers(family, edited.shapes)) != layers_hash(other, layers(family, other.shapes))
    assert encoder_hash(edited, family) == encoder_hash(other, family)
    assert encoder_hash(Checkpoint.open(tmp_path / "model" / "unet"), family) == ""


def _job(concepts: str = "Van Gogh -> art", retain: RetainSet | None = None) -> Job:
    return Job.of(parse_concepts(concepts, "style"), retain or RetainSet(), EraseSettings.preset("few"))


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
    ):
        check_storable(job)
        stored = recipe_of(job)
        assert recipe_of(job_of(Recipe.from_json(stored.to_json())).job) == stored


def test_what_cannot_be_stored_is_refused_before_the_work() -> None:
    aliases = " | ".join(f"alias {i}" for i in range(MAX_ALIASES + 1))
    with pytest.raises(InputError, match=f"101 aliases; the limit is {MAX_ALIASES}"):
        _job(f"Van Gogh | {aliases} -> art")
    with pytest.raises(InputError, match="101 lists"):
        union(parse_retain(f"name {i}", f"list {i}") for i in range(MAX_LISTS + 1))
    with pytest.raises(FileError, match="too long for a file header"):
        check_storable(_job(retain=retain_from_names((f"{'é' * 40} {i}" for i in range(60_000)), "wide")))
    with pytest.raises(FileError, match="too long to be stored"):
        check_storable(_job(retain=retain_from_names((f"[{i}" for i in range(200_001)), "brackets")))
