"""Methods side by side, each with the rows it gets: bare names, as published, or the package's."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor

from speed_erase.speed_ops import EraseSettings, solve
from speed_erase.speed_ops.certificate.certificate import Certificate
from speed_erase.speed_ops.embed import embed
from speed_erase.speed_ops.engine import auto
from speed_erase.speed_ops.engine.edits import apply_edits
from speed_erase.speed_ops.engine.rows import Rows, RowSet, join
from speed_erase.speed_ops.inputs import POOLED, TOKENS
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.text.concept_list import Concept
from speed_erase.speed_ops.text.retain_set import builtin_retain, drop_targets
from speed_erase.speed_ops.text.tokens import EXTRA_KEPT_POSITIONS, Position

from .. import rivals
from ..frontier.cells import Cell, compressed
from .model import Crowd
from .tasks import TASKS, Task, kept_names, own_names, settings_for
from .values import value_edit

Group = Literal[
    "untouched", "ours", "aim", "entry", "paper", "released", "lent", "hard", "ablation"
]
"""ours: auto and its limits; aim: auto that goes further beyond the replacement; entry: auto with
other rows, or one text input alone; paper: SPEED's presets, with the name's own row; released:
rows, weights, layers and rounds of the authors' code; lent: a rival's objective with our rows;
hard: the null space on our rows along its threshold; ablation: the paper without some of its
parts."""
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
THRESHOLDS = (1e-4, 1e-2, 1.0)
STRENGTHS = (1.0, 10.0, 100.0)
"""The grid: times the released weight of erasing. OCE's belong to the size of SD1.4's weights, so
smaller ones are tried as well."""
TRIED = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6)
"""Side-effect limits that are tried."""


@dataclass(frozen=True)
class Method:
    """A name for tables, and what decides the edit."""

    name: str
    label: str
    group: Group
    settings: EraseSettings | None = None
    """For our engine; None: no engine method."""
    bare: bool = False
    """Whether it gets the names alone."""
    rival: str = ""
    """Which released function, or `oce` with our rows."""
    prompts: bool = False
    """Whether a released script adds its prompts to the names."""
    times: float = 1.0
    """How many times the released weight of erasing."""
    own_list: bool = False
    """Whether only the test set's names are protected, without the built-in lists."""
    by_distance: bool = False
    """Whether `auto` chooses by the distance to the replacement alone."""
    positions: Position | None = None
    """Rows of a prompt; None: as the default takes them."""
    inputs: tuple[str, ...] = (TOKENS, POOLED)
    """Text inputs whose layers are edited, where the model has them."""
    inner: bool = False
    """Whether values inside the transformer are edited as well."""


@dataclass(frozen=True, eq=False)
class Edited:
    """Edited value weights, and what the engine says of them."""

    weights: dict[str, Tensor]
    certificate: Certificate | None
    seconds: float


class TaskRows:
    """The rows of one task, read when they are first needed."""

    def __init__(self, task: Task, crowd: Crowd, **effort: Any):
        self._task, self._crowd, self._effort = task, crowd, effort
        self._rows: dict[Position | None, dict[str, RowSet]] = {}

    def rows(self, positions: Position | None = None) -> dict[str, RowSet]:
        """Our rows of each text input."""
        if positions not in self._rows:
            job = self._task.job(settings_for(**self._effort))
            if positions is not None:
                kept = {"retain_positions": positions | EXTRA_KEPT_POSITIONS}
                job = replace(job, plan=replace(job.plan, positions=positions, **kept))
            self._rows[positions] = self._embedded(job, tuple(dict.fromkeys(self._inputs.values())))
        return self._rows[positions]

    @cached_property
    def cell(self) -> Cell:
        """Our rows and the bare ones."""
        bare = self._embedded(self._task.job(EraseSettings.preset("few")), (TOKENS,))
        return Cell(self.rows()[TOKENS], bare[TOKENS])

    @property
    def _inputs(self) -> Mapping[str, str]:
        return self._crowd.inputs

    def _weights(self, text_input: str = TOKENS) -> dict[str, Tensor]:
        untouched = self._crowd.original
        return {key: untouched[key] for key, name in self._inputs.items() if name == text_input}

    def _embedded(self, job: Job, text_inputs: tuple[str, ...]) -> dict[str, RowSet]:
        return embed(job, self._weights(), self._crowd.text.engine, text_inputs)[0]

    def edit(self, method: Method) -> Edited:
        """The weights as a method leaves them."""
        if method.group == "untouched":
            return Edited(dict(self._crowd.original), None, 0.0)
        begin = time.monotonic()
        if method.group == "released":
            self._crowd.text.rows(kept_names(self._task.concepts).names)  # in batches
            edited = released(method, self._task, self._crowd)
            return Edited(edited, None, time.monotonic() - begin)
        if method.group in ("ours", "aim", "entry"):
            extra = math.inf if method.by_distance else auto.MAX_EXTRA_RESIDUAL
            with patch.object(auto, "MAX_EXTRA_RESIDUAL", extra):
                return self._ours(method)
        cell = self.cell
        if method.settings is None:
            weights = oce_weights(self._task.concepts, method.times)
            edited = orthogonal(self._weights(), cell.rows, **weights)
            return Edited(edited, None, time.monotonic() - begin)
        settings = method.settings
        if method.bare:  # nothing is set aside from the paper's presets
            judged = {name: getattr(cell.rows, name) for name in ("probes", "kinds")}
            rows = replace(cell.bare, **judged)
        else:
            rows = cell.rows_for(True)
            if settings.method in ("uce", "rece"):
                rows = replace(rows, retain=with_empty(rows.retain, rows.invariants))
            settings = compressed(settings, len(rows.targets.names))
        return self._solved({TOKENS: rows}, settings)

    def _ours(self, method: Method) -> Edited:
        assert method.settings is not None
        rows = self.rows(method.positions) if method.inputs else {}
        chosen = {name: own for name, own in rows.items() if name in method.inputs}
        edited = self._solved(chosen, method.settings)
        if method.positions is not None:  # it is measured on its own rows, not on all
            edited = replace(edited, certificate=None)
        if not method.inner:
            return edited
        inner = value_edit(self._crowd, self._task, edited.weights or self._crowd.original)
        return replace(edited, weights=edited.weights | inner)

    def _solved(self, rows: Mapping[str, RowSet], settings: EraseSettings) -> Edited:
        """The engine's edit of each text input's layers; the certificate is the rows'."""
        weights, certificate, seconds = dict[str, Tensor](), None, 0.0
        for text_input, row_set in rows.items():
            untouched = self._weights(text_input)
            erasure = solve(untouched, row_set, settings)
            parts = erasure.certificate.seconds.items()
            seconds += sum(took for part, took in parts if part != "certificate")
            weights |= apply_edits(untouched, erasure.edits)
            certificate = erasure.certificate if text_input == TOKENS else certificate
        return Edited(weights, certificate, seconds)


def released(method: Method, task: Task, crowd: Crowd) -> dict[str, Tensor]:
    """A rival's edit with all that its released scripts decide, and our protected names.

    Args:
        method: Which rival, and its weight of erasing.
        task: What to erase.
        crowd: The text encoder, and the layers that rivals edit.
    """
    reader = crowd.text.reader()
    concepts = task.concepts
    protected = own_names(concepts) if method.own_list else kept_names(concepts)
    kept = drop_targets(protected, concepts)[0].names
    pairs = [(phrase, item.anchor or " ") for item in concepts for phrase in item.phrases]
    wide = {key: value.double() for key, value in crowd.layers.items()}
    if method.prompts:
        pairs = rivals.expanded(pairs, "style" if concepts[0].kind == "style" else "object")
    if method.rival == "uce_2023":
        edited = rivals.uce_2023(wide, reader, pairs, kept, erase=method.times)
    elif method.rival == "uce_2025":
        edited = rivals.uce_2025(wide, reader, pairs, kept, erase=method.times)
    elif method.rival == "rece":
        theme = concepts[0].kind == "theme"
        strength = {"rounds": 3, "reg": 0.1} if theme else {"rounds": 1, "reg": 1e-3}
        edited = rivals.rece(wide, reader, pairs, kept, erase=method.times, **strength)
    elif method.rival == "oce":
        values = {key: value for key, value in wide.items() if key in crowd.inputs}
        weights = oce_weights(concepts, method.times)
        weights["keep"] *= weights.pop("names") / len(kept)
        captions = rivals.second_moment(reader, builtin_retain("scenes").names)
        edited = rivals.oce(values, reader, pairs, kept, captions, **weights)
    else:
        edited = rivals.double_projections(wide, reader, pairs, kept)
    return {key: value.float() for key, value in edited.items()}


def oce_weights(concepts: Sequence[Concept], times: float) -> dict[str, Any]:
    """OCE's released weights for such a task, its weight of erasing multiplied."""
    single = "style" if concepts[0].kind == "style" else "object"
    weights = OCE["many" if len(concepts) >= 10 else single]
    return weights | {"erase": times * weights["erase"]}


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


def _named(name: str, label: str, times: float) -> dict[str, Any]:
    if times == 1:
        return {"name": name, "label": label}
    return {"name": f"{name}_x{times:g}", "label": f"{label}, {times:g} times the weight"}


NONE = Method("none", "untouched", "untouched")
DEFAULT = "auto"
_few = EraseSettings.preset("few")
_uce = _few.replace(method="uce", rows_per_concept=16, **RIVAL)
_NAMES = {share: f"auto_{100 * share:.0f}" for share in TRIED}
_NAMES[settings_for().drift_budget] = DEFAULT
_LIMITS = [
    Method(name, f"SPEED, limit {share:.2f}", "ours", settings_for(drift_budget=share))
    for share, name in _NAMES.items()
]
AIMS = (1.6, 2.0)
"""How far beyond the replacement is tried; OCE turns a concept as far as 2.0."""
_AIMS = [
    Method(f"aim_{aim:g}", f"SPEED, aimed at {aim:g}", "aim", settings_for(overshoot=aim))
    for aim in AIMS
] + [
    Method(
        f"far_{aim:g}",
        f"SPEED, aimed at {aim:g}, chosen by distance",
        "aim",
        settings_for(overshoot=aim),
        by_distance=True,
    )
    for aim in (1.1, *AIMS)
]
_RELEASED = [
    Method(
        **_named(name, label, times), group="released", rival=rival, prompts=prompts, times=times
    )
    for name, label, rival, prompts, grid in (
        ("uce_2023", "UCE 2023", "uce_2023", False, STRENGTHS),
        ("uce_2023_prompts", "UCE 2023, added prompts", "uce_2023", True, STRENGTHS[:1]),
        ("uce_2025", "UCE 2025, added prompts", "uce_2025", True, STRENGTHS[:2]),
        ("rece", "RECE", "rece", False, STRENGTHS[:1]),
        ("oce", "OCE, added prompts", "oce", True, (0.01, 0.1, *STRENGTHS[:1])),
        ("oce_plain", "OCE", "oce", False, (0.01, 0.1, *STRENGTHS[:2])),
        ("double_projections", "Double Projections", "double_projections", False, STRENGTHS[:1]),
    )
    for times in grid
]
_OWN_LIST = [
    replace(
        method,
        name=f"{method.name}_own_list",
        label=f"{method.label}, few protected names",
        own_list=True,
    )
    for method in _RELEASED
    if method.name in ("uce_2023", "uce_2025", "rece", "oce", "double_projections")
]
_PAPER = [
    Method("few", "SPEED few", "paper", _few, bare=True),
    Method("multi", "SPEED multi", "paper", EraseSettings.preset("multi"), bare=True),
    Method("implicit", "SPEED implicit", "paper", EraseSettings.preset("implicit"), bare=True),
]
_LENT = [
    *(Method(f"{m.name}_lent", f"{m.label}, our rows", "lent", m.settings) for m in _PAPER[:2]),
    *(
        Method(**_named("uce_lent", "UCE, our rows", times), group="lent", settings=settings)
        for times in STRENGTHS
        for settings in (_uce.replace(erase_weight=times),)
    ),
    Method(
        "rece_lent", "RECE, our rows", "lent", _uce.replace(method="rece", adversarial_rounds=3)
    ),
    *(
        Method(**_named("oce_lent", "OCE, our rows", times), group="lent", times=times)
        for times in STRENGTHS
    ),
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
    Method(f"{name}{suffix}", f"{label}{words}", "ablation", settings, bare=not suffix)
    for name, label, settings in (
        ("null", "null space only", _few.replace(method="null_space")),
        ("iec", "SPEED few without IPF and DPA", _few.replace(ipf=False, dpa=False)),
        ("ipf", "SPEED few without DPA", _few.replace(dpa=False)),
        ("rpa", "SPEED few, RPA for DPA", _few.replace(dpa=False, rpa=True)),
    )
    for suffix, words in (("", ""), ("_lent", ", our rows"))
]
_HARD = [
    Method(f"hard_{value:g}", f"null space on our rows, threshold {value:g}", "hard", settings)
    for value in THRESHOLDS
    for settings in (EraseSettings.preset("fixed", threshold=value, rows_per_concept=16),)
]

_NAME_ROWS = Position.FIRST_SUBJECT | Position.MIDDLE_SUBJECT | Position.LAST_SUBJECT
_ENTRY = [
    Method(name, f"SPEED, {words}", "entry", settings_for(), **changes)
    for name, words, changes in (
        ("only_tokens", "the rows' layer alone", {"inputs": (TOKENS,)}),
        ("only_pooled", "the pooled input's layer alone", {"inputs": (POOLED,)}),
        ("rows_last", "the name's last token", {"positions": Position.LAST_SUBJECT}),
        ("rows_name", "the name's tokens", {"positions": _NAME_ROWS}),
        ("rows_text", "every token, no padding", {"positions": Position.TOKENS}),
        ("rows_all", "every row", {"positions": Position.ALL}),
        ("inner_too", "and values inside", {"inner": True}),
        ("inner_alone", "values inside alone", {"inputs": (), "inner": True}),
    )
]
_ALL = (NONE, *_LIMITS, *_AIMS, *_ENTRY, *_RELEASED, *_OWN_LIST, *_PAPER, *_LENT, *_ABLATED, *_HARD)
METHODS = {method.name: method for method in _ALL}
SPEED_LENT = ("few", "multi")
CURVED = ("painters10", "subjects3")
"""Tasks on which soft and hard are compared along their knobs, and the paper's components are taken
away."""


def methods_of(task: str) -> list[Method]:
    """What is run on a task, the most important first."""
    limits = [method for method in reversed(_LIMITS) if method.name != DEFAULT]
    at_once = [method for method in _RELEASED if method.times == 1]
    stronger = [method for method in _RELEASED if method.times != 1]
    lent = [method for method in _LENT if task in CURVED or not method.name.startswith(SPEED_LENT)]
    paper = _PAPER if task == "night" else _PAPER[:2]
    chosen = [NONE, METHODS[DEFAULT], *at_once, *_AIMS, *stronger, *limits, *lent, *paper]
    return [*chosen, *_OWN_LIST, *_HARD, *_ABLATED] if task in CURVED else chosen


INPUTS_ALONE = ("only_tokens", "only_pooled")
RIVALS = ("double_projections", "uce_2025", "uce_2023", "oce", "rece")
STRONGER = ("uce_lent", "oce_lent", "uce_2025_x10", "uce_2023_x100", "uce_lent_x100", "oce_x0.1")


def entry_methods_of(task: str) -> list[Method]:
    """The same for a model where text enters at one layer, shorter."""
    first = [NONE.name, DEFAULT]
    limits = [method.name for method in reversed(_LIMITS) if method.name != DEFAULT]
    if task not in TASKS:  # a task in other words
        chosen = [*first, *INPUTS_ALONE]
    elif task in CURVED:
        own_list = ("double_projections_own_list", "uce_2025_own_list")
        variants = [method.name for method in _ENTRY]
        chosen = [*first, *RIVALS, *variants, *limits, *STRONGER, *own_list]
    else:
        chosen = [*first, *limits, *RIVALS, *STRONGER]
    return [METHODS[name] for name in chosen]
