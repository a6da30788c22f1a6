"""The result of an erasure, for Python, the nodes and the command line alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

from .certificate.certificate import Certificate
from .certificate.measure import certificate_at
from .engine.edits import LayerEdit
from .engine.rows import Rows, RowSet
from .engine.settings import EraseSettings
from .inputs import TOKENS
from .progress import Progress

if TYPE_CHECKING:
    from .model import EditableModel
    from .models.architecture import Architecture, LayerKey
    from .recipe import Recipe
    from .text.concept_list import Concept


@dataclass(frozen=True)
class TextReport:
    """What happened to a job's lists on their way to embedding rows."""

    dropped: tuple[str, ...]
    """Kept names left out because they contain a target."""
    unusable: tuple[str, ...]
    """Kept names left out because the tokenizer makes nothing of them, or more than fits."""
    left_out: int
    """Kept names that the effort did not reach."""
    in_context: int
    """How many kept names have rows in context."""
    encoded: int
    """Texts that were encoded; the others came from the cache."""
    reused: int
    seconds: dict[str, float]

    def lines(self) -> Iterator[str]:
        """The same in sentences."""
        if self.dropped:
            yield _not_kept(
                self.dropped, "it contains an erased concept", "they contain an erased concept"
            )
        if self.unusable:
            yield _not_kept(
                self.unusable, "it has no tokens or too many", "they have no tokens or too many"
            )
        if self.left_out:
            yield (
                f"{self.left_out:,} names of the list were left out at this effort: ask for more to"
                " use them all."
            )
        contexts = (
            f"; {self.in_context} names were also kept inside prompts" if self.in_context else ""
        )
        yield (
            f"{self.encoded} texts encoded and {self.reused} read from the cache in"
            f" {sum(self.seconds.values()):.1f} s{contexts}."
        )


def _not_kept(names: Sequence[str], reason: str, plural_reason: str) -> str:
    if len(names) == 1:
        return f"1 name was not kept because {reason}: {names[0]}."
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} names were not kept because {plural_reason}: {shown}."


@dataclass(frozen=True, eq=False)
class Erasure(Mapping[str, LayerEdit]):
    """Edits by layer key, with the proof of what they do.

    `solve` fills the first four fields; `erase` adds the model and the concepts. Nothing here
    depends on a host.
    """

    edits: dict[str, LayerEdit]
    """By layer key; at strength 1."""
    certificate: Certificate | None = None
    """At `strength`; None for a LoRA from a file that carries none."""
    settings: EraseSettings | None = None
    """As solved, with everything settled that `auto` chooses; None for edits from a file."""
    rows: Mapping[str, RowSet] = field(default_factory=dict)
    """{text input: what was erased and kept there}, prepared; empty for edits from a file."""
    strength: float = 1.0
    """What the edits are, or are to be, applied with."""
    full_certificate: Certificate | None = None
    """At strength 1, where `certificate` is at another."""
    family: Architecture | None = None
    layers: tuple[LayerKey, ...] = ()
    """All layers of the model that may be edited."""
    concepts: tuple[Concept, ...] = ()
    recipe: Recipe | None = None
    text_report: TextReport | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    """The file it was read from, if it was."""

    def __getitem__(self, key: str) -> LayerEdit:
        return self.edits[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.edits)

    def __len__(self) -> int:
        return len(self.edits)

    @property
    def architecture(self) -> Architecture:
        """The family of the model that the erasure was made for."""
        assert self.family is not None, "an erasure of plain weights has no model"
        return self.family

    @property
    def targets(self) -> dict[str, Rows]:
        """{text input: rows that a later erasure must hold where this one put them}."""
        return {name: rows.targets for name, rows in self.rows.items()}

    @property
    def applied(self) -> dict[str, LayerEdit]:
        """The edits times the strength."""
        if self.strength == 1:
            return self.edits
        return {key: edit.scaled(self.strength) for key, edit in self.edits.items()}

    def delta(self, key: str) -> Tensor:
        """`o x d`: the dense edit of one layer."""
        return self[key].delta()

    def balanced(self, rank: int | None = None) -> tuple[Erasure, float]:
        """All edits balanced (see `LayerEdit.balanced`), and the largest relative error."""
        pairs = {key: edit.balanced(rank) for key, edit in self.edits.items()}
        edits = {key: edit for key, (edit, _) in pairs.items()}
        return replace(self, edits=edits), max(error for _, error in pairs.values())

    def text(self) -> str:
        """The report for people: the certificate, what happened to the lists, and notes."""
        lines = [] if self.certificate is None else [self.certificate.text()]
        if self.strength != 1:
            lines.insert(0, f"At strength {self.strength:g}:")
        if self.text_report is not None:
            lines += self.text_report.lines()
        return "\n".join([*lines, *self.notes])


def at_strength(
    erasure: Erasure, strength: float, model: EditableModel, progress: Progress | None = None
) -> Erasure:
    """The same edits, to be applied with another strength, and measured again at that strength.

    Args:
        erasure: What `erase` returned, or edits from a file.
        strength: What the edits are to be multiplied by.
        model: The layers before the edit.
        progress: May raise to interrupt.
    """
    full, settings = erasure.full_certificate, erasure.settings
    if full is None or settings is None or not erasure.rows:
        return replace(erasure, strength=strength)
    if strength == 1:
        return replace(erasure, strength=strength, certificate=full)
    certificates: dict[str, Certificate | None] = {}
    for name, rows in erasure.rows.items():
        weights = model.inputs[name]
        edits = {
            key: LayerEdit(erasure[key].up, erasure[key].down[:, : rows.width])
            for key in weights
            if key in erasure
        }
        part = full if name == TOKENS else full.other_inputs.get(name)
        if part is not None:
            certificates[name] = certificate_at(
                strength, part, weights, edits, rows, settings, progress
            )
    return replace(erasure, strength=strength, certificate=joined_certificate(certificates))


def joined_certificate(certificates: Mapping[str, Certificate | None]) -> Certificate | None:
    """One certificate for all text inputs."""
    first = certificates[TOKENS]
    others = {name: part for name, part in certificates.items() if name != TOKENS and part}
    return first and replace(first, other_inputs=others)
