"""Where the result of cleaning a model file goes: edited copy, LoRA, recipe and report, each whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..erase import Progress
from ..erasure import LayerEdit
from ..errors import FileError
from ..files.atomic import check_target, write_bytes, write_error
from ..files.lora import write_lora
from ..files.metadata import build_metadata
from ..files.redaction import Redactor
from ..files.rewrite import write_edited
from .checkpoint_job import Cleaned
from .products import Product


@dataclass(frozen=True)
class Saved:
    """What was written."""

    paths: dict[Product, Path]
    notes: tuple[str, ...]
    lora_error: float | None
    """Relative error of the stored LoRA against the exact edit; None where none was asked for."""
    rounding: float | None
    """Norm of what the copy's own precision lost of the edit, relative to the edit; None without a copy."""


def check_paths(paths: dict[Product, Path], source: Path, *, is_folder: bool, force: bool) -> None:
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
    cleaned: Cleaned,
    paths: dict[Product, Path],
    *,
    force: bool = False,
    salt: str | None = None,
    progress: Progress | None = None,
) -> Saved:
    """Writes the products, the largest first. If one fails, those that this call has newly made are taken back."""
    fresh = [path for path in paths.values() if not os.path.lexists(path)]
    try:
        return _save(cleaned, paths, force, salt, progress)
    except BaseException:
        for path in fresh:
            if path.is_file():
                path.unlink()
        raise


def _save(
    cleaned: Cleaned, paths: dict[Product, Path], force: bool, salt: str | None, progress: Progress | None
) -> Saved:
    notes: list[str] = []
    lora_error = rounding = None
    if "checkpoint" in paths:
        rounding = _save_checkpoint(cleaned, paths["checkpoint"], force, salt, progress, notes)
    if "lora" in paths:
        layers = cleaned.source.layers(cleaned.erasure.settings.layers)
        metadata = _metadata(cleaned, "lora", salt)
        architecture = cleaned.source.architecture
        lora_error = write_lora(
            paths["lora"], cleaned.edits, layers, architecture, metadata=metadata, force=force
        ).error
    if "recipe" in paths:
        (cleaned.recipe.redacted_with(salt) if salt else cleaned.recipe).write(paths["recipe"], force=force)
    if "report" in paths:
        from ..report.html import render

        write_bytes(paths["report"], render(report_facts(cleaned, paths, salt)).encode(), force=force)
    return Saved(paths, tuple(notes), lora_error, rounding)


def _save_checkpoint(
    cleaned: Cleaned, path: Path, force: bool, salt: str | None, progress: Progress | None, notes: list[str]
) -> float:
    source = cleaned.source
    layers = {layer.canonical: layer.file_key for layer in source.layers(cleaned.erasure.settings.layers)}
    replacements = {layers[key]: _adder(edit) for key, edit in cleaned.edits.items()}
    averaged = source.checkpoint.ema_keys()
    if averaged:
        notes.append(f"{len(averaged)} tensors of an averaged second copy of the model were left out: it was unedited.")
    content = "checkpoint" if source.has_encoders else "diffusion_model"
    metadata = _metadata(cleaned, content, salt)
    written = write_edited(
        source.checkpoint, path, replacements, metadata, drop=averaged, force=force, progress=progress
    )
    if written.left_out:
        notes.append(f"{len(written.left_out)} further weight files of the folder were left out: they are unedited.")
    lost = sum(value**2 for value in written.rounding.values()) ** 0.5
    size = sum(_norm_squared(edit) for edit in cleaned.edits.values()) ** 0.5
    return lost / size if size else 0.0


def _adder(edit: LayerEdit) -> Callable[[Tensor], Tensor]:
    return lambda stored: stored.double() + edit.delta().double()


def _norm_squared(edit: LayerEdit) -> float:
    return float(((edit.up.T @ edit.up) * (edit.down @ edit.down.T)).sum())


def _metadata(cleaned: Cleaned, content: Any, salt: str | None) -> dict[str, str]:
    source = cleaned.source
    own = source.checkpoint.metadata
    title = own.get("modelspec.title") or source.checkpoint.path.stem
    certificate = cleaned.certificate.short()
    certificate.pop("seconds")  # the same run gives the same bytes
    return build_metadata(
        source.architecture,
        content,
        cleaned.recipe,
        certificate,
        title=f"{title} (erased)" if content != "lora" else f"Eraser for {title}",
        existing={} if content == "lora" else own,
        salt=salt,
    )


def report_facts(cleaned: Cleaned, paths: dict[Product, Path], salt: str | None) -> dict[str, Any]:
    """Plain values for the report; with a salt, hashes in the place of names."""
    checkpoint, recipe = cleaned.source.checkpoint, cleaned.recipe
    gathered = cleaned.outcome.gathered
    certificate = cleaned.certificate.to_json()
    facts: dict[str, Any] = {
        "model": checkpoint.path.name or str(checkpoint.path),
        "family": cleaned.source.architecture.title,
        "size": checkpoint.size,
        "base_hash": recipe.base_hash,
        "encoder_hash": recipe.encoder_hash,
        "package_version": recipe.package_version,
        "strength": recipe.rows.get("strength", 1.0),
        "clip_skip": recipe.rows.get("clip_skip"),
        "concepts": [vars(concept) for concept in recipe.concepts],
        "retain": [{"label": part.label, "names": len(part.names or ()) or None} for part in recipe.retain],
        "retain_count": len(gathered.retain.names),
        "in_context": gathered.in_context,
        "dropped": list(cleaned.outcome.dropped),
        "unusable": list(gathered.unusable),
        "files": {product: path.name for product, path in paths.items()},
        "certificate": certificate,
    }
    if salt is None:
        return facts
    settings = certificate.pop("settings")
    names = (*recipe.names, *cleaned.outcome.dropped, *(part.label for part in recipe.retain if part.names))
    hidden: dict[str, Any] = Redactor(salt).everywhere(facts, names)
    hidden["certificate"]["settings"] = settings
    return hidden


def refuse_unless_erased(cleaned: Cleaned) -> None:
    """For callers who want nothing written unless every concept counts as erased."""
    left = [concept.name for concept in cleaned.certificate.concepts if concept.verdict != "erased"]
    if left:
        raise FileError(f"{', '.join(left[:5])}: not erased by the certificate's measure, so nothing was written.")
