"""SPEED Leak Probe: which ways to ask for an erased thing still draw it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comfy_api.latest import io

from ..speed_ops.engine.settings import EraseSettings
from ..speed_ops.erasure import Erasure
from ..speed_ops.errors import InputError
from ..speed_ops.leak_probe import TEMPLATES, LeakReport, probe_leaks
from ..speed_ops.text.concept_list import Concept
from .erasing import wire
from .host.progress import outside_inference_mode
from .sockets import CATEGORY, ConceptsSocket, ErasureSocket, found_by, shows_text, telling


class SpeedLeakProbe(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedLeakProbe",
            display_name="SPEED Leak Probe",
            category=CATEGORY,
            **found_by("red team", "jailbreak"),
            description=(
                "Tries names, aliases, typos and descriptions in prompts that were not used to make"
                " the edit, and lists those that still draw what was erased."
            ),
            is_output_node=True,
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip=(
                        "The model BEFORE the erasure: the same one that goes into SPEED Erase."
                    ),
                ),
                io.Clip.Input("clip", tooltip="The CLIP from the same checkpoint."),
                ErasureSocket.Input("erasure", tooltip="From SPEED Erase or SPEED Apply Recipe."),
                io.Int.Input(
                    "templates",
                    default=TEMPLATES,
                    min=0,
                    max=5,
                    tooltip=(
                        "How many prompts each phrase is tried in, besides the phrase alone. More"
                        " are slower."
                    ),
                ),
                io.String.Input(
                    "description",
                    default="",
                    tooltip=(
                        "Your own description of the concept, without its name. If empty, standard"
                        " descriptions for its kind are tried."
                    ),
                ),
                ConceptsSocket.Input(
                    "concepts",
                    optional=True,
                    tooltip="What to probe for. Without it, what the erasure erased.",
                ),
            ],
            outputs=[
                io.String.Output(
                    display_name="text", tooltip="Every phrase that was tried, worst first."
                ),
                ConceptsSocket.Output(
                    display_name="leaking",
                    tooltip="The leaking phrases alone. Erase them from the ERASED model.",
                ),
                ConceptsSocket.Output(
                    display_name="closed",
                    tooltip=(
                        "The erased concepts with leaking phrases as aliases. Erase them from the"
                        " ORIGINAL model."
                    ),
                ),
            ],
            hidden=shows_text(),
        )

    @classmethod
    def execute(
        cls, model, clip, erasure, templates, description="", concepts=None
    ) -> io.NodeOutput:
        asked = tuple(concepts) if concepts is not None else erasure.concepts
        found = leaks_of(model, clip, erasure, asked, templates, description, cls.hidden)
        told = telling(cls, found.text(), found.text().splitlines()[0]) | {"speed": (shown(found),)}
        return io.NodeOutput(found.text(), found.phrases(), found.closed(), ui=told)


SHOWN = 60
"""Phrases that the screen gets; the text output has them all."""


def shown(found: LeakReport) -> dict[str, Any]:
    """What the screen draws; `alias`: that the phrase may stand in the list beside its concept."""
    added = {(one.target, alias) for one in found.closed() for alias in one.aliases}
    tried = [
        {
            "concept": one.concept.target,
            "phrase": one.phrase,
            "prompt": one.prompt,
            "after": round(one.after, 4),
            "leaks": one.leaks,
            "alias": (
                (one.concept.target, one.phrase) in added and one.phrase not in one.concept.aliases
            ),
        }
        for one in found.tried[:SHOWN]
    ]
    return {"version": 1, "total": len(found.tried), "leaking": len(found.leaking), "tried": tried}


@outside_inference_mode
def leaks_of(
    model: Any,
    clip: Any,
    erasure: Erasure,
    concepts: Sequence[Concept],
    templates: int,
    description: str,
    hidden: Any = None,
) -> LeakReport:
    """Which phrases still draw what was erased; `model` is the one that the erasure was made
    from.
    """
    if not concepts:
        raise InputError(
            "This erasure came from a file without names: wire the concepts to probe for."
        )
    with wire(model, clip, EraseSettings(layers="KV"), concepts, hidden) as wired:
        erasure.check_fits(wired.model.architecture, wired.model.layers)
        return probe_leaks(
            wired.reader,
            wired.model.weights,
            erasure.edits,
            concepts,
            strength=erasure.strength,
            templates=templates,
            description=description,
            progress=wired.progress,
        )
