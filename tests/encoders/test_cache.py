"""The embedding cache: the second run encodes nothing, and no damage to it is ever an error."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pico
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from text_pico import read_rows, tiny_encoder

from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache, default_folder
from speed_erase.speed_ops.encoders.encoder import TextEncoder
from speed_erase.speed_ops.errors import SettingsError
from speed_erase.speed_ops.text.requests import RowRequest

Rows = dict[tuple[str, int], torch.Tensor]


def random_rows(texts: list[str], width: int = 8, seed: int = 0) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    return {
        (text, row): torch.randn(width, generator=generator) for text in texts for row in (1, 76)
    }


def same(found: Rows, stored: Rows) -> bool:
    return found.keys() == stored.keys() and all(
        torch.equal(found[key], stored[key]) for key in stored
    )


def shards(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def test_rows_come_back_exactly_and_only_for_their_key(tmp_path: Path) -> None:
    cache, stored = EmbeddingCache(tmp_path), random_rows(["Monet", "", "葛飾北斎"])
    cache.write("encoder A", stored)
    wanted = [*stored, ("Monet", 2), ("monet", 1), ("Manet", 1)]
    assert same(EmbeddingCache(tmp_path).read("encoder A", 8, wanted), stored)
    assert cache.read("encoder B", 8, wanted) == {}
    assert cache.read("encoder A", 9, []) == {}


def test_second_run_encodes_nothing_and_one_new_text_encodes_one(tmp_path: Path) -> None:
    requests = [RowRequest(f"painter {i}", (1, 2)) for i in range(30)] + [
        RowRequest("painter 3", (76,))
    ]
    first = CachedEncoder(tiny_encoder(), EmbeddingCache(tmp_path))
    fresh = first.rows(requests)
    assert (first.encoded, first.reused) == (30, 0)
    second = CachedEncoder(tiny_encoder(), EmbeddingCache(tmp_path))
    again = second.rows([*requests, RowRequest("one more", (1,))])
    assert (second.encoded, second.reused) == (1, 30)
    assert all(torch.equal(a, b) for a, b in zip(fresh, again, strict=False))
    direct = read_rows(tiny_encoder(), requests)
    assert all(torch.allclose(a, b, atol=2e-6) for a, b in zip(fresh, direct, strict=True))


def test_another_row_of_a_known_text_is_encoded(tmp_path: Path) -> None:
    reader = CachedEncoder(tiny_encoder(), EmbeddingCache(tmp_path))
    reader.rows([RowRequest("cat", (1,))])
    reader.rows([RowRequest("cat", (1, 2))])
    assert reader.encoded == 2
    reader.rows([RowRequest("cat", (2,)), RowRequest("cat", (1,))])
    assert reader.encoded == 2


def test_another_clip_skip_shares_nothing(tmp_path: Path) -> None:
    for skip in (-1, -2):
        reader = CachedEncoder(tiny_encoder(clip_skip=skip), EmbeddingCache(tmp_path))
        reader.rows([RowRequest("cat", (1,))])
        assert reader.encoded == 1


def test_a_text_that_names_another_file_is_another_text(tmp_path: Path) -> None:
    for content, encoded in (("old", 1), ("new", 1), ("old", 0)):
        cache = EmbeddingCache(tmp_path)
        reader = CachedEncoder(
            tiny_encoder(), cache, stored_as=lambda text, c=content: f"{text} {c}"
        )
        reader.rows([RowRequest("by embedding:x", (1,))])
        assert reader.encoded == encoded, content


class Scaled:
    """Replaces what a model does to each row."""

    def __init__(self, encoder: TextEncoder, factor: float) -> None:
        self.width, self.factor, self.fingerprint = encoder.width, factor, str(factor)

    def __call__(self, rows: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        return rows * self.factor


def test_models_that_treat_rows_differently_share_what_was_encoded(tmp_path: Path) -> None:
    encoder, requests = tiny_encoder(), [RowRequest("a dog", (1, 2)), RowRequest("", (0,))]
    plain = CachedEncoder(encoder).rows(requests)
    for factor, counts in ((2.0, (2, 0)), (3.0, (0, 2))):
        scaled = Scaled(encoder, factor)
        reader = CachedEncoder(encoder, EmbeddingCache(tmp_path), scaled)
        rows = reader.rows(requests)
        assert all(torch.equal(a, factor * b) for a, b in zip(rows, plain, strict=True))
        assert (reader.encoded, reader.reused) == counts
        assert torch.equal(reader.without_cache().rows(requests)[0], rows[0])


def test_an_interrupted_run_keeps_what_it_finished(tmp_path: Path) -> None:
    requests = [RowRequest(f"painter {i}", (1,)) for i in range(600)]

    def stop(stage: str, done: int, total: int) -> None:
        assert stage == "names" and total == 600
        if done >= 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CachedEncoder(tiny_encoder(), EmbeddingCache(tmp_path)).rows(requests, "names", stop)
    reader = CachedEncoder(tiny_encoder(), EmbeddingCache(tmp_path))
    reader.rows(requests)
    assert reader.reused == 256 and reader.encoded == 344


def test_without_a_cache_everything_is_encoded() -> None:
    reader = CachedEncoder(tiny_encoder())
    for _ in range(2):
        reader.rows([RowRequest("cat", (1,)), RowRequest("cat", (2,))])
    assert (reader.encoded, reader.reused) == (2, 0)


def test_damage_anywhere_costs_only_a_second_encoding(tmp_path: Path) -> None:
    generator = random.Random(0)
    stored = random_rows([f"text {i}" for i in range(20)])
    for case in range(60):
        cache = EmbeddingCache(tmp_path / str(case))
        cache.write("encoder", stored)
        file = shards(cache.folder)[0]
        content = bytearray(file.read_bytes())
        if case % 3 == 0:
            content = content[: generator.randrange(len(content))]
        elif case % 3 == 1:
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        else:
            content = bytearray(generator.randbytes(generator.randrange(200)))
        file.write_bytes(content)
        found = cache.read("encoder", 8, stored)
        assert all(torch.equal(found[key], stored[key]) for key in found)
        cache.write("encoder", {key: row for key, row in stored.items() if key not in found})
        assert same(cache.read("encoder", 8, stored), stored)


def test_a_shard_of_another_encoder_is_not_believed(tmp_path: Path) -> None:
    cache, stored = EmbeddingCache(tmp_path), random_rows(["a"])
    cache.write("A", stored)
    cache.write("B", random_rows(["a"], seed=1))
    first, second = (next(iter(cache._shards(name))) for name in "AB")
    first.write_bytes(second.read_bytes())
    assert cache.read("A", 8, stored) == {}


def rewritten(
    path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], None]
) -> None:
    """A shard with some of it changed, and sound as a file."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata())
    change(tensors, metadata)
    save_file(tensors, path, metadata)


def test_rows_under_the_wrong_key_are_not_believed(tmp_path: Path) -> None:
    cache, stored = EmbeddingCache(tmp_path), random_rows(["Monet", "Manet"])
    cache.write("encoder", stored)

    def swap(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
        tensors["keys"] = tensors["keys"].flip(0).contiguous()

    rewritten(shards(tmp_path)[0], swap)
    assert cache.read("encoder", 8, stored) == {} and not shards(tmp_path)


def test_rows_of_another_encoder_under_this_ones_name_are_not_believed(tmp_path: Path) -> None:
    cache, stored = EmbeddingCache(tmp_path), random_rows(["Monet"])
    cache.write("A", stored)
    (shard,) = shards(tmp_path)
    home = cache._home("B")
    home.mkdir(parents=True)
    (home / shard.name).write_bytes(shard.read_bytes())
    rewritten(home / shard.name, lambda tensors, metadata: metadata.update(fingerprint="B"))
    assert cache.read("B", 8, stored) == {} and same(cache.read("A", 8, stored), stored)


def test_shards_of_the_older_form_count_as_absent(tmp_path: Path) -> None:
    cache, stored = EmbeddingCache(tmp_path), random_rows(["Monet"])
    cache.write("encoder", stored)

    def older(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
        sums = [zlib.crc32(row.tobytes()) for row in tensors["rows"].numpy()]
        tensors["sums"] = torch.tensor(sums, dtype=torch.int64)
        metadata["format"] = "speed-erase embeddings 1"

    rewritten(shards(tmp_path)[0], older)
    assert cache.read("encoder", 8, stored) == {}


def test_size_stays_below_the_limit_and_the_oldest_go_first(tmp_path: Path) -> None:
    batches = {name: random_rows([f"{name} {i}" for i in range(50)], width=64) for name in "abcd"}
    size = 0
    for name, rows in batches.items():
        cache = EmbeddingCache(tmp_path, limit_bytes=int(size * 3.5) or 2**30)
        cache.write("encoder", rows)
        size = size or shards(tmp_path)[0].stat().st_size
        for age, file in enumerate(reversed(shards(tmp_path))):
            os.utime(file, (time.time() - 100 * (age + 1),) * 2)
        if name == "c":
            # used again: no longer the oldest
            assert len(cache.read("encoder", 64, batches["a"])) == 100
    assert cache.info().bytes <= cache.limit_bytes and cache.info().files == 3
    assert cache.read("encoder", 64, batches["b"]) == {}
    assert all(len(cache.read("encoder", 64, batches[name])) == 100 for name in "acd")


def test_many_small_shards_become_one(tmp_path: Path) -> None:
    cache, stored = EmbeddingCache(tmp_path), {}
    for i in range(40):
        rows = random_rows([f"text {i}", "shared"], seed=i)
        cache.write("encoder", rows)
        stored |= {key: row for key, row in rows.items() if key[0] != "shared"}
    assert len(shards(tmp_path)) < 13
    assert same(cache.read("encoder", 8, stored), stored)


def write_and_read(folder: str, worker: int) -> None:
    cache = EmbeddingCache(folder)
    for i in range(25):
        mine = random_rows([f"worker {worker} text {i}"], seed=i)
        cache.write("encoder", mine)
        assert same(cache.read("encoder", 8, mine), mine)


WORKER = """
sys.path[:0] = [{tests!r}, {support!r}]
from test_cache import write_and_read
write_and_read({folder!r}, {worker})
"""


def test_processes_share_it_without_locks(tmp_path: Path) -> None:
    here = Path(__file__).resolve().parent
    where = {"tests": str(here), "support": str(here.parent / "support"), "folder": str(tmp_path)}
    scripts = [pico.standalone(WORKER.format(worker=i, **where)) for i in range(3)]
    for process in [subprocess.Popen([sys.executable, "-c", script]) for script in scripts]:
        assert process.wait(120) == 0
    stored = {
        k: v
        for w in range(3)
        for i in range(25)
        for k, v in random_rows([f"worker {w} text {i}"], seed=i).items()
    }
    assert same(EmbeddingCache(tmp_path).read("encoder", 8, stored), stored)
    assert not list(tmp_path.rglob("*.speed-tmp"))


def test_an_unwritable_folder_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = EmbeddingCache(tmp_path / "file")
    cache.write("encoder", random_rows(["a"]))
    assert "could not be cached" in cache.problem
    assert (
        cache.read("encoder", 8, [("a", 1)]) == {}
        and cache.info().files == 0
        and cache.clear() == 0
    )


def test_clear_removes_its_own_files_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").write_bytes(b"precious")
    (tmp_path / "embeddings").mkdir()
    (tmp_path / "embeddings" / "notes.txt").write_text("precious")
    cache = EmbeddingCache(tmp_path)
    cache.write("A", random_rows(["a"]))
    cache.write("B", random_rows(["a"]))
    info = cache.info()
    assert (info.encoders, info.files) == (2, 2) and info.bytes > 0
    assert cache.clear() == info.bytes
    assert cache.info().files == 0
    assert (tmp_path / "mine.safetensors").exists() and (
        tmp_path / "embeddings" / "notes.txt"
    ).exists()


def test_place_and_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path))
    assert default_folder() == tmp_path == EmbeddingCache().folder
    monkeypatch.delenv("SPEED_ERASE_CACHE")
    assert "speed-erase" in str(default_folder())
    with pytest.raises(SettingsError, match="-1"):
        EmbeddingCache(tmp_path, -1)
    off = EmbeddingCache(tmp_path, 0)
    off.write("encoder", random_rows(["a"]))
    assert not shards(tmp_path)


def test_ten_thousand_names_take_a_few_files(tmp_path: Path) -> None:
    values = torch.randn(10_000, 768)
    stored = {(f"name {i}", 2): values[i] for i in range(10_000)}
    cache, names = EmbeddingCache(tmp_path), list(stored)
    for start in range(0, 10_000, 256):
        cache.write("encoder", {key: stored[key] for key in names[start : start + 256]})
    assert len(shards(tmp_path)) < 16
    start_time = time.perf_counter()
    assert len(cache.read("encoder", 768, names)) == 10_000
    # It takes a fifth of a second; encoding them takes minutes.
    assert time.perf_counter() - start_time < 10


def test_merging_shards_changes_no_row_that_was_read_before(tmp_path: Path) -> None:
    """A text that was encoded twice has two rows that differ by rounding; which one counts must not
    change.
    """
    cache = EmbeddingCache(tmp_path)
    first, second = ({("text", 0): torch.full((8,), value)} for value in (1.0, 1.0 + 1e-6))
    cache.write("encoder", first)
    cache.write("encoder", second)
    seen = [cache.read("encoder", 8, first)["text", 0]]
    for i in range(30):
        cache.write("encoder", random_rows([f"other {i}"], seed=i))
        seen.append(cache.read("encoder", 8, first)["text", 0])
    assert cache.info().files < 30, "they were merged"
    assert all(torch.equal(row, seen[0]) for row in seen)


def test_a_row_on_disk_stays_the_one_used(tmp_path: Path) -> None:
    """Encoding a text again for another of its rows gives slightly different values: a run must not
    depend on that.
    """

    class Drifting:
        """An encoder whose rows change a little every time."""

        fingerprint, width, context_length, streams = "drifting", 4, 8, ()
        calls = 0

        def encode(self, prompts, lengths, progress=None):
            self.calls += 1
            return [torch.full((length, 4), 1 + 1e-6 * self.calls) for length in lengths]

    encoder = Drifting()
    reader = CachedEncoder(encoder, EmbeddingCache(tmp_path))
    (first,) = reader.rows([RowRequest("text", (1,))])
    both = [reader.rows([RowRequest("text", (1, 2))])[0] for _ in range(2)]
    assert encoder.calls == 2 and torch.equal(both[0], both[1])
    assert torch.equal(both[0][:1], first) and not torch.equal(both[0][1:], first)
