"""The public API of the package: `from speed_erase import ...`, loaded when first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import speed_erase
from speed_erase import speed_ops

ROOT = Path(__file__).resolve().parents[2]
IMPORTING = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "some folder", {root!r} + "/__init__.py", submodule_search_locations=[{root!r}]
)
package = sys.modules["some folder"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
assert not hasattr(package, "NODE_CLASS_MAPPINGS")
assert "solve" in dir(package) and "torch" not in sys.modules
assert package.EraseSettings().seed == 0 and "torch" not in sys.modules
assert package.solve.__module__ == "some folder.speed_ops.solver" and "torch" in sys.modules
"""


def test_every_name_is_the_engines() -> None:
    assert {"solve", "EraseSettings", "apply_edits", "SpeedError"} <= set(speed_erase.__all__)
    assert speed_erase.__all__ is speed_ops.__all__
    for name in speed_erase.__all__:
        assert getattr(speed_erase, name) is getattr(speed_ops, name)


@pytest.mark.parametrize("package", [speed_erase, speed_ops])
def test_other_names_are_missing(package) -> None:
    with pytest.raises(AttributeError):
        _ = package.no_such_name


def test_under_any_module_name_torch_waits_until_it_is_needed() -> None:
    command = [sys.executable, "-c", IMPORTING.format(root=str(ROOT))]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
