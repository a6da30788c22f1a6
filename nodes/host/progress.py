"""While a node works: its device, the stop button, the progress bar, and text under the node."""

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
from typing import Any, TypeVar

import comfy.model_management
import comfy.utils
import torch

from ...speed_ops.devices import Workplace, has_double_precision
from ...speed_ops.errors import Notice
from ...speed_ops.progress import TITLES, Stage

Result = TypeVar("Result")
_POLL_SECONDS = 0.1
_abandoned: ContextVar[threading.Event | None] = ContextVar("speed_erase_abandoned", default=None)
"""Inside the work of `stoppable`: an event that is set once its result is not wanted any more."""
_idle: deque[_Worker] = deque()
"""Threads that wait for work."""


class _Worker(threading.Thread):
    """Runs one task after the other.

    A new thread for each task would get a heap arena of its own and fragment it, and a server that
    erases all day would grow.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.tasks: SimpleQueue[tuple[Callable[[], Any], threading.Event, Future[Any]]] = (
            SimpleQueue()
        )
        self.start()

    def run(self) -> None:
        """Ends after abandoned work, because a new thread may have replaced this one by then."""
        while self._finish(*self.tasks.get()):
            pass

    def _finish(
        self, work: Callable[[], Any], abandoned: threading.Event, future: Future[Any]
    ) -> bool:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:
            failure = error
        reusable = not abandoned.is_set()
        if reusable:
            self.name = "speed-erase, idle"
            _idle.append(self)
        if failure is None:
            future.set_result(value)
        else:
            future.set_exception(failure)
        return reusable


class Abandoned(Exception):
    """Ends work whose result is not wanted any more; never reaches a user."""


def check_stop() -> None:
    """Raises ComfyUI's own exception when the user pressed stop.

    Abandoned work ends here instead: by now the button may be meant for the next prompt.
    """
    abandoned = _abandoned.get()
    if abandoned is not None and abandoned.is_set():
        raise Abandoned
    comfy.model_management.throw_exception_if_processing_interrupted()


def stoppable(work: Callable[[], Result], can_abandon: Callable[[], bool]) -> Result:
    """Runs `work` in a thread and watches the stop button meanwhile.

    An eigenproblem of SDXL's width is one call of several seconds, which cannot be interrupted.
    While `can_abandon` says that the work only computes, stop abandons it, and it ends at its next
    `check_stop`. At other times, such as while ComfyUI loads a model, this waits for it to stop.
    """
    abandoned, future = threading.Event(), Future[Result]()

    def body() -> Result:
        _abandoned.set(abandoned)
        with torch.inference_mode(False), torch.no_grad():
            return work()

    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.name = "speed-erase"
    # In a copy of the context: ComfyUI keeps in it which node reports progress.
    worker.tasks.put((partial(copy_context().run, body), abandoned, future))
    while not wait([future], _POLL_SECONDS).done:
        if can_abandon() and comfy.model_management.processing_interrupted():
            abandoned.set()
            comfy.model_management.throw_exception_if_processing_interrupted()
    return future.result()


_STAGES: tuple[Stage, ...] = (
    *("fingerprint", "empty prompt", "concepts", "probes", "retain names", "retain contexts"),
    *("prepare", "layers", "certificate", "leaks", "write"),
)
"""In the order they run. One bar covers them all; other stages come between these."""
_COMPUTES: tuple[Stage, ...] = ("prepare", "layers", "adversarial", "certificate")
"""Stages that only read weights and compute."""
_STEPS = 100
_SECONDS_BETWEEN_STEPS = 0.05
_SECONDS_BETWEEN_TEXTS = 0.5
"""Text that changes faster cannot be read."""
_SECONDS_TO_ESTIMATE = 2.0
"""How long a stage must run before its pace predicts its end."""


class HostProgress:
    """A `Progress` that raises ComfyUI's own exception when the user pressed stop."""

    def __init__(self, hidden: Any = None) -> None:
        """`hidden`: the node's hidden inputs, if text is shown under it."""
        self._bar = comfy.utils.ProgressBar(len(_STAGES) * _STEPS)
        self._hidden = hidden
        self._value = 0
        self._step_time = self._text_time = self._stage_time = 0.0
        self._stage: Stage | None = None
        self._outlook: tuple[str, ...] = ()

    @property
    def computes(self) -> bool:
        """Whether the work of this stage can be abandoned."""
        return self._stage in _COMPUTES

    def announce(self, text: str) -> None:
        """Shows a sentence about what is coming until the work is done."""
        self._outlook = (text,)
        show_text(self._hidden, text)

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        check_stop()
        changed, self._stage, now = stage != self._stage, stage, time.monotonic()
        if changed:
            self._stage_time = now
        if changed or now - self._text_time >= _SECONDS_BETWEEN_TEXTS:
            self._text_time = now
            words = in_words(stage, done, total, now - self._stage_time)
            show_text(self._hidden, words, *self._outlook)
        if stage not in _STAGES:
            return
        share = done / total if total else 1.0
        self._value = max(self._value, round((_STAGES.index(stage) + share) * _STEPS))
        if changed or now - self._step_time >= _SECONDS_BETWEEN_STEPS:
            self._step_time = now
            self._bar.update_absolute(self._value)


def in_words(stage: Stage, done: int, total: int, seconds: float) -> Notice:
    """`Encoding protected names: 120 of 750, about 40 s left`.

    Args:
        stage: What is being done.
        done: Steps that are done.
        total: All steps of the stage.
        seconds: Time since the stage began.
    """
    title = TITLES[stage]
    if total <= 1:
        return Notice(title, code="stage", stage=title)
    words = f"{title}: {done:,} of {total:,}"
    facts = {"stage": title, "done": done, "total": total}
    if seconds < _SECONDS_TO_ESTIMATE or not 0 < done < total:
        return Notice(words, code="stage_steps", **facts)
    left = round(seconds / done * (total - done))
    if left < 90:
        return Notice(f"{words}, about {left} s left", code="stage_seconds", left=left, **facts)
    left = round(left / 60)
    return Notice(f"{words}, about {left} min left", code="stage_minutes", left=left, **facts)


_MAX_LINES = 12
# Some front ends read the text as Markdown, some as HTML, some as neither. Marks of either are
# replaced by similar characters, which all of them show unchanged.
_LOOKALIKES = str.maketrans(
    "<>*`~", "‹›\N{ASTERISK OPERATOR}\N{MODIFIER LETTER GRAVE ACCENT}\N{TILDE OPERATOR}"
)
_HEADING = re.compile(r"^(\s*)#", re.MULTILINE)


def plain(text: str) -> str:
    """Text that reads the same in every front end, whatever names it holds."""
    text = text.replace("->", "\N{RIGHTWARDS ARROW}").replace("](", "] (")
    text = text.translate(_LOOKALIKES)
    # two spaces: a line break in Markdown
    return "  \n".join(_HEADING.sub("\\1\N{FULLWIDTH NUMBER SIGN}", text).splitlines())


def show_text(hidden: Any, *texts: str) -> None:
    """Shows the first lines under the node that runs. Without a server it does nothing.

    ComfyUI's own nodes use the same message, so no script in the browser is needed. Our script
    says notices in the language of the front end; it gets what they are about just before.

    Args:
        hidden: The node's hidden inputs.
        texts: Texts or notices.
    """
    node_id = getattr(hidden, "unique_id", None)
    if node_id is None:
        return
    from server import PromptServer

    server = getattr(PromptServer, "instance", None)
    if server is not None:
        lines = "\n".join(texts).splitlines()
        extra = len(lines) - _MAX_LINES
        if extra > 0:
            lines[_MAX_LINES:] = [f"... {extra} more lines in the node's output"]
        text = plain("\n".join(lines))
        if notices := [notice.to_json() for notice in texts if isinstance(notice, Notice)]:
            server.send_sync("speed_text", {"text": text, "notices": notices})
        server.send_progress_text(text, node_id)


def comfy_workplace() -> Workplace:
    """ComfyUI's device where that has double precision, and its memory as ComfyUI shares it out;
    else the CPU.
    """
    host = comfy.model_management
    workplace = Workplace(host.get_torch_device(), host.free_memory, host.soft_empty_cache)
    return workplace if workplace.run(has_double_precision) else Workplace()


def outside_inference_mode(function: Callable[..., Result]) -> Callable[..., Result]:
    """Makes ordinary tensors; those of the inference mode of nodes cannot be used freely."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Result:
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return wrapped
