"""The same edited weights, prompts and judge, but sampled by the stock KSampler of the real
ComfyUI.
"""

from __future__ import annotations

from typing import Any

from .comfy_run import ComfyWorld
from .measures import judged
from .methods import Method
from .run import Runner
from .storage import save_json
from .tasks import Task

PREFIX = "diffusion_model."


def confirm(
    runner: Runner, task: Task, methods: list[Method], seed: int = 1000
) -> list[dict[str, Any]]:
    """Acc_e and Acc_r by ComfyUI beside those of the in-process sampler, for each method."""
    comfy = ComfyWorld(runner.world.folder)
    questions = task.questions(runner.count)
    rows = comfy.rows([question.prompt.text for question in questions])
    found = []
    for method in methods:
        ours = runner.run(task, method)
        edited = {PREFIX + key: value for key, value in runner.edit(task, method).weights.items()}
        model = None if method.name == "none" else comfy.edited(edited)
        theirs = judged(runner.world.judge, questions, comfy.sample(rows, seed, model), None)
        result = {
            "task": task.name,
            "method": method.name,
            "ours": {name: ours[name] for name in ("acc_e", "acc_r", "h_o")},
            "comfyui": {name: theirs[name] for name in ("acc_e", "acc_r", "h_o")},
        }
        save_json(runner.folder / "confirmed" / f"{task.name}__{method.name}.json", result)
        runner.log(
            f"{task.name:9s} {method.name:12s} ours {result['ours']} ComfyUI {result['comfyui']}"
        )
        found.append(result)
    return found
