"""Is every entry of a block list erased in a file? What its header records of lists is not used."""

from __future__ import annotations

from collections.abc import Sequence

from ..certificate.certificate import Certificate
from ..errors import Notice
from ..text.concept_list import Concept
from ..text.names import same_name_key
from .erased_file import ErasedFile


def not_erased_of(
    blocked: Sequence[Concept], erased: ErasedFile, measured: Certificate
) -> list[Notice]:
    """A sentence for each entry of a block list that the recipe leaves out, gives another
    replacement, or does not erase by measurement.

    Args:
        blocked: The block list.
        erased: The file, with its recipe.
        measured: Its certificate, in the order of the recipe.
    """
    results = list(zip(erased.stored.job.concepts, measured.concepts, strict=True))
    faults = []
    for entry in blocked:
        names = {same_name_key(name) for name in entry.phrases}
        replacement = same_name_key(entry.anchor)
        done = any(
            names <= {same_name_key(name) for name in concept.phrases}
            and same_name_key(concept.anchor) == replacement
            and result.verdict == "erased"
            for concept, result in results
        )
        if not done:
            text = f"The block list's {entry.target!r} is not erased in the list's way."
            faults.append(Notice(text, code="blocked", concept=entry.target))
    return faults
