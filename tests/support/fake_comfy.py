"""A server that answers like ComfyUI and draws at once: one colour for each subject, a little noise
for each seed.

It can break off after a number of pictures, as a server does that is killed, refuse every picture,
or send something else than it meant to.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {"zorn": (200, 30, 30), "klee": (30, 60, 200), "art": (30, 160, 60)}
"""Subject -> what pictures of it look like; anything else is grey."""
BLACK = "nothing at all"
"""A prompt that comes out black."""
FILES = {
    ("CheckpointLoaderSimple", "ckpt_name"): ["model.safetensors", "sub\\erased.safetensors"],
    ("LoraLoader", "lora_name"): ["eraser.safetensors"],
    ("UNETLoader", "unet_name"): ["unet.safetensors"],
    ("CLIPLoader", "clip_name"): ["clip.safetensors"],
    ("DiffusersLoader", "model_path"): ["folder"],
}


def picture(graph: dict[str, Any]) -> bytes:
    """What the graph draws. An erased model draws art where somebody asks for Zorn."""
    prompt, seed = graph["4"]["inputs"]["text"], graph["7"]["inputs"]["seed"]
    used = {str(value) for node in graph.values() for value in node["inputs"].values()}
    erased = "2" in graph or "sub\\erased.safetensors" in used
    subject = next((name for name in COLOURS if name in prompt.lower()), "")
    if erased and subject == "zorn" and "leak" not in prompt:
        subject = "art"
    colour = np.array(COLOURS.get(subject, (128, 128, 128)))
    size = graph["6"]["inputs"]
    identity = json.dumps([prompt, seed, graph["7"]["inputs"]["steps"]])
    noise = np.random.default_rng(int(hashlib.sha256(identity.encode()).hexdigest()[:12], 16))
    pixels = np.clip(
        colour + noise.normal(0, 12, (size["height"], size["width"], 3)), 0, 255
    ).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels * (prompt != BLACK)).save(buffer, "PNG")
    return buffer.getvalue()


class FakeComfy:
    """Started when made; `stop` ends it."""

    def __init__(
        self,
        dies_after: int | None = None,
        refuses: bool = False,
        metadata: dict[str, str] | None = None,
    ):
        self.drawn: list[dict[str, Any]] = []
        self.spoil: Callable[[str, bytes], bytes] = lambda path, content: content
        """(path that was asked for, answer) -> what is sent instead."""
        self.dies_after, self.refuses, self.metadata = dies_after, refuses, metadata or {}
        self.dead = False
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeComfy

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.fake.dead:
            self.connection.close()
            return
        url = urllib.parse.urlsplit(self.path)
        name = url.path.rsplit("/", 1)[-1]
        if url.path.startswith("/object_info/"):
            inputs = {
                widget: [files, {}] for (node, widget), files in FILES.items() if node == name
            }
            self._answer({name: {"input": {"required": inputs}}} if inputs else {})
        elif url.path.startswith("/history/"):
            self._history(int(name))
        elif url.path == "/view":
            self._send(
                picture(self.fake.drawn[int(urllib.parse.parse_qs(url.query)["filename"][0])]),
                "image/png",
            )
        elif url.path.startswith("/view_metadata/"):
            self._answer(self.fake.metadata)
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.fake.dies_after is not None and len(self.fake.drawn) >= self.fake.dies_after:
            self.fake.dead = True
        if self.fake.dead:
            self.connection.close()
            return
        self.fake.drawn.append(content["prompt"])
        self._answer({"prompt_id": str(len(self.fake.drawn) - 1)})

    def _history(self, number: int) -> None:
        messages: list[Any] = [
            ["execution_start", {"timestamp": 1000}],
            ["execution_success", {"timestamp": 1500}],
        ]
        if self.fake.refuses:
            messages = [
                ["execution_error", {"node_type": "KSampler", "exception_message": "out of memory"}]
            ]
        status = {"status_str": "error" if self.fake.refuses else "success", "messages": messages}
        image = {"filename": str(number), "subfolder": "", "type": "temp"}
        self._answer({str(number): {"status": status, "outputs": {"9": {"images": [image]}}}})

    def _answer(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _send(self, content: bytes, kind: str) -> None:
        content = self.fake.spoil(self.path, content)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def by_colour(pictures: list[Image.Image]) -> list[str]:
    """A classifier for these pictures."""
    subjects = []
    for image in pictures:
        mean = np.asarray(image, float).reshape(-1, 3).mean(0)
        name = min(COLOURS, key=lambda name: float(np.abs(mean - COLOURS[name]).sum()))
        subjects.append(name if float(np.abs(mean - COLOURS[name]).sum()) < 60 else "")
    return subjects


def mean_colours(pictures: list[Image.Image]) -> np.ndarray:
    """Features of these pictures."""
    return np.stack([np.asarray(image, float).reshape(-1, 3).mean(0) for image in pictures])
