"""The example workflows, written from a few lines each so that they stay in step with the nodes.

    python tests/support/templates.py http://127.0.0.1:8188

writes `example_workflows/*.json` from the nodes of a running ComfyUI. `previews.py` makes the
pictures beside them.
"""

from __future__ import annotations

import json
import sys
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ui_graph import is_widget, specs

ROOT = Path(__file__).resolve().parents[2]
DEMO, SD15, SDXL = (
    "speed_demo.safetensors",
    "v1-5-pruned-emaonly-fp16.safetensors",
    "sd_xl_base_1.0.safetensors",
)
FLUX, OTHER = "flux1-dev-fp8.safetensors", "dreamshaper_8.safetensors"
RECIPE = "output/recipes/speed/erased_00001_.recipe.json"
"""What the template that saves has written after its first run."""
_NOTE, _ERASE, _AFTER, _LAST = -400, 420, 910, 1440
"""Columns besides the one at 0. The front end fits a template into the window: below 60 % nobody
can read it.
"""
Info = Mapping[str, Any]


class Graph:
    """A workflow as the front end saves it."""

    def __init__(self, info: Info, name: str) -> None:
        self.info, self.name = info, name
        self.nodes: list[dict[str, Any]] = []
        self.links: list[list[Any]] = []

    def add(
        self,
        kind: str,
        at: tuple[int, int],
        size: tuple[int, int],
        title: str = "",
        /,
        **given: Any,
    ) -> int:
        """A node by its inputs: a value for a widget, (node, output) for a socket; returns its
        id.
        """
        info, number = self.info[kind], len(self.nodes) + 1
        inputs = specs(info)
        assert set(given) <= {name for name, _ in inputs}, (
            kind,
            set(given) - {name for name, _ in inputs},
        )
        ordered = sorted(inputs, key=lambda item: is_widget(item[1]))
        optional = info["input"].get("optional", {})
        slots = []
        for index, (name, spec) in enumerate(ordered):
            slot: dict[str, Any] = {
                "localized_name": name,
                "name": name,
                "type": _type(spec),
                "link": None,
            }
            slot |= {"shape": 7} if name in optional else {}
            slot |= {"widget": {"name": name}} if is_widget(spec) else {}
            if isinstance(given.get(name), tuple):
                slot["link"] = self._link(given[name], number, index, slot["type"])
            slots.append(slot)
        outputs = [
            {"localized_name": name, "name": name, "type": kind_of, "links": None}
            for name, kind_of in zip(info["output_name"], info["output"], strict=True)
        ]
        node = {
            "id": number,
            "type": kind,
            "pos": list(at),
            "size": list(size),
            "flags": {},
            "order": number - 1,
        }
        node |= {
            "mode": 0,
            "inputs": slots,
            "outputs": outputs,
            "properties": {"Node name for S&R": kind},
        }
        node |= {"title": title} if title else {}
        values = [
            value
            for name, spec in inputs
            if is_widget(spec)
            for value in _values(name, spec, given)
        ]
        self.nodes.append({**node, "widgets_values": values})
        return number

    def note(self, at: tuple[int, int], size: tuple[int, int], text: str) -> None:
        """Words for newcomers."""
        number = len(self.nodes) + 1
        self.nodes.append(
            {
                "id": number,
                "type": "MarkdownNote",
                "pos": list(at),
                "size": list(size),
                "flags": {},
                "mode": 0,
            }
            | {
                "order": number - 1,
                "inputs": [],
                "outputs": [],
                "properties": {},
                "widgets_values": [text],
            }
            | {"title": "Read me"}
        )

    def _link(self, source: tuple[int, str], target: int, slot_index: int, kind: str) -> int:
        number, (origin, name) = len(self.links) + 1, source
        outputs = self.nodes[origin - 1]["outputs"]
        slot = next(i for i, output in enumerate(outputs) if output["name"] == name)
        outputs[slot]["links"] = [*(outputs[slot]["links"] or []), number]
        self.links.append(
            [
                number,
                origin,
                slot,
                target,
                slot_index,
                outputs[slot]["type"] if kind == "*" else kind,
            ]
        )
        return number

    def to_json(self) -> dict[str, Any]:
        """Always the same for the same graph."""
        return {
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"ComfyUI-SPEED/{self.name}")),
            "revision": 0,
            "last_node_id": len(self.nodes),
            "last_link_id": len(self.links),
            "nodes": self.nodes,
            "links": self.links,
            "groups": [],
            "config": {},
            "extra": {"ds": {"scale": 0.65, "offset": [520, 190]}},
            "version": 0.4,
        }


def _type(spec: list[Any]) -> str:
    return "COMBO" if isinstance(spec[0], list) else spec[0]


def _values(name: str, spec: list[Any], given: Mapping[str, Any]) -> list[Any]:
    options = spec[1] if len(spec) > 1 else {}
    choices = spec[0] if isinstance(spec[0], list) else options.get("options")
    value = given.get(name)
    if value is None or isinstance(value, tuple):
        value = options.get(
            "default", choices[0] if choices else {"STRING": "", "BOOLEAN": False}.get(spec[0], 0)
        )
    return [value, "fixed"] if options.get("control_after_generate") else [value]


def _erase(
    graph: Graph, checkpoint: str, concepts: str, kind: str = "style", **given: Any
) -> tuple[int, int]:
    """Loader, list and SPEED Erase; returns the loader and the eraser."""
    loader = graph.add("CheckpointLoaderSimple", (0, 0), (380, 100), ckpt_name=checkpoint)
    listed = graph.add(
        "ConceptList", (0, 150), (380, 400), "What to erase", text=concepts, kind=kind
    )
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP"), "concepts": (listed, "concepts")}
    return loader, graph.add("SpeedErase", (_ERASE, 0), (450, 270), **wires, **given)


def _compare(graph: Graph, loader: int, eraser: int, **given: Any) -> int:
    wires = {"original": (loader, "MODEL"), "erased": (eraser, "model")}
    encoders = {"clip": (loader, "CLIP"), "vae": (loader, "VAE")}
    return graph.add(
        "SpeedCompare", (_AFTER, 0), (490, 480), "Before and after", **wires, **encoders, **given
    )


_DEMO_LOOK = {"pairs": 2, "steps": 12, "cfg": 3.0, "width": 128, "height": 128}
_PAINTERS = (
    "Dario Fenwick\nPetra Lunde\nTibor Quill\nInes Marrow\nSoren Vale\nKaya Brandt\nLucio"
    " Perrin\nHedda Stroud\nAnselm Roe\nYuki Tallow\nBruna Castell"
)


def demo(graph: Graph) -> None:
    """The one that needs no download."""
    graph.note(
        (_NOTE, 0),
        (360, 420),
        "## Make a model forget a painter\n\nThis runs on a small model that comes with SPEED,"
        " **speed_demo**. If it is not among your checkpoints, you are asked, and one click puts it"
        " there; *speed-erase demo --comfyui PATH* does the same. It knows twelve invented painters"
        " and ten things to paint.\n\n1. *What to erase* holds one name. Click it to change it.\n2."
        " Press **Run**.\n3. Read *SPEED Erase*: what is left of the painter, how far the others"
        " moved, and what the trade was.\n4. Slide over the pictures on the right: the painter"
        " turns plain, everybody else stays.\n5. *Save Erased Model* is switched off (bypassed):"
        " switch it on with Ctrl+B to keep the result.",
    )
    retain = graph.add(
        "RetainSetLoader",
        (_NOTE, 480),
        (360, 420),
        "What to keep",
        text=_PAINTERS,
        kind="style",
        builtin="none",
    )
    loader, eraser = _erase(
        graph, DEMO, "Orla Venn | the Copper Hand -> art", retain=(retain, "retain")
    )
    _compare(
        graph,
        loader,
        eraser,
        target="a cat in the style of Orla Venn",
        alias="a boat in the style of the Copper Hand",
        neighbour="a cat in the style of Dario Fenwick",
        control="a house in the style of Tibor Quill",
        **_DEMO_LOOK,
    )
    saver = graph.add("SaveErasedModel", (0, 620), (380, 260), erasure=(eraser, "erasure"))
    graph.nodes[saver - 1]["mode"] = 4


def one_style(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 240),
        "## Erase one artist's style\n\nWrite the name in *What to erase*, press **Run**, and read"
        " the panel on *SPEED Erase*. 'Van Gogh → art' means: prompts with that name are drawn as"
        " if they said *art*.\n\nStill shows? Allow more change, or raise strength a little.",
    )
    loader, eraser = _erase(graph, SD15, "Van Gogh | Vincent van Gogh -> art")
    _compare(
        graph,
        loader,
        eraser,
        target="a village at night by Van Gogh",
        alias="sunflowers, oil painting by Vincent van Gogh",
        neighbour="a garden with a pond by Claude Monet",
        control="a photo of a red car in the rain",
    )


def characters(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 220),
        "## Erase three characters\n\nOne line for each, with what it becomes. An alias after the"
        " bar goes with it: people also ask for *the Peanuts beagle*.",
    )
    text = (
        "Snoopy | the Peanuts beagle -> dog\nMickey Mouse -> mouse\nSpongeBob | SpongeBob"
        " SquarePants -> sponge"
    )
    loader, eraser = _erase(graph, SD15, text, "character")
    _compare(
        graph,
        loader,
        eraser,
        target="Snoopy asleep on a red roof",
        alias="Mickey Mouse waving hello",
        neighbour="Hello Kitty with a balloon",
        control="a photo of a dog in a park",
    )


def hundred(graph: Graph) -> None:
    from speed_erase.speed_ops.text.retain_set import builtin_retain

    graph.note(
        (_NOTE, 0),
        (360, 240),
        "## Erase 100 names at once\n\nPaste your own list over these painters: a column of a"
        " spreadsheet will do, or drop a .csv file on the node. All other painters we know of are"
        " kept.\n\nMany names share one budget: the panel shows the least erased first.",
    )
    names = builtin_retain("artists").limit(100).names
    retain = graph.add(
        "RetainSetLoader", (_NOTE, 300), (360, 420), "What to keep", builtin="for type: style"
    )
    loader, eraser = _erase(graph, SD15, "\n".join(names), retain=(retain, "retain"))
    _compare(
        graph,
        loader,
        eraser,
        target=f"a harbour at noon by {names[0]}",
        alias=f"a portrait of a woman by {names[50]}",
        neighbour="a garden with a pond by Claude Monet",
        control="a photo of a red car in the rain",
    )


def implicit(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 260),
        "## Erase an idea\n\nSome things have no name of their own: violence, nudity, gore. The"
        " kind **implicit** treats the words as an idea, and without an anchor they are drawn as if"
        " they were not in the prompt.\n\nWrite the words people use for it as aliases. Then look"
        " for leaks: ideas have many names.",
    )
    loader, eraser = _erase(graph, SD15, "blood | gore | bloodshed ->", "implicit")
    _compare(
        graph,
        loader,
        eraser,
        target="a knight after the battle, covered in blood",
        alias="a scene full of gore",
        neighbour="a knight on a horse",
        control="a bowl of tomatoes on a table",
    )


def replaced(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 220),
        "## Replace one thing by another\n\nThe anchor is what takes its place: prompts with"
        " *horse* are drawn as if they said *zebra*. The nearer the two are, the cleaner the swap.",
    )
    loader, eraser = _erase(graph, SD15, "horse -> zebra", "object")
    _compare(
        graph,
        loader,
        eraser,
        target="a photo of a horse in a field",
        alias="",
        neighbour="a photo of a cow in a field",
        control="a city skyline at dusk",
    )


def sdxl(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 200),
        "## SDXL\n\nThe same three nodes. Reading text takes longer, so *effort* is *quick*; with a"
        " GPU choose *normal*.",
    )
    loader, eraser = _erase(graph, SDXL, "Van Gogh | Vincent van Gogh -> art", effort="quick")
    _compare(
        graph,
        loader,
        eraser,
        target="a village at night by Van Gogh",
        alias="sunflowers, oil painting by Vincent van Gogh",
        neighbour="a garden with a pond by Claude Monet",
        control="a photo of a red car in the rain",
        width=1024,
        height=1024,
        pairs=1,
    )


def flux(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 220),
        "## Flux\n\nAll text enters Flux through one layer, and that is the one that is edited. It"
        " takes a GPU with room for the model. cfg stays at 1.",
    )
    loader, eraser = _erase(graph, FLUX, "Van Gogh | Vincent van Gogh -> art", effort="quick")
    _compare(
        graph,
        loader,
        eraser,
        target="a village at night by Van Gogh",
        alias="",
        neighbour="a garden with a pond by Claude Monet",
        control="a photo of a red car in the rain",
        width=1024,
        height=1024,
        pairs=1,
        cfg=1.0,
        scheduler="simple",
    )


def saving(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 300),
        "## Keep the result\n\n*Save Erased Model* writes into ComfyUI's output folder:\n\n- a"
        " **LoRA** of a few megabytes, for people who have the checkpoint\n- the cleaned"
        " **checkpoint**, from which nobody can unload it\n- a **recipe**, a small text that"
        " repeats the erasure on another model",
    )
    loader, eraser = _erase(graph, SD15, "Van Gogh -> art\nClaude Monet -> art")
    wires = {"erasure": (eraser, "erasure"), "model": (eraser, "model"), "clip": (loader, "CLIP")}
    graph.add(
        "SaveErasedModel", (_AFTER, 0), (450, 280), **wires, vae=(loader, "VAE"), checkpoint=True
    )
    graph.add("SpeedReport", (_AFTER, 340), (490, 560), erasure=(eraser, "erasure"))


def recipe(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 260),
        "## Repeat an erasure on another checkpoint\n\nRun *Save a LoRA, a checkpoint and a recipe*"
        " first, then choose your recipe here (press R to refresh the list). The edit is made anew"
        " for this model: a recipe fits every checkpoint, a LoRA only its own family.",
    )
    loader = graph.add("CheckpointLoaderSimple", (0, 0), (380, 100), ckpt_name=OTHER)
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP")}
    eraser = graph.add("SpeedApplyRecipe", (_ERASE, 0), (450, 180), **wires, recipe=RECIPE)
    _compare(
        graph,
        loader,
        eraser,
        target="a village at night by Van Gogh",
        alias="",
        neighbour="a woman with a fan by Gustav Klimt",
        control="a photo of a red car in the rain",
    )


def compared(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 260),
        "## Compare before and after\n\nFour prompts tell an erasure from damage: the name and its"
        " alias should change, the neighbour and the far control should stay. Each pair has the"
        " same seed.\n\n*grid* is the same as one picture, to save or to post.",
    )
    loader, eraser = _erase(graph, SD15, "Pablo Picasso | Picasso -> art")
    compare = _compare(
        graph,
        loader,
        eraser,
        target="a portrait of a woman by Pablo Picasso",
        alias="a guitar on a table, Picasso",
        neighbour="a portrait of a woman by Amedeo Modigliani",
        control="a photo of a lighthouse",
        pairs=4,
    )
    graph.add(
        "SaveImage",
        (_LAST, 0),
        (340, 360),
        images=(compare, "grid"),
        filename_prefix="speed/compare",
    )


def leaks(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 280),
        "## Find leaks and close them\n\n*Find Leaks* tries other spellings, typos and"
        " descriptions. Click *Add the leaking phrases as aliases*, and they go into *What to"
        " erase*; run again.\n\nWithout clicking: the second *SPEED Erase* takes the list"
        " *concepts + leaks* and starts from the original model.",
    )
    loader, eraser = _erase(graph, SD15, "Salvador Dali -> art")
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP")}
    probe = graph.add(
        "SpeedLeakProbe", (_AFTER, 0), (450, 240), **wires, erasure=(eraser, "erasure")
    )
    graph.add(
        "SpeedErase",
        (_LAST, 0),
        (450, 270),
        "Leaks closed",
        **wires,
        concepts=(probe, "concepts + leaks"),
    )


TEMPLATES: dict[str, Callable[[Graph], None]] = {
    "Start here - make a small model forget a painter": demo,
    "Erase one artist's style": one_style,
    "Erase three characters": characters,
    "Erase 100 names at once": hundred,
    "Erase an idea": implicit,
    "Replace one thing by another": replaced,
    "Erase from SDXL": sdxl,
    "Erase from Flux": flux,
    "Save a LoRA, a checkpoint and a recipe": saving,
    "Repeat an erasure on another checkpoint": recipe,
    "Compare before and after": compared,
    "Find leaks and close them": leaks,
}
"""File name, which is the title that people see -> what fills it."""


def build(name: str, info: Info) -> dict[str, Any]:
    """One template."""
    graph = Graph(info, name)
    TEMPLATES[name](graph)
    return graph.to_json()


def written(content: Mapping[str, Any]) -> str:
    """As it is stored."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    import conftest  # noqa: F401  makes the package importable

    with urllib.request.urlopen(f"{sys.argv[1]}/object_info") as answer:
        nodes = json.load(answer)
    for title in TEMPLATES:
        (ROOT / "example_workflows" / f"{title}.json").write_text(
            written(build(title, nodes)), encoding="utf-8"
        )
