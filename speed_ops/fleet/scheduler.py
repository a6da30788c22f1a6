"""One job on many models on many machines, through Ray: what `batch` does, with a ledger, shared
embeddings and retries.

This machine reads headers, hands out models and writes the ledger. Models with the same text
encoder form a group: its first model is cleaned alone, and the embedding rows that it needed go to
all others.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from ..checkpoints.batch import Candidate, Done
from ..checkpoints.text_setup import Survey, survey
from .catalogue import PARALLEL_READS, HeaderMirror
from .ledger import Ledger, LedgerEntry
from .ray_session import connected
from .worker import Worker

MAX_DEATHS = 3
"""A model whose workers die this often is at fault itself, or needs more memory than was asked
for.
"""
MAX_LOST_MACHINES = 20
"""Machines that may be lost under one model, which is not its fault; but it has to end."""
BUSY_RETRIES, BUSY_SECONDS = 30, 10.0
"""How often, and after how many seconds, to try again while a worker that counts as lost still
holds the lock of a result.
"""
STOP_SECONDS = 10
"""How long workers may take to remove their unfinished files."""


@dataclass
class _Group:
    """Models that seem to have the same text encoder."""

    waiting: deque[int] = field(default_factory=deque)
    """Indices of models."""
    leader: int | None = None
    """The model whose rows the others wait for."""
    rows: Any = None
    """Ray's reference to those rows."""
    running: int = 0


@dataclass
class _Retries:
    """What happened to one model so far."""

    attempts: int = 0
    deaths: int = 0
    """Attempts that ended with their worker."""
    lost: int = 0
    """Attempts that ended with their machine."""
    busy: int = 0
    not_before: float = 0.0


@dataclass
class Fleet:
    """One run over the models of a mirror."""

    models: list[Candidate]
    """What `classify` returned, at least one."""
    mirror: HeaderMirror
    worker: Worker
    ledger: Ledger
    """What became of the models in earlier runs, and in this one."""
    on_done: Callable[[int, Candidate, Done], None]
    """Called after each model with the number done so far, the model and its outcome."""
    note: Callable[[str], None]
    """Receives sentences for the user."""
    _results: dict[int, Done] = field(default_factory=dict)
    _surveys: dict[int, Survey] = field(default_factory=dict)
    _groups: defaultdict[str, _Group] = field(default_factory=lambda: defaultdict(_Group))
    _retries: defaultdict[int, _Retries] = field(default_factory=lambda: defaultdict(_Retries))

    def __post_init__(self) -> None:
        self._job = self.worker.job_hash(self.models[0].outputs)

    def run(self, address: str | None = None, jobs: int | None = None) -> list[Done]:
        """Cleans what is missing. After an interrupt, the ledger has what was done.

        Args:
            address: Of the cluster; see `connected`.
            jobs: Models at a time; None: as many as there is room for.
        """
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            for index, state in enumerate(pool.map(self._survey, self.models)):
                if isinstance(state, Done):
                    self._report(index, state)
                else:
                    self._surveys[index] = state
                    self._groups[state.encoder].waiting.append(index)
        if self._groups:
            cores = jobs * self.worker.threads if jobs else None
            with connected(address, cores) as (ray, raise_pending):
                self._hand_out(ray, jobs, raise_pending)
        return [self._results[index] for index in sorted(self._results)]

    def plan(self) -> list[Done]:
        """What would be done; nothing is."""
        for index, model in enumerate(self.models):
            state = self._survey(model)
            if isinstance(state, Survey):
                detail = (
                    f"{state.family}, {state.size / 1e9:.1f} GB; it would ask for"
                    f" {state.memory / 1e9:.1f} GB of memory; text encoder {state.encoder[:8]}."
                )
                state = Done(model.label, "ready", detail, facts=vars(state))
            self._report(index, state, record=False)
        return list(self._results.values())

    def _survey(self, model: Candidate) -> Done | Survey:
        """The outcome, if it is clear before any work, or what the work needs."""
        try:
            if model.known is None and self._is_done(model):
                return model.already_done()
            text, read = self.worker.text, self.mirror.read
            return model.known or survey(model.path, text, read, model.label)
        except Exception as fault:  # one bad file must not stop the others
            return model.failed(fault)

    def _is_done(self, model: Candidate) -> bool:
        """Whether the ledger has this file and job, and all that was written still exists."""
        entry = self.ledger.entries.get(model.label)
        if entry is None or entry.job != self._job or not entry.files:
            return False
        stamp = self.mirror.stamp(model)
        return entry.stamp == stamp != "" and all(map(self.mirror.exists, entry.files.values()))

    def _report(self, index: int, done: Done, record: bool = True) -> None:
        model, facts = self.models[index], done.facts or {}
        if record and done != model.already_done():  # which the ledger has
            hidden = model.outputs.no_names and done.status == "failed"
            self.ledger.add(
                LedgerEntry(
                    model=done.model,
                    status=done.status,
                    detail="Not stored, because it may contain names." if hidden else done.detail,
                    code=done.code,
                    stamp=self.mirror.stamp(model),
                    job=self._job,
                    files=dict(facts.get("files", {})),
                    seconds=round(done.seconds, 3),
                    machine=facts.get("machine", ""),
                    attempts=self._retries[index].attempts,
                    when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                )
            )
        self._results[index] = done
        self.on_done(len(self._results), model, done)

    def _hand_out(self, ray: Any, jobs: int | None, raise_pending: Callable[[], None]) -> None:
        """Starts models while there is room, and collects outcomes as they come."""
        task = ray.remote(max_retries=0)(Worker.clean)
        worker, pending = ray.put(self.worker), dict[Any, int]()
        try:
            while pending or any(group.waiting for group in self._groups.values()):
                raise_pending()
                nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
                cores = int(sum(node.get("CPU", 0) for node in nodes))
                memory = max((node.get("memory", 0) for node in nodes), default=0)
                # Twice what fits, so that no machine waits for this one to answer.
                limit = jobs or max(4, 2 * cores // self.worker.threads)
                for index, group in self._next(limit - len(pending)):
                    if refusal := self._too_large(index, memory):
                        self._report(index, refusal)
                    else:
                        pending[self._start(task, worker, index, group)] = index
                if not pending:
                    time.sleep(0.1)
                    continue
                for reference in ray.wait(list(pending), timeout=0.5)[0]:
                    self._collect(ray, reference, pending.pop(reference))
        except BaseException:
            with suppress(Exception):
                for reference in pending:
                    ray.cancel(reference, force=False)
                ray.wait(list(pending), num_returns=len(pending), timeout=STOP_SECONDS)
            raise

    def _next(self, room: int) -> Iterator[tuple[int, _Group]]:
        """Models that may start now. Groups take turns, idle ones first."""
        started = True
        while room > 0 and started:
            started = False
            for group in sorted(self._groups.values(), key=lambda group: group.running):
                if room <= 0 or not group.waiting or group.leader is not None:
                    continue
                if time.monotonic() >= self._retries[group.waiting[0]].not_before:
                    yield group.waiting.popleft(), group
                    room, started = room - 1, True

    def _too_large(self, index: int, memory: float) -> Done | None:
        """Ray would wait forever for a machine that does not exist; `memory` 0: not known."""
        needed = self._surveys[index].memory
        if not memory or needed <= memory:
            return None
        detail = (
            f"It needs {needed / 1e9:.1f} GB of memory, but no machine of the cluster offers more"
            f" than {memory / 1e9:.1f} GB. Add a larger one and run again."
        )
        return Done(self.models[index].label, "failed", detail, code="memory")

    def _start(self, task: Any, worker: Any, index: int, group: _Group) -> Any:
        model, leads = self.models[index], group.rows is None
        self._retries[index].attempts += 1
        group.leader, group.running = index if leads else None, group.running + 1
        resources = {"num_cpus": self.worker.threads, "memory": self._surveys[index].memory}
        if self.worker.text.device != "cpu":
            resources["num_gpus"] = 1
        options = task.options(**resources, name=f"clean {model.name}")
        return options.remote(worker, model, group.rows, leads)

    def _collect(self, ray: Any, reference: Any, index: int) -> None:
        """Takes the outcome of a model, or finds out why there is none."""
        model, retries = self.models[index], self._retries[index]
        group = self._groups[self._surveys[index].encoder]
        group.running -= 1
        if group.leader == index:
            group.leader = None
        try:
            done, notes, rows = ray.get(reference)
        except Exception as fault:
            self._retry(ray, index, group, fault)
            return
        repeated = retries.attempts > 1
        if done.code == "busy" and repeated and retries.busy < BUSY_RETRIES:
            retries.busy, retries.not_before = retries.busy + 1, time.monotonic() + BUSY_SECONDS
            group.waiting.append(index)
            return
        if done.status == "skipped" and repeated:
            done = replace(
                done, status="cleaned", detail="Done by a worker that was lost just afterwards."
            )
        if group.rows is None and rows is not None:
            # Stored from here, so that they outlive the machine that they came from.
            group.rows = ray.put(rows)
        for sentence in notes:
            self.note(f"{model.name}: {sentence}")
        self._report(index, done)
        if not group.waiting and not group.running:
            group.rows = None  # Ray frees them

    def _retry(self, ray: Any, index: int, group: _Group, fault: Exception) -> None:
        """Tries a model again, possibly on another machine, unless it keeps killing workers."""
        errors, retries = ray.exceptions, self._retries[index]
        if isinstance(fault, errors.ObjectLostError):
            group.rows = None
        lost = (errors.NodeDiedError, errors.LocalRayletDiedError, errors.ObjectLostError)
        if isinstance(fault, lost):
            retries.lost += 1
        else:
            retries.deaths += 1
        if retries.deaths < MAX_DEATHS and retries.lost < MAX_LOST_MACHINES:
            group.waiting.append(index)
            return
        memory = isinstance(fault, errors.OutOfMemoryError)
        if retries.deaths >= MAX_DEATHS:
            cause = "killed for lack of memory" if memory else "killed, crashed or out of memory"
            detail = f"Its worker died {retries.deaths} times ({cause}). Try it alone to see why."
        else:
            detail = f"{retries.lost} machines were lost while they worked on it. Run again."
        code = "memory" if memory else "unexpected"
        self._report(index, Done(self.models[index].label, "failed", detail, code=code))
