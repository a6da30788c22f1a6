"""A graph that runs in seconds, as the front end opens it."""

from __future__ import annotations

from typing import Any

from comfy_server import ComfyServer
from graph import RETAINED
from templates import Graph

TEXT = "Van Gogh -> art\n# a note stays\nSnoopy | the beagle -> dog || character"
RETAINED_NAMES = RETAINED + "\nVan Gogh Museum"


def small(
    server: ComfyServer, preset: str = "auto", text: str = TEXT, seed: int = 0
) -> dict[str, Any]:
    """A graph that runs in seconds: loader, list, kept names, SPEED Erase, and its measurements as
    JSON.
    """
    graph = Graph(server.get("/object_info"), "small")
    loader = graph.add("TinyCheckpoint", (0, 0), (300, 100), name="tiny.safetensors")
    listed = graph.add("ConceptList", (0, 160), (400, 300), text=text)
    retain = graph.add("RetainSetLoader", (0, 760), (400, 300), text=RETAINED_NAMES, kind="style")
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP"), "concepts": (listed, "concepts")}
    eraser = graph.add(
        "SpeedErase",
        (460, 0),
        (460, 300),
        **wires,
        retain=(retain, "retain"),
        preset=preset,
        seed=seed,
    )
    report = graph.add("SpeedReport", (980, 0), (400, 300), erasure=(eraser, "erasure"))
    graph.add("PreviewAny", (980, 400), (400, 300), source=(report, "json"))
    return graph.to_json()
