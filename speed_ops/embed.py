"""From a job's names to the embedding rows that the engine works with, one `RowSet` per text input.

Kept names take three steps, because whole prompts are what costs time: every name bare; a ranking
of them by how far an unprotected edit would move them; contexts for those that it endangers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from .certificate.forecast import Forecast, forecast
from .embedder import AnyEncoder, Embedder, concept_rows, ensure_cached, outlook
from .engine.draws import generator, permutation
from .engine.prepare import MIN_NAMES, WITNESS_SHARE
from .engine.rows import Rows, RowSet
from .erasure import TextReport
from .inputs import TOKENS
from .job import Job
from .progress import Announce, Progress, Stopwatch
from .text.kinds import Kind, Template
from .text.requests import KeptName, kept_by_plan, usable_names, with_contexts
from .text.retain_set import RetainSet, drop_targets


def embed(
    job: Job,
    weights: Mapping[str, Tensor],
    encoder: AnyEncoder,
    text_inputs: Sequence[str] = (TOKENS,),
    progress: Progress | None = None,
    announce: Announce | None = None,
    rank: Callable[[RowSet], Forecast] | None = None,
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
        rank: Ranks the kept names; None: `forecast`, where the rows are.

    Returns:
        The rows of each text input, and what happened to the lists.
    """
    retain, dropped = drop_targets(job.retain, job.concepts)
    reader = ensure_cached(encoder)
    encoded, reused = reader.encoded, reader.reused
    watch = Stopwatch()
    embedder = Embedder(reader, text_inputs, progress)
    with watch.part("concepts"):
        rows = concept_rows(embedder, job.concepts, job.plan)
    if announce is not None:
        names_to_read = min(len(retain), job.plan.considered)
        done, seconds = reader.encoded - encoded, watch.seconds["concepts"]
        prompts = job.plan.prompts(names_to_read, job.settings.context_names)
        announce(outlook(reader, prompts, names_to_read, done, seconds))
    with watch.part("retain names"):
        names = _Names(embedder, retain, job)
    with watch.part("retain contexts"):
        endangered: Sequence[int] = ()
        if job.plan.rows == "context":
            bare = replace(rows[TOKENS], retain=names.bare_rows())
            ranking = rank(bare) if rank else forecast(weights, bare, job.settings)
            endangered = ranking.order[: min(job.plan.names, job.settings.context_names)]
        rows = names.add_to(rows, endangered)
    report = TextReport(
        dropped=dropped,
        unusable=tuple(names.unusable),
        left_out=names.left_out,
        in_context=len(endangered),
        encoded=reader.encoded - encoded,
        reused=reader.reused - reused,
        seconds=watch.seconds,
        prompting="sentences" if job.plan.prompting == "auto" else job.plan.prompting,
    )
    return rows, report


def embed_bare(job: Job, encoder: AnyEncoder, progress: Progress | None = None) -> RowSet:
    """Concepts in their prompts and every kept name bare: enough to rank the kept names.

    Args:
        job: What to erase and what to keep.
        encoder: Turns prompts into rows.
        progress: May raise to interrupt.
    """
    retain, _ = drop_targets(job.retain, job.concepts)
    embedder = Embedder(ensure_cached(encoder), (TOKENS,), progress)
    rows = concept_rows(embedder, job.concepts, job.plan)[TOKENS]
    everything = replace(job, plan=replace(job.plan, judges=0, considered=len(retain)))
    return replace(rows, retain=_Names(embedder, retain, everything).bare_rows())


class _Names:
    """The kept names of a job: bare, set aside to judge by, and in context."""

    def __init__(self, embedder: Embedder, retain: RetainSet, job: Job) -> None:
        """Reads every kept name by itself, which is cheap; some are set aside by the seed."""
        self.embedder, self.retain, self.job = embedder, retain, job
        plan, settings = job.plan, job.settings
        usable, self.unusable = usable_names(embedder.streams, retain)
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
        held_out = self._judges(self.held_out, plan.new_prompts)
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
            prompts = plan.retain_prompts(self._kind(self.solved[index][0]), turn)
            names[index] = with_contexts(streams, names[index], prompts, plan.retain_positions)
        labels = [name.name for name in names]
        return [*names, *kept_by_plan(streams, concepts, labels, self.retain.names, plan)]

    def _judges(
        self, names: Sequence[tuple[int, KeptName]], templates: Callable[[Kind], Sequence[Template]]
    ) -> dict[str, Rows]:
        """Names set aside, bare and in prompts that no edit is made from."""
        streams, plan = self.embedder.streams, self.job.plan
        judges = []
        for turn, (index, name) in enumerate(names):
            prompts = plan.judging_prompts(self._kind(index), templates, turn)
            judges.append(with_contexts(streams, name, prompts, plan.retain_positions))
        return self.embedder.names(judges, "retain contexts")

    def _kind(self, index: int) -> str:
        """What kind of thing the name at an index of the retain set is."""
        return self.retain.kind_of_name(index, self.job.concepts[0].kind)
