"""The matrix: task x method, one result file each outside the tree, so that it can be stopped and
continued.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from speed_erase.speed_ops.engine.edits import apply_edits
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.solver import erase_further, erase_jointly

from .attacks import Attack, run_attack
from .measures import certificate_numbers, judged, value_measures
from .methods import METHODS, Edited, Method
from .model import World
from .rows import build
from .storage import load_json, load_tensors, save_json, save_tensors
from .tasks import Question, Task

SEED = 1000


class Runner:
    """Runs and remembers. Results belong to one state of the weights: another state has another
    folder.
    """

    def __init__(self, world: World, count: int, log: Callable[[str], None] = print) -> None:
        self.world, self.count, self.log = world, count, log
        self.folder = world.folder / "runs" / f"{fingerprint(world.original)}-{count}"

    def path(self, task: Task, method: Method) -> Path:
        return self.folder / f"{task.name}__{method.name}.json"

    def edit(self, task: Task, method: Method) -> Edited:
        """The edited weights of a task; a second list is erased jointly or further where the method
        says so.
        """
        if task.then and method.name != "none":
            return _again(self.world, task, method)
        return method.edit(self.world.original, build(self.world.text, task.targets, method.rows))

    def values(self, task: Task, method: Method) -> dict[str, Any]:
        """The cheap pass: no pictures, only what the weights say. Kept in the same folder."""
        path = self.folder / "values" / f"{task.name}__{method.name}.json"
        if path.exists():
            return load_json(path)
        result, _ = self._measure(task, method)
        save_json(path, result)
        return result

    def run(self, task: Task, method: Method) -> dict[str, Any]:
        """The whole run with pictures, or its stored result."""
        path = self.path(task, method)
        if path.exists():
            return load_json(path)
        result, edited = self._measure(task, method)
        questions = task.questions(self.count)
        begin = time.monotonic()
        pictures = self.world.draw([q.prompt.text for q in questions], SEED, edited.weights)
        result["seconds"]["pictures"] = time.monotonic() - begin
        before = pictures if method.name == "none" else self.untouched(task)
        result |= judged(self.world.judge, questions, pictures, before)
        if method.name == "none":
            result["floor"] = self._floor(task, questions)
        save_tensors(path.with_suffix(".safetensors"), {"pictures": pictures.half()})
        save_json(path, result)
        self.log(f"{task.name:9s} {method.name:24s} {line(result)}")
        return result

    def _floor(self, task: Task, questions: list[Question]) -> dict[str, float]:
        """Share of each concept recognised where the prompts say its anchor instead: what chance
        brings back.
        """
        texts = [task.anchored(question.prompt) for question in questions]
        pictures = self.world.draw(texts, SEED)
        return judged(self.world.judge, questions, pictures, None)["by_concept"]

    def untouched(self, task: Task) -> Tensor:
        """Pictures of the untouched model for this task's questions."""
        self.run(task, METHODS["none"])
        return self.pictures(task, METHODS["none"])

    def pictures(self, task: Task, method: Method) -> Tensor:
        """A finished run's pictures (n, 3, 128, 128), in the order of the task's questions."""
        return load_tensors(self.path(task, method).with_suffix(".safetensors"))["pictures"].float()

    def _measure(self, task: Task, method: Method) -> tuple[dict[str, Any], Edited]:
        begin = time.monotonic()
        edited = self.edit(task, method)
        seconds = {"edit": time.monotonic() - begin}
        questions: list[Question] = task.questions(self.count)
        targets = (*task.targets, *task.then)
        result: dict[str, Any] = {
            "task": task.name,
            "method": method.name,
            "label": method.label,
            "settings": method.settings,
            "rows": {key: str(value) for key, value in vars(method.rows).items()},
            "seconds": seconds,
            "values": value_measures(
                self.world.text, targets, questions, self.world.original, edited.weights
            ),
        }
        if edited.certificate:
            result["certificate"] = certificate_numbers(edited.certificate)
        return result, edited


def _again(world: World, task: Task, method: Method) -> Edited:
    """First list, then the second: from the original weights together, or on the edited ones with
    the first held.
    """
    settings = EraseSettings.from_dict(method.settings)
    first = build(world.text, task.targets, method.rows)
    both = build(world.text, (*task.targets, *task.then), method.rows)
    second = build(world.text, task.then, method.rows)
    earlier = METHODS["both"].edit(world.original, first)
    assert earlier.erasure is not None
    options = (second.targets, second.anchors, both.retain, both.invariants, settings)
    if method.name.endswith("further"):
        erasure = erase_further(earlier.weights, first.targets, *options, probes=second.probes)
        return Edited(apply_edits(earlier.weights, erasure.edits), erasure)
    erasure = erase_jointly(world.original, earlier.erasure, *options, probes=both.probes)
    return Edited(apply_edits(world.original, erasure.edits), erasure)


def fingerprint(weights: dict[str, Tensor]) -> str:
    """Eight letters that change with the weights."""
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(weights[key].contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]


def line(result: dict[str, Any]) -> str:
    """A result in one line."""
    values = result["values"]
    shown = f"residual {values['residual']:.3f} drift {values['drift']:.3f}"
    if "acc_e" in result:
        change = " ".join(f"{name} {value:.2f}" for name, value in result.get("change", {}).items())
        shown = (
            f"Acc_e {result['acc_e']:6.1%} Acc_r {result['acc_r']:6.1%} H_o"
            f" {100 * result['h_o']:5.1f} | near {result.get('acc_near', float('nan')):6.1%} |"
            f" {shown} | {change}"
        )
    if result.get("certificate"):
        shown += (
            f" | probe {result['certificate']['probe']:.3f} room {result['certificate']['room']}"
        )
    return shown


def run_all(runner: Runner, pairs: Iterable[tuple[Task, Method]]) -> list[dict[str, Any]]:
    """All pairs in order; what is stored is not run again."""
    results = []
    for task, method in pairs:
        results.append(runner.run(task, method))
        runner.world.text.save()
    return results


def attack_all(
    runner: Runner, jobs: Iterable[tuple[Task, Method, dict[str, Attack]]]
) -> list[dict[str, Any]]:
    """White-box attacks on the first target of each job."""
    results = []
    for task, method, attacks in jobs:
        path = runner.folder / "attacks" / f"{task.name}__{method.name}.json"
        if not path.exists():
            edited = runner.edit(task, method)
            painter = task.targets[0].words
            found = {
                name: vars(
                    run_attack(runner.world, painter, edited.weights, attack, runner.count // 2)
                )
                for name, attack in attacks.items()
            }
            rounds = certificate_numbers(edited.certificate)["rounds"] if edited.certificate else []
            save_json(
                path,
                {
                    "task": task.name,
                    "method": method.name,
                    "label": method.label,
                    "attacks": found,
                    "rounds": rounds,
                },
            )
        results.append(load_json(path))
        runner.log(f"{task.name:9s} {method.name:20s} {results[-1]['attacks']}")
    return results
