"""What one machine of a fleet does with one model: what the local batch does, with rows that others
have encoded.

`FleetCache` holds those rows. `at_hand` fetches a model from a store, with as much of its earlier
results as says what they are. `work_on` is the whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoints.batch import Candidate, Done, clean_one
from ..checkpoints.output_files import PRODUCTS, OutputFiles
from ..checkpoints.source import TextSetup
from ..encoders.cache import DEFAULT_LIMIT, EmbeddingCache, StoredRow
from ..errors import NotFoundError, SettingsError
from ..files.header import PICKLE_SUFFIXES
from ..recipe import StoredJob, package_version, recipe_of
from .catalogue import FOLDER_MARK, Store, is_url, scratch_folder


@dataclass(frozen=True)
class SharedRows:
    """Embedding rows of one text encoder, on their way between machines."""

    fingerprint: str
    keys: tuple[StoredRow, ...]
    values: NDArray[np.float32]
    """`len(keys) x d`"""


class FleetCache(EmbeddingCache):
    """The cache of a machine behind rows that came from another. It remembers what was needed
    besides those.
    """

    def __init__(
        self, shared: SharedRows | None, folder: Path | None = None, limit: int = DEFAULT_LIMIT
    ) -> None:
        super().__init__(folder, limit)
        self._shared = shared
        self._places = (
            {} if shared is None else {key: place for place, key in enumerate(shared.keys)}
        )
        self._needed: dict[str, dict[StoredRow, Tensor]] = {}
        """{fingerprint: rows}"""

    def read(
        self, fingerprint: str, width: int, wanted: Iterable[StoredRow]
    ) -> dict[StoredRow, Tensor]:
        """Rows from elsewhere first (each `d`, float32): all machines are to use the same."""
        wanted, found = list(wanted), dict[StoredRow, Tensor]()
        if self._shared is not None and self._shared.fingerprint == fingerprint:
            values, places = self._shared.values, self._places
            found = {
                key: torch.from_numpy(values[places[key]].copy()) for key in wanted if key in places
            }
        own = super().read(fingerprint, width, [key for key in wanted if key not in found])
        self._needed.setdefault(fingerprint, {}).update(own)
        return found | own

    def write(self, fingerprint: str, rows: Mapping[StoredRow, Tensor]) -> None:
        """Rows that were encoded here."""
        self._needed.setdefault(fingerprint, {}).update(rows)
        super().write(fingerprint, rows)

    def to_share(self) -> SharedRows | None:
        """What was needed and did not come from another machine."""
        for fingerprint, rows in self._needed.items():
            if rows:
                values = torch.stack(
                    [row.detach().to("cpu", torch.float32) for row in rows.values()]
                )
                return SharedRows(fingerprint, tuple(rows), values.numpy())
        return None


@dataclass(frozen=True)
class AtHand:
    """One model where it can be worked on."""

    path: Path
    outputs: OutputFiles
    names: tuple[tuple[str, str], ...] = ()
    """(local folder, the URL that it stands for)"""
    store: Store | None = field(default=None, repr=False)
    """Where results go, if not to a folder."""

    def bring(self, files: Mapping[str, Path]) -> None:
        """Puts results in their place, in the order in which they are written to a disk: what says
        whose it is comes before the report. Of a folder, the file that marks it as a model comes
        last."""
        if self.store is None:
            return
        for path in files.values():
            inside = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
            for one in sorted(inside, key=lambda one: one.name == FOLDER_MARK):
                self.store.put(one, one.relative_to(self.outputs.folder).as_posix())

    def spoken(self, text: str) -> str:
        """A path, or a sentence with paths, as it is outside this machine."""
        for local, real in self.names:
            text = text.replace(local, real)
        return text


@contextmanager
def at_hand(
    source: str, outputs: OutputFiles, out: str, scratch: Path | None = None
) -> Iterator[AtHand]:
    """A model at a path or URL, with a folder for its results, which go to the path or URL `out`.

    Paths are used where they are. What comes from a store is fetched to `scratch`, and nothing
    stays there.
    """
    if not is_url(source) and not is_url(out):
        yield AtHand(Path(source), replace(outputs, folder=Path(out)))
        return
    with scratch_folder(scratch) as folder:
        path, names, store = Path(source), list[tuple[str, str]](), None
        if is_url(source):
            parent, _, name = source.rstrip("/").rpartition("/")
            path = folder / "in" / name
            names.append((str(path.parent), parent))
            _fetch(Store.open(parent), name, path)
        outputs = replace(outputs, folder=folder / "out" if is_url(out) else Path(out))
        if is_url(out):
            store = Store.open(out)
            names.append((str(outputs.folder), store.url))
            # an 8-bit model gets a LoRA in the place of a checkpoint
            everything = replace(outputs, products=PRODUCTS)
            for result in everything.paths(path, is_folder=path.is_dir()).values():
                _fetch_head(store, result)
        yield AtHand(path, outputs, tuple(names), store)


def _fetch(store: Store, name: str, target: Path) -> None:
    """A file, or a folder with all in it but pickles, which nobody reads."""
    info = store.info(name)
    if info is None:
        raise NotFoundError(f"There is no {store.url_of(name)}.")
    if info["type"] == "file":
        store.get(name, target)
        return
    inside = Store(store.url_of(name), store.fs, f"{store.root}/{name}")
    for inner in inside.files():
        if Path(inner).suffix.lower() not in PICKLE_SUFFIXES:
            inside.get(inner, target / inner)


def _fetch_head(store: Store, result: Path) -> None:
    """What is needed to tell whose an earlier result is; where there is none, nothing."""
    info = store.info(result.name)
    if info is None:
        return
    if info["type"] == "file":
        store.get_head(result.name, int(info["size"]), result)
        return
    inside = Store(store.url_of(result.name), store.fs, f"{store.root}/{result.name}")
    for inner, found in inside.files().items():
        inside.get_head(inner, int(found["size"]), result / inner)


@dataclass(frozen=True)
class Work:
    """What is the same for all models of a run."""

    stored: StoredJob
    text: TextSetup
    """Without a cache: each machine has its own."""
    threads: int
    """Processor cores a model."""
    scratch: Path | None
    """Where to put what is fetched; None: the machine's temporary folder."""
    caching: bool
    """Whether to use the embedding cache of the machine, too."""
    version: str
    """Of this package, on the machine that started the run."""


def job_hash(work: Work, models: Sequence[Candidate]) -> str:
    """Identifies everything that determines what is written. It stays in the ledger, which is not
    published.
    """
    recipe = recipe_of(
        work.stored.job, strength=work.stored.strength, clip_skip=work.text.clip_skip
    )
    outputs = models[0].outputs if models else None
    products = sorted(outputs.products) if outputs is not None else []
    no_names = outputs is not None and outputs.no_names
    facts = [recipe.to_json(), products, no_names]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Order:
    """One model for one worker."""

    name: str
    source: str
    """Path or URL."""
    out: str
    """Path or URL of the folder for its results."""
    outputs: OutputFiles
    first: bool
    """Whether the rows that it needs are to be shared."""


@dataclass(frozen=True)
class Report:
    """What a worker says."""

    done: Done
    notes: tuple[str, ...]
    machine: str
    rows: SharedRows | None = None


def work_on(order: Order, work: Work, shared: SharedRows | None) -> Report:
    """Fetches one model if need be, cleans it as the local batch does, and brings the results."""
    started, notes = time.perf_counter(), list[str]()
    cache = FleetCache(shared) if work.caching else FleetCache(shared, _NOWHERE, 0)
    one = Candidate(Path(order.source), order.outputs, order.name)
    try:
        _refuse_other_version(work.version)
        torch.set_num_threads(work.threads)
        with at_hand(order.source, order.outputs, order.out, work.scratch) as here:
            one = replace(one, path=here.path, outputs=here.outputs)
            text = replace(work.text, cache=cache)
            done = clean_one(
                one, work.stored, text, lambda sentence: notes.append(here.spoken(sentence)), _never
            )
            files = (done.facts or {}).get("files", {})
            if done.status == "cleaned":
                here.bring({product: Path(file) for product, file in files.items()})
                done = replace(done, seconds=time.perf_counter() - started)
            if files:
                done = replace(
                    done,
                    facts={
                        **(done.facts or {}),
                        "files": {k: here.spoken(v) for k, v in files.items()},
                    },
                )
            done = replace(done, detail=here.spoken(done.detail))
    except Exception as fault:  # one model must not stop the rest
        done = one.failed(fault, started)
    return Report(
        replace(done, model=order.source),
        tuple(notes),
        platform.node(),
        cache.to_share() if order.first else None,
    )


_NOWHERE = Path(os.devnull)
"""A cache there holds nothing."""
_never = threading.Event()
"""Whoever stops a fleet does it through Ray."""


def _refuse_other_version(version: str) -> None:
    if (mine := package_version()) != version:
        raise SettingsError(
            f"{platform.node()} has speed-erase {mine}, but the batch was started with {version}:"
            " install the same version on all machines."
        )
