"""The certificate: what was erased, what was kept and what still stands, measured on the weights without sampling.

A residual compares outputs: |(W + dW) c1 - W c*| / |W c1 - W c*|, 1 for an untouched target, 0 for one that has become
its anchor. Drift is |dW c0| / |W c0|. A concept counts as erased only on rows in contexts that the solve never saw:
cross attention reads every row of a prompt, so the rows that were solved for prove nothing by themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from .layer_solver import SolvedLayer
from .problem import Problem
from .rows import Rows, per_concept

ERASED_BELOW = 0.35
"""Residual in unseen contexts up to which a concept counts as erased."""
STANDS_ABOVE = 0.7
"""Residual from which the concept counts as standing; between the two it is weakened."""
ALIKE_BELOW = 0.05
"""Target and anchor whose outputs differ by less than this share of the target's are nearly the same."""
RIVAL_WITHIN = 0.25
"""A retain row nearer to a target than this share of the target's way to its anchor fights the erasure."""
TIGHT_ROOM = 0.05
"""Share of the embedding width below which the null space is nearly full."""
WORST = 10


@dataclass(frozen=True)
class ConceptResult:
    """One erased concept."""

    name: str
    verdict: str
    """erased, weakened, stands, or unproven where no unseen context was given."""
    solved_median: float
    """Residual on the rows of the solve, median over layers."""
    solved_worst: float
    probe_median: float | None
    """Residual on rows in contexts the solve never saw."""
    probe_worst: float | None
    energy_lost: float
    """Share of the change that compressing the concept's rows gave up."""


@dataclass(frozen=True)
class Drift:
    """How far a group of retain names moved, over names and layers."""

    group: str
    """kept, filtered or held_out."""
    where: str
    """bare or context."""
    names: int
    median: float
    p95: float
    maximum: float
    worst: tuple[tuple[str, float], ...]
    """The names that moved most, by their median over layers."""


@dataclass(frozen=True)
class LayerFacts:
    """What the solve did in one layer."""

    key: str
    kept: int
    added: int
    room: int
    """Dimension of the null space left for erasing."""
    rank: int
    change: float
    """|dW| / |W|."""


@dataclass(frozen=True)
class Round:
    """The leak before an adversarial round (round 0: after the first solve)."""

    number: int
    mean_leak: float
    worst_leak: float


@dataclass(frozen=True)
class Certificate:
    """Serialises to JSON and prints as a short text."""

    concepts: tuple[ConceptResult, ...]
    drift: tuple[Drift, ...]
    sot_drift: float | None
    null_text_drift: tuple[float, ...]
    """Drift of each row of the empty prompt after SOT, largest over layers."""
    layers: tuple[LayerFacts, ...]
    rounds: tuple[Round, ...]
    seconds: dict[str, float]
    warnings: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for `json.dumps`."""
        return asdict(self)

    def short(self) -> dict[str, Any]:
        """What goes into a file's header: no per-layer and no per-token lists."""
        whole = self.to_json()
        whole["null_text_drift"] = max(self.null_text_drift, default=None)
        whole["layers"] = len(self.layers)
        return whole

    def text(self) -> str:
        """A few lines for people."""
        from .certificate_text import describe

        return describe(self)


class Measurer:
    """Collects the measurements layer by layer."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.solved = _PairRows(problem.targets, problem.anchors)
        self.probed = _PairRows(*problem.probes) if problem.probes else None
        self.retained = _RetainRows(problem.retain)
        self.aside = _RetainRows(problem.held_out) if problem.held_out else None
        self.invariant_drift: list[Tensor] = []
        self.alike: list[Tensor] = []
        self.facts: list[tuple[str, Tensor, Tensor, int, int, Tensor]] = []

    def measure(self, key: str, weight: Tensor, layer: SolvedLayer) -> None:
        """One layer; tensors stay on their device until the certificate is written."""
        edit = layer.edit
        self.alike.append(self.solved.measure(weight, edit.up, edit.down))
        if self.probed:
            self.probed.measure(weight, edit.up, edit.down)
        self.retained.measure(weight, edit.up, edit.down, layer.kept)
        if self.aside:
            self.aside.measure(weight, edit.up, edit.down, None)
        rows = self.problem.invariants
        self.invariant_drift.append(_moved(edit.up, edit.down, rows) / (rows @ weight.T).norm(dim=1))
        size = ((edit.up.T @ edit.up) * (edit.down @ edit.down.T)).sum().clamp(min=0).sqrt() / weight.norm()
        self.facts.append((key, layer.kept.sum(), layer.added, layer.room, edit.rank, size))

    def certificate(self, rounds: list[Round], seconds: dict[str, float]) -> Certificate:
        """The finished certificate, in the caller's order of concepts."""
        invariant = torch.stack(self.invariant_drift).amax(dim=0).tolist()
        concepts = self._concepts()
        drift = tuple(self.retained.summaries() + (self.aside.summaries() if self.aside else []))
        layers = tuple(
            LayerFacts(key, int(kept), int(added), room, rank, float(size))
            for key, kept, added, room, rank, size in self.facts
        )
        warnings = self._warnings(concepts, layers)
        return Certificate(
            concepts,
            drift,
            invariant[0] if invariant else None,
            tuple(invariant[1:]),
            layers,
            tuple(rounds),
            dict(seconds),
            warnings,
            self.problem.settings.to_dict(),
        )

    def _concepts(self) -> tuple[ConceptResult, ...]:
        solved = self.solved.over_layers()
        probed = self.probed.over_layers() if self.probed else None
        lost = self.problem.pairs.energy_lost
        results = []
        for i, name in enumerate(display_names(self.problem.targets)):
            median, worst = solved[0][i], solved[1][i]
            seen, seen_worst = (probed[0][i], probed[1][i]) if probed else (None, None)
            results.append(ConceptResult(name, verdict(median, seen), median, worst, seen, seen_worst, lost[i]))
        return tuple(results)

    def _warnings(self, concepts: tuple[ConceptResult, ...], layers: tuple[LayerFacts, ...]) -> tuple[str, ...]:
        problem = self.problem
        names = display_names(problem.targets)
        found: list[str] = []
        if not len(problem.retain.values):
            found.append("No retain set was given: nothing but the empty prompt is protected.")
        room = min(fact.room for fact in layers)
        if room < TIGHT_ROOM * problem.targets.width:
            found.append(
                f"The null space is nearly full ({room} of {problem.targets.width} dimensions left): erasure will be "
                "weak. Use fewer retain names, switch IPF on, or raise the threshold."
            )
        for concept in concepts:
            if concept.verdict in ("stands", "weakened"):
                found.append(
                    f"{concept.name!r} survives in context: {concept.probe_median:.0%} of it remains in prompts that "
                    "the solve did not see. Erase with rows in context."
                )
            if concept.energy_lost > ALIKE_BELOW:
                found.append(
                    f"Compressing {concept.name!r} gave up {concept.energy_lost:.0%} of its change: "
                    "raise rows_per_concept."
                )
        alike = torch.stack(self.alike).median(dim=0).values.tolist()
        found += [
            f"{name!r} and its anchor are nearly equal for the model: there is little to erase, choose another anchor."
            for name, share in zip(names, alike, strict=True)
            if share < ALIKE_BELOW
        ]
        found += [
            f"The retain name {kept!r} is nearly the same as the target {target!r} and fights its erasure: drop it."
            for kept, target in rivals(problem)
        ]
        return tuple(found)


class _PairRows:
    """Residuals of target rows against their anchor rows."""

    def __init__(self, targets: Rows, anchors: Rows) -> None:
        self.rows, self.index = targets, targets.group_index()
        self.change = anchors.values - targets.values
        self.left: list[Tensor] = []

    def measure(self, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """Notes a layer's residuals; returns |W c* - W c1| / |W c1| for each concept."""
        concepts = len(self.rows.names)
        wanted = self.change @ weight.T
        missing = (self.rows.values @ down.T) @ up.T - wanted
        whole = per_concept(wanted.square().sum(dim=1), self.index, concepts)
        part = per_concept(missing.square().sum(dim=1), self.index, concepts)
        self.left.append((part / whole.clamp(min=torch.finfo(whole.dtype).tiny)).sqrt() * (whole > 0))
        own = per_concept((self.rows.values @ weight.T).square().sum(dim=1), self.index, concepts)
        return (whole / own.clamp(min=torch.finfo(own.dtype).tiny)).sqrt()

    def over_layers(self) -> tuple[list[float], list[float]]:
        """Median and worst residual of each concept."""
        left = torch.stack(self.left)
        return left.median(dim=0).values.tolist(), left.amax(dim=0).tolist()


class _RetainRows:
    """Drift of retain rows, bare and in context apart."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.index = rows, rows.group_index()
        self.context = torch.tensor(rows.in_context, dtype=torch.bool, device=rows.values.device)
        # The denominators need no more than a report's precision, and single precision halves the cost of the largest
        # product of the whole certificate.
        self.single = rows.values.to(torch.float32)
        self.moved: list[Tensor] = []
        self.size: list[Tensor] = []
        self.kept: list[Tensor | None] = []

    def measure(self, weight: Tensor, up: Tensor, down: Tensor, kept: Tensor | None) -> None:
        """Notes how far each row moves in one layer."""
        if not len(self.single):
            return
        single = weight.to(torch.float32)
        size = torch.cat([(part @ single.T).square().sum(dim=1) for part in self.single.split(4096)])
        self.moved.append(_moved(up, down, self.rows.values).square())
        self.size.append(size.to(up.dtype))
        self.kept.append(kept)

    def summaries(self) -> list[Drift]:
        """One summary for each group and place that has any names."""
        if not self.moved:
            return []
        moved, size = torch.stack(self.moved), torch.stack(self.size)
        names = display_names(self.rows)
        found = []
        for where, rows in (("bare", ~self.context), ("context", self.context)):
            if not bool(rows.any()):
                continue
            index, concepts = self.index[rows], len(names)
            whole = per_concept(size[:, rows], index, concepts)
            drift = (per_concept(moved[:, rows], index, concepts) / whole.clamp(min=1e-30)).sqrt()
            if self.kept[0] is None:
                found.append(_summary("held_out", where, names, drift, whole > 0))
                continue
            flags = torch.stack([k for k in self.kept if k is not None])[:, rows].to(moved)
            kept = per_concept(flags, index, concepts) > 0
            found += [
                _summary(group, where, names, drift, chosen & (whole > 0))
                for group, chosen in (("kept", kept), ("filtered", ~kept))
                if bool((chosen & (whole > 0)).any())
            ]
        return found


def _summary(group: str, where: str, names: list[str], drift: Tensor, chosen: Tensor) -> Drift:
    """Statistics over the chosen (layer, name) pairs of a `layers x names` table."""
    values = drift[chosen]
    ranks = torch.tensor([0.5, 0.95, 1.0], dtype=values.dtype, device=values.device)
    median, p95, maximum = _quantiles(values, ranks).tolist()
    by_name = torch.where(chosen, drift, torch.nan).nanmedian(dim=0).values.nan_to_num(-1.0)
    top = by_name.topk(min(WORST, len(names)))
    listed = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    worst = tuple((names[i], value) for i, value in listed if value >= 0)
    return Drift(group, where, int(chosen.any(dim=0).sum()), median, p95, maximum, worst)


def _quantiles(values: Tensor, ranks: Tensor) -> Tensor:
    """Nearest-rank quantiles; `torch.quantile` refuses more than 16 million values."""
    ordered = values.sort().values
    return ordered[((len(ordered) - 1) * ranks).round().long()]


def _moved(up: Tensor, down: Tensor, rows: Tensor) -> Tensor:
    """`m`: |dW c| for each row c, through the small side of the edit."""
    inner = up.T @ up
    parts = []
    for part in rows.split(4096):
        response = part @ down.T
        parts.append(((response @ inner) * response).sum(dim=1).clamp(min=0).sqrt())
    return torch.cat(parts) if parts else rows.new_zeros((0,))


def verdict(solved: float, probed: float | None) -> str:
    """erased, weakened or stands by the unseen contexts; without any, nothing is proven."""
    if probed is None:
        return "unproven"
    left = max(solved, probed)
    return "erased" if left <= ERASED_BELOW else "weakened" if left < STANDS_ABOVE else "stands"


def rivals(problem: Problem) -> list[tuple[str, str]]:
    """Retain names that nearly coincide with a target, with that target."""
    if not len(problem.retain.values):
        return []
    kept_names, target_names = display_names(problem.retain), display_names(problem.targets)
    way = (problem.anchors.values - problem.targets.values).norm(dim=1)
    near = torch.cdist(problem.targets.values, problem.retain.values) < RIVAL_WITHIN * way[:, None]
    found = {
        (kept_names[problem.retain.groups[kept]], target_names[problem.targets.groups[target]])
        for target, kept in near.nonzero().tolist()
    }
    return sorted(found)


def display_names(rows: Rows) -> list[str]:
    """Names for people; rows without one are numbered."""
    return [name or f"#{i + 1}" for i, name in enumerate(rows.names)]
