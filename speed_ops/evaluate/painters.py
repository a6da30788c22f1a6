"""Who draws: ComfyUI servers over their HTTP interface with stock nodes alone, or this machine the
model in the box.

A painter draws one picture at a time, so that a picture does not depend on what else was asked for,
or of whom.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from ..demo.demo import GUIDANCE, SIZE, STEPS, Artist, Drawing, as_bytes
from ..errors import (
    FileError,
    InputError,
    NotFoundError,
    ServerError,
    SpeedError,
    UsageError,
    suggestion,
)
from ..files.checkpoint import Checkpoint, checkpoint_hash
from ..models.detect import is_lora
from ..progress import Progress
from .measures import Pixels
from .setup import Sampling, Shot

Kind = Literal["checkpoint", "diffusers", "lora", "unet", "clip", "pictures"]
KINDS: tuple[Kind, ...] = ("checkpoint", "diffusers", "lora", "unet", "clip", "pictures")
_ON_ORIGINAL = ("lora", "unet", "clip")
"""What comes without the rest of a model, and is put on the original."""
_LOADERS: dict[str, tuple[str, str, str]] = {
    "checkpoint": ("CheckpointLoaderSimple", "ckpt_name", "checkpoints"),
    "diffusers": ("DiffusersLoader", "model_path", "diffusers"),
    "lora": ("LoraLoader", "lora_name", "loras"),
    "unet": ("UNETLoader", "unet_name", "diffusion_models"),
    "clip": ("CLIPLoader", "clip_name", "text_encoders"),
}
"""Kind -> ComfyUI's stock node for it, the input that takes the name, and the folder below
models/.
"""
_ANSWER_SECONDS = 30.0
_LOOK_EVERY = 0.1
PICTURE_SECONDS = 600.0
BOX_SAMPLING = Sampling(SIZE, SIZE, STEPS, GUIDANCE, "euler", "normal")
"""What the model in the box draws well with; its sampler is the only one that is known here."""


class PainterGone(ServerError):
    """A server does not answer, or not as one: somebody else has to draw what it was drawing."""


class PainterFault(ServerError):
    """A server answers and says that it cannot draw this picture."""


@dataclass(frozen=True)
class Model:
    """A model as painters know it."""

    label: str
    kind: Kind
    name: str
    """As the server lists it; of pictures drawn elsewhere, their folder."""
    identity: str
    """What pictures of it are kept under: a hash of the file where we have the file, else its
    name.
    """
    strength: float = 1.0
    base: Model | None = None
    file: Path | None = None
    """The file itself, where it is on this machine."""


def parse_model(
    text: str, label: str, base: Model | None, progress: Progress | None = None
) -> Model:
    """`[kind:]name[@strength]`; a file or folder of this machine tells its kind and hash itself."""
    head, colon, tail = text.partition(":")
    kind = next((one for one in KINDS if colon and one == head), None)
    name = tail if kind else text
    strength = 1.0
    if kind == "lora" and "@" in name:
        name, _, number = name.rpartition("@")
        try:
            strength = float(number)
        except ValueError:
            raise UsageError(
                f"The strength in {text!r} is not a number: write lora:NAME@0.8."
            ) from None
    path = Path(name)
    if kind == "pictures":
        if not path.is_dir():
            raise NotFoundError(
                f"There is no folder {name}: give the folder of the pictures that were drawn."
            )
        return Model(label, kind, name, _state(path), file=path)
    file = path if path.exists() else None
    identity = f"name {kind or 'checkpoint'} {name}"
    if file is not None:
        opened = Checkpoint.open(file)
        identity = f"sha256 {checkpoint_hash(opened, progress)}"
        kind = kind or (
            "diffusers" if opened.is_folder else "lora" if is_lora(opened.shapes) else "checkpoint"
        )
        name = path.name
    kind = kind or "checkpoint"
    if kind in _ON_ORIGINAL:
        if base is None or base.kind == "pictures":
            raise UsageError(
                f"{text!r} is put on the original, which must be a checkpoint or a diffusers"
                " folder."
            )
        identity = f"{identity} at {strength:g} on {base.identity}"
    return Model(
        label, kind, name, identity, strength, base if kind in _ON_ORIGINAL else None, file
    )


@dataclass(frozen=True)
class Drawn:
    """A picture and how it came to be."""

    pixels: Pixels
    finite: bool = True
    """False where numbers came out that are none. Servers send such a frame as a black one."""
    seconds: float = 0.0


class Painter(Protocol):
    """Draws pictures; calls come from one thread at a time."""

    name: str
    here: bool
    """Whether it draws in this process, which must not end before the picture is finished."""

    def ready(self, models: Sequence[Model]) -> None:
        """Raises `PainterGone` where nobody answers, `InputError` where a model is not known
        here.
        """

    def draw(self, model: Model, shot: Shot, sampling: Sampling) -> Drawn:
        """One picture. Raises `PainterGone` or `PainterFault`."""


@dataclass
class ComfyPainter:
    """One ComfyUI server."""

    url: str
    picture_seconds: float = PICTURE_SECONDS
    name: str = field(init=False)
    here: bool = False
    _client: str = field(init=False, default_factory=lambda: uuid.uuid4().hex)
    _listed: dict[str, str] = field(init=False, default_factory=dict)
    """`kind name` of a model -> the name in the server's own spelling."""

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{self.url!r} is not a server's address: write http://127.0.0.1:8188."
            )
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.name = parts.netloc.rpartition("@")[2]

    def ready(self, models: Sequence[Model]) -> None:
        for model in models:
            for one in (model, model.base):
                if one is not None and one.kind != "pictures":
                    self._listed[f"{one.kind} {one.name}"] = self._find(one)

    def _find(self, model: Model) -> str:
        node, widget, folder = _LOADERS[model.kind]
        known = self.choices(node, widget)
        plain = {name.replace("\\", "/"): name for name in known}
        wanted = model.name.replace("\\", "/")
        if wanted in plain:
            return plain[wanted]
        below = [name for path, name in plain.items() if path.rsplit("/", 1)[-1] == wanted]
        if len(below) == 1:
            return below[0]
        near = suggestion(wanted, plain)
        raise InputError(
            f"{self.name} has no {model.kind} {model.name!r}{near}: put it into its"
            f" models/{folder}."
        )

    def choices(self, node: str, widget: str) -> list[str]:
        """What a node of the server lets one choose from; nothing where it has no such node."""
        inputs = self.ask(f"/object_info/{node}").get(node, {}).get("input", {}).get("required", {})
        spec = inputs.get(widget) or [[]]
        found = (
            spec[0]
            if isinstance(spec[0], list)
            else (spec[1] if len(spec) > 1 else {}).get("options", [])
        )
        return [name for name in found if isinstance(name, str)]

    def header(self, model: Model) -> dict[str, str]:
        """What the header of a model's file says, where the server can tell: strings by their
        names.
        """
        folder = _LOADERS[model.kind][2] if model.kind in _LOADERS else ""
        name = urllib.parse.quote(
            self._listed.get(f"{model.kind} {model.name}", model.name), safe=""
        )
        try:
            found = self.ask(f"/view_metadata/{folder}?filename={name}")
        except SpeedError:
            return {}
        return {key: value for key, value in found.items() if isinstance(value, str)}

    def draw(self, model: Model, shot: Shot, sampling: Sampling) -> Drawn:
        entry = self.run(self._graph(model, shot, sampling))
        try:
            (image,) = entry["outputs"]["9"]["images"]
        except (KeyError, ValueError, TypeError):
            raise PainterFault(f"{self.name} finished without a picture.") from None
        query = urllib.parse.urlencode(
            {key: image[key] for key in ("filename", "subfolder", "type") if key in image}
        )
        try:
            return Drawn(
                decode(self._send(f"/view?{query}"), "What it sent"), seconds=_seconds(entry)
            )
        except FileError as fault:
            raise PainterFault(f"{self.name}: {fault}") from fault

    def _graph(self, model: Model, shot: Shot, sampling: Sampling) -> dict[str, Any]:
        """Stock nodes alone: any ComfyUI can run it. Brackets in prompts are literal."""
        under = model.base or model
        loader, widget, _ = _LOADERS[under.kind]
        graph = {"1": node(loader, **{widget: self._listed[f"{under.kind} {under.name}"]})}
        unet, clip, vae = ["1", 0], ["1", 1], ["1", 2]
        if model.base is not None:
            loader, widget, _ = _LOADERS[model.kind]
            given: dict[str, Any] = {widget: self._listed[f"{model.kind} {model.name}"]}
            if model.kind == "lora":
                given |= {"model": unet, "clip": clip}
                graph["2"] = node(
                    loader, **given, strength_model=model.strength, strength_clip=model.strength
                )
                unet, clip = ["2", 0], ["2", 1]
            elif model.kind == "unet":
                graph["2"], unet = node(loader, **given, weight_dtype="default"), ["2", 0]
            else:
                graph["2"], clip = node(loader, **given, type="stable_diffusion"), ["2", 0]
        return graph | {
            "4": node("CLIPTextEncode", clip=clip, text=_literal(shot.prompt)),
            "5": node("CLIPTextEncode", clip=clip, text=_literal(sampling.negative)),
            "6": node(
                "EmptyLatentImage", width=sampling.width, height=sampling.height, batch_size=1
            ),
            "7": node(
                "KSampler",
                model=unet,
                positive=["4", 0],
                negative=["5", 0],
                latent_image=["6", 0],
                seed=shot.seed,
                steps=sampling.steps,
                cfg=sampling.cfg,
                sampler_name=sampling.sampler,
                scheduler=sampling.scheduler,
                denoise=1.0,
            ),
            "8": node("VAEDecode", samples=["7", 0], vae=vae),
            "9": node("PreviewImage", images=["8", 0]),
        }

    def run(self, graph: Mapping[str, Any]) -> dict[str, Any]:
        """Queues a graph and waits for it; the entry of the server's history."""
        content = json.dumps({"prompt": graph, "client_id": self._client}).encode()
        number = str(self.ask("/prompt", content).get("prompt_id"))
        end = time.monotonic() + self.picture_seconds
        pause = _LOOK_EVERY
        while time.monotonic() < end:
            entry = self.ask(f"/history/{number}").get(number)
            if entry is not None:
                if entry.get("status", {}).get("status_str") != "success":
                    raise PainterFault(f"{self.name} failed: {_reason(entry)}")
                return dict(entry)
            time.sleep(pause)
            pause = min(1.0, pause * 1.2)
        raise PainterGone(
            f"{self.name} has not finished a picture in {self.picture_seconds:.0f} s."
        )

    def ask(self, path: str, content: bytes | None = None) -> dict[str, Any]:
        """JSON from the server."""
        answer = self._send(path, content, "application/json")
        try:
            value = json.loads(answer or b"{}")
        except ValueError:
            raise PainterGone(f"{self.name} does not answer like a ComfyUI server.") from None
        return value if isinstance(value, dict) else {}

    def upload(self, name: str, png: bytes) -> str:
        """Puts a picture into the server's folder for temporary files; the name by which nodes find
        it there.
        """
        border = uuid.uuid4().hex
        fields = {"type": "temp", "overwrite": "true", "subfolder": "speed-evaluate"}
        parts = [f'--{border}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
                 for key, value in fields.items()]  # fmt: skip
        parts.append(
            f'--{border}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
            "Content-Type: image/png\r\n\r\n".encode()
        )
        self._send("/upload/image", b"".join((*parts, png, f"\r\n--{border}--\r\n".encode())),
                   f"multipart/form-data; boundary={border}")  # fmt: skip
        return f"speed-evaluate/{name} [temp]"

    def _send(self, path: str, content: bytes | None = None, kind: str = "") -> bytes:
        request = urllib.request.Request(
            self.url + path, content, {"Content-Type": kind} if content else {}
        )
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as fault:
            said = fault.read(20_000).decode("utf-8", "replace")
            if fault.code == 400:
                raise PainterFault(f"{self.name} refused: {_refusal(said)}") from fault
            raise PainterGone(f"{self.name} answered with {fault.code} {fault.reason}.") from fault
        except (OSError, http.client.HTTPException) as fault:
            reason = getattr(fault, "reason", None) or fault
            raise PainterGone(f"{self.name} does not answer ({reason}).") from fault


@dataclass
class BoxPainter:
    """This machine, with the small sampler that comes with the model in the box: for models of its
    layout alone.
    """

    name: str = "this machine"
    here: bool = True
    _at_hand: tuple[str, Artist] | None = None
    """The model that was drawn last, under its identity."""

    def ready(self, models: Sequence[Model]) -> None:
        for one in (one for model in models for one in (model, model.base) if one is not None):
            if not _is_of_the_box(one):
                what = f"{one.name!r} is " + ("not one" if one.file else "no file of this machine")
                rule = (
                    "Without --server, only the demo's model and what was made of it can be drawn"
                )
                raise InputError(f"{rule}: {what}.")

    def draw(self, model: Model, shot: Shot, sampling: Sampling) -> Drawn:
        started = time.perf_counter()
        artist = self._artist(model)
        size = (sampling.height, sampling.width)
        colours = artist.picture(
            shot.prompt, sampling.negative, shot.seed, size, sampling.steps, sampling.cfg
        )
        finite = bool(colours.isfinite().all())
        return Drawn(as_bytes(colours.nan_to_num(0)).numpy(), finite, time.perf_counter() - started)

    def _artist(self, model: Model) -> Artist:
        """One at a time: text encoders are large."""
        if self._at_hand is None or self._at_hand[0] != model.identity:
            if self._at_hand is not None:
                self._at_hand[1].close()
            lora = model.file if model.kind == "lora" else None
            self._at_hand = (
                model.identity,
                Artist.open((model.base or model).file or Path(), lora, model.strength),
            )
        return self._at_hand[1]


def _is_of_the_box(model: Model) -> bool:
    return model.file is not None and (
        model.kind == "lora"
        or (model.kind == "checkpoint" and Drawing.fits(Checkpoint.open(model.file).shapes))
    )


def decode(content: bytes, what: str) -> Pixels:
    """The pixels of a picture file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as picture:
            return np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as fault:
        raise FileError(f"{what} is not a picture that can be read ({fault}).") from fault


def encode(pixels: Pixels, facts: Mapping[str, str] | None = None) -> bytes:
    """A PNG with `facts` in it."""
    from PIL import Image, PngImagePlugin

    told = PngImagePlugin.PngInfo()
    for name, value in (facts or {}).items():
        told.add_itxt(name, value)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG", pnginfo=told)
    return held.getvalue()


def _state(folder: Path) -> str:
    """Changes when a picture of the folder does."""
    lines = sorted(f"{file.name} {facts.st_size} {facts.st_mtime_ns}" for file in folder.iterdir()
                   if (facts := file.stat()))  # fmt: skip
    return f"pictures {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    """One node of a graph in the form that the server takes."""
    return {"class_type": kind, "inputs": inputs}


def _literal(text: str) -> str:
    """Brackets weigh words in ComfyUI, and `embedding:` loads a file; in a list of prompts they are
    words.
    """
    return text.replace("(", "\\(").replace(")", "\\)").replace("embedding:", "embedding :")


def _seconds(entry: Mapping[str, Any]) -> float:
    """From the start to the end of a run by the server's own clock; 0 where it does not tell."""
    times = {name: facts.get("timestamp") for name, facts in entry.get("status", {}).get("messages", [])
             if isinstance(facts, dict)}  # fmt: skip
    start, end = times.get("execution_start"), times.get("execution_success")
    return (
        max(0.0, (end - start) / 1000) if isinstance(start, int) and isinstance(end, int) else 0.0
    )


def _reason(entry: Mapping[str, Any]) -> str:
    for name, facts in entry.get("status", {}).get("messages", []):
        if name == "execution_error":
            return f"{facts.get('node_type')}: {str(facts.get('exception_message')).strip()}"
        if name == "execution_interrupted":
            return "somebody interrupted it."
    return "it does not say why."


def _refusal(said: str) -> str:
    try:
        content = json.loads(said)
        errors = [
            error
            for node in content.get("node_errors", {}).values()
            for error in node.get("errors", [])
        ]
        texts = [f"{error.get('message')} ({error.get('details')})" for error in errors]
        texts = texts or [content["error"]["message"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return said[:300] or "no reason given."
    return "; ".join(dict.fromkeys(texts))[:600]
