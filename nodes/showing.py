"""What a node shows under itself, and says in the history."""

from __future__ import annotations

from comfy_api.latest import io

from .host.showing import show_text


def shows_text() -> list[io.Hidden]:
    """Hidden inputs that a node needs for `telling`; a new list each time, because schemas add to theirs."""
    return [io.Hidden.unique_id]


def telling(node: type[io.ComfyNode], text: str) -> dict[str, tuple[str]]:
    """The `ui` of a node that tells something, after showing it."""
    show_text(node.hidden, text)
    return {"text": (text,)}
