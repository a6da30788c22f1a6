"""Is every entry of a block list erased in a file? What its header records of lists is not used."""

from __future__ import annotations

from collections.abc import Sequence

from ..certificate.certificate import Certificate
from ..errors import Notice
from ..text.concept_list import Concept
from ..text.names import fold
from .erased_file import ErasedFile


def not_erased_of(
    blocked: Sequence[Concept], erased: ErasedFile, measured: Certificate
) -> list[Notice]:
    """A sentence for each entry of a block list that the recipe leaves out, writes in another way,
    gives another replacement or type, or does not erase by measurement.

    Args:
        blocked: The block list.
        erased: The file, with its recipe.
        measured: Its certificate, in the order of the recipe.
    """
    # Only CLIP reads "van gogh" as "Van Gogh". To other text encoders it is another name.
    encoders = erased.source.architecture.every_encoder
    any_case = all(encoder.name.startswith("clip") for encoder in encoders)

    def read_as(name: str) -> str:
        return fold(name).lower() if any_case else fold(name)

    results = list(zip(erased.stored.job.concepts, measured.concepts, strict=True))
    faults = []
    for entry in blocked:
        names = {read_as(name) for name in entry.phrases}
        done = any(
            names <= {read_as(name) for name in concept.phrases}
            and read_as(concept.anchor) == read_as(entry.anchor)
            and concept.kind == entry.kind
            and result.verdict == "erased"
            for concept, result in results
        )
        if not done:
            text = f"The block list's {entry.target!r} is not erased in the list's way."
            faults.append(Notice(text, code="blocked", concept=entry.target))
    return faults
