"""Where an erasure is computed: on a GPU, and on the CPU once that has run out of memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

from .errors import NoMemoryError, Notice

Outcome = TypeVar("Outcome")

_WITHOUT_DOUBLE_PRECISION = ("mps", "privateuseone")  # the second is DirectML
_OUT_OF_MEMORY = ("out of memory", "alloc_failed", "cublas_status_not_initialized")
"""What an allocator, CUDA itself, cuSOLVER and cuBLAS say."""


def best_device() -> str:
    """The GPU of this machine that can compute an erasure, else the CPU."""
    backends = {"cuda": torch.cuda, "xpu": getattr(torch, "xpu", None)}
    for name, backend in backends.items():
        if backend is not None and backend.is_available():
            workplace = Workplace(name)
            if workplace.run(has_double_precision) and workplace.device.type != "cpu":
                return name
    return "cpu"


@cache
def has_double_precision(device: torch.device | str) -> bool:
    """Whether a device solves in float64, found out by doing so; it may run out of memory."""
    device = torch.device(device)
    if device.type in _WITHOUT_DOUBLE_PRECISION:
        return False
    try:
        matrix = torch.eye(2, dtype=torch.float64, device=device)
        torch.linalg.eigh(matrix)
        torch.cholesky_solve(matrix, torch.linalg.cholesky(matrix))
    except (RuntimeError, TypeError, NotImplementedError) as fault:
        if out_of_memory(fault):
            raise
        return False
    return True


def out_of_memory(fault: BaseException) -> bool:
    """Whether a device has too little memory. Its libraries raise their own errors."""
    if isinstance(fault, torch.cuda.OutOfMemoryError):
        return True
    text = str(fault).lower()
    return isinstance(fault, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)


class Workplace:
    """A device, and the CPU from the moment on at which the device has too little memory."""

    def __init__(
        self,
        device: torch.device | str = "cpu",
        make_room: Callable[[int, torch.device], object] | None = None,
        tidy_up: Callable[[], object] | None = None,
    ) -> None:
        """
        Args:
            device: Where to compute.
            make_room: Frees as many bytes of a device.
            tidy_up: Gives memory back that is reserved and not used.
        """
        self.device = torch.device(device)
        self.notes: list[Notice] = []
        """What a report should mention."""
        self._make_room, self._tidy_up = make_room, tidy_up

    def run(self, work: Callable[[torch.device], Outcome], needs: int = 0) -> Outcome:
        """What `work` returns for the device, or for the CPU where it runs out of memory.

        Args:
            work: Computes on a device; it may be called again from the start.
            needs: About how many bytes it takes.
        """
        if self.device.type != "cpu":
            try:
                if self._make_room is not None and needs:
                    self._make_room(needs, self.device)
                return work(self.device)
            except RuntimeError as fault:
                if not out_of_memory(fault):
                    raise
            # Not in the handler: there the traceback still holds the tensors.
            self._leave()
        try:
            return work(self.device)
        except RuntimeError as fault:
            if not out_of_memory(fault):
                raise
            raise NoMemoryError(
                "The GPU has too little memory, also for what remains there when the edit is"
                " computed on the CPU. Free some memory."
            ) from fault

    def tidy_up(self) -> None:
        """Gives the device's unused memory back."""
        if self._tidy_up is not None:
            self._tidy_up()

    def _leave(self) -> None:
        if self.device.type != "cpu":  # work within this work may have left already
            self.notes.append(
                Notice(
                    "The GPU ran out of memory, so the edit was computed on the CPU.",
                    code="computed_on_cpu",
                    device=str(self.device),
                )
            )
        self.device = torch.device("cpu")
        gc.collect()  # frames of an error refer to each other and hold tensors
        self.tidy_up()
