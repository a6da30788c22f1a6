"""Retain Set Loader: names to protect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comfy_api.latest import io

from ..speed_ops.errors import Notice
from ..speed_ops.text.concept_list import read_lines
from ..speed_ops.text.kinds import BUILTIN_KINDS, KINDS
from ..speed_ops.text.names import same_name_key
from ..speed_ops.text.retain_set import (
    RetainSet,
    builtin_retain,
    drop_targets,
    parse_retain,
    read_retain,
    union,
)
from .host.paths import NONE, input_file, input_state, list_names
from .sockets import CATEGORY, RetainSocket, search_aliases, ui_text, validation

_FOR_KIND = "for type: "
_ANY_KIND = "same as concepts"


class RetainSetLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="RetainSetLoader",
            display_name="Retain Set Loader",
            category=CATEGORY,
            **search_aliases("keep", "preserve"),
            description=(
                "Names to protect from the erasure. Connect several of these nodes in a row to"
                " join their lists."
            ),
            inputs=[*_name_inputs(), *_option_inputs()],
            outputs=[
                RetainSocket.Output(
                    display_name="retain",
                    tooltip="For SPEED Erase and Preview Side Effects.",
                ),
                io.String.Output(
                    display_name="counts", tooltip="How many names each list contributes."
                ),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(
        cls,
        builtin: str | None = NONE,
        text: str | None = None,
        file: str | None = NONE,
        column: str | None = "",
        kind: str | None = _ANY_KIND,
    ) -> bool | str:
        return validation(
            lambda: _read_set(builtin or NONE, text or "", file, column or "", kind or _ANY_KIND)
        )

    @classmethod
    def fingerprint_inputs(cls, file: str | None = NONE, **widgets: Any) -> str:
        return f"{sorted(widgets.items(), key=str)}{file}{input_state(file)}"

    @classmethod
    def execute(
        cls,
        builtin: str,
        text: str,
        file: str = NONE,
        column: str = "",
        kind: str = _ANY_KIND,
        limit: int = 0,
        retain: RetainSet | None = None,
    ) -> io.NodeOutput:
        total = (retain or RetainSet()) | _read_set(builtin, text, file, column, kind)
        total = total.limit(limit) if limit else total
        counts = describe(total)
        return io.NodeOutput(total, counts, ui=ui_text(cls, counts))


def _name_inputs() -> list[io.Input]:
    sets = [*sorted(BUILTIN_KINDS), *(_FOR_KIND + kind for kind in KINDS), "all"]
    return [
        io.Combo.Input(
            "builtin",
            options=[NONE, *sets],
            default=NONE,
            tooltip=(
                "Lists that come with SPEED. 'for type' joins the lists that suit a type of"
                " concept."
            ),
        ),
        io.String.Input(
            "text",
            multiline=True,
            default="",
            placeholder="Claude Monet\nEdvard Munch",
            tooltip="More names to protect, one per line. '#' starts a comment.",
        ),
        io.Combo.Input(
            "file",
            options=list_names(".txt", ".csv", ".tsv", ".json"),
            default=NONE,
            tooltip=(
                "Adds a list from ComfyUI's input folder: a .txt with one name per line, a .csv"
                " (see column) or a .json list."
            ),
        ),
    ]


def _option_inputs() -> list[io.Input]:
    return [
        io.String.Input(
            "column",
            default="",
            tooltip=(
                "Column of the .csv file. Leave empty to use a column called 'name', 'concept' or"
                " similar."
            ),
            extra_dict={"advanced": True},
        ),
        io.Combo.Input(
            "kind",
            display_name="type",
            options=[_ANY_KIND, *KINDS, "caption"],
            default=_ANY_KIND,
            tooltip=(
                "What the names in the text and the file are. The type sets the prompts they are"
                " protected in. Choose 'caption' if each line is a whole prompt."
            ),
            extra_dict={"advanced": True},
        ),
        io.Int.Input(
            "limit",
            default=0,
            min=0,
            max=1_000_000,
            tooltip=(
                "Protects at most this many names, spread over the alphabet. 0 protects all. Fewer"
                " names are faster."
            ),
        ),
        RetainSocket.Input(
            "retain",
            display_name="protected names",
            optional=True,
            tooltip="Another list to join with this one.",
        ),
    ]


def _read_set(builtin: str, text: str, file: str | None, column: str, kind: str) -> RetainSet:
    """The union of the sets that the widgets name."""
    kind = "" if kind == _ANY_KIND else kind
    names: Sequence[str] = [] if builtin == NONE else [builtin]
    if builtin == "all":
        names = sorted(BUILTIN_KINDS)
    elif builtin.startswith(_FOR_KIND):
        names = KINDS[builtin.removeprefix(_FOR_KIND)].retain_sets
    sets = [builtin_retain(name) for name in names]
    if text.strip():
        sets.append(parse_retain(text, "typed", kind))
    if file not in (None, NONE):
        sets.append(read_retain(input_file(file), column, kind))
    return union(sets)


def describe(retain: RetainSet) -> str:
    """`1,750 names: artists 1,393, typed 2`."""
    listed = ", ".join(f"{label} {count:,}" for label, count in _counts(retain))
    count = "1 name" if len(retain) == 1 else f"{len(retain):,} names"
    return "\n".join([f"{count}: {listed}" if listed else count, *retain.notes])


def _counts(retain: RetainSet) -> list[tuple[str, int]]:
    """How many names each list contributes."""
    return [
        (source.label, retain.origins.count(index)) for index, source in enumerate(retain.sources)
    ]


MAX_NAMES_SHOWN = 200


def look(question: dict[str, Any]) -> dict[str, Any]:
    """The names that the widgets mean: those that match a search, and those that drop out."""
    total = set_of_widgets(question)
    kind = str(question.get("concepts_kind") or "style")
    lines = read_lines(str(question.get("concepts") or ""), kind)
    _, dropped = drop_targets(total, [line.concept for line in lines if line.concept is not None])
    search = same_name_key(str(question.get("search") or ""))
    matches = [name for name in total.names if search in same_name_key(name)]
    return {
        "counts": _counts(total),
        "notes": [note.to_json() for note in (*total.notes, *_dropped_note(dropped))],
        "total": len(total),
        "found": len(matches),
        "names": matches[:MAX_NAMES_SHOWN],
        "dropped": len(dropped),
        "dropped_names": list(dropped[:MAX_NAMES_SHOWN]),
    }


_NAMED = 3


def _dropped_note(dropped: Sequence[str]) -> list[Notice]:
    """Which names an erasure can't protect."""
    if not dropped:
        return []
    single = len(dropped) == 1
    contained = "it contains" if single else "they contain"
    listed = ", ".join(dropped[:_NAMED])
    return [
        Notice(
            f"{len(dropped):,} can't be protected because {contained} a name you're erasing:"
            f" {listed}",
            code="dropped_one" if single else "dropped_several",
            count=len(dropped),
            names=list(dropped[:_NAMED]),
        )
    ]


def set_of_widgets(widgets: dict[str, Any]) -> RetainSet:
    """The set of a node by the values of its widgets; missing ones have their defaults."""
    total = _read_set(
        str(widgets.get("builtin") or NONE),
        str(widgets.get("text") or ""),
        str(widgets.get("file") or NONE),
        str(widgets.get("column") or ""),
        str(widgets.get("kind") or _ANY_KIND),
    )
    limit = widgets.get("limit")
    return total.limit(limit) if isinstance(limit, int) and limit > 0 else total
