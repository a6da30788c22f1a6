"""How the engine behaves towards its host: devices, progress, interrupts, imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from device_double import DEVICE, watching_the_device
from problems import make, row_set, solve

from speed_erase.speed_ops import EraseSettings, Rows

ROOT = Path(__file__).resolve().parents[2]

LOOKS_PER_LAYER, LOOKS_AT_ALL = 8, 90
"""How often the host may wait for a GPU: each time that a layer is read it is checked, and a layer
that decides which kept rows shape its edit counts them and its eigenvectors. Everything else is
looked at for all layers together; nothing per row, per concept or per point of the curve.
"""


SWITCHES = [
    EraseSettings(),
    EraseSettings(mu=0.5, augment_rank=2),
    EraseSettings(dpa=False, rpa=True, threshold=2.0),
    EraseSettings(invariants="span", ipf=False, dpa=False, held_out=0.2),
    EraseSettings(method="uce"),
    EraseSettings(method="rece"),
    EraseSettings(adversarial_rounds=2),
    EraseSettings.preset("auto"),
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


def solved_on_device(problem, settings):
    """The edit of a problem that is on the stand-in, and what the stand-in noted."""
    weights, *rows = problem.args()
    there = {key: weight.to(DEVICE) for key, weight in weights.items()}
    rows = [values.to(DEVICE) for values in rows]
    with watching_the_device() as double:
        return solve(there, *rows, settings), double


@pytest.mark.parametrize(
    "settings", SWITCHES, ids=lambda s: f"{s.preset_name}-{s.method}-{s.ipf}-{s.rpa}-{s.mu}"
)
def test_another_device_gives_the_same_edit_and_is_rarely_waited_for(settings):
    def looks(layers: int, retain: int, concepts: int = 3) -> int:
        problem = make(40, concepts, retain, outs=(30,) * layers)
        erasure, double = solved_on_device(problem, settings)
        plain = solve(*problem.args(), settings)
        for key in plain:
            assert erasure.edits[key].up.device == DEVICE
            assert torch.allclose(erasure.delta(key).cpu(), plain.delta(key), atol=1e-9)
        assert erasure.certificate.layers == plain.certificate.layers
        return sum(double.looks.values())

    rounds = 1 + settings.adversarial_rounds
    few, many = looks(2, 60), looks(6, 60)
    assert (many - few) / 4 <= rounds * LOOKS_PER_LAYER and few <= rounds * LOOKS_AT_ALL
    # `auto` may halve a step of the curve a few times, whatever the size of the problem.
    search = 2 * LOOKS_PER_LAYER if settings.preset_name == "auto" else 0
    assert abs(looks(2, 150, concepts=9) - few) <= 2 * LOOKS_PER_LAYER + search


@pytest.mark.parametrize("settings", [SWITCHES[0], SWITCHES[-1]], ids=lambda s: s.preset_name)
def test_the_memory_that_is_asked_for_is_enough(settings):
    from speed_erase.speed_ops.erase import _layer_bytes

    for width, retain, outs in ((80, 100, (70,) * 6), (64, 900, (40, 200)), (160, 60, (160,))):
        problem = make(width, 3, retain, outs=outs)
        layers = [SimpleNamespace(shape=(out, width)) for out in outs]
        rows = row_set(*problem.args()[1:])
        asked = rows.bytes_to_solve + _layer_bytes(SimpleNamespace(layers=layers), rows)
        weights = sum(8 * out * width for out in outs)  # which are there in this test
        assert solved_on_device(problem, settings)[1].peak <= asked + weights


def test_a_tensor_made_on_the_wrong_device_does_show(monkeypatch):
    """The negative control, and that of the count."""
    from speed_erase.speed_ops.engine import closed_form, curve

    problem, settings = make(), EraseSettings.preset("auto")
    plain = sum(solved_on_device(problem, settings)[1].looks.values())
    real = curve.Judge.remains

    def looking(self, lam):
        float(self.gram.sum())
        return real(self, lam)

    monkeypatch.setattr(curve.Judge, "remains", looking)
    assert sum(solved_on_device(problem, settings)[1].looks.values()) > plain + 20

    def planted(matrix, ridge):
        return torch.linalg.cholesky(matrix + ridge * torch.ones(len(matrix)).diag())

    monkeypatch.setattr(closed_form, "_cholesky", planted)
    with pytest.raises(RuntimeError, match="same device"):
        solved_on_device(problem, settings)


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
    assert len(names) > 45 and done.returncode == 0 and "not tested" in done.stdout, done.stderr


def test_what_people_write_is_read_without_torch():
    names = modules("errors", "progress", "text", "models", "job", "cli")
    late = ("__main__", "evaluate_inputs", "many_models", "outcome")
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
