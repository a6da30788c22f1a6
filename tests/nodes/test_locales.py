"""Every label, tooltip and help page there is in English, there is in the other languages, too."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from pathlib import Path

import pytest

from speed_erase.speed_ops.certificate.certificate import GROUPS, PLACES, VERDICT_WORDS
from speed_erase.speed_ops.report import panel

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
    found = stored(language, "nodeDefs")
    assert set(found) == set(schemas)
    for name, schema in schemas.items():
        assert set(found[name]["inputs"]) == {one.id for one in schema.inputs}, name
        assert set(found[name]["outputs"]) == {str(i) for i in range(len(schema.outputs))}, name
        slots = [*found[name]["inputs"].values(), *found[name]["outputs"].values()]
        assert all(slot["name"].strip() and len(slot["tooltip"]) > 3 for slot in slots), name
        assert found[name]["display_name"] and found[name]["description"] != schema.description


@each_language
@pytest.mark.parametrize("name", ["nodeDefs", "commands"])
def test_the_front_end_can_read_every_label(language: str, name: str) -> None:
    """Its messages have a syntax: a bare `|` parts plural forms, and one that it cannot read stops
    the whole screen.
    """
    raw = (ROOT / "locales" / language / f"{name}.json").read_text(encoding="utf-8")
    assert all(
        re.search(r"[|@{}]", re.sub(r"\{'[^']*'\}", "", one)) is None
        for one in re.findall(r'"(.*)"', raw)
    )


@pytest.mark.comfy
@each_language
def test_every_help_page_explains_every_slot(language: str, comfyui: Path) -> None:
    from speed_erase.nodes import NODES

    for schema in (node.define_schema() for node in NODES):
        page = (ROOT / "web" / "docs" / schema.node_id / f"{language}.md").read_text(
            encoding="utf-8"
        )
        for slot in [one.id for one in schema.inputs] + [
            one.display_name for one in schema.outputs
        ]:
            assert f"**{slot}**" in page, f"{schema.node_id}, {language}: {slot}"


@each_language
def test_no_command_is_missing(language: str) -> None:
    script = (ROOT / "web" / "speed.js").read_text(encoding="utf-8")
    ids = set(re.findall(r"^  (\w+): \[\(\) => t\(", script, re.MULTILINE))
    assert ids and set(stored(language, "commands")) == {f"SPEED_{one}" for one in ids}


def printed() -> set[str]:
    """Everything that the scripts put on the screen: words of their own, and fixed words that the
    server sends.
    """
    scripts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "web").glob("*.js"))
    own = set(re.findall(r'\bt\("([^"]+)"', scripts))
    counts = {
        word
        for pair in re.findall(r'\bcounted\(\w+, "([^"]+)", "([^"]+)"', scripts)
        for word in pair
    }
    groups = {f"{group}, {place}" for group in GROUPS.values() for place in PLACES.values()}
    source = ast.parse(textwrap.dedent(inspect.getsource(panel.advice)))
    advice = {node.value.value for node in ast.walk(source) if isinstance(node, ast.Yield)}
    rows = re.search(
        r"^ROWS = {(.*?)^}",
        (ROOT / "nodes" / "speed_compare.py").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert rows and len(own) > 60 and len(counts) == 4 and len(advice) > 5
    return (
        own
        | counts
        | groups
        | advice
        | set(VERDICT_WORDS.values())
        | set(re.findall(r': "([^"]+)"', rows[1]))
    )


@each_language
def test_no_word_of_the_screen_is_missing_or_left_over(language: str) -> None:
    words = stored(language, "main")["SPEED"]
    assert set(words) == printed()
    for english, other in words.items():
        assert other.strip() and sorted(re.findall(r"{\d}", english)) == sorted(
            re.findall(r"{\d}", other)
        ), english
