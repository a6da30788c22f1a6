"""Where the result of cleaning a model file goes: edited copy, LoRA, recipe and report, each whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from ..engine.edits import LayerEdit
from ..erase import Outcome
from ..errors import FileError
from ..files.atomic import check_target, write_bytes, write_error
from ..files.lora import write_lora
from ..files.metadata import build_metadata
from ..files.rewrite import write_edited
from ..progress import Progress
from ..report.html import render, report_facts
from .output_files import Product
from .source import ModelSource


def check_paths(paths: Mapping[Product, Path], source: Path, *, is_folder: bool, force: bool) -> None:
    """Refuses before any work what would be refused after it."""
    for product, path in paths.items():
        check_target(path, force=force, sources=[source], folder=is_folder and product == "checkpoint")


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
    outcome: Outcome,
    source: ModelSource,
    paths: Mapping[Product, Path],
    *,
    force: bool = False,
    salt: str | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Writes the products, the largest first. If one fails, those that this call has newly made are taken back."""
    fresh = [path for path in paths.values() if not os.path.lexists(path)]
    try:
        return _save(
            replace(outcome, files={str(product): path for product, path in paths.items()}),
            source,
            force,
            salt,
            progress,
        )
    except BaseException:
        for path in fresh:
            if path.is_file():
                path.unlink()
        raise


def _save(outcome: Outcome, source: ModelSource, force: bool, salt: str | None, progress: Progress | None) -> Outcome:
    paths = outcome.files
    if "checkpoint" in paths:
        outcome = _save_checkpoint(outcome, source, force, salt, progress)
    if "lora" in paths:
        metadata = _metadata(outcome, source, "lora", salt)
        error = write_lora(
            paths["lora"], outcome.applied, outcome.layers, outcome.architecture, metadata=metadata, force=force
        )
        outcome = replace(outcome, lora_error=error)
    if "recipe" in paths and outcome.recipe is not None:
        recipe = outcome.recipe.redacted_with(salt) if salt else outcome.recipe
        recipe.write(paths["recipe"], force=force)
    if "report" in paths:
        page = render(report_facts(outcome, source.checkpoint, salt))
        write_bytes(paths["report"], page.encode(), force=force)
    return outcome


def _save_checkpoint(
    outcome: Outcome, source: ModelSource, force: bool, salt: str | None, progress: Progress | None
) -> Outcome:
    keys = {layer.canonical: layer.file_key for layer in outcome.layers}
    replacements = {keys[key]: _adder(edit) for key, edit in outcome.applied.items()}
    averaged = source.checkpoint.ema_keys()
    metadata = _metadata(outcome, source, "checkpoint" if source.has_encoders else "diffusion_model", salt)
    written = write_edited(
        source.checkpoint,
        outcome.files["checkpoint"],
        replacements,
        metadata,
        drop=averaged,
        force=force,
        progress=progress,
    )
    notes = list(outcome.notes)
    if averaged:
        notes.append(
            f"{len(averaged)} tensors of an averaged second copy of the model (EMA) were left out, because that copy "
            "is not edited."
        )
    if written.left_out:
        count = len(written.left_out)
        notes.append(f"{count} more weight files in the folder were left out, because they are not edited.")
    lost = sum(value**2 for value in written.rounding.values()) ** 0.5
    size = sum(float(edit.norm()) ** 2 for edit in outcome.applied.values()) ** 0.5
    return replace(outcome, notes=tuple(notes), rounding=lost / size if size else 0.0)


def _adder(edit: LayerEdit) -> Callable[[Tensor], Tensor]:
    return lambda stored: stored.double() + edit.delta().double()


def _metadata(
    outcome: Outcome,
    source: ModelSource,
    content: Literal["checkpoint", "diffusion_model", "lora"],
    salt: str | None,
) -> dict[str, str]:
    assert outcome.recipe is not None and outcome.certificate is not None
    own = source.checkpoint.metadata
    title = own.get("modelspec.title") or source.checkpoint.path.stem
    certificate = outcome.certificate.short()
    certificate.pop("seconds")  # the same run gives the same bytes
    return build_metadata(
        outcome.architecture,
        content,
        outcome.recipe,
        certificate,
        title=f"{title} (erased)" if content != "lora" else f"Eraser for {title}",
        existing={} if content == "lora" else own,
        salt=salt,
    )


def refuse_unless_erased(outcome: Outcome) -> None:
    """For callers who want nothing written unless every concept counts as erased."""
    concepts = outcome.certificate.concepts if outcome.certificate is not None else ()
    left = [concept.name for concept in concepts if concept.verdict != "erased"]
    if left:
        raise FileError(f"Nothing was written: the certificate does not count {', '.join(left[:5])} as erased.")
