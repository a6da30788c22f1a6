"""The scripts' own reckoning, with node's own runner; and what the scripts may be."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "web").rglob("*.js"))
TESTS = sorted(Path(__file__).parent.glob("*.test.js"))


@pytest.mark.skipif(
    shutil.which("node") is None, reason="there is no node to run the scripts' tests with"
)
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_lines_and_figures(path: Path) -> None:
    done = subprocess.run(["node", "--test", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_scripts_are_small_and_keep_to_themselves() -> None:
    assert len(SCRIPTS) >= 5
    assert sum(path.stat().st_size for path in SCRIPTS) < 60_000
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8")
        sources = set(re.findall(r'from "([^"]+)"', text))
        assert all(
            one.startswith("./") or one in ("../../scripts/app.js", "../../scripts/api.js")
            for one in sources
        )
        assert not re.search(
            r"\.prototype\b|https?://(?!www\.w3\.org/2000/svg)|innerHTML|eval\(", text
        ), path.name
