"""A real browser on a real front end: a page of ComfyUI, and what a person would do and see on
it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RENDERERS = {"canvas": False, "nodes2": True}
"""The two ways in which front ends draw nodes -> the setting that chooses."""
NO_FRONT_END = "there is no newest front end"
_KNOWN = ("chromium", "chromium-browser", "google-chrome", "chrome")
_WAIT = 180_000
_CARD = "template-workflow-"
_EXPECTED = (
    # the front end on a wire that it cannot lead around a bypassed node
    r"No input types match type \[SPEED_\w+\] for id",
    # the browser on a file that is not there before its first save
    r"status of 404 .*/userdata/speed_lists\.json$",
)
"""Messages of others that are no fault."""
_BUNDLES = Path.home() / ".cache" / "comfyui-frontend"


def find_browser() -> tuple[str | None, str]:
    """A Chromium (CHROMIUM, else one on the path), or why there is none to test with."""
    if importlib.util.find_spec("playwright") is None:
        return None, "playwright is not installed"
    named = os.environ.get("CHROMIUM")
    found = named or next((path for name in _KNOWN if (path := shutil.which(name))), None)
    return (found, "") if found else (None, "there is no Chromium")


def newest_front_end() -> Path | None:
    """The files of the newest front end's package: SPEED_FRONT_END, else the highest version that
    was unpacked.
    """
    named = os.environ.get("SPEED_FRONT_END")
    if named:
        return Path(named)
    found = [
        path
        for path in _BUNDLES.glob("*/comfyui_frontend_package/static")
        if (path / "index.html").is_file()
    ]
    return max(
        found,
        key=lambda path: [int(part) for part in re.findall(r"\d+", path.parts[-3])],
        default=None,
    )


class Screen:
    """A page with ComfyUI on it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.settings: dict[str, Any] = {}
        self.faults: list[str] = []
        """Errors that our own files caused."""
        page.on(
            "console", lambda one: self._note(one.type, f"{one.text} {one.location.get('url', '')}")
        )
        page.on("pageerror", lambda one: self._note("error", f"{one} {getattr(one, 'stack', '')}"))
        page.route("**/*", self._inside_only)
        page.set_default_timeout(_WAIT)  # a busy machine is slow, not wrong

    def _note(self, kind: str, text: str) -> None:
        if any(re.search(pattern, text) for pattern in _EXPECTED):
            return
        if kind in ("error", "warning") and (
            "ComfyUI-SPEED" in text or "[SPEED]" in text or "speed" in text.lower()
        ):
            self.faults.append(text)

    def _inside_only(self, route: Any) -> None:
        inside = route.request.url.startswith((self.address, "data:", "blob:"))
        route.continue_() if inside else route.abort()

    def open(self, nodes2: bool, palette: str = "dark", language: str = "en") -> Screen:
        """ComfyUI with this way of drawing nodes, these colours and this language."""
        self.settings = {
            "Comfy.TutorialCompleted": True,
            "Comfy.VueNodes.Enabled": nodes2,
            "Comfy.Locale": language,
        }
        self.settings |= {"Comfy.Minimap.Visible": False, "Comfy.InstalledVersion": "1.0.0"}
        self.settings |= {"Comfy.ColorPalette": palette}
        return self.reload()

    def reload(self) -> Screen:
        """As with F5, until the workflow that was open last, or the front end's first one, is
        there.
        """
        # pages share them
        assert self.page.request.post(f"{self.address}/settings", data=self.settings).ok
        self.page.goto(self.address)
        self.page.wait_for_function(
            "() => !!(window.app?.extensionManager?.workflow?.activeWorkflow &&"
            " app.graph?._nodes?.length && LiteGraph.registered_node_types.SpeedErase)",
            timeout=_WAIT,
        )
        return self

    def run(self, script: str, given: Any = None) -> Any:
        """A function of the page."""
        return self.page.evaluate(script, given)

    def load(self, graph: dict[str, Any]) -> None:
        """Opens a workflow, until it is drawn."""
        self.run("async (graph) => { await app.loadGraphData(graph) }", graph)
        self.drawn()

    def drawn(self) -> None:
        """Until the page has drawn what changed."""
        self.run(
            "async () => { for (let i = 0; i < 3; i++) await new Promise((done) =>"
            " requestAnimationFrame(done)) }"
        )

    def open_templates(self) -> None:
        """Opens Browse Templates and clicks our pack, as a newcomer does."""
        self.execute("Comfy.BrowseTemplates")
        self.page.get_by_text("ComfyUI-SPEED", exact=True).first.click(timeout=_WAIT)
        self.cards.first.wait_for(timeout=_WAIT)

    @property
    def cards(self) -> Any:
        """The templates in the order in which Browse Templates shows them."""
        return self.page.locator(f"[data-testid^='{_CARD}']")

    def open_template(self, title: str) -> None:
        """Clicks a card there."""
        self.page.get_by_test_id(f"{_CARD}{title}").click(timeout=_WAIT)

    def wait_for_count(self, selector: str, count: int) -> None:
        """Waits until our part of the page has `count` of these: a busy machine draws late."""
        from playwright.sync_api import expect

        expect(self.at(selector)).to_have_count(count, timeout=_WAIT)

    def fit(self) -> None:
        """The whole graph in sight."""
        self.run("() => app.extensionManager.command.execute('Comfy.Canvas.FitView')")
        self.page.wait_for_timeout(900)

    def look(self, scale: float, offset: tuple[int, int]) -> None:
        """Zooms, and moves the graph by so much in its own units."""
        self.run(
            "([scale, offset]) => { Object.assign(app.canvas.ds, { scale, offset });"
            " app.canvas.setDirty(true, true) }",
            [scale, offset],
        )
        self.drawn()

    def value(self, kind: str, name: str) -> Any:
        """What a widget of the first node of a kind holds."""
        return self.run(
            "([kind, name]) => app.graph._nodes.find((n) => n.type === kind)"
            ".widgets.find((w) => w.name === name).value",
            [kind, name],
        )

    def set(self, kind: str, name: str, value: Any) -> None:
        """Moves a widget as its own control does."""
        self.run(
            "([kind, name, value]) => { const node = app.graph._nodes.find((n) => n.type === kind);"
            " const one = node.widgets.find((w) => w.name === name); one.value = value;"
            " one.callback?.(value) }",
            [kind, name, value],
        )

    def saved(self) -> dict[str, Any]:
        """The workflow as it would be saved."""
        return self.run("() => JSON.parse(JSON.stringify(app.graph.serialize()))")

    def press_run(self) -> None:
        """Clicks the button, as a newcomer does."""
        self.page.get_by_role("button", name="Run", exact=True).first.click(timeout=_WAIT)

    def execute(self, command: str) -> None:
        """Runs a command, as a menu does."""
        self.run("(name) => { app.extensionManager.command.execute(name) }", command)

    def wait_for_check(self) -> None:
        """Until the server's answer for every line of the concept list is drawn."""
        self.page.wait_for_function(
            "() => { const editors = [...document.querySelectorAll('.speed [data-checked]')];"
            " return editors.length && editors.every((box) => box.dataset.checked === 'true') }",
            timeout=_WAIT,
        )
        self.drawn()

    def close(self) -> None:
        """The page and all it knew."""
        self.page.context.close()

    def queue(self) -> None:
        """What the button does."""
        self.run("() => app.queuePrompt(0)")

    def run_until_shown(self) -> None:
        """Runs, until a panel shows a verdict and no node is left to run."""
        self.queue()
        self.page.wait_for_selector(".speed [data-speed=verdict]", timeout=_WAIT)
        self.page.wait_for_function(
            "async () => { const { queue_running: running, queue_pending: waiting } ="
            " await (await app.api.fetchApi('/queue')).json();"
            " return !running.length && !waiting.length }"
        )
        self.page.wait_for_timeout(1_000)

    def at(self, selector: str) -> Any:
        """Elements of ours."""
        return self.page.locator(f".speed {selector}")


def open_page(
    chromium: Any, server: Any, width: int = 1280, height: int = 900, scale: int = 1
) -> Screen:
    """A page of a running server, without cookies."""
    context = chromium.new_context(
        viewport={"width": width, "height": height}, device_scale_factor=scale
    )
    return Screen(context.new_page(), f"http://127.0.0.1:{server.port}")


@contextmanager
def browser(executable: str) -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        running = engine.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield running
        running.close()
