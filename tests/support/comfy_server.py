"""A real ComfyUI server on the CPU, in surroundings of its own, with this package linked into its
custom nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 600
"""Twenty on an idle core; a machine that is busy with other things must not fail the tests."""

# Stock loaders expect whole text encoders; this one, in the throw-away folder only, loads shrunken
# ones.
_TINY_LOADER = """
import comfy.sd
import folder_paths


class TinyCheckpoint:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"name": (folder_paths.get_filename_list("checkpoints"),)}}

    RETURN_TYPES = ("MODEL", "CLIP", "VAE")
    FUNCTION = "load"
    CATEGORY = "test"

    def load(self, name):
        shape = {"num_hidden_layers": 3, "intermediate_size": 64}
        options = {f"clip_{part}_model_config": dict(shape) for part in "lhg"}
        path = folder_paths.get_full_path_or_raise("checkpoints", name)
        return comfy.sd.load_checkpoint_guess_config(path, te_model_options=options)[:3]


class TinyDiffusionModel:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"name": (folder_paths.get_filename_list("diffusion_models"),)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load"
    CATEGORY = "test"

    def load(self, name):
        path = folder_paths.get_full_path_or_raise("diffusion_models", name)
        return (comfy.sd.load_diffusion_model(path),)


NODE_CLASS_MAPPINGS = {"TinyCheckpoint": TinyCheckpoint, "TinyDiffusionModel": TinyDiffusionModel}
"""

# Tells what the server holds: bytes that the C library has given out, and the large things by kind.
_MEMORY = """
import collections
import ctypes
import gc

from aiohttp import web
from server import PromptServer

KINDS = "BaseModel SD1ClipModel ModelPatcher LoRAAdapter ClipTower HostTextEncoder Erasure".split()


class Mallinfo(ctypes.Structure):
    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]


def allocated():
    try:
        call = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):
        return 0
    call.restype = Mallinfo
    facts = call()
    return facts.field4 + facts.field7  # mapped apart, and in use in the arenas


@PromptServer.instance.routes.get("/test/memory")
async def memory(request):
    gc.collect()
    counts = collections.Counter(type(item).__name__ for item in gc.get_objects())
    models = {kind: counts[kind] for kind in KINDS}
    return web.json_response({"allocated": allocated(), "models": models})


NODE_CLASS_MAPPINGS = {}
"""


class ServerError(AssertionError):
    """A prompt that was refused or failed; `details` is what the server said."""

    def __init__(self, details: Any) -> None:
        super().__init__(json.dumps(details)[:2000])
        self.details = details


class ComfyServer:
    """Started by `start`, stopped by `stop`; `folder` is its base directory."""

    def __init__(
        self,
        checkout: Path,
        folder: Path,
        front_end: Path | None = None,
        package: Path = ROOT,
    ) -> None:
        """
        Args:
            checkout: The ComfyUI.
            folder: Its base directory.
            front_end: The files of another front end than the installed one.
            package: This package, or what the registry makes of it.
        """
        self.checkout, self.folder, self._front_end = checkout, folder, front_end
        self.port = _free_port()
        self.client = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        for name in (
            "custom_nodes",
            "input",
            "output",
            "models/checkpoints",
            "models/loras",
            "models/diffusion_models",
            "models/text_encoders",
            "models/vae",
        ):
            (folder / name).mkdir(parents=True, exist_ok=True)
        link = folder / "custom_nodes" / "ComfyUI-SPEED"
        if not link.exists():
            link.symlink_to(package, target_is_directory=True)
        (folder / "custom_nodes" / "tiny_loader.py").write_text(_TINY_LOADER)
        (folder / "custom_nodes" / "memory.py").write_text(_MEMORY)

    def add_checkpoint(self, path: Path, name: str) -> None:
        """Puts a checkpoint where stock loaders look."""
        _link(path, self.folder / "models" / "checkpoints" / name)

    def add_diffusion_model(self, path: Path, name: str) -> None:
        """Puts a diffusion model where stock loaders look."""
        _link(path, self.folder / "models" / "diffusion_models" / name)

    def add_model(self, path: Path, folder: str, name: str) -> None:
        """Puts a file into a folder of models, where stock loaders look."""
        _link(path, self.folder / "models" / folder / name)

    def start(self) -> ComfyServer:
        """Starts main.py and waits until it answers."""
        command = [
            sys.executable,
            "main.py",
            "--cpu",
            "--base-directory",
            str(self.folder),
            "--port",
            str(self.port),
        ]
        command += [
            "--disable-api-nodes",
            "--database-url",
            "sqlite:///:memory:",
            "--disable-auto-launch",
        ]
        command += ["--front-end-root", str(self._front_end)] if self._front_end else []
        surroundings = os.environ | {
            "SPEED_ERASE_CACHE": str(self.folder / "cache"),
            "PYTHONUNBUFFERED": "1",
        }
        self._log = (self.folder / "server.log").open("ab")
        self._process = subprocess.Popen(
            command, cwd=self.checkout, env=surroundings, stdout=self._log, stderr=subprocess.STDOUT
        )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise ServerError((self.folder / "server.log").read_text()[-3000:])
            try:
                self.get("/system_stats")
                return self
            except OSError:
                time.sleep(0.3)
        self.stop()
        raise ServerError("the server did not answer")

    def stop(self) -> None:
        """Ends the process that `start` began."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(20)
            self._log.close()

    def kill(self) -> None:
        """Ends the process without a word, as a power cut does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(20)
        self._log.close()

    @property
    def resident_bytes(self) -> int:
        """Memory that the server holds."""
        assert self._process is not None
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) * 1024

    @property
    def log(self) -> str:
        """Everything it has printed."""
        return (self.folder / "server.log").read_text(errors="replace")

    def get(self, path: str) -> Any:
        """JSON from the server."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def post(self, path: str, content: Any = None) -> Any:
        """Posts JSON; a refusal raises `ServerError` with what it says."""
        data = json.dumps(content or {}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            raise ServerError(json.loads(error.read() or b"{}")) from None
        return json.loads(body) if body else None

    def queue(self, workflow: Mapping[str, Any]) -> str:
        """Queues an API-format workflow; returns its id."""
        return self.post("/prompt", {"prompt": workflow, "client_id": self.client})["prompt_id"]

    def wait(self, prompt: str, seconds: float = 300) -> dict[str, Any]:
        """The history entry of a finished prompt, whether it went well or not."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            history = self.get(f"/history/{prompt}")
            if prompt in history:
                return history[prompt]
            time.sleep(0.1)
        raise ServerError(f"prompt {prompt} did not finish in {seconds} s")

    def run(self, workflow: Mapping[str, Any], seconds: float = 300) -> dict[str, Any]:
        """Outputs of a workflow by node; an error in it raises."""
        entry = self.wait(self.queue(workflow), seconds)
        if entry["status"]["status_str"] != "success":
            raise ServerError(entry["status"]["messages"])
        return entry["outputs"]

    def ran(self, prompt: str) -> set[str]:
        """Nodes that were executed, not taken from the cache."""
        entry = self.wait(prompt)
        cached = {
            node
            for name, facts in entry["status"]["messages"]
            if name == "execution_cached"
            for node in facts["nodes"]
        }
        return set(entry["prompt"][2]) - cached


def sentence(error: ServerError) -> str:
    """What a failed run shows the user."""
    return next(
        facts["exception_message"] for name, facts in error.details if name == "execution_error"
    )


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:
        shutil.copy(path, target)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
