"""Generates images on a ComfyUI server, and runs its CLIP, through its HTTP interface."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import requests

from ..errors import FileError, InputError, SpeedError, UsageError, suggestion
from .album import decode_image, encode_png
from .backend import GeneratedImage, ModelKind, ModelRef, ServerRejected, ServerUnavailable
from .measures import Features, Pixels
from .scorers import Scorer
from .setup import ImageSpec, Sampling

IMAGE_SECONDS = 600.0
_RESPONSE_SECONDS = 30.0
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
    """Seconds until an unfinished image counts as lost."""
    name: str = field(init=False)
    local: bool = False
    _client_id: str = field(init=False, default_factory=lambda: uuid.uuid4().hex)
    _names: dict[tuple[str, str], str] = field(init=False, default_factory=dict)
    """(kind, name) of a model -> its name in the server's spelling."""

    def __post_init__(self) -> None:
        url = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise UsageError(
                f"{self.url!r} is not a server's address: write http://127.0.0.1:8188."
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
            f"{self.name} has no {model.kind} {model.name!r}{suggestion(path, names)}: put it into"
            f" its models/{loader.folder}.",
            server=self.name,
            model=model.name,
        )

    def choices(self, node: str, widget: str) -> list[str]:
        """The options of a widget on the server; empty if it has no such node."""
        schema = self.get_json(f"/object_info/{node}").get(node, {})
        options, *details = schema.get("input", {}).get("required", {}).get(widget) or [[]]
        if not isinstance(options, list):  # newer servers: ["COMBO", {"options": [...]}]
            options = details[0].get("options", []) if details else []
        return [name for name in options if isinstance(name, str)]

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
        entry = self.run(_text_to_image(model, self._names, spec, sampling))
        try:
            (image,) = entry["outputs"][_OUTPUT_NODE]["images"]
        except (KeyError, ValueError, TypeError):
            raise ServerRejected(f"{self.name} finished without a picture.") from None
        query = {key: image[key] for key in ("filename", "subfolder", "type") if key in image}
        content = self._send("GET", "/view", params=query).content
        try:
            return GeneratedImage(decode_image(content, "What it sent"), seconds=_seconds(entry))
        except FileError as error:
            raise ServerRejected(f"{self.name}: {error}") from error

    def run(self, graph: Graph) -> dict[str, Any]:
        """Queues a graph and waits for it; returns the entry of the server's history."""
        body = {"prompt": graph, "client_id": self._client_id}
        prompt_id = str(self._json(self._send("POST", "/prompt", json=body)).get("prompt_id"))
        end = time.monotonic() + self.image_seconds
        pause = _POLL_SECONDS
        while time.monotonic() < end:
            entry = self.get_json(f"/history/{prompt_id}").get(prompt_id)
            if entry is not None:
                if entry.get("status", {}).get("status_str") != "success":
                    raise ServerRejected(f"{self.name} failed: {_failure(entry)}")
                return dict(entry)
            time.sleep(pause)
            pause = min(1.0, pause * 1.2)
        raise ServerUnavailable(
            f"{self.name} has not finished a picture in {self.image_seconds:.0f} s."
        )

    def upload(self, pixels: Pixels) -> str:
        """Puts an image into the server's temporary folder; returns the name for LoadImage."""
        png = encode_png(pixels)
        name = f"{hashlib.sha256(png).hexdigest()[:32]}.png"
        fields = {"type": "temp", "overwrite": "true", "subfolder": "speed-evaluate"}
        files = {"image": (name, png, "image/png")}
        self._send("POST", "/upload/image", data=fields, files=files)
        return f"speed-evaluate/{name} [temp]"

    def get_json(self, path: str, **query: str) -> dict[str, Any]:
        """A JSON object from the server; empty for any other JSON value."""
        return self._json(self._send("GET", path, params=query))

    def _json(self, response: requests.Response) -> dict[str, Any]:
        try:
            value = response.json() if response.content else {}
        except ValueError:
            raise ServerUnavailable(f"{self.name} does not answer like a ComfyUI server.") from None
        return value if isinstance(value, dict) else {}

    def _send(self, method: str, path: str, **options: Any) -> requests.Response:
        options["timeout"] = _RESPONSE_SECONDS
        try:
            response = requests.request(method, self.url + path, **options)
        except requests.RequestException as error:
            reason: BaseException = error  # what the system reported is below several layers
            while (cause := reason.__cause__ or reason.__context__) is not None:
                reason = cause
            raise ServerUnavailable(f"{self.name} does not answer ({reason}).") from error
        if response.status_code == 400:
            raise ServerRejected(f"{self.name} refused: {_refusal(response)}")
        if not response.ok:
            raise ServerUnavailable(
                f"{self.name} answered with {response.status_code} {response.reason}."
            )
        return response


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


def _seconds(entry: Mapping[str, Any]) -> float:
    """Run time by the server's own clock; 0 if it does not report one."""
    times = {
        name: details.get("timestamp")
        for name, details in entry.get("status", {}).get("messages", [])
        if isinstance(details, dict)
    }
    start, end = times.get("execution_start"), times.get("execution_success")
    if not isinstance(start, int) or not isinstance(end, int):
        return 0.0
    return max(0.0, (end - start) / 1000)


def _failure(entry: Mapping[str, Any]) -> str:
    for name, details in entry.get("status", {}).get("messages", []):
        if name == "execution_error":
            return f"{details.get('node_type')}: {str(details.get('exception_message')).strip()}"
        if name == "execution_interrupted":
            return "somebody interrupted it."
    return "it does not say why."


def _refusal(response: requests.Response) -> str:
    try:
        content = response.json()
        nodes = content.get("node_errors", {}).values()
        errors = [error for node in nodes for error in node.get("errors", [])]
        texts = [f"{error.get('message')} ({error.get('details')})" for error in errors]
        texts = texts or [content["error"]["message"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return response.content[:300].decode("utf-8", "replace") or "no reason given."
    return "; ".join(dict.fromkeys(texts))[:600]


def server_clip(server: ComfyClient, vision: str, text: str = "") -> Scorer:
    """CLIP on a server, with the models that are installed there.

    Args:
        server: The server.
        vision: Its image encoder.
        text: The text encoder of the same CLIP, if there is one.
    """
    if not server.get_json(f"/object_info/{_FEATURE_NODE}"):
        raise InputError(
            f"{server.name} does not have this package's nodes: install it there, too.",
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

    def features(graph: Graph, name: str) -> Features:
        (content,) = server.run(graph)["outputs"]["features"]["json"]
        return np.asarray(json.loads(content)["features"][name], np.float64)

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
        return features(graph, "before")

    def encode_texts(texts: Sequence[str]) -> Features:
        image = ["image", 0]  # the node requires images: the smallest that it takes
        labels = "\n".join(" ".join(text.split()) for text in texts)
        inputs = {"clip": ["clip", 0], "prompts": "", "labels": labels}
        graph = {
            "clip": _node("CLIPLoader", clip_name=text, type="stable_diffusion"),
            "image": _node("EmptyImage", width=8, height=8, batch_size=1, color=0),
            "features": _node(_FEATURE_NODE, before=image, after=image, **inputs),
        }
        return features(graph, "labels")

    about = f"CLIP_VISION {vision}" + (f" with the texts of {text}" if text else "")
    identity = f"{about} on {server.url}"
    return Scorer(about, identity, encode_images, encode_texts if text else None)
