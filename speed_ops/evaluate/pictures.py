"""Pictures on disk, and drawing those that are missing: spread over servers, retried elsewhere,
never drawn twice.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import FileError, InputError, SpeedError
from ..files.atomic import write_bytes
from ..progress import Progress
from .painters import Drawn, Model, Painter, PainterFault, PainterGone, decode, encode
from .setup import Sampling, Shot

Note = Callable[[str], None]
ATTEMPTS = 3
"""Times that a picture is asked for before it counts as one that cannot be drawn."""
PATIENCE = 60.0
"""Seconds that a server may be gone, for a restart, before it is given up."""
_LOOK_EVERY = 0.2
_THUMBNAIL = 256
"""Pixels on the longer side of a picture on the page: twice what is shown, for sharp screens."""


@dataclass(frozen=True)
class Job:
    """A picture that some painter has to draw."""

    key: str
    model: Model
    shot: Shot
    sampling: Sampling


@dataclass(frozen=True)
class Album:
    """Pictures by their keys, in a folder. Several runs may share one, also at the same time."""

    folder: Path

    def path(self, key: str) -> Path:
        """Where a picture is or will be."""
        return self.folder / key[:2] / f"{key}.png"

    def holds(self, key: str) -> bool:
        """Whether it has been drawn: files appear whole or not at all."""
        return self.path(key).is_file()

    def put(self, job: Job, drawn: Drawn, painter: str) -> None:
        """Keeps a picture, with all that is known about it inside the file."""
        facts = {
            "model": job.model.label,
            "identity": job.model.identity,
            "prompt": job.shot.prompt,
            "seed": job.shot.seed,
            "sampling": vars(job.sampling),
            "finite": drawn.finite,
            "seconds": drawn.seconds,
            "painter": painter,
        }
        keep(self.path(job.key), encode(drawn.pixels, {"speed.evaluate": json.dumps(facts)}))

    def thumbnail(self, key: str) -> str:
        """A small copy as an address that a page can hold."""
        from PIL import Image

        picture = Image.fromarray(self.get(key).pixels)
        picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
        held = io.BytesIO()
        picture.save(held, "JPEG", quality=85)
        return f"data:image/jpeg;base64,{base64.b64encode(held.getvalue()).decode()}"

    def get(self, key: str) -> Drawn:
        """A picture that has been drawn."""
        from PIL import Image

        path = self.path(key)
        try:
            content = path.read_bytes()
            with Image.open(path) as picture:
                facts = json.loads(getattr(picture, "text", {}).get("speed.evaluate", "{}"))
        except (OSError, ValueError) as fault:
            raise FileError(
                f"Cannot read the picture {path} ({fault}): delete it, and it is drawn again."
            ) from fault
        pixels = decode(content, str(path))
        return Drawn(pixels, facts.get("finite") is not False, float(facts.get("seconds") or 0.0))


def keep(path: Path, content: bytes) -> None:
    """Writes a file, and makes its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise FileError(
            f"Cannot make the folder {path.parent}: {fault.strerror or fault}."
        ) from fault
    write_bytes(path, content, force=True)


@dataclass
class FolderPainter:
    """Pictures that another program drew from our list of prompts: `<number>.png`, as `prompts.csv`
    counts them.
    """

    folder: Path
    numbers: Mapping[tuple[str, int], int]
    """(prompt, seed) -> number in the list."""

    def read(self, shot: Shot) -> Drawn:
        """The picture that was drawn for it."""
        number = self.numbers[shot.prompt, shot.seed]
        for name in (
            f"{number}.png",
            f"{number:05}.png",
            f"{number}.jpg",
            f"{number:05}.jpg",
            f"{number}.webp",
        ):
            if (self.folder / name).is_file():
                return Drawn(decode((self.folder / name).read_bytes(), str(self.folder / name)))
        raise FileError(
            f"{self.folder} has no picture {number}.png, for {shot.prompt!r} with seed {shot.seed}."
        )


def picture_key(model: Model, shot: Shot, sampling: Sampling) -> str:
    """The name under which a picture is kept: of the model, the prompt, the seed and all
    settings.
    """
    facts = [model.identity, shot.prompt, shot.seed, vars(sampling)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:40]


def jobs_for(models: Sequence[Model], shots: Iterable[Shot], sampling: Sampling) -> list[Job]:
    """Every picture once, model after model: a server that changes models for each picture does
    little else.
    """
    found = dict[str, Job]()
    listed = list(shots)
    for model in models:
        for shot in listed:
            key = picture_key(model, shot, sampling)
            found.setdefault(key, Job(key, model, shot, sampling))
    return list(found.values())


def bring_in(jobs: Iterable[Job], numbers: Mapping[tuple[str, int], int], album: Album) -> int:
    """Copies pictures that another program drew into the album; how many that were."""
    new = [job for job in jobs if job.model.kind == "pictures" and not album.holds(job.key)]
    for job in new:
        album.put(job, FolderPainter(Path(job.model.name), numbers).read(job.shot), job.model.name)
    return len(new)


def numbered(shots: Iterable[Shot]) -> dict[tuple[str, int], int]:
    """(prompt, seed) -> its number in the list that other programs draw from, each once, from 1."""
    return {
        place: number
        for number, place in enumerate(dict.fromkeys((shot.prompt, shot.seed) for shot in shots), 1)
    }


def write_list(path: Path, shots: Sequence[Shot]) -> None:
    """The list of prompts and seeds for another program, as csv."""
    numbers, held = numbered(shots), io.StringIO()
    table = csv.writer(held, lineterminator="\n")
    table.writerow(("number", "prompt", "seed", "type", "concept", "group"))
    written = set[int]()
    for shot in shots:
        number = numbers[shot.prompt, shot.seed]
        if number not in written:
            table.writerow((number, shot.prompt, shot.seed, shot.role, shot.concept, shot.group))
            written.add(number)
    write_bytes(path, held.getvalue().encode(), force=True)


def draw_missing(
    painters: Sequence[Painter],
    jobs: Sequence[Job],
    album: Album,
    *,
    note: Note,
    progress: Progress | None = None,
    patience: float = PATIENCE,
) -> int:
    """Draws what the album lacks; how many that were. What has been drawn stays, whatever happens
    to the rest.
    """
    missing = [job for job in jobs if not album.holds(job.key)]
    if not missing:
        return 0
    able = _those_ready(painters, missing, note)
    board = _Board(deque(missing), len(able))
    threads = [
        threading.Thread(target=_work, args=(painter, board, album, patience), daemon=True)
        for painter in able
    ]
    for thread in threads:
        thread.start()
    try:
        while not board.over():
            for sentence in board.said():
                note(sentence)
            if progress is not None:
                progress("draw", len(missing) - board.left(), len(missing))
            board.wait(_LOOK_EVERY)
    finally:
        board.stop()
        for painter, thread in zip(able, threads, strict=True):
            if painter.here:
                thread.join()
    for sentence in board.said():
        note(sentence)
    if board.fault is not None:
        raise board.fault
    if board.left():
        raise PainterGone(
            f"No server is left: {board.last_words} {board.left()} of {len(missing)} pictures are"
            " still to be drawn; run the same command again to go on."
        )
    if progress is not None:
        progress("draw", len(missing), len(missing))
    return len(missing)


def _those_ready(painters: Sequence[Painter], jobs: Sequence[Job], note: Note) -> list[Painter]:
    """The painters that answer. One that lacks a model is an error: its owner thinks that it has
    it.
    """
    models = list({job.model.identity: job.model for job in jobs}.values())
    able, last = [], None
    for painter in painters:
        try:
            painter.ready(models)
            able.append(painter)
        except PainterGone as fault:
            last = fault
            note(f"{fault} Going on without it.")
    if not able:
        raise last or InputError(
            f"{len(jobs)} pictures are missing, and there is nobody to draw them: give --server."
        )
    return able


@dataclass
class _Board:
    """Where painters take jobs from, and what they say on the way. All of it is guarded by one
    lock.
    """

    waiting: deque[Job]
    painters: int
    fault: SpeedError | None = None
    last_words: str = ""
    _busy: int = 0
    _sentences: list[str] = field(default_factory=list)
    _failed: dict[str, list[str]] = field(default_factory=dict)
    """Key -> the painters that could not draw it."""
    _stopped: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, painter: str) -> Job | None:
        """The next job, first those that this painter has not failed; waits while others may give
        theirs back.
        """
        with self._changed:
            while not self._stopped:
                fresh = next(
                    (job for job in self.waiting if painter not in self._failed.get(job.key, ())),
                    None,
                )
                job = self.waiting[0] if self.waiting and self.painters == 1 else fresh
                if job is None and self.waiting and self._busy == 0:
                    job = self.waiting[0]
                if job is not None:
                    self.waiting.remove(job)
                    self._busy += 1
                    return job
                if not self.waiting and self._busy == 0:
                    return None
                self._changed.wait(_LOOK_EVERY)
            return None

    def done(self) -> None:
        """A job is finished."""
        self._release(None)

    def give_back(self, job: Job) -> None:
        """Somebody else should draw it, at once."""
        self._release(job)

    def failed(self, job: Job, painter: str, fault: SpeedError) -> None:
        """A painter says that it cannot draw it; another may."""
        with self._changed:
            tried = self._failed.setdefault(job.key, [])
            tried.append(painter)
            if len(tried) >= ATTEMPTS:
                self.fault = PainterFault(
                    f"{job.shot.prompt!r} (seed {job.shot.seed}) cannot be drawn: {fault}"
                )
                self._stopped = True
        self._release(job)

    def broke(self, fault: SpeedError) -> None:
        """Nothing can go on: the disk is full, for one."""
        with self._changed:
            self.fault, self._stopped = fault, True
        self._release(None)

    def leaves(self, sentence: str) -> None:
        """A painter is given up."""
        with self._changed:
            self.painters -= 1
            self.last_words = sentence
            self._changed.notify_all()

    def alone(self) -> bool:
        """Whether only one painter is left."""
        with self._changed:
            return self.painters == 1

    def say(self, sentence: str) -> None:
        """For the user, by the thread that may talk."""
        with self._changed:
            self._sentences.append(sentence)

    def said(self) -> list[str]:
        """What has been said since the last time."""
        with self._changed:
            found, self._sentences = self._sentences, []
            return found

    def left(self) -> int:
        """Pictures that are not finished."""
        with self._changed:
            return len(self.waiting) + self._busy

    def over(self) -> bool:
        """Whether nothing more will happen."""
        with self._changed:
            return self._stopped or self.painters <= 0 or (not self.waiting and self._busy == 0)

    def stopped(self) -> bool:
        """Whether to stop at once."""
        with self._changed:
            return self._stopped

    def stop(self) -> None:
        """Nobody takes another job."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until something changes."""
        with self._changed:
            self._changed.wait(seconds)

    def _release(self, job: Job | None) -> None:
        with self._changed:
            self._busy -= 1
            if job is not None:
                self.waiting.appendleft(job)
            self._changed.notify_all()


def _work(painter: Painter, board: _Board, album: Album, patience: float) -> None:
    """One painter's day: draws until nothing is left, waits for its server to come back, or
    leaves.
    """
    in_a_row = 0
    while (job := board.take(painter.name)) is not None:
        try:
            album.put(job, painter.draw(job.model, job.shot, job.sampling), painter.name)
        except PainterGone as fault:
            board.give_back(job)
            board.say(f"{fault} What it was drawing goes to others.")
            if not _back(painter, job.model, board, patience):
                board.leaves(str(fault))
                return
            board.say(f"{painter.name} is back.")
        except PainterFault as fault:
            in_a_row += 1
            board.failed(job, painter.name, fault)
            if in_a_row >= ATTEMPTS and not board.alone():
                board.say(f"{fault} It is asked for no more pictures.")
                board.leaves(str(fault))
                return
        except SpeedError as fault:
            board.broke(fault)
        except Exception as fault:  # a thread must not die in silence
            board.broke(
                SpeedError(f"Drawing with {painter.name} failed: {type(fault).__name__}: {fault}")
            )
        else:
            in_a_row = 0
            board.done()


def _back(painter: Painter, model: Model, board: _Board, patience: float) -> bool:
    """Whether a painter that was gone answers again in time."""
    end, pause = time.monotonic() + patience, 0.5
    while time.monotonic() < end and not board.over():
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(8.0, 2 * pause)
        try:
            painter.ready([model])
            return True
        except SpeedError:
            continue
    return False
