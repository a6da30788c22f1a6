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
from .host.paths import NONE, input_file, input_state, list_names
from .retain_set_loader import set_of_widgets
from .sockets import CATEGORY, ConceptsSocket, search_aliases

_ABSENT: Any = object()


class ConceptListNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ConceptList",
            display_name="Concept List",
            category=CATEGORY,
            **search_aliases("artist", "style", "character", "name list"),
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
    def validate_inputs(
        cls,
        text: str | None = None,
        kind: str | None = "style",
        file: str | None = NONE,
        concepts: Any = _ABSENT,
    ) -> bool | str:
        try:
            listed = _read_list(text or "", kind or "style", file)
        except SpeedError as error:
            return str(error)
        if text is None or concepts is not _ABSENT or len(listed):
            return True
        return NOTHING_TO_ERASE

    @classmethod
    def fingerprint_inputs(
        cls,
        text: str | None = None,
        kind: str | None = None,
        file: str | None = NONE,
        concepts: Any = None,
    ) -> str:
        return f"{text}\0{kind}\0{file}\0{input_state(file)}"

    @classmethod
    def execute(
        cls, text: str, kind: str, file: str = NONE, concepts: ConceptList | None = None
    ) -> io.NodeOutput:
        total = (concepts or ConceptList()) + _read_list(text, kind, file)
        if not len(total):
            raise InputError(NOTHING_TO_ERASE)
        notes = [f"# {note}" for note in total.notes]
        return io.NodeOutput(total, "\n".join([total.as_text(), *notes]))


NOTHING_TO_ERASE = "There is nothing to erase: write one name per line, or choose a list file."


def _read_list(text: str, kind: str, file: str | None) -> ConceptList:
    """The typed concepts and those of the file, which may be `none`."""
    typed = parse_concepts(text, kind)
    return typed if file in (None, "", NONE) else typed + read_concepts(input_file(file), kind)


MAX_SUGGESTIONS = 12
MAX_NAMES_IN_SENTENCE = 3


def check(question: dict[str, Any]) -> dict[str, Any]:
    """What a run would say about every line of a list that is being written."""
    kind = str(question.get("kind", "style"))
    lines = read_lines(str(question.get("text", "")), kind)
    concepts = [line.concept for line in lines if line.concept is not None and not line.problem]
    notes: list[str] = []
    try:
        from_file = _read_list("", kind, question.get("file"))
        notes += (ConceptList(concepts) + from_file).notes
    except SpeedError as error:
        notes.append(str(error))
    dropped = _dropped_names(concepts, question.get("retain"))
    return {
        "lines": [_line_answer(line.line, line.concept, line.problem, dropped) for line in lines],
        "notes": notes,
    }


def _dropped_names(concepts: list[Concept], widgets: Any) -> dict[str, list[str]]:
    """{target or alias: names of the wired retain set that contain it and so are not kept}."""
    if not isinstance(widgets, dict):
        return {}
    try:
        names = set_of_widgets(widgets).names
    except SpeedError:
        return {}  # the other node shows what is wrong with its list
    index = WordIndex(phrase for concept in concepts for phrase in concept.phrases)
    dropped: dict[str, list[str]] = {}
    for name in names:
        if (phrase := index.match(name)) is not None:
            dropped.setdefault(phrase, []).append(name)
    return dropped


def _line_answer(
    line: int, concept: Concept | None, problem: str, dropped: dict[str, list[str]]
) -> dict[str, Any]:
    from .host.inversions import too_long

    if concept is None:
        return {"line": line, "problem": problem}
    notes = [invisible_note(concept.cleaned)] if concept.cleaned else []
    names = [name for phrase in concept.phrases for name in dropped.get(phrase, ())]
    if names:
        listed = ", ".join(map(quoted, names[:MAX_NAMES_IN_SENTENCE]))
        more = " and others" if len(names) > MAX_NAMES_IN_SENTENCE else ""
        notes.append(f"It is inside kept names, which are therefore not kept: {listed}{more}.")
    # Only a note, because T5 takes more tokens than CLIP.
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


def suggest(question: dict[str, Any]) -> dict[str, Any]:
    """Names that begin like the typed words: first the built-in ones, then the user's own."""
    typed, kind = words_of(str(question.get("text", ""))), str(question.get("kind", "style"))
    matches: dict[str, None] = {}
    for name in _all_names(kind) if typed else ():
        words = words_of(name)
        if all(any(word.startswith(start) for word in words) for start in typed):
            matches.setdefault(name)
        if len(matches) == MAX_SUGGESTIONS:
            break
    return {"names": list(matches)}


def _all_names(kind: str) -> Iterator[str]:
    for name in kind_of(kind).retain_sets:
        if name != "scenes":  # whole prompts, not names
            yield from builtin_retain(name).names
    for file in list_names(".txt", ".csv", ".tsv")[1:]:
        try:
            yield from (concept.target for concept in read_concepts(input_file(file), kind))
        except SpeedError:
            continue  # a file that is not a list of concepts
