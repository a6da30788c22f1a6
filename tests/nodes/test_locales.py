"""Every English label, tooltip and help page exists in the other languages as well."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from speed_erase.speed_ops.certificate.certificate import GROUPS, PLACES, VERDICT_WORDS
from speed_erase.speed_ops.report.panel import Advice

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = sorted(path.name for path in (ROOT / "locales").iterdir() if path.is_dir())
each_language = pytest.mark.parametrize("language", LANGUAGES)


def stored(language: str, name: str) -> dict:
    return json.loads((ROOT / "locales" / language / f"{name}.json").read_text(encoding="utf-8"))


def test_german_and_chinese_are_there() -> None:
    assert {"de", "zh"} <= set(LANGUAGES)


@pytest.mark.comfy
@each_language
def test_no_key_of_the_nodes_is_missing_or_left_over(language: str, comfyui: Path) -> None:
    from speed_erase.nodes import NODES

    schemas = {schema.node_id: schema for schema in (node.define_schema() for node in NODES)}
    definitions = stored(language, "nodeDefs")
    assert set(definitions) == set(schemas)
    for name, schema in schemas.items():
        node = definitions[name]
        assert set(node["inputs"]) == {slot.id for slot in schema.inputs}, name
        assert set(node["outputs"]) == {str(i) for i in range(len(schema.outputs))}, name
        slots = [*node["inputs"].values(), *node["outputs"].values()]
        assert all(slot["name"].strip() and len(slot["tooltip"]) > 3 for slot in slots), name
        assert node["display_name"] and node["description"] != schema.description


@each_language
@pytest.mark.parametrize("name", ["nodeDefs", "commands"])
def test_the_front_end_can_read_every_label(language: str, name: str) -> None:
    """Its messages have a syntax: a bare `|` separates plural forms, and a message with an error
    stops the screen.
    """
    raw = (ROOT / "locales" / language / f"{name}.json").read_text(encoding="utf-8")
    assert all(
        re.search(r"[|@{}]", re.sub(r"\{'[^']*'\}", "", text)) is None
        for text in re.findall(r'"(.*)"', raw)
    )


@pytest.mark.comfy
@each_language
def test_every_help_page_explains_every_slot(language: str, comfyui: Path) -> None:
    from speed_erase.nodes import NODES

    for schema in (node.define_schema() for node in NODES):
        page = (ROOT / "web" / "docs" / schema.node_id / f"{language}.md").read_text(
            encoding="utf-8"
        )
        inputs = [slot.id for slot in schema.inputs]
        for slot in inputs + [slot.display_name for slot in schema.outputs]:
            assert f"**{slot}**" in page, f"{schema.node_id}, {language}: {slot}"


def script(name: str) -> str:
    return (ROOT / "web" / name).read_text(encoding="utf-8")


@each_language
def test_no_command_is_missing(language: str) -> None:
    ids = set(re.findall(r'\bid: "(\w+)"', script("commands.js")))
    assert ids and set(stored(language, "commands")) == {f"SPEED_{name}" for name in ids}


def test_the_screen_has_words_for_every_advice() -> None:
    table = re.search(r"^const ADVICE = {(.*?)^};", script("panel.js"), re.MULTILINE | re.DOTALL)
    assert table is not None
    assert set(re.findall(r"^  (\w+):", table[1], re.MULTILINE)) == set(get_args(Advice))


def screen_texts() -> set[str]:
    """Everything that the scripts put on the screen: their own texts, and fixed words that the
    server sends.
    """
    scripts = "".join(script(path.name) for path in (ROOT / "web").glob("*.js"))
    texts = set(re.findall(r'\bt\(\s*"([^"]+)"', scripts))
    pairs = re.findall(r'\bcounted\([^,]+, "([^"]+)", "([^"]+)"', scripts)
    counts = {text for pair in pairs for text in pair}
    groups = {f"{names}, {where}" for names in GROUPS.values() for where in PLACES.values()}
    source = (ROOT / "nodes" / "speed_compare.py").read_text(encoding="utf-8")
    rows = re.search(r"^ROWS = {([^}]*)}", source, re.MULTILINE)
    assert rows and len(texts) > 60 and len(counts) == 4
    titles = set(re.findall(r': "([^"]+)"', rows[1]))
    return texts | counts | groups | titles | set(VERDICT_WORDS.values())


@each_language
def test_no_word_of_the_screen_is_missing_or_left_over(language: str) -> None:
    words = stored(language, "main")["SPEED"]
    assert set(words) == screen_texts()
    for english, translation in words.items():
        holes = sorted(re.findall(r"{\d}", english))
        assert translation.strip() and holes == sorted(re.findall(r"{\d}", translation)), english
