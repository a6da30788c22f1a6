"""A copy of a LoRA with other `down` factors; everything else stays as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..engine.edits import LayerEdit
from ..errors import FileError
from .checkpoint import Checkpoint
from .lora import LoraFile, factor_keys
from .tensors import kinds_of, narrow, write_tensors

TOLERANCE = 0.02
"""How far a factor may be from what is computed again, relative to the original: half precision and
another machine's rounding.
"""


def absorbed(
    path: Path, lora: LoraFile, changes: Mapping[str, LayerEdit]
) -> tuple[dict[str, Tensor], dict[str, LayerEdit]]:
    """`up down + change` as `up (down + up^+ change)`, which is exact where the change is `up`
    times something.

    Args:
        path: The LoRA's file.
        lora: The same, read.
        changes: By canonical key.

    Returns:
        The new tensors as they are stored, by key of the file; and the changes that these make.
    """
    file = Checkpoint.open(path)
    tensors, made = {}, {}
    for key, change in changes.items():
        up, down = lora.edits[key].up, lora.edits[key].down
        down_key = lora.keys[key][1]
        wanted = down + torch.linalg.pinv(up) @ change.delta().double()
        tensors[down_key] = narrow(wanted, file.read(down_key).dtype, f"{path}: {down_key}")
        made[key] = LayerEdit(up, tensors[down_key].double() - down)
    return tensors, made


def change_size(path: Path) -> float:
    """Squared size of all that a LoRA changes, convolutions included."""
    file, total = Checkpoint.open(path), 0.0
    for up_key, down_key, scale in factor_keys(file):
        up, down = (file.read(key).double().flatten(1) for key in (up_key, down_key))
        if up.shape[1] == down.shape[0]:
            # |up down|^2 = <up'up, down down'>
            total += scale**2 * float(((up.T @ up) * (down @ down.T)).sum())
    return total


def write_copy(
    path: Path, out: Path, tensors: Mapping[str, Tensor], *, force: bool = False
) -> None:
    """Writes the LoRA with these tensors in place of its own.

    Args:
        path: The LoRA.
        out: Where to write.
        tensors: By key of the file.
        force: Whether to overwrite a file.
    """
    file = Checkpoint.open(path)
    if out.resolve() == path.resolve():
        raise FileError(f"{out} is the original. Choose another file.")
    content = {key: tensors.get(key, file.read(key)) for key in file.shapes}
    write_tensors(out, kinds_of(content), content.values(), file.metadata, force=force)


def differing(path: Path, copy: Path, tensors: Mapping[str, Tensor]) -> list[str]:
    """Keys in which a file is not what `write_copy` would write.

    Args:
        path: The LoRA.
        copy: The file to compare.
        tensors: As for `write_copy`.
    """
    file, other = Checkpoint.open(path), Checkpoint.open(copy)
    both = file.shapes.keys() & other.shapes.keys()
    wrong = file.shapes.keys() ^ other.shapes.keys()
    for key in both:
        original, found = file.read(key), other.read(key)
        expected = tensors.get(key, original)
        if found.shape != expected.shape or found.dtype != expected.dtype:
            wrong.add(key)
        elif key in tensors:
            error = (found.double() - expected.double()).norm()
            if not error <= TOLERANCE * original.double().norm():
                wrong.add(key)
        elif not torch.equal(found, original):
            wrong.add(key)
    return sorted(wrong)
