"""How the engine behaves towards its host: devices, progress, interrupts, imports."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from problems import make, solve
from torch.overrides import TorchFunctionMode

from speed_erase.speed_ops import EraseSettings, Rows

ROOT = Path(__file__).resolve().parents[2]

# What may look at a tensor's content from the host, once a layer each: the layer is finite, the
# Cholesky factor of its Gram matrix exists and its smallest direction converged (some checks), the
# kept rows and eigenvectors are counted (boolean indexing), the edit is finite, the certificate's
# summary numbers. Nothing per row.
LOOKS_PER_LAYER = 40

TO_THE_HOST = {"cpu", "numpy", "tolist", "item", "__bool__", "__int__", "__float__", "__index__"}


class Watch(TorchFunctionMode):
    """Counts the calls that bring a tensor's content to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in TO_THE_HOST:
            self.calls[name] += 1
        return function(*args, **(kwargs or {}))


SWITCHES = [
    EraseSettings(),
    EraseSettings(mu=0.5, augment_rank=2),
    EraseSettings(dpa=False, rpa=True, threshold=2.0),
    EraseSettings(invariants="span", ipf=False, dpa=False, held_out=0.2),
    EraseSettings(method="uce"),
    EraseSettings(method="rece"),
    EraseSettings(adversarial_rounds=2),
]


@pytest.mark.parametrize(
    "settings", SWITCHES, ids=lambda s: f"{s.method}-{s.invariants}-{s.ipf}-{s.rpa}-{s.mu}"
)
def test_every_tensor_is_made_on_the_device_of_the_input(settings):
    """With `meta` as the default device a tensor made without an explicit one has no data, and any
    use of it fails.
    """
    problem = make(80, 3, 100, outs=(70, 140))
    probes = (Rows.single(problem.targets), Rows.single(problem.anchors))
    plain = solve(*problem.args(), settings, probes=probes)
    with torch.device("meta"):
        guarded = solve(*problem.args(), settings, probes=probes)
    for key in problem.weights:
        assert torch.equal(plain.delta(key), guarded.delta(key))


@pytest.mark.parametrize(
    "settings", SWITCHES[:4], ids=lambda s: f"{s.invariants}-{s.ipf}-{s.rpa}-{s.mu}"
)
def test_looks_from_the_host_grow_with_layers_not_with_rows(settings):
    def looks(layers: int, retain: int) -> int:
        problem = make(80, 3, retain, outs=(70,) * layers)
        with Watch() as watch:
            solve(*problem.args(), settings)
        assert watch.calls["numpy"] == watch.calls["cpu"] == 0
        return sum(watch.calls.values())

    few, many = looks(2, 100), looks(6, 100)
    assert (many - few) / 4 <= LOOKS_PER_LAYER
    assert abs(looks(2, 300) - few) <= 2 * LOOKS_PER_LAYER


def test_every_stage_reports():
    seen: list[tuple[str, int, int]] = []
    problem = make()
    solve(
        *problem.args(),
        EraseSettings(adversarial_rounds=1),
        progress=lambda *step: seen.append(step),
    )
    assert {stage for stage, _, _ in seen} == {"prepare", "layers", "adversarial", "certificate"}
    assert all(0 <= done <= total for _, done, total in seen)
    assert ("layers", 2, 2) in seen and ("certificate", 2, 2) in seen


class Stop(Exception):
    pass


def test_an_interrupt_at_any_moment_leaves_nothing_behind():
    """Whatever call of the callback raises, the inputs are as they were and the next solve is the
    same.
    """
    problem = make()
    before = [
        tensor.clone() for tensor in (problem.targets, problem.retain, *problem.weights.values())
    ]
    reference = solve(*problem.args(), EraseSettings())
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    solve(*problem.args(), EraseSettings(), progress=count)
    for moment in range(calls):
        left = moment

        def stop(*_):
            nonlocal left
            if left == 0:
                raise Stop
            left -= 1

        with pytest.raises(Stop):
            solve(*problem.args(), EraseSettings(), progress=stop)
    after = (problem.targets, problem.retain, *problem.weights.values())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(
        solve(*problem.args(), EraseSettings()).delta("layer0"), reference.delta("layer0")
    )


IMPORTING = """
import sys, importlib.util
for name in {blocked!r}:
    sys.modules[name] = None
root = {root!r}
spec = importlib.util.spec_from_file_location(
    "speed_erase", root + "/__init__.py", submodule_search_locations=[root]
)
sys.modules["speed_erase"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["speed_erase"])
for name in {modules!r}:
    importlib.import_module("speed_erase." + name)
{then}
"""
SOLVING = """
import torch
from speed_erase.speed_ops import RowSet, solve
rows = RowSet.of(torch.randn(1, 8), torch.randn(1, 8), torch.randn(3, 8))
erasure = solve({"layer": torch.randn(6, 8)}, rows)
print(erasure.text())
"""
FOREIGN = (
    "comfy",
    "folder_paths",
    "comfy_api",
    "transformers",
    "tokenizers",
    "rich",
    "jinja2",
    "PIL",
    "matplotlib",
)


def modules(*rooms: str) -> list[str]:
    """All modules of some rooms of `speed_ops`, or of its own level."""
    found = [path for room in rooms for path in sorted((ROOT / "speed_ops").glob(f"{room}.py"))]
    found += [path for room in rooms for path in sorted((ROOT / "speed_ops" / room).rglob("*.py"))]
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in found
    ]


def fresh(
    blocked: tuple[str, ...], names: list[str], then: str = ""
) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in which some packages cannot be imported imports these modules."""
    code = IMPORTING.format(blocked=blocked, root=str(ROOT), modules=names, then=then)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_engine_needs_no_comfyui_and_no_transformers():
    """Every module on the way of an erasure is imported, and one is carried out."""
    names = modules(
        "engine",
        "certificate",
        "text",
        "encoders",
        "models",
        "files",
        "embed",
        "job",
        "erase",
    )
    done = fresh(FOREIGN, names, SOLVING)
    assert len(names) > 45 and done.returncode == 0 and "removed in the prompts" in done.stdout, (
        done.stderr
    )


def test_what_people_write_is_read_without_torch():
    names = modules("errors", "progress", "text", "models", "job", "cli")
    late = ("__main__", "evaluate_inputs", "many_models")
    names = [name for name in names if name.rpartition(".")[2] not in late]  # loaded by a run
    done = fresh((*FOREIGN, "torch", "numpy", "safetensors"), names)
    assert len(names) > 20 and done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("blocked", "room"), [("torch", "engine"), ("tokenizers", "encoders"), ("torch", "erase")]
)
def test_a_missing_package_does_show(blocked, room):
    """The negative control."""
    then = "from speed_erase.speed_ops.encoders.tokenizers import _byte_pairs as make; make({}, [])"
    done = fresh((blocked,), modules(room), then if room == "encoders" else "")
    assert done.returncode != 0 and blocked in done.stderr
