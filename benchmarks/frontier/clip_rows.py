"""Real rows of SD1.4's CLIP-L, where a file of them is given: mean prompts of animals, and Van
Gogh's direction.

There are no names in contexts to choose by, so this is the edit at a fixed `lam`: which positions
must it know?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from speed_erase.speed_ops import EraseSettings, Rows, RowSet, solve
from speed_erase.speed_ops.certificate.measure import residuals
from speed_erase.speed_ops.text.tokens import IN_CONTEXT, Position, Stream, TokenSpan

from ..storage import load_tensors
from .cells import layers

KEPT = ("cat", "dog", "horse", "zebra")
NAME = 4
"""The direction is largest in rows 3 to 5: that is where the sentences said the name. Text goes on
to row 10 or so.
"""
TEXT = TokenSpan(tuple(range(9)), NAME, NAME - 1)
NEAR = range(3, 16)
CHOICES: dict[str, tuple[int, ...]] = {
    "the name's row alone (the paper)": (NAME,),
    "end token and last padding": (10, 76),
    "name, end, first and last padding (first release)": (
        Stream(lambda text: (), 77).rows(IN_CONTEXT, TEXT)
    ),
    "eleven spread over the prompt": (3, 4, 6, 8, 10, 12, 16, 24, 40, 60, 76),
}


def chosen_rows() -> tuple[int, ...]:
    """Our table's rows in prompts of three lengths, as contexts of three lengths give them; and the
    first word.
    """
    stream = Stream(lambda text: (), 77)
    spans = [TokenSpan(tuple(range(count)), name, 3) for count, name in ((4, 3), (6, 4), (11, 5))]
    rows = {row for span in spans for row in stream.rows(Position.INFORMATIVE, span)}
    return tuple(sorted(rows))


def table(path: Path) -> Iterator[tuple[str, float, float, float]]:
    """(positions, left near the name, left in the padding, drift of the others), all on rows not
    used.
    """
    rows = {name: value.double() for name, value in load_tensors(path).items()}
    for name, positions in {**CHOICES, "ours (the table of positions)": chosen_rows()}.items():
        yield name, *_measured(rows, positions)


def _measured(rows: dict[str, Tensor], positions: Sequence[int]) -> tuple[float, float, float]:
    dog, direction = rows["mean_prompt_dog"], rows["direction_vangogh"]
    used = list(positions)
    count = len(used)
    target = Rows((dog + direction)[used], (0,) * count, ("Van Gogh",), (True,) * count)
    anchor = target.with_values(dog[used])
    first = [1, 2] if count > 4 else []  # the first words stay, where the whole prompt counts
    kept = torch.cat([rows[f"mean_prompt_{name}"][first + used] for name in KEPT])
    groups = tuple(i for i in range(len(KEPT)) for _ in first + used)
    retain = Rows(kept, groups, KEPT, (True,) * len(groups))
    settings = EraseSettings.preset("auto").replace(preset_name="context", lam=0.05, overshoot=1.0)
    weights = layers(768)
    given = RowSet.of(target, anchor, retain, rows["null_prompt"])
    edits = solve(weights, given, settings)
    near = [row for row in NEAR if row not in used]
    padding = [row for row in range(NEAR.stop, 77) if row not in used]
    others = [row for row in range(1, 77) if row not in used]
    lefts, drifts = [], []
    for key, weight in weights.items():
        edit, wide = edits[key], weight.double()

        def moved(given: Tensor, edit=edit) -> Tensor:
            return (given @ edit.down.T) @ edit.up.T

        for part in (near, padding):
            wanted = -direction[part] @ wide.T
            missing = moved((dog + direction)[part]) - wanted
            remains, _ = residuals(wanted, missing)
            lefts.append((remains.sum() / wanted.square().sum()).sqrt())
        own = torch.cat([rows[f"mean_prompt_{name}"][others] for name in KEPT])
        drifts.append(moved(own).norm() / (own @ wide.T).norm())
    return (
        float(torch.stack(lefts[::2]).mean()),
        float(torch.stack(lefts[1::2]).mean()),
        float(torch.stack(drifts).mean()),
    )
