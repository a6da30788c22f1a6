"""Choose how many threads a step runs on."""

from __future__ import annotations

import torch


class ThreadChoice:
    """One thread or two, whichever is faster now: on a shared machine two that wait for each other
    can be slower.
    """

    def __init__(self) -> None:
        self._most = torch.get_num_threads()  # what the machine has, or OMP_NUM_THREADS allows
        self._seconds = {1: 0.0, 2: 0.0}
        self._steps = 0

    def begin(self) -> int:
        """Threads for the coming step: both are tried first and again every 30 steps, else the
        faster.
        """
        turn = self._steps % 30
        trial = 1 if turn < 3 else 2
        threads = trial if turn < 6 else min(self._seconds, key=self._seconds.__getitem__)
        threads = min(threads, self._most)
        torch.set_num_threads(threads)
        return threads

    def end(self, threads: int, seconds: float) -> None:
        known = self._seconds[threads]
        # A step of many times the usual length was a pause of the whole machine and says nothing
        # about threads.
        self._seconds[threads] = 0.6 * known + 0.4 * min(seconds, 3 * known) if known else seconds
        self._steps += 1
