"""First stage of training: teach the text encoder what sentences of the world mean, in minutes.

Every row from the last token of a name onwards (later words, end, padding) must tell what is known
so far: subject, painter, the painter's group, texture and colors, night.  Group, texture and
colors are shared by painters, so related names get related rows; the one-hot painter target, of
smaller weight, keeps them apart. The readout is a fixed set of random orthonormal directions and
the targets are scaled by 5, so the meaning makes up about a fifth of a row's squared norm of 768:
two painters' rows then have cosines of 0.7 to 0.9, as in a trained CLIP. A free readout would let
the meaning shrink to a few per cent. The rest of a row keeps a random encoder's content.

Words around the names vary: in addition to the training templates, sentences are built with random
fillers, so that the encoder reads names in any context, as a real CLIP does. Held-out pairs do not
occur. Cost: CLIP is causal, so a sentence is trained with a random dozen of its
padding rows instead of all sixty.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from . import world
from .prompts import Prompt, names_of, sentence, strangers, training_prompts, training_weights
from .text_encoder import END, LENGTH, START, WIDTH, TextEncoder, new_encoder, tokens

FILLERS = (
    "the", "a", "an", "of", "in", "on", "with", "and", "this", "that", "very", "old", "new",
    "small", "large", "great", "quiet", "bright", "famous", "lost", "last", "first", "work",
    "piece", "sketch", "study", "image", "view", "scene", "canvas", "made", "done", "seen",
    "shown", "painted", "drawn", "signed", "after", "from", "for", "like", "as", "is", "was",
    "here", "there", "one", "my", "our", "their",
)  # fmt: skip
_PAINTER = len(world.STYLES) + len(world.GROUPS) + len(world.TEXTURES) + 9
_SPANS = {"subject": len(world.SCENES), "painter": _PAINTER}
_SPANS["night"] = 1
_TARGETS = sum(_SPANS.values())
_MEANING = 5.0


def painter_target(style: str) -> np.ndarray:
    """One-hot painter (weight 0.7), group, texture, and the nine color values."""
    painter = world.BY_NAME[style]
    one_hot = 0.7 * np.eye(len(world.STYLES))[world.STYLES.index(style)]
    group = np.array([float(g == painter.group) for g in world.GROUPS])
    texture = np.array([float(t == painter.texture) for t in world.TEXTURES])
    return np.concatenate([one_hot, group, texture, painter.ground, painter.tone, painter.ink])


def random_sentence(rng: np.random.Generator) -> Prompt:
    """Names among random fillers, in either order, with or without a painter and a night phrase."""

    def filler() -> str:
        return " ".join(rng.choice(FILLERS, size=rng.integers(0, 4)))

    while True:
        subject = str(rng.choice(world.SUBJECTS))
        painter = world.PAINTERS[rng.integers(len(world.PAINTERS))]
        if (subject, painter.name) not in world.HELD_OUT_PAIRS:
            break
    style, words, thing = painter.name, str(rng.choice(names_of(painter))), subject
    if rng.random() < 0.3:
        words = str(rng.choice(world.GENERIC if rng.random() < 0.6 else strangers("artists")))
        style = world.PLAIN.name
    if rng.random() < 0.15:
        thing = str(rng.choice(world.NO_SUBJECT if rng.random() < 0.5 else strangers("objects")))
        subject = world.NOTHING
    parts = ["{subject}", "{painter}"]
    if rng.random() < 0.5:
        parts.reverse()
    if rng.random() < 0.15:
        parts, style, words = ["{subject}"], world.PLAIN.name, ""
    template = " ".join(" ".join([filler(), part]) for part in parts) + " " + filler()
    endings = (*world.NIGHT_PHRASES, world.NIGHT_WORD)
    ending = str(rng.choice(endings)) if rng.random() < 0.25 else None
    return sentence(" ".join(template.split()), subject, style, words or None, ending, thing)


def _after(ids: list[int], words: str | None) -> int:
    """Position (start token included) of the last token of `words`; 0 if it is not there."""
    wanted = tokens(words) if words else []
    for begin in range(len(ids) - len(wanted), -1, -1):
        if wanted and ids[begin : begin + len(wanted)] == wanted:
            return begin + len(wanted)
    return 0


def lesson(prompt: Prompt, length: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Ids, positions, targets and mask of `length` rows: a sentence and some of its padding."""
    ids = tokens(prompt.text)[: length - 4]
    end = len(ids) + 1
    padding = np.sort(rng.choice(np.arange(end + 1, LENGTH), size=length - end - 1, replace=False))
    places = np.concatenate([np.arange(end + 1), padding])
    target = np.zeros((length, _TARGETS), dtype=np.float32)
    mask = np.zeros_like(target)
    first, second = len(world.SCENES), len(world.SCENES) + _SPANS["painter"]
    known = _after(ids, prompt.subject_words) or end
    target[known:, world.SCENES.index(prompt.subject)] = 1.0
    mask[known:, :first] = 1.0
    known = _after(ids, prompt.painter_words) or end
    target[known:, first:second] = painter_target(prompt.style)
    mask[known:, first:second] = 1.0
    target[end:, second:] = float(prompt.night)
    mask[end:, second:] = 1.0
    row_ids = np.array([START, *ids] + [END] * (length - 1 - len(ids)))
    return row_ids, places, target, mask


def batch_of(
    size: int, length: int, pool: list[Prompt], weights: np.ndarray, rng: np.random.Generator
) -> tuple[Tensor, ...]:
    """`size` lessons, half from the training sentences, half random."""
    chosen = [pool[i] for i in rng.choice(len(pool), size=size // 2, p=weights)]
    chosen += [random_sentence(rng) for _ in range(size - len(chosen))]
    columns = zip(*(lesson(prompt, length, rng) for prompt in chosen), strict=True)
    return tuple(torch.from_numpy(np.stack(column)) for column in columns)


def _trainable(encoder: TextEncoder) -> list[nn.Parameter]:
    """Positions and the working layers: token embeddings stay random, the final norm as it is."""
    encoder.requires_grad_(False)
    kept = [*encoder.text_model.embeddings.position_embedding.parameters()]
    kept += encoder.text_model.encoder.parameters()
    for parameter in kept:
        parameter.requires_grad_(True)
    return kept


def tune(
    seed: int, steps: int, log: Callable[[str], None], batch: int = 32, rate: float = 4e-4
) -> TextEncoder:
    """Train a fresh encoder; the last quarter of the steps on all 77 rows."""
    rng = np.random.default_rng(seed)
    encoder = new_encoder(seed)
    readout = nn.init.orthogonal_(torch.empty(WIDTH, _TARGETS))
    pool = training_prompts(seed)
    weights = training_weights(pool)
    trained = _trainable(encoder)
    adam = {"lr": rate, "weight_decay": 0.0, "betas": (0.9, 0.98), "fused": True}
    optimizer = torch.optim.AdamW(trained, **adam)
    begin = time.monotonic()
    for step in range(steps):
        part = step / steps
        full = part > 0.75
        size, length = (8, LENGTH) if full else (batch, 22)
        ids, places, target, mask = batch_of(size, length, pool, weights, rng)
        for setting in optimizer.param_groups:
            warm = min(1.0, (step + 1) / 50) * (0.5 if full else 1.0)
            setting["lr"] = rate * warm * max(0.02, 1 - part)
        error = (encoder(ids, places) @ readout / _MEANING - target).square() * mask
        loss = error.sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        if step % 10 == 0:
            log(f"text step {step} {time.monotonic() - begin:.0f}s loss {loss.item():.5f}")
    return encoder.requires_grad_(False).eval()
