"""Generates images on a ComfyUI server, and runs its CLIP, through its HTTP interface."""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import numpy as np

from ..errors import FileError, InputError, SpeedError, UsageError, suggestion
from ..files.schema import finite, load_json
from .album import decode_image, encode_png
from .backend import GeneratedImage, ModelKind, ModelRef, ServerRejected, ServerUnavailable
from .http import Request, printable, send
from .measures import Features, Pixels
from .scorers import Scorer
from .setup import ImageSpec, Sampling

IMAGE_SECONDS, MAX_SECONDS = 600.0, 86_400.0
MAX_ANSWER = 20_000_000
"""Most bytes of an answer, but for an image."""
_RESPONSE_SECONDS = 120.0
_POLL_SECONDS = 0.1
_OUTPUT_NODE = "9"
_FEATURE_NODE = "SpeedEvaluate"
"""A workflow is the only way to run a model inside a server's queue and memory management, and no
stock node outputs features. So this node of our package serves as a remote procedure: it compares
two batches of images and also returns the features of all its inputs as JSON.
"""

Graph = dict[str, dict[str, Any]]


class _Loader(NamedTuple):
    """ComfyUI's stock node for a kind of model."""

    node: str
    widget: str
    """The input that takes the file's name."""
    folder: str
    """Below models/."""


_LOADERS: dict[ModelKind, _Loader] = {
    "checkpoint": _Loader("CheckpointLoaderSimple", "ckpt_name", "checkpoints"),
    "diffusers": _Loader("DiffusersLoader", "model_path", "diffusers"),
    "lora": _Loader("LoraLoader", "lora_name", "loras"),
    "unet": _Loader("UNETLoader", "unet_name", "diffusion_models"),
    "clip": _Loader("CLIPLoader", "clip_name", "text_encoders"),
}


@dataclass
class ComfyClient:
    """One ComfyUI server."""

    url: str
    image_seconds: float = IMAGE_SECONDS
    """Seconds until an unfinished image counts as lost: from the request to its last byte."""
    name: str = field(init=False)
    local: bool = False
    _client_id: str = field(init=False, default_factory=lambda: uuid.uuid4().hex)
    _names: dict[tuple[str, str], str] = field(init=False, default_factory=dict)
    """(kind, name) of a model -> its name in the server's spelling."""

    def __post_init__(self) -> None:
        try:
            url = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
            usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise UsageError(
                f"{self.url!r} is not a server's address. Write http://127.0.0.1:8188."
            )
        if not 0 < self.image_seconds <= MAX_SECONDS:
            raise UsageError(
                f"The time for an image is {self.image_seconds:g} s. Use up to {MAX_SECONDS:g} s."
            )
        self.url = f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"
        self.name = url.netloc.rpartition("@")[2]

    def check_models(self, models: list[ModelRef]) -> None:
        for model in models:
            for ref in (model, model.base):
                if ref is not None and ref.kind != "pictures":
                    self._names[ref.kind, ref.name] = self._server_name(ref)

    def _server_name(self, model: ModelRef) -> str:
        loader = _LOADERS[model.kind]
        names = {name.replace("\\", "/"): name for name in self.choices(loader.node, loader.widget)}
        path = model.name.replace("\\", "/")
        if path in names:
            return names[path]
        matches = [name for listed, name in names.items() if listed.rsplit("/", 1)[-1] == path]
        if len(matches) == 1:
            return matches[0]
        raise InputError(
            f"{self.name} has no {model.kind} {model.name!r}{suggestion(path, names)}. Put it into"
            f" its models/{loader.folder}.",
            server=self.name,
            model=model.name,
        )

    def choices(self, node: str, widget: str) -> list[str]:
        """The options of a widget on the server; empty if it has no such node."""
        schema = self.get_json(f"/object_info/{node}").get(node, {})
        inputs = _mapped(_mapped(_mapped(schema).get("input")).get("required"))
        options, *details = _listed(inputs.get(widget)) or [[]]
        if not isinstance(options, list):  # newer servers: ["COMBO", {"options": [...]}]
            options = _mapped(details[0]).get("options") if details else []
        return [name for name in _listed(options) if isinstance(name, str)]

    def metadata(self, model: ModelRef) -> dict[str, str]:
        """The strings in the header of a model's file; empty if the server cannot read them."""
        folder = _LOADERS[model.kind].folder
        name = self._names.get((model.kind, model.name), model.name)
        try:
            header = self.get_json(f"/view_metadata/{folder}", filename=name)
        except SpeedError:
            return {}
        return {key: value for key, value in header.items() if isinstance(value, str)}

    def generate(self, model: ModelRef, spec: ImageSpec, sampling: Sampling) -> GeneratedImage:
        """Queues one image and waits for it.

        Args:
            model: The model.
            spec: Prompt and seed.
            sampling: Settings of the sampler.
        """
        end = time.monotonic() + self.image_seconds
        entry = self.run(_text_to_image(model, self._names, spec, sampling), end)
        images = _listed(_mapped(_output(entry, _OUTPUT_NODE)).get("images"))
        image = _mapped(images[0]) if len(images) == 1 else {}
        query = {key: image.get(key, "") for key in ("filename", "subfolder", "type")}
        if not query["filename"] or not all(isinstance(text, str) for text in query.values()):
            raise ServerRejected(f"{self.name} finished without an image.")
        size = sampling.width, sampling.height
        limit = MAX_ANSWER + 8 * sampling.width * sampling.height  # a PNG of 16 bits and alpha
        content = self._send(Request("GET", f"/view?{urlencode(query)}"), limit=limit, end=end)
        try:
            return GeneratedImage(
                decode_image(content, "Its answer", size), seconds=_seconds(entry)
            )
        except FileError as error:
            raise ServerRejected(f"{self.name}: {error}") from error

    def run(self, graph: Graph, end: float | None = None) -> dict[str, Any]:
        """Queues a graph and waits for it; returns the entry of the server's history.

        Args:
            graph: The nodes.
            end: When to give up, by `time.monotonic`; None: after the time for an image.
        """
        end = time.monotonic() + self.image_seconds if end is None else end
        body = json.dumps({"prompt": graph, "client_id": self._client_id}).encode()
        prompt_id = self._json(self._send(Request("POST", "/prompt", body), end=end)).get(
            "prompt_id"
        )
        if not isinstance(prompt_id, str) or not prompt_id:
            raise ServerUnavailable(f"{self.name} did not accept the prompt like a ComfyUI server.")
        pause = _POLL_SECONDS
        while time.monotonic() < end:
            request = Request("GET", f"/history/{quote(prompt_id[:100], safe='')}")
            entry = self._json(self._send(request, end=end)).get(prompt_id)
            if entry is not None:
                if _mapped(_mapped(entry).get("status")).get("status_str") != "success":
                    raise ServerRejected(f"{self.name} failed: {_failure(_mapped(entry))}")
                return dict(entry)
            time.sleep(max(0.0, min(pause, end - time.monotonic())))
            pause = min(1.0, pause * 1.2)
        raise ServerUnavailable(
            f"{self.name} has not finished an image in {self.image_seconds:g} s."
        )

    def upload(self, pixels: Pixels) -> str:
        """Puts an image into the server's temporary folder; returns the name for LoadImage."""
        png = encode_png(pixels)
        name, mark = f"{hashlib.sha256(png).hexdigest()[:32]}.png", uuid.uuid4().hex
        fields = {"type": "temp", "overwrite": "true", "subfolder": "speed-evaluate"}
        head = "".join(
            f'--{mark}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
            for key, value in fields.items()
        )
        head += f'--{mark}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        head += "Content-Type: image/png\r\n\r\n"
        body = head.encode() + png + f"\r\n--{mark}--\r\n".encode()
        form = f"multipart/form-data; boundary={mark}"
        self._send(Request("POST", "/upload/image", body, form))
        return f"speed-evaluate/{name} [temp]"

    def get_json(self, path: str, **query: str) -> dict[str, Any]:
        """A JSON object from the server; empty for any other JSON value."""
        return self._json(self._send(Request("GET", f"{path}?{urlencode(query)}".rstrip("?"))))

    def _json(self, content: bytes) -> dict[str, Any]:
        try:
            value = load_json(content, "The answer", MAX_ANSWER) if content else {}
        except FileError as error:
            raise ServerUnavailable(
                f"{self.name} does not answer like a ComfyUI server."
            ) from error
        return _mapped(value)

    def _send(self, request: Request, *, limit: int = MAX_ANSWER, end: float = math.inf) -> bytes:
        """The answer to a request that the server accepted; redirects are not followed."""
        end = min(end, time.monotonic() + _RESPONSE_SECONDS)
        answer = send(urlsplit(self.url), self.name, request, limit=limit, end=end)
        if answer.status == 400:
            raise ServerRejected(f"{self.name} refused: {_refusal(answer.content)}")
        if answer.status != 200:
            raise ServerUnavailable(
                f"{self.name} answered with {answer.status} {answer.reason}".rstrip() + "."
            )
        return answer.content


def _mapped(value: object) -> dict[str, Any]:
    """An object of an answer; empty for any other value."""
    return value if isinstance(value, dict) else {}


def _listed(value: object) -> list[Any]:
    """A list of an answer; empty for any other value."""
    return value if isinstance(value, list) else []


def _output(entry: Mapping[str, Any], node: str) -> object:
    return _mapped(entry.get("outputs")).get(node)


def _node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def _text_to_image(
    model: ModelRef, names: Mapping[tuple[str, str], str], spec: ImageSpec, sampling: Sampling
) -> Graph:
    """The graph of one image, which `_OUTPUT_NODE` returns. Stock nodes only: any server can run
    it. `names` are those in the server's spelling.
    """

    def load(ref: ModelRef, **inputs: Any) -> dict[str, Any]:
        loader = _LOADERS[ref.kind]
        return _node(loader.node, **{loader.widget: names[ref.kind, ref.name]}, **inputs)

    unet, clip, vae = ["1", 0], ["1", 1], ["1", 2]
    graph = {"1": load(model.base or model)}
    if model.kind == "lora":
        strengths = {"strength_model": model.strength, "strength_clip": model.strength}
        graph["2"] = load(model, model=unet, clip=clip, **strengths)
        unet, clip = ["2", 0], ["2", 1]
    elif model.kind == "unet":
        graph["2"] = load(model, weight_dtype="default")
        unet = ["2", 0]
    elif model.kind == "clip":
        graph["2"] = load(model, type="stable_diffusion")
        clip = ["2", 0]
    return graph | {
        "4": _node("CLIPTextEncode", clip=clip, text=_literal(spec.prompt)),
        "5": _node("CLIPTextEncode", clip=clip, text=_literal(sampling.negative)),
        "6": _node("EmptyLatentImage", width=sampling.width, height=sampling.height, batch_size=1),
        "7": _node(
            "KSampler",
            model=unet,
            positive=["4", 0],
            negative=["5", 0],
            latent_image=["6", 0],
            seed=spec.seed,
            steps=sampling.steps,
            cfg=sampling.cfg,
            sampler_name=sampling.sampler,
            scheduler=sampling.scheduler,
            denoise=1.0,
        ),
        "8": _node("VAEDecode", samples=["7", 0], vae=vae),
        _OUTPUT_NODE: _node("PreviewImage", images=["8", 0]),
    }


def _literal(text: str) -> str:
    """Escapes brackets, which weigh words in ComfyUI, and `embedding:`, which loads a file."""
    return text.replace("(", "\\(").replace(")", "\\)").replace("embedding:", "embedding :")


def _messages(entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What happened, by the server's own record: event -> details."""
    pairs = _listed(_mapped(entry.get("status")).get("messages"))
    return {
        pair[0]: _mapped(pair[1])
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
    }


def _seconds(entry: Mapping[str, Any]) -> float:
    """Run time by the server's own clock; 0 if it does not report one."""
    messages = _messages(entry)
    start, end = (
        messages.get(name, {}).get("timestamp") for name in ("execution_start", "execution_success")
    )
    return max(0.0, (finite(end) - finite(start)) / 1000) if start and end else 0.0


def _failure(entry: Mapping[str, Any]) -> str:
    messages = _messages(entry)
    if "execution_error" in messages:
        details = messages["execution_error"]
        return printable(f"{details.get('node_type')}: {details.get('exception_message')}")
    if "execution_interrupted" in messages:
        return "somebody interrupted it."
    return "it does not say why."


def _refusal(content: bytes) -> str:
    try:
        answer = _mapped(load_json(content, "The answer", MAX_ANSWER))
    except FileError:
        return printable(content[:600].decode("utf-8", "replace"), 300) or "no reason given."
    nodes = _mapped(answer.get("node_errors")).values()
    errors = [_mapped(error) for node in nodes for error in _listed(_mapped(node).get("errors"))]
    texts = [f"{error.get('message')} ({error.get('details')})" for error in errors]
    texts = texts or [str(_mapped(answer.get("error")).get("message") or "no reason given.")]
    return printable("; ".join(dict.fromkeys(texts)))


def server_clip(server: ComfyClient, vision: str, text: str = "") -> Scorer:
    """CLIP on a server, with the models that are installed there.

    Args:
        server: The server.
        vision: Its image encoder.
        text: The text encoder of the same CLIP, if there is one.
    """
    if not server.get_json(f"/object_info/{_FEATURE_NODE}"):
        raise InputError(
            f"{server.name} does not have this package's nodes. Install it there as well.",
            server=server.name,
            node=_FEATURE_NODE,
        )
    for name, loader, folder in (
        (vision, "CLIPVisionLoader", "clip_vision"),
        (text, "CLIPLoader", "text_encoders"),
    ):
        if name and name not in server.choices(loader, "clip_name"):
            raise InputError(
                f"{server.name} has no {name!r} in models/{folder}.", server=server.name, model=name
            )

    def features(graph: Graph, name: str, count: int) -> Features:
        content = _listed(_mapped(_output(server.run(graph), "features")).get("json"))
        try:
            answer = load_json(content[0], "The answer", MAX_ANSWER)
            rows = np.asarray(answer["features"][name], np.float64)
            if rows.shape[0] == count and rows.ndim == 2 and rows.size:
                return rows
        except (FileError, LookupError, TypeError, ValueError):
            pass
        raise ServerRejected(f"{server.name} did not send the features of {count} {name}.")

    def encode_images(images: Sequence[Pixels]) -> Features:
        graph: Graph = {"clip": _node("CLIPVisionLoader", clip_name=vision)}
        batch: list[str | int] = []
        for index, pixels in enumerate(images):
            image: list[str | int] = [f"image{index}", 0]
            graph[f"image{index}"] = _node("LoadImage", image=server.upload(pixels))
            if batch:
                graph[f"batch{index}"] = _node("ImageBatch", image1=batch, image2=image)
                image = [f"batch{index}", 0]
            batch = image
        inputs = {"clip_vision": ["clip", 0], "prompts": "", "labels": ""}
        graph["features"] = _node(_FEATURE_NODE, before=batch, after=batch, **inputs)
        return features(graph, "before", len(images))

    def encode_texts(texts: Sequence[str]) -> Features:
        image = ["image", 0]  # the node requires images: the smallest that it takes
        labels = "\n".join(" ".join(text.split()) for text in texts)
        inputs = {"clip": ["clip", 0], "prompts": "", "labels": labels}
        graph = {
            "clip": _node("CLIPLoader", clip_name=text, type="stable_diffusion"),
            "image": _node("EmptyImage", width=8, height=8, batch_size=1, color=0),
            "features": _node(_FEATURE_NODE, before=image, after=image, **inputs),
        }
        return features(graph, "labels", len(texts))

    about = f"CLIP_VISION {vision}" + (f" with the texts of {text}" if text else "")
    identity = f"{about} on {server.url}"
    return Scorer(about, identity, encode_images, encode_texts if text else None)
