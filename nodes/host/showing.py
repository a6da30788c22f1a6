"""Text under a node, by the message with which ComfyUI's own nodes show theirs: no script in the browser is needed."""

from __future__ import annotations

import html
from typing import Any

_LINES = 12


def show_text(hidden: Any, text: str) -> None:
    """Shows the first lines on the node that runs; `hidden` are its hidden inputs. Without a server it does nothing."""
    number = getattr(hidden, "unique_id", None)
    if number is None:
        return
    from server import PromptServer

    server = getattr(PromptServer, "instance", None)
    if server is not None:
        lines = text.splitlines()
        rest = [] if len(lines) <= _LINES else [f"... and {len(lines) - _LINES} more lines: see its output"]
        # The frontend takes the text for HTML, and names may hold anything.
        server.send_progress_text(html.escape("\n".join(lines[:_LINES] + rest), quote=False), number)
