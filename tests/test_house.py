"""The house: few rooms and modules, imports that go one way, and only the adapter knows the
host.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOST = {"comfy", "comfy_extras", "folder_paths", "nodes", "server", "execution"}
# From the ground up: a room may use those before it, never those after it.
ORDER = (
    *("errors", "progress"),
    *("text", "models", "engine", "files", "recipe", "provenance", "encoders", "certificate"),
    *("solver", "job", "pooled", "embed", "erase", "report", "checkpoints"),
    *("demo", "evaluate", "fleet", "cli"),
)
ALONE = {
    "text": {"errors"},
    "models": {"errors"},
    "engine": {"errors", "progress"},
    "encoders": {"errors", "progress", "text", "models", "files"},
}
"""Rooms that could be taken out of the house with these alone: the mathematics knows no text, text
no mathematics.
"""


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> set[str]:
    """Top-level names of the absolute imports anywhere in a file."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found


def relative_levels(path: Path) -> set[int]:
    return {node.level for node in ast.walk(tree(path)) if isinstance(node, ast.ImportFrom)}


def room(path: Path) -> str:
    """The room of a module of `speed_ops`, or the module itself where it stands in none."""
    return path.relative_to(ROOT / "speed_ops").parts[0].removesuffix(".py")


def rooms_used(path: Path) -> Iterator[tuple[str, int]]:
    """(room, line) of every relative import of a module of `speed_ops`, imports for type checkers
    included.
    """
    package = path.relative_to(ROOT / "speed_ops").parts[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)]
            whole = (*base, *(node.module.split(".") if node.module else ()))
            targets = [whole] if whole else [(alias.name,) for alias in node.names]
            yield from ((target[0], node.lineno) for target in targets)


MODULES = [path for path in files("speed_ops") if path != ROOT / "speed_ops" / "__init__.py"]


@pytest.mark.parametrize(
    "path", files("speed_ops"), ids=lambda path: path.relative_to(ROOT).as_posix()
)
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


def test_dependence_goes_one_way():
    rank = {name: place for place, name in enumerate(ORDER)}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} uses {used}"
        for path in MODULES
        for used, line in rooms_used(path)
        if used != room(path)
        and (rank[used] > rank[room(path)] or used not in ALONE.get(room(path), rank))
    ]
    assert not wrong


def test_the_direction_is_really_looked_at():
    """The negative control: the scan finds the imports that there are."""
    used = {used for used, _ in rooms_used(ROOT / "speed_ops" / "erase.py")}
    assert used >= {"certificate", "engine", "embed", "job", "progress", "solver"}


def test_no_import_hides_inside_a_function():
    """A cycle could be dodged so. The command line alone imports late, so that `--help` does not
    wait for torch.
    """
    hidden = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (*MODULES, *files("nodes"))
        if "cli" not in path.relative_to(ROOT).parts
        for function in ast.walk(tree(path))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not hidden


def test_every_room_has_its_tests():
    rooms = {
        path.name for path in (ROOT / "speed_ops").iterdir() if (path / "__init__.py").is_file()
    }
    assert rooms | {"nodes", "comfy", "browser"} <= {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir()
    }


def test_the_map_in_contributing_leads_somewhere():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [row.split("|")[2] for row in page.splitlines() if row.startswith("| ") and "`" in row]
    places = [place for row in rows for place in re.findall(r"`([\w/*.]+\.\w+)`", row)]
    assert len(places) > 30
    for place in places:
        base = ROOT if place.startswith(("nodes/", "web/", "tests/")) else ROOT / "speed_ops"
        assert list(base.glob(place)), place
    for name in ORDER:
        assert name in page
