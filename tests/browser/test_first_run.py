"""What people see from an empty page on: nothing is in the workflow but its nodes."""

from __future__ import annotations

from typing import Any

import pytest
from small_graph import small

pytestmark = [pytest.mark.comfy, pytest.mark.browser, pytest.mark.slow]

_VERDICT = "[data-speed=verdict]"
_STATE = "[data-speed=state]"


def test_the_panel_appears_on_the_first_run_and_belongs_to_it(server, screen, shots, nodes2):
    graph = small(server, "few", seed=10 + nodes2)
    screen.load(graph)
    assert screen.at("[data-speed=empty]").count() >= 1
    before = sizes(screen)
    screen.run_until_shown()
    assert screen.at(_STATE).count() == 0, "current after the run"
    assert screen.at("[data-concept]").count() == 2
    assert sizes(screen) == before, "no node grows when it shows its result"
    assert screen.at(".buttons button").all_inner_texts()[:4] == [
        "Compare",
        "Find leaks",
        "Save",
        "Details",
    ]
    screen.fit()
    screen.page.screenshot(path=shots / f"first-{server.folder.name}-{nodes2}.png")

    screen.set("SpeedErase", "strength", 0.7)
    wait_for_state(screen, "Out of date")
    screen.wait_for_count(_STATE, 2)  # on SPEED Erase and on its report
    screen.set("SpeedErase", "strength", 1.0)
    screen.page.wait_for_function(f"() => !document.querySelector('.speed {_STATE}')")
    screen.at(".chip .label").first.press("Space")
    wait_for_state(screen, "Out of date")
    screen.at(".chip .label").first.press("Space")
    screen.page.wait_for_function(f"() => !document.querySelector('.speed {_STATE}')")
    screen.run(
        "() => { app.graph._nodes.find((n) => n.type === 'SpeedErase').mode = 4;"
        " app.extensionManager.workflow.activeWorkflow.changeTracker.checkState?.();"
        " app.extensionManager.workflow.activeWorkflow.changeTracker.captureCanvasState?.() }"
    )
    wait_for_state(screen, "Bypassed")

    saved = screen.saved()
    eraser = next(node for node in saved["nodes"] if node["type"] == "SpeedErase")
    assert len(str(eraser["properties"]["speed"])) < 2_000, "little is stored"

    other = small(server, "few", text="Odilon Redon -> art")
    screen.load({**other, "id": graph["id"]})
    screen.page.wait_for_timeout(1_500)
    assert screen.at(_VERDICT).count() == 0, "a result turns up in no other graph"
    screen.load(saved)
    screen.page.wait_for_selector(f".speed {_VERDICT}")
    rows = screen.at("[data-concept]").all()
    assert {row.get_attribute("data-concept") for row in rows} == {"Van Gogh", "Snoopy"}


def wait_for_state(screen: Any, words: str) -> None:
    screen.page.wait_for_function(
        "(words) => [...document.querySelectorAll('.speed [data-speed=state]')]"
        ".some((tag) => tag.innerText.includes(words))",
        arg=words,
    )


def sizes(screen: Any) -> list[list[int]]:
    return screen.run("() => app.graph._nodes.map((n) => [...n.size].map(Math.round))")


@pytest.mark.parametrize("button", ["Compare", "Find leaks", "Save"])
def test_a_button_adds_the_node_filled_and_wired(server, screen, button):
    screen.load(small(server, "few", seed=3))
    screen.run_until_shown()
    screen.at(
        ".buttons button",
    ).get_by_text(button, exact=True).click()
    kind, wires = {
        "Compare": ("SpeedCompare", ["original", "erased", "clip", "vae"]),
        "Find leaks": ("SpeedLeakProbe", ["model", "clip", "erasure"]),
        "Save": ("SaveErasedModel", ["erasure", "model", "clip", "vae"]),
    }[button]
    screen.page.wait_for_function(
        "(kind) => app.graph._nodes.some((n) => n.type === kind)", arg=kind
    )
    screen.page.wait_for_timeout(500)
    wired = screen.run(
        "(kind) => app.graph._nodes.find((n) => n.type === kind).inputs"
        ".filter((slot) => slot.link != null).map((slot) => slot.name)",
        kind,
    )
    assert sorted(wired) == sorted(wires)
    if button == "Compare":
        assert "Van Gogh" in screen.value(kind, "target")
    rectangles = screen.run(
        "() => app.graph._nodes.map((n) => [n.pos[0], n.pos[1] - 30, n.pos[0] + n.size[0],"
        " n.pos[1] + n.size[1]])"
    )
    added = rectangles[-1]
    for other in rectangles[:-1]:
        apart = (
            added[0] >= other[2]
            or other[0] >= added[2]
            or added[1] >= other[3]
            or other[1] >= added[3]
        )
        assert apart, (added, other)
