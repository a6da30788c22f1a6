"""Files by the names that widgets show: lists and recipes to read, results to write."""

from __future__ import annotations

import os
from hashlib import sha256
from itertools import islice
from pathlib import Path

import folder_paths

from ...speed_ops.errors import FileError

NONE = "none"
_MODELS = ("checkpoints", "diffusion_models", "loras")
_MAX_LISTED = 2000


def list_names(*suffixes: str) -> list[str]:
    """`none`, then the input folder's files with these endings, by their path in it."""
    return [NONE, *_files_below("input", *suffixes)]


def input_file(name: str) -> Path:
    """A file of the input folder; a name that leads out of it is refused."""
    return _inside("input", name)


def recipe_names() -> list[str]:
    """Recipes in the input folder and those saved to the output folder."""
    folders = ("input", "output")
    names = [f"{folder}/{name}" for folder in folders for name in _files_below(folder, ".json")]
    return names or [NONE]


def recipe_file(name: str) -> Path:
    """The file behind one of `recipe_names`."""
    folder, _, path = name.partition("/")
    if folder not in ("input", "output") or not path:
        raise FileError(f"There is no recipe '{name}'. Save one, or put one in the input folder.")
    return _inside(folder, path)


def model_names() -> list[str]:
    """Checkpoints, diffusion models and LoRAs as `folder/name`."""
    names = [
        f"{folder}/{name}" for folder in _MODELS for name in folder_paths.get_filename_list(folder)
    ]
    return names or [NONE]


def temporary_text(text: str) -> dict[str, str]:
    """Writes a text to the temporary folder, as App mode shows results that are not images; returns
    the file as a node's `ui` names it.
    """
    from ...speed_ops.files.atomic import write_bytes

    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    name = f"speed_{sha256(text.encode()).hexdigest()[:16]}.txt"
    write_bytes(folder / name, text.encode(), force=True)
    return {"filename": name, "subfolder": "", "type": "temp"}


def comfyui_folder() -> Path:
    """The ComfyUI that runs."""
    return Path(folder_paths.__file__).parent


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
            f"There is no model file '{name}'. Refresh the list (R) and choose another."
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
    from ...speed_ops.files.inside import path_inside

    check_prefix(prefix)
    root = folder_paths.get_output_directory()
    try:
        directory, name, counter, *_ = folder_paths.get_save_image_path(f"{folder}/{prefix}", root)
    except Exception as error:  # ComfyUI raises a bare Exception for a path outside
        raise _outside(prefix) from error
    file_name = f"{name}{ending}" if overwrite else f"{name}_{counter:05}_{ending}"
    try:
        return path_inside(Path(root), os.path.relpath(Path(directory, file_name), root))
    except FileError as error:
        raise _outside(prefix) from error


def check_prefix(prefix: str) -> None:
    """Refuses a file name prefix that is empty or leads elsewhere."""
    from ...speed_ops.files.inside import path_inside

    if not prefix.replace("\\", "/").rpartition("/")[2].strip():
        raise FileError("The file name is empty. Use a name such as 'speed/erased'.")
    try:
        path_inside(Path(folder_paths.get_output_directory()), prefix)
    except FileError as error:
        raise _outside(prefix) from error


def _outside(prefix: str) -> FileError:
    return FileError(f"'{prefix}' is outside the output folder. Use a name such as 'speed/erased'.")


def _inside(folder: str, name: str) -> Path:
    """A file that exists. Links in the folder are its owner's."""
    from ...speed_ops.files.inside import path_inside

    root = Path(os.path.abspath(folder_paths.get_directory_by_type(folder)))
    path = path_inside(root, name, follow_links=True)
    if not os.path.isfile(path):
        raise FileError(
            f"There is no file '{name[:80]}' in the {folder} folder. Put it there, or choose"
            " another."
        )
    return path


def _files_below(folder: str, *suffixes: str) -> list[str]:
    root = Path(folder_paths.get_directory_by_type(folder))
    paths = (
        (Path(parent) / name).relative_to(root).as_posix()
        for parent, _, names in os.walk(root)
        for name in names
        if name.lower().endswith(suffixes)
    )
    return sorted(islice(paths, _MAX_LISTED))
