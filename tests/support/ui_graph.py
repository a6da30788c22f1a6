"""A graph as the frontend saves it, turned into what the frontend would send to the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workflows import Workflow

_WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
_BYPASSED = 4
NOTES = ("Note", "MarkdownNote")
"""Nodes of the front end alone."""


def to_api(graph: Mapping[str, Any], info: Mapping[str, Any]) -> Workflow:
    """`info` is the server's /object_info: it alone says which widgets a node has, and in which
    order.
    """
    links = {number: [str(source), slot] for number, source, slot, *_ in graph["links"]}
    out: Workflow = {}
    for node in graph["nodes"]:
        if node["type"] in NOTES or node["mode"] == _BYPASSED:
            continue  # a bypassed node of ours is at an end of the graph: nothing depends on it
        assert node["type"] in info, node["type"]
        inputs = dict(widget_values(node, info[node["type"]]))
        for slot in node["inputs"]:
            if slot.get("link") is not None:
                inputs[slot["name"]] = links[slot["link"]]
        out[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return out


def widget_values(node: Mapping[str, Any], info: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Widgets by name, their values in the order in which the frontend saves them."""
    values = iter(node.get("widgets_values") or [])
    for name, spec in specs(info):
        if is_widget(spec):
            yield name, next(values)
            if len(spec) > 1 and spec[1].get("control_after_generate"):
                next(values)  # a widget of the frontend alone
    # what previews keep beside their widgets
    left = [value for value in values if value not in (None, False)]
    assert not left, f"{node['type']} has values without a widget: {left}"


def specs(info: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    """Inputs in order: required ones, then optional ones."""
    groups = (info["input"].get("required", {}), info["input"].get("optional", {}))
    return [(name, spec) for group in groups for name, spec in group.items()]


def is_widget(spec: list[Any]) -> bool:
    """Whether the frontend shows the input as a widget, not as a socket alone."""
    kind, options = spec[0], spec[1] if len(spec) > 1 else {}
    return (isinstance(kind, list) or kind in _WIDGETS) and not options.get("forceInput")
