"""What ComfyUI loads when it starts: the nodes and their schemas, and not the engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_MODULES = 50
NEIGHBORS = ("evaluate", "demo", "fleet", "cli")
STARTING = """
import sys
sys.path[:0] = {paths!r}
from startup import prepare_comfyui, start
prepare_comfyui({comfyui!r})
before = set(sys.modules)
start({root!r})
print("\\n".join(sorted(set(sys.modules) - before)))
"""


@pytest.fixture(scope="module")
def loaded(comfyui: Path) -> set[str]:
    """Modules loaded by ComfyUI's start, in a new process."""
    program = STARTING.format(
        paths=[str(ROOT / "benchmarks")], comfyui=str(comfyui), root=str(ROOT)
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.mark.comfy
def test_few_of_our_modules_are_loaded_and_none_of_the_neighbors(loaded: set[str]) -> None:
    ours = {name for name in loaded if name.startswith("speed_started")}
    assert "speed_started.nodes.speed_erase" in ours  # the negative control: the nodes are there
    assert len(ours) <= MAX_MODULES
    rooms = {name.split(".")[2] for name in ours if name.startswith("speed_started.speed_ops.")}
    assert not rooms & {*NEIGHBORS, "encoders", "solver", "report", "files", "models", "erase"}


@pytest.mark.comfy
def test_startup_loads_no_package_for_reports(loaded: set[str]) -> None:
    assert not {"jinja2", "matplotlib", "rich"} & loaded
