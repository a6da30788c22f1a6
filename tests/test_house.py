"""The house: imports go one way, rooms keep to themselves, only hosts name flags and nodes."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "speed_ops"
COMFYUI = {"comfy", "comfy_extras", "folder_paths", "nodes", "server", "execution"}

# From the ground up: a room or module may use those before it, never those after it.
ORDER = (
    *("errors", "progress", "inputs", "devices"),
    *("text", "models", "engine", "files", "encoders", "certificate"),
    *("job", "recipe", "provenance", "model", "erasure", "solver"),
    *("embedder", "embed", "erase", "leak_probe", "name_probe"),
    *("report", "checkpoints", "doctor"),
    *("demo", "evaluate", "fleet", "cli"),
)
NEIGHBORS = {"demo", "evaluate", "fleet", "cli"}
"""Rooms that use the library and that the library does without."""
MAX_IMPORTS = 12
MAX_QUOTING = 0.10
"""Share of test functions that may compare with three or more words in a row: sentences change more
often than codes and data.
"""


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


MODULES = [path for path in python_files("speed_ops") if path != LIBRARY / "__init__.py"]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room(path: Path) -> str:
    """The room of a module of `speed_ops`, or the module itself where it is in none."""
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


def our_imports(path: Path) -> Iterator[tuple[tuple[str, ...], int]]:
    """(path below the repository, line) of every module of ours that a module imports."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)]
            target = (*base, *(node.module.split(".") if node.module else ()))
            if node.module:
                yield target, node.lineno
            else:
                yield from (((*target, alias.name), node.lineno) for alias in node.names)


def foreign_imports(path: Path) -> set[str]:
    """Top-level names of the absolute imports anywhere in a file."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.split(".")[0])
    return names


def rooms_used(path: Path) -> Iterator[tuple[str, int]]:
    for target, line in our_imports(path):
        if target[0] == "speed_ops" and len(target) > 1:
            yield target[1], line


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", python_files("speed_ops"), ids=relative)
def test_the_library_knows_no_host(path):
    assert not foreign_imports(path) & (COMFYUI | {"comfy_api", "speed_erase", "pickle"})
    assert all(target[0] == "speed_ops" for target, _ in our_imports(path))


@pytest.mark.parametrize("path", python_files("nodes"), ids=relative)
def test_only_the_adapter_knows_comfyui(path):
    allowed = COMFYUI - {"nodes"} if "host" in path.relative_to(ROOT).parts else set()
    assert not foreign_imports(path) & (COMFYUI - allowed)


def test_the_adapter_does_know_it():
    """The negative control: the scan sees imports."""
    assert any("comfy" in foreign_imports(path) for path in python_files("nodes"))


def test_imports_go_one_way():
    rank = {name: index for index, name in enumerate(ORDER)}
    assert {room(path) for path in MODULES} == set(ORDER), "the order lists every room"
    wrong = [
        f"{relative(path)}:{line} uses {used}"
        for path in MODULES
        for used, line in rooms_used(path)
        if rank[used] > rank[room(path)]
    ]
    assert not wrong


def test_the_direction_is_really_looked_at():
    """The negative control: the scan finds the imports that there are."""
    used = {used for used, _ in rooms_used(LIBRARY / "erase.py")}
    assert used >= {"embed", "solver", "erasure", "job"}


def test_the_library_does_without_its_neighbors():
    wrong = [
        f"{relative(path)}:{line} uses {used}"
        for path in MODULES
        if room(path) not in NEIGHBORS
        for used, line in rooms_used(path)
        if used in NEIGHBORS
    ]
    assert not wrong


HOUSE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location(
    "speed_erase", {root!r} + "/__init__.py", submodule_search_locations=[{root!r}]
)
sys.modules["speed_erase"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["speed_erase"])
"""
LOADED = """
for name in {modules!r}:
    importlib.import_module("speed_erase." + name)
print(json.dumps([name for name in sys.modules if name.startswith("speed_erase.")]))
"""


def run_fresh(code: str) -> Any:
    """What code prints in a fresh interpreter that has imported this folder as `speed_erase`."""
    code = HOUSE.format(root=str(ROOT)) + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def loaded_by(*modules: str) -> set[str]:
    """Rooms and modules of `speed_ops` that a fresh interpreter loads with these modules."""
    loaded = run_fresh(LOADED.format(modules=list(modules)))
    names = [name.split(".")[2:] for name in loaded]
    return {name[0] for name in names if name}


PUBLIC = """
import speed_erase
loaded = ["torch" in sys.modules]
from speed_erase import EraseSettings, SpeedError
loaded.append("torch" in sys.modules)
from speed_erase import RowSet, solve
loaded.append("torch" in sys.modules)
missing = [name for name in speed_erase.__all__ if getattr(speed_erase, name, None) is None]
print(json.dumps([loaded, speed_erase.__all__, missing]))
"""


def test_every_public_name_imports_and_torch_is_loaded_for_those_that_need_it():
    loaded, names, missing = run_fresh(PUBLIC)
    assert {"solve", "EraseSettings", "RowSet", "apply_edits"} <= set(names) and not missing
    assert loaded == [False, False, True]


def test_the_engine_and_the_certificate_load_nothing_else():
    engine = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in ("engine", "certificate")
        for path in (LIBRARY / name).glob("[a-z]*.py")
    ]
    assert len(engine) > 12
    rooms = loaded_by("speed_ops.solver", *engine)
    assert rooms == {"engine", "certificate", "errors", "progress", "inputs", "erasure", "solver"}
    assert "text" in loaded_by("speed_ops.erase"), "negative control"


@pytest.mark.parametrize("path", [*MODULES, *python_files("nodes")], ids=relative)
def test_no_module_needs_the_whole_house(path):
    """More than a dozen imports of ours: the module does two things."""
    targets = {target for target, _ in our_imports(path)}
    if path.name == "__init__.py" and path.parent.name == "nodes":
        targets = {target for target in targets if target[0] != "nodes"}  # it registers every node
    if path.name == "commands.py":
        targets = {target for target in targets if target[1] != "cli"}  # and this every command
    assert len(targets) <= MAX_IMPORTS, sorted("/".join(target) for target in targets)


def test_every_package_that_the_library_imports_is_reported_where_it_is_missing():
    imported = set().union(*map(foreign_imports, python_files("speed_ops"))) - {"__future__"}
    packages = imported - sys.stdlib_module_names
    errors = importlib.import_module("speed_erase.speed_ops.errors")
    codes = {
        name: errors.error_code(ModuleNotFoundError(f"No module named {name!r}", name=name))
        for name in packages
    }
    assert len(codes) > 12 and set(codes.values()) == {"missing-package"}, codes


def test_only_hosts_import_late():
    """A cycle could be dodged this way. Hosts import late so that help and startup are fast."""
    late = [
        f"{relative(path)}:{node.lineno}"
        for path in MODULES
        if room(path) != "cli"
        for function in ast.walk(parsed(path))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not late


FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
NODE = re.compile(r"\b(SPEED [A-Z]\w+|Concept List|Retain Set Loader|Save Erased Model)\b")


def sentences(path: Path) -> Iterator[tuple[str, int]]:
    """Every string of a module that is not documentation."""
    tree = parsed(path)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in documentation:
            yield node.value, node.lineno


@pytest.mark.parametrize("path", [path for path in MODULES if room(path) != "cli"], ids=relative)
def test_the_library_names_no_flag_and_no_node(path):
    named = [
        f"line {line}: {match.group()}"
        for text, line in sentences(path)
        for match in (*FLAG.finditer(text), *NODE.finditer(text))
    ]
    assert not named


def test_flags_and_nodes_are_found_where_they_are():
    """The negative control."""
    flags = [text for path in python_files("speed_ops/cli") for text, _ in sentences(path)]
    nodes = [text for path in python_files("nodes") for text, _ in sentences(path)]
    assert any(FLAG.search(text) for text in flags) and any(NODE.search(text) for text in nodes)


CONVENTIONS = {"add_to", "run", "describe"}
"""Names that every command, or every node that describes something, has."""


def test_no_public_name_has_two_meanings():
    homes: dict[str, set[str]] = {}
    for path in (*MODULES, *python_files("nodes")):
        for node in parsed(path).body:
            name = ""
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                name = node.name
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
            if name and not name.isupper():  # constants belong to their module
                homes.setdefault(name, set()).add(relative(path))
    double = {
        name: paths
        for name, paths in homes.items()
        if len(paths) > 1 and not name.startswith("_") and name not in CONVENTIONS
    }
    assert not double


def literal_choices(path: Path) -> Iterator[tuple[str, ...]]:
    """The values of every `Literal[...]` of a module that has more than one."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            values = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if len(values) > 1:
                yield tuple(sorted(map(ast.unparse, values)))


def test_every_list_of_choices_is_declared_once():
    """And so is its name: `test_no_public_name_has_two_meanings`."""
    homes: dict[tuple[str, ...], list[str]] = {}
    for path in (*MODULES, *python_files("nodes")):
        for choices in literal_choices(path):
            homes.setdefault(choices, []).append(relative(path))
    assert ("'K'", "'KV'", "'V'") in homes and len(homes) > 15, "negative control"
    assert not {choices: paths for choices, paths in homes.items() if len(paths) > 1}


MAX_UNDOCUMENTED = 2
"""Parameters of a function whose names and types are enough."""
HOOKS = {"define_schema", "execute", "fingerprint_inputs", "validate_inputs"}
"""ComfyUI calls them with a node's inputs, and the inputs have tooltips."""


def public_functions(
    body: list[ast.stmt], owner: str = ""
) -> Iterator[tuple[str, list[str], ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(name, parameters without `self`, definition) of public functions and methods."""
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from public_functions(node.body, f"{owner}{node.name}.")
            continue
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [extra for extra in (arguments.vararg, arguments.kwarg) if extra]
        names = [argument.arg for argument in every]
        yield (
            owner + node.name,
            names[1:] if owner and names[:1] in (["self"], ["cls"]) else names,
            node,
        )


@pytest.mark.parametrize("path", [*MODULES, *python_files("nodes")], ids=relative)
def test_parameters_are_explained(path):
    missing = []
    for name, parameters, node in public_functions(parsed(path).body):
        if len(parameters) > MAX_UNDOCUMENTED and node.name not in HOOKS:
            _, _, section = (ast.get_docstring(node) or "").partition("Args:\n")
            explained = re.findall(r"^ +\*{0,2}(\w+)(?:, \w+)*:", section, re.MULTILINE)
            if set(parameters) - set(explained):
                missing.append(f"{name}: {sorted(set(parameters) - set(explained))}")
    assert not missing


def test_the_parameters_are_really_looked_at():
    """The negative control: functions and methods with `Args:` are found."""
    functions = [f for path in MODULES for f in public_functions(parsed(path).body)]
    explained = [name for name, _, node in functions if "Args:" in (ast.get_docstring(node) or "")]
    assert len(functions) > 500 and sum("." in name for name in explained) > 20


OVERRIDES = {"_print_message"}
"""Methods of our subclasses that the standard library calls."""


def mentioned(path: Path) -> set[str]:
    """Every name that the code of a file uses; documentation and definitions do not count."""
    if path.suffix != ".py":
        return set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return names | {text for text, _ in sentences(path) if text.isidentifier()}


def test_nothing_is_there_for_its_own_test_only():
    """Every function, class and method is used by the product, what supports tests or a benchmark.
    Names are compared, so that one with a namesake in use goes unnoticed.
    """
    folders = ("speed_ops", "nodes", "tests/support", "benchmarks", "tools")
    users = [ROOT / "__init__.py", ROOT / "tests" / "conftest.py", *LIBRARY.rglob("*.html")]
    users += [path for folder in folders for path in python_files(folder)]
    used = set().union(*map(mentioned, users))
    defined = {
        node.name: relative(path)
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if not node.name.startswith("__") and node.name not in OVERRIDES
    }
    assert len(defined) > 1_000
    assert not {name: path for name, path in defined.items() if name not in used}


def test_the_pooled_embedding_is_one_text_input_among_others():
    """Only the registry, the encoders and the host's adapter know what makes it special."""
    word = re.compile(r"pooled|pools")
    paths = [*MODULES, *python_files("nodes")]
    naming = [path for path in paths if word.search(path.read_text(encoding="utf-8"))]
    assert 5 < len(naming) <= 10, sorted(map(relative, naming))


def test_one_file_per_node():
    for path in (ROOT / "nodes").glob("*.py"):
        classes = [
            node.name
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.ClassDef)
            and any(ast.unparse(base).endswith("ComfyNode") for base in node.bases)
        ]
        words = [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in classes]
        names = {name.removesuffix("_node") for name in words}
        assert len(classes) <= 1 and names <= {path.stem}, path.name


def test_one_file_per_command():
    commands = importlib.import_module("speed_erase.speed_ops.cli.parser").COMMANDS
    for module in commands:
        assert (LIBRARY / "cli" / f"{module.__name__.rpartition('.')[2]}.py").is_file()
    assert len(commands) == len(set(commands)) > 8


def test_every_room_has_its_tests():
    rooms = {path.name for path in LIBRARY.iterdir() if (path / "__init__.py").is_file()}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert rooms | {"nodes", "comfy", "browser"} <= folders


def test_the_map_in_contributing_leads_somewhere():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [row.split("|")[2] for row in page.splitlines() if row.startswith("| ") and "`" in row]
    paths = [path for row in rows for path in re.findall(r"`([\w/*.<> ]+\.\w+)`", row)]
    assert len(paths) > 30
    for path in paths:
        top = path.split("/")[0]
        at_root = ("nodes", "web", "tests", "benchmarks", "tools", "locales")
        base = ROOT if top in at_root else LIBRARY
        assert "<" in path or list(base.glob(path)), path
    for name in ORDER:
        assert name in page


PHRASE = re.compile(r"[A-Za-z']{2,}[,;:]? [A-Za-z']+[,;:]? [A-Za-z']{2,}")


def quotes_a_phrase(function: ast.FunctionDef) -> bool:
    """Whether an assertion or `match=` of a test has a text of three or more words."""
    nodes = list(ast.walk(function))
    compared = [node.test for node in nodes if isinstance(node, ast.Assert)]
    compared += [n.value for n in nodes if isinstance(n, ast.keyword) and n.arg == "match"]
    texts = [node for part in compared for node in ast.walk(part) if isinstance(node, ast.Constant)]
    return any(isinstance(node.value, str) and PHRASE.search(node.value) for node in texts)


def test_few_tests_quote_a_sentence():
    functions = [
        (path.relative_to(ROOT).as_posix(), node)
        for path in python_files("tests")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    quoting = [f"{path}: {node.name}" for path, node in functions if quotes_a_phrase(node)]
    assert len(quoting) <= MAX_QUOTING * len(functions), "\n".join(quoting)


@pytest.mark.parametrize(
    ("line", "quotes"),
    [
        ('assert "was not found" in text', True),
        ('with raises(Error, match="was not found"): pass', True),
        ('assert code == "not-found" and "Van Gogh" in text', False),
        ('text = "was not found"', False),
    ],
)
def test_a_quote_is_a_phrase_that_is_compared(line, quotes):
    (function,) = ast.parse(f"def test_it():\n    {line}\n").body
    assert isinstance(function, ast.FunctionDef) and quotes_a_phrase(function) == quotes
