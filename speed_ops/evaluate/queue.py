"""Generates missing images on several backends; a failed job is retried on another one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..errors import InputError, SpeedError
from ..progress import Progress
from .album import Album, ImageJob
from .backend import Backend, ModelRef, ServerRejected, ServerUnavailable

ATTEMPTS = 3
"""Rejections after which an image counts as impossible."""
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
    queue = _JobQueue(deque(missing), len(available))
    threads = [
        threading.Thread(target=_work, args=(backend, queue, album, patience), daemon=True)
        for backend in available
    ]
    for thread in threads:
        thread.start()
    try:
        while not queue.finished:
            _pass_on(queue.messages, note)
            if progress is not None:
                progress("draw", len(missing) - queue.remaining, len(missing))
            with queue.changed:
                queue.changed.wait(_POLL_SECONDS)
    finally:
        queue.stop()
        for backend, thread in zip(available, threads, strict=True):
            if backend.local:
                thread.join()
    _pass_on(queue.messages, note)
    if queue.error is not None:
        raise queue.error
    if queue.remaining:
        raise ServerUnavailable(
            f"No server is left: {queue.last_message} {queue.remaining} of {len(missing)} pictures"
            " are still to be drawn; run the same command again to go on.",
            remaining=queue.remaining,
            total=len(missing),
        )
    if progress is not None:
        progress("draw", len(missing), len(missing))
    return len(missing)


def _pass_on(messages: deque[str], note: Callable[[str], None]) -> None:
    while messages:
        note(messages.popleft())


def _available(
    backends: Sequence[Backend], jobs: Sequence[ImageJob], note: Callable[[str], None]
) -> list[Backend]:
    """The backends that answer. A server that lacks a model is an error: its owner expects it to
    have the model.
    """
    models = list({job.model.identity: job.model for job in jobs}.values())
    available = list[Backend]()
    last_error: SpeedError = InputError(
        f"{len(jobs)} pictures are missing, and there is nobody to draw them.", missing=len(jobs)
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
class _JobQueue:
    """Hands jobs to worker threads; one lock guards all of it."""

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
    _rejections: dict[str, list[str]] = field(default_factory=dict)
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

    def take(self, backend: str) -> ImageJob | None:
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
            if backend not in self._rejections.get(job.key, ()):
                return job
        return self.waiting[0] if self.waiting and not self._busy else None

    def release(self, job: ImageJob | None = None) -> None:
        """A worker is done with its job; given `job`, it goes back to the head of the queue."""
        with self.changed:
            self._busy -= 1
            if job is not None:
                self.waiting.appendleft(job)
            self.changed.notify_all()

    def reject(self, job: ImageJob, backend: str, error: SpeedError) -> None:
        """A backend cannot generate an image; another one may.

        Args:
            job: The image.
            backend: Name of the backend.
            error: Why it cannot.
        """
        with self.changed:
            rejections = self._rejections.setdefault(job.key, [])
            rejections.append(backend)
            if len(rejections) >= ATTEMPTS:
                reason = f"{job.spec.prompt!r} (seed {job.spec.seed}) cannot be drawn: {error}"
                self.stop(ServerRejected(reason, prompt=job.spec.prompt, seed=job.spec.seed))
            self.release(job)

    def retire(self, message: str) -> None:
        """A worker leaves for good."""
        with self.changed:
            self.workers -= 1
            self.last_message = message
            self.changed.notify_all()

    def stop(self, error: SpeedError | None = None) -> None:
        """Hands out no more jobs; `error` is why: the disk is full, for example."""
        with self.changed:
            self.error, self._stopped = self.error or error, True
            self.changed.notify_all()


def _work(backend: Backend, queue: _JobQueue, album: Album, patience: float) -> None:
    """Worker loop: generates until nothing is left, and retires with a server that stays away or
    rejects everything.
    """
    rejected_in_a_row = 0
    while (job := queue.take(backend.name)) is not None:
        try:
            album.put(job, backend.generate(job.model, job.spec, job.sampling), backend.name)
        except ServerUnavailable as error:
            queue.release(job)
            queue.messages.append(f"{error} What it was drawing goes to others.")
            if not _wait_for_return(backend, job.model, queue, patience):
                queue.retire(str(error))
                return
            queue.messages.append(f"{backend.name} is back.")
        except ServerRejected as error:
            rejected_in_a_row += 1
            queue.reject(job, backend.name, error)
            if rejected_in_a_row >= ATTEMPTS and queue.workers > 1:
                queue.messages.append(f"{error} It is asked for no more pictures.")
                queue.retire(str(error))
                return
        except SpeedError as error:
            queue.stop(error)
            queue.release()
        except Exception as error:  # a thread must not die in silence
            reason = f"{type(error).__name__}: {error}"
            queue.stop(SpeedError(f"Drawing with {backend.name} failed: {reason}"))
            queue.release()
        else:
            rejected_in_a_row = 0
            queue.release()


def _wait_for_return(backend: Backend, model: ModelRef, queue: _JobQueue, patience: float) -> bool:
    """Whether a server answers again in time."""
    end, pause = time.monotonic() + patience, 0.5
    while time.monotonic() < end and not queue.finished:
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(8.0, 2 * pause)
        try:
            backend.check_models([model])
            return True
        except SpeedError:
            continue
    return False
