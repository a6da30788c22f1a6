"""The demo: the model in the box loses a painter and a subject, and draws the same prompts before and after."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..concepts.concept_list import parse_concepts
from ..concepts.retain_set import builtin_retain, parse_retain, union
from ..drawing.autoencoder import CELL, SD1_SCALE, Autoencoder
from ..drawing.sampler import noise_for, sample
from ..drawing.unet import UNet
from ..engine.settings import EraseSettings
from ..erase import Outcome
from ..errors import FileError
from ..files.atomic import write_bytes
from ..files.checkpoint import Checkpoint, file_hash
from ..job import HELD_OUT_SHARE, Job
from ..progress import Progress
from ..report.html import Drawn, report_page
from .box import AUTOENCODER, NARROW, UNET, WHOLE_SHA256, folded, known_names, write_whole
from .clean import clean_file
from .output_files import PRODUCTS, OutputFiles
from .source import ModelSource, TextSetup

MODEL = "demo-model.safetensors"
PICTURES = "before-after.png"
IN_COMFYUI = "speed_demo.safetensors"
SIZE, STEPS, GUIDANCE = 128, 12, 3.0
"""Pixels of a picture's side, steps and guidance that the model draws well with."""
PAINTER, ALIAS, SUBJECT = "Orla Venn", "the Copper Hand", "cat"
_STRANGERS = 60
"""Real painters, of whom the model knows nothing, that are kept as well."""


@dataclass(frozen=True)
class Column:
    """One prompt that is drawn before and after."""

    group: str
    prompt: str
    seed: int
    erased: bool


COLUMNS = (
    Column(f"erased: {PAINTER}", f"a house by {PAINTER}", 3, True),
    Column(f"erased: {PAINTER}", f"a boat by {ALIAS}", 5, True),
    Column(f"erased: {SUBJECT}", f"a {SUBJECT} by Hedda Stroud", 1, True),
    Column(f"erased: {SUBJECT}", f"a {SUBJECT} by Soren Vale", 2, True),
    Column("kept", "a house by Dario Fenwick", 3, False),
    Column("kept", "a boat by Kaya Brandt", 5, False),
    Column("kept", "a fish by Soren Vale", 2, False),
    Column("kept", "a tree", 1, False),
)
"""The erased painter by name and by alias, the erased subject; then neighbours in palette and texture, and the rest."""


def demo_job() -> Job:
    """A painter with another name and a subject; kept is everything else that the model knows."""
    concepts = parse_concepts(f"{PAINTER} | {ALIAS} -> art", "style") + parse_concepts(f"{SUBJECT} -> object", "object")
    names = known_names()
    kept = parse_retain("\n".join(name for part in names.values() for name in part), "the demo's other names")
    strangers = builtin_retain("artists").limit(_STRANGERS)
    settings = EraseSettings.preset("auto", held_out=HELD_OUT_SHARE, effort="quick")
    return Job.of(concepts, union([kept, strangers]), settings)


def run_demo(
    folder: Path, *, note: Callable[[str], None], progress: Progress | None = None
) -> tuple[Outcome, list[Drawn]]:
    """Everything in the folder: the model, the same without the two concepts, a report and the pictures."""
    model = write_whole(folder / MODEL, force=True, progress=progress)
    outputs = OutputFiles(folder, PRODUCTS, name=Path(MODEL).stem, force=True)
    outcome = clean_file(model, demo_job(), TextSetup(), outputs, note=note, progress=progress)
    drawn = before_and_after(model, outcome.files["checkpoint"], progress)
    page = report_page(outcome, Checkpoint.open(model), drawn=drawn)
    write_bytes(outcome.files["report"], page.encode("utf-8"), force=True)
    write_bytes(folder / PICTURES, sheet(drawn), force=True)
    return replace(outcome, files={**outcome.files, "pictures": folder / PICTURES}), drawn


def before_and_after(before: Path, after: Path, progress: Progress | None = None) -> list[Drawn]:
    """The same prompts and seeds drawn with both files."""
    rows = rows_of(before, [column.prompt for column in COLUMNS])
    noise = noise_for([column.seed for column in COLUMNS], SIZE // CELL)
    total = 2 * STEPS
    pictures = []
    for place, path in enumerate((before, after)):
        done = place * STEPS
        tick = None if progress is None else (lambda step, done=done: progress("draw", done + step, total))
        pictures.append([as_png(picture) for picture in draw(path, rows, noise, tick)])
    return [
        Drawn(column.group, column.prompt, column.erased, old, new)
        for column, old, new in zip(COLUMNS, *pictures, strict=True)
    ]


def rows_of(path: Path, prompts: Sequence[str]) -> Tensor:
    """All rows of the empty prompt and of each prompt, (1 + n, 77, 768)."""
    encoder = TextSetup().encoder(ModelSource.open(path)).encoder
    texts = ["", *prompts]
    try:
        return torch.stack(encoder.encode(texts, [encoder.context_length] * len(texts)))
    finally:
        encoder.close()


def draw(path: Path, rows: Tensor, noise: Tensor, tick: Callable[[int], None] | None = None) -> Tensor:
    """Pictures (n, 128, 128, 3) as bytes, by the weights of a file alone; `rows` begin with the empty prompt's.

    The file's U-Net has each channel twice. Without the copies it is the same function at a quarter of the cost.
    """
    file = Checkpoint.open(path)
    unet, autoencoder = UNet(NARROW), Autoencoder()
    for module, prefix in ((unet, UNET), (autoencoder, AUTOENCODER)):
        shapes = {key: tuple(value.shape) for key, value in module.state_dict().items()}
        module.load_state_dict({key: folded(file[prefix + key].float(), shape) for key, shape in shapes.items()})
        module.eval()
    latents = sample(unet, rows[1:], rows[0], noise, STEPS, GUIDANCE, tick)
    scale, shift = (file[f"{AUTOENCODER}vae_{name}"].float() for name in ("scale", "shift"))
    with torch.no_grad():
        colours = autoencoder.decode((latents / SD1_SCALE - shift) * scale).clamp(0, 1)
    return (colours.permute(0, 2, 3, 1) * 255).to(torch.uint8)  # SaveImage cuts off, too


def as_png(picture: Tensor) -> bytes:
    """A picture (H, W, 3) as a PNG file."""
    from PIL import Image

    return _png(Image.fromarray(picture.numpy()))


def _png(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format="PNG")
    return out.getvalue()


_TILE, _GAP, _SIDE, _HEAD = 156, 12, 96, 96
_INK, _SOFT, _PAPER, _GONE, _STAYS = "#1a1d24", "#5b6372", "#ffffff", "#c23b3b", "#1f8a5f"


def sheet(drawn: Sequence[Drawn]) -> bytes:
    """All pictures in two rows, before above after, under their prompts: a PNG file."""
    from PIL import Image, ImageDraw, ImageFont

    step = _TILE + _GAP
    groups = list(dict.fromkeys(one.group for one in drawn))
    places = [_SIDE + place * step + groups.index(one.group) * _GAP for place, one in enumerate(drawn)]
    image = Image.new("RGB", (places[-1] + step, _HEAD + 2 * step), _PAPER)
    pen = ImageDraw.Draw(image)
    large, small = ImageFont.load_default(22), ImageFont.load_default(17)
    for group in groups:
        own = [place for place, one in zip(places, drawn, strict=True) if one.group == group]
        colour = _GONE if next(one.erased for one in drawn if one.group == group) else _STAYS
        pen.text((own[0], 6), group, colour, large)
        pen.rectangle((own[0], 36, own[-1] + _TILE, 39), colour)
    for place, one in zip(places, drawn, strict=True):
        head, by, tail = one.prompt.partition(" by ")
        pen.text((place, 46), head, _INK, small)
        pen.text((place, 68), f"by {tail}" if by else "", _INK, small)
        for row, content in enumerate((one.before, one.after)):
            picture = Image.open(io.BytesIO(content)).resize((_TILE, _TILE), Image.Resampling.LANCZOS)
            image.paste(picture, (place, _HEAD + row * step))
    for row, word in enumerate(("before", "after")):
        pen.text((10, _HEAD + row * step + _TILE // 2 - 12), word, _INK, large)
    return _png(image)


def place_in_comfyui(folder: Path, progress: Progress | None = None) -> tuple[Path, bool]:
    """Puts the model where a ComfyUI looks for checkpoints; (where, whether it is new there).

    A different file of that name is somebody's and stays.
    """
    models = folder / "models" / "checkpoints"
    if not models.is_dir():
        raise FileError(f"{folder} has no folder models/checkpoints: give the folder in which ComfyUI is installed.")
    target = models / IN_COMFYUI
    if not target.exists():
        return write_whole(target, progress=progress), True
    if file_hash(target, progress) != WHOLE_SHA256:
        raise FileError(f"{target} is another file: move it away, and the demo's model can take its place.")
    return target, False
