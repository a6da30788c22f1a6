"""Embedding rows on disk, by encoder and text: a list of names is encoded once, not at every run.

    <cache folder>/embeddings/<encoder>/<shard>.safetensors

A shard is written once, under a new name, and never changed, so any number of processes may read
and write without locks; a text that two encode at once is stored twice until small shards are
merged. A shard that cannot be read, or whose rows fail their checksum, counts as absent and is
removed. No fault here is an error: the worst case is to encode again.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import environ
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import SettingsError, SpeedError
from ..files.tensors import kinds_of, write_tensors
from ..inputs import POOLED, TOKENS
from ..progress import Progress, Stage, part_of
from ..text.requests import RowRequest
from .encoder import RowFunction, TextEncoder, input_fingerprint, input_width, read_prompts

StoredRow = tuple[str, int]
"""Text and row index."""
ENVIRONMENT = "SPEED_ERASE_CACHE"
DEFAULT_LIMIT = 2 * 2**30
_FORMAT = "speed-erase embeddings 2"
_KEY_BYTES = 18
_SMALL_SHARD = 16 * 2**20
_MERGE_AT = 12
_STALE_SECONDS = 3600.0
_FAULTS = (OSError, SafetensorError, ValueError, RuntimeError, TypeError, KeyError, AttributeError)


@dataclass(frozen=True)
class CacheInfo:
    """What the cache holds."""

    folder: Path
    encoders: int
    files: int
    bytes: int
    limit_bytes: int


def default_folder() -> Path:
    """`SPEED_ERASE_CACHE`, else the user's cache folder on this system."""
    override = environ.get(ENVIRONMENT)
    if override:
        return Path(override)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("speed-erase", appauthor=False))


class EmbeddingCache:
    """Rows by encoder fingerprint, text and row index."""

    def __init__(self, folder: str | Path | None = None, limit_bytes: int = DEFAULT_LIMIT) -> None:
        if limit_bytes < 0:
            raise SettingsError(f"The cache limit is {limit_bytes} bytes. Use 0 or more.")
        self.folder = Path(folder) if folder is not None else default_folder()
        self.limit_bytes = limit_bytes
        self.problem = ""
        """Why rows could not be stored, if so: worth a line in a report, never a reason to stop."""

    def read(
        self, fingerprint: str, width: int, wanted: Iterable[StoredRow]
    ) -> dict[StoredRow, Tensor]:
        """Those of the wanted rows that are stored (each `d`, float32).

        Args:
            fingerprint: The encoder's fingerprint.
            width: `d`.
            wanted: The rows to look for.
        """
        missing = {_row_digest(key): key for key in wanted}
        rows: dict[StoredRow, Tensor] = {}
        visited: set[Path] = set()
        # Another process may merge shards while we read: we also look through what it wrote.
        while missing and (unseen := set(self._shards(fingerprint)) - visited):
            visited |= unseen
            for shard in sorted(unseen):
                stored = _read_shard(shard, fingerprint, width, missing.keys())
                for digest, row in stored.items():
                    rows[missing.pop(digest)] = row
                if stored:
                    with suppress(OSError):
                        os.utime(shard)
        return rows

    def write(self, fingerprint: str, rows: Mapping[StoredRow, Tensor]) -> None:
        """Stores rows (each `d`); keeps the cache below its limit."""
        if not rows or self.limit_bytes == 0:
            return
        values = {
            _row_digest(key): row.detach().to("cpu", torch.float32) for key, row in rows.items()
        }
        if self._write_shard(fingerprint, values):
            self._merge_small(fingerprint, len(next(iter(rows.values()))))
            self._evict()

    def info(self) -> CacheInfo:
        """Counts files and bytes."""
        files = [entry for entry in self._all_files() if entry.suffix == ".safetensors"]
        sizes = [size for _, size in map(_stat, files)]
        return CacheInfo(
            self.folder,
            len({file.parent for file in files}),
            len(files),
            sum(sizes),
            self.limit_bytes,
        )

    def clear(self) -> int:
        """Removes the cache's files, and nothing else in the folder; returns the bytes freed."""
        freed = 0
        for file in list(self._all_files()):
            size = _stat(file)[1]
            if _remove(file):
                freed += size
        return freed

    def _home(self, fingerprint: str) -> Path:
        return self.folder / "embeddings" / hashlib.sha256(fingerprint.encode()).hexdigest()[:32]

    def _shards(self, fingerprint: str) -> list[Path]:
        try:
            return sorted(self._home(fingerprint).glob("*.safetensors"))
        except OSError:
            return []

    def _all_files(self) -> Iterator[Path]:
        """Every shard and every leftover of a killed writer."""
        try:
            for home in sorted((self.folder / "embeddings").glob("?" * 32)):
                yield from home.glob("*.safetensors")
                yield from home.glob(".*.speed-tmp")
        except OSError:
            return

    def _write_shard(self, fingerprint: str, rows: Mapping[bytes, Tensor], age: str = "") -> bool:
        """`age`: start of the name of the shard that it replaces, so that it is read as early."""
        keys = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), _KEY_BYTES)
        sums = [_checksum(fingerprint, key, row.numpy()) for key, row in rows.items()]
        tensors = {
            "keys": torch.from_numpy(keys.copy()),
            "sums": torch.tensor(sums, dtype=torch.int64),
            "rows": torch.stack(list(rows.values())),
        }
        metadata = {"format": _FORMAT, "fingerprint": fingerprint}
        home = self._home(fingerprint)
        try:
            home.mkdir(parents=True, exist_ok=True)
            file = home / f"{age or format(time.time_ns(), 'x')}-{secrets.token_hex(4)}.safetensors"
            write_tensors(file, kinds_of(tensors), tensors.values(), metadata)
        except (OSError, SpeedError) as error:
            self.problem = f"Embeddings could not be cached in {home}: {error}"
            return False
        return True

    def _merge_small(self, fingerprint: str, width: int) -> None:
        """Many small shards become one; the old ones go only when the new one is written."""
        small = [shard for shard in self._shards(fingerprint) if _stat(shard)[1] < _SMALL_SHARD]
        if len(small) < _MERGE_AT:
            return
        merged: dict[bytes, Tensor] = {}
        for shard in small:
            for key, row in _read_shard(shard, fingerprint, width, None).items():
                # a row encoded twice may differ by rounding: the first stays the one read
                merged.setdefault(key, row)
        age = small[0].stem.partition("-")[0]
        if merged and not self._write_shard(fingerprint, merged, age):
            return
        for shard in small:
            _remove(shard)

    def _evict(self) -> None:
        """Removes the shards used longest ago until the rest fits, and what killed writers left."""
        entries = sorted((*_stat(file), file) for file in self._all_files())
        total = sum(size for _, size, _ in entries)
        for used, size, file in entries:
            if file.suffix == ".speed-tmp":
                excess = time.time() - used > _STALE_SECONDS
            else:
                excess = total > self.limit_bytes
            if excess and _remove(file):
                total -= size


def _row_digest(key: StoredRow) -> bytes:
    text, row = key
    return hashlib.blake2b(text.encode(), digest_size=16).digest() + row.to_bytes(2, "little")


def _checksum(fingerprint: str, key: bytes, row: NDArray[np.float32]) -> int:
    """Covers all that is known about a row: its encoder, its text and index, and its values."""
    return zlib.crc32(row.tobytes(), zlib.crc32(key, zlib.crc32(fingerprint.encode())))


def _read_shard(
    path: Path, fingerprint: str, width: int, requested: Iterable[bytes] | None
) -> dict[bytes, Tensor]:
    """Rows of one shard by key, all if `requested` is None; none, and no file, if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            keys, sums = file.get_tensor("keys").numpy(), file.get_tensor("sums")
            rows = file.get_tensor("rows")
        intact = metadata.get("format") == _FORMAT and metadata.get("fingerprint") == fingerprint
        intact = intact and keys.shape == (len(sums), _KEY_BYTES) and keys.dtype == np.uint8
        if not intact or rows.shape != (len(sums), width) or rows.dtype != torch.float32:
            raise ValueError("not a shard of this encoder")
        joined = keys.tobytes()
        positions = {joined[i * _KEY_BYTES : (i + 1) * _KEY_BYTES]: i for i in range(len(sums))}
        if requested is not None:
            positions = {key: positions[key] for key in requested if key in positions}
        rows_by_key = {key: rows[i].clone() for key, i in positions.items()}
        for key, row in rows_by_key.items():
            if _checksum(fingerprint, key, row.numpy()) != sums[positions[key]].item():
                raise ValueError("a row fails its checksum")
    except _FAULTS:
        if path.exists():
            _remove(path)
        return {}
    return rows_by_key


def _stat(path: Path) -> tuple[float, int]:
    """Time of last use and size; zeros where the file has just gone."""
    try:
        status = path.stat()
    except OSError:
        return 0.0, 0
    return status.st_mtime, status.st_size


def _remove(path: Path) -> bool:
    """True if the file is gone; a file that another process holds open on Windows stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


PUSHED_ROWS = 4096
"""Rows that go through a model's own part of text at once: bounds the memory."""
FLUSH_TEXTS = 256
"""Texts encoded between two writes: what an interrupted run loses at most."""
FLUSH_BYTES = 2**28
"""Fewer texts where whole prompts take more memory than this: 64 at Flux's 256 rows of 4096."""


class CachedEncoder:
    """A text encoder that remembers. It counts what it really encoded."""

    def __init__(
        self,
        encoder: TextEncoder,
        cache: EmbeddingCache | None = None,
        push: RowFunction | None = None,
        stored_as: Callable[[str], str] = str,
    ) -> None:
        """Rows are cached as the encoder gives them, so that models with other weights share them.

        Args:
            encoder: Encodes what the cache lacks.
            cache: None: every text is encoded.
            push: What the model does to each row by itself before the edited layers.
            stored_as: The name of a text in the cache: another one whenever a file that the text
                names has changed.
        """
        self.encoder = encoder
        self.cache = cache
        self.push = push
        self.stored_as = stored_as
        self.encoded = 0
        """Texts that went through the encoder."""
        self.reused = 0
        """Texts whose rows all came from the cache."""

    @property
    def width(self) -> int:
        """Width d of the rows that come out."""
        return self.encoder.width if self.push is None else self.push.width

    def without_cache(self) -> CachedEncoder:
        """The same, for texts that are encoded only once."""
        return CachedEncoder(self.encoder, None, self.push)

    def width_of(self, text_input: str) -> int:
        """Width of the rows that one text input of the model reads."""
        return self.width if text_input == TOKENS else input_width(self.encoder, text_input)

    def rows(
        self,
        requests: Sequence[RowRequest],
        stage: Stage = "encode",
        progress: Progress | None = None,
    ) -> list[Tensor]:
        """For each request its rows (`len(rows) x width`); a text is encoded once for all of them.

        Args:
            requests: Which rows of which texts, for any text input.
            stage: What the rows are for.
            progress: May raise to interrupt: what was encoded before stays in the cache.
        """
        wanted: dict[str, set[_Key]] = {}
        for request in requests:
            wanted.setdefault(request.text, set()).update(
                (request.text_input, request.text, row) for row in request.rows
            )
        rows = self._recall([key for keys in wanted.values() for key in keys])
        missing: dict[str, set[_Key]] = {}
        for text, keys in wanted.items():
            if lacking := keys - rows.keys():
                # Token rows are read together; an embedding of the whole prompt needs none of them.
                missing[text] = lacking if _length(lacking) == 0 else keys
        self.reused += len(wanted) - len(missing)
        # Shortest first, so that each slice holds prompts of like length.
        order = sorted(missing, key=lambda text: (_length(missing[text]), text))
        prompt_bytes = 4 * self.encoder.context_length * self.encoder.width
        count = max(1, min(FLUSH_TEXTS, FLUSH_BYTES // prompt_bytes))
        for start in range(0, len(order), count):
            texts = order[start : start + count]
            fresh = self._encode(texts, missing, part_of(progress, stage, start, len(missing)))
            # Encoded again for the sake of others, a row may differ by rounding: the one on disk
            # stays the one used.
            fresh = {key: row for key, row in fresh.items() if key not in rows}
            self._store(fresh)
            rows |= fresh
        if progress is not None:
            progress(stage, len(missing), len(missing))
        return self._pushed(requests, [self._block(request, rows) for request in requests])

    def close(self) -> None:
        """Frees the encoder's memory; the next text that is not cached takes it again."""
        self.encoder.close()

    def _block(self, request: RowRequest, rows: Mapping[_Key, Tensor]) -> Tensor:
        """The rows of one request, as the encoder gives them."""
        empty = torch.empty(0, input_width(self.encoder, request.text_input))
        values = [rows[request.text_input, request.text, row][None] for row in request.rows]
        return torch.cat([empty, *values])

    def _pushed(self, requests: Sequence[RowRequest], blocks: list[Tensor]) -> list[Tensor]:
        """The blocks as the model's layers receive them; all are pushed together."""
        tokens = [i for i, request in enumerate(requests) if request.text_input == TOKENS]
        if self.push is not None and tokens:
            rows = torch.cat([blocks[i] for i in tokens])
            pushed = torch.cat([self.push(part) for part in rows.split(PUSHED_ROWS)])
            parts = pushed.split([len(blocks[i]) for i in tokens])
            for i, part in zip(tokens, parts, strict=True):
                blocks[i] = part
        return blocks

    def _recall(self, keys: Sequence[_Key]) -> dict[_Key, Tensor]:
        """Those of the rows that the cache has."""
        rows: dict[_Key, Tensor] = {}
        if self.cache is not None:
            for text_input, names in self._by_input(keys).items():
                width = input_width(self.encoder, text_input)
                stored = self.cache.read(input_fingerprint(self.encoder, text_input), width, names)
                rows |= {names[name]: row for name, row in stored.items()}
        return rows

    def _store(self, rows: Mapping[_Key, Tensor]) -> None:
        if self.cache is not None:
            for text_input, names in self._by_input(list(rows)).items():
                stored = {name: rows[key] for name, key in names.items()}
                self.cache.write(input_fingerprint(self.encoder, text_input), stored)

    def _by_input(self, keys: Sequence[_Key]) -> dict[str, dict[StoredRow, _Key]]:
        """{text input: {row in the cache: key}}."""
        names: dict[str, dict[StoredRow, _Key]] = {}
        for text_input, text, row in keys:
            stored = names.setdefault(text_input, {})
            stored[self.stored_as(text), row] = text_input, text, row
        return names

    def _encode(
        self, texts: Sequence[str], wanted: Mapping[str, set[_Key]], progress: Progress | None
    ) -> dict[_Key, Tensor]:
        """Every wanted row of these texts."""
        requests = [
            RowRequest(text, tuple(sorted(row for name, _, row in wanted[text] if name == TOKENS)))
            for text in texts
        ]
        whole = any(name == POOLED for text in texts for name, _, _ in wanted[text])
        blocks, embeddings = read_prompts(self.encoder, requests, progress, whole)
        fresh: dict[_Key, Tensor] = {(POOLED, text, 0): row for text, row in embeddings.items()}
        for request, block in zip(requests, blocks, strict=True):
            for index, row in enumerate(request.rows):
                fresh[request.text_input, request.text, row] = block[index]
        self.encoded += len(texts)
        return fresh


_Key = tuple[str, str, int]
"""Text input, text and row."""


def _length(keys: set[_Key]) -> int:
    """Rows that a prompt must be encoded to."""
    return max((row + 1 for text_input, _, row in keys if text_input == TOKENS), default=0)
