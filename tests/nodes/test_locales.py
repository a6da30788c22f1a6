"""Every English label, tooltip and help page exists in the other languages as well."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from speed_erase.speed_ops.certificate import warnings
from speed_erase.speed_ops.certificate.summary import GROUPS, LEVEL_WORDS, PLACES, Advice
from speed_erase.speed_ops.certificate.verdicts import verdict_in_words
from speed_erase.speed_ops.inputs import INPUT_TITLES

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
    """By the names that the front end shows in that language."""
    from speed_erase.nodes import NODES

    definitions = stored(language, "nodeDefs")
    pages = ROOT / "web" / "docs"
    for name in (node.define_schema().node_id for node in NODES):
        page = (pages / name / f"{language}.md").read_text(encoding="utf-8")
        node = definitions[name]
        assert page.startswith(f"# {node['display_name']}\n")
        for slot in (*node["inputs"].values(), *node["outputs"].values()):
            assert f"**{slot['name']}**" in page, f"{name}, {language}: {slot['name']}"
        english = (pages / f"{name}.md").read_text(encoding="utf-8")
        for code in re.findall(r"^\| `(\w+)` \|", english, re.MULTILINE):
            assert f"| `{code}` |" in page, f"{name}, {language}: {code}"


def chinese_texts() -> dict[str, str]:
    texts = {path.stem: path.read_text("utf-8") for path in (ROOT / "locales/zh").glob("*.json")}
    pages = (ROOT / "web" / "docs").glob("*/zh.md")
    return texts | {path.parent.name: path.read_text("utf-8") for path in pages}


@pytest.mark.parametrize("name", sorted(chinese_texts()))
def test_chinese_punctuation_is_full_width(name: str) -> None:
    """Except in code, and where a placeholder is all that a mark touches."""
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)|{'[^']*'}|\*", "", chinese_texts()[name])
    assert re.findall(r".?[\u4e00-\u9fff“”] ?[,:;?!()].?", text) == []
    assert re.findall(r".?[,:;?!()] ?[\u4e00-\u9fff“”].?", text) == []
    assert re.findall(r"\d %", text) == []


def script(name: str) -> str:
    return (ROOT / "web" / name).read_text(encoding="utf-8")


@each_language
def test_no_command_is_missing(language: str) -> None:
    ids = set(re.findall(r'(?:\bid: |\bcommand\(\s*)"(\w+)"', script("commands.js")))
    assert ids and set(stored(language, "commands")) == {f"SPEED_{name}" for name in ids}


def words_of(language: str) -> dict[str, str]:
    return stored(language, "main")["SPEED"]


def ui_texts() -> set[str]:
    """Everything that the scripts show: their own texts, and fixed words that the server sends."""
    scripts = "".join(path.read_text("utf-8") for path in (ROOT / "web").glob("*.js"))
    quoted_text = r'"((?:[^"\\]|\\.)+)"'
    texts = set(re.findall(rf"\bt\(\s*{quoted_text}", scripts))
    pairs = re.findall(rf"\bcounted\([^,]+, {quoted_text}, {quoted_text}", scripts)
    counts = {text for pair in pairs for text in pair}
    groups = {f"{names}, {where}" for names in GROUPS.values() for where in PLACES.values()}
    source = (ROOT / "nodes" / "speed_compare.py").read_text(encoding="utf-8")
    rows = re.search(r"^ROWS = {([^}]*)}", source, re.MULTILINE)
    assert rows and len(texts) > 60 and counts
    titles = set(re.findall(r': "([^"]+)"', rows[1]))
    verdicts = {verdict_in_words(name) for name in ("erased", "weakened", "stands", "unproven")}
    texts |= set(INPUT_TITLES.values())
    shown = texts | counts | groups | titles | verdicts | set(LEVEL_WORDS.values())
    return {json.loads(f'"{text}"') for text in shown}


def holes(text: str) -> list[str]:
    return sorted(re.findall(r"{[^}]*}", text))


@each_language
def test_no_word_of_the_ui_is_missing_or_left_over(language: str) -> None:
    words = words_of(language)
    assert set(words) == ui_texts()
    for english, translation in words.items():
        assert translation.strip() and holes(english) == holes(translation), english


@each_language
def test_every_notice_is_translated_with_what_it_is_about(language: str) -> None:
    notices = stored(language, "main")["SPEED_NOTICES"]
    source = Path(warnings.__file__).read_text(encoding="utf-8")
    calls = re.findall(r"Notice\((.*?)\n {4,16}\)", source, re.DOTALL)
    codes = {re.search(r'code="(\w+)"', call)[1]: call for call in calls}  # type: ignore[index]
    assert len(codes) > 10 and set(notices) == {*codes, "more_warnings"}
    for code, call in codes.items():
        known = {*re.findall(r"^\s+(\w+)=", call, re.MULTILINE), "subject"}
        assert {hole.strip("{}%") for hole in holes(notices[code])} <= known, code
        assert ("subject" in call) == ("{subject}" in notices[code]), code


def test_every_advice_has_words() -> None:
    table = re.search(r"^const ADVICE = {(.*?)^};", script("panel.js"), re.MULTILINE | re.DOTALL)
    assert table is not None
    listed = set(re.findall(r"^  (\w+):", table[1], re.MULTILINE))
    assert listed | {"compare", "find_leaks", "save"} == set(get_args(Advice))
