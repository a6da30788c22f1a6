"""A connection to a Ray cluster, or a cluster on this machine for one run.

Ray is imported late: it comes with the extra `fleet`.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any, TextIO, cast

from ..errors import MissingPackageError, SettingsError

START_ATTEMPTS = 3
"""Ray gives a cluster half a minute to start, which may be too little on a busy machine."""
STORE_BYTES = 1 << 30
"""For embedding rows, on a cluster started here; Ray writes what does not fit to disk."""
REACH_SECONDS = 20.0


@contextmanager
def connected(
    address: str | None = None, cores: int | None = None
) -> Iterator[tuple[Any, Callable[[], None]]]:
    """The module `ray`, connected to a cluster, and a function that raises what signal handlers
    raised. Inside Ray such an exception may be lost, so it waits for a call of this function.

    Args:
        address: `ray://host:port`, `host:port` or `auto`; None: a cluster on this machine that
            ends with the block.
        cores: Processors of that cluster; None: all of this machine.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            "A fleet needs Ray. Install it on every machine with `pip install"
            " 'speed-erase[fleet]'`."
        ) from error
    if address is not None:
        _refuse_unreachable(address)
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    raised: list[BaseException] = []

    def remember(number: int, frame: Any) -> None:
        try:
            handlers[number](number, frame)
        except BaseException as fault:
            raised.append(fault)

    def raise_pending() -> None:
        if raised:
            raise raised[0]

    output = cast(TextIO, _RayOutputFilter(sys.stdout))
    try:
        with nullcontext() if sys.stdout is None else redirect_stdout(output):
            _start(ray, address, cores or os.cpu_count() or 1)
            for number, handler in handlers.items():  # Ray has installed its own
                signal.signal(number, remember if callable(handler) else handler)
            yield ray, raise_pending
    finally:
        with nullcontext() if sys.stderr is None else redirect_stdout(sys.stderr):
            ray.shutdown()  # prints, in this thread, the messages it was still holding back
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _refuse_unreachable(address: str) -> None:
    """Ray itself would try for many minutes."""
    host, _, port = address.rpartition("://")[2].rstrip("/").rpartition(":")
    if not host or not port.isdigit():
        return  # `auto`, or another form that Ray accepts
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except OSError as error:
        raise SettingsError(
            f"Cannot reach a Ray cluster at {address}: {error.strerror or error}.",
            advice="start-ray",
        ) from error


def _start(ray: Any, address: str | None, cores: int) -> None:
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {
            "address": "local",
            "num_cpus": cores,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",  # not reachable from other machines
        }
    for attempt in range(START_ATTEMPTS):
        try:
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
            return
        except Exception as error:  # Ray raises many types
            last = attempt == START_ATTEMPTS - 1
            if last or address is not None or "timed out" not in str(error):
                raise _cannot_use(address, error) from error
            ray.shutdown()


def _cannot_use(address: str | None, error: Exception) -> SettingsError:
    reason = " ".join(str(error).split())[:300].rstrip(".")
    if address is None:
        return SettingsError(f"Cannot use a Ray cluster on this machine: {reason}.")
    if "://" in address:
        reason += (
            ". If it asks for a token, as those of newer versions of Ray do, set"
            " RAY_AUTH_MODE=token here"
        )
    return SettingsError(f"Cannot use the Ray cluster at {address}: {reason}.")


class _RayOutputFilter:
    """Standard output for results only: what Ray's threads print goes to standard error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        stream = sys.stderr if threading.current_thread().name.startswith("ray_") else self._stream
        return len(text) if stream is None else stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
