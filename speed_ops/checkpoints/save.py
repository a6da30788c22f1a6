"""Where the result of cleaning a model file goes: edited copy, LoRA, recipe and report, each whole
or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from ..engine.edits import LayerEdit
from ..erasure import Erasure
from ..errors import FileError
from ..files.atomic import check_target, write_bytes, write_error
from ..files.checkpoint import Checkpoint
from ..files.lora import write_lora
from ..files.results import all_or_none
from ..files.rewrite import check_folder, check_space, folder_files, write_edited
from ..progress import Progress
from ..provenance import build_metadata
from ..report.html import report_page
from .output_files import Product
from .source import ModelSource

LORA_SPACE = 100_000_000
"""Room asked for besides a checkpoint; LoRAs of a hundred concepts are smaller."""


def check_paths(
    paths: Mapping[Product, Path],
    source: Checkpoint,
    replace: Callable[[Path], bool] = lambda path: False,
) -> None:
    """Refuses before any work what would be refused after it. `replace`: whether a file may exist
    already.
    """
    for product, path in paths.items():
        folder = source.is_folder and product == "checkpoint"
        if len(os.fsencode(path.name)) > _NAME_BYTES:
            raise FileError(
                f"Cannot write {path}: the name is too long for this file system; choose a shorter"
                " one."
            )
        check_target(path, force=replace(path), sources=[source.path], folder=folder)
        if folder:
            check_folder(source.path, path)
            folder_files(source)
        if product == "checkpoint":
            check_space(path, source.size + LORA_SPACE)


_NAME_BYTES = 255
"""Longest name on every file system in use."""


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """The folder, made if need be; one that was made and stays empty is removed again."""
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    try:
        yield
    finally:
        for part in made:
            try:
                part.rmdir()
            except OSError:
                break  # it holds the results


def save(
    outcome: Erasure,
    source: ModelSource,
    paths: Mapping[Product, Path],
    *,
    may_replace: Callable[[Path], bool] = lambda path: False,
    salt: str | None = None,
    progress: Progress | None = None,
) -> Erasure:
    """Writes the products, the largest first; they get their names together at the end, or none
    does.
    """
    outcome = replace(outcome, files={str(product): path for product, path in paths.items()})
    with all_or_none(
        list(paths.values()), replace=may_replace, sources=[source.checkpoint.path]
    ) as place:
        outcome = _save(
            outcome,
            source,
            {product: place(path) for product, path in paths.items()},
            salt,
            progress,
        )
        source.checkpoint.refuse_changed()
    return outcome


def _save(
    outcome: Erasure,
    source: ModelSource,
    paths: Mapping[Product, Path],
    salt: str | None,
    progress: Progress | None,
) -> Erasure:
    if "checkpoint" in paths:
        outcome = _save_checkpoint(outcome, source, paths["checkpoint"], salt, progress)
    if "lora" in paths:
        metadata = _metadata(outcome, source, "lora", salt)
        error = write_lora(
            paths["lora"], outcome.applied, outcome.layers, outcome.architecture, metadata=metadata
        )
        outcome = replace(outcome, lora_error=error)
    if "recipe" in paths and outcome.recipe is not None:
        recipe = outcome.recipe.redacted_with(salt) if salt else outcome.recipe
        recipe.write(paths["recipe"])
    if "report" in paths:
        page = report_page(outcome, source.checkpoint, salt)
        write_bytes(paths["report"], page.encode("utf-8", "replace"))  # paths need not be text
    return outcome


def _save_checkpoint(
    outcome: Erasure, source: ModelSource, path: Path, salt: str | None, progress: Progress | None
) -> Erasure:
    keys = {layer.canonical: layer.file_key for layer in outcome.layers}
    replacements = {keys[key]: _adder(edit) for key, edit in outcome.applied.items()}
    averaged = source.checkpoint.ema_keys()
    metadata = _metadata(
        outcome, source, "checkpoint" if source.has_encoders else "diffusion_model", salt
    )
    written = write_edited(
        source.checkpoint,
        path,
        replacements,
        metadata,
        drop=averaged,
        progress=progress,
    )
    notes = list(outcome.notes)
    if averaged:
        notes.append(
            f"{len(averaged)} tensors of an averaged second copy of the model (EMA) were left out,"
            " because that copy is not edited."
        )
    if written.left_out:
        count = len(written.left_out)
        were = "file in the folder was" if count == 1 else "files in the folder were"
        notes.append(
            f"{count} {were} left out: only the parts of the model that are known here are copied."
        )
    lost = sum(value**2 for value in written.rounding.values()) ** 0.5
    size = sum(float(edit.norm()) ** 2 for edit in outcome.applied.values()) ** 0.5
    return replace(outcome, notes=tuple(notes), rounding=lost / size if size else 0.0)


def _adder(edit: LayerEdit) -> Callable[[Tensor], Tensor]:
    return lambda stored: stored.double() + edit.delta().double()


def _metadata(
    outcome: Erasure,
    source: ModelSource,
    content: Literal["checkpoint", "diffusion_model", "lora"],
    salt: str | None,
) -> dict[str, str]:
    assert outcome.recipe is not None and outcome.certificate is not None
    own = source.checkpoint.metadata
    title = own.get("modelspec.title") or _as_text(source.checkpoint.path.stem)
    certificate = outcome.certificate.short()
    certificate.pop("seconds")  # the same run gives the same bytes
    return build_metadata(
        outcome.architecture,
        content,
        outcome.recipe,
        certificate,
        title=f"{title} (erased)" if content != "lora" else f"Eraser for {title}",
        existing={} if content == "lora" else own,
        others=(
            []
            if content == "lora"
            else [part.header.metadata for part in source.checkpoint.parts[1:]]
        ),
        salt=salt,
    )


def _as_text(name: str) -> str:
    """A file's name for a header, which holds nothing but text; names on a disk need not be
    text.
    """
    return os.fsencode(name).decode("utf-8", "replace")


def refuse_unless_erased(outcome: Erasure) -> None:
    """For callers who want nothing written unless every concept counts as erased."""
    concepts = outcome.certificate.concepts if outcome.certificate is not None else ()
    left = [concept.name for concept in concepts if concept.verdict != "erased"]
    if left:
        raise FileError(
            f"Nothing was written: the certificate does not count {', '.join(left[:5])} as erased."
        )
