"""Questions of the UI: JSON in, JSON out, answered by the functions that a run uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from ...speed_ops.errors import SpeedError

Answer = Callable[[dict[str, Any]], dict[str, Any]]
PREFIX = "/speed/"
MAX_BYTES = 20_000_000
"""Far more than a user types; long lists are files that the server reads."""


def serve(answers: Mapping[str, Answer]) -> None:
    """Adds `POST /speed/<name>` to the running server; without a server it does nothing."""
    from server import PromptServer

    server = getattr(PromptServer, "instance", None)
    if server is not None:
        for name, answer in answers.items():
            server.routes.post(PREFIX + name)(_handler(answer))


def _handler(answer: Answer) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.Response:
        if (request.content_length or 0) > MAX_BYTES:
            return web.json_response({"error": "This is too long to be checked."}, status=413)
        try:
            question = await request.json()
            if not isinstance(question, dict):
                raise ValueError("not an object")
        except ValueError:
            return web.json_response({"error": "This is not a JSON object."}, status=400)
        try:
            # In a thread: a list of a hundred thousand names must not hold up the server.
            return web.json_response(await asyncio.to_thread(answer, question))
        except SpeedError as error:
            return web.json_response({"error": str(error)})

    return handle
