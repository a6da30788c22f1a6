"""A real browser on a real front end: a page of ComfyUI, and what a person would do and see on it."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

RENDERERS = {"canvas": False, "nodes2": True}
"""The two ways in which front ends draw nodes -> the setting that chooses."""
NO_FRONT_END = "there is no newest front end"
_KNOWN = ("chromium", "chromium-browser", "google-chrome", "chrome")
_WAIT = 180_000
_MENUS = (
    *(".comfyui-body-top", ".comfyui-body-left", ".side-tool-bar-container", ".actionbar", ".p-panel"),
    *(".minimap-main-container", ".workflow-tabs-container", ".comfyui-menu", ".subgraph-breadcrumb"),
    *(".graph-canvas-menu", "[data-testid=graph-canvas-menu]"),
)
_BUNDLES = Path.home() / ".cache" / "comfyui-frontend"


def find_browser() -> tuple[str | None, str]:
    """A Chromium (CHROMIUM, else one on the path), or why there is none to test with."""
    if importlib.util.find_spec("playwright") is None:
        return None, "playwright is not installed"
    named = os.environ.get("CHROMIUM")
    found = named or next((path for name in _KNOWN if (path := shutil.which(name))), None)
    return (found, "") if found else (None, "there is no Chromium")


def newest_front_end() -> Path | None:
    """The files of the newest front end's package: SPEED_FRONT_END, else the highest version that was unpacked."""
    named = os.environ.get("SPEED_FRONT_END")
    if named:
        return Path(named)
    found = [path for path in _BUNDLES.glob("*/comfyui_frontend_package/static") if (path / "index.html").is_file()]
    return max(found, key=lambda path: [int(part) for part in re.findall(r"\d+", path.parts[-3])], default=None)


class Screen:
    """A page with ComfyUI on it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.faults: list[str] = []
        """Errors that our own files caused."""
        page.on("console", lambda one: self._note(one.type, f"{one.text} {one.location.get('url', '')}"))
        page.on("pageerror", lambda one: self._note("error", f"{one} {getattr(one, 'stack', '')}"))
        page.route("**/*", self._inside_only)

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and ("ComfyUI-SPEED" in text or "[SPEED]" in text or "speed" in text.lower()):
            self.faults.append(text)

    def _inside_only(self, route: Any) -> None:
        inside = route.request.url.startswith((self.address, "data:", "blob:"))
        route.continue_() if inside else route.abort()

    def open(self, nodes2: bool, palette: str = "dark") -> Screen:
        """ComfyUI with this way of drawing nodes and these colours."""
        settings = {"Comfy.TutorialCompleted": True, "Comfy.VueNodes.Enabled": nodes2, "Comfy.ColorPalette": palette}
        settings |= {"Comfy.Minimap.Visible": False, "Comfy.InstalledVersion": "1.0.0"}
        assert self.page.request.post(f"{self.address}/settings", data=settings).ok
        return self.reload()

    def reload(self) -> Screen:
        """As with F5."""
        self._visit()
        return self

    def _visit(self) -> None:
        self.page.goto(self.address)
        self.page.wait_for_function(
            "() => !!(window.app?.extensionManager && app.graph && LiteGraph.registered_node_types.SpeedErase)",
            timeout=_WAIT,
        )
        self.page.wait_for_timeout(1500)  # the workflow that was open last is loaded after that

    def run(self, script: str, given: Any = None) -> Any:
        """A function of the page."""
        return self.page.evaluate(script, given)

    def load(self, graph: dict[str, Any]) -> None:
        """Opens a workflow and fits it into the window."""
        self.run("async (graph) => { await app.loadGraphData(graph) }", graph)
        self.page.wait_for_timeout(600)

    def wait_for_count(self, selector: str, count: int) -> None:
        """Until our part of the page has so many of these: a busy machine draws late."""
        from playwright.sync_api import expect

        expect(self.at(selector)).to_have_count(count, timeout=_WAIT)

    def fit(self) -> None:
        """The whole graph in sight."""
        self.run("() => app.extensionManager.command.execute('Comfy.Canvas.FitView')")
        self.page.wait_for_timeout(900)

    def picture(self, path: Path, region: tuple[int, int, int, int], width: int) -> None:
        """A part of the graph (left, top, width and height in its own units), as a JPEG of that width."""
        left, top, wide, high = region
        self.page.add_style_tag(content=f"{', '.join(_MENUS)} {{ visibility: hidden !important }}")
        self.run(
            "([left, top]) => { const { ds } = app.canvas; ds.scale = 1; ds.offset = [20 - left, 60 - top];"
            " app.canvas.setDirty(true, true) }",
            [left, top],
        )
        self.page.wait_for_timeout(1200)
        whole = self.page.screenshot(clip={"x": 20, "y": 60, "width": wide, "height": high})
        picture = Image.open(io.BytesIO(whole)).convert("RGB")
        picture.thumbnail((width, width), Image.Resampling.LANCZOS)
        picture.save(path, quality=84, optimize=True)

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
            " const one = node.widgets.find((w) => w.name === name); one.value = value; one.callback?.(value) }",
            [kind, name, value],
        )

    def saved(self) -> dict[str, Any]:
        """The workflow as it would be saved."""
        return self.run("() => JSON.parse(JSON.stringify(app.graph.serialize()))")

    def queue(self) -> None:
        """Presses Run."""
        self.run("() => app.queuePrompt(0)")

    def at(self, selector: str) -> Any:
        """Elements of ours."""
        return self.page.locator(f".speed {selector}")


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
