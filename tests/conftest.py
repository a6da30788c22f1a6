"""Loads the repository root as the package `speed_erase` the way ComfyUI does: by path, sys.path left alone."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _load_package() -> None:
    if "speed_erase" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "speed_erase", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["speed_erase"] = module
    spec.loader.exec_module(module)


_load_package()


def lacking(checkout: Path) -> list[str]:
    """Packages that the checkout asks for and this Python does not have; only torchaudio can be done without."""
    lines = (checkout / "requirements.txt").read_text(encoding="utf-8").splitlines()
    names = [found.group() for line in lines if (found := re.match(r"[A-Za-z0-9][\w.-]*", line.strip()))]
    return [name for name in names if name != "torchaudio" and not any(distributions(name=name))]


def find_comfyui() -> tuple[Path | None, str]:
    """A ComfyUI checkout: COMFYUI_PATH, else the one we sit in, else comfy-cli's default workspace; or why not.

    One that was not named and that this Python cannot run counts as none.
    """
    named = os.environ.get("COMFYUI_PATH")
    if named:
        places = [Path(named)]
    else:
        enclosing = [ROOT.parent.parent] if ROOT.parent.name == "custom_nodes" else []
        places = [*enclosing, Path.home() / "comfy" / "ComfyUI"]
    for place in places:
        if (place / "comfy" / "model_patcher.py").is_file() and (place / "main.py").is_file():
            missing = ", ".join(lacking(place))
            if missing and named:
                raise pytest.UsageError(f"The ComfyUI at COMFYUI_PATH ({named}) needs {missing}: install them here.")
            return (None, f"the ComfyUI at {place} needs {missing}") if missing else (place, "")
    if named:
        raise pytest.UsageError(f"COMFYUI_PATH is {named}, but there is no ComfyUI checkout.")
    return None, "there is no ComfyUI checkout"


COMFYUI, NO_COMFYUI = find_comfyui()


@pytest.fixture(scope="session")
def comfyui() -> Path:
    """The checkout, importable and set to the CPU; tests that use it carry the mark `comfy`."""
    assert COMFYUI is not None
    if str(COMFYUI) not in sys.path:
        sys.path.insert(0, str(COMFYUI))
    from comfy.cli_args import args

    args.cpu = True
    return COMFYUI


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory) -> Iterator[None]:
    """A cache of embeddings for the tests of one file, and not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEED_ERASE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def shared_embeddings(comfyui, tmp_path_factory, monkeypatch) -> None:
    """One cache of embeddings for the tests of this run, and not the user's."""
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path_factory.getbasetemp() / "embeddings"))


@pytest.fixture
def own_output(shared_embeddings, tmp_path):
    """ComfyUI's output folder for one test."""
    import folder_paths

    before = folder_paths.get_output_directory()
    folder_paths.set_output_directory(str(tmp_path))
    yield tmp_path
    folder_paths.set_output_directory(before)


@pytest.fixture(scope="module")
def sd15(comfyui):
    """MODEL, CLIP and VAE of the mini SD1.5 checkpoint."""
    import mini_checkpoints as mini

    return mini.load(mini.shared("sd15"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if COMFYUI is not None:
        return
    for item in items:
        if item.get_closest_marker("comfy"):
            item.add_marker(pytest.mark.skip(reason=NO_COMFYUI))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if NO_COMFYUI and NO_COMFYUI in str(r.longrepr)]
    if skipped:
        terminalreporter.section("ComfyUI NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.write_line(
            f"{len(skipped)} tests of ComfyUI were skipped ({NO_COMFYUI}): nothing above says that the nodes work."
        )
        terminalreporter.write_line("Set COMFYUI_PATH, or put a checkout at ~/comfy/ComfyUI, and run again.")
