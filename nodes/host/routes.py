"""What the UI may ask the server: `POST /speed/<question>`, JSON in and JSON out, answered by the
functions that a run uses; and `GET /speed/report/<id>`, the page of a run.

A question that cannot be answered gets `{"error": sentence, "notice": ...}` with status 400, one
that is too long 413, and one that is not `application/json` 415: other pages in the same browser
can only send text and forms without asking first.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from ...speed_ops.errors import FileError, Notice, SpeedError, notice_of, user_message

Answer = Callable[[dict[str, Any]], dict[str, Any]]
PREFIX = "/speed/"
PACKAGE_FOLDER = Path(__file__).parents[2].name
"""Under this name ComfyUI lists our templates."""
LISTINGS = ("/workflow_templates", "/api/workflow_templates")
"""Where ComfyUI lists the templates of all packs."""
MAX_BYTES = 20_000_000
"""Far more than a user types; long lists are files that the server reads."""
SEALED = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of a page that runs no script, loads nothing, and shares nothing with ComfyUI's pages."""


def serve(answers: Mapping[str, Answer], report: Callable[[str], str]) -> None:
    """Adds the routes to the running server; without a server it does nothing.

    Args:
        answers: Question -> the function that answers it.
        report: Gives the page of a run by its id.
    """
    from server import PromptServer

    server = getattr(PromptServer, "instance", None)
    if server is not None:
        for name, answer in answers.items():
            server.routes.post(PREFIX + name)(answering(answer))
        server.routes.get(PREFIX + "report/{id}")(showing(report))
        server.app.middlewares.append(sorting_templates)


@web.middleware
async def sorting_templates(request: web.Request, handler: Callable[..., Any]) -> Any:
    """Lists our templates by name, so that the first one to try is first. ComfyUI lists files in
    the order of the file system, and front ends keep it. Other packs' templates stay as they are.
    """
    response = await handler(request)
    if request.path not in LISTINGS or getattr(response, "status", None) != 200:
        return response
    listed = json.loads(response.text)
    return web.json_response(
        {pack: sorted(names) if pack == PACKAGE_FOLDER else names for pack, names in listed.items()}
    )


def answering(answer: Answer) -> Callable[[web.Request], Any]:
    """The handler of a question."""

    async def handle(request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return _refusal(415, Notice("Send the question as application/json.", code="input"))
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > MAX_BYTES:
                return _refusal(413, Notice("This is too long to be checked.", code="input"))
        try:
            # In a thread: a list of a hundred thousand names must not hold up the server.
            return web.json_response(await asyncio.to_thread(_answer, answer, bytes(body)))
        except SpeedError as error:
            return _refusal(400, notice_of(error))
        except Exception as error:  # a fault of ours: the log has where
            logging.getLogger("speed_erase").exception("%s failed", request.path)
            return _refusal(500, Notice(user_message(error), code="unexpected"))

    return handle


def _answer(answer: Answer, body: bytes) -> dict[str, Any]:
    from ...speed_ops.files.schema import load_json

    question = load_json(body, "The question", MAX_BYTES)
    if not isinstance(question, dict):
        raise FileError("The question is not a JSON object.")
    return answer(question)


def showing(report: Callable[[str], str]) -> Callable[[web.Request], Any]:
    """The handler of the pages."""

    async def handle(request: web.Request) -> web.Response:
        try:
            page = await asyncio.to_thread(report, request.match_info["id"])
        except SpeedError as error:
            return web.Response(status=404, text=str(error), headers=SEALED)
        return web.Response(text=page, content_type="text/html", headers=SEALED)

    return handle


def _refusal(status: int, notice: Notice) -> web.Response:
    return web.json_response({"error": str(notice), "notice": notice.to_json()}, status=status)
