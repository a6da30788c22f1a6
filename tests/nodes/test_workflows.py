"""The example graphs open: every node exists, every widget has its value, every link its two
ends.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from previews import MOST_BYTES, PREVIEWS, SIDE
from templates import DEMO, TEMPLATES

ROOT = Path(__file__).resolve().parents[2]
GRAPHS = sorted((ROOT / "example_workflows").glob("*.json"))


def is_widget(slot: Any) -> bool:
    """Whether an input of a schema is a widget, not a socket alone."""
    return slot.io_type in ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")


def test_every_template_is_there_with_a_picture_of_its_own() -> None:
    assert {path.stem for path in GRAPHS} == set(TEMPLATES) == set(PREVIEWS)
    pictures = {path.stem: path.with_suffix(".jpg").read_bytes() for path in GRAPHS}
    assert len(set(pictures.values())) == len(TEMPLATES)
    for title, content in pictures.items():
        assert (
            Image.open(io.BytesIO(content)).size == (SIDE, SIDE) and len(content) <= MOST_BYTES
        ), title


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_a_template_fits_a_window_at_a_size_that_can_be_read(path: Path) -> None:
    """Front ends fit a template into the window, and leave words out when they become small."""
    nodes = json.loads(path.read_text())["nodes"]
    for axis, most in ((0, 2300), (1, 1400)):
        ends = [node["pos"][axis] + node["size"][axis] for node in nodes]
        assert max(ends) - min(node["pos"][axis] for node in nodes) <= most


_LOADERS = {
    "CheckpointLoaderSimple": "checkpoints",
    "UNETLoader": "diffusion_models",
    "CLIPLoader": "text_encoders",
    "VAELoader": "vae",
}
"""Node -> the folder that it loads from."""


_DOWNLOADING = ("SDXL", "Flux", "Flux.2 Klein", "Anima", "Wan 2.2")


def test_most_templates_run_without_a_download() -> None:
    others = [
        (path.stem, node)
        for path in GRAPHS
        for node in json.loads(path.read_text())["nodes"]
        if node["type"] in _LOADERS and node["widgets_values"] != [DEMO]
    ]
    names = {"Erase an idea", *(f"Erase from {name}" for name in _DOWNLOADING)}
    assert {title for title, _ in others} == names
    for title, node in others:
        (model,) = node["properties"]["models"]
        assert model["name"] == node["widgets_values"][0], title
        assert model["url"].endswith(model["name"])
        assert model["directory"] == _LOADERS[node["type"]], title


def test_the_first_template_sorts_first_and_three_are_apps() -> None:
    assert GRAPHS[0].stem == "1 - Start here"
    for path in GRAPHS:
        graph = json.loads(path.read_text())
        data = graph["extra"].get("linearData")
        assert (data is not None) == path.stem.startswith("App - "), path.stem
        nodes = {node["id"]: node for node in graph["nodes"]}
        for number, name in data["inputs"] if data else ():
            slots = [slot["name"] for slot in nodes[number]["inputs"] if "widget" in slot]
            assert name in slots, (path.stem, name)
        assert set(data["outputs"] if data else ()) <= set(nodes)


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_no_wire_passes_behind_a_node(path: Path) -> None:
    """Wires leave a node at its right and arrive at the left of another; between them nothing is in
    the way, so that no wire seems to lead elsewhere.
    """
    graph = json.loads(path.read_text())
    nodes = {node["id"]: node for node in graph["nodes"]}
    for _, source, out, target, into, kind in graph["links"]:
        start, end = nodes[source], nodes[target]
        x, to_x = start["pos"][0] + start["size"][0], end["pos"][0]
        sockets = [slot for slot in end["inputs"] if "widget" not in slot]
        row = next(i for i, slot in enumerate(sockets) if slot is end["inputs"][into])
        y, to_y = start["pos"][1] + 15 + 20 * out, end["pos"][1] + 15 + 20 * row
        for number, node in nodes.items():
            if number in (source, target):
                continue
            left, right = node["pos"][0], node["pos"][0] + node["size"][0]
            top, bottom = node["pos"][1] - 30, node["pos"][1] + node["size"][1]
            if left < to_x and right > x:
                between = min(y, to_y) < bottom and max(y, to_y) > top
                assert not between, (path.stem, kind, node["type"])


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_a_newcomer_finds_words_beside_every_graph(path: Path) -> None:
    notes = [
        node for node in json.loads(path.read_text())["nodes"] if node["type"] == "MarkdownNote"
    ]
    assert len(notes) == 1 and len(notes[0]["widgets_values"][0]) > 80


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_links_join_slots_of_one_type(path: Path) -> None:
    graph = json.loads(path.read_text())
    nodes = {node["id"]: node for node in graph["nodes"]}
    for number, source, out, target, into, kind in graph["links"]:
        assert number in nodes[source]["outputs"][out]["links"]
        assert nodes[target]["inputs"][into]["link"] == number
        assert nodes[source]["outputs"][out]["type"] == kind


@pytest.mark.comfy
@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_our_nodes_have_the_inputs_of_their_schema(path: Path, comfyui: Path) -> None:
    from speed_erase.nodes import NODES

    schemas = {node.define_schema().node_id: node.define_schema() for node in NODES}
    ours = [node for node in json.loads(path.read_text())["nodes"] if node["type"] in schemas]
    entries = {"SpeedErase", "SpeedNeverDraw", "SpeedApplyRecipe", "SpeedInspect"}
    assert entries & {node["type"] for node in ours}
    for node in ours:
        schema = schemas[node["type"]]
        assert [slot["name"] for slot in node["inputs"] if "widget" not in slot] == [
            slot_in_schema.id for slot_in_schema in schema.inputs if not is_widget(slot_in_schema)
        ]
        values = node.get("widgets_values", [])
        assert len(values) == len(
            [slot_in_schema for slot_in_schema in schema.inputs if is_widget(slot_in_schema)]
        )
        assert [slot["type"] for slot in node["outputs"]] == [
            slot_in_schema.io_type for slot_in_schema in schema.outputs
        ]


@pytest.mark.comfy
def test_every_node_has_a_help_page_and_every_page_a_node(comfyui: Path) -> None:
    from speed_erase.nodes import NODES

    pages = {path.stem: path.read_text() for path in (ROOT / "web" / "docs").glob("*.md")}
    schemas = {node.define_schema().node_id: node.define_schema() for node in NODES}
    assert set(pages) == set(schemas)
    for name, schema in schemas.items():
        for slot in shown_names(schema):
            assert f"**{slot}**" in pages[name], f"the page of {name} does not explain {slot}"


def shown_names(schema: Any) -> list[str]:
    """What people read at the inputs and outputs of a node."""
    inputs = [slot.display_name or slot.id for slot in schema.inputs]
    return inputs + [slot.display_name for slot in schema.outputs]


def test_help_pages_are_short_and_link_only_to_the_web() -> None:
    """Registry installs have no docs folder."""
    pages = list((ROOT / "web" / "docs").rglob("*.md"))
    assert len(pages) >= 39
    for path in pages:
        text = path.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)]+)\)", text)
        assert all(link.startswith("https://") for link in links), path
        for link in links:
            assert (ROOT / link.partition("/blob/main/")[2]).is_file(), link
    assert len((ROOT / "web" / "docs" / "SpeedErase.md").read_text().split()) <= 500


@pytest.mark.comfy
def test_the_readme_lists_every_node_by_its_name(comfyui: Path) -> None:
    from speed_erase.nodes import NODES

    names = {node.define_schema().display_name for node in NODES}
    section = (ROOT / "README.md").read_text().partition("\n## Nodes\n")[2].partition("\n## ")[0]
    plain = re.sub(r"\s*\([^)]*\)", "", section)
    listed = re.findall(r"^- \*\*\w+\*\*: ((?:.+\n)+?)(?=-|\n)", plain, re.MULTILINE)
    assert {name.strip() for line in listed for name in line.split(",")} == names
    assert f"All {len(names)} nodes" in section


@pytest.mark.comfy
def test_ids_stay_as_saved_workflows_have_them(comfyui: Path) -> None:
    from speed_erase.nodes import NODES

    schemas = [node.define_schema() for node in NODES]
    names = {schema.node_id: schema.display_name for schema in schemas}
    assert set(names) >= {
        *("ConceptList", "RetainSetLoader", "SpeedErase", "SaveErasedModel", "SpeedSettings"),
        *("SpeedApplyErasure", "SpeedApplyRecipe", "SpeedCompare", "SpeedEvaluate"),
        *("SpeedForecast", "SpeedInspect", "SpeedLeakProbe", "SpeedNameProbe", "SpeedReport"),
    }
    assert [names[name] for name in ("ConceptList", "RetainSetLoader", "SpeedErase")] == [
        *("Concept List", "Retain Set Loader", "SPEED Erase")
    ]
    assert names["SaveErasedModel"] == "Save Erased Model"


@pytest.mark.comfy
def test_every_input_and_output_has_a_tooltip(comfyui: Path) -> None:
    from speed_erase.nodes import NODES

    for schema in (node.define_schema() for node in NODES):
        for slot in (*schema.inputs, *schema.outputs):
            assert len(slot.tooltip or "") > 10, f"{schema.node_id}: {slot}"


def test_the_pages_give_the_engines_bars() -> None:
    from speed_erase.speed_ops.certificate.certificate import BARS

    page = (ROOT / "web" / "docs" / "SpeedReport.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    bars_shown = {
        kind: (erased, stands)
        for kinds, erased, stands in (row for row in rows if len(row) == 3)
        for kind in kinds.split(", ")
    }
    for kind, bars in BARS.items():
        assert bars_shown[kind] == (f"{bars.erased:.2f}", f"{bars.stands:.2f}")


@pytest.mark.comfy
def test_the_blueprint_holds_our_nodes_with_their_widgets(comfyui: Path) -> None:
    from speed_erase.nodes import NODES

    schemas = {node.define_schema().node_id: node.define_schema() for node in NODES}
    (graph,) = [json.loads(path.read_text()) for path in (ROOT / "subgraphs").glob("*.json")]
    (inner,) = graph["definitions"]["subgraphs"]
    assert graph["nodes"][0]["type"] == inner["id"] and inner["name"] == "Erase and compare"
    nodes = {str(node["id"]): node for node in inner["nodes"]}
    assert {node["type"] for node in nodes.values()} == {
        "ConceptList",
        "SpeedErase",
        "SpeedCompare",
    }
    for node in nodes.values():
        widgets = [widget.id for widget in schemas[node["type"]].inputs if is_widget(widget)]
        assert len(node["widgets_values"]) == len(widgets), node["type"]
    for number, name in graph["nodes"][0]["properties"]["proxyWidgets"]:
        assert name in {widget.id for widget in schemas[nodes[number]["type"]].inputs}
