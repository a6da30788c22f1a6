"""The demo: the model in the box loses a painter and a subject, and draws the same prompts before
and after.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoints.erase_file import clean_file
from ..checkpoints.output_files import PRODUCTS, OutputFiles
from ..checkpoints.save import CleanedFile
from ..checkpoints.source import ModelSource, TextSetup
from ..encoders.encoder import TextEncoder
from ..engine.settings import EraseSettings
from ..errors import FileError, InputError
from ..files.atomic import write_bytes
from ..files.checkpoint import Checkpoint, file_hash
from ..files.lora import read_lora
from ..job import HELD_OUT_SHARE, Job
from ..progress import Progress
from ..report.html import Drawn, report_page
from ..text.concept_list import parse_concepts
from ..text.retain_set import builtin_retain, parse_retain, union
from .autoencoder import CELL, SD1_SCALE, Autoencoder
from .packed_model import (
    AUTOENCODER,
    NARROW,
    UNET,
    WHOLE_SHA256,
    folded,
    known_names,
    spread,
    unet_shapes,
    write_whole,
)
from .sampler import noise_for, sample
from .unet import UNet

MODEL = "demo-model.safetensors"
PICTURES = "before-after.png"
IN_COMFYUI = "speed_demo.safetensors"
SIZE, STEPS, GUIDANCE = 128, 12, 3.0
"""Pixels of a picture's side, steps and guidance that the model draws well with."""
PAINTER, ALIAS, SUBJECT = "Orla Venn", "the Copper Hand", "cat"
_STRANGERS = 60
"""Real painters, of whom the model knows nothing, that are kept as well."""
_COPY_ERROR = 2e-3
"""How far two copies of a channel may be apart, in the largest weight of their layer: half
precision, and no more.
"""


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
"""The erased painter by name and by alias, the erased subject; then neighbours in palette and
texture, and the rest.
"""


def demo_job() -> Job:
    """A painter with another name and a subject; kept is everything else that the model knows."""
    concepts = parse_concepts(f"{PAINTER} | {ALIAS} -> art", "style") + parse_concepts(
        f"{SUBJECT} -> object", "object"
    )
    names = known_names()
    kept = parse_retain(
        "\n".join(name for part in names.values() for name in part), "the demo's other names"
    )
    strangers = builtin_retain("artists").limit(_STRANGERS)
    settings = EraseSettings.preset("auto", held_out=HELD_OUT_SHARE, effort="quick")
    return Job.of(concepts, union([kept, strangers]), settings)


def run_demo(
    folder: Path, *, note: Callable[[str], None], progress: Progress | None = None
) -> tuple[CleanedFile, list[Drawn]]:
    """Everything in the folder: the model, the same without the two concepts, a report and the
    pictures.
    """
    model = write_whole(folder / MODEL, force=True, progress=progress)
    outputs = OutputFiles(folder, PRODUCTS, name=Path(MODEL).stem, force=True)
    outcome = clean_file(model, demo_job(), TextSetup(), outputs, note=note, progress=progress)
    drawn = before_and_after(model, outcome.files["checkpoint"], progress)
    names = {product: path.name for product, path in outcome.files.items()}
    page = report_page(outcome.erasure, model.name, Checkpoint.open(model).size, names, drawn)
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
        tick = (
            None
            if progress is None
            else (lambda step, done=done: progress("draw", done + step, total))
        )
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


def draw(
    path: Path, rows: Tensor, noise: Tensor, tick: Callable[[int], None] | None = None
) -> Tensor:
    """Pictures (n, 128, 128, 3) as bytes, by the weights of a file alone; `rows` begin with the
    empty prompt's.
    """
    return as_bytes(Drawing.load(Checkpoint.open(path)).colours(rows, noise, STEPS, GUIDANCE, tick))


def as_bytes(colours: Tensor) -> Tensor:
    """From 0 to 1 as files hold them, cut off as by ComfyUI's SaveImage."""
    return (colours * 255).to(torch.uint8)


@dataclass(frozen=True)
class Drawing:
    """What makes pictures of rows of text, in a model of the box's layout. Make one with `load`."""

    unet: UNet
    autoencoder: Autoencoder
    scale: Tensor
    shift: Tensor

    @staticmethod
    def fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether a file is of that layout."""
        unet = unet_shapes()
        return f"{AUTOENCODER}vae_scale" in shapes and all(
            shapes.get(UNET + key) == unet[key] for key in unet
        )

    @classmethod
    def load(cls, file: Checkpoint, changes: Mapping[str, Tensor] | None = None) -> Drawing:
        """From a file; `changes` are added to the weights of their keys."""
        changes = changes or {}
        full = {key: file[UNET + key].float() for key in unet_shapes()}
        full |= {
            key.removeprefix(UNET): file[key].float() + change.float()
            for key, change in changes.items()
        }
        unet, autoencoder = _unet_of(full), Autoencoder()
        autoencoder.load_state_dict(
            {key: file[AUTOENCODER + key].float() for key in autoencoder.state_dict()}
        )
        scale, shift = (file[f"{AUTOENCODER}vae_{name}"].float() for name in ("scale", "shift"))
        return cls(unet.eval(), autoencoder.eval(), scale, shift)

    def colours(
        self,
        rows: Tensor,
        noise: Tensor,
        steps: int,
        guidance: float,
        tick: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Pictures (n, height, width, 3) from 0 to 1; `rows` begin with those to be guided away
        from.
        """
        latents = sample(self.unet, rows[1:], rows[0], noise, steps, guidance, tick)
        with torch.no_grad():
            found = self.autoencoder.decode((latents / SD1_SCALE - self.shift) * self.scale).clamp(
                0, 1
            )
        return found.permute(0, 2, 3, 1)


@dataclass
class Artist:
    """A model of the box's layout that draws one picture at a time, so that none depends on what
    else is drawn.
    """

    drawing: Drawing
    encoder: TextEncoder
    _rows: dict[str, Tensor] = field(default_factory=dict)
    """Of the last prompt and negative prompt: seeds share them."""

    @classmethod
    def open(cls, path: Path, lora: Path | None = None, strength: float = 1.0) -> Artist:
        """The model of a file, with a LoRA on it if there is one."""
        source, changes = ModelSource.open(path), dict[str, Tensor]()
        if lora is not None:
            layers = source.every_layer("KV")
            found, keys = (
                read_lora(lora, layers),
                {layer.canonical: layer.file_key for layer in layers},
            )
            if found.unmatched:
                raise InputError(
                    f"{lora.name} changes more than layers that read text: draw with it in ComfyUI."
                )
            changes = {
                keys[key]: strength * (edit.up @ edit.down) for key, edit in found.edits.items()
            }
        return cls(Drawing.load(source.checkpoint, changes), TextSetup().encoder(source).encoder)

    def picture(
        self,
        prompt: str,
        negative: str,
        seed: int,
        size: tuple[int, int],
        steps: int,
        guidance: float,
    ) -> Tensor:
        """Colours (height, width, 3) from 0 to 1."""
        known, length = self._rows, self.encoder.context_length
        texts = (negative, prompt)
        self._rows = {
            text: known[text] if text in known else self.encoder.encode([text], [length])[0]
            for text in texts
        }
        noise = noise_for([seed], *(side // CELL for side in size))
        return self.drawing.colours(
            torch.stack([self._rows[text] for text in texts]), noise, steps, guidance
        )[0]

    def _encoded(self, text: str) -> Tensor:
        return self.encoder.encode([text], [self.encoder.context_length])[0]

    def close(self) -> None:
        """Frees what the text encoder holds."""
        self.encoder.close()


def _unet_of(full: Mapping[str, Tensor]) -> UNet:
    """The box's U-Net has each channel twice. Without the copies it is the same function at a
    quarter of the cost; where somebody's training made them differ, all are needed."""
    narrow = UNet(NARROW)
    shapes = {key: tuple(value.shape) for key, value in narrow.state_dict().items()}
    small = {key: folded(value, shapes[key]) for key, value in full.items()}
    twice = all(
        bool(
            (spread(small[key], tuple(value.shape)) - value).abs().max()
            <= _COPY_ERROR * value.abs().max()
        )
        for key, value in full.items()
    )
    unet = narrow if twice else UNet()
    unet.load_state_dict(small if twice else dict(full))
    return unet


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
    places = [
        _SIDE + place * step + groups.index(one.group) * _GAP for place, one in enumerate(drawn)
    ]
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
            picture = Image.open(io.BytesIO(content)).resize(
                (_TILE, _TILE), Image.Resampling.LANCZOS
            )
            image.paste(picture, (place, _HEAD + row * step))
    for row, word in enumerate(("before", "after")):
        pen.text((10, _HEAD + row * step + _TILE // 2 - 12), word, _INK, large)
    return _png(image)


def place_in_comfyui(folder: Path, progress: Progress | None = None) -> tuple[Path, bool]:
    """Puts the model where a ComfyUI looks for checkpoints; (where, whether it is new there)."""
    models = folder / "models" / "checkpoints"
    if not models.is_dir():
        raise FileError(
            f"{folder} has no folder models/checkpoints: give the folder in which ComfyUI is"
            " installed."
        )
    return place_among(models, progress)


def place_among(models: Path, progress: Progress | None = None) -> tuple[Path, bool]:
    """Puts the model into a folder; (where, whether it is new there).

    A different file of that name is somebody's and stays.
    """
    target = models / IN_COMFYUI
    if not target.exists():
        return write_whole(target, progress=progress), True
    if file_hash(target, progress) != WHOLE_SHA256:
        raise FileError(
            f"{target} is another file: move it away, and the demo's model can take its place."
        )
    return target, False
