"""Measures an edit layer by layer: what is left of the targets, drift of the names and of the empty
prompt.

`certify` measures an edit, `certificate_at` one at another strength.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..engine.curve import Curve, stable
from ..engine.draws import generator, permutation
from ..engine.edits import LayerEdit
from ..engine.layers import SolvedLayer
from ..engine.pairs import pair_up
from ..engine.prepare import widen
from ..engine.rows import Rows, RowSet, per_concept
from ..engine.settings import EraseSettings
from ..engine.solver import Round
from ..progress import Progress, Stopwatch, silent
from .certificate import Certificate, ConceptResult, Drift, LayerFacts
from .warnings import OUTCOME_CODES, all_warnings, outcome_warnings

MAX_WORST = 10
"""Names listed by name in each group of a drift summary."""
MEASURED_ROWS = 160
"""Rows of kept names, and of targets in each kind of prompt, that are measured in every layer. More
would show the same and cost more than the edit: where there are more, names are drawn by the seed,
and each concept gives rows from first to last."""
MIN_CONCEPT_ROWS = 4
"""Rows measured of each concept, however many concepts there are."""
MAX_NAME_ROWS = 8
"""Rows measured of a name in prompts, from its first to its last. Every held-out name is
measured."""


class Measurer:
    """Collects the measurements layer by layer."""

    def __init__(
        self, rows: RowSet, settings: EraseSettings, energy_lost: Sequence[float] | None = None
    ) -> None:
        """Chooses the rows to measure.

        Args:
            rows: Prepared rows.
            settings: As solved.
            energy_lost: For each concept, what compression gave up; computed if it is not given.
        """
        self.rows, self.settings = rows, settings
        self.energy_lost = energy_lost or pair_up(rows, settings).energy_lost
        self.solved = _PairRows(*sample_pairs(rows.targets, rows.anchors))
        self.probed = _PairRows(*sample_pairs(*rows.probes)) if rows.probes else None
        names, self.name_rows = sample_names(rows.retain, settings.seed)
        self.retained = _RetainRows(names)
        self.held_out = _RetainRows(thinned(rows.held_out)[0]) if rows.held_out else None
        self.invariant = _Response(rows.invariants)
        held_out = self.held_out.rows.values if self.held_out else names.values[:0]
        self.sizes = _Sizes([self.solved.rows.values, names.values, held_out, rows.invariants])
        self.edit: _MeasuredEdit | None = None
        self.invariant_drift: list[Tensor] = []
        self.differences: list[Tensor] = []
        self.layers: list[_LayerRecord] = []

    def measure(self, key: str, weight: Tensor, layer: SolvedLayer) -> None:
        """One layer; tensors stay on their device until the certificate is written.

        Args:
            key: The layer's key.
            weight: `o x d`, the ORIGINAL weight.
            layer: The layer's edit and the rows it kept.
        """
        edit = self.edit = _MeasuredEdit.of(layer.edit, self.edit)
        targets, retained, held_out, invariants = self.sizes.of(weight)
        self.differences.append(self.solved.measure(weight, edit, targets))
        if self.probed:
            self.probed.measure(weight, edit)
        self.retained.measure(retained, edit, layer.kept[self.name_rows])
        if self.held_out:
            self.held_out.measure(held_out, edit, None)
        drift = (edit.squares(self.invariant.to(edit)) / invariants).sqrt()
        self.invariant_drift.append(drift)
        facts = torch.stack(
            [layer.kept.sum().to(drift), layer.added.to(drift), edit.norm() / weight.norm()]
        )
        self.layers.append(_LayerRecord(key, layer, facts))

    def certificate(
        self, rounds: Sequence[Round], seconds: Mapping[str, float], curve: Curve | None = None
    ) -> Certificate:
        """The finished certificate, in the caller's order of concepts.

        Args:
            rounds: The adversarial rounds.
            seconds: How long each part took.
            curve: The trade-off, where there is one.
        """
        # What is held exactly moves by rounding alone, which is far below the last digit here.
        moved = torch.stack(self.invariant_drift).amax(dim=0).tolist()
        invariant = [round(value, 9) for value in moved]
        concepts = self.concepts()
        facts = torch.stack([record.facts for record in self.layers]).tolist()
        layers = tuple(
            record.layer_facts(*values) for record, values in zip(self.layers, facts, strict=True)
        )
        drift = self.retained.summaries() + (self.held_out.summaries() if self.held_out else [])
        warnings = all_warnings(
            self.rows, self.settings, layers, drift, curve, concepts, self.difference_medians()
        )
        return Certificate(
            concepts=concepts,
            drift=tuple(drift),
            sot_drift=invariant[0] if invariant else None,
            null_text_drift=tuple(invariant[1:]),
            layers=layers,
            rounds=tuple(rounds),
            seconds=dict(seconds),
            warnings=tuple(warnings),
            settings=self.settings.to_dict(),
            curve=curve,
        )

    def concepts(self) -> tuple[ConceptResult, ...]:
        """What is left of each concept."""
        solved = self.solved.over_layers()
        probed = self.probed.over_layers() if self.probed else None
        kinds = self.rows.kinds or ("",) * len(self.rows.targets.names)
        results = []
        for index, name in enumerate(self.rows.targets.labels()):
            median, worst, to_go = (
                (values[index] for values in probed) if probed else (None, None, None)
            )
            results.append(
                ConceptResult(
                    name=name,
                    solved_median=solved[0][index],
                    solved_worst=solved[1][index],
                    probe_median=median,
                    probe_worst=worst,
                    energy_lost=stable(self.energy_lost[index]),
                    kind=kinds[index],
                    probe_to_go=to_go,
                )
            )
        return tuple(results)

    def difference_medians(self) -> list[float]:
        """|W c* - W c1| / |W c1| of each concept, median over layers."""
        medians: list[float] = torch.stack(self.differences).median(dim=0).values.tolist()
        return medians


@dataclass(frozen=True, eq=False)
class _LayerRecord:
    """One layer's facts while they are still on their device."""

    key: str
    layer: SolvedLayer
    facts: Tensor
    """Three: rows that shaped the null space, rows that were added to them, |dW| / |W|."""

    def layer_facts(self, kept: float, added: float, change: float) -> LayerFacts:
        """Plain numbers, of the three facts."""
        layer = self.layer
        rank, change = layer.edit.rank, stable(change)
        return LayerFacts(self.key, round(kept), round(added), layer.room, rank, change)


def residuals(change: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
    """`m`, twice: squared size of what is left of each row, and of how much of that is way still to
    go.

    What went straight on beyond the anchor is in neither. `change` (`m x o`) leads from a row's
    output to its anchor's, `missing` from the anchor's to where the edit put it.
    """
    size = change.square().sum(dim=1)
    way = (missing * change).sum(dim=1) / size.clamp(min=torch.finfo(size.dtype).tiny).sqrt()
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
        """Notes a layer's residuals; returns |W c* - W c1| / |W c1| for each concept.

        Args:
            weight: `o x d`, the ORIGINAL weight.
            edit: The layer's edit.
            size: `m`, |W c1|^2 of each row; None where the result is not needed.
        """
        concepts = len(self.rows.names)
        change = self.change @ weight.T
        missing = edit.outputs(self.response.to(edit)) - change
        total = per_concept(change.square().sum(dim=1), self.index, concepts)
        tiny = torch.finfo(total.dtype).tiny
        for shares, sizes in zip((self.left, self.to_go), residuals(change, missing), strict=True):
            amount = per_concept(sizes, self.index, concepts)
            shares.append((amount / total.clamp(min=tiny)).sqrt() * (total > 0))
        size = total if size is None else per_concept(size, self.index, concepts)
        return (total / size.clamp(min=tiny)).sqrt()

    def over_layers(self) -> tuple[list[float], list[float], list[float]]:
        """Median and worst residual of each concept, and its median distance to the anchor."""
        left, to_go = torch.stack(self.left), torch.stack(self.to_go)
        return (
            _stable(left.median(dim=0).values),
            _stable(left.amax(dim=0)),
            _stable(to_go.median(dim=0).values),
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
        """Notes how far each row moves in one layer.

        Args:
            size: |W c|^2 of each row.
            edit: The layer's edit.
            kept: Whether the layer kept each row; None for held-out rows.
        """
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
        summaries = []
        for where, rows in (("bare", ~self.context), ("context", self.context)):
            if not bool(rows.any()):
                continue
            index, concepts = self.index[rows], len(names)
            total = per_concept(size[:, rows], index, concepts)
            drift = (per_concept(moved[:, rows], index, concepts) / total.clamp(min=1e-30)).sqrt()
            if self.kept[0] is None:
                summaries.append(_summary("held_out", where, names, drift, total > 0))
                continue
            flags = torch.stack([k for k in self.kept if k is not None])[:, rows].to(moved)
            kept = per_concept(flags, index, concepts) > 0
            summaries += [
                _summary(group, where, names, drift, members & (total > 0))
                for group, members in (("kept", kept), ("filtered", ~kept))
                if bool((members & (total > 0)).any())
            ]
        return summaries


def _summary(group: str, where: str, names: list[str], drift: Tensor, members: Tensor) -> Drift:
    """Statistics over the marked (layer, name) pairs of a `layers x names` table."""
    by_name = torch.where(members, drift, torch.nan).nanmedian(dim=0).values
    indices = members.any(dim=0).nonzero().flatten()
    ordered, order = by_name[indices].sort(descending=True)
    ranks = torch.tensor([0.5, 0.05, 0.0], dtype=drift.dtype, device=drift.device)
    median, p95, maximum = _stable(ordered[((len(ordered) - 1) * ranks).round().long()])
    listed = zip(indices[order[:MAX_WORST]].tolist(), _stable(ordered[:MAX_WORST]), strict=True)
    worst = tuple((names[index], value) for index, value in listed)
    mean = stable(float(drift[members].mean()))
    return Drift(group, where, len(ordered), median, p95, maximum, worst, mean)


def _stable(values: Tensor) -> list[float]:
    return [stable(value) for value in values.tolist()]


class _Sizes:
    """|W c|^2 of many rows at once, in single precision.

    These are denominators, which need no more than a report's precision; and theirs is the largest
    product of all.
    """

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._counts = [len(tensor) for tensor in parts]
        self._rows = torch.cat([tensor.to(torch.float32) for tensor in parts])

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
        across = before.across if before and before.down is edit.down else None
        out, width = len(edit.up), edit.down.shape[1]
        if across is None and edit.rank * (out + width) >= out * width:
            return cls(edit.delta(), None, None, None)
        across = edit.down @ edit.down.T if across is None else across
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
    """Rows times the first factor of an edit, which most layers have in common: made once for
    those.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._down: Tensor | None = None
        self._response = rows[:, :0]

    def to(self, edit: _MeasuredEdit) -> Tensor:
        """`m x r`: rows times down'."""
        if edit.down is not self._down:
            self._response, self._down = self._rows @ edit.down.T, edit.down
        return self._response


def sample_pairs(targets: Rows, anchors: Rows) -> tuple[Rows, Rows]:
    """Pairs to measure: all of them, or as many per concept as fit, from its first to its last."""
    if len(targets.values) <= MEASURED_ROWS:
        return targets, anchors
    share = max(MIN_CONCEPT_ROWS, MEASURED_ROWS // len(targets.names))
    members: list[list[int]] = [[] for _ in targets.names]
    for row, group in enumerate(targets.groups):
        members[group].append(row)
    sample = sorted(row for rows in members for row in _evenly(rows, share))
    order = torch.tensor(sample, device=targets.values.device)
    return targets.take_rows(order), anchors.take_rows(order)


def sample_names(names: Rows, seed: int) -> tuple[Rows, Tensor]:
    """Kept names to measure, and the indices of their rows; half of the rows come from names in
    prompts.
    """
    rows, indices = thinned(names)
    if len(rows.values) <= MEASURED_ROWS:
        return rows, indices
    counts = [0] * len(names.names)
    for group in rows.groups:
        counts[group] += 1
    in_prompts = {g for g, flag in zip(rows.groups, rows.in_context, strict=True) if flag}
    order = permutation(len(counts), generator(seed, "names to measure"))
    half = MEASURED_ROWS if len(in_prompts) == len(counts) else MEASURED_ROWS / 2
    sample: set[int] = set()
    total = 0
    for candidates, limit in ((in_prompts, half), (set(order), MEASURED_ROWS)):
        for name in order:
            if total < limit and name in candidates and name not in sample:
                sample.add(name)
                total += counts[name]
    mask = torch.tensor([group in sample for group in rows.groups], device=indices.device)
    return rows.take_concepts(sorted(sample)), indices[mask]


def thinned(names: Rows) -> tuple[Rows, Tensor]:
    """The names, name by name, with at most `MAX_NAME_ROWS` rows in prompts each; and the indices
    of those rows.
    """
    members: list[tuple[list[int], list[int]]] = [([], []) for _ in names.names]
    for row, (group, flag) in enumerate(zip(names.groups, names.in_context, strict=True)):
        members[group][flag].append(row)
    sample = [row for bare, prompts in members for row in (*bare, *_evenly(prompts, MAX_NAME_ROWS))]
    indices = torch.tensor(sample, dtype=torch.long, device=names.values.device)
    return names.take_rows(indices), indices


def _evenly(rows: Sequence[int], count: int) -> list[int]:
    """`count` of the rows, from the first to the last."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def certify(
    layers: Mapping[str, SolvedLayer],
    rows: RowSet,
    settings: EraseSettings,
    weights: Mapping[str, Tensor],
    *,
    energy_lost: Sequence[float] | None = None,
    rounds: Sequence[Round] = (),
    curve: Curve | None = None,
    watch: Stopwatch | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """The certificate of an edit.

    Args:
        layers: The edit of every layer.
        rows: Prepared rows.
        settings: As solved.
        weights: The ORIGINAL weights, which the edit was made for.
        energy_lost: For each concept, what compression gave up; computed if it is not given.
        rounds: The adversarial rounds.
        curve: The trade-off, where there is one.
        watch: Where the seconds went so far.
        progress: May raise to interrupt.
    """
    watch, report = watch or Stopwatch(), progress or silent
    measurer = Measurer(rows, settings, energy_lost)
    for done, (key, layer) in enumerate(layers.items()):
        report("certificate", done, len(layers))
        with watch.part("certificate"):
            measurer.measure(key, widen(weights[key], key, rows.targets.values), layer)
    report("certificate", len(layers), len(layers))
    return measurer.certificate(rounds, watch.seconds, curve)


def certificate_at(
    strength: float,
    full: Certificate,
    weights: Mapping[str, Tensor],
    edits: Mapping[str, LayerEdit],
    rows: RowSet,
    settings: EraseSettings,
    progress: Progress | None = None,
) -> Certificate:
    """The certificate of `edits` times `strength`.

    Drift is proportional to the strength; what is left of the targets is not, so it is measured
    again. This needs no kept rows.

    Args:
        strength: What the edits are multiplied by.
        full: The certificate at strength 1.
        weights: The ORIGINAL weights.
        edits: At strength 1, by layer key.
        rows: Prepared rows, with or without the kept ones.
        settings: As solved.
        progress: May raise to interrupt.
    """
    if strength == 1:
        return full
    lost = [concept.energy_lost for concept in full.concepts]
    measurer = Measurer(rows.without_kept(), settings, lost)
    nothing = torch.ones(0, dtype=torch.bool, device=rows.targets.values.device)
    for done, (key, edit) in enumerate(edits.items()):
        (progress or silent)("certificate", done, len(edits))
        weight = widen(weights[key], key, rows.targets.values)
        scaled = edit.scaled(strength)
        measurer.measure(key, weight, SolvedLayer(scaled, nothing, nothing.sum(), 0))
    size, concepts = abs(strength), measurer.concepts()
    differences = measurer.difference_medians()
    drift = tuple(summary.times(size) for summary in full.drift)
    outcome = outcome_warnings(rows, settings, drift, full.curve, concepts, differences)
    return replace(
        full,
        concepts=concepts,
        drift=drift,
        sot_drift=None if full.sot_drift is None else full.sot_drift * size,
        null_text_drift=tuple(value * size for value in full.null_text_drift),
        layers=tuple(replace(facts, change=facts.change * size) for facts in full.layers),
        warnings=(
            *(notice for notice in full.warnings if notice.code not in OUTCOME_CODES),
            *outcome,
        ),
    )
