"""Where benchmarks keep weights and results: outside the tree, each file whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor


def default_folder(name: str) -> Path:
    """Where a benchmark keeps its weights and runs."""
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("speed-erase")) / name


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file next to `path`, then put it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    from safetensors.torch import save_file

    solid = {key: tensor.detach().contiguous() for key, tensor in tensors.items()}
    write_whole(path, lambda part: save_file(solid, part, metadata=metadata))


def load_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def save_json(path: Path, value: Any) -> None:
    write_whole(
        path, lambda part: part.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    )


def load_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
