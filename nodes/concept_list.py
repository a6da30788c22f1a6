"""Concept List: what to erase, one concept per line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from comfy_api.latest import io

from ..speed_ops.errors import InputError, SpeedError
from ..speed_ops.text.concept_list import (
    Concept,
    ConceptList,
    parse_concepts,
    read_concepts,
    read_lines,
)
from ..speed_ops.text.kinds import KINDS, kind_of
from ..speed_ops.text.names import WordIndex, invisible_note, quoted, words_of
from ..speed_ops.text.retain_set import builtin_retain
from .host.paths import NONE, input_file, list_names, state_of
from .host.text import too_long
from .retain_set_loader import set_of_widgets
from .sockets import CATEGORY, ConceptsSocket, found_by

_ABSENT: Any = object()


class ConceptListNode(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ConceptList",
            display_name="Concept List",
            category=CATEGORY,
            **found_by("artist", "style", "character", "name list"),
            description=(
                "Names to erase, one per line: 'name', 'name -> anchor', 'name | alias -> anchor ||"
                " kind'."
            ),
            inputs=[
                io.String.Input(
                    "text",
                    multiline=True,
                    default="",
                    placeholder="Van Gogh -> art\nSnoopy | the Peanuts beagle -> dog\n# a comment",
                    tooltip=(
                        "One concept per line. Without '->', the kind decides what the name"
                        " becomes. With '->' and nothing after it, the name is treated as if it"
                        " were not in the prompt. '|| person' at the end gives a line a kind of its"
                        " own. Commas and parentheses are part of a name."
                    ),
                ),
                io.Combo.Input(
                    "kind",
                    options=list(KINDS),
                    default="style",
                    tooltip=(
                        "What the names are. This sets the default anchor, the prompts they are"
                        " tried in and the built-in names to keep."
                    ),
                ),
                io.Combo.Input(
                    "file",
                    options=list_names(".txt", ".csv", ".tsv"),
                    default=NONE,
                    tooltip=(
                        "A list in ComfyUI's input folder, added to the text: .txt as above, .csv"
                        " with a column 'target' and optionally 'anchor', 'aliases' and 'kind'."
                    ),
                ),
                ConceptsSocket.Input(
                    "concepts", optional=True, tooltip="Another list; this one is appended to it."
                ),
            ],
            outputs=[
                ConceptsSocket.Output(
                    display_name="concepts", tooltip="For SPEED Erase and SPEED Forecast."
                ),
                io.String.Output(
                    display_name="text",
                    tooltip="The list as it was understood, one concept per line.",
                ),
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
            raise InputError(
                "There is nothing to erase: write one name per line, or choose a list file."
            )
        return io.NodeOutput(
            total, "\n".join([total.as_text(), *(f"# {note}" for note in total.notes)])
        )


def read_list(text: str, kind: str, file: str | None) -> ConceptList:
    """The typed concepts and those of the file."""
    typed = parse_concepts(text, kind)
    return typed if file in (None, NONE) else typed + read_concepts(input_file(file), kind)


SUGGESTED = 12
"""Names offered at a time."""
NAMED = 3
"""Names mentioned in one sentence."""


def check(asked: dict[str, Any]) -> dict[str, Any]:
    """What a run would say about every line of a list that is being written."""
    text, kind = str(asked.get("text", "")), str(asked.get("kind", "style"))
    lines = read_lines(text, kind)
    good = [one.concept for one in lines if one.concept is not None and not one.problem]
    notes: list[str] = []
    try:
        total = ConceptList(tuple(good))
        other = asked.get("file")
        total = (
            total
            if other in (None, "", NONE)
            else total + read_concepts(input_file(str(other)), kind)
        )
        notes += total.notes
    except SpeedError as error:
        notes.append(str(error))
    kept = _kept_that_fall(good, asked.get("retain"))
    return {
        "lines": [_shown(one.line, one.concept, one.problem, kept) for one in lines],
        "notes": notes,
    }


def _kept_that_fall(concepts: list[Concept], widgets: Any) -> dict[str, list[str]]:
    """Target or alias -> names of the wired retain set that contain it and so are not kept."""
    found: dict[str, list[str]] = {}
    try:
        names = set_of_widgets(widgets).names if isinstance(widgets, dict) else ()
    except SpeedError:
        return found  # the other node says what is wrong with its list
    index = WordIndex(phrase for concept in concepts for phrase in concept.phrases)
    for name in names:
        if (phrase := index.match(name)) is not None:
            found.setdefault(phrase, []).append(name)
    return found


def _shown(
    line: int, concept: Concept | None, problem: str, kept: dict[str, list[str]]
) -> dict[str, Any]:
    if concept is None:
        return {"line": line, "problem": problem}
    fallen = [name for phrase in concept.phrases for name in kept.get(phrase, ())]
    notes = [invisible_note(concept.cleaned)] if concept.cleaned else []
    if fallen:
        listed = ", ".join(map(quoted, fallen[:NAMED])) + (
            " and others" if len(fallen) > NAMED else ""
        )
        notes.append(f"It is inside kept names, which are therefore not kept: {listed}.")
    # T5 takes more
    notes += [sentence for phrase in concept.phrases if (sentence := too_long(phrase))]
    return {
        "line": line,
        "target": concept.target,
        "anchor": concept.anchor,
        "kind": concept.kind,
        "aliases": list(concept.aliases),
        "problem": problem,
        "note": " ".join(notes),
    }


def suggest(asked: dict[str, Any]) -> dict[str, Any]:
    """Names that begin as the user does: of the built-in lists for the kind, then of the user's own
    files.
    """
    written, kind = words_of(str(asked.get("text", ""))), str(asked.get("kind", "style"))
    found: dict[str, None] = {}
    for name in _all_names(kind) if written else ():
        words = words_of(name)
        if all(any(word.startswith(part) for word in words) for part in written):
            found.setdefault(name)
        if len(found) == SUGGESTED:
            break
    return {"names": list(found)}


def _all_names(kind: str) -> Iterator[str]:
    for name in kind_of(kind).retain_sets:
        if name != "scenes":  # whole prompts, which nobody erases
            yield from builtin_retain(name).names
    for file in list_names(".txt", ".csv", ".tsv")[1:]:
        try:
            yield from (concept.target for concept in read_concepts(input_file(file), kind))
        except SpeedError:
            continue  # a file that is no list of concepts offers nothing
