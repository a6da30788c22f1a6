"""A server that sends anything at all: each answer is one sentence with a code, in bounded memory
and time.
"""

from __future__ import annotations

import io
import json
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_comfy import FakeComfy, _Handler
from PIL import Image

from speed_erase.speed_ops.cli.main import main
from speed_erase.speed_ops.errors import FileError, ServerError, SpeedError, UsageError
from speed_erase.speed_ops.evaluate.album import Album, decode_image, jobs_for
from speed_erase.speed_ops.evaluate.backend import ServerUnavailable, parse_model
from speed_erase.speed_ops.evaluate.client import MAX_ANSWER, ComfyClient, server_clip
from speed_erase.speed_ops.evaluate.queue import ATTEMPTS, generate_missing
from speed_erase.speed_ops.evaluate.setup import ImageSpec, Sampling

SIZE = 16
SAMPLING = Sampling(SIZE, SIZE, 1)
DEEP = b"[" * 200_000
Answering = Callable[[Any], None]


def raw(content: bytes, kind: str = "application/json", status: int = 200) -> Answering:
    def answer(handler: _Handler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def said(value: Any) -> Answering:
    return raw(json.dumps(value).encode())


def bytes_only(content: bytes) -> Answering:
    """Not even HTTP."""

    def answer(handler: _Handler) -> None:
        handler.wfile.write(content)
        handler.close_connection = True

    return answer


def drip(start: bytes, each: bytes = b" ") -> Answering:
    """A byte every now and then, for a long time."""

    def answer(handler: _Handler) -> None:
        end = time.monotonic() + 60
        try:
            handler.wfile.write(start)
            while time.monotonic() < end:
                handler.wfile.write(each)
                time.sleep(0.05)
        except OSError:
            handler.close_connection = True

    return answer


def endless(handler: _Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(50 * MAX_ANSWER // (1 << 20)):
            handler.wfile.write(b"x" * (1 << 20))
    except OSError:
        handler.close_connection = True


def redirect(handler: _Handler) -> None:
    handler.send_response(302)
    handler.send_header("Location", f"{handler.fake.url}/elsewhere")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def image(kind: str, width: int = SIZE, height: int = SIZE) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, kind)
    return buffer.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is that large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + chunk(b"IEND", b"")
    )


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n(x) run\n%%EOF\n"
PNG = image("PNG")


def finished(**changes: Any) -> Answering:
    """A history whose one entry has these fields instead."""
    entry = {"status": {"status_str": "success", "messages": []}, "outputs": {}} | changes
    return said({"0": entry})


def shown(*images: Any) -> Answering:
    return finished(outputs={"9": {"images": list(images)}})


MALFORMED: dict[str, tuple[str, Answering]] = {
    **{f"prompt: {body[:12]!r}": ("/prompt", raw(body)) for body in (
        b"", b"{", b"null", b"[]", b'"x"', b"<html>", b"\xff\xfe", DEEP, b'{"prompt_id": NaN}',
        b'{"prompt_id": 5}', b'{"prompt_id": ["x"]}', b'{"prompt_id": ""}', b'{"a":1,"a":2}',
    )},
    **{f"refusal: {body[:12]!r}": ("/prompt", raw(body, status=400)) for body in (
        b"", b"[]", b'{"error": 5}', b'{"error": {"message": {"x": 1}}}', DEEP,
        b'{"node_errors": {"1": 5}}', b'{"node_errors": [1]}',
        b'{"node_errors": {"1": {"errors": 7}}}',
        b"\x1b[2J\x1b]0;owned\x07",
    )},
    **{f"history: {str(value)[:30]}": ("/history", said({"0": value})) for value in (
        5, [], "x", {}, {"status": 5}, {"status": {"status_str": ["success"]}},
        {"status": {"status_str": "error", "messages": 5}},
        {"status": {"status_str": "error", "messages": [5, [], ["x"], [[], {}]]}},
        {"status": {"status_str": "error", "messages": [["execution_error", 5]]}},
        {"status": {"status_str": "error", "messages": [["execution_error", {"node_type": {}}]]}},
    )},
    **{f"outputs: {str(value)[:30]}": ("/history", finished(outputs=value)) for value in (
        5, [], {"9": 5}, {"9": {"images": 5}}, {"9": {"images": []}}, {"9": {"images": [5]}},
        {"9": {"images": [{}]}}, {"9": {"images": [{"filename": {"x": 1}}]}},
        {"9": {"images": [{"filename": "a", "subfolder": 7}]}}, {"9": {"images": [{}, {}]}},
    )},
    **{f"image: {name}": ("/view", raw(body, "image/png")) for name, body in {
        "nothing": b"", "text": b"no image", "half": PNG[: len(PNG) // 2], "head": PNG[:20],
        "EPS": EPS, "GIF": image("GIF"), "BMP": image("BMP"), "TIFF": image("TIFF"),
        "PPM": image("PPM"), "smaller": image("PNG", 8, 8), "larger": image("PNG", 64, 64),
        "bomb": bomb(60_000, 60_000), "bomb under the limit": bomb(9_000, 9_000),
        "no data": bomb(SIZE, SIZE), "zero": bomb(0, 0), "JSON": b"{}",
    }.items()},
    **{f"status {status}": ("/prompt", raw(b"", status=status)) for status in (
        201, 204, 403, 404, 500, 999,
    )},
    "redirect": ("/view", redirect),
    "not HTTP": ("/prompt", bytes_only(b"SSH-2.0-OpenSSH\r\n")),
    "nothing at all": ("/prompt", bytes_only(b"")),
    "a huge header": ("/prompt", bytes_only(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000)),
    "many headers": ("/prompt", bytes_only(b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * 500 + b"\r\n")),
    "a false length": ("/prompt", bytes_only(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}")),
    "a mad length": ("/prompt", bytes_only(b"HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\n")),
    "broken chunks": (
        "/prompt", bytes_only(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}")
    ),
    "a hostile reason": (
        "/prompt", bytes_only(b"HTTP/1.1 500 \x1b[2Jx\r\nContent-Length: 0\r\n\r\n")
    ),
    "endless": ("/view", endless),
    "endless JSON": ("/history", endless),
}  # fmt: skip


class HostileComfy(FakeComfy):
    """Answers like ComfyUI, but for what begins with one path."""

    def __init__(self, path: str, answering: Answering) -> None:
        super().__init__()
        self.asked: list[str] = []
        fake = self

        class Handler(_Handler):
            def do_GET(self) -> None:
                fake.asked.append(self.path)
                answering(self) if self.path.startswith(path) else super().do_GET()

            def do_POST(self) -> None:
                fake.asked.append(self.path)
                if self.path.startswith(path):
                    self.rfile.read(int(self.headers["Content-Length"]))
                    answering(self)
                else:
                    super().do_POST()

        self._server.RequestHandlerClass = type("Handler", (Handler,), {"fake": self})


@pytest.fixture
def hostile() -> Iterator[Callable[..., HostileComfy]]:
    running: list[HostileComfy] = []

    def start(path: str, answering: Answering) -> HostileComfy:
        running.append(HostileComfy(path, answering))
        return running[-1]

    yield start
    for server in running:
        server.stop()


def client_of(server: FakeComfy, seconds: float = 20.0) -> ComfyClient:
    client = ComfyClient(server.url, seconds)
    client.check_models([MODEL])
    return client


MODEL = parse_model("model.safetensors", "original", None)
SPEC = ImageSpec("a", "keep", "a tree", 1)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_answer_is_one_sentence_with_a_code(hostile, name: str) -> None:
    server = hostile(*MALFORMED[name])
    client = client_of(server)
    with pytest.raises(SpeedError) as fault:
        client.generate(MODEL, SPEC, SAMPLING)
    sentence = str(fault.value)
    assert isinstance(fault.value, ServerError) and fault.value.code == "server"
    assert client.name in sentence and len(sentence) < 800 and sentence.isprintable()
    assert "/elsewhere" not in server.asked, "a redirect is not followed"


def test_every_answer_was_the_reason_and_not_the_server(hostile) -> None:
    """The negative control: the same server draws, where its answers are sound."""
    client = client_of(hostile("/never", endless))
    assert client.generate(MODEL, SPEC, SAMPLING).pixels.shape == (SIZE, SIZE, 3)
    for kind in ("PNG", "JPEG", "WEBP"):
        client = client_of(hostile("/view", raw(image(kind))))
        assert client.generate(MODEL, SPEC, SAMPLING).pixels.shape == (SIZE, SIZE, 3)


SLOW = {
    "headers": ("/prompt", drip(b"HTTP/1.1 200 OK\r\nX: ", b"x")),
    "body": ("/view", drip(b"HTTP/1.1 200 OK\r\n\r\n")),
    "history": ("/history", drip(b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n")),
    "never done": ("/history", said({})),
    "silent": ("/prompt", lambda handler: time.sleep(30)),
}


@pytest.mark.parametrize("name", SLOW)
def test_the_timeout_bounds_an_image_in_total(hostile, name: str) -> None:
    client = client_of(hostile(*SLOW[name]), 1.0)
    started = time.monotonic()
    with pytest.raises(ServerUnavailable):
        client.generate(MODEL, SPEC, SAMPLING)
    assert time.monotonic() - started < 5


def test_a_server_that_fails_for_ever_is_given_up(hostile, tmp_path) -> None:
    """It answers each question about its models, so it is not away."""
    server = hostile("/view", raw(b"", status=500))
    jobs = jobs_for([MODEL], [SPEC], SAMPLING)
    with pytest.raises(ServerUnavailable):
        generate_missing([client_of(server)], jobs, Album(tmp_path), note=lambda text: None)
    assert sum(path == "/prompt" for path in server.asked) == ATTEMPTS


@pytest.mark.parametrize(
    "answer", [5, [], {}, {"SpeedEvaluate": 5}, {"CLIPVisionLoader": {"input": 5}}, "x", None]
)
def test_a_malformed_list_of_nodes_is_an_empty_one(hostile, answer) -> None:
    client = ComfyClient(hostile("/object_info", said(answer)).url)
    with pytest.raises(SpeedError) as fault:
        client.check_models([MODEL])
    assert fault.value.code == "input"
    with pytest.raises(SpeedError):
        server_clip(client, "vision.safetensors")


@pytest.mark.parametrize("text", [
    *(None, 5, "{", "[]", "{}", '{"features": 5}', '{"features": {"labels": 5}}', "[" * 100_000),
    *('{"features": {"labels": [[1], [2, 3]]}}', '{"features": {"labels": [[1], [2], [3]]}}'),
    *('{"features": {"labels": [["x"], [{}]]}}', '{"features": {"labels": [[NaN], [1]]}}'),
    '{"features": {"labels": [[], []]}}',
])  # fmt: skip
def test_malformed_features_are_one_sentence(hostile, monkeypatch, text) -> None:
    client = ComfyClient(hostile("/never", endless).url)
    monkeypatch.setattr(client, "choices", lambda node, widget: ["v", "t"])
    monkeypatch.setattr(client, "get_json", lambda path, **query: {"SpeedEvaluate": {}})
    entry = {"outputs": {"features": {"json": [text]}}}
    monkeypatch.setattr(client, "run", lambda graph: entry)
    scorer = server_clip(client, "v", "t")
    with pytest.raises(ServerError):
        scorer.texts(["a", "b"])


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e12])
def test_an_impossible_timeout_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError):
        ComfyClient("http://127.0.0.1:1", seconds)


@pytest.mark.parametrize(
    "url", ["http://", "ftp://x", "http://x:99999", "http://x:y", "http://[", ""]
)
def test_an_impossible_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        ComfyClient(url)


def test_an_image_of_any_size_still_has_a_limit() -> None:
    assert decode_image(image("PNG", 40, 30), "x").shape == (30, 40, 3)
    for content in (bomb(9_000, 9_000), bomb(60_000, 60_000), EPS, image("GIF")):
        with pytest.raises(FileError):
            decode_image(content, "x")


def test_the_command_says_it_in_one_sentence(hostile, tmp_path, capsys) -> None:
    server = hostile("/view", raw(EPS))
    given = ("--original", "model.safetensors", "--erased", "lora:eraser.safetensors")
    given += ("--server", server.url, "--out", str(tmp_path / "out"), "--concepts", "Zorn")
    assert main(["evaluate", *given, "--limit", "1", "--seeds", "1", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "server" and "Unexpected" not in error["message"]


def test_memory_stays_small_while_a_server_sends_without_end(hostile) -> None:
    import tracemalloc

    client = client_of(hostile("/view", endless))
    tracemalloc.start()
    with pytest.raises(ServerUnavailable):
        client.generate(MODEL, SPEC, SAMPLING)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MAX_ANSWER
