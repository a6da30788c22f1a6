"""The result of an erasure, for Python, the nodes and the command line alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .certificate.certificate import Alternatives, Certificate
from .certificate.measure import certificate_at
from .certificate.summary import Summary, details, summarize
from .engine.edits import LayerEdit
from .engine.rows import Rows, RowSet
from .engine.settings import EraseSettings
from .inputs import PROMPTING_TITLES, TOKENS, Prompting
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
    prompting: Prompting = "sentences"
    """How the prompts are written that the edit was made from, and tested in."""

    @property
    def style(self) -> str:
        """`prompting` in words."""
        return PROMPTING_TITLES[self.prompting]

    def lines(self, verbose: bool = False) -> Iterator[str]:
        """The same in sentences; `verbose` adds what most users need not know."""
        if self.dropped:
            yield _unprotected(self.dropped, "contain a concept you erase")
        if self.unusable:
            yield _unprotected(self.unusable, "have no tokens or too many")
        if verbose and self.left_out:
            yield f"{self.left_out:,} names were left out at this thoroughness."
        if verbose:
            seconds = sum(self.seconds.values())
            yield f"Encoded {self.encoded} prompts in {seconds:.0f} s; {self.reused} were cached."


def _unprotected(names: Sequence[str], reason: str) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"Not protected because they {reason} ({len(names)}): {shown}."


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
    """At strength 1, where `certificate` is at another or is that of stored edits."""
    alternatives: Alternatives | None = None
    """What `auto` would choose within other limits; None where nothing was chosen."""
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

    @property
    def replacements(self) -> tuple[str, ...]:
        """What each concept becomes; empty for an erasure of plain weights."""
        return tuple(concept.anchor for concept in self.concepts)

    def summary(self) -> Summary | None:
        """The answers that people want; None without a certificate."""
        if self.certificate is None:
            return None
        return summarize(self.certificate, self.replacements)

    def text(self, verbose: bool = False) -> str:
        """The summary in lines; `verbose` adds all measurements and what happened to the lists."""
        lines = [] if self.strength == 1 else [f"At strength {self.strength:g}:"]
        if self.certificate is not None:
            lines += summarize(self.certificate, self.replacements).lines()
            if verbose:
                lines += ["", *details(self.certificate)]
        if self.text_report is not None:
            lines += [f"Tested in new prompts: {self.text_report.style}."]
            lines += self.text_report.lines(verbose)
        return "\n".join([*lines, *self.notes])


def at_strength(
    erasure: Erasure,
    strength: float,
    model: EditableModel,
    progress: Progress | None = None,
    device: torch.device | str = "cpu",
) -> Erasure:
    """The same edits, to be applied with another strength, and measured again at that strength.

    Args:
        erasure: What `erase` returned, or edits from a file.
        strength: What the edits are to be multiplied by.
        model: The layers before the edit.
        progress: May raise to interrupt.
        device: Where to measure.
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
            key: LayerEdit(erasure[key].up, erasure[key].down[:, : rows.width]).to(device)
            for key in weights
            if key in erasure
        }
        part = full if name == TOKENS else full.other_inputs.get(name)
        if part is not None:
            certificates[name] = certificate_at(
                strength, part, weights, edits, rows.to(device), settings, progress
            )
    return replace(erasure, strength=strength, certificate=joined_certificate(certificates))


def joined_certificate(certificates: Mapping[str, Certificate | None]) -> Certificate | None:
    """One certificate for all text inputs."""
    first = certificates[TOKENS]
    others = {name: part for name, part in certificates.items() if name != TOKENS and part}
    return first and replace(first, other_inputs=others)
