"""One cell of the table: an encoder and a number of concepts, and every method along its knob."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from speed_erase.speed_ops import EraseSettings, solve
from speed_erase.speed_ops.certificate import measure
from speed_erase.speed_ops.embed import embed
from speed_erase.speed_ops.engine.auto import RANK_BUDGET, SECOND_SOFTNESS_RATIO
from speed_erase.speed_ops.engine.draws import generator, permutation
from speed_erase.speed_ops.engine.rows import Rows, RowSet, join
from speed_erase.speed_ops.inputs import TOKENS
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.text.concept_list import Concept
from speed_erase.speed_ops.text.retain_set import builtin_retain, retain_from_names

OUTPUTS = (640, 1280)
"""Outputs of the two layers, whose values are random: real ones matter little here."""
NAMES = 500
"""Kept names, in addition to those to erase."""


@dataclass(frozen=True)
class Point:
    """One edit: what it leaves in prompts, and how far names drift, both held out of everything."""

    left: float
    drift: float
    seconds: float
    at: float
    """Value of the method's knob."""
    to_go: float | None = None
    """How much of what is left lies in the direction of the anchor."""
    told: float | None = None
    """Share of the test names that are still distinct after the edit (`names_told_apart`)."""


@dataclass(frozen=True)
class Method:
    """A method, whether it gets our rows or the bare ones, and the settings to sweep."""

    name: str
    ours: bool
    settings: EraseSettings
    knob: str
    values: tuple[float, ...]


def methods() -> Iterator[Method]:
    """Ours first, aimed at the anchor as all others. Published settings are among the points."""
    thresholds = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    weights = tuple(10.0 ** (step / 2) for step in range(-6, 5))
    soft = EraseSettings.preset("auto").replace(preset_name="fixed", overshoot=1.0)
    yield Method("soft prior (ours)", True, soft, "lam", ())  # along its own curve
    firm = soft.replace(softness=SECOND_SOFTNESS_RATIO * soft.softness)
    yield Method("firmer prior (ours)", True, firm, "lam", ())
    for ours in (True, False):
        preset = EraseSettings.preset
        yield Method("SPEED few", ours, preset("few"), "threshold", thresholds)
        yield Method("SPEED multi", ours, preset("multi"), "threshold", thresholds)
        context = preset("fixed", rows_per_concept=16)
        yield Method("SPEED fixed", ours, context, "threshold", thresholds)
        null_space = preset("few", method="null_space")
        yield Method("null space only", ours, null_space, "threshold", thresholds)
        uce = preset("few", method="uce", lam=0.1, rows_per_concept=16)
        yield Method("UCE", ours, uce, "preserve_weight", weights)
        rece = uce.replace(method="rece", adversarial_rounds=3)
        yield Method("RECE", ours, rece, "preserve_weight", weights[3:8:2])


@cache
def layers(width: int) -> Mapping[str, Tensor]:
    """Random value layers."""
    source = torch.Generator().manual_seed(7)
    return {f"layer {o}": torch.randn(o, width, generator=source) / width**0.5 for o in OUTPUTS}


@cache
def names(count: int, kept: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Painters to erase and painters to keep: the same kept ones for every count."""
    every = [name for name in builtin_retain("artists").names if " " in name]
    order = [every[i] for i in permutation(len(every), generator(3, "painters"))]
    return tuple(order[:count]), tuple(order[100 : 100 + kept])


def job_for(count: int, kept: int = NAMES, effort: str = "normal", **changes: Any) -> Job:
    """The painters as a user would erase them."""
    erased, others = names(count, kept)
    concepts = [Concept(name, "art", "style") for name in erased]
    settings = EraseSettings.preset("auto", held_out=0.1, effort=effort, **changes)
    return Job.of(concepts, retain_from_names(others, "painters", "style"), settings)


@dataclass(frozen=True, eq=False)
class Cell:
    """The rows of one cell."""

    rows: RowSet
    bare: RowSet

    @classmethod
    def of(cls, encoder: Any, job: Job) -> Cell:
        weights = layers(encoder.width if hasattr(encoder, "width") else encoder.encoder.width)
        bare = Job.of(job.concepts, job.retain, EraseSettings.preset("few"))
        return cls(*(embed(part, weights, encoder)[0][TOKENS] for part in (job, bare)))

    def default(self, settings: EraseSettings) -> Point:
        """What `auto` chooses."""
        return self._measured(self.rows, settings, told=True)[0]

    def along(self, settings: EraseSettings) -> tuple[float, ...]:
        """Where the curve of a soft prior has its points."""
        settings = compressed(settings, len(self.rows.targets.names))
        _, certificate = self._measured(self.rows, settings)
        return tuple(point.lam for point in certificate.curve.points[2:])

    def sweep(self, method: Method) -> list[Point]:
        """A method along its knob, with the rows it gets."""
        side = self.rows_for(method.ours)
        values = method.values or self.along(method.settings)
        found = []
        for value in values:
            settings = method.settings.replace(**{method.knob: value})
            if method.ours:
                settings = compressed(settings, len(side.targets.names))
            try:
                point, _ = self._measured(side, settings)
            except Exception as fault:  # an edit that is refused is a point that is not there
                print(f"    {method.name} at {value:g}: {fault}", flush=True)
                continue
            found.append(replace(point, at=value))
        return found

    def rows_for(self, ours: bool) -> RowSet:
        """Rows of a method that chooses nothing: our rows or the bare ones, judged by ours."""
        judged = {name: getattr(self.rows, name) for name in ("probes", "held_out", "kinds")}
        side = self.rows if ours else self.bare
        return replace(side, retain=self.kept(ours), **judged, trial=None, witnesses=None)

    def kept(self, ours: bool) -> Rows:
        """The names the edit may know: ours sets its witnesses aside, the others have them too."""
        aside = set(self.rows.held_out.names if self.rows.held_out else ())
        if ours:
            own, aside = self.rows.retain, self.rows.witnesses
            return own if aside is None else join([own, aside])
        known = self.bare.retain
        return known.take_concepts([i for i, name in enumerate(known.names) if name not in aside])

    def _measured(self, rows: RowSet, settings: EraseSettings, told: bool = False) -> tuple:
        weights = layers(rows.width)
        with every_row():
            erasure = solve(weights, rows, settings)
        certificate = erasure.certificate
        seconds = sum(took for part, took in certificate.seconds.items() if part != "certificate")
        concepts = certificate.concepts
        left, to_go = (
            sum(getattr(concept, name) or 0.0 for concept in concepts) / len(concepts)
            for name in ("probe_median", "probe_to_go")
        )
        drifts = {(part.group, part.where): part.mean for part in certificate.drift}
        assert rows.held_out is not None
        share = names_told_apart(weights, erasure.edits, rows.held_out) if told else None
        drift, lam = drifts["held_out", "context"], erasure.settings.lam
        return Point(left, drift, seconds, lam, to_go, share), certificate


def names_told_apart(weights: Mapping[str, Tensor], edits: Any, held_out: Rows) -> float:
    """Share of names in prompts whose mean output stays nearest to its own; the worst layer's.

    Where no model draws, this replaces the kept names being recognized.
    """
    index = held_out.group_index()
    inside = torch.tensor(held_out.in_context)
    flags = [inside & (index == i) for i in range(len(held_out.names))]
    means = torch.stack([held_out.values[own].mean(dim=0) for own in flags])
    shares = []
    for key, weight in weights.items():
        before = means @ weight.to(means).T
        after = before + means @ edits[key].delta().to(means).T
        nearest = torch.cdist(after, before).argmin(dim=1)
        shares.append(nearest.eq(torch.arange(len(means))).double().mean())
    return float(min(shares))


def compressed(settings: EraseSettings, concepts: int) -> EraseSettings:
    """Fewer rows per concept when there are many concepts, as `auto` itself chooses."""
    most = min(settings.rows_per_concept, RANK_BUDGET // concepts)
    return settings.replace(rows_per_concept=max(2, most))


def every_row() -> Any:
    """Lets the certificate measure every row instead of a sample."""
    return patch.multiple(measure, MEASURED_ROWS=10**9, MAX_NAME_ROWS=10**9)


def least_left(points: list[Point], drift: float) -> float:
    """The least that a method leaves within a drift, linear between points; 1 without an edit."""
    line = sorted([(0.0, 1.0), *((point.drift, point.left) for point in points)])
    best = 1.0
    for (d0, l0), (d1, l1) in zip(line, [*line[1:], line[-1]], strict=True):
        if d0 <= drift:
            best = min(best, l0)
            if d1 > drift:
                best = min(best, l0 + (l1 - l0) * (drift - d0) / (d1 - d0))
    return best
