"""The final name holds the old file or the whole new one, and nothing is left behind. The files of
one run appear together, and two runs never write under one name at once.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pico
import pytest

from speed_erase.speed_ops.errors import BusyError, ExistsError, FileError
from speed_erase.speed_ops.files import atomic
from speed_erase.speed_ops.files.atomic import all_or_none, atomic_write, output_lock, write_bytes


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
        pytest.raises(FileError, match="disk"),
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
    with pytest.raises(FileError, match="a folder"):
        write_bytes(tmp_path / "folder", b"x", force=True)
    write_bytes(tmp_path / "file", b"x")
    with (
        pytest.raises(FileError, match="a file"),
        all_or_none([tmp_path / "file"], replaceable=[tmp_path / "file"]) as temporary,
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


def write(path: Path, content: bytes) -> None:
    if path.name.endswith("folder"):
        path.mkdir()
        path = path / "inside"
    path.write_bytes(content)


def test_all_get_their_names_at_the_end(tmp_path: Path) -> None:
    targets = [tmp_path / "a", tmp_path / "b-folder", tmp_path / "c"]
    with all_or_none(targets) as place:
        for target in targets:
            write(place(target), b"new")
        assert not any(target.exists() for target in targets)
    assert names(tmp_path) == ["a", "b-folder", "c"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def write_folder(content: bytes, replace: bool) -> None:
        with all_or_none([target], replaceable=[target] if replace else []) as place:
            place(target).mkdir()
            (place(target) / content.decode()).write_bytes(content)
            if content == b"half":
                raise RuntimeError

    with pytest.raises(RuntimeError):
        write_folder(b"half", False)
    assert names(tmp_path) == []
    for content in (b"first", b"second"):
        write_folder(content, True)
    assert names(target) == ["second"] and names(tmp_path) == ["model"]
    with pytest.raises(ExistsError):
        write_folder(b"third", False)


@pytest.mark.parametrize("last", ["a", "a-folder"])
def test_what_another_run_has_written_meanwhile_stays_and_ours_goes(
    tmp_path: Path, last: str
) -> None:
    targets = [tmp_path / "first", tmp_path / "second-folder", tmp_path / last]
    with pytest.raises(ExistsError), all_or_none(targets) as place:
        for target in targets:
            write(place(target), b"ours")
        write(tmp_path / last, b"theirs")
    assert names(tmp_path) == [last]
    found = tmp_path / last / "inside" if last.endswith("folder") else tmp_path / last
    assert found.read_bytes() == b"theirs"


def test_what_was_replaced_comes_back_when_a_later_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [tmp_path / "a", tmp_path / "b-folder", tmp_path / "c"]
    for target in targets[:2]:
        write(target, b"old")
    move = atomic._swap_into_place

    def fail_at_the_last(new: Path, target: Path, temporary: Path):
        if target.name == "c":
            raise OSError(28, "No space left on device")
        return move(new, target, temporary)

    monkeypatch.setattr(atomic, "_swap_into_place", fail_at_the_last)
    with (
        pytest.raises(FileError, match="disk"),
        all_or_none(targets, replaceable=targets) as place,
    ):
        for target in targets:
            write(place(target), b"new")
    assert names(tmp_path) == ["a", "b-folder"]
    assert (
        (tmp_path / "a").read_bytes() == (tmp_path / "b-folder" / "inside").read_bytes() == b"old"
    )


def test_messages_name_the_final_place(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with pytest.raises(FileError) as fault, all_or_none([target]) as place:
        raise FileError(f"Cannot write {place(target)}: no.")
    assert str(fault.value) == f"Cannot write {target}: no."
    assert names(tmp_path) == []


def test_a_second_run_under_the_same_name_is_refused(tmp_path: Path) -> None:
    with output_lock(tmp_path, "model"):
        with (
            pytest.raises(FileError, match="writing MODEL"),
            output_lock(tmp_path, "MODEL"),
        ):
            pass
        with output_lock(tmp_path, "other"):
            pass
    with output_lock(tmp_path, "model"):
        pass
    assert names(tmp_path) == []


HOLDER = """
import time
from pathlib import Path
from speed_erase.speed_ops.files.atomic import all_or_none, output_lock
folder = Path({folder!r})
targets = [folder / "a-folder", folder / "b"]
with output_lock(folder, "model"), all_or_none(targets, replaceable=targets) as place:
    place(folder / "b").write_bytes(b"half")
    if {moved!r}:
        aside = place(folder / "aside")
        aside.mkdir()
        (folder / "a-folder").rename(aside / "a-folder")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("moved", [False, True])
def test_a_killed_run_locks_nobody_out_and_is_swept(
    tmp_path: Path, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is killed in the moment in which an old folder had left its name: the folder
    comes back.
    """
    monkeypatch.setattr(atomic, "_SETTLING_SECONDS", 0.0)
    write(tmp_path / "a-folder", b"old")
    process = subprocess.Popen(
        [sys.executable, "-c", pico.standalone(HOLDER.format(folder=str(tmp_path), moved=moved))],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    with pytest.raises(BusyError), output_lock(tmp_path, "model"):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    with output_lock(tmp_path, "another"), all_or_none([tmp_path / "c"]) as place:
        write(place(tmp_path / "c"), b"new")
    assert names(tmp_path) == ["a-folder", "c"]
    assert (tmp_path / "a-folder" / "inside").read_bytes() == b"old"


def test_asked_to_stop_while_it_tidies_up_it_tidies_up_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, calls = shutil.rmtree, []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove(*arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), all_or_none([tmp_path / "a"]) as place:
        write(place(tmp_path / "a"), b"new")
    assert names(tmp_path) == ["a"]
