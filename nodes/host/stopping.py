"""The stop button, heard within a tenth of a second even while a single call of the solver takes many."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from typing import TypeVar

import comfy.model_management
import torch

Result = TypeVar("Result")

_LOOK_EVERY = 0.1
_left: ContextVar[threading.Event | None] = ContextVar("speed_erase_left", default=None)
"""In work that `stoppable` runs: set once nobody waits for it any more."""


class Abandoned(Exception):
    """Ends work whose result nobody wants; never reaches a user."""


def check_stop() -> None:
    """Raises ComfyUI's own exception when the user pressed stop.

    Work that was left behind ends here instead: the button may by now be meant for the next prompt.
    """
    left = _left.get()
    if left is not None and left.is_set():
        raise Abandoned
    comfy.model_management.throw_exception_if_processing_interrupted()


def stoppable(work: Callable[[], Result], may_be_left: Callable[[], bool]) -> Result:
    """Runs `work` in a thread and watches the stop button meanwhile.

    An eigenproblem of SDXL's width is one call of several seconds, which nothing can interrupt. Where `may_be_left`
    says that the work only computes, it is left to end by itself, at its next `check_stop`; elsewhere, as where it has
    ComfyUI load a model, it is waited for, and stops by itself soon.
    """
    left, future = threading.Event(), Future[Result]()

    def body() -> None:
        _left.set(left)
        try:
            with torch.inference_mode(False), torch.no_grad():
                future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    # In a copy of the context: ComfyUI keeps in it which node reports progress.
    threading.Thread(target=copy_context().run, args=(body,), name="speed-erase", daemon=True).start()
    while not wait([future], _LOOK_EVERY).done:
        if may_be_left() and comfy.model_management.processing_interrupted():
            left.set()
            comfy.model_management.throw_exception_if_processing_interrupted()
    return future.result()
