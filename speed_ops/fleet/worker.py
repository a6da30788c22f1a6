"""What one machine of a fleet does with one model: the same as the local batch, with embedding rows
that another machine may have encoded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoints.batch import Candidate, Done, clean_one
from ..checkpoints.output_files import PRODUCTS, OutputFiles
from ..checkpoints.text_setup import TextSetup
from ..encoders.cache import DEFAULT_LIMIT, EmbeddingCache, StoredRow
from ..errors import PACKAGE_VERSION, NotFoundError, SettingsError
from ..files.header import PICKLE_SUFFIXES
from ..files.inside import path_inside
from ..recipe import StoredJob, recipe_of
from .store import FOLDER_MARK, Store, scratch_folder

_NO_CACHE = Path(os.devnull)
_NEVER = threading.Event()
"""A fleet is stopped through Ray."""


@dataclass(frozen=True)
class SharedRows:
    """Embedding rows of one text encoder, sent between machines."""

    fingerprint: str
    keys: tuple[StoredRow, ...]
    values: NDArray[np.float32]
    """`len(keys) x d`"""


class FleetCache(EmbeddingCache):
    """The cache of a machine behind rows from another one. It records which rows those lacked."""

    def __init__(
        self, shared: SharedRows | None, folder: Path | None = None, limit: int = DEFAULT_LIMIT
    ) -> None:
        super().__init__(folder, limit)
        self._shared = shared
        keys = () if shared is None else shared.keys
        self._indices = {key: index for index, key in enumerate(keys)}
        self._needed: dict[str, dict[StoredRow, Tensor]] = {}
        """{fingerprint: rows}"""

    def read(
        self, fingerprint: str, width: int, wanted: Iterable[StoredRow]
    ) -> dict[StoredRow, Tensor]:
        """Shared rows take precedence (each `d`, float32), so that all machines use the same.

        Args:
            fingerprint: The encoder's fingerprint.
            width: `d`.
            wanted: The rows to look for.
        """
        wanted, rows = list(wanted), dict[StoredRow, Tensor]()
        if self._shared is not None and self._shared.fingerprint == fingerprint:
            for key in wanted:
                if key in self._indices:
                    rows[key] = torch.from_numpy(self._shared.values[self._indices[key]].copy())
        local = super().read(fingerprint, width, [key for key in wanted if key not in rows])
        self._needed.setdefault(fingerprint, {}).update(local)
        return rows | local

    def write(self, fingerprint: str, rows: Mapping[StoredRow, Tensor]) -> None:
        """Stores rows that were encoded here."""
        self._needed.setdefault(fingerprint, {}).update(rows)
        super().write(fingerprint, rows)

    def to_share(self) -> SharedRows | None:
        """Rows that were needed and did not come from another machine."""
        for fingerprint, rows in self._needed.items():
            if rows:
                values = [row.detach().to("cpu", torch.float32) for row in rows.values()]
                return SharedRows(fingerprint, tuple(rows), torch.stack(values).numpy())
        return None


@dataclass(frozen=True)
class Worker:
    """Cleans models on any machine of a fleet; the same object for all models of a run."""

    stored: StoredJob
    text: TextSetup
    """Without a cache: each machine has its own."""
    threads: int = 1
    """Processor cores per model."""
    scratch: Path | None = None
    """Where to download models; None: the machine's temporary folder."""
    caching: bool = True
    """Whether to use the machine's embedding cache."""
    version: str = PACKAGE_VERSION
    """Of this package, on the machine that started the run."""

    def job_hash(self, outputs: OutputFiles) -> str:
        """Hash of everything that decides what is written."""
        recipe = recipe_of(
            self.stored.job, strength=self.stored.strength, clip_skip=self.text.clip_skip
        )
        content = json.dumps([recipe.to_json(), sorted(outputs.products), outputs.no_names])
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def clean(
        self, model: Candidate, shared: SharedRows | None, share: bool
    ) -> tuple[Done, list[str], SharedRows | None]:
        """Downloads a model if need be, cleans it as the local batch does, uploads the results.

        Args:
            model: The model and its outputs.
            shared: Rows from another machine.
            share: Whether to return the rows that `shared` lacked.

        Returns:
            The outcome, sentences for the user, and those rows.
        """
        started, notes = time.perf_counter(), list[str]()
        cache = FleetCache(shared) if self.caching else FleetCache(shared, _NO_CACHE, 0)
        try:
            if (version := PACKAGE_VERSION) != self.version:
                raise SettingsError(
                    f"{platform.node()} has speed-erase {version}, but the batch was started with"
                    f" {self.version}. Install the same version on all machines."
                )
            torch.set_num_threads(self.threads)
            with staged(model, self.scratch) as local:
                text = replace(self.text, cache=cache)
                done = clean_one(local, self.stored, text, notes.append, _NEVER)
                if done.status == "cleaned":
                    upload(local.outputs, (done.facts or {})["files"].values())
                    done = replace(done, seconds=time.perf_counter() - started)
        except Exception as fault:  # one model must not stop the others
            done = model.failed(fault, started)
        done = replace(done, facts={**(done.facts or {}), "machine": platform.node()})
        return done, notes, cache.to_share() if share else None


@contextmanager
def staged(model: Candidate, scratch: Path | None = None) -> Iterator[Candidate]:
    """The model with local paths. What is in a store is downloaded to `scratch` for the block, with
    the headers of earlier results.
    """
    if not model.url and not model.outputs.url:
        yield model
        return
    with scratch_folder(scratch) as folder:
        if model.url:
            parent, _, name = model.url.rpartition("/")
            model = replace(model, path=path_inside(folder / "in", name))
            if not _download(Store.open(parent), name, model.path):
                raise NotFoundError(f"There is no {model.url}.")
        if model.outputs.url:
            model = replace(model, outputs=replace(model.outputs, folder=folder / "out"))
            store = Store.open(model.outputs.url)
            # An 8-bit model gets a LoRA instead of a checkpoint.
            for result in model.paths(PRODUCTS).values():
                _download(store, result.name, result, heads=True)
        yield model


def upload(outputs: OutputFiles, urls: Iterable[str]) -> None:
    """Uploads results in the order given: those that record the job come before the report. The
    file that marks a folder as a model comes last of its folder.
    """
    if not outputs.url:
        return
    store = Store.open(outputs.url)
    for url in urls:
        result = outputs.folder / url.rpartition("/")[2]
        files = [path for path in result.rglob("*") if path.is_file()] or [result]
        for path in sorted(files, key=lambda path: path.name == FOLDER_MARK):
            store.put(path, path.relative_to(outputs.folder).as_posix())


def _download(store: Store, name: str, target: Path, heads: bool = False) -> bool:
    """A file, or a folder without its pickles, which are never read; with `heads`, only what
    identifies an earlier result. Returns whether it exists.
    """
    info = store.info(name)
    if info is None:
        return False
    files = {target: (store, name, info)}
    if info["type"] != "file":
        folder = store.subfolder(name)
        files = {
            path_inside(target, inner): (folder, inner, facts)
            for inner, facts in folder.files().items()
        }
    for path, (folder, inner, facts) in files.items():
        if heads:
            folder.get_head(inner, int(facts["size"]), path)
        elif path.suffix.lower() not in PICKLE_SUFFIXES or path == target:
            folder.get(inner, path)
    return True
