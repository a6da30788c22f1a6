"""Every English label, tooltip and help page exists in the other languages as well."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from speed_erase.speed_ops.certificate.summary import (
    ADVICE_WORDS,
    GROUPS,
    LEVEL_WORDS,
    PLACES,
    WORST_WORDS,
    Advice,
)
from speed_erase.speed_ops.certificate.verdicts import verdict_in_words
from speed_erase.speed_ops.engine.settings import PRESETS, PRIORITIES, Effort
from speed_erase.speed_ops.errors import ERROR_CODES
from speed_erase.speed_ops.inputs import INPUT_TITLES
from speed_erase.speed_ops.progress import TITLES
from speed_erase.speed_ops.text.kinds import BUILTIN_KINDS, KINDS

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
    texts |= {*INPUT_TITLES.values(), *TITLES.values(), *CHOICES}
    texts |= {
        *LEVEL_WORDS.values(),
        *WORST_WORDS.values(),
        "tuning names",
        "protected names",
        "typed",
    }
    shown = texts | counts | groups | titles | verdicts
    return {json.loads(f'"{text}"') for text in shown}


PRIORITY_CHOICES = {name.replace("-", " ") for name in PRIORITIES}
LIST_CHOICES = {"none", "all", "same as concepts", "caption", *BUILTIN_KINDS}
SETTINGS_CHOICES = {"as preset", "on", "off", "sentences", "tags", "at-tags", "mixed"}
CHOICES = {
    *(*KINDS, *(f"for type: {kind}" for kind in KINDS), *LIST_CHOICES),
    *(*PRIORITY_CHOICES, *get_args(Effort), *SETTINGS_CHOICES, "same as source"),
}
"""What widgets offer in words."""
IDENTIFIERS = {*PRESETS, "V", "K", "KV", "float16", "bfloat16", "float32"}
"""What they offer by the name that it has in every language."""


@pytest.mark.comfy
def test_every_choice_of_a_widget_is_a_translated_word_or_an_identifier(comfyui: Path) -> None:
    from comfy_api.latest import io

    from speed_erase.nodes import NODES

    offered = {
        choice
        for node in NODES
        for slot in node.define_schema().inputs
        if isinstance(slot, io.Combo.Input) and slot.id not in ("sampler_name", "scheduler")
        for choice in slot.options
        if not re.search(r"\.\w+$", choice)  # a file
    }
    assert offered == CHOICES | IDENTIFIERS


def holes(text: str) -> list[str]:
    return sorted(re.findall(r"{[^}]*}", text))


@each_language
def test_no_word_of_the_ui_is_missing_or_left_over(language: str) -> None:
    words = words_of(language)
    assert set(words) == ui_texts()
    for english, translation in words.items():
        assert translation.strip() and holes(english) == holes(translation), english


SPEAKING = (
    *("certificate/warnings", "certificate/summary", "embedder"),
    *("text/concept_list", "text/names", "text/tokens", "text/retain_set"),
)
SPEAKING_NODES = ("concept_list", "retain_set_loader", "host/progress", "host/sampling")


About = tuple[set[str], set[str]]
"""What a notice is about: by the names in its call, and by all names that it may have."""


def notices_of(source: str) -> dict[str, About]:
    """{code: what it is about} of every notice and fault with a code in a module."""
    nodes = list(ast.walk(ast.parse(source)))
    keys = [key for table in nodes if isinstance(table, ast.Dict) for key in table.keys]
    shared = {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    notices: dict[str, About] = {}
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        words = {word.arg: word.value for word in call.keywords if word.arg}
        named = set(words) - {"code"}
        possible = named | (shared if len(words) < len(call.keywords) else set())
        for part in ast.walk(words["code"]) if "code" in words else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                notices[part.value] = named, possible
    return notices


def shown_notices() -> dict[str, About]:
    paths = [ROOT / "speed_ops" / f"{name}.py" for name in SPEAKING]
    paths += [ROOT / "nodes" / f"{name}.py" for name in SPEAKING_NODES]
    codes: dict[str, About] = {"more_warnings": ({"count"}, {"count"})}
    for path in paths:
        codes |= notices_of(path.read_text(encoding="utf-8"))
    # what a question to the server can fail with, beyond the codes of its own
    faults = set(ERROR_CODES) - {"usage", "unsupported-model", "server", "output", "interrupted"}
    return codes | {code: (set(), set()) for code in {*faults, *ADVICE_WORDS}}


@each_language
def test_every_notice_is_translated_with_what_it_is_about(language: str) -> None:
    translated = stored(language, "main")["SPEED_NOTICES"]
    codes = shown_notices()
    assert len(codes) > 60 and set(translated) == set(codes)
    for code, (named, possible) in codes.items():
        used = {hole.strip("{}%") for hole in holes(translated[code])}
        assert used <= possible | ({"subject"} if "concepts" in possible else set()), code
        # names are named in every language; the rest is for programs
        assert named & {"name", "names", "concept", "replacement", "file"} <= used, code


def test_every_advice_has_words_but_for_the_button_that_saves() -> None:
    assert {*ADVICE_WORDS, "save"} == set(get_args(Advice))
