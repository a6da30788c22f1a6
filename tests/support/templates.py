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
FLUX = "flux1-dev-fp8.safetensors"
WAN_HIGH, WAN_LOW = (
    f"wan2.2_t2v_{noise}_noise_14B_fp8_scaled.safetensors" for noise in ("high", "low")
)
UMT5 = "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
ANIMA, QWEN3_06B, QWEN_VAE = (
    "anima-base-v1.0.safetensors",
    "qwen_3_06b_base.safetensors",
    "qwen_image_vae.safetensors",
)
KLEIN, QWEN3_4B, FLUX2_VAE = (
    "flux-2-klein-4b-fp8.safetensors",
    "qwen_3_4b.safetensors",
    "flux2-vae.safetensors",
)
RECIPE = "output/recipes/speed/erased_00001_.recipe.json"
"""What the template that saves has written after its first run."""
_NOTE, _ERASE, _AFTER, _LAST = -400, 420, 910, 1440
"""Columns besides the one at 0. The front end fits a template into the window: text below 60 %
is too small to read.
"""
Info = Mapping[str, Any]


class Graph:
    """A workflow as the front end saves it."""

    def __init__(self, info: Info, name: str) -> None:
        self.info, self.name = info, name
        self.nodes: list[dict[str, Any]] = []
        self.links: list[list[Any]] = []
        self.extra: dict[str, Any] = {}

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

    def offer(self, number: int, name: str, directory: str) -> None:
        """Where front ends offer to download the model that a node loads."""
        model = {"name": name, "url": _DOWNLOADS[name], "directory": directory}
        self.nodes[number - 1]["properties"]["models"] = [model]

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
            "extra": {"ds": {"scale": 0.65, "offset": [520, 190]}, **self.extra},
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
    """Loader, list and SPEED Erase; returns the loader and the eraser. The eraser is below the
    wires that lead from the loader to the nodes after it.
    """
    loader = graph.add("CheckpointLoaderSimple", (0, 0), (380, 100), ckpt_name=checkpoint)
    if checkpoint in _DOWNLOADS:
        graph.offer(loader, checkpoint, "checkpoints")
    listed = graph.add(
        "ConceptList", (0, 170), (380, 420), "What to erase", text=concepts, kind=kind
    )
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP"), "concepts": (listed, "concepts")}
    return loader, graph.add("SpeedErase", (_ERASE, 170), (450, 490), **wires, **given)


def _erase_apart(
    graph: Graph, files: tuple[str, str, str], family: str, concepts: str
) -> tuple[dict[str, tuple[int, str]], int]:
    """Loaders of a model, a text encoder and a VAE in files of their own, list and SPEED Erase;
    returns what SPEED Compare needs of the loaders, and the eraser.
    """
    loaders = []
    for place, (kind, widgets) in enumerate(
        (
            ("UNETLoader", {"unet_name": files[0]}),
            ("CLIPLoader", {"clip_name": files[1], "type": family}),
            ("VAELoader", {"vae_name": files[2]}),
        )
    ):
        loader = graph.add(kind, (0, 140 * place), (380, 110 if place == 1 else 90), **widgets)
        graph.offer(loader, files[place], ("diffusion_models", "text_encoders", "vae")[place])
        loaders.append(loader)
    model, clip, vae = zip(loaders, ("MODEL", "CLIP", "VAE"), strict=True)
    listed = graph.add(
        *("ConceptList", (0, 420), (380, 420), "What to erase"), text=concepts, kind="style"
    )
    wires = {"model": model, "clip": clip, "concepts": (listed, "concepts")}
    eraser = graph.add("SpeedErase", (_ERASE, 420), (450, 490), **wires, effort="fast")
    return {"original": model, "clip": clip, "vae": vae}, eraser


def _demo(graph: Graph, concepts: str, kind: str = "style", **given: Any) -> tuple[int, int]:
    """The same with the demo model and the other names that it knows."""
    names = [name for name in _PAINTERS + _SUBJECTS if name not in concepts]
    retain = graph.add(
        "RetainSetLoader",
        (0, 640),
        (380, 440),
        "What to protect",
        text="\n".join(names),
        kind="same as concepts",
        builtin="none",
    )
    return _erase(graph, DEMO, concepts, kind, retain=(retain, "retain"), **given)


def _compare(graph: Graph, loader: int, eraser: int, **given: Any) -> int:
    """SPEED Compare, whose prompts follow the first concept of the list."""
    sources = {"original": (loader, "MODEL"), "clip": (loader, "CLIP"), "vae": (loader, "VAE")}
    return _compare_apart(graph, sources, eraser, **given)


def _compare_apart(
    graph: Graph, sources: Mapping[str, tuple[int, str]], eraser: int, **given: Any
) -> int:
    """The same with a model, a text encoder and a VAE from anywhere."""
    wires = {**sources, "erased": (eraser, "model"), **given}
    number = graph.add("SpeedCompare", (_AFTER, 0), (490, 1080), "Before and after", **wires)
    texts = (node["widgets_values"][0] for node in graph.nodes if node["type"] == "ConceptList")
    names = str(next(texts, "")).split("\n")[0].partition(" ->")[0].split(" | ")
    if names[0]:
        graph.nodes[number - 1]["properties"]["speed_names"] = names[:2]
    return number


_DEMO_LOOK = {"pairs": 3, "steps": 12, "cfg": 3.0, "width": 128, "height": 128}
_PAINTERS = [
    "Orla Venn",
    "Dario Fenwick",
    "Petra Lunde",
    "Tibor Quill",
    "Ines Marrow",
    "Soren Vale",
    "Kaya Brandt",
    "Lucio Perrin",
    "Hedda Stroud",
    "Anselm Roe",
    "Yuki Tallow",
    "Bruna Castell",
]
_SUBJECTS = ["cat", "house", "tree", "boat", "flower", "fish", "castle", "mushroom", "butterfly"]
_COMFY_ORG = "https://huggingface.co/Comfy-Org/"
_SPLIT = "resolve/main/split_files"
_ANIMA = f"https://huggingface.co/circlestone-labs/Anima/{_SPLIT}"
_DOWNLOADS = {
    SD15: "https://huggingface.co/Comfy-Org/stable-diffusion-v1-5-archive/resolve/main/" + SD15,
    SDXL: "https://huggingface.co/stabilityai/stable-diffusion-xl-base-1.0/resolve/main/" + SDXL,
    FLUX: "https://huggingface.co/Comfy-Org/flux1-dev/resolve/main/" + FLUX,
    **{
        name: f"{_COMFY_ORG}Wan_2.2_ComfyUI_Repackaged/{_SPLIT}/diffusion_models/{name}"
        for name in (WAN_HIGH, WAN_LOW)
    },
    UMT5: f"{_COMFY_ORG}Wan_2.1_ComfyUI_repackaged/{_SPLIT}/text_encoders/{UMT5}",
    ANIMA: f"{_ANIMA}/diffusion_models/{ANIMA}",
    QWEN3_06B: f"{_ANIMA}/text_encoders/{QWEN3_06B}",
    QWEN_VAE: f"{_ANIMA}/vae/{QWEN_VAE}",
    KLEIN: "https://huggingface.co/black-forest-labs/FLUX.2-klein-4b-fp8/resolve/main/" + KLEIN,
    QWEN3_4B: f"{_COMFY_ORG}z_image_turbo/{_SPLIT}/text_encoders/{QWEN3_4B}",
    FLUX2_VAE: f"{_COMFY_ORG}flux2-dev/{_SPLIT}/vae/{FLUX2_VAE}",
}
"""Model file -> where front ends offer to download it."""
_YOURS = (
    "\n\nFor your own model, choose another checkpoint, write your names, and set the size in"
    " *Before and after* to what the model needs (512 for SD1.5, 1024 for SDXL)."
)


def demo(graph: Graph) -> None:
    """The one to begin with."""
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Make a model forget a painter\n\nThis uses the **demo model** that comes with SPEED."
        " It knows twelve invented painters.\n\n1. Press **Run**.\n2. *SPEED Erase* shows whether"
        " the painter is erased, and whether anything else changed.\n3. Move over the images:"
        " only the erased painter changes.\n4. Click *Save* to keep the result." + _YOURS,
    )
    loader, eraser = _demo(graph, "Orla Venn | the Copper Hand -> art")
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


def one_style(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Erase one artist's style\n\nWrite the name in *What to erase* and press **Run**. 'Soren"
        " Vale → art' means: prompts with that name give what *art* would give.\n\nStill visible?"
        " Follow the advice in *SPEED Erase*." + _YOURS,
    )
    loader, eraser = _demo(graph, "Soren Vale -> art")
    _compare(
        graph,
        loader,
        eraser,
        target="a castle in the style of Soren Vale",
        alias="",
        neighbour="a castle in the style of Hedda Stroud",
        control="a tree",
        **_DEMO_LOOK,
    )


def objects(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Erase three things\n\nOne line per thing, with what it becomes. Characters work the"
        " same way: choose the type *character*, and write other names as aliases, as in 'Snoopy |"
        " the Peanuts beagle -> dog'." + _YOURS,
    )
    loader, eraser = _demo(graph, "cat -> object\nfish -> object\nbutterfly -> object", "object")
    _compare(
        graph,
        loader,
        eraser,
        target="a cat in the style of Hedda Stroud",
        alias="a fish in the style of Ines Marrow",
        neighbour="a tree in the style of Hedda Stroud",
        control="a house in the style of Kaya Brandt",
        **_DEMO_LOOK,
    )


def many(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Erase many names at once\n\nPaste your own list over these painters, hundreds if you"
        " like: a column of a spreadsheet works, and so does a .csv file dropped on the"
        " node.\n\n*SPEED Erase* shows the least erased names first." + _YOURS,
    )
    loader, eraser = _demo(graph, "\n".join(_PAINTERS[:8]))
    _compare(
        graph,
        loader,
        eraser,
        target=f"a cat in the style of {_PAINTERS[0]}",
        alias=f"a boat in the style of {_PAINTERS[4]}",
        neighbour=f"a cat in the style of {_PAINTERS[9]}",
        control="a mushroom",
        **_DEMO_LOOK,
    )


def idea(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Erase an idea\n\nSome ideas have many names: violence, nudity, gore. Choose the type"
        " **theme**. With nothing after the arrow, the words count as if they were not in"
        " the prompt.\n\nWrite the words people use for it as aliases. Then look for leaks.",
    )
    loader, eraser = _erase(graph, SD15, "blood | gore | bloodshed ->", "theme")
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
        (360, 320),
        "## Replace one thing with another\n\nPrompts with *cat* give what *fish* would give. The"
        " closer the two are, the cleaner the swap." + _YOURS,
    )
    loader, eraser = _demo(graph, "cat -> fish", "object")
    _compare(
        graph,
        loader,
        eraser,
        target="a cat in the style of Petra Lunde",
        alias="",
        neighbour="a butterfly in the style of Petra Lunde",
        control="a castle in the style of Yuki Tallow",
        **_DEMO_LOOK,
    )


def sdxl(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 240),
        "## SDXL\n\nThe same three nodes. Encoding takes longer on a CPU, so *thoroughness* is"
        " *fast*; with a GPU choose *normal*.",
    )
    loader, eraser = _erase(graph, SDXL, "Van Gogh | Vincent van Gogh -> art", effort="fast")
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
        (360, 240),
        "## Flux\n\nFlux reads all text through one layer, and SPEED edits that layer. You need a"
        " GPU with room for the model. Keep cfg at 1.",
    )
    loader, eraser = _erase(graph, FLUX, "Van Gogh | Vincent van Gogh -> art", effort="fast")
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


def anima(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Anima\n\nAnima is prompted with tags, and artists with @name. SPEED makes and tests the"
        " edit in such prompts. Write the name without the @.\n\nYou need a ComfyUI that knows"
        " Anima.",
    )
    files = (ANIMA, QWEN3_06B, QWEN_VAE)
    sources, eraser = _erase_apart(graph, files, "stable_diffusion", "Van Gogh -> art")
    _compare_apart(
        graph,
        sources,
        eraser,
        target="masterpiece, best quality, @van gogh, village, night",
        alias="",
        neighbour="masterpiece, best quality, @claude monet, garden, pond",
        control="masterpiece, best quality, 1girl, red car, rain",
        width=1024,
        height=1024,
        pairs=1,
        cfg=4.0,
    )


def klein(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 240),
        "## Flux.2 Klein\n\nAll text enters through one layer, and SPEED edits that layer. This is"
        " the distilled 4B model: keep cfg at 1.",
    )
    files = (KLEIN, QWEN3_4B, FLUX2_VAE)
    sources, eraser = _erase_apart(graph, files, "flux2", "Van Gogh | Vincent van Gogh -> art")
    _compare_apart(
        graph,
        sources,
        eraser,
        target="a village at night by Van Gogh",
        alias="",
        neighbour="a garden with a pond by Claude Monet",
        control="a photo of a red car in the rain",
        width=1024,
        height=1024,
        pairs=1,
        steps=4,
        cfg=1.0,
        scheduler="simple",
    )


def wan(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Wan 2.2\n\nWan 2.2 has two models: one begins the video, the other finishes it. Erase"
        " from both, with the same list. The text is encoded once.\n\nPress **Run** to save a LoRA"
        " for each. To generate a video, connect each *SPEED Erase* to the sampler of its model.",
    )
    text = graph.add("CLIPLoader", (0, 300), (380, 130), clip_name=UMT5, type="wan")
    graph.offer(text, UMT5, "text_encoders")
    listed = graph.add(
        *("ConceptList", (0, 500), (380, 420), "What to erase"),
        text="Van Gogh | Vincent van Gogh -> art",
        kind="style",
    )
    for place, (noise, name) in enumerate((("high", WAN_HIGH), ("low", WAN_LOW))):
        loader = graph.add("UNETLoader", (0, 150 * place), (380, 90), unet_name=name)
        graph.offer(loader, name, "diffusion_models")
        wires = {"model": (loader, "MODEL"), "clip": (text, "CLIP")}
        concepts, top = (listed, "concepts"), 560 * place
        eraser = graph.add(
            *("SpeedErase", (_ERASE, top), (450, 490), f"SPEED Erase, {noise} noise"),
            **wires,
            concepts=concepts,
            effort="fast",
        )
        graph.add(
            *("SaveErasedModel", (_AFTER, top), (490, 430)),
            model=(eraser, "model"),
            erasure=(eraser, "erasure"),
            filename_prefix=f"speed/wan-{noise}-noise",
            recipe=False,
        )


def never(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Never draw\n\nA negative prompt for models that take none (Flux, Klein, Z-Image Turbo)."
        " It works at CFG 1 and costs nothing per step.\n\nWrite names and words in *Never Draw*,"
        " separated by commas, and press **Run**. It acts on the words in prompts. What a model"
        " adds unasked, such as watermarks, stays.",
    )
    loader = graph.add("CheckpointLoaderSimple", (0, 0), (380, 100), ckpt_name=DEMO)
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP")}
    blocked = graph.add(
        "SpeedNeverDraw", (_ERASE, 170), (450, 460), **wires, text="fish, Orla Venn -> art || style"
    )
    _compare(
        graph,
        loader,
        blocked,
        target="a fish in the style of Tibor Quill",
        alias="a boat in the style of Orla Venn",
        neighbour="a boat in the style of Tibor Quill",
        control="a house",
        **_DEMO_LOOK,
    )


def saving(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Keep the result\n\n*Save Erased Model* writes to ComfyUI's output folder:\n\n- a"
        " **LoRA** of a few megabytes, for people who have the checkpoint\n- the cleaned"
        " **checkpoint**; nothing in it can be unloaded\n- a **recipe**, a small text file"
        " that repeats the erasure on another model",
    )
    loader, eraser = _demo(graph, "Ines Marrow -> art\nYuki Tallow -> art")
    wires = {"model": (eraser, "model"), "clip": (loader, "CLIP"), "vae": (loader, "VAE")}
    erasure = (eraser, "erasure")
    graph.add("SaveErasedModel", (_AFTER, 0), (490, 430), **wires, erasure=erasure, checkpoint=True)
    graph.add("SpeedReport", (_AFTER, 490), (490, 420), erasure=erasure)


def compared(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Compare before and after\n\nFour prompts show whether only the right thing changed. The"
        " name and its alias should change; a similar name and something unrelated should stay."
        " Both images of a pair have the same seed.\n\n*grid* is the same as one image, to save or"
        " to post.",
    )
    loader, eraser = _demo(graph, "Orla Venn | the Copper Hand -> art")
    compare = _compare(
        graph,
        loader,
        eraser,
        target="a house in the style of Orla Venn",
        alias="a boat in the style of the Copper Hand",
        neighbour="a house in the style of Dario Fenwick",
        control="a tree",
        **{**_DEMO_LOOK, "pairs": 4},
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
        (360, 320),
        "## Find leaks and close them\n\n*Find Leaks* tries other spellings, typos and your"
        " own description, and shows which of them still bring the painter back.\n\n*strength* is"
        " 0.3 here, too low to erase her, so several phrases leak. Set it to 1 and run again:"
        " nothing leaks.\n\nIf only a few phrases leak at full strength, click *Add leaks as"
        " aliases* and run again.",
    )
    loader, eraser = _demo(graph, "Orla Venn -> art", strength=0.3)
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP")}
    erasure = (eraser, "erasure")
    description = "the Copper Hand"
    graph.add(
        "SpeedLeakProbe", (_AFTER, 0), (490, 480), **wires, erasure=erasure, description=description
    )


def _app(graph: Graph, inputs: list[tuple[int, str, str]], outputs: list[int]) -> None:
    """Opens in App mode, where front ends have it: these widgets (node, name, label), and what
    these nodes show.
    """
    for number, name, label in inputs:
        slots = graph.nodes[number - 1]["inputs"]
        next(slot for slot in slots if slot["name"] == name)["label"] = label
    graph.extra = {
        "linearMode": True,
        "linearData": {"inputs": [list(item[:2]) for item in inputs], "outputs": outputs},
    }


def _node(graph: Graph, kind: str) -> int:
    return next(node["id"] for node in graph.nodes if node["type"] == kind)


def _show(graph: Graph, eraser: int, compare: int) -> list[int]:
    """Nodes with the images and the verdict, which App mode shows: it shows no text."""
    return [
        graph.add("PreviewImage", (_LAST, 0), (400, 400), images=(compare, "grid")),
        graph.add("PreviewImage", (_AFTER, 1140), (490, 400), images=(eraser, "chart")),
    ]


def my_style(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 320),
        "## Erase my style\n\nOpens in App mode, where your ComfyUI has it: choose a model, write"
        " your name, press **Run**, and compare the images." + _YOURS,
    )
    loader, eraser = _demo(graph, "Orla Venn | the Copper Hand -> art")
    look = {**_DEMO_LOOK, "pairs": 1}
    compare = _compare(
        graph,
        loader,
        eraser,
        target="a cat in the style of Orla Venn",
        alias="a boat in the style of the Copper Hand",
        neighbour="a cat in the style of Dario Fenwick",
        control="a house in the style of Tibor Quill",
        **look,
    )
    outputs = _show(graph, eraser, compare)
    listed = _node(graph, "ConceptList")
    inputs = [
        (loader, "ckpt_name", "model"),
        (listed, "text", "names to erase"),
        (eraser, "priority", "priority"),
        (compare, "target", "prompt to compare"),
    ]
    _app(graph, inputs, outputs)


def check_model(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 220),
        "## Check a model\n\nChoose a file. You see what was erased from it, as its recipe states."
        " To verify that the weights agree, use the command line: *speed-erase verify*.",
    )
    inspect = graph.add("SpeedInspect", (0, 0), (450, 320), file=f"checkpoints/{DEMO}")
    _app(graph, [(inspect, "file", "model file")], [inspect])


def recipe(graph: Graph) -> None:
    graph.note(
        (_NOTE, 0),
        (360, 260),
        "## Repeat a recipe\n\nRun *Save a LoRA, a checkpoint and a recipe* first. Then press R and"
        " choose your recipe here. The edit is recalculated for this model: a recipe fits every"
        " checkpoint, a LoRA is exact only on its own.",
    )
    loader = graph.add("CheckpointLoaderSimple", (0, 0), (380, 100), ckpt_name=DEMO)
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP")}
    eraser = graph.add("SpeedApplyRecipe", (_ERASE, 170), (450, 420), **wires, recipe=RECIPE)
    compare = _compare(
        graph,
        loader,
        eraser,
        target="a castle in the style of Ines Marrow",
        alias="a mushroom in the style of Yuki Tallow",
        neighbour="a castle in the style of Kaya Brandt",
        control="a tree",
        **{**_DEMO_LOOK, "pairs": 1},
    )
    outputs = _show(graph, eraser, compare)
    inputs = [
        (loader, "ckpt_name", "model"),
        (eraser, "recipe", "recipe"),
        (compare, "target", "prompt to compare"),
    ]
    _app(graph, inputs, outputs)


TEMPLATES: dict[str, Callable[[Graph], None]] = {
    "1 - Start here": demo,
    "Erase one artist's style": one_style,
    "Erase three objects": objects,
    "Erase many names at once": many,
    "Erase an idea": idea,
    "Replace one thing with another": replaced,
    "Never draw": never,
    "Erase from SDXL": sdxl,
    "Erase from Flux": flux,
    "Erase from Anima": anima,
    "Erase from Flux.2 Klein": klein,
    "Erase from Wan 2.2": wan,
    "Save a LoRA, a checkpoint and a recipe": saving,
    "Compare before and after": compared,
    "Find leaks and close them": leaks,
    "App - Erase my style": my_style,
    "App - Check a model": check_model,
    "App - Repeat a recipe": recipe,
}
"""File name, which is the title that people see -> what fills it. The first sorts first."""


def build(name: str, info: Info) -> dict[str, Any]:
    """One template."""
    graph = Graph(info, name)
    TEMPLATES[name](graph)
    return graph.to_json()


def written(content: Mapping[str, Any]) -> str:
    """As it is stored."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    with urllib.request.urlopen(f"{sys.argv[1]}/object_info") as answer:
        nodes = json.load(answer)
    for path in (ROOT / "example_workflows").glob("*.json"):
        path.unlink()
    for title in TEMPLATES:
        (ROOT / "example_workflows" / f"{title}.json").write_text(
            written(build(title, nodes)), encoding="utf-8"
        )
