"""The demo: its model loses a painter and a subject, and the same prompts are shown before and
after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..checkpoints.erase_file import clean_file
from ..checkpoints.output_files import PRODUCTS, OutputFiles
from ..checkpoints.save import CleanedFile
from ..checkpoints.text_setup import TextSetup
from ..errors import FileError
from ..files.atomic import write_bytes
from ..files.checkpoint import Checkpoint, file_hash
from ..progress import Progress
from ..recipe import StoredJob
from ..report.html import Drawn, report_page
from .packed_model import CHECKPOINT_SHA256, write_checkpoint
from .showcase import before_and_after, demo_job, sheet

MODEL = "demo-model.safetensors"
PICTURES = "before-after.png"
IN_COMFYUI = "speed_demo.safetensors"


def run_demo(
    folder: Path, *, note: Callable[[str], None], progress: Progress | None = None
) -> tuple[CleanedFile, list[Drawn]]:
    """Writes the model, the same without the two concepts, a report and the images into a
    folder.

    Args:
        folder: Where to write.
        note: Called with each sentence that the user should read.
        progress: Called as the work advances.
    """
    model = write_checkpoint(folder / MODEL, force=True, progress=progress)
    outputs = OutputFiles(folder, PRODUCTS, name=Path(MODEL).stem, force=True)
    cleaned = clean_file(
        model, StoredJob(demo_job()), TextSetup(), outputs, note=note, progress=progress
    )
    images = before_and_after(model, cleaned.files["checkpoint"], progress)
    names = {product: path.name for product, path in cleaned.files.items()}
    page = report_page(cleaned.erasure, model.name, Checkpoint.open(model).size, names, images)
    write_bytes(cleaned.files["report"], page.encode("utf-8"), force=True)
    write_bytes(folder / PICTURES, sheet(images), force=True)
    return replace(cleaned, files={**cleaned.files, "pictures": folder / PICTURES}), images


def place_in_comfyui(folder: Path, progress: Progress | None = None) -> tuple[Path, bool]:
    """Puts the model where a ComfyUI looks for checkpoints; returns its path and whether it is new
    there.
    """
    models = folder / "models" / "checkpoints"
    if not models.is_dir():
        raise FileError(
            f"{folder} has no folder models/checkpoints. Give the folder in which ComfyUI is"
            " installed."
        )
    return place_among(models, progress)


def place_among(models: Path, progress: Progress | None = None) -> tuple[Path, bool]:
    """Puts the model into a folder; returns its path and whether it is new there.

    A different file of that name is the user's and stays.
    """
    target = models / IN_COMFYUI
    if not target.exists():
        return write_checkpoint(target, progress=progress), True
    if file_hash(target, progress) != CHECKPOINT_SHA256:
        raise FileError(
            f"{target} is another file. Move it away, so that the demo model can take its place."
        )
    return target, False
