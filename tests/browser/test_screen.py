"""What a person sees and does in a real browser: two front ends, two ways of drawing nodes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import mini_checkpoints as mini
import pytest
from browser import NO_FRONT_END, RENDERERS, Screen, browser, find_browser, newest_front_end
from comfy_server import ComfyServer
from graph import RETAINED
from templates import DEMO, FLUX, OTHER, RECIPE, SD15, SDXL, Graph

pytestmark = [pytest.mark.comfy, pytest.mark.browser, pytest.mark.slow]

TEMPLATES = sorted((Path(__file__).resolve().parents[2] / "example_workflows").glob("*.json"))
PREVIEW = (-20, -60, 990, 500)
"""The part of every template that its picture shows: what is erased, and from what."""
TEXT = "Van Gogh -> art\n# a note stays\nSnoopy | the beagle -> dog || character"


@pytest.fixture(scope="module", params=["installed", "newest"])
def server(request, comfyui, tmp_path_factory):
    front_end = newest_front_end() if request.param == "newest" else None
    if request.param == "newest" and front_end is None:
        pytest.skip(NO_FRONT_END)
    running = ComfyServer(comfyui, tmp_path_factory.mktemp(request.param), front_end)
    for name in ("tiny.safetensors", DEMO, SD15, SDXL, FLUX, OTHER):
        running.add_checkpoint(mini.shared("sd15"), name)
    recipe = running.folder / RECIPE
    recipe.parent.mkdir(parents=True)
    recipe.write_text("{}")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def chromium():
    with browser(find_browser()[0]) as running:
        yield running


@pytest.fixture
def screen(chromium, server):
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield Screen(context.new_page(), f"http://127.0.0.1:{server.port}")
    context.close()


@pytest.fixture
def shots(request, tmp_path) -> Path:
    """Where pictures of the screen go."""
    folder = Path(request.config.getoption("--screenshots") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(params=list(RENDERERS))
def nodes2(request) -> bool:
    return RENDERERS[request.param]


def small(server: ComfyServer, preset: str = "auto", text: str = TEXT, seed: int = 0) -> dict[str, Any]:
    """A graph that runs in seconds: loader, list, kept names, SPEED Erase, and its measurements as JSON."""
    graph = Graph(server.get("/object_info"), "small")
    loader = graph.add("TinyCheckpoint", (0, 0), (300, 100), name="tiny.safetensors")
    listed = graph.add("ConceptList", (0, 160), (400, 300), text=text)
    kept = graph.add("RetainSetLoader", (0, 760), (400, 300), text=RETAINED + "\nVan Gogh Museum", kind="style")
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP"), "concepts": (listed, "concepts")}
    eraser = graph.add("SpeedErase", (460, 0), (460, 300), **wires, retain=(kept, "retain"), preset=preset, seed=seed)
    report = graph.add("SpeedReport", (980, 0), (400, 300), erasure=(eraser, "erasure"))
    graph.add("PreviewAny", (980, 400), (400, 300), source=(report, "json"))
    return graph.to_json()


_TEXT = "app.graph._nodes.find((n) => n.type === 'ConceptList').widgets[0].value"


def figures(screen: Screen) -> dict[str, float]:
    """Concept -> what is left, as the panel shows it."""
    rows = screen.at("[data-concept]")
    return {row.get_attribute("data-concept"): float(row.get_attribute("data-left")) for row in rows.all()}


def certificate(server: ComfyServer) -> dict[str, Any]:
    """What the last run measured."""
    for entry in reversed(list(server.get("/history").values())):
        for number, one in entry["prompt"][2].items():
            if one["class_type"] == "PreviewAny" and number in entry["outputs"]:
                return json.loads(entry["outputs"][number]["text"][0])
    raise AssertionError("no run has a certificate")


def test_every_template_opens_whole(server, screen, nodes2):
    screen.open(nodes2)
    listed = server.get("/workflow_templates")["ComfyUI-SPEED"]
    assert sorted(listed) == [path.stem for path in TEMPLATES]
    for path in TEMPLATES:
        graph = json.loads(path.read_text(encoding="utf-8"))
        screen.load(graph)
        found = screen.run(
            "() => app.graph._nodes.map((n) => [n.type, !!n.has_errors, n.constructor.nodeData !== undefined"
            " || n.isVirtualNode === true, (n.inputs ?? []).filter((i) => i.link != null).length])"
        )
        wired = [sum(slot["link"] is not None for slot in node["inputs"]) for node in graph["nodes"]]
        assert sorted(one[0] for one in found) == sorted(node["type"] for node in graph["nodes"]), path.stem
        assert all(not faulty and known for _, faulty, known, _ in found), (path.stem, found)
        assert sorted(one[3] for one in found) == sorted(wired), path.stem
        text = next((n["widgets_values"][0] for n in graph["nodes"] if n["type"] == "ConceptList"), "")
        screen.wait_for_count(".chip", len(text.splitlines()))
    assert not screen.faults


def test_edit_run_read_reload_save_and_undo(server, screen, nodes2):
    screen.open(nodes2)
    screen.load(small(server, seed=1 + nodes2))  # a result from the cache would show no progress
    assert screen.at(".chip").count() == 2
    screen.at('input[aria-label="add a concept"]').fill("Monet ->  van gogh -> x")
    screen.at('input[aria-label="add a concept"]').press("Enter")
    screen.page.wait_for_selector(".speed .chip.bad")
    assert "Line 4: there is more than one arrow" in screen.at(".chip.bad .says").inner_text()
    assert screen.value("ConceptList", "text") == TEXT + "\nMonet ->  van gogh -> x"
    screen.at(".chip.bad .what").press("Delete")
    assert screen.value("ConceptList", "text").rstrip("\n") == TEXT
    adding = screen.at('input[aria-label="add a concept"]')
    adding.press("Control+z")
    assert screen.value("ConceptList", "text").endswith("-> x"), "undone in the box"
    adding.press("Control+y")
    assert screen.value("ConceptList", "text").rstrip("\n") == TEXT
    screen.at(".chip .what").first.press("Control+z")
    screen.page.wait_for_function("() => " + _TEXT + ".endsWith('-> x')")  # undone by the front end
    screen.set("ConceptList", "text", TEXT)
    screen.page.wait_for_timeout(1000)
    screen.at(".chip .what").nth(1).press("Alt+ArrowUp")
    screen.at(".chip .what").nth(1).press("Alt+ArrowUp")
    assert screen.value("ConceptList", "text").split("\n")[0].startswith("Snoopy | the beagle")
    screen.at(".chip .what").first.press("Space")
    assert screen.value("ConceptList", "text").startswith("# off: Snoopy | the beagle -> dog || character\n")
    assert "drop out" in screen.at("[data-speed=names] + .dim").inner_text()
    screen.run(
        "() => { window.told = []; app.api.addEventListener('progress_text', (e) => told.push(e.detail?.text ?? '')) }"
    )
    screen.queue()
    screen.page.wait_for_selector("[data-speed=verdict]", timeout=180_000)
    proof = wait_for_certificate(server)
    measured = {one["name"]: one["probe_median"] for one in proof["concepts"]}
    assert set(measured) == {"Van Gogh"}, "what is switched off is not erased"
    assert figures(screen) == pytest.approx(measured, abs=1e-4)
    assert any("Editing layers: " in one and " of " in one for one in screen.run("() => told"))
    strips = screen.at("[data-group]").all()
    assert [float(one.get_attribute("data-median")) for one in strips] == pytest.approx(
        [part["median"] for part in proof["drift"]], abs=1e-4
    )
    assert screen.at(".strip a").first.get_attribute("title").startswith(proof["drift"][0]["worst"][0][0])
    assert screen.at(".warning").first.inner_text() == proof["warnings"][0]
    before = screen.saved()
    widgets = {one["type"]: one.get("widgets_values") for one in before["nodes"]}
    assert widgets["ConceptList"][:3] == [screen.value("ConceptList", "text"), "style", "none"]
    assert widgets["SpeedErase"][:5] == ["auto", 1, 1 + nodes2, "some (10 %)", "normal"]
    screen.reload()
    screen.page.wait_for_selector("[data-speed=verdict]", timeout=20_000)
    assert figures(screen) == pytest.approx(measured, abs=1e-4), "a reload keeps the panel"
    screen.load(before)
    assert figures(screen) == pytest.approx(measured, abs=1e-4), "saving and loading keep it"
    screen.set("SpeedErase", "strength", 0.5)
    shown = screen.at("[data-speed=forecast]")
    drift = proof["curve"]["chosen"]["drift"]
    assert float(shown.get_attribute("data-drift")) == pytest.approx(0.5 * drift, rel=1e-3)
    screen.set("SpeedErase", "strength", 1.0)
    assert shown.count() == 0
    screen.at(".chip .what").first.press("Space")
    screen.run("async () => { await app.extensionManager.workflow.activeWorkflow.changeTracker.undo() }")
    screen.page.wait_for_function("() => " + _TEXT + ".startsWith('# off: ')")
    screen.page.wait_for_selector("[data-speed=verdict]")
    assert figures(screen) == pytest.approx(measured, abs=1e-4), "undo takes no panel away"
    assert not screen.faults


def wait_for_certificate(server: ComfyServer) -> dict[str, Any]:
    while server.get("/queue")["queue_running"]:
        time.sleep(0.3)
    return certificate(server)


def test_a_long_list_redraws_what_changed_alone(server, screen, nodes2):
    screen.open(nodes2)
    screen.load(small(server, text="\n".join(f"Painter Number {i} -> art" for i in range(500))))
    screen.page.wait_for_function("() => document.querySelectorAll('.speed .chip').length === 500")
    screen.page.wait_for_timeout(1500)  # the server has answered by then
    made = screen.run(
        "async () => { const seen = new Set(document.querySelectorAll('.speed .chip'));"
        " const node = app.graph._nodes.find((n) => n.type === 'ConceptList').widgets.find((w) => w.name === 'text');"
        " node.value = node.value.replace('Number 7 ', 'Number Seven '); node.callback(node.value);"
        " await new Promise((done) => setTimeout(done, 1500));"
        " return [...document.querySelectorAll('.speed .chip')].filter((one) => !seen.has(one)).length }"
    )
    assert 1 <= made <= 3


def test_a_pasted_column_and_a_dropped_file_become_lines(server, screen):
    screen.open(False)
    screen.load(small(server, text=""))
    screen.run(
        "() => { const box = document.querySelector('.speed input'); const data = new DataTransfer();"
        " data.setData('text/plain', 'Goya\\tart\\nMunch\\t'); box.focus();"
        " box.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })) }"
    )
    assert screen.value("ConceptList", "text") == "Goya -> art\nMunch"
    screen.run(
        "async () => { const data = new DataTransfer();"
        " data.items.add(new File(['target,anchor,kind\\n\"Doe, Jane\",,person\\n'], 'more.csv'));"
        " document.querySelector('.speed .add').dispatchEvent("
        "   new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));"
        " await new Promise((done) => setTimeout(done, 300)) }"
    )
    assert screen.value("ConceptList", "text") == "Goya -> art\nMunch\nDoe, Jane || person"
    assert screen.at(".chip").count() == 3


def test_leaks_go_into_the_list_after_a_question(server, screen, nodes2):
    graph = Graph(server.get("/object_info"), "leaks")
    loader = graph.add("TinyCheckpoint", (0, 0), (300, 100), name="tiny.safetensors")
    listed = graph.add("ConceptList", (0, 160), (400, 300), text="Odilon Redon -> art")
    kept = graph.add("RetainSetLoader", (0, 760), (400, 300), text=RETAINED, kind="style")
    wires = {"model": (loader, "MODEL"), "clip": (loader, "CLIP")}
    eraser = graph.add(
        "SpeedErase",
        (460, 0),
        (460, 300),
        **wires,
        concepts=(listed, "concepts"),
        retain=(kept, "retain"),
        preset="few",
    )
    graph.add("SpeedLeakProbe", (980, 0), (460, 300), **wires, erasure=(eraser, "erasure"))
    screen.open(nodes2)
    screen.load(graph.to_json())
    screen.queue()
    screen.page.wait_for_selector("[data-speed=leaks]", timeout=120_000)
    assert "phrases leak" in screen.at("[data-speed=leaks]").inner_text()
    screen.run("() => [...document.querySelectorAll('.speed button')].find((b) => /aliases/.test(b.innerText)).click()")
    screen.page.get_by_role("button", name="Confirm").first.click()
    screen.page.wait_for_timeout(500)
    text = screen.value("ConceptList", "text")
    assert text.startswith("Odilon Redon | ") and text.endswith(" -> art") and "Odilon Redon's" in text
    assert not screen.faults


def test_pictures_before_and_after_stand_under_a_slider(server, screen, nodes2):
    graph = Graph(server.get("/object_info"), "compare")
    loader = graph.add("TinyCheckpoint", (0, 0), (300, 100), name="tiny.safetensors")
    parts = {"clip": (loader, "CLIP"), "vae": (loader, "VAE")}
    models = {"original": (loader, "MODEL"), "erased": (loader, "MODEL")}
    look = {"width": 64, "height": 64, "steps": 1, "pairs": 2}
    graph.add("SpeedCompare", (460, 0), (460, 300), **models, **parts, **look, alias="")
    screen.open(nodes2)
    screen.load(graph.to_json())
    screen.queue()
    screen.page.wait_for_selector(".speed .pair img", timeout=120_000)
    screen.page.wait_for_function(
        "() => [...document.querySelectorAll('.speed .pair img')].every((one) => one.naturalWidth === 64)"
    )
    assert screen.at(".pair").count() == 6 and screen.at("h4").count() == 3
    first = screen.at(".pair").first
    first.press("ArrowRight")
    assert first.get_attribute("aria-valuenow") == "60"
    assert not screen.faults


def test_without_our_script_a_workflow_still_runs(server, screen, nodes2):
    screen.page.route("**/extensions/ComfyUI-SPEED/**/*.js", lambda route: route.abort())
    screen.page.route("**/extensions/ComfyUI-SPEED/*.js", lambda route: route.abort())
    screen.open(nodes2)
    screen.load(small(server, "few", "Fernand Khnopff -> art"))
    assert screen.at("*").count() == 0
    widgets = {one["type"]: one.get("widgets_values") for one in screen.saved()["nodes"]}
    assert widgets["ConceptList"] == ["Fernand Khnopff -> art", "style", "none"]
    count = len(server.get("/history"))
    screen.queue()
    end = time.monotonic() + 300
    while len(server.get("/history")) == count and time.monotonic() < end:
        screen.page.wait_for_timeout(500)
    assert [one["name"] for one in certificate(server)["concepts"]] == ["Fernand Khnopff"]


# Relative luminance of what an element's text and the nearest painted background behind it are.
_CONTRAST = """(element) => {
  const numbers = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const line = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => [r, g, b].map((v) => line(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const canvas = LiteGraph.NODE_DEFAULT_BGCOLOR ?? "#353535";
  const probe = document.createElement("i"); probe.style.color = canvas; document.body.append(probe);
  let ground = getComputedStyle(probe).color; probe.remove();
  for (let one = element; one; one = one.parentElement) {
    if (one.matches?.("body, .graph-canvas-container, #vue-app")) break;
    const colour = getComputedStyle(one).backgroundColor;
    if ((numbers(colour)[3] ?? 1) > 0.99 && colour !== "rgba(0, 0, 0, 0)") { ground = colour; break; }
  }
  const [a, b] = [light(numbers(getComputedStyle(element).color)), light(numbers(ground))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""


@pytest.mark.parametrize(("palette", "scale"), [("dark", 1), ("light", 2)])
def test_the_panel_can_be_read_in_every_light_and_from_afar(server, chromium, shots, nodes2, palette, scale):
    context = chromium.new_context(viewport={"width": 1500, "height": 1300}, device_scale_factor=scale)
    screen = Screen(context.new_page(), f"http://127.0.0.1:{server.port}").open(nodes2, palette)
    screen.load(small(server))
    screen.queue()
    screen.page.wait_for_selector("[data-speed=verdict]", timeout=180_000)
    screen.run("() => { app.canvas.ds.scale = 0.5; app.canvas.ds.offset = [60, 120]; app.canvas.setDirty(true, true) }")
    screen.page.wait_for_timeout(700)
    head = screen.at("[data-speed=verdict]")
    assert head.is_visible() and head.bounding_box()["height"] >= 11, "a headline is 22 px high, half of that at 50 %"
    assert screen.run("() => parseFloat(getComputedStyle(document.querySelector('.speed .row')).fontSize)") >= 14
    for part in ("[data-speed=verdict]", ".row span", ".chip .what", ".warning"):
        contrast = screen.page.eval_on_selector(f".speed {part}", _CONTRAST)
        assert contrast >= 4.5, (part, contrast)
    screen.fit()
    name = f"{server.folder.name}-{'nodes2' if nodes2 else 'canvas'}-{palette}-{scale}x.png"
    screen.page.screenshot(path=shots / name)
    context.close()


def test_templates_have_their_pictures(server, chromium, shots, request):
    """With `--screenshots`, the previews that stand beside the templates are made anew."""
    context = chromium.new_context(viewport={"width": 1600, "height": 1000})
    screen = Screen(context.new_page(), f"http://127.0.0.1:{server.port}").open(False)
    for path in TEMPLATES:
        if not path.with_suffix(".jpg").is_file() or request.config.getoption("--screenshots"):
            screen.load(json.loads(path.read_text(encoding="utf-8")))
            screen.picture(shots / f"{path.stem}.jpg", PREVIEW, 900)
        status = screen.run(
            "async (name) => { const answer = await fetch(`/api/workflow_templates/ComfyUI-SPEED/${name}.jpg`);"
            " return [answer.status, answer.headers.get('content-type')] }",
            path.stem,
        )
        assert status == [200, "image/jpeg"], path.stem
    context.close()
