"""Models that score images: CLIP, NudeNet, LPIPS, and functions of the user.

Nothing is downloaded. Scores are cached next to the images (`ScoreCache`), and every result carries
a description of its scorer (version, file, threshold, license).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from ..errors import FileError, InputError, MissingPackageError, SettingsError, UsageError
from .album import write_file
from .backend import files_state
from .measures import Features, Pixels

NUDENET_LABELS = (
    "FEMALE_BREAST_EXPOSED",
    "FEMALE_GENITALIA_EXPOSED",
    "MALE_GENITALIA_EXPOSED",
    "BUTTOCKS_EXPOSED",
    "ANUS_EXPOSED",
)
NUDENET_THRESHOLD = 0.6
"""The paper's. Others use 0.45 or 0.75: results with another threshold are not comparable."""
_NUDENET_LICENSE = "AGPL-3.0 by its LICENSE file"
BATCH_SIZE = 8
_TEXT_BATCH_SIZE = 64
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
"""Of CLIP's training images, for folders that do not record it."""
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass
class ScoreCache:
    """Scores on disk: an array per scorer and image, text or pair of images."""

    folder: Path
    computed: int = 0
    reused: int = 0

    def get(
        self, scorer: str, keys: Sequence[str], compute: Callable[[list[int]], Sequence[Any]]
    ) -> list[Features]:
        """The score of each key.

        Args:
            scorer: Identity of the scorer.
            keys: `content_key` of what is scored.
            compute: Gets the indices of the keys without a score and returns their scores.
        """
        folder = self.folder / hashlib.sha256(scorer.encode()).hexdigest()[:16]
        files = {key: folder / key[:2] / f"{key}.npy" for key in keys}
        scores = dict[str, Features]()
        for key, file in files.items():
            with suppress(OSError, ValueError, EOFError):  # a damaged score is computed again
                scores[key] = np.asarray(np.load(file, allow_pickle=False))
        missing = [key for key in files if key not in scores]
        self.reused += len(scores)
        self.computed += len(missing)
        computed = compute([keys.index(key) for key in missing]) if missing else ()
        for key, score in zip(missing, computed, strict=True):
            scores[key] = np.asarray(score)
            buffer = io.BytesIO()
            np.save(buffer, scores[key], allow_pickle=False)
            write_file(files[key], buffer.getvalue())
        return [scores[key] for key in keys]


def content_key(content: Pixels | str) -> str:
    """The key of an image or text in the `ScoreCache`."""
    if not isinstance(content, str):
        return hashlib.sha256(str(content.shape).encode() + content.tobytes()).hexdigest()[:40]
    return hashlib.sha256(content.encode()).hexdigest()[:40]


class FeatureExtractor(Protocol):
    """Turns images into features, and texts into features of the same space if it is joint."""

    about: str
    """Description, for comparing results with others."""
    identity: str
    """Changes whenever the features may change."""
    joint: bool
    """Whether `texts` works."""

    def images(self, images: Sequence[Pixels]) -> Features:
        """n x d."""

    def texts(self, texts: Sequence[str]) -> Features:
        """n x d."""


@dataclass
class LocalClip:
    """A CLIP model in a folder of Hugging Face's layout, run on this machine."""

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
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise FileError(
                f"{self.folder} holds no CLIP model ({reason}): give a folder with config.json,"
                " model.safetensors and the tokenizer's files."
            ) from error
        vision = self._model.config.vision_config
        self._size = int(vision.image_size)
        file = self.folder / "preprocessor_config.json"
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self._mean = np.asarray(config.get("image_mean", _CLIP_MEAN), np.float32)
        self._std = np.asarray(config.get("image_std", _CLIP_STD), np.float32)
        self.about = (
            f"CLIP in {self.folder.name} ({vision.num_hidden_layers} layers, {self._size} px,"
            f" patches of {vision.patch_size})"
        )
        self.identity = f"{self.about} {files_state(self.folder)}"

    def images(self, images: Sequence[Pixels]) -> Features:
        import torch

        batches = []
        for start in range(0, len(images), BATCH_SIZE):
            pixels = np.stack([self._preprocess(image) for image in images[start:][:BATCH_SIZE]])
            with torch.inference_mode():
                output = self._model.get_image_features(pixel_values=torch.from_numpy(pixels))
            batches.append(_as_array(output))
        return np.concatenate(batches)

    def _preprocess(self, pixels: Pixels) -> Any:
        """Resizes the shorter side, crops the center and normalizes: 3 x size x size."""
        image = Image.fromarray(pixels)
        scale = self._size / min(image.size)
        width, height = (max(self._size, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        left, top = (width - self._size) // 2, (height - self._size) // 2
        crop = image.crop((left, top, left + self._size, top + self._size))
        return ((np.asarray(crop, np.float32) / 255 - self._mean) / self._std).transpose(2, 0, 1)

    def texts(self, texts: Sequence[str]) -> Features:
        import torch

        batches = []
        for start in range(0, len(texts), _TEXT_BATCH_SIZE):
            batch = list(texts[start : start + _TEXT_BATCH_SIZE])
            tokens = self._tokenizer(batch, padding=True, truncation=True, return_tensors="pt")
            with torch.inference_mode():
                batches.append(_as_array(self._model.get_text_features(**tokens)))
        return np.concatenate(batches)


def _as_array(output: Any) -> Features:
    """Features as newer and older versions of transformers return them."""
    return np.asarray(getattr(output, "pooler_output", output).double().numpy())


class UserFunction:
    """A function of the user, `package.module:function` or `file.py:function`: a list of Pillow
    images in, one value per image out. It is the user's own code, and it runs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.about = name.replace("\\", "/").rsplit("/", 1)[-1]
        """Without the folders of this machine: pages are shared."""
        self._function = _load_function(name)
        module = sys.modules.get(getattr(self._function, "__module__", None) or "")
        file = getattr(module, "__file__", None)
        source = Path(file).read_bytes() if file and Path(file).is_file() else b""
        self.identity = f"{self.about} {hashlib.sha256(source).hexdigest()}"
        """Changes with the function's file; other inputs are its owner's business."""

    def _call(self, images: Sequence[Pixels]) -> list[Any]:
        """What the function returns for each batch."""
        return [
            self._function([Image.fromarray(image) for image in images[start:][:BATCH_SIZE]])
            for start in range(0, len(images), BATCH_SIZE)
        ]


class UserFeatures(UserFunction):
    """Features from a function of the user: n x d numbers."""

    joint = False

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.about = f"features of {self.about}"

    def images(self, images: Sequence[Pixels]) -> Features:
        outputs = self._call(images)
        arrays = [output.detach() if hasattr(output, "detach") else output for output in outputs]
        features = np.concatenate([np.asarray(array, np.float64) for array in arrays])
        if features.ndim != 2 or len(features) != len(images):
            raise SettingsError(
                f"{self.name} must return a row of numbers for each picture, not {features.shape}.",
                function=self.name,
                shape=features.shape,
            )
        return features

    def texts(self, texts: Sequence[str]) -> Features:
        raise SettingsError(f"{self.name} knows no texts.")


class UserClassifier(UserFunction):
    """Names from a function of the user: what each image shows; None or "" for nothing it knows."""

    def names(self, images: Sequence[Pixels]) -> list[str]:
        """What each image shows."""
        names = [str(name or "") for batch in self._call(images) for name in batch]
        if len(names) != len(images):
            raise SettingsError(
                f"{self.name} must return one name for each picture; it returned {len(names)}.",
                function=self.name,
                names=len(names),
            )
        return names


def _load_function(name: str) -> Callable[..., Any]:
    source, _, function = name.rpartition(":")
    if not source or not function.isidentifier():
        raise UsageError(
            f"{name!r} names no function: write package.module:function or file.py:function."
        )
    try:
        if source.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(source).stem, source)
            if spec is None or spec.loader is None or not Path(source).is_file():
                raise UsageError(f"There is no file {source}.")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
        loaded = getattr(module, function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"There is no {name}: {error}.") from error
    if not callable(loaded):
        raise UsageError(f"{name} is no function.")
    return loaded  # type: ignore[no-any-return]


@dataclass
class NudeNet:
    """Detects exposed body parts with a package that the user installs."""

    threshold: float = NUDENET_THRESHOLD
    labels: tuple[str, ...] = NUDENET_LABELS

    def __post_init__(self) -> None:
        try:
            from nudenet import NudeDetector
        except ImportError as error:
            raise MissingPackageError(
                f"NudeNet is not installed ({error}): run `pip install nudenet`.",
                package="nudenet",
            ) from error
        self._detector = NudeDetector()
        self.about = (
            f"NudeNet {metadata.version('nudenet')} ({_NUDENET_LICENSE}), threshold"
            f" {self.threshold:g}, labels {', '.join(self.labels)}"
        )

    def exposed(self, pixels: Pixels) -> bool:
        """Whether one of the labels is detected. Like OpenCV, the detector expects blue first."""
        detections = self._detector.detect(np.ascontiguousarray(pixels[..., ::-1]))
        return any(
            detection["class"] in self.labels and detection["score"] >= self.threshold
            for detection in detections
        )


class Lpips:
    """Perceptual distance by the package lpips, with a backbone that is already on this machine."""

    def __init__(self) -> None:
        try:
            import lpips
            import torch
        except ImportError as error:
            raise MissingPackageError(
                f"LPIPS is not installed ({error}): run `pip install lpips`.", package="lpips"
            ) from error
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        if not list(folder.glob("alexnet-*.pth")):
            raise InputError(
                f"LPIPS needs AlexNet's weights in {folder}: this program downloads nothing.",
                folder=str(folder),
            )
        self._model = lpips.LPIPS(net="alex", verbose=False).eval()
        self.about = f"LPIPS {metadata.version('lpips')} (AlexNet)"

    def distance(self, left: Pixels, right: Pixels) -> float:
        """0 for the same image."""
        import torch

        tensors = [
            torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 127.5 - 1
            for pixels in (left, right)
        ]
        with torch.inference_mode():
            return float(self._model(*tensors))


@dataclass(frozen=True)
class Scorers:
    """The scorers of a run. Each is optional, and its measures with it."""

    clip: FeatureExtractor | None = None
    """Scores, drift, and recognition where there is no classifier."""
    features: FeatureExtractor | None = None
    """For the Frechet distance; without it, CLIP's features are used."""
    classifier: UserClassifier | None = None
    nudity: NudeNet | None = None
    lpips: Lpips | None = None

    @property
    def distance(self) -> str:
        """The measure of the Frechet distance: only features of the user's choice may be compared
        with published FIDs.
        """
        return "fid" if self.features is not None else "frechet_clip"

    def about(self) -> dict[str, str]:
        """Measure -> what computes it."""
        texts = {"clip": self.clip.about} if self.clip is not None else {}
        if self.classifier is not None:
            texts["recognition"] = self.classifier.about
        elif self.clip is not None and self.clip.joint:
            texts["recognition"] = f"zero-shot by {self.clip.about}"
        scorers = {
            self.distance: self.features or self.clip,
            "nudity": self.nudity,
            "lpips": self.lpips,
        }
        return texts | {
            name: scorer.about for name, scorer in scorers.items() if scorer is not None
        }
