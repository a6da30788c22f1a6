"""Who may import whom: the engine knows no host, and of the nodes only the adapter does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOST = {"comfy", "comfy_extras", "folder_paths", "nodes", "server", "execution"}


def imported(path: Path) -> set[str]:
    """Top-level names of the absolute imports anywhere in a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found


def relative_levels(path: Path) -> set[int]:
    return {
        node.level for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    }


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", files("speed_ops"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_engine_knows_no_host_and_looks_nowhere_up(path):
    assert not imported(path) & (HOST | {"comfy_api", "speed_erase", "pickle"})
    depth = len(path.relative_to(ROOT / "speed_ops").parts)
    assert max(relative_levels(path), default=0) <= depth, "an import reaches out of speed_ops"


@pytest.mark.parametrize("path", files("nodes"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_of_the_nodes_only_the_adapter_knows_the_host(path):
    allowed = HOST - {"nodes"} if "host" in path.relative_to(ROOT).parts else set()
    assert not imported(path) & (HOST - allowed)


def test_the_adapter_does_know_it():
    """The negative control: the scan sees imports."""
    assert any("comfy" in imported(path) for path in files("nodes"))
