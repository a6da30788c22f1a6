"""One job on many models on many machines, by Ray: what `batch` does, with a ledger, shared
embeddings and retries.

This machine looks at headers, hands out models one by one and writes the ledger. Models with the
same text encoder form a group: its first model is cleaned alone, and the embedding rows that it
needed go to all others. Ray is imported late: it comes with the extra `fleet`.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from ..checkpoints.batch import Candidate, Done
from ..checkpoints.plan import Survey
from ..errors import MissingPackageError, SettingsError
from .catalogue import AT_ONCE, Catalogue
from .ledger import Entry, Ledger
from .worker import Order, Report, Work, job_hash, work_on

TRIES = 3
"""A model whose worker dies so often is at fault itself, or needs more memory than was asked
for.
"""
MACHINES_LOST = 20
"""So many machines may be lost under one model, which is not its fault; but it has to end."""
BUSY_TRIES, BUSY_SECONDS = 30, 10.0
"""How often, and how long apart, to try again where a worker that counts as lost still holds the
lock of a result.
"""
ALREADY_DONE = "Already done."
STORE_BYTES = 1 << 30
"""For embedding rows, on a cluster started here; Ray writes to disk what does not fit."""
REACH_SECONDS = 20.0


@dataclass(frozen=True)
class Cluster:
    """Which machines, and how much of them."""

    address: str | None = None
    """`ray://host:port`, `host:port` or `auto`; None: this machine alone, for this run."""
    jobs: int | None = None
    """Models at a time; None: as many as there is room for."""


@dataclass
class _Group:
    """Models that, as far as samples tell, have the same text encoder."""

    waiting: deque[int] = field(default_factory=deque)
    """Their places in the catalogue."""
    leader: int | None = None
    """The model whose rows the others wait for."""
    rows: Any = None
    """Ray's reference to those rows."""
    at_work: int = 0


@dataclass
class _Trouble:
    """What befell one model so far."""

    attempts: int = 0
    deaths: int = 0
    """Attempts that ended with their worker."""
    lost: int = 0
    """Attempts that ended with their machine."""
    busy: int = 0
    not_before: float = 0.0


@dataclass(frozen=True)
class _Capacity:
    """Of the cluster as it is now."""

    cores: int
    memory: float
    """Bytes of the machine that offers most; 0: not known."""

    @classmethod
    def of(cls, ray: Any) -> _Capacity:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = int(sum(node.get("CPU", 0) for node in nodes))
        return cls(cores, max((node.get("memory", 0) for node in nodes), default=0))


class Fleet:
    """One run over a catalogue. `told` hears of each model when it is done, `note` what workers
    have to say.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        work: Work,
        ledger: Ledger,
        told: Callable[[int, Candidate, Done], None],
        note: Callable[[str], None],
    ) -> None:
        self._catalogue, self._work, self._ledger = catalogue, work, ledger
        self._told, self._note = told, note
        self._models = catalogue.models
        self._job = job_hash(work, self._models)
        self._results: dict[int, Done] = {}
        self._surveys: dict[int, Survey] = {}
        self._groups: dict[str, _Group] = {}
        self._trouble: dict[int, _Trouble] = {}

    def run(self, cluster: Cluster) -> list[Done]:
        """Cleans what is missing. If this is interrupted, what is done stays, and the ledger says
        so.
        """
        with ThreadPoolExecutor(AT_ONCE) as pool:
            looked = pool.map(self._look, self._models)
            for place, found in enumerate(looked):
                if isinstance(found, Done):
                    self._finish(place, found)
                else:
                    self._surveys[place] = found
                    self._groups.setdefault(found.encoder, _Group()).waiting.append(place)
        if self._groups:
            signals = _Signals()
            try:
                with connected(cluster, self._work.threads) as ray:
                    signals.take_back(noting=True)
                    self._hand_out(ray, cluster.jobs, signals.raise_noted)
            finally:
                signals.take_back(noting=False)
        return [self._results[place] for place in sorted(self._results)]

    def plan(self) -> list[Done]:
        """What would be done; nothing is."""
        for place, one in enumerate(self._models):
            found = self._look(one)
            if isinstance(found, Survey):
                size, memory = (f"{value / 1e9:.1f} GB" for value in (found.size, found.memory))
                what = (
                    f"{found.family}, {size}; it would ask for {memory} of memory; text encoder"
                    f" {found.encoder[:8]}."
                )
                found = Done(self._catalogue.source(one), "ready", what, facts=vars(found))
            self._results[place] = found
            self._told(len(self._results), one, found)
        return list(self._results.values())

    def _look(self, one: Candidate) -> Done | Survey:
        """What becomes of a model, where that is plain; else what it needs."""
        if one.known is not None:
            return one.known
        try:
            if self._is_done(one):
                return Done(self._catalogue.source(one), "skipped", ALREADY_DONE)
            return self._catalogue.survey(one, self._work.text)
        except Exception as fault:  # one bad file must not stop the rest
            return self._catalogue.failed(one, fault)

    def _is_done(self, one: Candidate) -> bool:
        """Whether the ledger says so, of this very file and job, and all that was written is still
        there.
        """
        entry = self._ledger.entries.get(self._catalogue.source(one))
        if entry is None or entry.job != self._job or not entry.files:
            return False
        stamp = self._catalogue.stamp(one)
        return (
            bool(stamp)
            and entry.stamp == stamp
            and all(map(self._catalogue.exists, entry.files.values()))
        )

    def _finish(self, place: int, done: Done, machine: str = "") -> None:
        one = self._models[place]
        if done.facts or done.detail != ALREADY_DONE:  # else the ledger itself has said it
            hidden = one.outputs.no_names and done.status == "failed"
            self._ledger.add(
                Entry(
                    model=self._catalogue.source(one),
                    status=done.status,
                    detail="Not stored, because it may contain names." if hidden else done.detail,
                    code=done.code,
                    stamp=self._catalogue.stamp(one),
                    job=self._job,
                    files=dict((done.facts or {}).get("files", {})),
                    seconds=round(done.seconds, 3),
                    machine=machine,
                    attempts=self._trouble.get(place, _Trouble()).attempts,
                    when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                )
            )
        self._results[place] = done
        self._told(len(self._results), one, done)

    def _hand_out(self, ray: Any, jobs: int | None, stop_if_asked: Callable[[], None]) -> None:
        """Starts models while there is room, and takes reports as they come."""
        task = ray.remote(max_retries=0)(work_on)
        work, flying = ray.put(self._work), dict[Any, int]()
        try:
            while flying or any(group.waiting for group in self._groups.values()):
                stop_if_asked()
                capacity = _Capacity.of(ray)
                # Twice what fits, so that no machine waits for us to answer.
                most = jobs or max(4, 2 * capacity.cores // self._work.threads)
                for place, group in self._next(most - len(flying)):
                    if refused := self._too_large(place, capacity):
                        self._finish(place, refused)
                    else:
                        flying[self._start(task, work, place, group)] = place
                if not flying:
                    time.sleep(0.1)
                    continue
                for reference in ray.wait(list(flying), timeout=0.5)[0]:
                    self._land(ray, reference, flying.pop(reference))
        except BaseException:
            _stop(ray, list(flying))
            raise

    def _next(self, room: int) -> Iterator[tuple[int, _Group]]:
        """Models that may start now. Groups take turns: first those that nobody is at work on."""
        moved = True
        while room > 0 and moved:
            moved = False
            for group in sorted(self._groups.values(), key=lambda group: group.at_work):
                if room > 0 and group.waiting and group.leader is None:
                    place = group.waiting[0]
                    if time.monotonic() >= self._trouble.get(place, _Trouble()).not_before:
                        yield group.waiting.popleft(), group
                        room, moved = room - 1, True

    def _too_large(self, place: int, capacity: _Capacity) -> Done | None:
        """Ray would wait for ever for a machine that does not exist."""
        needed = self._surveys[place].memory
        if not capacity.memory or needed <= capacity.memory:
            return None
        what = (
            f"It needs {needed / 1e9:.1f} GB of memory, but no machine of the cluster offers more"
            " than"
        )
        detail = f"{what} {capacity.memory / 1e9:.1f} GB: add a larger one and run again."
        return Done(self._catalogue.source(self._models[place]), "failed", detail, 0.0, "memory")

    def _start(self, task: Any, work: Any, place: int, group: _Group) -> Any:
        one, first = self._models[place], group.rows is None
        self._trouble.setdefault(place, _Trouble()).attempts += 1
        group.leader, group.at_work = place if first else None, group.at_work + 1
        order = Order(
            one.name, self._catalogue.source(one), self._catalogue.target(one), one.outputs, first
        )
        gpus = {} if self._work.text.device == "cpu" else {"num_gpus": 1}
        wanted = {
            "num_cpus": self._work.threads,
            "memory": self._surveys[place].memory,
            "name": f"clean {one.name}",
        }
        return task.options(**wanted, **gpus).remote(order, work, group.rows)

    def _land(self, ray: Any, reference: Any, place: int) -> None:
        """Takes a report, or finds out why there is none."""
        one, group = self._models[place], self._groups[self._surveys[place].encoder]
        trouble = self._trouble[place]
        group.at_work -= 1
        if group.leader == place:
            group.leader = None
        try:
            report: Report = ray.get(reference)
        except Exception as fault:
            self._crashed(ray, place, group, fault)
            return
        done, again = report.done, trouble.attempts > 1
        if done.code == "busy" and again and trouble.busy < BUSY_TRIES:
            trouble.busy, trouble.not_before = trouble.busy + 1, time.monotonic() + BUSY_SECONDS
            group.waiting.append(place)
            return
        if done.status == "skipped" and again:
            done = replace(
                done, status="cleaned", detail="Done by a worker that was lost just afterwards."
            )
        if group.rows is None and report.rows is not None:
            # of our own, so that it outlives the machine that it came from
            group.rows = ray.put(report.rows)
        for sentence in report.notes:
            self._note(f"{one.name}: {sentence}")
        self._finish(place, done, report.machine)
        if not group.waiting and not group.at_work:
            group.rows = None  # Ray frees them

    def _crashed(self, ray: Any, place: int, group: _Group, fault: Exception) -> None:
        """Has the model tried again, elsewhere if need be. One that kills its workers is given
        up.
        """
        kinds, trouble = ray.exceptions, self._trouble[place]
        if isinstance(fault, kinds.ObjectLostError):
            group.rows = None
        if isinstance(
            fault, (kinds.NodeDiedError, kinds.LocalRayletDiedError, kinds.ObjectLostError)
        ):
            trouble.lost += 1
        else:
            trouble.deaths += 1
        if trouble.deaths < TRIES and trouble.lost < MACHINES_LOST:
            group.waiting.append(place)
            return
        memory = isinstance(fault, kinds.OutOfMemoryError)
        if trouble.deaths >= TRIES:
            how = "killed for lack of memory" if memory else "killed, crashed or out of memory"
            what = (
                f"Its worker died {trouble.deaths} times ({how}): try it alone with `apply` to see"
                " why."
            )
        else:
            what = f"{trouble.lost} machines were lost while they worked on it: run again."
        source = self._catalogue.source(self._models[place])
        self._finish(place, Done(source, "failed", what, 0.0, "memory" if memory else "unexpected"))


def _stop(ray: Any, flying: list[Any]) -> None:
    """Asks workers to stop, and waits a little, so that they take their unfinished files with
    them.
    """
    with suppress(Exception):
        for reference in flying:
            ray.cancel(reference, force=False)
        ray.wait(flying, num_returns=len(flying), timeout=10)


def _refuse_unreachable(address: str) -> None:
    """Ray itself would try for many minutes."""
    host, _, port = address.rpartition("://")[2].rstrip("/").rpartition(":")
    if not host or not port.isdigit():
        return  # `auto`, or a form that Ray knows and we do not
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except OSError as error:
        raise SettingsError(
            f"Cannot reach a Ray cluster at {address}: {error.strerror or error}. Start one with"
            " `ray start --head`, or leave --address out to work on this machine."
        ) from error


@contextmanager
def connected(cluster: Cluster, threads: int = 1) -> Iterator[Any]:
    """Ray, connected to a cluster, or to one of this machine alone that ends with the block. It
    reports no usage.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            "A fleet needs Ray: install it on every machine with `pip install"
            " 'speed-erase[fleet]'`."
        ) from error
    how: dict[str, Any] = {"address": cluster.address}
    if cluster.address is not None:
        _refuse_unreachable(cluster.address)
    else:
        cores = max(threads, cluster.jobs * threads if cluster.jobs else os.cpu_count() or 1)
        how = {
            "address": "local",
            "num_cpus": cores,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        }
        how["_node_ip_address"] = "127.0.0.1"  # nobody else is to reach it
    try:
        _start_ray(ray, how)
        with redirect_stdout(_WithoutRay(sys.stdout)):
            yield ray
    finally:
        ray.shutdown()


class _Signals:
    """Requests to stop. Ray takes some signals for itself, and what a handler raises inside Ray may
    be lost: so it is noted, and raised where it suits."""

    def __init__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        self._handlers: dict[int, Any] = {
            one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM) if main
        }
        self._raised: list[BaseException] = []

    def take_back(self, noting: bool) -> None:
        """From Ray: to be noted, or answered as before."""
        for number, handler in self._handlers.items():
            signal.signal(number, self._note if noting and callable(handler) else handler)

    def _note(self, number: int, frame: Any) -> None:
        try:
            self._handlers[number](number, frame)
        except BaseException as fault:
            self._raised.append(fault)

    def raise_noted(self) -> None:
        if self._raised:
            raise self._raised[0]


def _start_ray(ray: Any, how: dict[str, Any], tries: int = TRIES) -> None:
    """Ray gives a cluster half a minute to start, which on a busy machine may be too little."""
    try:
        ray.init(**how, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises many kinds
        if how["address"] == "local" and "timed out" in str(error) and tries > 1:
            ray.shutdown()
            return _start_ray(ray, how, tries - 1)
        reason = " ".join(str(error).split())[:300].rstrip(".")
        where = (
            "a Ray cluster on this machine"
            if how["address"] == "local"
            else f"the Ray cluster at {how['address']}"
        )
        if "://" in how["address"]:
            reason += (
                ". If it asks for a token, as those of newer versions of Ray do, set"
                " RAY_AUTH_MODE=token here"
            )
        raise SettingsError(f"Cannot use {where}: {reason}.") from error


class _WithoutRay(io.TextIOBase):
    """Standard output, which belongs to the result. What threads of Ray print, such as news of dead
    machines, goes to standard error."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(getattr(self._stream, "encoding", None) or "utf-8")

    def write(self, text: str) -> int:
        stream = sys.stderr if threading.current_thread().name.startswith("ray_") else self._stream
        return len(text) if stream is None else int(stream.write(text))

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()

    def fileno(self) -> int:
        return int(self._stream.fileno())
