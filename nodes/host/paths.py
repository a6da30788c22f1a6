"""Files by the names that widgets show: lists and recipes from the input folder, results in the
output folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import folder_paths

from ...speed_ops.errors import FileError

NONE = "none"
_MODELS = ("checkpoints", "diffusion_models", "loras")
_MAX_LISTED = 2000


def list_names(*suffixes: str) -> list[str]:
    """`none`, then the input folder's files with these endings, by their path in it."""
    root = Path(folder_paths.get_input_directory())
    return [NONE, *sorted(_found(root, suffixes))]


def input_file(name: str) -> Path:
    """A file of the input folder; a name that leads out of it is refused."""
    return _inside(Path(folder_paths.get_input_directory()), name, "input")


def recipe_names() -> list[str]:
    """Recipes in the input folder and those saved to the output folder."""
    found = [f"input/{name}" for name in list_names(".json")[1:]]
    root = Path(folder_paths.get_output_directory())
    return [*found, *sorted(f"output/{name}" for name in _found(root, (".json",)))] or [NONE]


def recipe_file(name: str) -> Path:
    """The file behind one of `recipe_names`."""
    folder, _, rest = name.partition("/")
    if folder not in ("input", "output") or not rest:
        raise FileError(f"There is no recipe '{name}': save one, or put one in the input folder.")
    roots = {
        "input": folder_paths.get_input_directory(),
        "output": folder_paths.get_output_directory(),
    }
    return _inside(Path(roots[folder]), rest, folder)


def model_names() -> list[str]:
    """Checkpoints, diffusion models and LoRAs as `folder/name`."""
    found = [
        f"{folder}/{name}" for folder in _MODELS for name in folder_paths.get_filename_list(folder)
    ]
    return found or [NONE]


def checkpoint_folder() -> Path:
    """Where ComfyUI looks for checkpoints first."""
    return Path(folder_paths.get_folder_paths("checkpoints")[0])


def lora_names() -> list[str]:
    """`none`, then the LoRAs."""
    return [NONE, *folder_paths.get_filename_list("loras")]


def model_file(name: str) -> Path:
    """The file behind one of `model_names`."""
    folder, _, rest = name.partition("/")
    path = folder_paths.get_full_path(folder, rest) if folder in _MODELS and rest else None
    if path is None:
        raise FileError(
            f"There is no model file '{name}': refresh the list (R) and choose another."
        )
    return Path(path)


def state_of(path: Path) -> str:
    """Changes when the file changes."""
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{status.st_mtime_ns} {status.st_size}"


def output_file(folder: str, prefix: str, ending: str, overwrite: bool) -> Path:
    """Where to write: `<output>/<folder>/<prefix>_00001_<ending>`, without the number if it may be
    overwritten.
    """
    check_prefix(prefix)
    root = folder_paths.get_output_directory()
    try:
        place, name, counter, *_ = folder_paths.get_save_image_path(f"{folder}/{prefix}", root)
    except Exception as error:  # ComfyUI raises a bare Exception for a path outside
        raise FileError(
            f"'{prefix}' is outside the output folder: use a name such as 'speed/erased'."
        ) from error
    target = Path(place) / (f"{name}{ending}" if overwrite else f"{name}_{counter:05}_{ending}")
    if not target.resolve().is_relative_to(Path(root).resolve()):
        raise FileError(
            f"'{prefix}' is outside the output folder: use a name such as 'speed/erased'."
        )
    return target


def temporary_file(name: str) -> tuple[Path, dict[str, str]]:
    """A place in the folder that ComfyUI empties when it starts, and how its `/view` is asked for
    it.
    """
    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name, {"filename": name, "subfolder": "", "type": "temp"}


def check_prefix(prefix: str) -> None:
    """Refuses a file name prefix that is empty or leads elsewhere."""
    parts = prefix.replace("\\", "/").split("/")
    if not parts[-1].strip() or "\0" in prefix:
        raise FileError("The file name is empty: use a name such as 'speed/erased'.")
    if ".." in parts or prefix.startswith(("/", "\\", "~")) or ":" in parts[0]:
        raise FileError(
            f"'{prefix}' is outside the output folder: use a name such as 'speed/erased'."
        )


def _inside(root: Path, name: str, what: str) -> Path:
    path = Path(os.path.abspath(root / name))
    if not path.is_relative_to(os.path.abspath(root)):
        raise FileError(f"'{name}' is outside the {what} folder: move the file into that folder.")
    if not path.is_file():
        raise FileError(
            f"There is no file '{name}' in the {what} folder: put it there, or choose another."
        )
    return path


def _found(root: Path, suffixes: tuple[str, ...]) -> Iterator[str]:
    count = 0
    for folder, _, names in os.walk(root):
        for name in names:
            if name.lower().endswith(suffixes):
                yield (Path(folder) / name).relative_to(root).as_posix()
                count += 1
                if count >= _MAX_LISTED:
                    return
