"""Writes .ci/hashes.txt: what constraints.txt pins, with hashes (Linux on x86-64).

    python tools/hashes.py

CI installs these first, by hash. torch and torchvision are left out: their wheels differ by the
index they come from. Other systems install from constraints.txt alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
GLIBC = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
PLATFORMS = [f"manylinux_{version}_x86_64" for version in GLIBC]
PLATFORMS += [f"manylinux{year}_x86_64" for year in (2014, 2010, 1)]
UNHASHED = ("torch", "torchvision")


def pinned() -> list[Requirement]:
    """What is installed by hash."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return [item for item in found if item.name not in UNHASHED]


def hashes(python: str, items: list[Requirement]) -> dict[str, str]:
    """{name==version: sha256 of the wheel that pip chooses}."""
    wanted = [f"{item.name}{item.specifier}" for item in items]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--quiet"]
        options += ["--report", str(report), "--target", folder, "--python-version", python]
        options += [f"--platform={name}" for name in PLATFORMS]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *wanted], check=True)
        chosen = json.loads(report.read_text("utf-8"))["install"]
    found = [item["download_info"]["archive_info"]["hashes"]["sha256"] for item in chosen]
    names = [
        f"{item['metadata']['name'].lower()}=={item['metadata']['version']}" for item in chosen
    ]
    return dict(zip(names, found, strict=True))


def main() -> None:
    items = pinned()
    found: dict[str, set[str]] = {}
    for python in PYTHONS:
        environment = {"python_version": python, "python_full_version": f"{python}.0"}
        here = [item for item in items if not item.marker or item.marker.evaluate(environment)]
        for name, digest in hashes(python, here).items():
            found.setdefault(name.replace("_", "-"), set()).add(digest)
    lines = ["# Written by `python tools/hashes.py` from constraints.txt."]
    for item in items:
        marker = f"; {item.marker}" if item.marker else ""
        digests = sorted(found[f"{item.name}{item.specifier}"])
        lines.append(
            f"{item.name}{item.specifier}{marker}"
            + "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests)
        )
    (ROOT / ".ci" / "hashes.txt").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
