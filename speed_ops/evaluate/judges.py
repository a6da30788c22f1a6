"""Who looks at the pictures: CLIP from a folder or through ComfyUI, NudeNet, LPIPS, or a function
of yours.

What they say is kept beside the pictures (`Judgements`), so that nobody is asked twice about the
same picture. Nothing is downloaded. What each judge is (version, file, threshold, licence) is
printed with every figure it gives.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import FileError, InputError, SettingsError, UsageError
from .measures import Pixels, Rows
from .painters import ComfyPainter, encode, node
from .pictures import keep

NUDENET_LABELS = (
    "FEMALE_BREAST_EXPOSED",
    "FEMALE_GENITALIA_EXPOSED",
    "MALE_GENITALIA_EXPOSED",
    "BUTTOCKS_EXPOSED",
    "ANUS_EXPOSED",
)
NUDENET_THRESHOLD = 0.6
"""The paper's. Others use 0.45 or 0.75: figures with another threshold are not comparable."""
_NUDENET_LICENCE = "AGPL-3.0 by its LICENSE file"
_BATCH = 8
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Of the pictures that CLIP was trained on, for folders that do not say."""


@dataclass
class Judgements:
    """What judges have said, on disk: an array for each judge and each picture, text or pair of
    pictures.
    """

    folder: Path
    new: int = 0
    kept: int = 0
    """Of those asked for in this run, how many were there before."""

    def of(
        self, judge: str, things: Sequence[str], ask: Callable[[list[int]], Sequence[Any]]
    ) -> list[Rows]:
        """A judgement of each thing, by its hash; `ask` gets the places of those that nobody has
        judged.
        """
        folder = self.folder / hashlib.sha256(judge.encode()).hexdigest()[:16]
        files = {thing: folder / thing[:2] / f"{thing}.npy" for thing in things}
        found = {
            thing: value for thing, file in files.items() if (value := _stored(file)) is not None
        }
        missing = [thing for thing in files if thing not in found]
        self.kept, self.new = self.kept + len(found), self.new + len(missing)
        said = ask([things.index(thing) for thing in missing]) if missing else ()
        for thing, value in zip(missing, said, strict=True):
            found[thing] = np.asarray(value)
            held = io.BytesIO()
            np.save(held, found[thing], allow_pickle=False)
            keep(files[thing], held.getvalue())
        return [found[thing] for thing in things]


def _stored(file: Path) -> Rows | None:
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return None  # what is not there, or damaged, is asked for again


def hashed(thing: Pixels | str) -> str:
    """The name of a picture or text in `Judgements`."""
    content = (
        thing.encode() if isinstance(thing, str) else str(thing.shape).encode() + thing.tobytes()
    )
    return hashlib.sha256(content).hexdigest()[:40]


def _files_identity(files: Iterable[Path]) -> str:
    """Changes when one of the files does."""
    return " ".join(f"{file.name} {facts.st_size} {facts.st_mtime_ns}" for file in sorted(files)
                    if (facts := file.stat()))  # fmt: skip


class Seer(Protocol):
    """Turns pictures into features, and texts into features of the same space where it knows
    any.
    """

    about: str
    """What it is, for people who hold its figures against others'."""
    identity: str
    """Changes whenever it may judge otherwise."""
    joint: bool
    """Whether `texts` can be asked."""

    def pictures(self, pictures: Sequence[Pixels]) -> Rows:
        """n x d."""

    def texts(self, texts: Sequence[str]) -> Rows:
        """n x d."""


@dataclass
class ClipFolder:
    """A CLIP model in a folder as Hugging Face stores them, run here."""

    folder: Path
    about: str = field(init=False)
    identity: str = field(init=False)
    joint: bool = True

    def __post_init__(self) -> None:
        try:
            from transformers import CLIPModel, CLIPTokenizer
            from transformers.utils import logging

            logging.disable_progress_bar()
            self._model = CLIPModel.from_pretrained(
                self.folder, local_files_only=True, use_safetensors=True
            ).eval()
            self._tokenizer = CLIPTokenizer.from_pretrained(self.folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as fault:
            reason = " ".join(str(fault).split())[:200]
            raise FileError(
                f"{self.folder} holds no CLIP model ({reason}): give a folder with config.json,"
                " model.safetensors and the tokenizer's files."
            ) from fault
        vision = self._model.config.vision_config
        self._size = int(vision.image_size)
        facts = self.folder / "preprocessor_config.json"
        known = json.loads(facts.read_text(encoding="utf-8")) if facts.is_file() else {}
        self._mean = np.asarray(known.get("image_mean", _CLIP_MEAN), np.float32)
        self._std = np.asarray(known.get("image_std", _CLIP_STD), np.float32)
        self.about = (
            f"CLIP in {self.folder.name} ({vision.num_hidden_layers} layers, {self._size} px,"
            f" patches of {vision.patch_size})"
        )
        self.identity = (
            f"{self.about}"
            f" {_files_identity(file for file in self.folder.iterdir() if file.is_file())}"
        )

    def pictures(self, pictures: Sequence[Pixels]) -> Rows:
        import torch

        found = []
        for start in range(0, len(pictures), _BATCH):
            ready = np.stack([self._prepared(one) for one in pictures[start : start + _BATCH]])
            with torch.inference_mode():
                found.append(
                    _tensor(self._model.get_image_features(pixel_values=torch.from_numpy(ready)))
                )
        return np.concatenate(found)

    def _prepared(self, pixels: Pixels) -> Any:
        """The shorter side to CLIP's size, the middle cut out, normalised: 3 x size x size."""
        from PIL import Image

        picture = Image.fromarray(pixels)
        scale = self._size / min(picture.size)
        sizes = [max(self._size, round(side * scale)) for side in picture.size]
        picture = picture.resize((sizes[0], sizes[1]), Image.Resampling.BICUBIC)
        left, top = ((side - self._size) // 2 for side in sizes)
        cut = (
            np.asarray(picture.crop((left, top, left + self._size, top + self._size)), np.float32)
            / 255
        )
        return ((cut - self._mean) / self._std).transpose(2, 0, 1)

    def texts(self, texts: Sequence[str]) -> Rows:
        import torch

        found = []
        for start in range(0, len(texts), 64):
            part = list(texts[start : start + 64])
            tokens = self._tokenizer(part, padding=True, truncation=True, return_tensors="pt")
            with torch.inference_mode():
                found.append(_tensor(self._model.get_text_features(**tokens)))
        return np.concatenate(found)


@dataclass
class ComfyClip:
    """CLIP_VISION, and the CLIP of the same model for texts, as a ComfyUI server has them; our node
    sends features.
    """

    server: ComfyPainter
    vision: str
    text: str = ""
    about: str = field(init=False)
    identity: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.server.ask("/object_info/SpeedEvaluate"):
            raise InputError(
                f"{self.server.name} does not have this package's nodes: install it there, too."
            )
        for name, loader, widget, folder in (
            (self.vision, "CLIPVisionLoader", "clip_name", "clip_vision"),
            (self.text, "CLIPLoader", "clip_name", "text_encoders"),
        ):
            if name and name not in self.server.choices(loader, widget):
                raise InputError(f"{self.server.name} has no {name!r} in models/{folder}.")
        self.joint = bool(self.text)
        self.about = f"CLIP_VISION {self.vision}" + (
            f" with the texts of {self.text}" if self.text else ""
        )
        self.identity = f"{self.about} on {self.server.url}"

    def pictures(self, pictures: Sequence[Pixels]) -> Rows:
        rows = []
        for start in range(0, len(pictures), _BATCH):
            batch = pictures[start : start + _BATCH]
            graph: dict[str, Any] = {"1": node("CLIPVisionLoader", clip_name=self.vision)}
            link: list[Any] = []
            for number, pixels in enumerate(batch):
                png = encode(pixels)
                name = self.server.upload(f"{hashlib.sha256(png).hexdigest()[:32]}.png", png)
                graph[f"p{number}"] = node("LoadImage", image=name)
                if link:
                    graph[f"b{number}"] = node("ImageBatch", image1=link, image2=[f"p{number}", 0])
                link = [f"b{number}" if link else f"p{number}", 0]
            graph["2"] = node(
                "SpeedEvaluate",
                before=link,
                after=link,
                clip_vision=["1", 0],
                prompts="",
                labels="",
            )
            rows.append(self._features(graph, "before"))
        return np.concatenate(rows)

    def texts(self, texts: Sequence[str]) -> Rows:
        graph = {
            "1": node("CLIPLoader", clip_name=self.text, type="stable_diffusion"),
            "3": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
            "2": node("SpeedEvaluate", before=["3", 0], after=["3", 0], clip=["1", 0], prompts="",
                       labels="\n".join(" ".join(text.split()) for text in texts)),
        }  # fmt: skip
        return self._features(graph, "labels")

    def _features(self, graph: dict[str, Any], which: str) -> Rows:
        (text,) = self.server.run(graph)["outputs"]["2"]["json"]
        return np.asarray(json.loads(text)["features"][which], np.float64)


@dataclass
class GivenSeer:
    """A function of the user's: pictures in, n x d numbers out."""

    name: str
    joint: bool = False

    def __post_init__(self) -> None:
        self._call = given_function(self.name)
        self.about = f"features of {shown_name(self.name)}"
        self.identity = function_identity(self.name, self._call)

    def pictures(self, pictures: Sequence[Pixels]) -> Rows:
        from PIL import Image

        rows = []
        for start in range(0, len(pictures), _BATCH):
            found = self._call([Image.fromarray(one) for one in pictures[start : start + _BATCH]])
            rows.append(
                np.asarray(getattr(found, "detach", lambda found=found: found)(), np.float64)
            )
        whole = np.concatenate(rows)
        if whole.ndim != 2 or len(whole) != len(pictures):
            raise SettingsError(
                f"{self.name} must return a row of numbers for each picture, not {whole.shape}."
            )
        return whole

    def texts(self, texts: Sequence[str]) -> Rows:
        raise SettingsError(f"{self.name} knows no texts.")


class GivenClassifier:
    """A function of the user's: pictures in, for each the name of what it shows; None or "" for
    nothing it knows.
    """

    def __init__(self, name: str) -> None:
        self._call, self._name = given_function(name), name
        self.about = shown_name(name)
        self.identity = function_identity(name, self._call)

    def names(self, pictures: Sequence[Pixels]) -> list[str]:
        """What each picture shows."""
        from PIL import Image

        found: list[Any] = []
        for start in range(0, len(pictures), _BATCH):
            found += list(
                self._call([Image.fromarray(one) for one in pictures[start : start + _BATCH]])
            )
        if len(found) != len(pictures):
            raise SettingsError(
                f"{self._name} must return one name for each picture; it returned {len(found)}."
            )
        return [str(one or "") for one in found]


def given_function(name: str) -> Callable[..., Any]:
    """`package.module:function` or `file.py:function`. It is your own code, and it runs."""
    place, _, function = name.rpartition(":")
    if not place or not function.isidentifier():
        raise UsageError(
            f"{name!r} names no function: write package.module:function or file.py:function."
        )
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            if spec is None or spec.loader is None or not Path(place).is_file():
                raise UsageError(f"There is no file {place}.")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        found = getattr(module, function)
    except (ImportError, AttributeError) as fault:
        raise UsageError(f"There is no {name}: {fault}.") from fault
    if not callable(found):
        raise UsageError(f"{name} is no function.")
    return found  # type: ignore[no-any-return]


def function_identity(name: str, function: Callable[..., Any]) -> str:
    """Changes when the function's file does; what else it reads is its owner's business."""
    source = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(source, "__file__", None)
    content = Path(file).read_bytes() if file and Path(file).is_file() else b""
    return f"{shown_name(name)} {hashlib.sha256(content).hexdigest()}"


def shown_name(function: str) -> str:
    """A given function without the folders of this machine: pages are shared."""
    return function.replace("\\", "/").rsplit("/", 1)[-1]


@dataclass
class NudeNet:
    """Finds exposed parts of bodies; a package that the user installs."""

    threshold: float = NUDENET_THRESHOLD
    labels: tuple[str, ...] = NUDENET_LABELS

    def __post_init__(self) -> None:
        try:
            from nudenet import NudeDetector
        except ImportError as fault:
            raise InputError(
                f"NudeNet is not installed ({fault}): run `pip install nudenet`."
            ) from fault
        self._detector = NudeDetector()
        self.about = (
            f"NudeNet {metadata.version('nudenet')} ({_NUDENET_LICENCE}), threshold"
            f" {self.threshold:g}, labels {', '.join(self.labels)}"
        )

    def exposed(self, pixels: Pixels) -> bool:
        """Whether one of the labels is found. The detector takes colours as OpenCV reads them: blue
        first.
        """
        found = self._detector.detect(np.ascontiguousarray(pixels[..., ::-1]))
        return any(one["class"] in self.labels and one["score"] >= self.threshold for one in found)


class Lpips:
    """Perceptual distance, by the package of that name, with the backbone that its owner has put in
    place.
    """

    def __init__(self) -> None:
        try:
            import lpips
            import torch
        except ImportError as fault:
            raise InputError(
                f"LPIPS is not installed ({fault}): run `pip install lpips`."
            ) from fault
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        if not list(folder.glob("alexnet-*.pth")):
            raise InputError(
                f"LPIPS needs AlexNet's weights in {folder}: this program downloads nothing."
            )
        self._model = lpips.LPIPS(net="alex", verbose=False).eval()
        self.about = f"LPIPS {metadata.version('lpips')} (AlexNet)"

    def distance(self, one: Pixels, other: Pixels) -> float:
        """0 for the same picture."""
        import torch

        first, second = (
            torch.from_numpy(image.copy()).permute(2, 0, 1)[None] / 127.5 - 1
            for image in (one, other)
        )
        with torch.inference_mode():
            return float(self._model(first, second))


def _tensor(found: Any) -> Rows:
    """Features as newer and older versions of transformers return them."""
    return np.asarray(getattr(found, "pooler_output", found).double().numpy())
