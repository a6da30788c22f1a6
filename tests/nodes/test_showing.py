"""What nodes show under themselves: short, and safe with any name."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.comfy


@pytest.fixture
def sent(comfyui, monkeypatch):
    """What reaches the browser: [(text, node)]."""
    messages: list[tuple[str, str]] = []
    instance = SimpleNamespace(send_progress_text=lambda text, node: messages.append((text, node)))
    stand_in = SimpleNamespace(PromptServer=SimpleNamespace(instance=instance))
    monkeypatch.setitem(sys.modules, "server", stand_in)
    return messages


def show(text: str, node: str | None = "7") -> None:
    from speed_erase.nodes.host.progress import show_text

    show_text(SimpleNamespace(unique_id=node), text)


def test_a_text_reaches_its_node_and_names_are_no_html(sent):
    show("Kept: <img src=x onerror=alert(1)> & others")
    assert sent == [("Kept: &lt;img src=x onerror=alert(1)&gt; &amp; others", "7")]


def test_a_long_text_is_cut_and_says_so(sent):
    show("\n".join(f"line {i}" for i in range(100)))
    lines = sent[0][0].splitlines()
    assert len(lines) == 13 and lines[-1] == "... 88 more lines in the node's output"


def test_without_a_node_or_a_server_nothing_happens(sent, monkeypatch):
    show("x", None)
    monkeypatch.setattr(sys.modules["server"].PromptServer, "instance", None)
    show("x")
    assert sent == []


def test_every_node_that_tells_something_can_show_it(comfyui):
    from speed_erase.nodes import NODES

    telling = {node.define_schema().node_id for node in NODES if "unique_id" in str(node.define_schema().hidden)}
    silent = {"ConceptList", "SpeedSettings", "SpeedApplyErasure"}
    assert telling == {node.define_schema().node_id for node in NODES} - silent
