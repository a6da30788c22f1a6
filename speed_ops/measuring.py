"""Measures an edit layer by layer: residuals of the targets, drift of the names and of the empty prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from .cautions import cautions
from .certificate import Certificate, ConceptResult, Drift, LayerFacts, Round, verdict
from .layer_solver import SolvedLayer
from .problem import Problem
from .rows import Rows, per_concept

WORST = 10
"""Names listed by name in each group of a drift summary."""


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
        alike = torch.stack(self.alike).median(dim=0).values.tolist()
        warnings = tuple(cautions(self.problem, concepts, layers, alike))
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
        for i, name in enumerate(self.problem.targets.labels()):
            median, worst = solved[0][i], solved[1][i]
            seen, seen_worst = (probed[0][i], probed[1][i]) if probed else (None, None)
            results.append(ConceptResult(name, verdict(median, seen), median, worst, seen, seen_worst, lost[i]))
        return tuple(results)


def left_of(wanted: Tensor, missing: Tensor) -> Tensor:
    """`m`: squared size of what is left of each row; `wanted` (`m x o`) leads to its anchor, `missing` on from it."""
    size = wanted.square().sum(dim=1)
    beyond = (missing * wanted).sum(dim=1).clamp(min=0).square() / size.clamp(min=torch.finfo(size.dtype).tiny)
    return (missing.square().sum(dim=1) - beyond).clamp(min=0)


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
        part = per_concept(left_of(wanted, missing), self.index, concepts)
        tiny = torch.finfo(whole.dtype).tiny
        self.left.append((part / whole.clamp(min=tiny)).sqrt() * (whole > 0))
        own = per_concept((self.rows.values @ weight.T).square().sum(dim=1), self.index, concepts)
        return (whole / own.clamp(min=tiny)).sqrt()

    def over_layers(self) -> tuple[list[float], list[float]]:
        """Median and worst residual of each concept."""
        left = torch.stack(self.left)
        return left.median(dim=0).values.tolist(), left.amax(dim=0).tolist()


class _RetainRows:
    """Drift of retain rows, bare and in context apart."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.index = rows, rows.group_index()
        self.context = torch.tensor(rows.in_context, dtype=torch.bool, device=rows.values.device)
        self.moved: list[Tensor] = []
        self.size: list[Tensor] = []
        self.kept: list[Tensor | None] = []

    def measure(self, weight: Tensor, up: Tensor, down: Tensor, kept: Tensor | None) -> None:
        """Notes how far each row moves in one layer."""
        if not len(self.rows.values):
            return
        # The denominators need no more than a report's precision, and single precision halves the cost of the largest
        # product of the whole certificate. The rows are made single a part at a time: a copy of all is large.
        single = weight.to(torch.float32)
        parts = self.rows.values.split(4096)
        size = torch.cat([(part.to(torch.float32) @ single.T).norm(dim=1) for part in parts])
        self.moved.append(_moved(up, down, self.rows.values).square())
        self.size.append(size.to(up.dtype).square())
        self.kept.append(kept)

    def summaries(self) -> list[Drift]:
        """One summary for each group and place that has any names."""
        if not self.moved:
            return []
        moved, size = torch.stack(self.moved), torch.stack(self.size)
        names = self.rows.labels()
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
