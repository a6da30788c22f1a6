"""SPEED Evaluate: what pictures before and after an erasure say, in numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
from comfy_api.latest import io

from ..speed_ops.errors import InputError
from ..speed_ops.evaluate.measures import (
    Figure,
    Rows,
    frame_fault,
    frechet,
    nearest,
    of_features,
    share,
)
from ..speed_ops.evaluate.page import figure_text, interval_text
from .host.sampling import picture_features, text_features
from .sockets import CATEGORY, shows_text, telling


class SpeedEvaluate(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedEvaluate",
            display_name="SPEED Evaluate",
            category=CATEGORY,
            description=(
                "Compares pictures of the same prompts and seeds before and after an erasure."
            ),
            is_output_node=True,
            inputs=[
                io.Image.Input("before", tooltip="Pictures of the original model."),
                io.Image.Input(
                    "after",
                    tooltip="The same prompts and seeds with the erased model, in the same order.",
                ),
                io.String.Input(
                    "prompts",
                    multiline=True,
                    default="",
                    tooltip="The prompt of all pictures, or one a line for each. Needs clip.",
                ),
                io.String.Input(
                    "labels",
                    multiline=True,
                    default="",
                    tooltip=(
                        "What the pictures may show, one a line: a painting by Van Gogh, a"
                        " painting. Needs clip."
                    ),
                ),
                io.ClipVision.Input(
                    "clip_vision", optional=True, tooltip="Measures how far pictures moved."
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip=(
                        "The text encoder that belongs to clip_vision, from a file of its own with"
                        " its projection."
                    ),
                ),
            ],
            outputs=[
                io.String.Output(display_name="text", tooltip="The figures in plain words."),
                io.String.Output(
                    display_name="json", tooltip="Every figure and feature, for programs."
                ),
            ],
            hidden=shows_text(),
        )

    @classmethod
    def execute(
        cls, before, after, prompts="", labels="", clip_vision=None, clip=None
    ) -> io.NodeOutput:
        found = compare(before, after, _lines(prompts), _lines(labels), clip_vision, clip)
        text, facts = describe(found), json.dumps(found)
        return io.NodeOutput(text, facts, ui=telling(cls, text) | {"json": (facts,)})


def compare(
    before: Any, after: Any, prompts: list[str], labels: list[str], clip_vision: Any, clip: Any
) -> dict:
    """Figures, shares of the labels, faulty frames and the features themselves, as plain values."""
    if len(before) != len(after):
        raise InputError(
            f"There are {len(before)} pictures before and {len(after)} after: give the same seeds"
            " of both."
        )
    if len(prompts) not in (0, 1, len(before)):
        raise InputError(
            f"There are {len(prompts)} prompts for {len(before)} pictures: give one, or one a"
            " picture."
        )
    frames = [[_frame(one) for one in side] for side in (before, after)]
    fine = [
        number for number, pair in enumerate(zip(*frames, strict=True)) if pair == ("fine", "fine")
    ]
    rows: dict[str, Rows] = {}
    if clip_vision is not None:
        rows |= {
            "before": _rows(picture_features(clip_vision, before)),
            "after": _rows(picture_features(clip_vision, after)),
        }
    if clip is not None:
        given = {"prompts": prompts, "labels": labels}
        rows |= {name: _rows(text_features(clip, texts)) for name, texts in given.items() if texts}
    figures, seen = _figures(rows, fine, len(before), labels)
    return {
        "pictures": len(before),
        "frames": {"before": frames[0], "after": frames[1]},
        "figures": {word: asdict(figure) for word, figure in figures.items() if figure is not None},
        "labels": {label: [asdict(one) for one in pair] for label, pair in seen.items()},
        "features": {name: value.tolist() for name, value in rows.items()},
    }


def _figures(
    rows: dict[str, Rows], fine: list[int], count: int, labels: list[str]
) -> tuple[dict[str, Figure | None], dict[str, tuple[Figure, Figure]]]:
    if "before" not in rows or not fine:
        return {}, {}
    before, after = rows["before"][fine], rows["after"][fine]
    for name in ("prompts", "labels"):
        if name in rows and rows[name].shape[1] != before.shape[1]:
            raise InputError(
                "clip and clip_vision do not belong together: their features differ in width."
            )
    prompts = (
        np.broadcast_to(rows["prompts"], (count, before.shape[1]))[fine]
        if "prompts" in rows
        else None
    )
    figures = of_features(before, after, prompts) | {"Frechet (CLIP)": frechet(before, after)}
    if "labels" not in rows or len(labels) < 2:
        return figures, {}
    was, now = nearest(before, rows["labels"]), nearest(after, rows["labels"])
    pairs = (
        (share(int((side == place).sum()), len(fine)) for side in (was, now))
        for place in range(len(labels))
    )
    return figures, {
        label: (one, other)
        for label, (one, other) in zip(labels, pairs, strict=True)
        if one and other
    }


def describe(found: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{found['pictures']} pairs of pictures."]
    for when, frames in found["frames"].items():
        faulty = [frame for frame in frames if frame != "fine"]
        if faulty:
            lines.append(
                f"{len(faulty)} faulty frames {when} ({', '.join(sorted(set(faulty)))}), left out"
                " below."
            )
    for word, figure in found["figures"].items():
        interval = interval_text(figure, word)
        lines.append(f"{word}: {figure_text(figure, word)}{f' ({interval})' if interval else ''}")
    for label, (one, other) in found["labels"].items():
        lines.append(
            f"{label}: {one['value']:.0%} of the pictures before, {other['value']:.0%} after"
        )
    if not found["figures"]:
        lines.append("Connect clip_vision to measure how far the pictures moved.")
    return "\n".join(lines)


def _frame(image: Any) -> str:
    values = image.float()
    finite = bool(values.isfinite().all())
    return frame_fault(
        (values.nan_to_num(0).clamp(0, 1) * 255).round().byte().cpu().numpy(), finite
    )


def _rows(features: Any) -> Rows:
    return np.asarray(features.cpu().numpy(), np.float64)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
