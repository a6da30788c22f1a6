"""Measures an edit layer by layer: what is left of the targets, drift of the names and of the empty
prompt.

`certify` measures an edit that was just made, `measure_edits` one that was read back from a file,
`certificate_at` one at another strength.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..engine.adversarial import Round
from ..engine.curve import Curve
from ..engine.edits import LayerEdit
from ..engine.layers import Solution, SolvedLayer
from ..engine.problem import Problem, widen
from ..engine.rows import Rows, per_concept
from ..progress import Progress, Stopwatch, silent
from .certificate import Certificate, ConceptResult, Drift, LayerFacts, verdict
from .samples import some_names, some_rows, thinned
from .warnings import cautions, concept_cautions

WORST = 10
"""Names listed by name in each group of a drift summary."""


class Measurer:
    """Collects the measurements layer by layer."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.solved = _PairRows(*some_rows(problem.targets, problem.anchors))
        self.probed = _PairRows(*some_rows(*problem.probes)) if problem.probes else None
        names, self.chosen = some_names(problem.retain, problem.settings.seed)
        self.retained = _RetainRows(names)
        self.aside = _RetainRows(thinned(problem.held_out)[0]) if problem.held_out else None
        self.invariant = _Response(problem.invariants)
        aside = self.aside.rows.values if self.aside else names.values[:0]
        self.sizes = _Sizes([self.solved.rows.values, names.values, aside, problem.invariants])
        self.edit: _MeasuredEdit | None = None
        self.invariant_drift: list[Tensor] = []
        self.alike: list[Tensor] = []
        self.layers: list[_LayerRecord] = []

    def measure(self, key: str, weight: Tensor, layer: SolvedLayer) -> None:
        """One layer; tensors stay on their device until the certificate is written."""
        edit = self.edit = _MeasuredEdit.of(layer.edit, self.edit)
        targets, retained, aside, invariants = self.sizes.of(weight)
        self.alike.append(self.solved.measure(weight, edit, targets))
        if self.probed:
            self.probed.measure(weight, edit)
        self.retained.measure(retained, edit, layer.kept[self.chosen])
        if self.aside:
            self.aside.measure(aside, edit, None)
        self.invariant_drift.append((edit.squares(self.invariant.to(edit)) / invariants).sqrt())
        self.layers.append(_LayerRecord(key, layer, layer.kept.sum(), edit.norm() / weight.norm()))

    def certificate(
        self, rounds: Sequence[Round], seconds: Mapping[str, float], curve: Curve | None = None
    ) -> Certificate:
        """The finished certificate, in the caller's order of concepts."""
        invariant = torch.stack(self.invariant_drift).amax(dim=0).tolist()
        concepts, layers = self.concepts(), tuple(record.facts() for record in self.layers)
        drift = tuple(self.retained.summaries() + (self.aside.summaries() if self.aside else []))
        return Certificate(
            concepts=concepts,
            drift=drift,
            sot_drift=invariant[0] if invariant else None,
            null_text_drift=tuple(invariant[1:]),
            layers=layers,
            rounds=tuple(rounds),
            seconds=dict(seconds),
            warnings=tuple(
                cautions(self.problem, layers, self.about(concepts), drift, curve, concepts)
            ),
            settings=self.problem.settings.to_dict(),
            curve=curve,
        )

    def concepts(self) -> tuple[ConceptResult, ...]:
        """What is left of each concept."""
        solved = self.solved.over_layers()
        probed = self.probed.over_layers() if self.probed else None
        results = []
        kinds = self.problem.kinds or ("",) * len(self.problem.targets.names)
        for i, name in enumerate(self.problem.targets.labels()):
            seen, seen_worst, to_go = (part[i] for part in probed) if probed else (None, None, None)
            results.append(
                ConceptResult(
                    name=name,
                    verdict=verdict(solved[0][i], seen, kinds[i], to_go),
                    solved_median=solved[0][i],
                    solved_worst=solved[1][i],
                    probe_median=seen,
                    probe_worst=seen_worst,
                    energy_lost=self.problem.pairs.energy_lost[i],
                    kind=kinds[i],
                    probe_to_go=to_go,
                )
            )
        return tuple(results)

    def about(self, concepts: Sequence[ConceptResult]) -> list[str]:
        """Warnings about single concepts."""
        alike = torch.stack(self.alike).median(dim=0).values.tolist()
        inside, settings = any(self.problem.targets.in_context), self.problem.settings
        chosen = settings.preset_name == "auto" and settings.prior != "null_space"
        return list(concept_cautions(concepts, alike, in_context=inside, chosen=chosen))


@dataclass(frozen=True, eq=False)
class _LayerRecord:
    """One layer's facts while they are still on their device."""

    key: str
    layer: SolvedLayer
    kept: Tensor
    """Scalar: rows that shaped the null space."""
    change: Tensor
    """Scalar: |dW| / |W|."""

    def facts(self) -> LayerFacts:
        """Plain numbers."""
        layer = self.layer
        return LayerFacts(
            self.key,
            int(self.kept),
            int(layer.added),
            layer.room,
            rank=layer.edit.rank,
            change=float(self.change),
        )


def left_of(wanted: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
    """`m`, twice: squared size of what is left of each row, and of how much of that is way still to
    go.

    What went straight on beyond the anchor is in neither. `wanted` (`m x o`) leads from a row's
    output to its anchor's, `missing` from the anchor's to where the edit put it.
    """
    size = wanted.square().sum(dim=1)
    way = (missing * wanted).sum(dim=1) / size.clamp(min=torch.finfo(size.dtype).tiny).sqrt()
    left = missing.square().sum(dim=1) - way.clamp(min=0).square()
    return left.clamp(min=0), way.clamp(max=0).square()


class _PairRows:
    """Residuals of target rows against their anchor rows."""

    def __init__(self, targets: Rows, anchors: Rows) -> None:
        self.rows, self.index = targets, targets.group_index()
        self.change = anchors.values - targets.values
        self.response = _Response(targets.values)
        self.left: list[Tensor] = []
        self.to_go: list[Tensor] = []

    def measure(self, weight: Tensor, edit: _MeasuredEdit, size: Tensor | None = None) -> Tensor:
        """Notes a layer's residuals; returns |W c* - W c1| / |W c1| for each concept, from each
        row's `size`.
        """
        concepts = len(self.rows.names)
        wanted = self.change @ weight.T
        missing = edit.outputs(self.response.to(edit)) - wanted
        whole = per_concept(wanted.square().sum(dim=1), self.index, concepts)
        tiny = torch.finfo(whole.dtype).tiny
        for found, sizes in zip((self.left, self.to_go), left_of(wanted, missing), strict=True):
            part = per_concept(sizes, self.index, concepts)
            found.append((part / whole.clamp(min=tiny)).sqrt() * (whole > 0))
        own = whole if size is None else per_concept(size, self.index, concepts)
        return (whole / own.clamp(min=tiny)).sqrt()

    def over_layers(self) -> tuple[list[float], list[float], list[float]]:
        """Median and worst residual of each concept, and the median of its way still to go."""
        left, to_go = torch.stack(self.left), torch.stack(self.to_go)
        return (
            left.median(dim=0).values.tolist(),
            left.amax(dim=0).tolist(),
            to_go.median(dim=0).values.tolist(),
        )


class _RetainRows:
    """Drift of kept rows, bare and in context apart."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.index = rows, rows.group_index()
        self.response = _Response(rows.values)
        self.context = torch.tensor(rows.in_context, dtype=torch.bool, device=rows.values.device)
        self.moved: list[Tensor] = []
        self.size: list[Tensor] = []
        self.kept: list[Tensor | None] = []

    def measure(self, size: Tensor, edit: _MeasuredEdit, kept: Tensor | None) -> None:
        """Notes how far each row moves in one layer; `size` is |W c|^2 of each."""
        if not len(self.rows.values):
            return
        self.moved.append(edit.squares(self.response.to(edit)))
        self.size.append(size)
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
    return Drift(
        group,
        where,
        int(chosen.any(dim=0).sum()),
        median,
        p95,
        maximum,
        worst,
        float(values.mean()),
    )


def _quantiles(values: Tensor, ranks: Tensor) -> Tensor:
    """Nearest-rank quantiles; `torch.quantile` refuses more than 16 million values."""
    ordered = values.sort().values
    return ordered[((len(ordered) - 1) * ranks).round().long()]


class _Sizes:
    """|W c|^2 of many rows at once, in single precision.

    These are denominators, which need no more than a report's precision; and theirs is the largest
    product of all.
    """

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._counts = [len(part) for part in parts]
        self._rows = torch.cat([part.to(torch.float32) for part in parts])

    def of(self, weight: Tensor) -> tuple[Tensor, ...]:
        """For each part its rows' sizes."""
        sizes = (self._rows @ weight.to(torch.float32).T).square().sum(dim=1)
        return sizes.to(weight.dtype).split(self._counts)


@dataclass(frozen=True, eq=False)
class _MeasuredEdit:
    """An edit by what it does to rows: through its factors, or as one matrix where they are no
    smaller than that.
    """

    down: Tensor
    """`r x d`, or the whole edit, `o x d`."""
    up: Tensor | None
    """`o x r`; None where `down` is the whole edit."""
    inner: Tensor | None
    """`r x r`: up'up."""
    across: Tensor | None
    """`r x r`: down down', which layers with the same `down` have in common."""

    @classmethod
    def of(cls, edit: LayerEdit, before: _MeasuredEdit | None) -> _MeasuredEdit:
        """`before`: the layer's before this one."""
        known = before.across if before and before.down is edit.down else None
        out, width = len(edit.up), edit.down.shape[1]
        if known is None and edit.rank * (out + width) >= out * width:
            return cls(edit.delta(), None, None, None)
        across = edit.down @ edit.down.T if known is None else known
        return cls(edit.down, edit.up, edit.up.T @ edit.up, across)

    def outputs(self, response: Tensor) -> Tensor:
        """`m x o`: what the edit adds for rows with this response (`m x r`)."""
        return response if self.up is None else response @ self.up.T

    def squares(self, response: Tensor) -> Tensor:
        """`m`: squared sizes of that, through the small side of the edit."""
        mixed = response if self.inner is None else response @ self.inner
        return (mixed * response).sum(dim=1).clamp(min=0)

    def norm(self) -> Tensor:
        """Scalar: |dW|."""
        if self.inner is None or self.across is None:
            return self.down.norm()
        return (self.inner * self.across).sum().clamp(min=0).sqrt()


class _Response:
    """What rows say to the first factor of an edit, which most layers have in common: made once for
    those.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._down: Tensor | None = None
        self._known = rows[:, :0]

    def to(self, edit: _MeasuredEdit) -> Tensor:
        """`m x r`: rows times down'."""
        if edit.down is not self._down:
            self._known, self._down = self._rows @ edit.down.T, edit.down
        return self._known


def certify(
    solution: Solution,
    problem: Problem,
    weights: Mapping[str, Tensor],
    watch: Stopwatch,
    progress: Progress,
    curve: Curve | None = None,
) -> Certificate:
    """The certificate of a solution, measured on the `weights` it was made for."""
    measurer = Measurer(problem)
    for done, (key, layer) in enumerate(solution.layers.items()):
        progress("certificate", done, len(solution.layers))
        with watch.part("certificate"):
            measurer.measure(key, widen(weights[key], key, problem.targets.values), layer)
    progress("certificate", len(solution.layers), len(solution.layers))
    return measurer.certificate(solution.rounds, watch.seconds, curve)


def measure_edits(
    weights: Mapping[str, Tensor],
    edits: Mapping[str, LayerEdit],
    problem: Problem,
    progress: Progress | None = None,
) -> Certificate:
    """What edits that are already there do to the ORIGINAL `weights`, such as edits read back from
    a file.

    Nothing is solved, so the result speaks of the weights and not of what a header claims about
    them. Every name of the problem counts as kept, and its room as whole.
    """
    like, width = problem.targets.values, problem.targets.width
    kept = torch.ones(len(problem.retain.values), dtype=torch.bool, device=like.device)
    wide = {key: LayerEdit(edit.up.to(like), edit.down.to(like)) for key, edit in edits.items()}
    layers = {key: SolvedLayer(edit, kept, torch.tensor(0), width) for key, edit in wide.items()}
    return certify(Solution(layers, ()), problem, weights, Stopwatch(), progress or silent)


def certificate_at(
    strength: float,
    whole: Certificate,
    weights: Mapping[str, Tensor],
    edits: Mapping[str, LayerEdit],
    problem: Problem,
    progress: Progress | None = None,
) -> Certificate:
    """The certificate of `edits` times `strength`, from that at strength 1.

    Drift is proportional to the strength; what is left of the targets is not, so it is measured
    again. `problem` needs no kept rows for that.
    """
    if strength == 1:
        return whole
    measurer = Measurer(replace(problem, retain=problem.retain.take_concepts([]), held_out=None))
    nothing = torch.ones(0, dtype=torch.bool)
    for done, (key, edit) in enumerate(edits.items()):
        (progress or silent)("certificate", done, len(edits))
        weight = widen(weights[key], key, problem.targets.values)
        measurer.measure(
            key, weight, SolvedLayer(edit.scaled(strength), nothing, torch.tensor(0), 0)
        )
    size = abs(strength)
    concepts = measurer.concepts()
    stale = set(measurer.about(whole.concepts))
    return replace(
        whole,
        concepts=concepts,
        drift=tuple(_scaled(part, size) for part in whole.drift),
        sot_drift=None if whole.sot_drift is None else whole.sot_drift * size,
        null_text_drift=tuple(value * size for value in whole.null_text_drift),
        layers=tuple(replace(fact, change=fact.change * size) for fact in whole.layers),
        warnings=(
            *(text for text in whole.warnings if text not in stale),
            *measurer.about(concepts),
        ),
    )


def _scaled(part: Drift, size: float) -> Drift:
    worst = tuple((name, value * size) for name, value in part.worst)
    return replace(
        part,
        median=part.median * size,
        p95=part.p95 * size,
        maximum=part.maximum * size,
        mean=part.mean * size,
        worst=worst,
    )
