"""Writes the results of one model file (edited copy, LoRA, recipe and report), each complete or not
at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from ..erasure import Erasure
from ..errors import FileError
from ..files.atomic import all_or_none, write_bytes
from ..files.lora import write_lora
from ..files.rewrite import write_edited
from ..progress import Progress
from ..provenance import Content, build_metadata
from ..report.card import model_card
from ..report.html import report_page
from .no_names import mentions_name, without_names
from .output_files import OutputFiles, Product
from .source import ModelSource


@dataclass(frozen=True)
class CleanedFile:
    """An erasure from a model file, and what was written."""

    erasure: Erasure
    source: Path
    files: Mapping[str, Path]
    """By product."""
    lora_error: float | None = None
    """Relative error of the stored LoRA against the exact edit."""
    rounding: float | None = None
    """Norm of what the copy's own precision lost of the edit, relative to the edit."""
    notes: tuple[str, ...] = ()
    """What happened while saving, one sentence each."""
    seconds: float = 0.0


def save(
    erasure: Erasure,
    source: ModelSource,
    paths: Mapping[Product, Path],
    outputs: OutputFiles,
    replaceable: Collection[Path],
    progress: Progress | None = None,
) -> CleanedFile:
    """Writes the products, the largest first. They get their names together at the end, or none
    does.

    Args:
        erasure: What to write; it has a recipe and a certificate.
        source: The model it was made for.
        paths: Where the products go.
        outputs: What may be written into them: see `strict` and `no_names` there.
        replaceable: Which of them may exist already.
        progress: Called while the checkpoint is written.
    """
    assert erasure.recipe is not None and erasure.certificate is not None
    remaining = [item.name for item in erasure.certificate.concepts if item.verdict != "erased"]
    if outputs.strict and remaining:
        raise FileError(
            f"Nothing was written, because these are not erased: {', '.join(remaining[:5])}."
        )
    hides = mentions_name(erasure.recipe) if outputs.no_names else lambda text: False
    written = without_names(erasure) if outputs.no_names else erasure
    model, targets = source.checkpoint.path, list(paths.values())
    notes: list[str] = []
    rounding = lora_error = None
    with all_or_none(targets, replaceable=replaceable, sources=[model]) as temporary:
        if "checkpoint" in paths:
            path = temporary(paths["checkpoint"])
            rounding = _save_checkpoint(written, source, path, hides, notes, progress)
        if "lora" in paths:
            lora_error = write_lora(
                temporary(paths["lora"]),
                written.applied,
                written.layers,
                written.architecture,
                metadata=_metadata(written, source, "lora", hides),
            )
        if "recipe" in paths and written.recipe is not None:
            written.recipe.write(temporary(paths["recipe"]))
        title = model.name or str(model)
        title = "a model" if hides(title) else title
        names = {str(key): path.name for key, path in paths.items() if not hides(path.name)}
        if "card" in paths:
            terms = source.checkpoint.metadata.get("modelspec.license", "")
            card = model_card(written, title, "" if hides(terms) else terms, names)
            write_bytes(temporary(paths["card"]), card.encode("utf-8", "replace"))
        if "report" in paths:
            page = report_page(written, title, source.checkpoint.size, names)
            # file names are not always valid text
            write_bytes(temporary(paths["report"]), page.encode("utf-8", "replace"))
        source.checkpoint.refuse_changed()
    files = {str(product): path for product, path in paths.items()}
    return CleanedFile(erasure, model, files, lora_error, rounding, tuple(notes))


def _save_checkpoint(
    written: Erasure,
    source: ModelSource,
    path: Path,
    hides: Callable[[str], bool],
    notes: list[str],
    progress: Progress | None,
) -> float:
    """Returns the norm of what rounding lost of the edit, relative to the edit."""
    keys = {layer.canonical: layer.file_key for layer in written.layers}
    averaged = source.checkpoint.ema_keys()
    rounding, left_out = write_edited(
        source.checkpoint,
        path,
        {keys[key]: partial(_add, edit.delta) for key, edit in written.applied.items()},
        _metadata(written, source, "checkpoint", hides),
        drop=averaged,
        drop_metadata=lambda name, value: hides(name) or hides(value),
        progress=progress,
    )
    if averaged:
        notes.append(
            f"{len(averaged)} tensors of an averaged second copy of the model (EMA) were left out,"
            " because that copy is not edited."
        )
    if left_out:
        were = "file in the folder was" if len(left_out) == 1 else "files in the folder were"
        notes.append(
            f"{len(left_out)} {were} left out, because SPEED copies only the parts of the model"
            " that it knows."
        )
    lost = sum(value**2 for value in rounding.values()) ** 0.5
    size = sum(float(edit.norm()) ** 2 for edit in written.applied.values()) ** 0.5
    return lost / size if size else 0.0


def _add(delta: Callable[[], Tensor], stored: Tensor) -> Tensor:
    return stored.double() + delta().double()


def _metadata(
    erasure: Erasure,
    source: ModelSource,
    content: Content,
    hides: Callable[[str], bool],
) -> dict[str, str]:
    assert erasure.recipe is not None and erasure.certificate is not None
    existing = source.checkpoint.metadata
    # a header holds text only, and file names are not always valid text
    stem = os.fsencode(source.checkpoint.path.stem).decode("utf-8", "replace")
    title = existing.get("modelspec.title") or stem
    title = "a model" if hides(title) else title
    certificate = erasure.certificate.short()
    certificate.pop("seconds")  # the same run gives the same bytes
    if content == "lora":
        title, existing = f"Eraser for {title}", {}
    else:
        title = f"{title} (erased)"
        existing = {name: value for name, value in existing.items() if not hides(value)}
    return build_metadata(
        erasure.architecture, content, erasure.recipe, certificate, title=title, existing=existing
    )
