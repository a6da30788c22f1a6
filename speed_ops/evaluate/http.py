"""One HTTP request to a server that may be anything: bounded in bytes and in time, and never sent
on to another address.
"""

from __future__ import annotations

import base64
import socket
import threading
import time
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple
from urllib.parse import SplitResult, unquote

from .backend import ServerUnavailable

CONNECT_SECONDS = 30.0
_CHUNK = 1 << 16


class Reply(NamedTuple):
    """What a server sent."""

    status: int
    reason: str
    content: bytes


class Request(NamedTuple):
    """What to send."""

    method: str
    path: str
    body: bytes = b""
    content_type: str = "application/json"


def send(server: SplitResult, name: str, request: Request, *, limit: int, end: float) -> Reply:
    """The whole answer, or `ServerUnavailable`.

    Args:
        server: Its address.
        name: What messages call it.
        request: What to send.
        limit: Most bytes that are read.
        end: When to give up, by `time.monotonic`.
    """
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise ServerUnavailable(f"{name} did not answer in time.")
    kind = HTTPSConnection if server.scheme == "https" else HTTPConnection
    wait = min(CONNECT_SECONDS, seconds)
    headers = {"Content-Type": request.content_type} if request.body else {}
    if server.username is not None:
        user = f"{unquote(server.username)}:{unquote(server.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    content = bytearray()
    with closing(kind(server.hostname or "", server.port, timeout=wait)) as connection:
        # A socket's own limit starts again with every byte.
        late = threading.Timer(seconds, lambda: _hang_up(link))
        late.daemon = True
        try:
            connection.connect()
            link = connection.sock
            late.start()
            path = server.path.rstrip("/") + request.path
            connection.request(request.method, path, request.body or None, headers)
            response = connection.getresponse()
            while len(content) <= limit and (chunk := response.read1(_CHUNK)):
                content += chunk
            if time.monotonic() >= end:
                raise OSError("it was cut off")
            whole = len(content) > limit or not response.length
        except (OSError, HTTPException, ValueError) as error:
            if time.monotonic() >= end:
                raise ServerUnavailable(f"{name} did not answer in time.") from error
            reason = printable(getattr(error, "strerror", None) or error) or type(error).__name__
            raise ServerUnavailable(f"{name} does not answer ({reason}).") from error
        finally:
            late.cancel()
    if len(content) > limit:
        raise ServerUnavailable(f"{name} sent more than {limit / 1e6:.0f} MB, which was not read.")
    if not whole:
        raise ServerUnavailable(f"{name} broke off its answer.")
    return Reply(response.status, printable(response.reason, 60), bytes(content))


def printable(text: object, limit: int = 600) -> str:
    """What a server wrote, on one line and without what moves a terminal's cursor."""
    line = "".join(sign if sign.isprintable() else " " for sign in str(text)[: 4 * limit])
    return " ".join(line.split())[:limit]


def _hang_up(link: socket.socket) -> None:
    with suppress(OSError):  # the server was faster
        link.shutdown(socket.SHUT_RDWR)
