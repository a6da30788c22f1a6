"""`python -m benchmarks.inversion`: a style that the demo model has no name for is learned from ten
images, and erased.

Textual inversion as trainers do it: the model stays as it is, and gradient descent looks for the
vectors of two new tokens with which the model predicts the noise in the ten images. The images
show the model's ten subjects in colors of three of its painters and a texture of two others. Then
`embedding:unnamed` is erased like any name. Images are generated before and after, and each is
named by the nearest background. A minute on one core; run it again to continue.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.demo.autoencoder import CELL
from speed_erase.speed_ops.demo.generate import GUIDANCE, SIZE, STEPS, DemoModel, as_bytes
from speed_erase.speed_ops.demo.packed_model import (
    FILE,
    TEXT,
    VOCABULARY,
    known_names,
    unpacked,
    write_checkpoint,
)
from speed_erase.speed_ops.demo.unet import noise_for
from speed_erase.speed_ops.encoders.cache import EmbeddingCache
from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer
from speed_erase.speed_ops.erase import erase
from speed_erase.speed_ops.erasure import Erasure
from speed_erase.speed_ops.job import Job, host_settings
from speed_erase.speed_ops.report.chart import picture_grid
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.retain_set import builtin_retain, parse_retain, union

from .demo_model.judge import nearest_style
from .demo_model.prompts import TEMPLATES
from .demo_model.render import MOVES, compose
from .demo_model.text_encoder import END, LENGTH, START, TextEncoder, new_encoder
from .demo_model.world import BY_NAME, PAINTERS, PLAIN, SUBJECTS
from .storage import default_folder, load_tensors, save_json, save_tensors, write_whole
from .training import add_noise, loss_weights, noise_steps

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "inversion.png"
NAME = "unnamed"
TOKEN = f"embedding:{NAME}"
STYLE = replace(BY_NAME["Ines Marrow"], name=NAME, texture="waves", alias=None)
"""The colors of the group "tide", and a texture that none of its painters has."""
VECTORS, TRAINING_STEPS, BATCH, RATE = 2, 120, 8, 2e-3
_SAVE_EVERY = 25
_UNKNOWN = 60
"""Real painters that are protected as well, though the model does not know them."""
SUBJECTS_SHOWN = ("house", "boat", "tree", "cup", "fish", "castle")
OTHERS = ("Ines Marrow", "Orla Venn", "Kaya Brandt", "Dario Fenwick", "art", "Soren Vale")
"""A painter with the same colors, two with the same texture, an unrelated one, none, and the first
kind again."""


def ten_images() -> np.ndarray:
    """Every subject once in the style, (10, 3, 128, 128) in [-1, 1]."""
    images = (
        compose(subject, STYLE, False, MOVES[index % len(MOVES)])
        for index, subject in enumerate(SUBJECTS)
    )
    return np.stack(list(images))


class _Table(nn.Module):
    """A table of tokens, the last ones trained."""

    def __init__(self, fixed: Tensor, trained: Tensor) -> None:
        super().__init__()
        self.fixed, self.trained = fixed, nn.Parameter(trained)

    def forward(self, ids: Tensor) -> Tensor:
        new = (ids >= VOCABULARY)[..., None]
        fixed = F.embedding(ids.clamp(max=VOCABULARY - 1), self.fixed)
        return torch.where(new, F.embedding((ids - VOCABULARY).clamp(min=0), self.trained), fixed)


def text_encoder(start: str) -> TextEncoder:
    """The demo's text encoder with the new tokens, which begin as a word that means no painter."""
    encoder, state = new_encoder(0), unpacked(load_file(FILE))
    text = {
        f"text_model.{key.removeprefix(TEXT)}": value.half().float()
        for key, value in state.items()
        if key.startswith(TEXT)
    }
    encoder.load_state_dict(encoder.state_dict() | text)
    encoder.requires_grad_(False)
    embeddings = encoder.text_model.embeddings
    fixed = embeddings.token_embedding.weight
    (word,) = ClipTokenizer.from_package().token_ids(start)
    embeddings.token_embedding = _Table(fixed, fixed[word].repeat(VECTORS, 1))
    return encoder


def padded(texts: list[str]) -> Tensor:
    """Token ids of prompts that may contain the inversion, (n, 77)."""
    tokenizer = ClipTokenizer.from_package(knows_inversions=False)
    tokenizer.inversions = {NAME: range(VOCABULARY, VOCABULARY + VECTORS)}
    tokens = [tokenizer.token_ids(text) for text in texts]
    return torch.tensor([[START, *ids] + [END] * (LENGTH - 1 - len(ids)) for ids in tokens])


def train(folder: Path, source: ModelSource, steps: int = TRAINING_STEPS) -> Path:
    """The inversion's file, from wherever the folder's files left off."""
    path, saved = folder / f"{NAME}.safetensors", folder / "training.safetensors"
    demo, encoder = DemoModel.load(source.checkpoint), text_encoder("art")
    demo.unet.requires_grad_(False)
    images = torch.from_numpy(ten_images())
    with torch.no_grad():
        latents = demo.autoencoder.encode(images / 2 + 0.5)
    texts = [text.format(subject=s, painter=TOKEN) for s in SUBJECTS for text in TEMPLATES]
    ids = padded(texts).unflatten(0, (len(SUBJECTS), len(TEMPLATES)))
    trained = encoder.text_model.embeddings.token_embedding.trained
    optimizer, begin = torch.optim.Adam([trained], RATE), 0
    if saved.exists():
        state = load_tensors(saved)
        begin = int(state["step"])
        trained.data.copy_(state["vectors"])
        optimizer.state[trained] = {
            "step": state["step"], "exp_avg": state["mean"], "exp_avg_sq": state["squares"]
        }  # fmt: skip
    losses = []
    for step in range(begin, steps):
        rng = np.random.default_rng([0, step])
        subjects = rng.integers(len(SUBJECTS), size=BATCH)
        rows = encoder(ids[subjects, rng.integers(len(TEMPLATES), size=BATCH)])
        noise = torch.from_numpy(rng.standard_normal((BATCH, *latents.shape[1:]), np.float32))
        levels = noise_steps(BATCH, rng)
        noisy = add_noise(latents[subjects], levels, noise)
        error = (demo.unet(noisy, levels, rows) - noise).square().mean(dim=(1, 2, 3))
        loss = (loss_weights(levels) * error).mean()
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == steps:
            print(f"step {step + 1}: loss {np.mean(losses):.4f}", flush=True)
            losses.clear()
            state = optimizer.state[trained]
            moments = {"mean": state["exp_avg"], "squares": state["exp_avg_sq"]}
            save_tensors(saved, {"vectors": trained, "step": torch.tensor(step + 1.0), **moments})
    save_tensors(path, {"emb_params": trained})
    return path


def prompts() -> list[tuple[str, str]]:
    """Prompts and the painters that they ask for: the inversion six times, then six others."""
    asked = [
        *((TOKEN, subject) for subject in SUBJECTS_SHOWN),
        *zip(OTHERS, SUBJECTS_SHOWN, strict=True),
    ]
    names = {TOKEN: NAME, "art": PLAIN.name}
    return [
        (f"a {subject} by {painter}", names.get(painter, painter)) for painter, subject in asked
    ]


def generate(source: ModelSource, rows: Tensor, erasure: Erasure | None) -> Tensor:
    """An image of each prompt, as bytes, with the model or with the erased one."""
    files = {layer.canonical: layer.file_key for layer in source.every_layer("KV")}
    edits = erasure.edits if erasure else {}
    model = DemoModel.load(source.checkpoint, {files[key]: e.delta() for key, e in edits.items()})
    noise = noise_for(list(range(len(rows) - 1)), SIZE // CELL)
    return as_bytes(model.generate(rows, noise, STEPS, GUIDANCE))


def recognized(images: Tensor) -> list[str]:
    """The painter of each image, or the style that has no name, by the nearest background."""
    colors = images.permute(0, 3, 1, 2) / 127.5 - 1
    return [nearest_style(image, (*PAINTERS, PLAIN, STYLE)).name for image in colors]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inversion", description=__doc__)
    parser.add_argument("--data", type=Path, default=default_folder("inversion"))
    parser.add_argument("--figure", action="store_true", help=f"write {FIGURE.name}")
    options = parser.parse_args()
    folder = options.data
    folder.mkdir(parents=True, exist_ok=True)
    source = ModelSource.open(write_checkpoint(folder / "demo.safetensors", force=True))
    text = TextSetup(embeddings=(train(folder, source),), cache=EmbeddingCache(folder / "cache"))
    kept = parse_retain("\n".join(name for g in known_names().values() for name in g), "known")
    retained = union([kept, builtin_retain("artists").limit(_UNKNOWN)])
    job = Job.of(parse_concepts(f"{TOKEN} -> art", "style"), retained, host_settings("auto"))
    encoder = text.encoder(source)
    erasure = erase(job, source.model("KV"), encoder)
    print(erasure.text(True))
    texts, asked = zip(*prompts(), strict=True)
    rows = torch.stack(encoder.encoder.encode(["", *texts], [LENGTH] * (1 + len(texts))))
    sides = [generate(source, rows, edit) for edit in (None, erasure)]
    before, after = map(recognized, sides)
    table = [
        {"prompt": prompt, "style": style, "before": old, "after": new}
        for prompt, style, old, new in zip(texts, asked, before, after, strict=True)
    ]
    for row in table:
        print(*row.values(), sep=" | ")
    save_json(folder / "results.json", table)
    count = len(SUBJECTS_SHOWN)
    groups = (("the inversion", 0), ("other names", count))
    sheet = picture_grid(
        [
            (f"{title}, {when}", side[begin : begin + count].numpy())
            for title, begin in groups
            for when, side in zip(("before", "after"), sides, strict=True)
        ]
    )
    out = FIGURE if options.figure else folder / FIGURE.name
    image = Image.fromarray(sheet).quantize(64)
    write_whole(out, lambda file: image.save(file, format="PNG", optimize=True))
    print(out)


if __name__ == "__main__":
    main()
