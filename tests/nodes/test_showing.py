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
    instance = SimpleNamespace(
        send_progress_text=lambda text, node: messages.append((text, node)),
        send_sync=lambda event, data: None,
    )
    stand_in = SimpleNamespace(PromptServer=SimpleNamespace(instance=instance))
    monkeypatch.setitem(sys.modules, "server", stand_in)
    return messages


def show(text: str, node: str | None = "7") -> None:
    from speed_erase.nodes.host.progress import show_text

    show_text(SimpleNamespace(unique_id=node), text)


def test_a_text_reaches_its_node_and_names_are_neither_html_nor_markdown(sent):
    show("Kept: <img src=x onerror=alert(1)> & others")
    assert sent == [("Kept: ‹img src=x onerror=alert(1)› & others", "7")]
    show("# A -> b\n*x* `y`\n![z](http://z)")
    assert sent[1][0] == "＃ A → b  \n∗x∗ ˋyˋ  \n![z] (http://z)", (
        "two spaces: a line break wherever it is Markdown"
    )


def test_progress_is_told_in_words_and_numbers(comfyui):
    from speed_erase.nodes.host.progress import in_words

    assert in_words("retain names", 0, 750, 0.1) == "Encoding protected names: 0 of 750"
    assert (
        in_words("retain names", 250, 750, 20.0)
        == "Encoding protected names: 250 of 750, about 40 s left"
    )
    assert in_words("layers", 10, 70, 60.0) == "Editing layers: 10 of 70, about 6 min left"
    assert in_words("prepare", 0, 1, 9.0) == "Preparing"


def test_work_is_announced_and_followed_on_its_node(sent):
    from speed_erase.nodes.host.progress import HostProgress

    progress = HostProgress(SimpleNamespace(unique_id="7"))
    progress.announce("Much to do.")
    progress("concepts", 0, 5)
    progress("concepts", 1, 5)  # words that change faster cannot be read
    assert sent == [
        ("Much to do.", "7"),
        ("Encoding concepts: 0 of 5  \nMuch to do.", "7"),
    ], "not faster than one reads"


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

    telling = {
        node.define_schema().node_id
        for node in NODES
        if "unique_id" in str(node.define_schema().hidden)
    }
    silent = {"ConceptList", "SpeedSettings", "SpeedApplyErasure"}
    assert telling == {node.define_schema().node_id for node in NODES} - silent
