"""Loads the repository root as the package `speed_erase` the way ComfyUI does: by path, sys.path
left alone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from browser import NO_FRONT_END, find_browser
from hypothesis import HealthCheck, settings

# A busy machine is not a defect: timing is measured in benchmarks/.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parent.parent
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores


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
    """Packages that the checkout asks for and this Python does not have; only torchaudio can be
    done without.
    """
    lines = (checkout / "requirements.txt").read_text(encoding="utf-8").splitlines()
    names = [
        found.group() for line in lines if (found := re.match(r"[A-Za-z0-9][\w.-]*", line.strip()))
    ]
    return [name for name in names if name != "torchaudio" and not any(distributions(name=name))]


def find_comfyui() -> tuple[Path | None, str]:
    """A ComfyUI checkout: COMFYUI_PATH, else the one we sit in, else comfy-cli's default workspace;
    or why not.

    One that was not named and that this Python cannot run counts as none.
    """
    named = os.environ.get("COMFYUI_PATH")
    if named:
        places = [Path(named.split(os.pathsep)[0])]  # .ci/run tests with each of several
    else:
        enclosing = [ROOT.parent.parent] if ROOT.parent.name == "custom_nodes" else []
        places = [*enclosing, Path.home() / "comfy" / "ComfyUI"]
    for place in places:
        if (place / "comfy" / "model_patcher.py").is_file() and (place / "main.py").is_file():
            missing = ", ".join(lacking(place))
            if missing and named:
                raise pytest.UsageError(
                    f"The ComfyUI at COMFYUI_PATH ({named}) needs {missing}: install them here."
                )
            return (None, f"the ComfyUI at {place} needs {missing}") if missing else (place, "")
    if named:
        raise pytest.UsageError(f"COMFYUI_PATH is {named}, but there is no ComfyUI checkout.")
    return None, "there is no ComfyUI checkout"


COMFYUI, NO_COMFYUI = find_comfyui()
BROWSER, NO_BROWSER = find_browser()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots", metavar="DIR", help="Where the tests in tests/browser keep what they saw."
    )


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


NO_RAY = "" if importlib.util.find_spec("ray") else "Ray is not installed"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacking = {
        "comfy": NO_COMFYUI if COMFYUI is None else "",
        "browser": NO_BROWSER if BROWSER is None else "",
        "fleet": NO_RAY,
    }
    # The files with slow tests go first, so that no worker waits for the other at the end.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    for item in items:
        for mark, reason in lacking.items():
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for what, why, help in (
        (
            "ComfyUI",
            NO_COMFYUI,
            (
                "nothing above says that the nodes work.\nSet COMFYUI_PATH, or put a checkout at"
                " ~/comfy/ComfyUI, and run again."
            ),
        ),
        (
            "Browser",
            NO_BROWSER,
            (
                "nothing above says that the screen works.\nInstall Chromium and playwright, or set"
                " CHROMIUM, and run again."
            ),
        ),
        (
            "Newest front end",
            NO_FRONT_END,
            (
                "the screen was tested on the front end of this ComfyUI alone.\nUnpack the newest"
                " comfyui-frontend-package, set SPEED_FRONT_END to its folder 'static', and run"
                " again."
            ),
        ),
        (
            "Fleet",
            NO_RAY,
            (
                "nothing above says that `batch --on ray` works.\nRun `pip install -c"
                " constraints.txt -e '.[test,fleet]'` and try again."
            ),
        ),
    ):
        if count := sum(bool(why) and why in reason for reason in reasons):
            terminalreporter.section(f"{what} NOT TESTED", sep="!", red=True, bold=True)
            terminalreporter.write_line(f"{count} tests were skipped ({why}): {help}")
