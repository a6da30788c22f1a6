"""Methods side by side: each turns (value weights, rows) into edited weights; ours also gives its
certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from speed_erase.speed_ops import EraseSettings, solve
from speed_erase.speed_ops.certificate.certificate import Certificate
from speed_erase.speed_ops.engine.edits import apply_edits
from speed_erase.speed_ops.engine.rows import Rows, join
from speed_erase.speed_ops.solver import Erasure
from speed_erase.speed_ops.text.tokens import EXTRA_KEPT_POSITIONS, Position

from .rows import ErasureRows, RowChoice

Weights = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Edited:
    """Edited value weights and, where the engine made them, the erasure with its certificate."""

    weights: Weights
    erasure: Erasure | None = None

    @property
    def certificate(self) -> Certificate | None:
        return self.erasure.certificate if self.erasure else None


Edit = Callable[[Mapping[str, Tensor], ErasureRows], Edited]


@dataclass(frozen=True)
class Method:
    """A name for tables, the rows it is given, and the edit."""

    name: str
    label: str
    rows: RowChoice
    edit: Edit = field(compare=False)
    settings: dict[str, Any] = field(default_factory=dict)


def untouched(weights: Mapping[str, Tensor], rows: ErasureRows) -> Edited:
    """No edit."""
    return Edited({key: weight.clone() for key, weight in weights.items()})


def by_engine(settings: EraseSettings, keep_empty: bool = False) -> Edit:
    """The engine with these settings; `keep_empty` gives methods without invariants the empty
    prompt to retain.
    """

    def edit(weights: Mapping[str, Tensor], rows: ErasureRows) -> Edited:
        retain = with_empty(rows) if keep_empty else rows.retain
        erasure = solve(
            weights,
            rows.targets,
            rows.anchors,
            retain,
            rows.invariants,
            settings,
            probes=rows.probes,
        )
        return Edited(apply_edits(weights, erasure.edits), erasure)

    return edit


def with_empty(rows: ErasureRows) -> Rows:
    """The retain set and, as one more concept, the empty prompt."""
    count = len(rows.invariants)
    empty = Rows(rows.invariants, (0,) * count, ("",), (True,) * count)
    return join([rows.retain, empty])


def orthogonal(
    erase: float = 1.0,
    keep: float = 0.3,
    broad: float = 0.5,
    ridge: float = 1.5,
    names: int | None = None,
) -> Edit:
    """OCE: W* = Q W with Q orthogonal (Procrustes); objective and default weights as in its
    released code, own code.

    `names`: how many kept names the weight `keep` is meant for; with another number they weigh as
    much together.

    Q maximises tr(Q' M) with M = -erase E E'(I - G G') + keep W C0 C0' W' + broad W K W' + ridge W
    W', so Q = U V' of M's SVD. E and G are orthonormal bases of the targets' and the anchors'
    outputs, so the first term turns what only the targets say against itself; K, published as the
    second moment of a large caption set, is here the mean second moment of the retained rows and
    the empty prompt.
    """

    def edit(weights: Mapping[str, Tensor], rows: ErasureRows) -> Edited:
        retain = with_empty(rows)
        shares = retain.weights().double()[:, None]
        edited = {}
        for key, weight in weights.items():
            wide = weight.double()
            own, guide = (_output_basis(part, wide) for part in (rows.targets, rows.anchors))
            kept = retain.values.double() @ wide.T
            moment = (shares * kept).T @ kept
            away = own @ own.T
            target = -erase * (away - away @ guide @ guide.T)
            each = keep if names is None else keep * names / len(retain.names)
            target += (each + broad / len(retain.names)) * moment + ridge * wide @ wide.T
            left, _, right = torch.linalg.svd(target)
            turn = left @ right
            turn[:, -1] *= torch.linalg.det(turn).sign()
            edited[key] = (turn @ wide).to(weight.dtype)
        return Edited(edited)

    return edit


def _output_basis(rows: Rows, weight: Tensor) -> Tensor:
    """`o x q`: orthonormal basis of the outputs of the concepts, each compressed to its leading
    direction.
    """
    leading = []
    for concept in range(len(rows.names)):
        outputs = rows.values[rows.group_index() == concept].double() @ weight.T
        leading.append(torch.linalg.svd(outputs, full_matrices=False).Vh[0])
    return torch.linalg.qr(torch.stack(leading, dim=1)).Q


BARE = RowChoice(side="bare")
TARGETS = RowChoice(side="targets")
BOTH = RowChoice(side="both")
WHOLE = RowChoice(
    side="both",
    positions=Position.INFORMATIVE,
    retain_positions=Position.INFORMATIVE | EXTRA_KEPT_POSITIONS,
)
"""Rows of the whole prompt on both sides: what `auto` is given."""


FIRST_RELEASE = {
    "prior": "null_space",
    "threshold_mode": "relative",
    "threshold": 1e-3,
    "rows_per_concept": 8,
}
"""What `auto` was before the soft prior: the strictest threshold under which the targets reach
their anchors.
"""


def speed(name: str, label: str, rows: RowChoice, preset: str, **changes: Any) -> Method:
    """SPEED, or one of the engine's baselines, from a preset."""
    settings = EraseSettings.preset(preset, **changes)
    baseline = settings.method in ("uce", "rece") and rows.side == "both"
    return Method(name, label, rows, by_engine(settings, keep_empty=baseline), settings.to_dict())


def _listed() -> list[Method]:
    # Erase 1, preserve 0.1, ridge 0.1 are meant as the usual weights of UCE and RECE; not checked
    # against their code.
    rival = {"lam": 0.1, "preserve_weight": 0.1}
    plain = {"ipf": False, "dpa": False}
    return [
        Method("none", "untouched", BOTH, untouched),
        speed("uce_bare", "UCE", BARE, "few", method="uce", **rival),
        speed("uce_both", "UCE, rows in context", BOTH, "few", method="uce", **rival),
        speed(
            "rece_bare", "RECE, 3 rounds", BARE, "few", method="rece", adversarial_rounds=3, **rival
        ),
        speed(
            "rece_both",
            "RECE, 3 rounds, rows in context",
            BOTH,
            "few",
            method="rece",
            adversarial_rounds=3,
            **rival,
        ),
        speed(
            "null_bare", "null space only (AlphaEdit); ablation 1", BARE, "few", method="null_space"
        ),
        speed(
            "null_both", "null space only, rows in context", BOTH, "context", method="null_space"
        ),
        speed("abl2_bare", "ablation 2: IEC", BARE, "few", **plain),
        speed("abl3_bare", "ablation 3: IEC, IPF", BARE, "few", dpa=False),
        speed("abl4_bare", "ablation 4: IEC, IPF, RPA", BARE, "few", dpa=False, rpa=True),
        speed("speed_few", "SPEED as published (few)", BARE, "few"),
        speed("speed_multi", "SPEED as published (multi)", BARE, "multi"),
        Method("oce_bare", "OCE, its command line's weights", BARE, orthogonal()),
        Method("oce_both", "OCE, rows in context", BOTH, orthogonal()),
        Method("oce_hard", "OCE, rows in context, erase weight 100", BOTH, orthogonal(erase=100.0)),
        speed("targets", "SPEED, rows in context for targets only", TARGETS, "context"),
        speed("both", "SPEED, rows in context on both sides (context)", BOTH, "context"),
        speed(
            "auto",
            "soft prior, whole prompts, chosen on its curve (auto: the default)",
            WHOLE,
            "auto",
        ),
        speed("auto_1", "the first release's default", BOTH, "auto", **FIRST_RELEASE),
        *(
            speed(f"auto_at{n}", f"auto with {_rounds(n)}", WHOLE, "auto", adversarial_rounds=n)
            for n in (1, 3)
        ),
        speed(
            "auto_at3_more",
            "auto with 3 rounds of 64 rows",
            WHOLE,
            "auto",
            adversarial_rounds=3,
            rows_per_concept=64,
        ),
        *(
            speed(
                f"both_at{n}", f"context with {_rounds(n)}", BOTH, "context", adversarial_rounds=n
            )
            for n in (1, 2, 3)
        ),
    ]


def _rounds(count: int) -> str:
    return "1 adversarial round" if count == 1 else f"{count} adversarial rounds"


METHODS: dict[str, Method] = {method.name: method for method in _listed()}


def varied(base: str, name: str, rows: dict[str, Any] | None = None, **changes: Any) -> Method:
    """A method with some settings or row choices changed, for sweeps."""
    method = METHODS[base]
    settings = EraseSettings.from_dict(method.settings).replace(**changes)
    return replace(
        method,
        name=f"{base}.{name}",
        label=f"{method.label}, {name}",
        rows=replace(method.rows, **(rows or {})),
        edit=by_engine(settings),
        settings=settings.to_dict(),
    )
