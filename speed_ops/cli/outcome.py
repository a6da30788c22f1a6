"""What people read after an erasure: is it gone, did anything else change, what was saved."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ..certificate.summary import Summary, concept_title, details, more_in_words
from ..certificate.verdicts import verdict_in_words
from ..engine.settings import PRIORITIES
from .advice import TRY
from .console import Console, size_in_words, time_in_words

if TYPE_CHECKING:
    from ..checkpoints.save import CleanedFile
    from ..erasure import Erasure

_LISTED = 12
"""Concepts with a line of their own: the least erased ones."""
_NOTICES = 3
_PURPOSES = {
    "checkpoint": "the cleaned model",
    "lora": "the same edit as a LoRA",
    "recipe": "repeats it on another model",
    "card": "the model card, to publish with it",
    "report": "all measurements",
    "pictures": "images before and after",
}


def show_erasure(cleaned: CleanedFile, console: Console) -> None:
    """Prints what was done, for people or for programs."""
    erasure = cleaned.erasure
    rows, recipe, certificate = erasure.text_report, erasure.recipe, erasure.certificate
    assert rows is not None and recipe is not None and certificate is not None
    console.result(
        {
            "model": str(cleaned.source),
            "family": erasure.architecture.name,
            "files": {product: str(path) for product, path in cleaned.files.items()},
            "base_hash": recipe.base_hash,
            "lora_error": cleaned.lora_error,
            "rounding": cleaned.rounding,
            "notes": [*erasure.notes, *cleaned.notes],
            "dropped": list(rows.dropped),
            "unusable": list(rows.unusable),
            "prompting": rows.prompting,
            "encoded": rows.encoded,
            "reused": rows.reused,
            "seconds": round(cleaned.seconds, 3),
            "certificate": certificate.to_json(),
        }
    )
    summary = erasure.summary()
    assert summary is not None
    _show_answers(erasure, summary, console)
    if console.verbose:
        console.gap()
        for line in (
            *details(certificate),
            f"Tested in new prompts: {rows.style}.",
            *rows.lines(verbose=True),
        ):
            console.say(line)
        if cleaned.rounding is not None:
            console.say(f"Rounding to the file's precision lost {cleaned.rounding:.2%} of the edit")
    _show_files(cleaned, console)
    base = next(
        (cleaned.files[name] for name in ("checkpoint", "lora") if name in cleaned.files), None
    )
    if summary.verdict == "erased" and base is not None:
        console.gap()
        console.say("Next: generate a few images, then check for loopholes:")
        console.say(f"  speed-erase probe {base} --base {cleaned.source}")
    more = "" if console.verbose else " Details: --verbose"
    console.say(f"Done in {time_in_words(cleaned.seconds)}.{more}")


def _show_answers(erasure: Erasure, summary: Summary, console: Console) -> None:
    listed = (
        summary.concepts if len(summary.concepts) <= _LISTED + 1 else summary.concepts[:_LISTED]
    )
    rows = [
        (concept_title(concept.name, replacement), verdict_in_words(concept.verdict))
        for concept, replacement in listed
    ]
    marks: list[str] = [concept.verdict for concept, _ in listed]
    if rest := len(summary.concepts) - len(listed):
        counts = Counter(concept.verdict for concept, _ in summary.concepts[-rest:])
        rows.append(("and", more_in_words(counts)))
        marks.append(" ")
    groups = list(summary.effects())
    effects = []
    for title, group in groups:
        is_protected = group is summary.protected
        effects.append((title, group.text(0 if is_protected and len(groups) > 1 else 1)))
        mark = "erased" if group.level in ("none", "tiny") else "weakened"
        marks.append(mark if is_protected else " ")
    console.table((), [*rows, *effects], marks=marks)
    if summary.why is not None:
        console.say(str(summary.why), " ")
    if summary.verdict != "erased" and (suggestion := _suggestion(erasure, summary)):
        console.say(f"Try: {suggestion}", " ")
    if console.verbose:  # the details have them
        return
    certificate = erasure.certificate
    notices = [] if certificate is None else [*certificate.every_warning]
    others = [notice for notice in notices if notice != summary.why]
    for notice in others[:_NOTICES]:
        console.say(f"Note: {notice}", " ")
    if len(others) > _NOTICES:
        console.say(f"{len(others) - _NOTICES} more notes: --verbose", " ")
    if erasure.text_report is not None:
        for line in erasure.text_report.lines():
            console.say(line, " ")


def _suggestion(erasure: Erasure, summary: Summary) -> str:
    """One thing to try where a concept is not erased."""
    advice = next((item for item in summary.advice if item in TRY), None)
    if advice is None:
        return ""
    limit = 0.0 if summary.side_effects is None else summary.side_effects.limit or 0.0
    if advice == "erase_fully" and limit >= PRIORITIES["erase-fully"]:
        return f"--priority {2 * limit:g}"
    if advice == "raise_strength":
        return f"--strength {erasure.strength + 0.1:g}"
    return TRY[advice]


def _show_files(cleaned: CleanedFile, console: Console) -> None:
    folder = next(iter(cleaned.files.values())).parent
    console.gap()
    console.say(f"Saved in {folder}{os.sep}")
    rows = [
        (path.name, _size(path), _PURPOSES.get(product, product))
        for product, path in cleaned.files.items()
    ]
    console.table((), rows, right=(1,), indent="  ")


def _size(path: Path) -> str:
    """Of a file; a folder has none."""
    return size_in_words(path.stat().st_size) if path.is_file() else ""
