"""`python -m benchmarks.clean_lora`: two LoRAs for the demo model, and one concept cleaned out of
each.

Each LoRA teaches the demo model two new names: it is trained, by gradient descent on the edited
layers alone, to answer to a new name as the model answers to one it knows. Then one of the two
names is erased from the LoRA. Images are generated with the model alone, with the LoRA and with the
cleaned LoRA. Five minutes on one core.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from speed_erase.speed_ops.checkpoints.clean_lora import CleanedLora, clean_lora
from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.demo.autoencoder import CELL
from speed_erase.speed_ops.demo.generate import (
    GUIDANCE,
    SIZE,
    STEPS,
    DemoModel,
    as_bytes,
    encode_prompts,
)
from speed_erase.speed_ops.demo.packed_model import known_names, write_checkpoint
from speed_erase.speed_ops.demo.unet import noise_for
from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache
from speed_erase.speed_ops.engine.edits import LayerEdit
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.files.lora import read_lora, write_lora
from speed_erase.speed_ops.files.lora_copy import differing, write_copy
from speed_erase.speed_ops.job import Job, host_settings
from speed_erase.speed_ops.report.chart import picture_grid
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.kinds import Template
from speed_erase.speed_ops.text.requests import RowRequest
from speed_erase.speed_ops.text.retain_set import builtin_retain, parse_retain, union

from .demo_model.world import PAINTERS, SUBJECTS
from .storage import default_folder, write_whole

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "clean-lora.png"
RANK, TRAINING_STEPS, RATE = 8, 400, 1e-2
_UNKNOWN = 60
"""Real painters that are protected as well, though the model does not know them."""
KEEP = 1.0
"""Weight of what must stay, in training."""


class Lesson(NamedTuple):
    """A LoRA: two new names, each with the known one that it copies; the first is cleaned out."""

    title: str
    kind: str
    anchor: str
    names: dict[str, str]
    prompts: tuple[str, ...]
    """With `{}` for the name."""


LESSONS = (
    Lesson(
        *(
            "painter",
            "style",
            "art",
            {"Mara Tessen": "Tibor Quill", "Nilo Harden": "Bruna Castell"},
        ),
        ("a house by {}", "a boat in the style of {}", "a tree, {}", "{}'s painting of a cup"),
    ),
    Lesson(
        *("subject", "object", "object", {"gizmo": "castle", "lantern": "butterfly"}),
        ("a {} by Orla Venn", "a {} by Kaya Brandt", "a {}", "a picture of a {}"),
    ),
)
_TRAINED_IN = {
    "style": ("a {subject} by {}", "a {subject} in the style of {}", "a {subject}, {}", "{}"),
    "object": ("a {}", "a picture of a {}", "a {} by {painter}", "a {} in the style of {painter}"),
}


def _templates(kind: str) -> list[Template]:
    """Prompts around a name."""
    painters = [painter.name for painter in PAINTERS[::2]]
    filled = [
        text.replace("{subject}", subject).replace("{painter}", painter)
        for text in _TRAINED_IN[kind]
        for subject, painter in zip(SUBJECTS[:6], painters, strict=True)
    ]
    return [Template(text.replace("{}", "{name}"), "") for text in dict.fromkeys(filled)]


def _rows(encoder: CachedEncoder, names: Sequence[str], templates: Sequence[Template]) -> Tensor:
    """Twelve rows of each prompt from the name on, (names x templates, 12, d)."""
    (stream,) = encoder.encoder.streams
    requests = []
    for name, template in itertools.product(names, templates):
        prompt = template.fill(name)
        rows = list(stream.rows_from_name(stream.locate(prompt)))
        requests.append(RowRequest(prompt.text, (*rows[:8], *rows[-12::3])))
    return torch.stack(encoder.rows(requests, "probes", None))


def train(source: ModelSource, encoder: CachedEncoder, lesson: Lesson) -> dict[str, LayerEdit]:
    """A LoRA that answers to each new name as the model does to a known one."""
    torch.manual_seed(0)
    templates, known = _templates(lesson.kind), known_names()
    others = known["painters"] if lesson.kind == "style" else known["subjects"]
    read = _rows(encoder, list(lesson.names), templates).flatten(0, 1)
    wanted = _rows(encoder, list(lesson.names.values()), templates).flatten(0, 1)
    kept = _rows(encoder, [*others, lesson.anchor, "picture"], templates[::3]).flatten(0, 1)
    edits = {}
    for layer in source.every_layer("KV"):
        weight = source.model("KV").weights[layer.canonical].float()
        goal = (wanted - read) @ weight.T
        up = torch.zeros(layer.shape[0], RANK, requires_grad=True)
        down = (torch.randn(RANK, layer.shape[1]) / 28).requires_grad_()
        optimizer = torch.optim.Adam([up, down], RATE)
        for step in range(TRAINING_STEPS):
            optimizer.param_groups[0]["lr"] = RATE * (1 - step / TRAINING_STEPS)
            missing = (read @ down.T @ up.T - goal).square().mean()
            loss = missing + KEEP * (kept @ down.T @ up.T).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        edits[layer.canonical] = LayerEdit(up.detach().double(), down.detach().double())
        print(f"{layer.canonical}: {float(missing.detach() / goal.square().mean()):.3f} missing")
    return edits


def clean(
    lesson: Lesson,
    lora: Path,
    model: Path,
    text: TextSetup,
    *,
    more: Sequence[str] = (),
    settings: EraseSettings | None = None,
) -> CleanedLora:
    """Erases the first of the two names.

    Args:
        lesson: The LoRA.
        lora: Its file.
        model: The demo model.
        text: How text becomes embeddings.
        more: Phrases that are protected as well.
        settings: Others than the default.
    """
    (erased, other), known = lesson.names, known_names()
    kept = "\n".join((other, *known["painters"], *known["subjects"], *more))
    concepts = parse_concepts(f"{erased} -> {lesson.anchor}", lesson.kind)
    retained = union([parse_retain(kept, "kept"), builtin_retain("artists").limit(_UNKNOWN)])
    job = Job.of(concepts, retained, settings or host_settings("auto"))
    return clean_lora(lora, model, job, text)


def combinations(folder: Path, model: Path, text: TextSetup) -> None:
    """What each prompt of the second LoRA lost of what the LoRA adds: with its second subject
    protected, and with that subject by ten painters who are in none of these prompts. No name is
    set aside as a test name.
    """
    lesson, source = LESSONS[1], ModelSource.open(model)
    lora, other = folder / f"{lesson.title}.safetensors", list(lesson.names)[1]
    seen = {"Orla Venn", "Kaya Brandt"}
    painters = [name for name in known_names()["painters"] if name not in seen]
    texts = [text.format(name) for name in lesson.names for text in lesson.prompts]
    encoder = text.encoder(source).encoder
    rows = encoder.encode(texts, [encoder.context_length] * len(texts))
    settings = host_settings("auto", held_out=0.0)
    for more in ((), [f"{other} by {name}" for name in painters]):
        result = clean(lesson, lora, model, text, more=more, settings=settings)
        write_copy(lora, folder / "combined.safetensors", result.tensors, force=True)
        layers = source.every_layer("KV")
        before = read_lora(lora, layers).edits
        after = read_lora(folder / "combined.safetensors", layers).edits
        print(f"{len(more)} combinations protected")
        for prompt, values in zip(texts, rows, strict=True):
            shares = [
                _lost(values[1:].double(), before[key], after[key]) for key in result.erasure.edits
            ]
            print(f"    {prompt}: {torch.tensor(shares).median():.2f}")


def _lost(rows: Tensor, before: LayerEdit, after: LayerEdit) -> float:
    """How far a LoRA's change of these rows moved, relative to it."""
    own, new = (edit.delta().double() for edit in (before, after))
    return float((rows @ (new - own).T).norm() / (rows @ own.T).norm())


def images(model: Path, source: ModelSource, lesson: Lesson, loras: Sequence[Path]) -> list[Tensor]:
    """Every prompt with the model alone and with each LoRA."""
    texts = [text.format(name) for name in lesson.names for text in lesson.prompts]
    rows, noise = encode_prompts(model, texts), noise_for([3] * len(texts), SIZE // CELL)
    layers = {layer.canonical: layer.file_key for layer in source.every_layer("KV")}
    out = []
    for lora in (None, *loras):
        edits = read_lora(lora, source.every_layer("KV")).edits if lora else {}
        changes = {layers[key]: edit.delta() for key, edit in edits.items()}
        drawn = DemoModel.load(source.checkpoint, changes)
        out.append(as_bytes(drawn.generate(rows, noise, STEPS, GUIDANCE)))
    return out


def side_by_side(paths: Sequence[Path], out: Path) -> Path:
    """Images in one, in 256 colors."""
    sheets = [Image.open(path).convert("RGB") for path in paths]
    size = sum(sheet.width for sheet in sheets), max(sheet.height for sheet in sheets)
    whole, left = Image.new("RGB", size, "white"), 0
    for sheet in sheets:
        whole.paste(sheet, (left, 0))
        left += sheet.width
    write_whole(out, lambda file: whole.quantize(256).save(file, format="PNG", optimize=True))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clean_lora", description=__doc__)
    parser.add_argument("--data", type=Path, default=default_folder("clean_lora"))
    parser.add_argument("--figure", action="store_true", help=f"write {FIGURE.name}")
    help = "only measure what prompts with two names lost, of the LoRAs of an earlier run"
    parser.add_argument("--combinations", action="store_true", help=help)
    options = parser.parse_args()
    folder = options.data
    folder.mkdir(parents=True, exist_ok=True)
    model = write_checkpoint(folder / "demo.safetensors", force=True)
    source, text = ModelSource.open(model), TextSetup(cache=EmbeddingCache(folder / "cache"))
    if options.combinations:
        combinations(folder, model, text)
        return
    for lesson in LESSONS:
        lora, cleaned = (folder / f"{lesson.title}{end}.safetensors" for end in ("", "-cleaned"))
        edits = train(source, text.encoder(source), lesson)
        layers = source.every_layer("KV")
        write_lora(lora, edits, layers, source.architecture, force=True)
        result = clean(lesson, lora, model, text)
        write_copy(lora, cleaned, result.tensors, force=True)
        print(result.erasure.text(), f"editable: {result.editable:.0%}", sep="\n")
        print("differs:", differing(lora, cleaned, result.tensors))
        titles = ("the model", "with the LoRA", "with the cleaned LoRA")
        sides = images(model, source, lesson, (lora, cleaned))
        count = len(lesson.prompts)
        rows = [
            (f"{title}: {name}", side[index * count : (index + 1) * count].numpy())
            for index, name in enumerate(lesson.names)
            for title, side in zip(titles, sides, strict=True)
        ]
        sheet = Image.fromarray(picture_grid(rows))
        path = folder / f"{lesson.title}.png"
        write_whole(path, lambda file, sheet=sheet: sheet.save(file, format="PNG"))
        print(path)
    if options.figure:
        print(side_by_side([folder / f"{lesson.title}.png" for lesson in LESSONS], FIGURE))


if __name__ == "__main__":
    main()
