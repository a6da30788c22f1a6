"""The models of a fleet's run, in a folder or in a store, as the machine that hands them out sees
them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ..checkpoints.batch import SUFFIXES, Candidate, find_models, selected
from ..checkpoints.output_files import OutputFiles
from ..errors import SpeedError
from ..files.checkpoint import Checkpoint
from ..files.inside import path_inside
from .store import FOLDER_MARK, Store, change_stamp, is_url

PARALLEL_READS = 16
"""Headers read at the same time: they wait for the network, not for the processor."""
_FOLDER_DEPTH = 3
"""Levels down to the weights of a diffusers folder: folder, component, file."""


class HeaderMirror:
    """Local files with the names, sizes and headers of the models in a store, without their
    weights. Whatever reads only headers works on them. A local folder is its own mirror.
    """

    def __init__(self, base: Path, source: Path | str, out: Path | str) -> None:
        """Reads nothing yet.

        Args:
            base: An empty local folder for the mirror.
            source: Path or URL of the models.
            out: Path or URL of the results.
        """
        self.store = Store.open(str(source)) if is_url(source) else None
        self.out_store = Store.open(str(out)) if is_url(out) else None
        self.folder = Path(source).absolute() if self.store is None else _local(base, self.store)
        self.out = Path(out).absolute() if self.out_store is None else _local(base, self.out_store)
        self._stamps: dict[Path, str] = {}

    def find_models(
        self,
        outputs: OutputFiles,
        *,
        recursive: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[Candidate]:
        """Does what `batch.find_models` does. A model whose header cannot be read has failed.

        Args:
            outputs: What to write for each model; its folder is replaced by that of the mirror.
            recursive: Whether to search subfolders.
            include: Patterns; if any, one must match.
            exclude: Patterns; none may match.
        """
        faults = self._fill(recursive, include, exclude)
        out_url = self.out_store.url if self.out_store else ""
        models = find_models(
            self.folder,
            replace(outputs, folder=self.out, url=out_url),
            url=self.store.url if self.store else "",
            recursive=recursive,
            include=include,
            exclude=exclude,
        )
        for index, model in enumerate(models):
            if model.path in faults:
                models[index] = replace(model, known=model.failed(faults[model.path]))
        return models

    def _fill(
        self, recursive: bool, include: Sequence[str], exclude: Sequence[str]
    ) -> dict[Path, SpeedError]:
        """Copies headers from the store; returns the models for which that failed."""
        if self.store is None:
            return {}
        listing = self.store.files(None if recursive else _FOLDER_DEPTH)
        owners: dict[str, Path] = {}
        for inner, info in listing.items():
            parents = (parent.as_posix() for parent in Path(inner).parents)
            model = next((name for name in parents if f"{name}/{FOLDER_MARK}" in listing), inner)
            if model == inner and (
                Path(inner).suffix.lower() not in SUFFIXES or ("/" in inner and not recursive)
            ):
                continue
            if selected(model, include, exclude):
                path = owners[inner] = path_inside(self.folder, model)
                stamps = [self._stamps[path]] if path in self._stamps else []
                self._stamps[path] = ", ".join([*stamps, change_stamp(info)])
        self.folder.mkdir(parents=True, exist_ok=True)
        sizes = [int(listing[inner]["size"]) for inner in owners]
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            faults = list(pool.map(self._copy_head, owners, sizes))
        pairs = zip(owners.values(), faults, strict=True)
        return {path: fault for path, fault in pairs if fault is not None}

    def _copy_head(self, inner: str, size: int) -> SpeedError | None:
        assert self.store is not None
        target = path_inside(self.folder, inner)
        try:
            self.store.get_head(inner, size, target)
        except SpeedError as fault:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
            return fault
        return None

    def read(self, path: Path, start: int, stop: int) -> bytes:
        """Bytes of a model, from the store if it is mirrored.

        Args:
            path: The model.
            start: Position of the first byte.
            stop: Position after the last byte.
        """
        if self.store is not None and path.is_relative_to(self.folder):
            return self.store.read(path.relative_to(self.folder).as_posix(), start, stop)
        with path.open("rb") as handle:
            handle.seek(start)
            return handle.read(stop - start)

    def stamp(self, model: Candidate) -> str:
        """Changes when the model does; empty if it cannot be read."""
        if model.path in self._stamps:
            return self._stamps[model.path]
        try:
            files = [model.path]
            if model.path.is_dir():
                files = [part.file for part in Checkpoint.open(model.path).parts]
            stats = map(os.stat, files)
            return ", ".join(f"{status.st_size} {status.st_mtime_ns}" for status in stats)
        except (OSError, SpeedError):
            return ""

    def exists(self, result: str) -> bool:
        """Whether a result, path or URL, existed when the first URL was asked for."""
        if not is_url(result):
            return os.path.exists(result)
        return not {result, f"{result}/{FOLDER_MARK}"}.isdisjoint(self._result_urls)

    @cached_property
    def _result_urls(self) -> frozenset[str]:
        store = self.out_store
        return frozenset() if store is None else frozenset(map(store.url_of, store.files()))


def _local(base: Path, store: Store) -> Path:
    """Where to mirror a store; a folder inside another one stays inside it."""
    parts = [part for part in store.root.split("/") if part not in ("", ".", "..")]
    return base.joinpath(store.protocol, *parts)
