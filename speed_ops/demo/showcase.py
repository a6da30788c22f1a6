"""What the demo erases and shows: its job, its prompts, and the images before and after."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw

from ..job import Job, host_settings
from ..progress import Progress
from ..report.chart import font_for
from ..report.html import Drawn
from ..text.concept_list import parse_concepts
from ..text.retain_set import builtin_retain, parse_retain, union
from .generate import STEPS, encode_prompts, generate_images
from .packed_model import known_names

PAINTER, ALIAS, SUBJECT = "Orla Venn", "the Copper Hand", "cat"
_UNKNOWN_PAINTERS = 60
"""Real painters that are kept as well, though the model does not know them."""


class Column(NamedTuple):
    """One prompt that is shown before and after."""

    group: str
    prompt: str
    seed: int
    erased: bool


COLUMNS = (
    Column(f"erased: {PAINTER}", f"a house by {PAINTER}", 3, True),
    Column(f"erased: {PAINTER}", f"a boat by {ALIAS}", 5, True),
    Column(f"erased: {SUBJECT}", f"a {SUBJECT} by Hedda Stroud", 1, True),
    Column(f"erased: {SUBJECT}", f"a {SUBJECT} by Soren Vale", 2, True),
    Column("unchanged", "a house by Dario Fenwick", 3, False),
    Column("unchanged", "a boat by Kaya Brandt", 5, False),
    Column("unchanged", "a fish by Soren Vale", 2, False),
    Column("unchanged", "a tree", 1, False),
)
"""The erased painter by name and by alias, the erased subject; then neighbors in palette and
texture, and unrelated ones.
"""


def demo_job() -> Job:
    """Erases a painter, by name and alias, and a subject; keeps everything else that the model
    knows.
    """
    concepts = parse_concepts(f"{PAINTER} | {ALIAS} -> art", "style")
    concepts += parse_concepts(f"{SUBJECT} -> object", "object")
    names = [name for group in known_names().values() for name in group]
    retained = parse_retain("\n".join(names), "the demo's other names")
    unknown = builtin_retain("artists").limit(_UNKNOWN_PAINTERS)
    settings = host_settings("auto", effort="fast")
    return Job.of(concepts, union([retained, unknown]), settings)


def before_and_after(before: Path, after: Path, progress: Progress | None = None) -> list[Drawn]:
    """The same prompts and seeds with both files.

    Args:
        before: The original model.
        after: The edited copy.
        progress: Called after each step.
    """
    rows = encode_prompts(before, [column.prompt for column in COLUMNS])
    seeds = [column.seed for column in COLUMNS]
    sides = []
    for start, path in ((0, before), (STEPS, after)):

        def on_step(step: int, start: int = start) -> None:
            if progress is not None:
                progress("draw", start + step, 2 * STEPS)

        images = generate_images(path, rows, seeds, on_step).numpy()
        sides.append([_png(Image.fromarray(image)) for image in images])
    return [
        Drawn(column.group, column.prompt, column.erased, old, new)
        for column, old, new in zip(COLUMNS, *sides, strict=True)
    ]


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, format="PNG")
    return out.getvalue()


_TILE, _GAP, _SIDE, _HEAD = 156, 12, 96, 96
_INK, _PAPER, _ERASED, _KEPT = "#1a1d24", "#ffffff", "#c23b3b", "#1f8a5f"


def sheet(images: Sequence[Drawn]) -> bytes:
    """All images in two rows, before above after, under their prompts: a PNG file."""
    step = _TILE + _GAP
    groups = list(dict.fromkeys(pair.group for pair in images))
    lefts = [
        _SIDE + index * step + groups.index(pair.group) * _GAP for index, pair in enumerate(images)
    ]
    image = Image.new("RGB", (lefts[-1] + step, _HEAD + 2 * step), _PAPER)
    pen = ImageDraw.Draw(image)
    large, small = font_for("", 20), font_for("", 15)
    for group in groups:
        members = [(x, pair) for x, pair in zip(lefts, images, strict=True) if pair.group == group]
        color = _ERASED if members[0][1].erased else _KEPT
        pen.text((members[0][0], 6), group, color, large)
        pen.rectangle((members[0][0], 36, members[-1][0] + _TILE, 39), color)
    for x, pair in zip(lefts, images, strict=True):
        head, by, tail = pair.prompt.partition(" by ")
        pen.text((x, 46), head, _INK, small)
        pen.text((x, 68), f"by {tail}" if by else "", _INK, small)
        for row, content in enumerate((pair.before, pair.after)):
            tile = Image.open(io.BytesIO(content)).resize((_TILE, _TILE), Image.Resampling.LANCZOS)
            image.paste(tile, (x, _HEAD + row * step))
    for row, word in enumerate(("before", "after")):
        pen.text((10, _HEAD + row * step + _TILE // 2 - 12), word, _INK, large)
    return _png(image)
