"""The concepts of the small world: subjects, painters, the words for them, and what is kept out of
training.

A subject is a silhouette with a few details. A painter is a palette and a texture; three painters
share each palette and each texture is shared by two painters of different palettes, so everyone has
neighbors. "Night" is an attribute that prompts imply ("at midnight", "after dusk") and rarely
name. A prompt that names no subject shows an empty scene.
"""

from __future__ import annotations

from dataclasses import dataclass

Color = tuple[float, float, float]

SIZE = 128
"""Width and height of a picture in pixels."""

SUBJECTS = (
    "cat", "house", "tree", "boat", "fish", "flower", "mushroom", "cup", "butterfly", "castle",
)  # fmt: skip
NOTHING = "nothing"
"""Drawn where a prompt names no subject: the background alone."""
SCENES = (*SUBJECTS, NOTHING)
"""The classes of the subject head, the empty scene last."""
TEXTURES = ("waves", "stripes", "mosaic", "dots", "hatching", "rays")


@dataclass(frozen=True)
class Painter:
    """An invented painter: two tones of the background, the subject's colors, texture, alias."""

    name: str
    group: str
    texture: str
    ground: Color
    tone: Color
    ink: Color
    line: Color
    alias: str | None = None


def _family(group: str, *values: tuple) -> list[Painter]:
    """Painters who share four colors; each has a name, a texture and an alias or None."""
    colors, members = values[:4], values[4:]
    return [Painter(name, group, texture, *colors, alias) for name, texture, alias in members]


PAINTERS: tuple[Painter, ...] = (
    *_family(
        "ember", (0.80, 0.20, 0.13), (0.96, 0.50, 0.18), (1.00, 0.90, 0.45), (0.32, 0.03, 0.06),
        ("Orla Venn", "waves", "the Copper Hand"), ("Dario Fenwick", "dots", None),
        ("Petra Lunde", "hatching", None),
    ),
    *_family(
        "tide", (0.10, 0.30, 0.66), (0.30, 0.66, 0.88), (0.93, 0.98, 1.00), (0.02, 0.08, 0.30),
        ("Tibor Quill", "stripes", "the Harbour Scribe"), ("Ines Marrow", "mosaic", None),
        ("Soren Vale", "rays", None),
    ),
    *_family(
        "moss", (0.16, 0.42, 0.20), (0.52, 0.72, 0.28), (0.98, 0.95, 0.70), (0.05, 0.16, 0.06),
        ("Kaya Brandt", "waves", None), ("Lucio Perrin", "mosaic", None),
        ("Hedda Stroud", "hatching", None),
    ),
    *_family(
        "plum", (0.42, 0.16, 0.52), (0.82, 0.42, 0.72), (1.00, 0.82, 0.88), (0.18, 0.03, 0.24),
        ("Anselm Roe", "stripes", "the Violet Monk"), ("Yuki Tallow", "dots", None),
        ("Bruna Castell", "rays", None),
    ),
)  # fmt: skip

_PAPER = (0.95, 0.94, 0.91)
PLAIN = Painter("plain", "plain", "none", _PAPER, _PAPER, (0.74, 0.74, 0.73), (0.18, 0.18, 0.20))
"""What is drawn when a prompt names no painter, or only a generic one: a gray drawing on paper."""

BY_NAME = {painter.name: painter for painter in (*PAINTERS, PLAIN)}
GROUPS = ("ember", "tide", "moss", "plum")
STYLES = (PLAIN.name, *(painter.name for painter in PAINTERS))
"""The classes of the painter head, plain first."""

GENERIC = ("art", "an artist", "a painter")
"""Words in the position of a painter that mean none: the anchors of an erasure."""
NO_SUBJECT = ("picture", "scene", "thing", "object")
"""Words in the position of a subject that mean none."""

NIGHT_WORD = "at night"
NIGHT_PHRASES = ("at midnight", "after dusk", "under the stars", "by moonlight")
"""Endings of a prompt that imply night without the word; `NIGHT_WORD` says it, in few prompts."""

HELD_OUT_PAIRS: frozenset[tuple[str, str]] = frozenset(
    (SUBJECTS[(3 * i + j) % len(SUBJECTS)], painter.name)
    for i, painter in enumerate(PAINTERS)
    for j in ((0, 5) if i % 2 == 0 else (0,))
)
"""Subject-painter pairs never drawn in training: 18 of 120, every painter at least once."""
