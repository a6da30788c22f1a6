"""The final name holds the old file or the whole new one, and nothing is left behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pico
import pytest

from speed_erase.speed_ops.errors import ExistsError, FileError
from speed_erase.speed_ops.files import atomic
from speed_erase.speed_ops.files.atomic import all_or_none, atomic_write, write_bytes


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_appears_whole_and_alone(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with atomic_write(target) as handle:
        handle.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, FileError])
def test_an_exception_leaves_the_old_file_and_no_other(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    with pytest.raises(error), atomic_write(target, force=True) as handle:
        handle.write(b"half")
        raise error("stop")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_overwriting_needs_force(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    write_bytes(target, b"old")
    with pytest.raises(ExistsError):
        write_bytes(target, b"new")
    assert target.read_bytes() == b"old"
    write_bytes(target, b"new", force=True)
    assert target.read_bytes() == b"new"


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with pytest.raises(ExistsError), atomic_write(target) as handle:
        handle.write(b"ours")
        target.write_bytes(b"theirs")
    assert target.read_bytes() == b"theirs"
    assert names(tmp_path) == ["a.bin"]


@pico.posix
def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = tmp_path / "a.bin"
    source.write_bytes(b"model")
    link = tmp_path / "link.bin"
    link.symlink_to(source)
    for target in (source, link, tmp_path / "." / "a.bin"):
        with (
            pytest.raises(FileError, match="same file"),
            atomic_write(target, force=True, sources=[source]),
        ):
            pass
    assert source.read_bytes() == b"model"


@pico.linux
def test_disk_full_is_a_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(FileError, match="disk is full"),
        atomic_write(tmp_path / "a.bin"),
        open("/dev/full", "wb") as full,
    ):
        full.write(b"x" * 100_000)
    assert names(tmp_path) == []


@pico.linux
def test_a_read_only_folder_is_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    # Permissions do not bind the superuser; the kernel's own folders do.
    place = Path("/sys/kernel") if os.geteuid() == 0 else folder
    with pytest.raises(FileError, match=r"read-only|not have permission"):
        write_bytes(place / "a.bin", b"x")


@pytest.mark.parametrize("name", ["missing/a.bin", "file/a.bin", "x" * 300, "a\0b", "."])
def test_impossible_paths_are_sentences(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="Cannot write"):
        write_bytes(tmp_path / name, b"x")
    assert names(tmp_path) == ["file"]


def test_a_folder_takes_no_file_and_a_file_no_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="a folder of that name exists"):
        write_bytes(tmp_path / "folder", b"x", force=True)
    write_bytes(tmp_path / "file", b"x")
    with (
        pytest.raises(FileError, match="a file of that name exists"),
        all_or_none([tmp_path / "file"], replace=lambda path: True) as temporary,
    ):
        temporary(tmp_path / "file").mkdir()


@pico.posix
def test_new_files_obey_the_umask(tmp_path: Path) -> None:
    write_bytes(tmp_path / "ours", b"x")
    (tmp_path / "plain").write_bytes(b"x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_leftovers_of_killed_writers_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A living writer's folder stays. A writer may have been killed before it took its lock."""
    killed, early, old = (tmp_path / f".{name}.speed-tmp" for name in ("killed", "early", "old"))
    for leftover in (killed, early, old):
        leftover.mkdir()
        (leftover / "new").write_bytes(b"half")
    (killed / ".speed-lock").touch()
    os.utime(old, (time.time() - 25 * 3600,) * 2)
    with atomic_write(tmp_path / "slow.bin") as handle:
        (living,) = tmp_path.glob(".slow.bin.*")
        write_bytes(tmp_path / "a.bin", b"x")
        assert names(tmp_path) == sorted([killed.name, early.name, living.name, "a.bin"])
        monkeypatch.setattr(atomic, "_SETTLING_SECONDS", 0.0)
        write_bytes(tmp_path / "b.bin", b"x")
        assert names(tmp_path) == sorted([living.name, "a.bin", "b.bin"])
        handle.write(b"whole")
    assert (tmp_path / "slow.bin").read_bytes() == b"whole"


WRITER = """
from speed_erase.speed_ops.files.atomic import atomic_write
print("ready", flush=True)
letter = 0
while True:
    letter = (letter + 1) % 26
    with atomic_write({target!r}, force=True) as handle:
        for _ in range(64):
            handle.write(bytes([65 + letter]) * 65536)
"""


def kill_a_writer(target: Path, wait: float, *, until_changed: bool = False) -> None:
    """Start a process that writes 4 MB over and over, and kill it at a moment of the caller's
    choice.
    """
    before = target.read_bytes()
    script = pico.standalone(WRITER.format(target=str(target)))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(wait)
        while until_changed and target.read_bytes() == before:
            time.sleep(0.01)
        writer.kill()


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_any_moment_the_file_is_whole(tmp_path: Path, kills: int) -> None:
    moments = random.Random(kills)
    target = tmp_path / "a.bin"
    target.write_bytes(b"A" * 65536 * 64)
    for number in range(kills):
        # The last one is killed after a finished write: the writers do write.
        kill_a_writer(target, moments.uniform(0.0, 0.1), until_changed=number == kills - 1)
        content = target.read_bytes()
        assert len(content) == 65536 * 64 and len(set(content)) == 1
