"""Where an erasure is computed, and the way to the CPU when memory runs out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import mini
import pytest
import torch
from device_double import DEVICE, watching_the_device
from problems import make, solve
from safetensors.torch import load_file

from speed_erase.speed_ops import devices
from speed_erase.speed_ops.checkpoints.erase_file import clean_file
from speed_erase.speed_ops.checkpoints.output_files import OutputFiles
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.cli import main
from speed_erase.speed_ops.devices import Workplace, best_device, has_double_precision
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.erasure import Erasure
from speed_erase.speed_ops.errors import NoMemoryError, Notice, error_code
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.recipe import StoredJob
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.retain_set import parse_retain

NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling cusolverDnCreate"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
]


@pytest.mark.parametrize("fault", NO_MEMORY, ids=str)
def test_what_runs_out_of_memory_is_done_again_on_the_cpu_and_said(fault) -> None:
    asked: list[tuple[int, str]] = []
    place = Workplace(DEVICE, lambda count, device: asked.append((count, device.type)))

    def work(device: torch.device) -> str:
        if device.type != "cpu":
            raise fault
        return device.type

    assert place.run(work, 100) == "cpu" and asked == [(100, "standin")]
    assert place.run(lambda device: device.type, 100) == "cpu" and len(asked) == 1
    assert [note.code for note in place.notes] == ["computed_on_cpu"]


def test_other_faults_stay_and_too_little_memory_everywhere_is_a_sentence() -> None:
    def fails(fault: BaseException):
        def work(device: torch.device) -> None:
            raise fault

        return work

    place = Workplace(DEVICE)
    with pytest.raises(RuntimeError, match="shape"):
        place.run(fails(RuntimeError("wrong shape")))
    assert place.device == DEVICE and not place.notes
    with pytest.raises(NoMemoryError) as raised:
        place.run(fails(NO_MEMORY[0]))
    assert error_code(raised.value) == "memory"


def test_work_within_work_leaves_the_device_once() -> None:
    place = Workplace(DEVICE)

    def inner(device: torch.device) -> str:
        if device.type != "cpu":
            raise NO_MEMORY[0]
        return "done"

    assert place.run(lambda _: place.run(inner)) == "done" and len(place.notes) == 1


def test_only_devices_with_double_precision_are_used(monkeypatch) -> None:
    assert has_double_precision("cpu") and has_double_precision(DEVICE)
    assert not has_double_precision("mps")
    there = SimpleNamespace(is_available=lambda: True, OutOfMemoryError=torch.OutOfMemoryError)
    for able, expected in (((), "cpu"), (("xpu",), "xpu"), (("cuda", "xpu"), "cuda")):
        monkeypatch.setattr(
            devices, "has_double_precision", lambda device, a=able: device.type in a
        )
        monkeypatch.setattr(torch, "cuda", there)
        monkeypatch.setattr(torch, "xpu", there)
        assert best_device() == expected
        monkeypatch.undo()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device") / "m.safetensors"
    mini.write_model(path)
    return path


def cleaned(model: Path, folder: Path, device: str) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The edits in the LoRA that the command line writes, and its notes."""
    retain = parse_retain("Claude Monet\nEdgar Degas\nPaul Klee", "friends", "style")
    job = Job.of(parse_concepts("Van Gogh -> art", "style"), retain, EraseSettings.preset("few"))
    notes: list[str] = []
    outputs = OutputFiles(folder, ("lora",))
    clean_file(model, StoredJob(job), TextSetup(device=device), outputs, note=notes.append)
    (path,) = folder.glob("*.safetensors")
    lora = {key: value.float() for key, value in load_file(path).items()}
    ups = {key.removesuffix("lora_up.weight"): up for key, up in lora.items() if "lora_up" in key}
    return {base: up @ lora[f"{base}lora_down.weight"] for base, up in ups.items()}, notes


def differs(edits: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Worst layer, relative to the edit. Factors in half precision differ in their last bits."""
    assert edits.keys() == expected.keys()
    return max(float((edits[key] - edit).norm() / edit.norm()) for key, edit in expected.items())


def moved(notes: list[str]) -> bool:
    """Whether they say, once, that the GPU had too little memory."""
    codes = [note.code for note in notes if isinstance(note, Notice)]
    assert codes.count("computed_on_cpu") <= 1
    return "computed_on_cpu" in codes


def test_the_command_line_gives_the_same_on_a_gpu_and_when_that_is_full(model, tmp_path) -> None:
    expected, _ = cleaned(model, tmp_path / "cpu", "cpu")
    with watching_the_device() as double:
        edits, notes = cleaned(model, tmp_path / "gpu", str(DEVICE))
    assert not moved(notes)
    assert differs(edits, expected) < 1e-3
    assert {site.partition(":")[0] for site in double.sites} >= {
        "speed_ops/encoders/tower.py",
        "speed_ops/engine/rows.py",
        "speed_ops/certificate/measure.py",
    }
    count = len(double.sites)
    for number in (0, count // 2, count - 1):
        with watching_the_device() as double:
            double.fails_at = number
            edits, notes = cleaned(model, tmp_path / str(number), str(DEVICE))
        assert moved(notes)
        assert differs(edits, expected) < 1e-3


@pytest.mark.parametrize(
    ("flags", "used"),
    [((), True), (("--device", "auto"), True), (("--device", "cpu"), False)],
    ids=["by default", "auto", "cpu"],
)
def test_a_command_computes_on_the_gpu_unless_it_is_told_not_to(
    model, tmp_path, monkeypatch, flags, used
) -> None:
    monkeypatch.setattr(devices, "best_device", lambda: str(DEVICE))
    command = ["erase", str(model), "--concepts", mini.CONCEPTS, *mini.QUICK, "--quiet"]
    with watching_the_device() as double:
        assert main([*command, "--save", "lora", "--out", str(tmp_path), *flags]) == 0
    assert bool(double.sites) == used


@pytest.mark.slow
def test_every_allocation_of_an_edit_may_find_no_memory() -> None:
    """At each place of the code that takes memory, the first time. The test of SPEED Erase does the
    same for the preset few.
    """
    problem, settings = make(16, 2, 25, outs=(8,)), EraseSettings.preset("auto")
    weights, *rows = problem.args()
    plain = solve(weights, *rows, settings)

    def work(device: torch.device) -> Erasure:
        there = [values.to(device) for values in rows]
        return solve({key: weights[key].to(device) for key in weights}, *there, settings)

    with watching_the_device() as double:
        Workplace(DEVICE).run(work)
    first = {site: number for number, site in reversed(list(enumerate(double.sites)))}
    assert len(first) > 80
    for number in first.values():
        workplace = Workplace(DEVICE)
        with watching_the_device() as double:
            double.fails_at = number
            erasure = workplace.run(work)
        assert double.failed and [note.code for note in workplace.notes] == ["computed_on_cpu"]
        assert all(torch.equal(erasure.delta(key), plain.delta(key)) for key in plain)
