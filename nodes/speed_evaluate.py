"""SPEED Evaluate: what pictures before and after an erasure say, in numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..speed_ops.errors import InputError
from .host.sampling import picture_features, text_features
from .sockets import CATEGORY, ui_text

if TYPE_CHECKING:
    from ..speed_ops.evaluate.measures import BatchComparison


class SpeedEvaluate(io.ComfyNode):
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
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        before: Any,
        after: Any,
        prompts: str = "",
        labels: str = "",
        clip_vision: Any = None,
        clip: Any = None,
    ) -> io.NodeOutput:
        comparison = _compare(before, after, _lines(prompts), _lines(labels), clip_vision, clip)
        text, facts = describe(comparison), json.dumps(comparison.to_json())
        return io.NodeOutput(text, facts, ui=ui_text(cls, text) | {"json": (facts,)})


def _compare(
    before: Any, after: Any, prompts: list[str], labels: list[str], clip_vision: Any, clip: Any
) -> BatchComparison:
    """Compares pair by pair; without `clip_vision` only faulty frames are counted."""
    # Evaluation is not loaded when ComfyUI starts.
    from ..speed_ops.evaluate.measures import compare_batches, frame_state

    if len(before) != len(after):
        raise InputError(
            f"There are {len(before)} pictures before and {len(after)} after: give the same seeds"
            " of both.",
            before=len(before),
            after=len(after),
        )
    if len(prompts) not in (0, 1, len(before)):
        raise InputError(
            f"There are {len(prompts)} prompts for {len(before)} pictures: give one, or one a"
            " picture.",
            prompts=len(prompts),
            images=len(before),
        )
    features = {}
    if clip_vision is not None:
        features["before"] = picture_features(clip_vision, before).cpu().numpy()
        features["after"] = picture_features(clip_vision, after).cpu().numpy()
    if clip is not None:
        for name, texts in (("prompts", prompts), ("labels", labels)):
            if texts:
                features[name] = text_features(clip, texts).cpu().numpy()
    widths = {rows.shape[1] for rows in features.values()}
    if clip_vision is not None and len(widths) > 1:
        raise InputError(
            "clip and clip_vision do not belong together: their features differ in width.",
            widths=sorted(widths),
        )
    frames = [[frame_state(*_pixels(image)) for image in batch] for batch in (before, after)]
    return compare_batches((frames[0], frames[1]), features, labels)


def describe(comparison: BatchComparison) -> str:
    """The comparison in plain words."""
    from ..speed_ops.evaluate.measures import MEASURE_TITLES

    lines = [f"{comparison.images} pairs of pictures."]
    for when, frames in (("before", comparison.frames_before), ("after", comparison.frames_after)):
        faults = [frame for frame in frames if frame != "fine"]
        if faults:
            names = ", ".join(sorted(set(faults)))
            lines.append(f"{len(faults)} faulty frames {when} ({names}), left out below.")
    for name, measure in comparison.measures.items():
        interval = measure.interval_text(name)
        suffix = f" ({interval})" if interval else ""
        lines.append(f"{MEASURE_TITLES[name]}: {measure.text(name)}{suffix}")
    for label, (before, after) in comparison.labels.items():
        lines.append(f"{label}: {before.value:.0%} of the pictures before, {after.value:.0%} after")
    if not comparison.measures:
        lines.append("Connect clip_vision to measure how far the pictures moved.")
    return "\n".join(lines)


def _pixels(image: Any) -> tuple[Any, bool]:
    """The image as bytes, and whether all its values are finite."""
    values = image.float()
    pixels = (values.nan_to_num(0).clamp(0, 1) * 255).round().byte().cpu().numpy()
    return pixels, bool(values.isfinite().all())


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
