"""What a run was asked, as a short code: a result is current while the graph asks the same.

`web/run.js` computes the same code from the graph on the canvas. Node ids are not part of it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any
from zlib import crc32


def run_code(hidden: Any) -> str:
    """The code of the node that runs with these hidden inputs; empty where they are not known."""
    prompt, node_id = getattr(hidden, "prompt", None), getattr(hidden, "unique_id", None)
    if not isinstance(prompt, Mapping) or str(node_id) not in prompt:
        return ""
    return code_of(prompt, str(node_id))


def code_of(prompt: Mapping[str, Any], node_id: str) -> str:
    """Eight hex digits for a node's type, its inputs, and all nodes before it.

    Args:
        prompt: The graph as the API takes it: {id: {class_type, inputs}}.
        node_id: The node.
    """
    codes: dict[str, str] = {}

    def code(number: str) -> str:
        if number not in codes:
            codes[number] = ""  # a graph with a cycle never runs, but may be on the canvas
            node = prompt[number]
            inputs = node["inputs"]
            parts = [f"{name}={value(inputs[name])}" for name in sorted(inputs)]
            codes[number] = _code("\n".join([node["class_type"], *parts]))
        return codes[number]

    def value(content: Any) -> str:
        match content:
            case [str(origin), int(slot)] if origin in prompt:
                return f"@{code(origin)}.{slot}"
        return _plain(content)

    return code(node_id)


def _plain(content: Any) -> str:
    if isinstance(content, bool) or content is None:
        return {None: "=null", True: "=true", False: "=false"}[content]
    if isinstance(content, (int, float)):
        return "#" + struct.pack(">d", content).hex()
    if isinstance(content, Mapping):
        return "{" + ",".join(f"{name}:{_plain(content[name])}" for name in sorted(content)) + "}"
    if isinstance(content, (list, tuple)):
        return "[" + ",".join(map(_plain, content)) + "]"
    return f"${content}"


def _code(text: str) -> str:
    return f"{crc32(text.encode('utf-8', 'replace')):08x}"
