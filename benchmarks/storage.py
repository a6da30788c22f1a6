"""Where benchmarks keep weights and results: outside the tree, each file whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from platformdirs import user_cache_dir
from safetensors.torch import load_file, save
from torch import Tensor

from speed_erase.speed_ops.files.atomic import atomic_write


def default_folder(name: str) -> Path:
    """Where a benchmark keeps its weights and runs."""
    return Path(user_cache_dir("speed-erase")) / name


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Lets `write` fill the file, which appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, force=True) as file:
        write(file)


def save_text(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))


def save_json(path: Path, value: Any) -> None:
    save_text(path, json.dumps(value, indent=2) + "\n")


def load_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict | None = None) -> None:
    solid = {key: tensor.detach().contiguous() for key, tensor in tensors.items()}
    write_whole(path, lambda file: file.write(save(solid, metadata)))


def load_tensors(path: Path) -> dict[str, Tensor]:
    return load_file(path)
