"""Methods side by side, each with the rows it gets: bare names, as published, or the package's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from speed_erase.speed_ops import EraseSettings, solve
from speed_erase.speed_ops.certificate.certificate import Certificate
from speed_erase.speed_ops.embed import embed
from speed_erase.speed_ops.engine.edits import apply_edits
from speed_erase.speed_ops.engine.rows import Rows, RowSet, join
from speed_erase.speed_ops.inputs import TOKENS
from speed_erase.speed_ops.text.retain_set import builtin_retain, drop_targets

from .. import rivals
from ..frontier.cells import Cell, compressed
from ..rivals import Reader
from .model import TO_V
from .tasks import Task, kept_names, settings_for
from .text import CrowdText

Group = Literal["untouched", "ours", "released", "published", "lent", "hard", "ablation"]
"""ours: auto and its budgets; released: rows, weights, layers and rounds of the authors' code;
published: the name's own row; lent: the same method with our rows;
hard: the null space on our rows along its threshold; ablation: a published method without some of
its parts."""
RIVAL = {"lam": 0.1, "preserve_weight": 0.1}
"""Usual weights of UCE and RECE: erase 1, preserve 0.1, ridge 0.1."""
OCE = {
    "style": {"erase": 500.0, "keep": 1.0, "broad": 10.0, "ridge": 10.0, "names": 2},
    "object": {"erase": 2000.0, "keep": 0.0, "broad": 10.0, "ridge": 10.0, "names": 1},
    "many": {"erase": 3500.0, "keep": 5.0, "broad": 50.0, "ridge": 10.0, "names": 100},
}
"""OCE's weights in its released scripts, with the number of kept names there: one style, one
object, ten people. They belong to the size of SD1.4's weights, so larger weights of erasing are
tried as well."""
THRESHOLDS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class Method:
    """A name for tables, and the settings; None: no engine method."""

    name: str
    label: str
    group: Group
    settings: EraseSettings | None = None
    bare: bool = False
    """Whether it gets the names alone."""
    times: float = 1.0
    """Of OCE: how many times the released weight of erasing."""


@dataclass(frozen=True, eq=False)
class Edited:
    """Edited value weights, and what the engine says of them."""

    weights: dict[str, Tensor]
    certificate: Certificate | None
    seconds: float


class TaskRows:
    """The rows of one task, read when they are first needed."""

    def __init__(self, task: Task, text: CrowdText, layers: Mapping[str, Tensor], **effort: Any):
        self._task, self._text, self._layers, self._effort = task, text, layers, effort
        self._weights = {key: value for key, value in layers.items() if key.endswith(TO_V)}

    @cached_property
    def cell(self) -> Cell:
        """Our rows and the bare ones."""
        settings = (settings_for(**self._effort), EraseSettings.preset("few"))
        jobs = [self._task.job(own) for own in settings]
        return Cell(*(embed(job, self._weights, self._text.engine)[0][TOKENS] for job in jobs))

    def edit(self, method: Method) -> Edited:
        """The weights as a method leaves them."""
        if method.group == "untouched":
            return Edited(dict(self._weights), None, 0.0)
        begin = time.monotonic()
        if method.group == "released":
            edited = released(method, self._task, self._layers, self._text.reader())
            return Edited(edited, None, time.monotonic() - begin)
        cell = self.cell
        if method.settings is None:
            side = cell.bare if method.bare else cell.rows
            edited = orthogonal(self._weights, side, **self._oce(method.times))
            return Edited(edited, None, time.monotonic() - begin)
        settings, rows = method.settings, cell.rows
        if method.group != "ours":
            rows = cell.rows_for(not method.bare)
            if settings.method in ("uce", "rece"):
                rows = replace(rows, retain=with_empty(rows.retain, rows.invariants))
            if not method.bare:
                settings = compressed(settings, len(rows.targets.names))
        erasure = solve(self._weights, rows, settings)
        parts = erasure.certificate.seconds.items()
        seconds = sum(took for part, took in parts if part != "certificate")
        return Edited(apply_edits(dict(self._weights), erasure.edits), erasure.certificate, seconds)

    def _oce(self, times: float) -> dict[str, Any]:
        concepts = self._task.concepts
        single = "object" if concepts[0].kind == "object" else "style"
        kind = "many" if len(concepts) >= 10 else single
        return OCE[kind] | {"erase": times * OCE[kind]["erase"]}


def released(
    method: Method, task: Task, layers: Mapping[str, Tensor], reader: Reader
) -> dict[str, Tensor]:
    """A rival's edit with all that its released scripts decide, and our protected names.

    Args:
        method: Which rival, and its weight of erasing.
        task: What to erase.
        layers: K and V.
        reader: The text encoder.
    """
    concepts = task.concepts
    kept = drop_targets(kept_names(concepts), concepts)[0].names
    pairs = [(phrase, item.anchor or " ") for item in concepts for phrase in item.phrases]
    kind = "style" if concepts[0].kind == "style" else "object"
    wide = {key: value.double() for key, value in layers.items()}
    added = rivals.expanded(pairs, kind)
    erase = method.times
    if method.name.startswith("uce_2023"):
        edited = rivals.uce_2023(
            wide, reader, added if "prompts" in method.name else pairs, kept, erase=erase
        )
    elif method.name.startswith("uce_2025"):
        edited = rivals.uce_2025(wide, reader, added, kept, erase=erase)
    elif method.name.startswith("rece"):
        theme = concepts[0].kind == "theme"
        strength = {"rounds": 3, "reg": 0.1} if theme else {"rounds": 1, "reg": 1e-3}
        edited = rivals.rece(wide, reader, pairs, kept, erase=erase, **strength)
    elif method.name.startswith("oce"):
        values = {key: value for key, value in wide.items() if key.endswith(TO_V)}
        many = len(concepts) >= 10
        weights = dict(OCE["many" if many else kind])
        weights["erase"] *= erase
        weights["keep"] *= weights.pop("names") / len(kept)
        captions = rivals.second_moment(reader, builtin_retain("scenes").names)
        edited = rivals.oce(values, reader, pairs if many else added, kept, captions, **weights)
    else:
        edited = rivals.double_projections(wide, reader, pairs, kept)
    return {key: value.float() for key, value in edited.items()}


def with_empty(retain: Rows, invariants: Tensor) -> Rows:
    """The kept rows and, as one more concept, the empty prompt: for methods without invariants."""
    count = len(invariants)
    return join([retain, Rows(invariants, (0,) * count, ("",), (True,) * count)])


def orthogonal(
    weights: Mapping[str, Tensor],
    rows: RowSet,
    erase: float,
    keep: float,
    broad: float,
    ridge: float,
    names: int,
) -> dict[str, Tensor]:
    """OCE: W* = Q W with Q orthogonal (Procrustes); objective and weights as in its released code,
    our own code.

    Q maximizes tr(Q' M) with M = -erase E E'(I - G G') + keep W C0 C0' W' + broad W K W' + ridge W
    W', so Q = U V' of M's SVD. E and G are orthonormal bases of the targets' and the anchors'
    outputs, so the first term turns what only the targets say against itself; K, published as the
    second moment of a large caption set, is here the mean second moment of the retained rows and
    the empty prompt.

    Args:
        weights: The value layers.
        rows: What to erase and to keep.
        erase: Weight of the first term.
        keep: Weight of the second, meant for `names` kept names; others weigh as much together.
        broad: Weight of the third term.
        ridge: Weight of the last term.
        names: How many kept names `keep` is meant for.
    """
    retain = with_empty(rows.retain, rows.invariants)
    shares = retain.weights().double()[:, None]
    edited = {}
    for key, weight in weights.items():
        wide = weight.double()
        erased, guide = (_output_basis(side, wide) for side in (rows.targets, rows.anchors))
        kept = retain.values.double() @ wide.T
        away = erased @ erased.T
        target = -erase * (away - away @ guide @ guide.T)
        target += (keep * names + broad) / len(retain.names) * (shares * kept).T @ kept
        target += ridge * wide @ wide.T
        left, _, right = torch.linalg.svd(target)
        rotation = left @ right
        rotation[:, -1] *= torch.linalg.det(rotation).sign()
        edited[key] = (rotation @ wide).to(weight.dtype)
    return edited


def _output_basis(rows: Rows, weight: Tensor) -> Tensor:
    """`o x q`: orthonormal basis of the outputs of the concepts' leading directions."""
    leading = []
    for concept in range(len(rows.names)):
        outputs = rows.values[rows.group_index() == concept].double() @ weight.T
        leading.append(torch.linalg.svd(outputs, full_matrices=False).Vh[0])
    return torch.linalg.qr(torch.stack(leading, dim=1)).Q


def _pair(name: str, label: str, settings: EraseSettings | None, times: float = 1) -> list[Method]:
    """A method as published, and the same with our rows."""
    published = Method(name, label, "published", settings, bare=True, times=times)
    lent = Method(f"{name}_lent", f"{label}, our rows", "lent", settings, times=times)
    return [published, lent]


NONE = Method("none", "untouched", "untouched")
DEFAULT = "auto"
_few = EraseSettings.preset("few")
_uce = _few.replace(method="uce", rows_per_concept=16, **RIVAL)

TRIED = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6)
"""Budgets that are tried: the named ones, and one between those where pictures begin to change."""
_NAMES = {share: f"auto_{100 * share:.0f}" for share in TRIED}
_NAMES[settings_for().drift_budget] = DEFAULT
_BUDGETED = [
    Method(name, f"ours, limit {share:.2f}", "ours", settings_for(drift_budget=share))
    for share, name in _NAMES.items()
]
_RIVALS = [
    *_pair("few", "SPEED few", _few),
    *_pair("multi", "SPEED multi", EraseSettings.preset("multi")),
    *_pair("null", "null space only", _few.replace(method="null_space")),
    *_pair("uce", "UCE", _uce),
    *_pair("rece", "RECE", _uce.replace(method="rece", adversarial_rounds=3)),
    *_pair("oce_1", "OCE", None),
    *_pair("oce_10", "OCE, 10 times the weight", None, 10.0),
    *_pair("oce_100", "OCE, 100 times the weight", None, 100.0),
]
ABLATIONS = {
    "1: null space alone": "null",
    "2: and IEC": "iec",
    "3: and IPF": "ipf",
    "4: and RPA": "rpa",
    "SPEED: DPA for RPA": "few",
}
"""Rows of the paper's table, and the methods that fill them."""
_ABLATED = [
    replace(method, group="ablation")
    for method in (
        *_pair("iec", "SPEED few without IPF and DPA", _few.replace(ipf=False, dpa=False)),
        *_pair("ipf", "SPEED few without DPA", _few.replace(dpa=False)),
        *_pair("rpa", "SPEED few, RPA for DPA", _few.replace(dpa=False, rpa=True)),
    )
]
_HARD = [
    Method(f"hard_{value:g}", f"null space on our rows, threshold {value:g}", "hard", settings)
    for value in THRESHOLDS
    for settings in (EraseSettings.preset("fixed", threshold=value, rows_per_concept=16),)
]
STRENGTHS = (1.0, 10.0, 100.0)
"""The grid: times the released weight of erasing, for every rival that has one."""
_RELEASED = [
    Method(
        f"{name}_x{times:g}" if times > 1 else name,
        f"{label}, {times:g} times the weight" if times > 1 else label,
        "released",
        times=times,
    )
    for name, label, grid in (
        ("uce_2023", "UCE 2023", STRENGTHS),
        ("uce_2023_prompts", "UCE 2023, added prompts", STRENGTHS),
        ("uce_2025", "UCE 2025", STRENGTHS),
        ("rece_released", "RECE, released", STRENGTHS[:1]),
        ("oce_released", "OCE, released", STRENGTHS),
        ("double_projections", "Double Projections", STRENGTHS[:1]),
    )
    for times in grid
]
_IMPLICIT = _pair("implicit", "SPEED implicit", EraseSettings.preset("implicit"))

_ALL = (NONE, *_BUDGETED, *_RELEASED, *_RIVALS, *_ABLATED, *_HARD, *_IMPLICIT)
METHODS = {method.name: method for method in _ALL}
CURVED = ("painters1", "painters10", "painters20", "subjects3")
"""Tasks on which soft and hard are compared along their knobs."""
ABLATED = ("painters1", "painters10", "subjects3")
"""Tasks on which the paper's components are taken away."""


def methods_of(task: str) -> list[Method]:
    """What is run on a task, the most important first."""
    budgets = [method for method in reversed(_BUDGETED) if method.name != DEFAULT]
    published, lent = ([m for m in _RIVALS if m.group == group] for group in ("published", "lent"))
    implicit = _IMPLICIT if task == "night" else []
    chosen = [NONE, METHODS[DEFAULT], *_RELEASED, *published, *implicit, *budgets, *lent]
    chosen += _HARD if task in CURVED else []
    return chosen + (_ABLATED if task in ABLATED else [])
