"""Where tokenizers are looked for: a path that was given, a model's own folder, then what this machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import FileError
from ..files.checkpoint import Checkpoint
from ..text.clip_tokenizer import ClipTokenizer, find_tokenizer
from ..text.t5_tokenizer import FILE, IN_COMFYUI, T5Tokenizer

_T5_FOLDERS = ("tokenizer_3", "tokenizer_2")
"""T5's in a diffusers folder of SD3 and of Flux."""
_CLIP_FILE = "vocab.json"


def clip_words(given: Path | None, holders: Sequence[Checkpoint]) -> ClipTokenizer:
    """The tokenizer given (a folder or a ComfyUI checkout), else the model folder's own, else the package's."""
    if given is not None and not _is_t5_alone(given):
        if (given / "comfy" / "sd1_tokenizer").is_dir():
            return find_tokenizer(comfyui=given)
        return find_tokenizer(given)
    for holder in holders:
        if holder.is_folder and (holder.path / "tokenizer" / _CLIP_FILE).is_file():
            return find_tokenizer(holder.path)
    return find_tokenizer()


def t5_words(given: Path | None, holders: Sequence[Checkpoint]) -> T5Tokenizer:
    """The tokenizer given, else the model folder's own, else that of a ComfyUI checkout around the files or known."""
    for folder in _t5_places(given, holders):
        if (folder / FILE).is_file() and not (folder / _CLIP_FILE).is_file():
            return T5Tokenizer.from_files(folder)
    where = "" if given is None else f" in {given}"
    raise FileError(
        f"No T5 tokenizer was found{where}: give --tokenizer PATH, a ComfyUI checkout or a folder with T5's {FILE} "
        "(`tokenizer_2` of a Flux or `tokenizer_3` of an SD3 diffusers folder)."
    )


def _is_t5_alone(folder: Path) -> bool:
    """A folder given for T5's sake: CLIP's words then come from elsewhere."""
    clip = [folder / name / _CLIP_FILE for name in ("tokenizer", "tokenizer_2", ".")]
    return (folder / FILE).is_file() and not any(file.is_file() for file in clip)


def _t5_places(given: Path | None, holders: Sequence[Checkpoint]) -> Iterator[Path]:
    """Folders in which T5's tokenizer may stand, the likeliest first."""
    if given is not None:
        yield from (given / IN_COMFYUI, *(given / name for name in _T5_FOLDERS), given)
        if not (given / _CLIP_FILE).is_file():  # else it was given for CLIP's sake
            return
    folders = [holder.path.resolve() for holder in holders if holder.is_folder]
    yield from (folder / name for near in folders for folder in (near, near.parent) for name in _T5_FOLDERS)
    around = [parent for holder in holders for parent in holder.path.resolve().parents]
    named = os.environ.get("COMFYUI_PATH")
    known = [*around, *([Path(named)] if named else []), *Path(__file__).resolve().parents]
    yield from (checkout / IN_COMFYUI for checkout in (*known, Path.home() / "comfy" / "ComfyUI"))
