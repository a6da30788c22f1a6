"""The files of one run appear together or not at all, and two runs never write under one name at
once.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pico
import pytest

from speed_erase.speed_ops.errors import BusyError, ExistsError, FileError
from speed_erase.speed_ops.files import atomic
from speed_erase.speed_ops.files.atomic import all_or_none, output_lock


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


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
        with all_or_none([target], replace=lambda path: replace) as place:
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
        pytest.raises(FileError, match="disk is full"),
        all_or_none(targets, replace=lambda path: True) as place,
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
            pytest.raises(FileError, match="Another run is writing MODEL"),
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
with output_lock(folder, "model"), all_or_none(targets, replace=lambda path: True) as place:
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
    import shutil

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
