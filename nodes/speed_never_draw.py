"""Never Draw: a negative prompt for models that take none. MODEL and CLIP in, MODEL out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from comfy_api.latest import io

from ..speed_ops.text.concept_list import KIND_MARK, ConceptList, parse_concepts
from ..speed_ops.text.kinds import BUILTIN_KINDS, KINDS
from ..speed_ops.text.names import same_name_key
from ..speed_ops.text.retain_set import builtin_retain
from .sockets import CATEGORY, essentials, search_aliases, strength_input, validation
from .speed_settings import preset_settings

UNKNOWN_KIND = "object"
"""Type of a name that is on no built-in list."""
_BETWEEN_NAMES = re.compile(r"[,\uff0c\u3001\r\n]+")  # also Chinese and Japanese commas


class SpeedNeverDraw(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedNeverDraw",
            display_name="Never Draw",
            category=CATEGORY,
            **search_aliases("negative prompt", "negative", "Flux", "CFG 1", "NAG", "block"),
            **essentials("Image Tools"),
            description=(
                "A negative prompt that works at CFG 1 (Flux, Klein, Z-Image Turbo) and costs"
                " nothing per step. The model ignores these words wherever a prompt asks for them."
            ),
            inputs=[
                io.Model.Input("model", tooltip="The model, after LoRA loaders."),
                io.Clip.Input("clip", tooltip="The CLIP that encodes your prompts."),
                io.String.Input(
                    "text",
                    display_name="never draw",
                    multiline=True,
                    default="",
                    placeholder="cat, Van Gogh, blood",
                    tooltip=(
                        "Names and words, separated by commas. To choose a replacement, write"
                        " 'cat -> dog'. Leave empty to change nothing."
                    ),
                ),
                strength_input(
                    "1 applies the full edit, 0 none. If a word still works, raise the strength in"
                    " steps of 0.1. Changing it is quick.",
                    low=0.0,
                    high=1.5,
                    slider=True,
                ),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model",
                    tooltip="A copy that ignores these words. The input model stays unchanged.",
                )
            ],
            is_output_node=True,  # so that Run shows the result, also one that ComfyUI has cached
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, text: str | None = None) -> bool | str:
        return validation(lambda: concepts_in(text or ""))

    @classmethod
    def execute(cls, model: Any, clip: Any, text: str, strength: float) -> io.NodeOutput:
        concepts = concepts_in(text)
        if not len(concepts) or strength == 0:
            return io.NodeOutput(model)
        from ..speed_ops.job import Job
        from .erase_output import erase_and_report

        job = Job.of(concepts, None, preset_settings("auto", 0, {"effort": "fast"}))
        patched, _, _, ui = erase_and_report(cls, model, clip, job, strength)
        return io.NodeOutput(patched, ui=ui)


def concepts_in(text: str) -> ConceptList:
    """The concepts of a text: commas and line ends separate them, and each is of the type whose
    built-in list has its name.
    """
    return parse_concepts("\n".join(_lines(text)), UNKNOWN_KIND)


def _lines(text: str) -> Iterator[str]:
    for piece in filter(None, map(str.strip, _BETWEEN_NAMES.split(text))):
        name = re.split(r"->|\u2192|\|", piece)[0]
        yield piece if KIND_MARK in piece else f"{piece} {KIND_MARK} {_kind_of(name)}"


def _kind_of(name: str) -> str:
    """The type whose built-in list has this name."""
    return _kinds_by_name().get(same_name_key(name), UNKNOWN_KIND)


@cache
def _kinds_by_name() -> dict[str, str]:
    kinds: dict[str, str] = {}
    for label, kind in BUILTIN_KINDS.items():
        if kind in KINDS:
            for name in builtin_retain(label).names:
                kinds.setdefault(same_name_key(name), kind)
    return kinds
