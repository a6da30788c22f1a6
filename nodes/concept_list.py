"""Concept List: what to erase, one concept per line."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..speed_ops.concepts.concept_list import ConceptList, parse_concepts, read_concepts
from ..speed_ops.concepts.kinds import KINDS
from ..speed_ops.errors import InputError, SpeedError
from .host.paths import NONE, input_file, list_names, state_of
from .sockets import CATEGORY, Concepts

_ABSENT: Any = object()


class ConceptListNode(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ConceptList",
            display_name="Concept List",
            category=CATEGORY,
            description="Names to erase, one per line: 'name', 'name -> anchor', 'name | alias -> anchor'.",
            inputs=[
                io.String.Input(
                    "text",
                    multiline=True,
                    default="",
                    placeholder="Van Gogh -> art\nSnoopy | the Peanuts beagle -> dog\n# a comment",
                    tooltip="One concept per line. Without '->', the kind decides what the name becomes. With '->' and "
                    "nothing after it, the name is treated as if it were not in the prompt. Commas and parentheses are "
                    "part of a name.",
                ),
                io.Combo.Input(
                    "kind",
                    options=list(KINDS),
                    default="style",
                    tooltip="What the names are. This sets the default anchor, the prompts they are tried in and the "
                    "built-in names to keep.",
                ),
                io.Combo.Input(
                    "file",
                    options=list_names(".txt", ".csv", ".tsv"),
                    default=NONE,
                    tooltip="A list in ComfyUI's input folder, added to the text: .txt as above, .csv with a column "
                    "'target' and optionally 'anchor', 'aliases' and 'kind'.",
                ),
                Concepts.Input("concepts", optional=True, tooltip="Another list; this one is appended to it."),
            ],
            outputs=[
                Concepts.Output(display_name="concepts", tooltip="For SPEED Erase and SPEED Forecast."),
                io.String.Output(display_name="text", tooltip="The list as it was understood, one concept per line."),
            ],
        )

    @classmethod
    def validate_inputs(cls, text=None, kind="style", file=NONE, concepts=_ABSENT) -> bool | str:
        try:
            found = read_list(text or "", kind or "style", file)
        except SpeedError as error:
            return str(error)
        if text is None or concepts is not _ABSENT or len(found):
            return True
        return "There is nothing to erase: write one name per line, or choose a list file."

    @classmethod
    def fingerprint_inputs(cls, text=None, kind=None, file=NONE, concepts=None) -> str:
        return f"{text}\0{kind}\0{file}\0{state_of(input_file(file)) if file not in (None, NONE) else ''}"

    @classmethod
    def execute(cls, text, kind, file=NONE, concepts=None) -> io.NodeOutput:
        total = (concepts or ConceptList()) + read_list(text, kind, file)
        if not len(total):
            raise InputError("There is nothing to erase: write one name per line, or choose a list file.")
        return io.NodeOutput(total, "\n".join([total.as_text(), *(f"# {note}" for note in total.notes)]))


def read_list(text: str, kind: str, file: str | None) -> ConceptList:
    """The typed concepts and those of the file."""
    typed = parse_concepts(text, kind)
    return typed if file in (None, NONE) else typed + read_concepts(input_file(file), kind)
