"""What the README and the docs show can be typed: the Python lines run, every command parses, every
link leads on. The reference is up to date, and texts keep to the style.
"""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
from pathlib import Path
from urllib.parse import unquote

import cli_reference
import hashes
import pytest
import style_check
import torch
from packaging.requirements import Requirement

from speed_erase.speed_ops.cli.parser import build_parser

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "speed_ops/demo/demo_model/MODEL_CARD.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
]
"""Help pages have their own tests: the front end shows them, without the repository."""
GUIDE, REFERENCE = "docs/guide/command-line.md", "docs/reference/command-line.md"
COMMAND = re.compile(r"^(?:\$ |    )(?:.*&& )?(speed-erase .+)$", re.MULTILINE)


def page(name: str | Path) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands(name: str) -> list[str]:
    return [
        line.split(" | head")[0]
        for line in COMMAND.findall(page(name))
        if "speed-erase[" not in line
    ]


def test_the_python_lines_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", page("docs/reference/python.md"), re.DOTALL)
    generator = torch.Generator().manual_seed(0)
    sizes = {"targets": 1, "anchors": 1, "retain": 40, "invariants": 5}
    given = {name: torch.randn(count, 64, generator=generator) for name, count in sizes.items()}
    weights = {"layer": torch.randn(32, 64, generator=generator)}
    names: dict[str, object] = {"weights": weights, **given}
    (tmp_path / "lines.py").write_text(code, encoding="utf-8")
    edited = runpy.run_path(str(tmp_path / "lines.py"), names)["edited"]
    assert isinstance(edited, dict) and edited["layer"].shape == (32, 64)
    assert not torch.equal(edited["layer"], weights["layer"])
    assert capsys.readouterr().out.strip()


SHOWN = {name: commands(name) for name in PAGES}


@pytest.mark.parametrize("name", [name for name in PAGES if SHOWN[name]])
def test_commands_parse(name: str) -> None:
    for line in SHOWN[name]:
        try:
            build_parser().parse_args(shlex.split(line)[1:])
        except SystemExit as end:
            assert end.code == 0, line  # --help and --version


def test_commands_are_found() -> None:
    """The negative control."""
    assert len(SHOWN["README.md"]) > 2 and len(SHOWN[GUIDE]) > 10


def test_the_reference_is_up_to_date() -> None:
    hint = "Run `python tools/cli_reference.py --write`."
    assert page(REFERENCE) == cli_reference.reference(), hint


def test_texts_keep_to_the_style() -> None:
    findings = style_check.findings()
    assert len(findings) <= style_check.ALLOWANCE, "\n".join(findings)


def test_the_style_check_finds_what_it_looks_for() -> None:
    text = "Press Run.\n\nThe report says so.\n"
    assert {line for line, _ in style_check.in_text(text)} == {3}
    assert not list(style_check.in_text("You'll see a warning in the report.\n"))


def test_every_command_is_shown() -> None:
    action = next(
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    shown = {shlex.split(line)[1] for line in SHOWN[GUIDE]}
    inline = set(re.findall(r"`speed-erase ([a-z-]+)", page(GUIDE)))
    assert shown | inline >= set(action.choices)


BENCHMARK = re.compile(r"python -m (benchmarks[\w.]*)((?: [a-z-]+)?)")
TOOL = re.compile(r"(?:python|pytest) ((?:tools|tests)/[\w/.]+)")


@pytest.mark.parametrize("name", PAGES)
def test_scripts_exist(name: str) -> None:
    """But for those that a page says are at an earlier commit."""
    for paragraph in re.split(r"\n\n|\n- ", page(name)):
        if "commit " in paragraph:
            continue
        for module, command in BENCHMARK.findall(paragraph):
            path = ROOT / module.replace(".", "/")
            source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
            assert source.exists(), module
            if path.is_dir() and command:
                assert f'"{command.strip()}"' in source.read_text(encoding="utf-8"), command
        for script in TOOL.findall(paragraph):
            assert (ROOT / script).exists(), script


def test_scripts_are_found() -> None:
    """The negative control."""
    found = [call for name in PAGES for call in BENCHMARK.findall(page(name))]
    assert len({module for module, _ in found}) > 5 and ("benchmarks.crowd", " page") in found


LINK = re.compile(r"\]\(([^)#:]+)[)#]")


def test_every_page_is_linked() -> None:
    """Each page is reached from the README, and each image and data file from a page."""
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        source = waiting.pop()
        seen.add(source)
        if source.suffix != ".md":
            continue
        linked = {(source.parent / unquote(link)).resolve() for link in LINK.findall(page(source))}
        waiting += [path for path in linked - seen if path.is_file()]
    files = {path for path in (ROOT / "docs").rglob("*") if path.is_file()}
    shipped = {ROOT / "docs/images/icon.png", ROOT / "docs/images/banner.png"}  # for the registry
    assert files - seen - shipped == set()


PRIVATE = re.compile(r"/root/|(?<![\w.])/work/|issue \d+|\bwave \d", re.IGNORECASE)


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_about_the_project(name: str) -> None:
    assert not PRIVATE.findall(page(name))


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name: str) -> None:
    text = page(name)
    for target in (*re.findall(r"\]\(([^)#]+)[)#]", text), *re.findall(r'src="([^"]+)"', text)):
        if "://" not in target:
            assert ((ROOT / name).parent / unquote(target)).exists(), target


def anchors(text: str) -> set[str]:
    """GitHub's names for the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_headings(name: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page(name)):
        linked = (ROOT / name).parent / unquote(target) if target else ROOT / name
        assert anchor in anchors(linked.read_text(encoding="utf-8")), f"{target}#{anchor}"


CONTRADICTIONS = {
    r"GGUF[^.\n]*(?:refused|rejected|not supported|don't work|doesn't work)": (
        "GGUF models and models from other quantisers are refused."
    ),
    r"demo[^.|]{0,80}\bweights are random": "the demo checkpoint, whose weights are random",
    r"others may change|\b(?:hardly|little|some|more|much) \(\d+ ?%\)|budget of \d+ ?%": (
        "A budget of 30 %: some (30 %)."
    ),
    r"should stay exactly|(?:exakt|genau) gleich bleiben|应该?(?:完全|严格)(?:相同|不变)": (
        "A prompt about something else. It should stay exactly as it was."
    ),
    r"\bmu\b.{0,80}?(?:extra weight|zusätzliches Gewicht|额外权重)": (
        "mu: Zusätzliches Gewicht der erhaltenen Namen"
    ),
}
"""What one page once said against another or against the code -> as it stood there. Other tests
compare defaults, verdicts, offers, limits and the most affected name with what was measured.
"""
SHOWN_TEXTS = [
    path
    for pattern in ("docs/**/*.md", "web/**/*.md", "web/*.js", "nodes/**/*.py", "locales/**/*.json")
    for path in sorted(ROOT.glob(pattern))
]
SHOWN_TEXTS += [ROOT / "README.md", *sorted(ROOT.glob("example_workflows/*.json"))]


@pytest.mark.parametrize("pattern", CONTRADICTIONS)
def test_no_contradiction_is_back(pattern: str) -> None:
    find = re.compile(pattern, re.IGNORECASE | re.DOTALL)
    assert find.search(CONTRADICTIONS[pattern]), "the pattern finds what it looks for"
    assert not [path.name for path in SHOWN_TEXTS if find.search(page(path))]


def test_every_pinned_package_but_torch_has_hashes() -> None:
    """CI installs them by hash: a version without one would stop it, an old one would stay."""
    text = (ROOT / ".ci" / "hashes.txt").read_text("utf-8").replace("\\\n", "")
    entries = [line.split("--hash=sha256:") for line in text.splitlines()[1:]]
    assert [Requirement(entry) for entry, *_ in entries] == hashes.pinned()
    assert all(
        digests and all(re.fullmatch("[0-9a-f]{64}", digest.strip()) for digest in digests)
        for _, *digests in entries
    )
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    assert all(f"\n{name}==" in constraints for name in hashes.UNHASHED)
