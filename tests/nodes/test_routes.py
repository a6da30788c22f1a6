"""The routes of the UI: whatever is sent gets an answer or one sentence, and a report opens only by
an id that this process gave out.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.comfy

GET_REPORT = "GET /speed/report/{id}"
DEEP = 100_000
ODD: list[Any] = [
    *(None, True, 0, -1, 10**39, 1.5, "", "none", "\0", "a\0b", "\ud800", "\u202e"),
    *("x" * 5000, "\n" * 999),
    *("../../etc/passwd", "/etc/passwd", "C:\\x", "~root/x", "\\\\host\\share", "constructor"),
    *("__proto__", "for kind nonsense", "<script>", [], [[]], {}, {"a": {}}, ["x", 1, None]),
]
NAMES = {
    "concepts/check": ("text", "kind", "file", "retain"),
    "concepts/suggest": ("text", "kind"),
    "retain/look": (
        *("builtin", "text", "file", "column", "kind", "limit"),
        *("concepts", "concepts_kind", "search"),
    ),
    "compare/prompts": ("text", "kind"),
    "trade": ("run", "limit", "strength"),
    "doctor": ("x",),
}
BODIES: list[bytes] = [
    *(b"", b"[]", b"null", b"1", b'"x"', b"{", b"\xff\xfe{}", b'{"a": NaN}', b'{"a": 1e999}'),
    *(b'{"a": 1, "a": 2}', b"[" * DEEP, b'{"a":' * DEEP, b'{"a": ' + b"9" * 5000 + b"}"),
    *(b'{"__proto__": {"x": 1}, "constructor": {"prototype": {}}}', b'{"text": "\\ud800"}'),
]


def asked(work: Callable[[Any], Awaitable[None]], **answers: Any) -> None:
    """Runs `work` with a client of a server that has the routes."""
    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    from speed_erase.nodes import ANSWERS, report
    from speed_erase.nodes.host.routes import answering, showing

    async def run() -> None:
        app = web.Application()
        for name, answer in (ANSWERS | answers).items():
            app.router.add_post(f"/speed/{name}", answering(answer))
        app.router.add_get("/speed/report/{id}", showing(report))
        async with TestClient(TestServer(app)) as client:
            await work(client)

    asyncio.run(run())


@pytest.fixture
def folder(comfyui, tmp_path, monkeypatch):
    import folder_paths

    monkeypatch.setattr(folder_paths, "input_directory", str(tmp_path))
    return tmp_path


async def _answer(client: Any, name: str, body: bytes) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json"}
    response = await client.post(f"/speed/{name}", data=body, headers=headers)
    return response.status, await response.json()


@pytest.mark.parametrize("name", NAMES)
def test_every_input_gets_an_answer_or_one_sentence(folder, name, caplog):
    sound = {"text": "Monet\nVan Gogh", "concepts": "Monet", "kind": "style"}
    questions = [
        json.dumps({**sound, field: value}).encode() for field in NAMES[name] for value in ODD
    ]
    questions += [
        json.dumps({**sound, "retain": {field: value}}).encode()
        for field in NAMES["retain/look"]
        for value in ODD
    ]

    async def work(client: Any) -> None:
        for body in BODIES + questions:
            status, answer = await _answer(client, name, body)
            assert status in (200, 400), (body[:200], answer)
            assert ("error" in answer) == (status == 400), body[:200]
            if status == 400:
                assert "Unexpected" not in answer["error"] and len(answer["error"]) < 7000

    asked(work)
    assert not caplog.records


def test_only_json_is_accepted_so_that_no_other_page_can_ask(folder):
    async def work(client: Any) -> None:
        body = b'{"text": "Monet", "kind": "style"}'
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            headers = {"Content-Type": kind}
            response = await client.post("/speed/concepts/check", data=body, headers=headers)
            assert response.status == 415
        status, answer = await _answer(client, "concepts/check", body)
        assert status == 200 and answer["lines"][0]["target"] == "Monet"

    asked(work)


def test_the_size_limit_counts_bytes_that_arrive_not_those_announced(folder):
    from speed_erase.nodes.host.routes import MAX_BYTES

    async def endless() -> AsyncIterator[bytes]:
        yield b'{"text": "'
        for _ in range(4 * MAX_BYTES // 65536):
            yield b"x" * 65536

    async def work(client: Any) -> None:
        headers = {"Content-Type": "application/json"}
        response = await client.post("/speed/concepts/check", data=endless(), headers=headers)
        assert response.status == 413 and "error" in await response.json()

    asked(work)


def test_a_fault_of_ours_is_logged_and_answered_with_a_sentence(folder, caplog):
    def faulty(question: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("boom")

    async def work(client: Any) -> None:
        status, answer = await _answer(client, "faulty", b"{}")
        assert status == 500 and "Traceback" not in answer["error"]

    asked(work, faulty=faulty)
    assert "boom" in caplog.text


def test_our_templates_are_listed_by_name_and_those_of_others_as_they_were(folder):
    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    from speed_erase.nodes.host.routes import LISTINGS, PACKAGE_FOLDER, sorting_templates

    given = {"another": ["b", "a"], PACKAGE_FOLDER: ["Save", "App", "1 - Start here"]}

    async def listing(request: Any) -> Any:
        return web.json_response(given, status=503 if "broken" in request.query else 200)

    async def other(request: Any) -> Any:
        return web.json_response(given)

    async def run() -> None:
        app = web.Application(middlewares=[sorting_templates])
        for path in LISTINGS:
            app.router.add_get(path, listing)
        app.router.add_get("/elsewhere", other)
        async with TestClient(TestServer(app)) as client:
            for path in LISTINGS:
                listed = await (await client.get(path)).json()
                assert listed == {**given, PACKAGE_FOLDER: ["1 - Start here", "App", "Save"]}
                broken = await client.get(f"{path}?broken=1")
                assert broken.status == 503 and await broken.json() == given
            assert await (await client.get("/elsewhere")).json() == given

    asyncio.run(run())


def test_every_route_is_documented_and_no_other(comfyui):
    from speed_erase.nodes import ANSWERS

    page = Path(__file__).parents[2] / "docs" / "reference" / "http-routes.md"
    listed = re.findall(r"^\| `(\w+ /speed/\S+)` \|", page.read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted([*(f"POST /speed/{n}" for n in ANSWERS), GET_REPORT])


def test_a_report_opens_only_by_an_id_of_this_process(folder, monkeypatch):
    from speed_erase.nodes import erase_output

    page = "<script>alert(1)</script>"
    monkeypatch.setattr(erase_output, "report_page", lambda *args: page)
    ids = [erase_output.offer_report(object(), 1) for _ in range(erase_output._OFFERED + 1)]
    assert len(set(ids)) == len(ids)

    async def work(client: Any) -> None:
        (folder / "evil.html").write_text(page)
        response = await client.get(f"/speed/report/{ids[-1]}")
        assert response.status == 200 and response.content_type == "text/html"
        assert await response.text() == page
        policy = {part.strip() for part in response.headers["Content-Security-Policy"].split(";")}
        assert {"default-src 'none'", "sandbox", "base-uri 'none'"} <= policy
        assert not any(part.startswith(("script", "sandbox ", "connect")) for part in policy)
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        others = (ids[0], "0" * 32, "evil.html", "..%2fevil.html", "%00", "%ff", "x" * 5000)
        for other in others:
            refusal = await client.get(f"/speed/report/{other}")
            assert refusal.status == 404 and page not in await refusal.text(), other
            assert refusal.content_type == "text/plain"

    asked(work)


def test_the_page_carries_the_same_policy_for_when_it_is_a_file(comfyui):
    from importlib.resources import files

    from speed_erase.nodes.host.routes import SEALED

    page = (files("speed_erase.speed_ops") / "report/report.html").read_text(encoding="utf-8")
    in_page = page.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    only_as_header = "; frame-ancestors 'self'; sandbox"
    assert in_page + only_as_header == SEALED["Content-Security-Policy"]
