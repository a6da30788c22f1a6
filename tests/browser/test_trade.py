"""The trade-off as a control, and the node with one text box."""

from __future__ import annotations

from typing import Any

import pytest
from comfy_server import ComfyServer
from small_graph import small
from templates import Graph

pytestmark = [pytest.mark.comfy, pytest.mark.browser, pytest.mark.slow]

_PREVIEW = ".speed-dialog [data-speed=preview]"
_SCORES = (
    f"() => [...document.querySelectorAll('{_PREVIEW} [data-score]')]"
    ".map((row) => +row.dataset.score)"
)
_CURRENT = "() => !document.querySelector('.speed > .fill [data-speed=state]')"


def scores(screen: Any) -> list[float]:
    return screen.run(_SCORES)


def open_details(screen: Any) -> None:
    screen.at(".buttons button").get_by_text("Details", exact=True).first.click()
    screen.page.wait_for_selector(_PREVIEW)


def test_dragging_the_point_moves_the_bars_and_the_next_run_gives_what_they_showed(
    server, screen, nodes2, shots
):
    screen.load(small(server, "auto", seed=20 + nodes2))
    screen.run_until_shown()
    open_details(screen)
    before = scores(screen)
    screen.run(
        "() => { window.answers = []; const ask = app.api.fetchApi.bind(app.api);"
        " app.api.fetchApi = async (path, ...rest) => { const start = performance.now();"
        " const answer = await ask(path, ...rest);"
        " if (path === '/speed/trade') answers.push(performance.now() - start);"
        " return answer } }"
    )
    box = screen.page.locator(".speed-dialog .trade").bounding_box()
    y = box["y"] + box["height"] / 2
    screen.page.mouse.move(box["x"] + box["width"] * 0.6, y)
    screen.page.mouse.down()
    for share in (0.5, 0.4, 0.3, 0.2, 0.16):
        screen.page.mouse.move(box["x"] + box["width"] * share, y)
        screen.page.wait_for_timeout(60)
    screen.page.wait_for_function(
        f"(before) => JSON.stringify(({_SCORES})()) !== before", arg=str(before).replace(" ", "")
    )
    assert screen.value("SpeedErase", "priority") == "erase fully", "nothing is set while dragging"
    screen.page.mouse.up()
    screen.page.screenshot(path=shots / f"trade-{server.folder.name}-{nodes2}.png")
    limit = screen.value("SpeedErase", "priority")
    assert 0 < float(limit) < 0.45
    times = screen.run("() => answers")
    assert times and min(times) < 500, times
    screen.page.wait_for_timeout(500)
    shown = scores(screen)
    assert max(shown) > max(before), "less is erased within a stricter limit"
    screen.page.get_by_role("button", name="Run with this").click()
    screen.page.wait_for_function(
        "(shown) => { const rows = [...document.querySelectorAll('.speed > .fill [data-score]')];"
        " return rows.length && Math.abs(rows[0].dataset.score - shown) < 0.15 }",
        arg=shown[0],
    )
    screen.page.wait_for_function(_CURRENT)
    saved = screen.saved()
    screen.load(saved)
    assert screen.value("SpeedErase", "priority") == limit, "a number survives saving and loading"


def one_box(server: ComfyServer, text: str) -> dict[str, Any]:
    graph = Graph(server.get("/object_info"), "never")
    loader = graph.add("TinyCheckpoint", (0, 0), (300, 100), name="tiny.safetensors")
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP"), "vae": (loader, "VAE")}
    never = graph.add(
        "SpeedNeverDraw", (460, 0), (460, 300), model=wires["model"], clip=wires["clip"], text=text
    )
    models = {"original": wires["model"], "erased": (never, "model")}
    look = {"width": 64, "height": 64, "steps": 1, "pairs": 1}
    graph.add(
        *("SpeedCompare", (980, 0), (460, 300)),
        **models,
        **{key: wires[key] for key in ("clip", "vae")},
        **look,
    )
    return graph.to_json()


def test_never_draw_needs_a_text_and_shows_its_verdict(server, screen, shots, nodes2):
    screen.load(one_box(server, "fish, Van Gogh"))
    screen.run_until_shown()
    rows = {row.get_attribute("data-concept") for row in screen.at("[data-concept]").all()}
    assert rows == {"fish", "Van Gogh"}
    buttons = screen.at(".buttons button").all_inner_texts()
    assert "Details" in buttons and not {"Save", "Find leaks"} & set(buttons)
    screen.fit()
    screen.page.screenshot(path=shots / f"never-{server.folder.name}-{nodes2}.png")
