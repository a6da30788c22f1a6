"""Servers with two front ends, pages that draw nodes in two ways, and where screenshots go."""

from __future__ import annotations

from pathlib import Path

import mini_checkpoints as mini
import pytest
from browser import NO_FRONT_END, RENDERERS, browser, find_browser, newest_front_end, open_page
from comfy_server import ComfyServer
from templates import DEMO, RECIPE


@pytest.fixture(scope="module", params=["installed", "newest"])
def server(request, comfyui, tmp_path_factory):
    front_end = newest_front_end() if request.param == "newest" else None
    if request.param == "newest" and front_end is None:
        pytest.skip(NO_FRONT_END)
    running = ComfyServer(comfyui, tmp_path_factory.mktemp(request.param), front_end)
    for name in ("tiny.safetensors", DEMO):
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


@pytest.fixture(scope="module", params=list(RENDERERS))
def nodes2(request) -> bool:
    return RENDERERS[request.param]


@pytest.fixture(scope="module")
def shared_page(chromium, server, nodes2):
    """One page for all tests of a front end and a renderer: loading it takes longer than most of
    them.
    """
    screen = open_page(chromium, server).open(nodes2)
    yield screen
    screen.close()


@pytest.fixture
def screen(shared_page):
    shared_page.faults.clear()
    yield shared_page
    assert not shared_page.faults


@pytest.fixture
def shots(request, tmp_path) -> Path:
    """Where screenshots go."""
    folder = Path(request.config.getoption("--screenshots") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
