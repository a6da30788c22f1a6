"""What the scripts compute, with node's own test runner; and rules for the scripts."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from speed_erase.speed_ops.engine.settings import PRESETS, PRIORITIES, Effort
from speed_erase.speed_ops.text.kinds import KINDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "web").rglob("*.js"))
TESTS = sorted(Path(__file__).parent.glob("*.test.js"))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_lines_and_figures(path: Path) -> None:
    run = subprocess.run(["node", "--test", str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def not_imported(text: str, exported: set[str]) -> set[str]:
    """Functions of other scripts that a script calls and doesn't import."""
    code = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", text, flags=re.DOTALL)
    called = set(re.findall(r"(?<![\w.#])(\w+)\(", code)) & exported
    imported = re.findall(r"\w+", " ".join(re.findall(r"import \{([^}]*)\}", code)))
    parameters = re.findall(r"\w+", " ".join(re.findall(r"function \w+\(([^)]*)\)", code)))
    declared = re.findall(r"(?:function|const|let|class)\s+(\w+)", code)
    return called - {*imported, *parameters, *declared}


def test_a_script_imports_what_it_calls() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in SCRIPTS}
    export = re.compile(r"^export (?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)
    exported = set(export.findall("".join(texts.values())))
    missing = {name: not_imported(text, exported) for name, text in texts.items()}
    assert {name: names for name, names in missing.items() if names} == {}
    control = texts["commands.js"].replace("import { ask, notify }", "import { notify }")
    assert not_imported(control, exported) == {"ask"}


def test_the_scripts_are_small_and_keep_to_themselves() -> None:
    assert len(SCRIPTS) >= 5
    assert sum(path.stat().st_size for path in SCRIPTS) < 110_000
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8")
        sources = set(re.findall(r'from "([^"]+)"', text))
        assert all(
            source.startswith("./") or source in ("../../scripts/app.js", "../../scripts/api.js")
            for source in sources
        )
        assert not re.search(
            r"\.prototype\b|https?://(?!www\.w3\.org/2000/svg)|innerHTML|eval\(", text
        ), path.name


def test_the_scripts_repeat_no_choice_or_default_of_the_server() -> None:
    """Kinds, priorities, efforts and presets come from the node definitions."""
    choices = {*KINDS, *PRIORITIES, *PRESETS, *get_args(Effort)}
    choices |= {choice.replace("-", " ") for choice in choices}
    assert {"style", "balanced", "erase fully", "normal", "auto"} <= choices
    limits = {f"{limit:g}" for limit in PRIORITIES.values() if limit > 0.1}
    for path in SCRIPTS:
        code = re.sub(r"/\*.*?\*/|//.*", "", path.read_text(encoding="utf-8"))
        literals = set(re.findall(r"""["'`]([\w -]+)["'`]""", code))
        listed = set(re.findall(r"[(|](\w+)(?=[|)])", code))  # as the choices of a pattern
        numbers = set(re.findall(r"(?<![\w.])0\.[1-9]\d*", code))
        assert not literals & choices and len(listed & choices) < 2, path.name
        assert not numbers & limits, path.name


def test_the_scripts_fit_the_line() -> None:
    """Prettier formats them at 110 columns; only a text that is looked up as a whole is longer."""
    for path in SCRIPTS:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert len(line) <= 110 or line.strip().startswith('"'), f"{path.name}: {line}"


def test_the_code_of_a_run_depends_on_what_is_asked_and_not_on_ids() -> None:
    """`run.test.js` has the scripts compute the same codes from the same file."""
    path = ROOT / "nodes" / "host" / "run_identity.py"  # importing the package needs a ComfyUI
    spec = importlib.util.spec_from_file_location("run_identity", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    code_of = module.code_of
    cases = json.loads((Path(__file__).parent / "run_codes.json").read_text(encoding="utf-8"))
    assert [code_of(case["prompt"], case["id"]) for case in cases] == [
        case["code"] for case in cases
    ]
    renamed, original = cases[1], cases[0]
    assert renamed["code"] == original["code"] and renamed["prompt"] != original["prompt"]
    assert len({case["code"] for case in cases}) == len(cases) - 1
