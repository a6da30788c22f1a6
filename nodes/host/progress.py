"""While a node works: the stop button, the progress bar, and text under the node."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from queue import SimpleQueue
from typing import Any, TypeVar, get_args

import comfy.model_management
import comfy.utils
import torch

from ...speed_ops.progress import TITLES, Stage

Result = TypeVar("Result")
_LOOK_EVERY = 0.1
_left: ContextVar[threading.Event | None] = ContextVar("speed_erase_left", default=None)
"""In work that `stoppable` runs: set once nobody waits for it any more."""
_idle: deque[_Worker] = deque()
"""Threads that wait for work."""


class _Worker(threading.Thread):
    """Does one piece of work after the other. A new thread for each would get a part of the heap of
    its own each time, in which what is freed stays in pieces: a server that erases all day would
    grow."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._work: SimpleQueue[tuple[Callable[[], Any], threading.Event, Future[Any]]] = (
            SimpleQueue()
        )
        self.start()

    def do(self, work: Callable[[], Result], left: threading.Event, future: Future[Result]) -> None:
        """Hands it some work; `left` is set once nobody waits for the `future` any more."""
        self.name = "speed-erase"
        self._work.put((work, left, future))

    def run(self) -> None:
        """Ends after work that was left behind: others may have taken its place by then."""
        while self._finish(*self._work.get()):
            pass

    def _finish(self, work: Callable[[], Any], left: threading.Event, future: Future[Any]) -> bool:
        value, fault = None, None
        try:
            value = work()
        except BaseException as error:
            fault = error
        again = not left.is_set()
        if again:
            self.name = "speed-erase, idle"
            _idle.append(self)
        if fault is None:
            future.set_result(value)
        else:
            future.set_exception(fault)
        return again


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

    An eigenproblem of SDXL's width is one call of several seconds, which nothing can interrupt.
    Where `may_be_left` says that the work only computes, it is left to end by itself, at its next
    `check_stop`; elsewhere, as where it has ComfyUI load a model, it is waited for, and stops by
    itself soon.
    """
    left, future = threading.Event(), Future[Result]()

    def body() -> Result:
        _left.set(left)
        with torch.inference_mode(False), torch.no_grad():
            return work()

    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    # In a copy of the context: ComfyUI keeps in it which node reports progress.
    worker.do(partial(copy_context().run, body), left, future)
    while not wait([future], _LOOK_EVERY).done:
        if may_be_left() and comfy.model_management.processing_interrupted():
            left.set()
            comfy.model_management.throw_exception_if_processing_interrupted()
    return future.result()


_ELSEWHERE: tuple[Stage, ...] = (
    "encode",
    "adversarial",
    "hash",
    "compare",
    "demo",
    "draw",
    "judge",
)
"""Stages that the nodes do not go through, or that come between others."""
_STAGES = tuple(stage for stage in get_args(Stage) if stage not in _ELSEWHERE)
"""In the order they run; a bar that goes back to the start at each of them would tell nothing."""
_COMPUTES: tuple[Stage, ...] = ("prepare", "layers", "adversarial", "certificate")
"""Stages that read weights and compute, and change nothing of ComfyUI's."""
_STEPS = 100
_SECONDS_BETWEEN = 0.05
_WORDS_BETWEEN = 0.5
"""Words that change faster cannot be read."""
_KNOWN_AFTER = 2.0
"""Seconds after which a stage's pace tells how long the rest takes."""


class HostProgress:
    """Called as `progress(stage, done, total)`; raises ComfyUI's own exception when the user
    pressed stop.

    `hidden`: the node's hidden inputs, if it should say under itself what it is doing.
    """

    def __init__(self, hidden: Any = None) -> None:
        self._bar = comfy.utils.ProgressBar(len(_STAGES) * _STEPS)
        self._hidden = hidden
        self._value = 0
        self._sent = self._told = self._began = 0.0
        self._stage: Stage | None = None
        self._outlook = ""

    @property
    def computes(self) -> bool:
        """Whether the stage it is in may be left to end by itself."""
        return self._stage in _COMPUTES

    def announce(self, text: str) -> None:
        """Keeps a sentence about what is coming in sight until the work is done."""
        self._outlook = text
        show_text(self._hidden, text)

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        check_stop()
        changed, self._stage, now = stage != self._stage, stage, time.monotonic()
        if changed:
            self._began = now
        if changed or now - self._told >= _WORDS_BETWEEN:
            self._told = now
            words = in_words(stage, done, total, now - self._began)
            show_text(self._hidden, "\n".join(filter(None, (words, self._outlook))))
        if stage not in _STAGES:
            return
        share = done / total if total else 1.0
        self._value = max(self._value, round((_STAGES.index(stage) + share) * _STEPS))
        if changed or now - self._sent >= _SECONDS_BETWEEN:
            self._sent = now
            self._bar.update_absolute(self._value)


def in_words(stage: Stage, done: int, total: int, seconds: float) -> str:
    """`Encoding kept names: 120 of 750, about 40 s to go`; the time only once the pace is known."""
    words = TITLES[stage] if total <= 1 else f"{TITLES[stage]}: {done:,} of {total:,}"
    if seconds < _KNOWN_AFTER or not 0 < done < total:
        return words
    rest = seconds / done * (total - done)
    return (
        f"{words}, about {rest:.0f} s to go"
        if rest < 90
        else f"{words}, about {rest / 60:.0f} min to go"
    )


_LINES = 12
# Some front ends take the text for Markdown, some for HTML, some for neither: marks of either are
# replaced by their likes, which every one of them shows as they are.
_LIKES = str.maketrans({"<": "‹", ">": "›", "*": "∗", "`": "ˋ", "~": "∼"})
_HEADING = re.compile(r"^(\s*)#", re.MULTILINE)


def plain(text: str) -> str:
    """Text that reads the same in every front end, whatever names it holds."""
    text = text.replace("->", "→").replace("](", "] (").translate(_LIKES)
    # two spaces: a line break in Markdown
    return "  \n".join(_HEADING.sub(r"\1＃", text).splitlines())


def show_text(hidden: Any, text: str) -> None:
    """Shows the first lines under the node that runs; `hidden` are its hidden inputs. Without a
    server it does nothing.

    By the message with which ComfyUI's own nodes show theirs: no script in the browser is needed.
    """
    number = getattr(hidden, "unique_id", None)
    if number is None:
        return
    from server import PromptServer

    server = getattr(PromptServer, "instance", None)
    if server is not None:
        lines = text.splitlines()
        rest = (
            []
            if len(lines) <= _LINES
            else [f"... {len(lines) - _LINES} more lines in the node's output"]
        )
        server.send_progress_text(plain("\n".join(lines[:_LINES] + rest)), number)


def outside_inference_mode(function: Callable[..., Result]) -> Callable[..., Result]:
    """Nodes run in inference mode, whose tensors cannot be used freely afterwards; results should
    be ordinary ones.
    """

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Result:
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return wrapped
