"""CLIP features computed on a ComfyUI server, with the models that are installed there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import InputError
from .album import encode_png
from .client import ComfyClient
from .graph import Graph, node
from .measures import Features, Pixels
from .scorers import BATCH_SIZE

_FEATURE_NODE = "SpeedEvaluate"
"""A workflow is the only way to run a model inside a server's queue and memory management, and no
stock node outputs features. So this node of our package serves as a remote procedure: it compares
two batches of images and also returns the features of all its inputs as JSON.
"""


@dataclass
class ServerClip:
    """An image encoder of a server, and the text encoder of the same CLIP if there is one."""

    server: ComfyClient
    vision: str
    text: str = ""
    about: str = field(init=False)
    identity: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.server.get_json(f"/object_info/{_FEATURE_NODE}"):
            raise InputError(
                f"{self.server.name} does not have this package's nodes: install it there, too.",
                server=self.server.name,
                node=_FEATURE_NODE,
            )
        for name, loader, folder in (
            (self.vision, "CLIPVisionLoader", "clip_vision"),
            (self.text, "CLIPLoader", "text_encoders"),
        ):
            if name and name not in self.server.choices(loader, "clip_name"):
                raise InputError(
                    f"{self.server.name} has no {name!r} in models/{folder}.",
                    server=self.server.name,
                    model=name,
                )
        self.joint = bool(self.text)
        self.about = f"CLIP_VISION {self.vision}"
        if self.text:
            self.about += f" with the texts of {self.text}"
        self.identity = f"{self.about} on {self.server.url}"

    def images(self, images: Sequence[Pixels]) -> Features:
        batches = []
        for start in range(0, len(images), BATCH_SIZE):
            graph: Graph = {"clip": node("CLIPVisionLoader", clip_name=self.vision)}
            batch: list[str | int] = []
            for index, pixels in enumerate(images[start : start + BATCH_SIZE]):
                png = encode_png(pixels)
                name = self.server.upload(f"{hashlib.sha256(png).hexdigest()[:32]}.png", png)
                image: list[str | int] = [f"image{index}", 0]
                graph[f"image{index}"] = node("LoadImage", image=name)
                if batch:
                    graph[f"batch{index}"] = node("ImageBatch", image1=batch, image2=image)
                    image = [f"batch{index}", 0]
                batch = image
            inputs = {"clip_vision": ["clip", 0], "prompts": "", "labels": ""}
            graph["features"] = node(_FEATURE_NODE, before=batch, after=batch, **inputs)
            batches.append(self._features(graph, "before"))
        return np.concatenate(batches)

    def texts(self, texts: Sequence[str]) -> Features:
        # The node requires images: the smallest ones that it takes stand in.
        image = ["image", 0]
        labels = "\n".join(" ".join(text.split()) for text in texts)
        inputs = {"clip": ["clip", 0], "prompts": "", "labels": labels}
        graph = {
            "clip": node("CLIPLoader", clip_name=self.text, type="stable_diffusion"),
            "image": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
            "features": node(_FEATURE_NODE, before=image, after=image, **inputs),
        }
        return self._features(graph, "labels")

    def _features(self, graph: Graph, name: str) -> Features:
        (text,) = self.server.run(graph)["outputs"]["features"]["json"]
        return np.asarray(json.loads(text)["features"][name], np.float64)
