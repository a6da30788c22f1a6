"""The runs: task by method, one result file each, so that they can be stopped and continued."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor

from speed_erase.speed_ops.certificate.certificate import Certificate
from speed_erase.speed_ops.engine import auto

from ..storage import load_json, load_tensors, save_json, save_tensors
from .judge import HEADS, Verdict
from .measures import change, frechet_kept, recognized, scores, shares_by
from .methods import DEFAULT, METHODS, NONE, Edited, Method, TaskRows, methods_of
from .model import Crowd, from_bytes
from .tasks import Task

SEED = 1000
"""Of the noise; the training's seed is added, so that another training is judged on other noise."""
COUNT = 200
"""Pictures on each side of a run. A share is then known to 4 points at 90 % and to 7 at 50 %; two
methods draw the same prompts from the same noise, so differences of 5 points of H_o can be told
from chance."""


Log = Callable[[str], None]
Methods = Callable[[str], list[Method]]


class Runner:
    """Runs and remembers. Results belong to one state of the weights and one number of pictures."""

    def __init__(self, crowd: Crowd, count: int = COUNT, log: Log = print, **effort: Any) -> None:
        self.crowd, self.count, self.log, self._effort = crowd, count, log, effort
        self.training: dict[str, Any] = load_json(crowd.folder / "training.json")
        self.noise = SEED + self.training["plan"]["seed"]
        self.folder = crowd.folder / "runs" / f"{fingerprint(crowd.original)}-{count}"

    def path(self, task: Task, method: Method) -> Path:
        return self.folder / f"{task.name}__{method.name}.json"

    def run_all(self, tasks: Iterable[Task], methods: Methods = methods_of) -> None:
        """Every method of every task that has no result yet, the most important ones first."""
        rows = {task: self._rows(task) for task in tasks}
        for turn in itertools.zip_longest(*(methods(task.name) for task in rows)):
            for task, method in zip(rows, turn, strict=True):
                if method is not None and not self.path(task, method).exists():
                    self.run(task, method, rows[task])
            self.crowd.text.save()

    def _rows(self, task: Task) -> TaskRows:
        return TaskRows(task, self.crowd, **self._effort)

    def run(self, task: Task, method: Method, rows: TaskRows) -> dict[str, Any]:
        """Edit, draw, judge, store. A method that refuses is a result, too."""
        try:
            edited = rows.edit(method)
        except Exception as fault:
            refusal = {"refused": f"{type(fault).__name__}: {fault}"}
            return self._store(task, method, refusal, f"refused: {fault}")
        questions = task.questions(self.count)
        texts = [question.prompt.text for question in questions]
        pictures = self.crowd.draw(texts, self.noise, edited.weights)
        before = pictures if method is NONE else self.pictures(task, NONE)
        verdict, old = self._judged(pictures), self._judged(before)
        result = {"seconds": {"edit": edited.seconds}} | scores(task, questions, verdict)
        result["change"] = change(questions, before, pictures)
        result["frechet"] = frechet_kept(questions, old.features, verdict.features)
        if method is NONE:
            result["chance"] = self._chance(task)
            result["seen"] = {head: _seen(head, questions, verdict) for head in HEADS}
        result |= _certified(edited)
        save_tensors(self.path(task, method).with_suffix(".safetensors"), {"pictures": pictures})
        return self._store(task, method, result, line(result))

    def _store(self, task: Task, method: Method, result: dict[str, Any], said: str) -> dict:
        result |= {"task": task.name, "method": method.name}
        save_json(self.path(task, method), result)
        self.log(f"{task.name:10s} {method.name:14s} {said}")
        return result

    def choices(self, tasks: Iterable[Task]) -> None:
        """What the default chooses with and without its knee. Draws nothing."""
        for task in tasks:
            rows, chosen = self._rows(task), []
            for pays in (auto.MIN_KNEE_SLOPE, -math.inf):
                with patch.object(auto, "MIN_KNEE_SLOPE", pays):
                    certificate = rows.edit(METHODS[DEFAULT]).certificate
                if certificate is None or certificate.curve is None:
                    raise AssertionError("the default draws a curve")
                chosen.append(certificate.curve.chosen)
            told = [f"drift {point.drift:.4f}, to go {point.to_go:.4f}" for point in chosen]
            same = "the same" if chosen[0] == chosen[1] else f"without the knee {told[1]}"
            self.log(f"{task.name:10s} {told[0]}; {same}")
        self.crowd.text.save()

    def pictures(self, task: Task, method: Method) -> Tensor:
        """A finished run's pictures (n, 3, 32, 32), bytes, in the order of the task's questions."""
        return load_tensors(self.path(task, method).with_suffix(".safetensors"))["pictures"]

    def results(self) -> list[dict[str, Any]]:
        """All stored results."""
        return [load_json(path) for path in sorted(self.folder.glob("*.json"))]

    def _judged(self, pictures: Tensor) -> Verdict:
        return self.crowd.judge.judge(from_bytes(pictures))

    def _chance(self, task: Task) -> dict[str, float]:
        """Share of each concept recognized where the prompts name its anchor instead."""
        questions = [q for q in task.questions(self.count) if q.role == "erased"]
        texts = [task.anchored(question.prompt) for question in questions]
        right = recognized(questions, self._judged(self.crowd.draw(texts, self.noise)))
        return shares_by(right, [question.concept for question in questions])


def _seen(head: str, questions: list[Any], verdict: Verdict) -> float | None:
    """Share of the pictures in which one head sees what the prompt says, whatever the question."""
    asked = [replace(question, head=head) for question in questions]
    known = [i for i, q in enumerate(asked) if head != "subject" or q.prompt.subject]
    right = recognized(asked, verdict)
    return sum(right[i] for i in known) / len(known) if known else None


def _certified(edited: Edited) -> dict[str, Any]:
    """What the engine says, without a picture."""
    certificate: Certificate | None = edited.certificate
    if certificate is None:
        return {}
    drift = {f"{part.group} {part.where}": part.mean for part in certificate.drift}
    return {
        "left": {one.name: one.probe_median for one in certificate.concepts},
        "to_go": {one.name: one.probe_to_go for one in certificate.concepts},
        "kinds": {one.name: one.kind for one in certificate.concepts},
        "drift": drift.get("held_out context"),
    }


def fingerprint(weights: dict[str, Tensor]) -> str:
    """Eight letters that change with the weights."""
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(weights[key].contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]


def line(result: dict[str, Any]) -> str:
    """A result in one line."""
    drift = result.get("drift")
    shown = "" if drift is None else f" | drift {drift:.3f}"
    left = [value for value in result.get("left", {}).values() if value is not None]
    shown += f" left {sum(left) / len(left):.2f}" if left else ""
    scores = f"Acc_e {result['acc_e']:6.1%} Acc_r {result['acc_r']:6.1%} H_o {result['h_o']:6.1%}"
    return f"{scores}{shown} | edit {result['seconds']['edit']:.1f} s"
