"""Find Leaks: phrases that still bring back what was erased."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..speed_ops.errors import InputError
from ..speed_ops.text.concept_list import ConceptList
from .host.progress import comfy_workplace, outside_inference_mode
from .sockets import CATEGORY, ConceptsSocket, ErasureSocket, search_aliases, ui_text

if TYPE_CHECKING:
    from ..speed_ops.erasure import Erasure
    from ..speed_ops.leak_probe import LeakReport


class SpeedLeakProbe(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedLeakProbe",
            display_name="Find Leaks",
            category=CATEGORY,
            **search_aliases("red team", "jailbreak"),
            description=(
                "Tries names, aliases, typos and descriptions in new prompts, and lists those that"
                " still bring back what you erased."
            ),
            is_output_node=True,
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="The model that goes into SPEED Erase, or the one that comes out.",
                ),
                io.Clip.Input("clip", tooltip="The CLIP from the same checkpoint."),
                ErasureSocket.Input("erasure", tooltip="From SPEED Erase or Rerun Recipe."),
                io.Int.Input(
                    "templates",
                    display_name="prompts per phrase",
                    default=2,
                    min=0,
                    max=5,
                    tooltip=(
                        "How many prompts to try each phrase in, in addition to the phrase alone."
                        " More prompts take longer."
                    ),
                ),
                io.String.Input(
                    "description",
                    default="",
                    tooltip=(
                        "Your own description of the concept, without its name. Leave empty to try"
                        " standard descriptions for the type."
                    ),
                ),
                ConceptsSocket.Input(
                    "concepts",
                    optional=True,
                    tooltip="Concepts to test. Without it, Find Leaks tests what you erased.",
                ),
                io.Boolean.Input(
                    "ask_encoder",
                    display_name="ask the text encoder",
                    default=True,
                    optional=True,
                    tooltip=(
                        "If the text encoder can write (Qwen, Gemma), it writes more phrases to"
                        " test: descriptions without the name, similar names and other languages."
                        " You choose which become aliases."
                    ),
                ),
            ],
            outputs=[
                io.String.Output(display_name="text", tooltip="Every phrase, worst first."),
                ConceptsSocket.Output(
                    display_name="leaking",
                    tooltip="Only the leaking phrases, to erase from the ERASED model.",
                ),
                ConceptsSocket.Output(
                    display_name="concepts + leaks",
                    tooltip=(
                        "Your concepts with the leaking phrases as aliases, to erase from the"
                        " ORIGINAL model."
                    ),
                ),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    @outside_inference_mode
    def execute(
        cls,
        model: Any,
        clip: Any,
        erasure: Erasure,
        templates: int,
        description: str = "",
        concepts: ConceptList | None = None,
        ask_encoder: bool = True,
    ) -> io.NodeOutput:
        from ..speed_ops.leak_probe import probe_leaks
        from .host.patching import check_fits
        from .host.wiring import wire
        from .host.writing import written_phrases
        from .previous_erasures import before_erasure

        targets = erasure.concepts if concepts is None else tuple(concepts)
        if not targets:
            raise InputError(
                "This erasure came from a file without names. Connect the concepts to test."
            )
        model = before_erasure(model, erasure)  # SPEED Erase's own output is as good
        workplace = comfy_workplace()
        with wire(model, clip, "KV", targets, cls.hidden, workplace) as wired:
            editable, reader, progress = wired
            check_fits(erasure, editable)
            written, notes = written_phrases(clip, targets, progress) if ask_encoder else ({}, [])
            report = probe_leaks(
                reader,
                editable.weights,
                erasure.edits,
                targets,
                strength=erasure.strength,
                templates=templates,
                description=description,
                written=written,
                progress=progress,
                workplace=workplace,
            )
        text = "\n".join([report.text(), *notes, *workplace.notes, *reader.encoder.notes])
        ui = ui_text(cls, text, text.splitlines()[0]) | {"speed": (shown_facts(report),)}
        return io.NodeOutput(text, report.phrases(), report.closed(), ui=ui)


MAX_PHRASES_SHOWN = 60
"""Phrases that the UI gets; the text output has them all."""


def shown_facts(report: LeakReport) -> dict[str, Any]:
    """What the UI shows. `alias` marks a phrase that can be added to its concept's aliases. Where
    the name itself leaks the edit is too weak, and aliases do not help.
    """
    weak = {leak.concept for leak in report.leaking if leak.phrase == leak.concept.target}
    aliases = {(concept.target, alias) for concept in report.closed() for alias in concept.aliases}
    tried = [
        {
            "concept": leak.concept.target,
            "phrase": leak.phrase,
            "prompt": leak.prompt,
            "after": round(leak.after, 4),
            "leaks": leak.leaks,
            "alias": (leak.concept.target, leak.phrase) in aliases
            and leak.phrase not in leak.concept.aliases
            and leak.concept not in weak,
            "written": leak.rung if leak.written else "",
        }
        for leak in report.tried[:MAX_PHRASES_SHOWN]
    ]
    return {
        "version": 1,
        "total": len(report.tried),
        "leaking": len(report.leaking),
        "tried": tried,
    }
