"""Generated images on disk, each under a key of everything that shapes it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

from ..errors import FileError
from ..files.atomic import write_bytes, write_error
from ..files.schema import Fields, finite, load_json
from .backend import GeneratedImage, ModelRef
from .measures import Pixels
from .setup import ImageSpec, Sampling

_THUMBNAIL = 256
"""Pixels of the longer side on the page: twice the displayed size, for sharp screens."""
FORMATS = ("PNG", "JPEG", "WEBP")
"""All others are refused: Pillow reads some of them with other programs."""
MAX_PIXELS = 8192 * 8192
_FACTS = "speed.evaluate"
_MAX_FACTS = 100_000


@dataclass(frozen=True)
class ImageJob:
    """An image to generate."""

    key: str
    model: ModelRef
    spec: ImageSpec
    sampling: Sampling


@dataclass(frozen=True)
class Album:
    """Images by key, in a folder. Several runs may share it, also at the same time."""

    folder: Path

    def path(self, key: str) -> Path:
        """Where an image is or will be."""
        return self.folder / key[:2] / f"{key}.png"

    def holds(self, key: str) -> bool:
        """Whether the image exists; files appear complete or not at all."""
        return self.path(key).is_file()

    def put(self, job: ImageJob, image: GeneratedImage, backend: str) -> None:
        """Stores an image; the file also records how it was generated.

        Args:
            job: What was asked for.
            image: The result.
            backend: Name of the backend that generated it.
        """
        facts = {
            "model": job.model.label,
            "identity": job.model.identity,
            "prompt": job.spec.prompt,
            "seed": job.spec.seed,
            "sampling": vars(job.sampling),
            "finite": image.finite,
            "seconds": image.seconds,
            "backend": backend,
        }
        write_file(self.path(job.key), encode_png(image.pixels, {_FACTS: json.dumps(facts)}))

    def get(self, key: str) -> GeneratedImage:
        """An image that has been generated."""
        path = self.path(key)
        try:
            with Image.open(path, formats=FORMATS) as image:
                text = getattr(image, "text", {}).get(_FACTS, "{}")
                facts = Fields.of(load_json(text, "its header", _MAX_FACTS), "its header")
                _refuse_huge(image)
                pixels = np.asarray(image.convert("RGB"))
        except Exception as error:  # Pillow raises many types
            reason = " ".join(str(error).split())[:200]
            raise FileError(
                f"Cannot read the image {path} ({reason}). Delete it, and run again.",
                path=str(path),
            ) from error
        is_finite = facts.values.get("finite") is not False
        return GeneratedImage(pixels, is_finite, finite(facts.values.get("seconds")))

    def thumbnail(self, key: str) -> str:
        """A small copy as a data URL."""
        return data_url(self.get(key).pixels)


def data_url(pixels: Pixels) -> str:
    """A small copy of an image as a data URL."""
    image = Image.fromarray(pixels)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def decode_image(content: bytes, source: str, size: tuple[int, int] | None = None) -> Pixels:
    """The pixels of a PNG, JPEG or WebP file. Its size is checked before it is decoded.

    Args:
        content: The file.
        source: What errors call it.
        size: Its width and height; None: any up to `MAX_PIXELS`.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            shown = "x".join(map(str, image.size))
            if size is not None and image.size != size:
                raise ValueError(f"its size is {shown}, not {'x'.join(map(str, size))}")
            _refuse_huge(image)
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow raises many types
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"{source} is not an image that can be read ({reason}).") from error


def _refuse_huge(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{image.width}x{image.height} is larger than any model makes")


def encode_png(pixels: Pixels, texts: Mapping[str, str] | None = None) -> bytes:
    """A PNG file with `texts` in its header."""
    header = PngImagePlugin.PngInfo()
    for name, value in (texts or {}).items():
        header.add_itxt(name, value)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", pnginfo=header)
    return buffer.getvalue()


def write_file(path: Path, content: bytes) -> None:
    """Writes a file and creates its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path.parent, error) from error
    write_bytes(path, content, force=True)


def image_key(model: ModelRef, spec: ImageSpec, sampling: Sampling) -> str:
    """The key of an image: a hash of the model, the prompt, the seed and all settings.

    Args:
        model: The model.
        spec: Prompt and seed.
        sampling: Settings of the sampler.
    """
    facts = [model.identity, spec.prompt, spec.seed, vars(sampling)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:40]


def jobs_for(
    models: Iterable[ModelRef], specs: Sequence[ImageSpec], sampling: Sampling
) -> list[ImageJob]:
    """Each image once, ordered by model: switching models for every image would dominate a
    server's time.

    Args:
        models: The models.
        specs: Prompts and seeds.
        sampling: Settings of the sampler.
    """
    jobs = dict[str, ImageJob]()
    for model in models:
        for spec in specs:
            key = image_key(model, spec, sampling)
            jobs.setdefault(key, ImageJob(key, model, spec, sampling))
    return list(jobs.values())


def numbered(specs: Iterable[ImageSpec]) -> dict[tuple[str, int], ImageSpec]:
    """(prompt, seed) -> its first spec; the position, from 1, is its number for other programs."""
    unique = dict[tuple[str, int], ImageSpec]()
    for spec in specs:
        unique.setdefault((spec.prompt, spec.seed), spec)
    return unique


def write_prompt_list(path: Path, specs: Iterable[ImageSpec]) -> int:
    """Writes prompts and seeds as CSV for another program; returns their number."""
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(("number", "prompt", "seed", "type", "concept", "group"))
    unique = numbered(specs)
    for number, spec in enumerate(unique.values(), 1):
        table.writerow((number, spec.prompt, spec.seed, spec.role, spec.concept, spec.group))
    write_bytes(path, buffer.getvalue().encode(), force=True)
    return len(unique)


def import_images(jobs: Iterable[ImageJob], specs: Iterable[ImageSpec], album: Album) -> int:
    """Copies images that another program generated from our prompt list; returns how many.

    Args:
        jobs: All jobs; those of the kind `pictures` are looked at.
        specs: What the prompt list was written from: file names are its numbers.
        album: Where the images go.
    """
    numbers = {unique: number for number, unique in enumerate(numbered(specs), 1)}
    missing = [job for job in jobs if job.model.kind == "pictures" and not album.holds(job.key)]
    for job in missing:
        folder, number = Path(job.model.name), numbers[job.spec.prompt, job.spec.seed]
        stems, suffixes = (f"{number}", f"{number:05}"), ("png", "jpg", "webp")
        paths = [folder / f"{stem}.{suffix}" for suffix in suffixes for stem in stems]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise FileError(
                f"{folder} has no image {number}.png, for {job.spec.prompt!r} with seed"
                f" {job.spec.seed}.",
                number=number,
                prompt=job.spec.prompt,
                seed=job.spec.seed,
            )
        pixels = decode_image(path.read_bytes(), str(path))
        album.put(job, GeneratedImage(pixels), job.model.name)
    return len(missing)
