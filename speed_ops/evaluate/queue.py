"""Generates missing images on several backends; a failed job is retried on another one."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..errors import InputError, SpeedError
from ..progress import Progress
from .album import Album, ImageJob
from .backend import Backend, ModelRef, ServerRejected, ServerUnavailable

ATTEMPTS = 3
"""Rejections after which an image counts as impossible, and failures in a row after which a server
is retired."""
PATIENCE = 60.0
"""Seconds that a server may be away, for a restart, before it is retired."""
_POLL_SECONDS = 0.2


def generate_missing(
    backends: Sequence[Backend],
    jobs: Sequence[ImageJob],
    album: Album,
    *,
    note: Callable[[str], None],
    progress: Progress | None = None,
    patience: float = PATIENCE,
) -> int:
    """Generates what the album lacks; returns how many images that were. Finished images stay,
    whatever happens to the remaining ones.

    Args:
        backends: Each generates one image at a time, in its own thread.
        jobs: All images of the run.
        album: Where images are stored.
        note: Receives messages for the user, on the calling thread.
        progress: Told about finished images.
        patience: Seconds that a server may be away before it is retired.
    """
    missing = [job for job in jobs if not album.holds(job.key)]
    if not missing:
        return 0
    available = _available(backends, missing, note)
    run = _Run(album, patience, deque(missing), len(available))
    threads = [threading.Thread(target=run.work, args=(b,), daemon=True) for b in available]
    for thread in threads:
        thread.start()
    try:
        while not run.finished:
            run.pass_on_messages(note)
            if progress is not None:
                progress("draw", len(missing) - run.remaining, len(missing))
            with run.changed:
                run.changed.wait(_POLL_SECONDS)
    finally:
        run.stop()
        for backend, thread in zip(available, threads, strict=True):
            if backend.local:
                thread.join()
    run.pass_on_messages(note)
    if run.error is not None:
        raise run.error
    if run.remaining:
        raise ServerUnavailable(
            f"No server is left: {run.last_message} {run.remaining} of {len(missing)} images"
            " are missing. Run the same command again to go on.",
            remaining=run.remaining,
            total=len(missing),
        )
    if progress is not None:
        progress("draw", len(missing), len(missing))
    return len(missing)


def _available(
    backends: Sequence[Backend], jobs: Sequence[ImageJob], note: Callable[[str], None]
) -> list[Backend]:
    """The backends that answer. A server that lacks a model is an error: its owner expects it to
    have the model.
    """
    models = list({job.model.identity: job.model for job in jobs}.values())
    available = list[Backend]()
    last_error: SpeedError = InputError(
        f"{len(jobs)} images are missing, and no server can generate them. Start one.",
        missing=len(jobs),
    )
    for backend in backends:
        try:
            backend.check_models(models)
            available.append(backend)
        except ServerUnavailable as error:
            last_error = error
            note(f"{error} Going on without it.")
    if not available:
        raise last_error
    return available


@dataclass
class _Run:
    """Jobs, and the worker threads that take them; one lock guards all of it."""

    album: Album
    patience: float
    waiting: deque[ImageJob]
    workers: int
    error: SpeedError | None = None
    """What ended the run."""
    last_message: str = ""
    """Why the last worker was retired."""
    messages: deque[str] = field(default_factory=deque)
    """For the user; only the calling thread may print."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    _busy: int = 0
    _rejections: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Key of a job -> the backends that rejected it."""
    _stopped: bool = False

    @property
    def remaining(self) -> int:
        """Images that are not finished."""
        with self.changed:
            return len(self.waiting) + self._busy

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen."""
        with self.changed:
            return self._stopped or self.workers <= 0 or not self.remaining

    def pass_on_messages(self, note: Callable[[str], None]) -> None:
        while self.messages:
            note(self.messages.popleft())

    def stop(self, error: SpeedError | None = None) -> None:
        """Hands out no more jobs; `error` is why: the disk is full, for example."""
        with self.changed:
            self.error, self._stopped = self.error or error, True
            self.changed.notify_all()

    def work(self, backend: Backend) -> None:
        """Worker loop: generates until nothing is left, and retires with a server that stays away,
        fails again and again, or rejects everything.
        """
        rejected_in_a_row = lost_in_a_row = 0
        while (job := self._take(backend.name)) is not None:
            try:
                image = backend.generate(job.model, job.spec, job.sampling)
                self.album.put(job, image, backend.name)
            except ServerUnavailable as error:
                self._release(job)
                self.messages.append(f"{error} Other servers generate its images.")
                lost_in_a_row += 1
                if lost_in_a_row >= ATTEMPTS or not self._returns(backend, job.model):
                    return self._retire(error)
                self.messages.append(f"{backend.name} is back.")
            except ServerRejected as error:
                rejected_in_a_row += 1
                self._reject(job, backend.name, error)
                if rejected_in_a_row >= ATTEMPTS and self.workers > 1:
                    self.messages.append(f"{error} SPEED sends it no more images.")
                    return self._retire(error)
            except SpeedError as error:
                self.stop(error)
                self._release()
            except Exception as error:  # a thread must not die in silence
                reason = f"{type(error).__name__}: {error}"
                self.stop(SpeedError(f"Generating with {backend.name} failed: {reason}"))
                self._release()
            else:
                rejected_in_a_row = lost_in_a_row = 0
                self._release()

    def _take(self, backend: str) -> ImageJob | None:
        """The next job, or None when the work is over; waits while other workers may return
        theirs.
        """
        with self.changed:
            while not self._stopped and self.remaining:
                if (job := self._next(backend)) is not None:
                    self.waiting.remove(job)
                    self._busy += 1
                    return job
                self.changed.wait(_POLL_SECONDS)
            return None

    def _next(self, backend: str) -> ImageJob | None:
        """Prefers jobs that this backend has not rejected, unless no other one could take them."""
        if self.waiting and self.workers == 1:
            return self.waiting[0]
        for job in self.waiting:
            if backend not in self._rejections[job.key]:
                return job
        return self.waiting[0] if self.waiting and not self._busy else None

    def _release(self, job: ImageJob | None = None) -> None:
        """A worker is done with its job; given `job`, it goes back to the head of the queue."""
        with self.changed:
            self._busy -= 1
            if job is not None:
                self.waiting.appendleft(job)
            self.changed.notify_all()

    def _reject(self, job: ImageJob, backend: str, error: SpeedError) -> None:
        """A backend cannot generate an image; another one may."""
        with self.changed:
            self._rejections[job.key].append(backend)
            if len(self._rejections[job.key]) >= ATTEMPTS:
                reason = f"{job.spec.prompt!r} (seed {job.spec.seed}) cannot be generated: {error}"
                self.stop(ServerRejected(reason, prompt=job.spec.prompt, seed=job.spec.seed))
            self._release(job)

    def _retire(self, error: SpeedError) -> None:
        """A worker leaves for good."""
        with self.changed:
            self.workers -= 1
            self.last_message = str(error)
            self.changed.notify_all()

    def _returns(self, backend: Backend, model: ModelRef) -> bool:
        """Whether a server answers again in time."""
        end, pause = time.monotonic() + self.patience, 0.5
        while time.monotonic() < end and not self.finished:
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(8.0, 2 * pause)
            try:
                backend.check_models([model])
                return True
            except SpeedError:
                continue
        return False
