"""Concept List: what to erase, one concept per line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from comfy_api.latest import io

from ..speed_ops.errors import InputError, Notice, SpeedError, notice_of
from ..speed_ops.text.concept_list import (
    Concept,
    ConceptList,
    ReadLine,
    parse_concepts,
    read_concepts,
    read_lines,
)
from ..speed_ops.text.kinds import KINDS, kind_of
from ..speed_ops.text.names import WordIndex, invisible_note, quoted, same_name_key, words_of
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
                "What to erase, one concept per line: 'name', 'name -> replacement' or 'name |"
                " alias -> replacement || type'."
            ),
            inputs=[
                io.String.Input(
                    "text",
                    multiline=True,
                    default="",
                    placeholder="Van Gogh -> art\nSnoopy | the Peanuts beagle -> dog\n# a comment",
                    tooltip=(
                        "One concept per line: 'name -> replacement'. Without '->', the type"
                        " chooses the replacement. A line that ends with '->' removes the name from"
                        " prompts. To set the type or strength of one line, end it with '|| person'"
                        " or '|| 0.7'."
                    ),
                ),
                io.Combo.Input(
                    "kind",
                    display_name="type",
                    options=list(KINDS),
                    default="style",
                    tooltip=(
                        "What the names are; use theme for ideas such as nudity. The type sets the"
                        " default replacement, the test prompts and the built-in protected names."
                    ),
                ),
                io.Combo.Input(
                    "file",
                    options=list_names(".txt", ".csv", ".tsv"),
                    default=NONE,
                    tooltip=(
                        "Adds a list from ComfyUI's input folder. A .txt has the same lines as the"
                        " text. A .csv has a column 'target' and optionally 'anchor' (the"
                        " replacement), 'aliases', 'kind' (the type) and 'strength'."
                    ),
                ),
                ConceptsSocket.Input(
                    "concepts", optional=True, tooltip="Another list to add this one to."
                ),
            ],
            outputs=[
                ConceptsSocket.Output(
                    display_name="concepts", tooltip="For SPEED Erase and Preview Side Effects."
                ),
                io.String.Output(
                    display_name="text",
                    tooltip="The list as SPEED reads it, one concept per line.",
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


NOTHING_TO_ERASE = "There is nothing to erase. Write one name per line, or choose a list file."


def _read_list(text: str, kind: str, file: str | None) -> ConceptList:
    """The typed concepts and those of the file, which may be `none`."""
    typed = parse_concepts(text, kind)
    return typed if file in (None, "", NONE) else typed + read_concepts(input_file(file), kind)


MAX_SUGGESTIONS = 12
MAX_NAMES_IN_SENTENCE = 3


def check(question: dict[str, Any]) -> dict[str, Any]:
    """What a run would answer for every line of a list that is being written."""
    kind = str(question.get("kind", "style"))
    lines = read_lines(str(question.get("text", "")), kind)
    concepts = [line.concept for line in lines if line.concept is not None and not line.problem]
    notes: list[Notice] = []
    try:
        from_file = _read_list("", kind, str(question.get("file") or NONE))
        listed = ConceptList(concepts)  # its own repeats are in the answers of their lines
        both = listed + from_file
        notes += [note for note in both.notes if note not in listed.merged]
    except SpeedError as error:
        notes.append(notice_of(error))
    dropped = _dropped_names(concepts, question.get("retain"))
    return {
        "lines": [_line_answer(line, dropped) for line in lines],
        "notes": [note.to_json() for note in notes],
    }


def _dropped_names(concepts: list[Concept], widgets: Any) -> dict[str, list[str]]:
    """{target or alias: longer names of the connected set that contain it, so they are not
    protected}. That the concept itself is not protected goes without saying.
    """
    if not isinstance(widgets, dict):
        return {}
    try:
        names = set_of_widgets(widgets).names
    except SpeedError:
        return {}  # the other node shows what is wrong with its list
    index = WordIndex(phrase for concept in concepts for phrase in concept.phrases)
    dropped: dict[str, list[str]] = {}
    for name in names:
        phrase = index.match(name)
        if phrase is not None and same_name_key(phrase) != same_name_key(name):
            dropped.setdefault(phrase, []).append(name)
    return dropped


def _line_answer(line: ReadLine, dropped: dict[str, list[str]]) -> dict[str, Any]:
    from .host.inversions import too_long

    concept = line.concept
    problem = None if line.problem is None else line.problem.to_json()
    if concept is None:
        return {"line": line.line, "problem": problem}
    notes = [] if line.note is None else [line.note]
    if concept.cleaned:
        notes.append(invisible_note(concept.cleaned))
    names = [name for phrase in concept.phrases for name in dropped.get(phrase, ())]
    if names:
        listed = ", ".join(map(quoted, names[:MAX_NAMES_IN_SENTENCE]))
        more = " and others" if len(names) > MAX_NAMES_IN_SENTENCE else ""
        notes.append(
            Notice(
                f"These protected names contain it and will change too: {listed}{more}.",
                code="contained_in",
                names=[*names[:MAX_NAMES_IN_SENTENCE], *(["…"] if more else [])],
            )
        )
    # Only a note, because T5 takes more tokens than CLIP.
    notes += [notice for phrase in concept.phrases if (notice := too_long(phrase))]
    return {
        "line": line.line,
        "target": concept.target,
        "anchor": concept.anchor,
        "kind": concept.kind,
        "aliases": list(concept.aliases),
        "strength": concept.strength,
        "problem": problem,
        "notes": [note.to_json() for note in notes],
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
