"""Files by the names that widgets show: lists and recipes to read, results to write."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import folder_paths

from ...speed_ops.errors import FileError

NONE = "none"
_MODELS = ("checkpoints", "diffusion_models", "loras")
_MAX_LISTED = 2000


def list_names(*suffixes: str) -> list[str]:
    """`none`, then the input folder's files with these endings, by their path in it."""
    root = Path(folder_paths.get_input_directory())
    return [NONE, *sorted(_files_below(root, suffixes))]


def input_file(name: str) -> Path:
    """A file of the input folder; a name that leads out of it is refused."""
    return _inside(Path(folder_paths.get_input_directory()), name, "input")


def recipe_names() -> list[str]:
    """Recipes in the input folder and those saved to the output folder."""
    names = [f"input/{name}" for name in list_names(".json")[1:]]
    root = Path(folder_paths.get_output_directory())
    names += sorted(f"output/{name}" for name in _files_below(root, (".json",)))
    return names or [NONE]


def recipe_file(name: str) -> Path:
    """The file behind one of `recipe_names`."""
    folder, _, path = name.partition("/")
    if folder not in ("input", "output") or not path:
        raise FileError(f"There is no recipe '{name}': save one, or put one in the input folder.")
    root = folder_paths.get_directory_by_type(folder)
    return _inside(Path(root), path, folder)


def model_names() -> list[str]:
    """Checkpoints, diffusion models and LoRAs as `folder/name`."""
    names = [
        f"{folder}/{name}" for folder in _MODELS for name in folder_paths.get_filename_list(folder)
    ]
    return names or [NONE]


def checkpoint_folder() -> Path:
    """Where ComfyUI looks for checkpoints first."""
    return Path(folder_paths.get_folder_paths("checkpoints")[0])


def lora_names() -> list[str]:
    """`none`, then the LoRAs."""
    return [NONE, *folder_paths.get_filename_list("loras")]


def model_file(name: str) -> Path:
    """The file behind one of `model_names`."""
    folder, _, relative = name.partition("/")
    path = folder_paths.get_full_path(folder, relative) if folder in _MODELS and relative else None
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


def input_state(name: str | None) -> str:
    """Changes when that file of the input folder changes; empty for `none`."""
    return "" if name in (None, NONE) else state_of(input_file(name))


def output_file(folder: str, prefix: str, ending: str, overwrite: bool) -> Path:
    """Where to write: `<output>/<folder>/<prefix>_00001_<ending>`.

    Args:
        folder: Folder inside ComfyUI's output folder.
        prefix: What the user typed.
        ending: Such as `.safetensors`.
        overwrite: Leaves out the number.
    """
    check_prefix(prefix)
    root = folder_paths.get_output_directory()
    try:
        directory, name, counter, *_ = folder_paths.get_save_image_path(f"{folder}/{prefix}", root)
    except Exception as error:  # ComfyUI raises a bare Exception for a path outside
        raise FileError(
            f"'{prefix}' is outside the output folder: use a name such as 'speed/erased'."
        ) from error
    file_name = f"{name}{ending}" if overwrite else f"{name}_{counter:05}_{ending}"
    target = Path(directory) / file_name
    if not target.resolve().is_relative_to(Path(root).resolve()):
        raise FileError(
            f"'{prefix}' is outside the output folder: use a name such as 'speed/erased'."
        )
    return target


def temporary_file(name: str) -> tuple[Path, dict[str, str]]:
    """A path in the folder that ComfyUI empties when it starts, and the query of its `/view`."""
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


def _inside(root: Path, name: str, folder: str) -> Path:
    path = Path(os.path.abspath(root / name))
    if not path.is_relative_to(os.path.abspath(root)):
        raise FileError(f"'{name}' is outside the {folder} folder: move the file into that folder.")
    if not path.is_file():
        raise FileError(
            f"There is no file '{name}' in the {folder} folder: put it there, or choose another."
        )
    return path


def _files_below(root: Path, suffixes: tuple[str, ...]) -> list[str]:
    paths = (
        (Path(folder) / name).relative_to(root).as_posix()
        for folder, _, names in os.walk(root)
        for name in names
        if name.lower().endswith(suffixes)
    )
    return list(islice(paths, _MAX_LISTED))
