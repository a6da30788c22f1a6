"""From a job's names to the embedding rows that the engine works with, one `RowSet` per text input.

Kept names take three steps, because whole prompts are what costs time: every name bare; a ranking
of them by how far an unprotected edit would move them; contexts for those that it endangers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .certificate.forecast import forecast
from .encoders.cache import CachedEncoder
from .encoders.encoder import TextEncoder, equivalent_prompts
from .engine.draws import generator, permutation
from .engine.prepare import MIN_NAMES, WITNESS_SHARE
from .engine.rows import Rows, RowSet
from .erasure import TextReport
from .errors import InputError
from .inputs import TOKENS
from .job import Job
from .progress import Announce, Progress, Stage, Stopwatch
from .text.concept_list import Concept
from .text.kinds import Kind, Prompt, Template
from .text.plan import RowPlan
from .text.requests import (
    KeptName,
    RowPair,
    RowRequest,
    all_pairs,
    judging_contexts,
    kept_by_plan,
    pairs_for,
    retain_prompts,
    usable_names,
    whole_prompt,
    with_contexts,
)
from .text.retain_set import RetainSet, drop_targets
from .text.tokens import StreamKey


def embed(
    job: Job,
    weights: Mapping[str, Tensor],
    encoder: TextEncoder | CachedEncoder,
    text_inputs: Sequence[str] = (TOKENS,),
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> tuple[dict[str, RowSet], TextReport]:
    """The rows of a job.

    Args:
        job: What to erase and what to keep.
        weights: Of the layers that read a prompt row by row; they decide which kept names are worth
            encoding in context.
        encoder: Turns prompts into rows.
        text_inputs: Which inputs of the model the rows are for.
        progress: May raise to interrupt.
        announce: Receives a sentence about how many prompts are still to be encoded.

    Returns:
        The rows of each text input, and what happened to the lists.
    """
    retain, dropped = drop_targets(job.retain, job.concepts)
    reader = ensure_cached(encoder)
    encoded, reused = reader.encoded, reader.reused
    watch = Stopwatch()
    embedder = _Embedder(reader, text_inputs, progress)
    with watch.part("concepts"):
        rows = concept_rows(embedder, job.concepts, job.plan)
    if announce is not None:
        seconds = watch.seconds["concepts"]
        announce(_outlook(reader, job, len(retain), reader.encoded - encoded, seconds))
    with watch.part("retain names"):
        names = _Names(embedder, retain, job)
    with watch.part("retain contexts"):
        endangered: Sequence[int] = ()
        if job.plan.rows == "context":
            ranking = forecast(
                weights, replace(rows[TOKENS], retain=names.bare_rows()), job.settings
            )
            endangered = ranking.endangered(job.settings.filter_scale)
            if job.plan.names:
                endangered = ranking.order[: job.plan.names]
        rows = names.add_to(rows, endangered)
    report = TextReport(
        dropped=dropped,
        unusable=tuple(names.unusable),
        left_out=names.left_out,
        in_context=len(endangered),
        encoded=reader.encoded - encoded,
        reused=reader.reused - reused,
        seconds=watch.seconds,
    )
    return rows, report


def ensure_cached(encoder: TextEncoder | CachedEncoder) -> CachedEncoder:
    """The encoder itself, or one around it that counts."""
    return encoder if isinstance(encoder, CachedEncoder) else CachedEncoder(encoder)


def embed_bare(
    job: Job,
    encoder: TextEncoder | CachedEncoder,
    progress: Progress | None = None,
) -> RowSet:
    """Concepts in their prompts and every kept name bare: enough to rank the kept names."""
    retain, _ = drop_targets(job.retain, job.concepts)
    embedder = _Embedder(ensure_cached(encoder), (TOKENS,), progress)
    rows = concept_rows(embedder, job.concepts, job.plan)[TOKENS]
    everything = replace(job, plan=replace(job.plan, judges=0, considered=len(retain)))
    return replace(rows, retain=_Names(embedder, retain, everything).bare_rows())


def embed_targets(
    reader: CachedEncoder,
    concepts: Sequence[Concept],
    plan: RowPlan,
    text_inputs: Sequence[str],
    progress: Progress | None = None,
) -> dict[str, Rows]:
    """{text input: target rows}: what a later erasure must hold where an earlier one put it."""
    embedder = _Embedder(reader, text_inputs, progress)
    pairs = all_pairs(embedder.streams, concepts, plan.solve_templates, plan)
    return {name: rows[0] for name, rows in embedder.pairs(concepts, pairs, "concepts").items()}


class _Embedder:
    """Reads rows for all text inputs at once and remembers them, so that no text is run twice."""

    def __init__(
        self, reader: CachedEncoder, text_inputs: Sequence[str], progress: Progress | None
    ) -> None:
        self.reader, self.text_inputs, self.progress = reader, tuple(text_inputs), progress
        self.streams = reader.encoder.streams
        self._rows: dict[RowRequest, Tensor] = {}

    def read(self, requests: Sequence[RowRequest], stage: Stage) -> None:
        """Encodes what was not read before."""
        missing = [request for request in dict.fromkeys(requests) if request not in self._rows]
        blocks = self.reader.rows(missing, stage, self.progress)
        self._rows.update(zip(missing, blocks, strict=True))

    def values(self, requests: Sequence[RowRequest], text_input: str) -> Tensor:
        """The rows of requests that were read, one below the other."""
        empty = torch.empty(0, self.reader.width_of(text_input))
        return torch.cat([empty, *(self._rows[request] for request in requests)])

    def pairs(
        self, concepts: Sequence[Concept], pairs: Sequence[RowPair], stage: Stage
    ) -> dict[str, tuple[Rows, Rows]]:
        """For each text input targets and, row by row, anchors, in the same groups."""
        by_input = {name: pairs_for(name, pairs) for name in self.text_inputs}
        self.read(
            [
                request
                for group in by_input.values()
                for pair in group
                for request in (pair.target, pair.anchor)
            ],
            stage,
        )
        targets = tuple(concept.target for concept in concepts)
        anchors = tuple(concept.anchor for concept in concepts)
        rows = {}
        for name, group in by_input.items():
            groups = tuple(pair.group for pair in group for _ in pair.target.rows)
            context = tuple(flag for pair in group for flag in pair.in_context)
            target_values = self.values([pair.target for pair in group], name)
            anchor_values = self.values([pair.anchor for pair in group], name)
            rows[name] = (
                Rows(target_values, groups, targets, context),
                Rows(anchor_values, groups, anchors, context),
            )
        return rows

    def names(self, names: Sequence[KeptName], stage: Stage) -> dict[str, Rows]:
        """For each text input all rows of the kept names, in their order."""
        by_input = {key: [name.for_input(key) for name in names] for key in self.text_inputs}
        requests = {
            key: [request for name in group for request in (*name.bare, *name.contexts)]
            for key, group in by_input.items()
        }
        self.read([request for group in requests.values() for request in group], stage)
        rows = {}
        for key, group in by_input.items():
            groups: list[int] = []
            context: list[bool] = []
            for index, name in enumerate(group):
                for flag, members in ((False, name.bare), (True, name.contexts)):
                    count = sum(len(request.rows) for request in members)
                    groups += [index] * count
                    context += [flag] * count
            labels = tuple(name.name for name in group)
            rows[key] = Rows(self.values(requests[key], key), tuple(groups), labels, tuple(context))
        return rows


def concept_rows(
    embedder: _Embedder, concepts: Sequence[Concept], plan: RowPlan
) -> dict[str, RowSet]:
    """Targets with their anchors, in the prompts to make the edit from, in others to check it in,
    and in a third set for `auto`.
    """
    if not concepts:
        raise InputError("There is nothing to erase: name at least one concept.")
    streams, text_inputs = embedder.streams, embedder.text_inputs
    empty = {name: whole_prompt(streams, Prompt.bare(""), name) for name in text_inputs}
    embedder.read(list(empty.values()), "empty prompt")
    taken: list[set[StreamKey]] = [set() for _ in concepts]

    def pairs(
        templates: Callable[[Kind], Sequence[Template]], stage: Stage
    ) -> dict[str, tuple[Rows, Rows]]:
        return embedder.pairs(concepts, all_pairs(streams, concepts, templates, plan, taken), stage)

    solved = pairs(plan.solve_templates, "concepts")
    trial = pairs(plan.trial_prompts, "concepts") if plan.trial_templates else {}
    probes = pairs(plan.unseen_templates, "probes")
    kinds = tuple(concept.kind for concept in concepts)
    rows = {}
    for name in text_inputs:
        invariants = embedder.values([empty[name]], name)
        targets, anchors = solved[name]
        rows[name] = RowSet(
            targets=targets,
            anchors=anchors,
            retain=targets.take_concepts([]),
            # zeros, with which some encoders pad, stay zeros whatever the edit
            invariants=invariants[invariants.norm(dim=1) > 0],
            probes=probes[name],
            trial=trial.get(name),
            kinds=kinds,
        )
    return rows


class _Names:
    """The kept names of a job: bare, set aside to judge by, and in context."""

    def __init__(self, embedder: _Embedder, retain: RetainSet, job: Job) -> None:
        """Reads every kept name by itself, which is cheap; some are set aside by the seed."""
        self.embedder, self.retain, self.job = embedder, retain, job
        plan, settings = job.plan, job.settings
        indices, names, self.unusable = usable_names(embedder.streams, retain)
        usable = list(zip(indices, names, strict=True))
        count = len(usable)
        order = permutation(count, generator(settings.seed, "names to judge by"))
        held = min(plan.judges, round(settings.held_out * count))
        seen = min(plan.judges, round(WITNESS_SHARE * count)) if count >= MIN_NAMES else 0
        self.held_out = [usable[index] for index in order[:held]]
        self.witnesses = [usable[index] for index in order[held : held + seen]]
        solved = sorted(order[held + seen :][: plan.considered])
        self.solved = [usable[index] for index in solved]
        self.left_out = count - held - seen - len(solved)
        self._bare = embedder.names([name for _, name in self.solved], "retain names")

    def bare_rows(self) -> Rows:
        """The names that the edit may be made with, each alone."""
        return self._bare[TOKENS]

    def add_to(self, rows: Mapping[str, RowSet], endangered: Sequence[int]) -> dict[str, RowSet]:
        """Adds the kept names: the endangered ones, and what the plan keeps, also inside prompts.

        Args:
            rows: {text input: targets and anchors}.
            endangered: Indices into the bare names, the most endangered first.
        """
        plan = self.job.plan
        retain = self.embedder.names(self._in_contexts(endangered), "retain contexts")
        held_out = self._judges(self.held_out, lambda kind: kind.probe_templates)
        witnesses = self._judges(self.witnesses, plan.witness_prompts)
        return {
            name: replace(
                row_set,
                retain=retain[name],
                held_out=held_out[name] if self.held_out else None,
                witnesses=witnesses[name] if self.witnesses else None,
            )
            for name, row_set in rows.items()
        }

    def _in_contexts(self, endangered: Sequence[int]) -> list[KeptName]:
        streams, plan, concepts = self.embedder.streams, self.job.plan, self.job.concepts
        names = [name for _, name in self.solved]
        for turn, index in enumerate(sorted(set(endangered))):
            prompts = retain_prompts(self._kind(self.solved[index][0]), plan, turn)
            names[index] = with_contexts(streams, names[index], prompts, plan.retain_positions)
        labels = [name.name for name in names]
        return [*names, *kept_by_plan(streams, concepts, labels, self.retain.names, plan)]

    def _judges(
        self,
        names: Sequence[tuple[int, KeptName]],
        templates: Callable[[Kind], Sequence[Template]],
    ) -> dict[str, Rows]:
        """Names set aside, bare and in prompts that no edit is made from."""
        streams, positions = self.embedder.streams, self.job.plan.retain_positions
        judges = [
            with_contexts(
                streams, name, judging_contexts(self._kind(index), templates, turn), positions
            )
            for turn, (index, name) in enumerate(names)
        ]
        return self.embedder.names(judges, "retain contexts")

    def _kind(self, index: int) -> str:
        """What kind of thing the name at an index of the retain set is."""
        return self.retain.kind_of_name(index, self.job.concepts[0].kind)


def _outlook(reader: CachedEncoder, job: Job, names: int, encoded: int, seconds: float) -> str:
    """What is still to be encoded, in words."""
    names = min(names, job.plan.considered)
    prompts = job.plan.prompts(names)
    text = f"Up to {prompts:,} prompts and {names:,} bare names are to be encoded"
    if not encoded:
        return f"{text}; those of earlier runs come from the cache."
    estimate = seconds / encoded * equivalent_prompts(reader.encoder, prompts, names)
    return f"{text}: about {estimate:.0f} s on this machine, less with a cache."
