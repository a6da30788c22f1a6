"""What a header records about other names, checked and in the report's terms."""

from __future__ import annotations

from ..certificate.certificate import Drift
from ..certificate.summary import LEVEL_WORDS, SideEffects, side_effects
from ..errors import FileError
from ..files.schema import Fields
from ..provenance import Provenance

_MAX_GROUPS, _MAX_NAMES = 12, 20
"""Of names whose drift a header records, and listed names of a group."""


def recorded_effects(header: Provenance) -> SideEffects | None:
    """How far other names moved, as the header's report has it."""
    groups = []
    for group in Fields(header.certificate, "The report").objects("drift", _MAX_GROUPS):
        worst = []
        for pair in group.items("worst", _MAX_NAMES):
            if not (isinstance(pair, list) and list(map(type, pair)) == [str, float]):
                raise FileError(f"{group.title}: an entry of 'worst' must be a name and a number.")
            worst.append((pair[0], pair[1]))
        mean, where = group.number("mean", 0.0), group.text("where")
        groups.append(Drift(group.text("group"), where, 0, 0.0, 0.0, 0.0, tuple(worst), mean))
    return side_effects(groups)


def level_in_words(effects: SideEffects) -> str:
    """How visible they are."""
    return LEVEL_WORDS[effects.level]
