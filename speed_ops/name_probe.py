"""How strongly a model responds to a name, measured without generating an image.

A name t and its replacement a ("art" for a style) are put into the same prompts. At a layer W the
name adds W t - W a, row by row. In each prompt

    size = |W t - W a| / |W a|    over the prompt's rows, median over layers

is compared with the sizes of known names and of invented names of the same shape. A name that the
model has learned adds the same vector in every prompt; `agreement` is the mean cosine between what
it adds in two of them. None of this shows what a model was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .devices import Workplace
from .embedder import AnyEncoder, Embedder, ensure_cached
from .engine.prepare import WORK, check_weights, widen
from .errors import InputError
from .inputs import TOKENS, Prompting
from .progress import Progress
from .text.concept_list import Concept
from .text.invented import invented_names
from .text.kinds import BARE, Kind, Template, kind_of
from .text.plan import RowPlan
from .text.requests import all_pairs, usable_names
from .text.retain_set import RetainSet, builtin_retain, drop_targets, retain_from_names

KNOWN, INVENTED = 1000, 100
"""Most names of either kind to compare with."""
PROMPTS = 3
"""Prompts that each of those is read in, in turn."""
RESPONDS = 0.95
"""A model responds to a name that adds more than this share of the invented names does."""
_FEW = 100
"""Fewer known names than this are read in all prompts."""
_CLOSEST = 3


@dataclass(frozen=True)
class Standing:
    """Where a name stands among others."""

    names: int
    percentile: float
    """Share of the others that add less, mean over prompts."""
    low: float
    high: float
    """Eight of ten prompts are in between."""
    size: float
    """Median size of the others."""
    agreement: float
    """Their median agreement."""


@dataclass(frozen=True)
class NameReport:
    """How a model responds to one name."""

    name: str
    kind: str
    anchor: str
    prompts: int
    size: float
    """What the name adds, relative to the response to its replacement; median over prompts."""
    agreement: float
    """1: it adds the same in every prompt; 0: something else in each."""
    known: Standing
    invented: Standing
    closest: tuple[tuple[str, float], ...]
    """Known names that add what this one does, by cosine."""
    known_sizes: dict[str, float]
    """{known name: what it adds}"""

    @property
    def responds(self) -> bool:
        """Whether the model responds to the name more than to almost all invented ones."""
        return self.invented.percentile >= RESPONDS

    def text(self) -> str:
        """The result in lines."""
        verb = "responds to" if self.responds else "does not respond to"
        known, invented = self.known, self.invented
        lines = [f"The model {verb} '{self.name}'."]
        for group, label in ((invented, "invented"), (known, "known")):
            lines.append(
                f"It adds more than {group.percentile:.0%} of {group.names:,} {label} names"
                f" ({group.low:.0%} to {group.high:.0%} in 8 of 10 prompts)."
            )
        lines.append(
            f"Size {self.size:.2f} (known {known.size:.2f}, invented {invented.size:.2f}); the same"
            f" in every prompt: {self.agreement:.2f} (known {known.agreement:.2f}, invented"
            f" {invented.agreement:.2f})."
        )
        if self.closest:
            shown = ", ".join(f"{name} ({cosine:.2f})" for name, cosine in self.closest)
            lines.append(f"Closest known names: {shown}.")
        return "\n".join(lines)


def probe_name(
    encoder: AnyEncoder,
    weights: Mapping[str, Tensor],
    name: str,
    kind: str = "style",
    known: RetainSet | None = None,
    *,
    prompting: Prompting = "sentences",
    prompts: int = PROMPTS,
    progress: Progress | None = None,
    workplace: Workplace | None = None,
) -> NameReport:
    """How a model responds to a name, against known and invented names.

    Args:
        encoder: Turns prompts into rows.
        weights: {layer key: `o x d`} of the layers that read a prompt row by row.
        name: The name.
        kind: What it names; decides the prompts and the replacement.
        known: Names to compare with; None: the built-in list of the kind.
        prompting: How people prompt the model.
        prompts: Prompts that each other name is read in.
        progress: May raise to interrupt.
        workplace: Where to measure; None: on the CPU.
    """
    reader = ensure_cached(encoder)
    check_weights(weights, reader.width)
    group, embedder = kind_of(kind).prompted(prompting), Embedder(reader, (TOKENS,), progress)
    known = builtin_retain(group.retain_sets[0]) if known is None else known
    references = _readable(embedder, known, name, kind)
    made_up = invented_names(name, INVENTED, builtin_retain("artists").names)
    if not references or not made_up:
        raise InputError(f"There is nothing to compare '{name}' with. Give more known names.")
    names = [name, *references, *made_up]
    templates = (BARE, *group.templates, *group.probe_templates)
    count = len(templates)
    readings = []
    for turn, template in enumerate(templates):
        others = [i for i in range(1, len(names)) if (i * prompts - turn) % count < prompts]
        always = range(1 + (len(references) if len(references) < _FEW else 0))
        members = torch.tensor(sorted({*always, *others}))
        readings.append(_read(embedder, names, members, template, group, prompting))
    reader.close()
    sizes, agreement, closeness = (workplace or Workplace()).run(
        lambda device: _measure(device, weights, readings, len(names), progress)
    )
    end = 1 + len(references)
    by_prompt = sizes.split([len(reading.members) for reading in readings])
    table = torch.full((count, len(names)), torch.nan, dtype=WORK)
    for row, values, reading in zip(table, by_prompt, readings, strict=True):
        row[reading.members] = values
    medians = table.nanmedian(dim=0).values
    order = closeness[1:end].argsort(descending=True)[:_CLOSEST]
    return NameReport(
        name=name,
        kind=kind,
        anchor=group.anchor,
        prompts=count,
        size=float(medians[0]),
        agreement=float(agreement[0]),
        known=_standing(by_prompt, readings, agreement, range(1, end)),
        invented=_standing(by_prompt, readings, agreement, range(end, len(names))),
        closest=tuple((references[i], float(closeness[1 + i])) for i in order.tolist()),
        known_sizes=dict(zip(references, medians[1:end].tolist(), strict=True)),
    )


def _readable(embedder: Embedder, known: RetainSet, name: str, kind: str) -> tuple[str, ...]:
    """The known names to compare with: those that do not contain the name."""
    streams = embedder.streams
    if not usable_names(streams, retain_from_names([name], "name"))[0]:
        raise InputError(f"The text encoder cannot read '{name}'. Spell the name differently.")
    others, _ = drop_targets(known, [Concept(name, "", kind)])
    return tuple(item.name for _, item in usable_names(streams, others.limit(KNOWN))[0])


@dataclass(frozen=True, eq=False)
class _Reading:
    """Some of the names in one prompt."""

    members: Tensor
    """Which names."""
    change: Tensor
    """`m x d`: what they change in the prompt's rows."""
    plain: Tensor
    """`m x d`: the rows with the replacement."""
    owners: Tensor
    """`m`: whose rows they are, as an index of `members`."""

    def to(self, device: torch.device) -> _Reading:
        """The same on another device."""
        parts = (self.members, self.change, self.plain, self.owners)
        return _Reading(*(part.to(device) for part in parts))

    def sums(self, values: Tensor) -> Tensor:
        """The rows of each name added up."""
        total = values.new_zeros(len(self.members), *values.shape[1:])
        return total.index_add_(0, self.owners, values)

    def sizes(self, weight: Tensor) -> Tensor:
        """|W t - W a| / |W a| of each name, over its rows."""
        added, plain = (
            self.sums((rows @ weight.T).square().sum(dim=1)) for rows in (self.change, self.plain)
        )
        return (added / plain.clamp(min=torch.finfo(WORK).tiny)).sqrt()


def _read(
    embedder: Embedder,
    names: Sequence[str],
    members: Tensor,
    template: Template,
    kind: Kind,
    prompting: Prompting,
) -> _Reading:
    concepts = [Concept(names[i], kind.anchor, kind.name) for i in members.tolist()]
    plan = RowPlan.context(prompting=prompting)
    pairs = all_pairs(embedder.streams, concepts, lambda _: (template,), plan)
    targets, anchors = embedder.pairs(concepts, pairs, "probes")[TOKENS]
    plain = anchors.values.to(WORK)
    return _Reading(members, targets.values.to(WORK) - plain, plain, torch.tensor(targets.groups))


def _measure(
    device: torch.device,
    weights: Mapping[str, Tensor],
    readings: Sequence[_Reading],
    count: int,
    progress: Progress | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Medians over layers: the size of every name in every prompt that it was read in; then of each
    name its agreement, and its cosine with the first name.
    """
    readings = [reading.to(device) for reading in readings]
    owners = torch.cat([reading.members for reading in readings])
    means = torch.cat([reading.sums(reading.change) for reading in readings])
    times = owners.bincount(minlength=count).to(means)
    layers = []
    for done, key in enumerate(weights):
        if progress is not None:
            progress("layers", done, len(weights))
        weight = widen(weights[key], key, means)
        sizes = torch.cat([reading.sizes(weight) for reading in readings])
        unit = normalize(means @ weight.T, dim=1)
        total = unit.new_zeros(count, unit.shape[1]).index_add_(0, owners, unit)
        # mean of u.v over all pairs of prompts, from |sum u|^2 = n + n (n - 1) mean
        agreement = (total.square().sum(dim=1) - times) / (times * (times - 1)).clamp(min=1)
        direction = normalize(total, dim=1)
        layers.append((sizes, agreement, direction @ direction[0]))
    sizes, agreement, closeness = (
        torch.stack(part).median(dim=0).values.cpu() for part in zip(*layers, strict=True)
    )
    return sizes, agreement, closeness


def _standing(
    by_prompt: Sequence[Tensor], readings: Sequence[_Reading], agreement: Tensor, group: range
) -> Standing:
    """Where the first name stands among a group of names, prompt by prompt."""
    shares, sizes = [], []
    for values, reading in zip(by_prompt, readings, strict=True):
        others = values[(reading.members >= group.start) & (reading.members < group.stop)]
        if len(others):
            shares.append(float((others < values[0]).double().mean()))
            sizes.append(others)
    low, high = torch.tensor(shares).quantile(torch.tensor([0.1, 0.9])).tolist()
    return Standing(
        len(group),
        sum(shares) / len(shares),
        low,
        high,
        float(torch.cat(sizes).median()),
        float(agreement[group.start : group.stop].median()),
    )
