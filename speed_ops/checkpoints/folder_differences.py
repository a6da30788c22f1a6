"""How a diffusers folder differs from the folder it was made from, in everything but the tensors
that an erasure reads.
"""

from __future__ import annotations

import filecmp
from pathlib import Path

from ..errors import FileError, Notice
from ..files.checkpoint import Checkpoint
from ..files.rewrite import folder_files, refuse_leaving, visible_files, weight_files
from ..files.schema import load_json, read_bounded
from .differences import different

_BOOKKEEPING = (
    *("_diffusers_version", "_name_or_path", "_commit_hash"),
    *("transformers_version", "torch_dtype", "dtype"),
)
"""What diffusers and transformers write into a configuration when they save a model, and do not
build a model from."""
_CARD = Path("README.md")
"""A folder's model card, which loaders do not read. A cleaned model gets its own."""
_MAX_BYTES = 1_000_000


def unexpected_files(source: Checkpoint, copy: Checkpoint) -> list[Notice]:
    """One sentence for each kind of file in a copied folder that copying would not have put there
    as it is, or would have put there and is missing. Weights that loaders read may be divided into
    other files. A folder whose source is a single file can hold nothing but those.
    """
    if not copy.is_folder:
        return []
    expected = set(folder_files(source)[0]) if source.is_folder else set()
    ours = weight_files(source) if source.is_folder else set()
    theirs = weight_files(copy)
    files = set(visible_files(copy.path, all_of_it=True)) - {_CARD}
    for file in theirs:
        refuse_leaving(copy.path, file)
    extra = {file for file in files - theirs if file not in expected or file in ours}
    changed = {
        file for file in files - theirs - extra if not _same(source.path / file, copy.path / file)
    }
    # A README may go; what a component or the pipeline is loaded with may not.
    missing = {
        file
        for file in expected - ours - files
        if len(file.parts) > 1 or file.name == "model_index.json"
    }
    sentences = []
    for code, found, verb in (
        ("extra-file", extra, "is not part of the model it was made from"),
        ("changed-file", changed, "differs from the base"),
        ("missing-file", missing, "is missing"),
    ):
        listed = [file.as_posix() for file in sorted(found)[:5]]
        if listed:
            text = f"The file {', '.join(listed)} {verb}."
            sentences.append(Notice(text, code=code, files=listed))
    return sentences


def _same(ours: Path, theirs: Path) -> bool:
    """Whether two files are the same, or as diffusers saves the same again."""
    if filecmp.cmp(ours, theirs, shallow=False):
        return True
    try:
        if ours.suffix == ".json":
            return _settings(ours) == _settings(theirs)
        if ours.suffix == ".safetensors":
            before, after = Checkpoint.open(ours), Checkpoint.open(theirs)
            return before.shapes.keys() == after.shapes.keys() and not any(
                different(before, key, after, key, edited=False) for key in before.shapes
            )
    except FileError:
        pass
    return False


def _settings(path: Path) -> object:
    """A configuration without bookkeeping, and without components that a pipeline does not have."""
    settings = load_json(read_bounded(path, _MAX_BYTES), str(path), _MAX_BYTES)
    if not isinstance(settings, dict):
        return settings
    return {
        name: value
        for name, value in settings.items()
        if name not in _BOOKKEEPING and value != [None, None]
    }
