"""Workflows as somebody with bad intentions shares them: what a node stored of its result, its
title and its widgets hold scripts, styles, addresses, odd keys and odd values.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

MARK = "speedevil"
"""In every payload: what runs sets `window.speedevil`, what is asked for is at this host."""
HOST = f"http://{MARK}.example"
_SCRIPT = f"window.{MARK}=1"

PAYLOADS: dict[str, str] = {
    "script": f"<script>{_SCRIPT}</script>",
    "image": f"<img src=x onerror='{_SCRIPT}'>",
    "svg": f"<svg onload='{_SCRIPT}'><animate onbegin='{_SCRIPT}'></svg>",
    "frame": f"<iframe srcdoc='<script>parent.{MARK}=1</script>' src='{HOST}'></iframe>",
    "quotes": f"\"'><a href='javascript:{_SCRIPT}' autofocus onfocus='{_SCRIPT}'>{MARK}</a>",
    "script address": f"javascript:{_SCRIPT}//",
    "data address": f"data:text/html,<script>opener.{MARK}=1</script>",
    "address": f"{HOST}/track.png",
    "address without scheme": f"//{MARK}.example/track.png",
    "path": f"../../../../{MARK}?filename=x#",
    "style": f"x; background: url({HOST}/css.png); position: fixed; inset: 0; z-index: 99999",
    "style value": f"red; --{MARK}: 1; background-image: url('{HOST}/value.png')",
    "style end": f"}} * {{ background: url({HOST}/all.png) !important; color: {MARK} }}",
    "style element": f"</style><style>@import '{HOST}/import.css'; body {{ opacity: .1 }}</style>",
    "link": f"<link rel=stylesheet href={HOST}/link.css><meta http-equiv=refresh content=0;{HOST}>",
    "class": f"{MARK} p-dialog-mask p-overlay-mask fixed inset-0 z-50",
    "template": f"{{{{constructor.constructor('{_SCRIPT}')()}}}}${{{_SCRIPT}}}",
    "markdown": f"[x](javascript:{_SCRIPT}) ![x]({HOST}/markdown.png) <b onclick='{_SCRIPT}'>",
    "signs": f"\u202e\u2066{MARK}\0\x1b[2J\ufeff\ud83d\u200b" + "\n" * 50,
}
"""Strings, each put into every place that takes one."""

WORD = ("verdict",)
"""Values without which a view shows nothing at all."""
RUN = "0123abcd"
FACTS: dict[str, Any] = {
    "run": RUN,
    "page": "0" * 32,
    "verdict": "weakened",
    "strength": 1.0,
    "text": "text",
    "concepts": [
        {"name": "Van Gogh", "replacement": "art", "kind": "style", "score": 2.0}
        | {"verdict": "weakened", "words": "weakened", "left": 0.5, "probe_median": 0.5}
    ],
    "counts": {"erased": 0, "weakened": 1, "stands": 0, "unproven": 0},
    "effects": {"words": "tiny", "worst": "small", "affected": ["Monet"]},
    "why": {"code": "why", "text": "why", "data": {"name": "x", "names": ["y"], "share": 0.5}},
    "next": [{"code": "use_auto", "text": "advice"}],
    "warnings": [{"code": "warning", "text": "warning", "data": {"name": "x"}}],
    "drift": [
        {"group": "Protected names, alone", "names": 3, "median": 0.1, "p95": 0.2}
        | {"maximum": 0.3, "worst": [["Monet", 0.2]]}
    ],
    "curve": {
        "left": [[0.0, 1.0], [0.1, 0.5]],
        "to_go": [[0.0, 1.0]],
        "chosen": [0.1, 0.5],
        "budget": 0.3,
        "reach": 0.5,
        "offers": {"balanced": [0.3, 0.2, 0.1]},
        "live": True,
    },
    "details": [{"code": "detail", "text": "detail", "data": {"name": "x"}}],
    "total": 2,
    "leaking": 1,
    "seeds": 1,
    "names": ["a"],
    "label": "x",
    "title": "x",
    "tried": [
        {"concept": "Van Gogh", "phrase": "the Dutchman", "prompt": "x", "after": 0.9}
        | {"leaks": True, "alias": False}
    ],
    "rows": [
        {
            "name": "Erased",
            "prompt": "x",
            "pairs": [{"seed": 1, "before": {"filename": "a.png"}, "after": {"filename": "b.png"}}],
        }
    ],
    "chart": {"filename": "c.png", "subfolder": "x", "type": "temp"},
}
"""What any of the views shows, all in one."""


def everywhere(value: Any, change: Callable[[Any], Any], key: str = "") -> Any:
    """The same with every value changed but those that decide whether anything is shown."""
    if isinstance(value, dict):
        return {name: everywhere(item, change, name) for name, item in value.items()}
    if isinstance(value, list):
        return [everywhere(item, change, key) for item in value]
    return value if key in WORD else change(value)


def _strings(payload: str) -> Any:
    return everywhere(FACTS, lambda value: payload if isinstance(value, str) else value)


def _deep(depth: int = 400) -> Any:
    value: Any = PAYLOADS["image"]
    for _ in range(depth):
        value = {"concepts": [value], "text": value} if _ % 50 == 0 else [value]
    return value


def _prototype() -> Any:
    poison = {MARK: 1, "style": PAYLOADS["style"], "toString": "x"}
    keys = {"__proto__": poison, "constructor": {"prototype": poison}, "prototype": poison}
    return {**FACTS, **keys, "counts": {**FACTS["counts"], **keys}, "why": {**FACTS["why"], **keys}}


def results() -> dict[str, Any]:
    """Name of a trick -> what a node's `properties.speed` is."""
    tricks = {f"{name} in every string": _strings(text) for name, text in PAYLOADS.items()}
    for name in ("image", "style", "address"):
        text = PAYLOADS[name]
        tricks[f"{name} in every value"] = everywhere(FACTS, lambda value, text=text: text)
    for name, value in {
        "huge numbers": 1e308,
        "negative numbers": -(10**30),
        "lists": [[PAYLOADS["image"]]],
        "objects": {"toString": PAYLOADS["image"], "style": PAYLOADS["style"], "length": 10**9},
        "nulls": None,
        "true": True,
    }.items():
        tricks[f"{name} in every value"] = everywhere(FACTS, lambda _, value=value: value)
    tricks |= {
        "prototype keys": _prototype(),
        "a string of a megabyte": {**FACTS, "text": PAYLOADS["image"] + "x" * 1_000_000},
        "ten thousand entries": {
            **FACTS,
            **{key: FACTS[key] * 10_000 for key in ("concepts", "details", "next")},
        },
        "deep nesting": {**FACTS, **dict.fromkeys(("why", "concepts", "curve", "text"), _deep())},
        "a list": [FACTS],
        "a string": json.dumps(FACTS),
        "keys": {
            PAYLOADS["image"]: PAYLOADS["style"],
            **FACTS,
            "counts": dict.fromkeys(PAYLOADS, 1),
        },
    }
    return tricks


def hostile_workflows(sound: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Name of a trick -> the workflow with it.

    Args:
        sound: A workflow with nodes of this package.
    """
    workflows = {}
    for name, result in results().items():
        workflow = copy.deepcopy(sound)
        payload = PAYLOADS.get(name.removesuffix(" in every string"), PAYLOADS["image"])
        subgraphs = workflow.get("definitions", {}).get("subgraphs", [])
        inside = (node for subgraph in subgraphs for node in subgraph["nodes"])
        for node in (*workflow["nodes"], *inside):
            properties = node.setdefault("properties", {})
            properties |= {"speed": result, "recipe": payload, "speed_names": [payload]}
            node["title"] = payload[:200]
            node["widgets_values"] = [
                f"{payload}\n{payload} -> {payload} || {payload}" if "\n" in str(value) else value
                for value in node.get("widgets_values") or []
            ]
        workflows[name] = workflow
    return workflows
