"""Evaluate Images: images before and after an erasure, compared in numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..speed_ops.errors import InputError
from .host.sampling import image_features, text_features
from .sockets import CATEGORY, search_aliases, ui_text

if TYPE_CHECKING:
    from ..speed_ops.evaluate.measures import BatchComparison


class SpeedEvaluate(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedEvaluate",
            display_name="Evaluate Images",
            category=CATEGORY,
            **search_aliases("score images", "clip score"),
            description=(
                "Compares images of the same prompts and seeds before and after an erasure."
            ),
            is_output_node=True,
            inputs=[
                io.Image.Input("before", tooltip="Images of the original model."),
                io.Image.Input(
                    "after",
                    tooltip="The same prompts and seeds with the erased model, in the same order.",
                ),
                io.String.Input(
                    "prompts",
                    multiline=True,
                    default="",
                    tooltip="One prompt for all images, or one line per image. Needs clip.",
                ),
                io.String.Input(
                    "labels",
                    multiline=True,
                    default="",
                    tooltip=(
                        "Labels to look for, one per line, such as 'a painting by Van Gogh' and 'a"
                        " painting'. Needs clip."
                    ),
                ),
                io.ClipVision.Input(
                    "clip_vision", optional=True, tooltip="Measures how much images changed."
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip=(
                        "The text encoder that matches clip_vision, from a separate file such as"
                        " clip_l.safetensors."
                    ),
                ),
            ],
            outputs=[
                io.String.Output(display_name="text", tooltip="The results in plain words."),
                io.String.Output(
                    display_name="json", tooltip="All results and features, for programs."
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
    """Compares pair by pair; without `clip_vision` it only counts broken images."""
    # Evaluation is not loaded when ComfyUI starts.
    from ..speed_ops.evaluate.measures import compare_batches, frame_state

    if len(before) != len(after):
        raise InputError(
            f"There are {len(before)} images before and {len(after)} after. Generate the same"
            " prompts and seeds with both models.",
            before=len(before),
            after=len(after),
        )
    if len(prompts) not in (0, 1, len(before)):
        raise InputError(
            f"There are {len(prompts)} prompts for {len(before)} images. Write one prompt, or one"
            " per image.",
            prompts=len(prompts),
            images=len(before),
        )
    features = {}
    if clip_vision is not None:
        features["before"] = image_features(clip_vision, before).cpu().numpy()
        features["after"] = image_features(clip_vision, after).cpu().numpy()
    if clip is not None:
        for name, texts in (("prompts", prompts), ("labels", labels)):
            if texts:
                features[name] = text_features(clip, texts).cpu().numpy()
    widths = {rows.shape[1] for rows in features.values()}
    if clip_vision is not None and len(widths) > 1:
        raise InputError(
            "clip and clip_vision are of different CLIP models. Load both from the same one.",
            widths=sorted(widths),
        )
    frames = [[frame_state(*_pixels(image)) for image in batch] for batch in (before, after)]
    return compare_batches((frames[0], frames[1]), features, labels)


def describe(comparison: BatchComparison) -> str:
    """The comparison in plain words."""
    from ..speed_ops.evaluate.measures import MEASURE_TITLES

    lines = [f"{comparison.images} pairs of images"]
    for when, frames in (("before", comparison.frames_before), ("after", comparison.frames_after)):
        faults = [frame for frame in frames if frame != "fine"]
        if faults:
            names = ", ".join(sorted(set(faults)))
            lines.append(f"{len(faults)} broken images {when} ({names}), left out below")
    for name, measure in comparison.measures.items():
        interval = measure.interval_text(name)
        suffix = f" ({interval})" if interval else ""
        lines.append(f"{MEASURE_TITLES[name]}: {measure.text(name)}{suffix}")
    for label, (before, after) in comparison.labels.items():
        lines.append(f"{label}: {before.value:.0%} of images before, {after.value:.0%} after")
    if not comparison.measures:
        lines.append("Connect clip_vision to measure how much the images changed.")
    return "\n".join(lines)


def _pixels(image: Any) -> tuple[Any, bool]:
    """The image as bytes, and whether all its values are finite."""
    values = image.float()
    pixels = (values.nan_to_num(0).clamp(0, 1) * 255).round().byte().cpu().numpy()
    return pixels, bool(values.isfinite().all())


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
