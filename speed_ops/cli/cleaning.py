"""One model file from start to end: what `erase`, `apply`, `batch` and `demo` share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..erase import Progress
from ..pipeline import Job
from ..studio.checkpoint_job import Cleaned, clean
from ..studio.model_source import ModelSource
from ..studio.outlook import outlook
from ..studio.outputs import Saved, check_paths, output_folder, refuse_unless_erased, save
from ..studio.products import parse_products, product_paths
from ..studio.reading import Reading
from .console import Console
from .usage import of_arguments
from .wanted import Wanted

Note = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """A cleaned and saved model."""

    cleaned: Cleaned
    saved: Saved
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values for machines."""
        gathered = self.cleaned.outcome.gathered
        return {
            "model": str(self.cleaned.source.checkpoint.path),
            "family": self.cleaned.source.architecture.name,
            "files": {product: str(path) for product, path in self.saved.paths.items()},
            "base_hash": self.cleaned.recipe.base_hash,
            "lora_error": self.saved.lora_error,
            "rounding": self.saved.rounding,
            "notes": list(self.saved.notes),
            "dropped": list(self.cleaned.outcome.dropped),
            "unusable": list(gathered.unusable),
            "encoded": gathered.encoded,
            "reused": gathered.reused,
            "seconds": round(self.seconds, 3),
            "certificate": self.cleaned.certificate.to_json(),
        }


def plan_products(source: ModelSource, job: Job, wanted: Wanted, note: Note) -> Wanted:
    """The products that can be written for this model: weights of 8 bits take no edit, a LoRA works with them."""
    if "checkpoint" not in wanted.products or source.takes_edits(job.settings.layers):
        return wanted
    note(
        f"{source.checkpoint.path.name} stores these layers in 8 bits, where an edit would drown in rounding: "
        "a LoRA is written instead."
    )
    others = {product for product in wanted.products if product != "checkpoint"} | {"lora"}
    return replace(wanted, products=parse_products(",".join(others)))


def clean_file(
    path: Path,
    job: Job,
    reading: Reading,
    strength: float,
    wanted: Wanted,
    note: Note,
    progress: Progress | None = None,
) -> Result:
    """Opens, checks, solves, saves. Everything that can be refused is refused before the long work."""
    started = time.perf_counter()
    source = ModelSource.open(path)
    wanted = plan_products(source, job, wanted, note)
    is_folder = source.checkpoint.is_folder
    with of_arguments():
        paths = product_paths(wanted.folder, path, wanted.products, is_folder=is_folder, name=wanted.name)
    check_paths(paths, path, is_folder=is_folder, force=wanted.force)
    for text in outlook(source, job, reading):
        note(text)
    with output_folder(wanted.folder):
        cleaned = clean(source, job, reading, strength, progress)
        if wanted.strict:
            refuse_unless_erased(cleaned)
        saved = save(cleaned, paths, force=wanted.force, salt=wanted.salt, progress=progress)
    for text in saved.notes:
        note(text)
    if reading.cache is not None and reading.cache.problem:
        note(reading.cache.problem)
    return Result(cleaned, saved, time.perf_counter() - started)


def show(result: Result, console: Console) -> None:
    """The result for people, or for machines."""
    console.result(result.to_json())
    console.say(result.cleaned.text())
    for product, path in result.saved.paths.items():
        console.say(f"{product:<10}  {path}{_size(path)}")
    if result.saved.rounding is not None:
        console.say(f"The file's own precision costs the edit {result.saved.rounding:.2%} of its size.")
    console.say(f"Done in {result.seconds:.1f} s.")


def _size(path: Path) -> str:
    if not path.is_file():
        return ""
    size = path.stat().st_size
    return f"  ({size / 1e6:.1f} MB)" if size >= 1e5 else f"  ({size / 1e3:.1f} kB)"
