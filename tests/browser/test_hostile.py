"""Opening a workflow that somebody shares asks no other host, runs no script, and changes nothing
outside our nodes.
"""

from __future__ import annotations

import json
from typing import Any

import mini_checkpoints as mini
import pytest
from browser import NO_FRONT_END, RENDERERS, Screen, browser, find_browser, newest_front_end
from comfy_server import ComfyServer
from hostile_workflows import HOST, MARK, PAYLOADS, hostile_workflows, results
from templates import Graph

pytestmark = [pytest.mark.comfy, pytest.mark.browser, pytest.mark.slow]
COMMANDS = ("SPEED.OpenReport", "SPEED.CopyCommand", "SPEED.CopyRecipe")
OUTSIDE = """() => [document.documentElement, document.body, ...document.querySelectorAll(
    "canvas, .comfyui-body-top, .comfyui-body-left, .comfy-menu, nav")].map((element) => {
  const style = getComputedStyle(element);
  const names = ["background", "color", "opacity", "position", "display", "filter", "zIndex"];
  return [element.tagName, element.id, ...names.map((name) => style[name])];
})"""
INJECTED = """(mark) => {
  const faults = [];
  if (window[mark] !== undefined || ({})[mark] !== undefined) faults.push("a script ran");
  const attributes = /^(style|class|href|src|srcset|srcdoc|action|formaction|poster|data|on.*|xlink:href)$/;
  const inside = [...document.querySelectorAll(".speed, .speed *")];
  for (const element of document.querySelectorAll("*"))
    for (const { name, value } of element.attributes)
      if (attributes.test(name) && value.includes(mark)) faults.push(`${element.tagName} ${name}=${value}`);
  for (const element of inside) {
    if (["SCRIPT", "IFRAME", "OBJECT", "EMBED", "LINK", "STYLE", "FORM", "META", "BASE"].includes(element.tagName))
      faults.push(element.tagName);
    const style = getComputedStyle(element);
    if ((style.position === "fixed" && element.tagName !== "DIALOG") || style.backgroundImage.includes("http")) faults.push("an overlay");
  }
  for (const sheet of [...document.styleSheets, ...document.adoptedStyleSheets])
    try {
      if ([...sheet.cssRules].some((rule) => rule.cssText.includes(mark))) faults.push("a style sheet");
    } catch { /* of another origin */ }
  return faults.slice(0, 5);
}"""  # noqa: E501

DETAILS = """() => [...document.querySelectorAll(".speed button")]
  .filter((button) => button.textContent === "Details").map((button) => button.click()).length"""
CLOSE = "() => document.querySelectorAll('dialog.speed-dialog').forEach((dialog) => dialog.close())"
DROP = """([name, text]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name));
  const editor = document.querySelector(".chip, .speed .tools").closest(".speed").firstElementChild;
  const options = { dataTransfer, bubbles: true, cancelable: true };
  for (const kind of ["dragover", "drop"]) editor.dispatchEvent(new DragEvent(kind, options));
}"""


@pytest.fixture(scope="module", params=["installed", "newest"])
def server(request, comfyui, tmp_path_factory):
    front_end = newest_front_end() if request.param == "newest" else None
    if request.param == "newest" and front_end is None:
        pytest.skip(NO_FRONT_END)
    running = ComfyServer(comfyui, tmp_path_factory.mktemp(request.param), front_end)
    running.add_checkpoint(mini.shared("sd15"), "tiny.safetensors")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def chromium():
    with browser(find_browser()[0]) as running:
        yield running


def sound(server: ComfyServer) -> dict[str, Any]:
    """Every node of ours that shows something."""
    graph = Graph(server.get("/object_info"), "hostile")
    loader = graph.add("TinyCheckpoint", (0, 0), (300, 100), name="tiny.safetensors")
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP")}
    listed = graph.add("ConceptList", (0, 160), (400, 300), text="Van Gogh -> art\nMonet")
    retain = graph.add("RetainSetLoader", (0, 560), (400, 300), text="Klee\nGoya", kind="style")
    eraser = graph.add(
        *("SpeedErase", (460, 0), (460, 300)),
        **wires,
        concepts=(listed, "concepts"),
        retain=(retain, "retain"),
    )
    graph.add("SpeedLeakProbe", (980, 0), (460, 300), **wires, erasure=(eraser, "erasure"))
    graph.add("SpeedReport", (980, 400), (400, 200), erasure=(eraser, "erasure"))
    graph.add("SpeedNameProbe", (980, 660), (400, 260), **wires, name="Klee\nGoya")
    graph.add("SpeedNeverDraw", (460, 660), (460, 400), **wires, text="Klee\nGoya")
    graph.add("SpeedForecast", (1480, 660), (400, 200), **wires, concepts=(listed, "concepts"))
    models = {"original": (loader, "MODEL"), "erased": (eraser, "model")}
    shared = {"clip": (loader, "CLIP"), "vae": (loader, "VAE")}
    graph.add("SpeedCompare", (1480, 0), (460, 300), **models, **shared)
    return graph.to_json()


def test_there_are_thirty_tricks_and_each_reaches_every_node() -> None:
    """The negative control of the data."""
    node = {"type": "ConceptList", "widgets_values": ["a\nb", "style"]}
    workflows = hostile_workflows({"nodes": [node]})
    assert len(workflows) >= 30 and len(json.dumps(workflows)) > 1_000_000
    assert all("speed" in flow["nodes"][0]["properties"] for flow in workflows.values())
    assert all(MARK in text for text in PAYLOADS.values())
    assert all(
        MARK in json.dumps(value)
        for name, value in results().items()
        if "every" in name and "string" in name
    )


class Watched:
    """A page on which every request, dialog and change outside our nodes is noticed."""

    def __init__(self, server: ComfyServer, chromium: Any, nodes2: bool) -> None:
        page = chromium.new_context().new_page()
        self.screen = Screen(page, f"http://127.0.0.1:{server.port}")
        self.asked: list[str] = []
        self.dialogs: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("dialog", lambda box: (self.dialogs.append(box.message), box.dismiss()))
        page.context.on("page", lambda tab: self.asked.append(f"a tab: {tab.url}"))
        self.screen.open(nodes2)

    def faults(self) -> list[str]:
        """What has happened since the last call, at most five."""
        harmless = (self.screen.address, "data:image", "blob:")
        outside = [url for url in self.asked if not url.startswith(harmless) or MARK in url]
        found = [*self.screen.run(INJECTED, MARK), *outside, *self.dialogs]
        self.asked.clear()
        self.dialogs.clear()
        return found[:5]


@pytest.mark.parametrize("nodes2", RENDERERS.values(), ids=RENDERERS.keys())
def test_a_hostile_workflow_reaches_nothing(server, chromium, nodes2) -> None:
    watched = Watched(server, chromium, nodes2)
    screen = watched.screen
    workflow = sound(server)
    _open(screen, workflow)
    # The negative control: what is looked for is found where it happens.
    assert screen.run(INJECTED, MARK) == []
    screen.run(
        "([host, mark]) => { const element = document.createElement('img'); element.src = host;"
        " element.style.setProperty('--' + mark, 1); document.body.append(element) }",
        [HOST, MARK],
    )
    screen.drawn()
    assert len(watched.faults()) == 3  # an address, a style, and the request
    screen.run("() => document.body.lastElementChild.remove()")
    faults: dict[str, list[str]] = {}
    for name, hostile in hostile_workflows(workflow).items():
        watched.faults()
        before = screen.run(OUTSIDE)
        _open(screen, hostile)
        if screen.run(DETAILS):
            screen.drawn()
            found = screen.run(INJECTED, MARK)
            screen.run(CLOSE)
        else:
            found = screen.run(INJECTED, MARK)
        if name in ("script address in every string", "path in every string"):
            for command in COMMANDS:
                screen.run("(name) => app.extensionManager.command.execute(name)", command)
            screen.drawn()
        changed = [new for new, old in zip(screen.run(OUTSIDE), before, strict=False) if new != old]
        if found := [*found, *watched.faults(), *map(str, changed)][:5]:
            faults[name] = found
    screen.close()
    assert not faults


def test_a_hostile_subgraph_reaches_nothing(server, chromium) -> None:
    """What is stored on the nodes inside is also shown outside."""
    watched = Watched(server, chromium, nodes2=False)
    listed = {entry["name"]: key for key, entry in server.get("/global_subgraphs").items()}
    blueprint = json.loads(server.get(f"/global_subgraphs/{listed['Erase and compare']}")["data"])
    faults: dict[str, list[str]] = {}
    for name, hostile in hostile_workflows(blueprint).items():
        watched.faults()
        _open(watched.screen, hostile)
        if found := watched.faults():
            faults[name] = found
    watched.screen.close()
    assert not faults


def test_hostile_lists_reach_nothing(server, chromium) -> None:
    """The user's own lists, as another program may have left them, and files that are dropped."""
    watched = Watched(server, chromium, nodes2=False)
    screen = watched.screen
    _open(screen, sound(server))
    lists = {text: f"{text} -> {text}\n{text}" for text in PAYLOADS.values()}
    lists |= {"__proto__": "x", "a number": 7}
    screen.run(
        "(text) => app.api.storeUserData('speed_lists.json', text, { stringify: false })",
        json.dumps(lists),
    )
    screen.run(
        "() => [...document.querySelectorAll('.tools button')]"
        ".find((button) => button.textContent === 'My lists').click()"
    )
    screen.wait_for_count(".speed-dialog .add .wide", len(PAYLOADS) + 1)
    assert not watched.faults()
    screen.run("() => document.querySelector('.speed-dialog .add .wide').click()")
    screen.drawn()
    for kind in ("txt", "csv", "tsv"):
        for name, text in PAYLOADS.items():
            table = f'target,anchor,aliases\n"{text}",{text},{text}\n{text}\n'
            before = len(screen.value("ConceptList", "text"))
            screen.run(DROP, [f"{name}.{kind}", table])
            screen.page.wait_for_function(
                "(length) => app.graph._nodes.find(({ type }) => type === 'ConceptList')"
                ".widgets.find(({ name }) => name === 'text').value.length > length",
                arg=before,
            )
    screen.drawn()
    assert not watched.faults()
    screen.close()


def _open(screen: Screen, workflow: dict[str, Any]) -> None:
    """As from a file; what the front end itself refuses is not ours to judge."""
    screen.run(
        "async (text) => { try { await app.loadGraphData(JSON.parse(text)) } catch {} }",
        json.dumps(workflow),
    )
    screen.drawn()
