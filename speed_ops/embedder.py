"""Reads the rows of prompts for all text inputs of a model at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .encoders.cache import CachedEncoder
from .encoders.encoder import TextEncoder, equivalent_prompts
from .engine.rows import Rows, RowSet
from .errors import InputError, Notice
from .progress import Progress, Stage
from .text.concept_list import Concept
from .text.kinds import Kind, Prompt, Template
from .text.plan import RowPlan
from .text.requests import KeptName, RowPair, RowRequest, all_pairs, pairs_for, whole_prompt
from .text.tokens import StreamKey

AnyEncoder = TextEncoder | CachedEncoder


def ensure_cached(encoder: AnyEncoder) -> CachedEncoder:
    """The encoder itself, or one around it that counts."""
    return encoder if isinstance(encoder, CachedEncoder) else CachedEncoder(encoder)


class Embedder:
    """Reads rows for all text inputs at once and remembers them, so that no text is run twice."""

    def __init__(
        self, reader: CachedEncoder, text_inputs: Sequence[str], progress: Progress | None
    ) -> None:
        """Reads nothing yet.

        Args:
            reader: Turns prompts into rows.
            text_inputs: Which inputs of the model the rows are for.
            progress: May raise to interrupt.
        """
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
        """For each text input targets and, row by row, anchors, in the same groups.

        Args:
            concepts: What to erase.
            pairs: The rows to read, target and anchor.
            stage: What the rows are for.
        """
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
    embedder: Embedder, concepts: Sequence[Concept], plan: RowPlan
) -> dict[str, RowSet]:
    """Targets with their anchors, in the prompts to make the edit from, in others to check it in,
    and in a third set for `auto`.

    Args:
        embedder: Encodes the prompts.
        concepts: What to erase.
        plan: Which prompts and positions to take.
    """
    if not concepts:
        raise InputError("There is nothing to erase. Name at least one concept.")
    streams, text_inputs = embedder.streams, embedder.text_inputs
    empty = {name: whole_prompt(streams, Prompt.bare(""), name) for name in text_inputs}
    embedder.read(list(empty.values()), "empty prompt")
    taken: list[set[StreamKey]] = [set() for _ in concepts]

    def pairs(
        templates: Callable[[Kind], Sequence[Template]], stage: Stage
    ) -> dict[str, tuple[Rows, Rows]]:
        return embedder.pairs(concepts, all_pairs(streams, concepts, templates, plan, taken), stage)

    solved = _part_way(pairs(plan.solve_templates, "concepts"), concepts)
    trial = pairs(plan.trial_prompts, "concepts") if plan.trial_templates else {}
    trial = _part_way(trial, concepts)
    # The report measures the whole way: a concept at half strength is not erased.
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


def _part_way(
    rows: dict[str, tuple[Rows, Rows]], concepts: Sequence[Concept]
) -> dict[str, tuple[Rows, Rows]]:
    """The same pairs, each anchor as far from its target as the concept's strength has it."""
    strengths = torch.tensor([concept.strength for concept in concepts])
    if bool((strengths == 1).all()):
        return rows
    moved = {}
    for name, (targets, anchors) in rows.items():
        share = strengths.to(targets.values)[targets.group_index()][:, None]
        way = share * (anchors.values - targets.values)
        moved[name] = targets, anchors.with_values(targets.values + way)
    return moved


def embed_targets(
    reader: CachedEncoder,
    concepts: Sequence[Concept],
    plan: RowPlan,
    text_inputs: Sequence[str],
    progress: Progress | None = None,
) -> dict[str, Rows]:
    """{text input: target rows}: what a later erasure must hold where an earlier one put it.

    Args:
        reader: Turns prompts into rows.
        concepts: What was erased before.
        plan: Which prompts and positions to take.
        text_inputs: Which inputs of the model the rows are for.
        progress: May raise to interrupt.
    """
    embedder = Embedder(reader, text_inputs, progress)
    pairs = all_pairs(embedder.streams, concepts, plan.solve_templates, plan)
    return {name: rows[0] for name, rows in embedder.pairs(concepts, pairs, "concepts").items()}


def outlook(
    reader: CachedEncoder, prompts: int, names: int, encoded: int, seconds: float
) -> Notice:
    """How much text there is to encode, and how long that may take.

    Args:
        reader: Encodes it.
        prompts: Whole prompts, at most.
        names: Bare names, at most.
        encoded: Texts that were encoded so far.
        seconds: How long that took.
    """
    count = prompts + names
    if not encoded:
        text = f"Encoding up to {count:,} prompts; the cache has those of earlier runs."
        return Notice(text, code="encoding", prompts=count)
    estimate = seconds / encoded * equivalent_prompts(reader.encoder, prompts, names)
    text = f"Encoding up to {count:,} prompts (roughly {estimate:.0f} s; later runs use the cache)."
    return Notice(text, code="encoding_timed", prompts=count, seconds=round(estimate))
