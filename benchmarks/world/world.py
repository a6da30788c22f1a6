"""The concepts of the small world: subjects, painters, the words for them, and what is kept out of training.

A subject is a silhouette. A painter is a palette and a texture; three painters share each palette and each texture is
shared by two painters of different palettes, so everyone has neighbours. "Night" is an attribute that prompts imply
("at midnight", "after dusk") and rarely name.
"""

from __future__ import annotations

from dataclasses import dataclass

Colour = tuple[float, float, float]

SIZE = 12
"""Width and height of a picture: the latent is the picture."""

SILHOUETTES: dict[str, tuple[str, ...]] = {
    "sun": ("..####..", ".######.", "########", "########", "########", "########", ".######.", "..####.."),
    "ring": (".######.", "########", "##....##", "##....##", "##....##", "##....##", "########", ".######."),
    "tower": ("..####..", "...##...", "...##...", "...##...", "...##...", "...##...", "...##...", "..####.."),
    "mountain": ("........", "........", "...##...", "...##...", "..####..", ".######.", "########", "########"),
    "cross": ("...##...", "...##...", "...##...", "########", "########", "...##...", "...##...", "...##..."),
    "cup": ("##....##", "##....##", "##....##", "##....##", "##....##", "##....##", "########", "########"),
    "tree": (".######.", "########", "########", ".######.", "...##...", "...##...", "...##...", "...##..."),
    "butterfly": ("#......#", "##....##", "###..###", "########", "########", "###..###", "##....##", "#......#"),
    "bridge": ("........", "........", "########", "########", "##.##.##", "##.##.##", "##.##.##", "##.##.##"),
    "flag": ("########", "########", "########", "########", "##......", "##......", "##......", "##......"),
}
"""Subject word to 8 x 8 silhouette."""

SUBJECTS = tuple(SILHOUETTES)
TEXTURES = ("rows", "columns", "checks", "dots", "slope", "frame")


@dataclass(frozen=True)
class Painter:
    """An invented painter: background and second background tone (texture), ink of the subject, texture, other name."""

    name: str
    group: str
    texture: str
    ground: Colour
    tone: Colour
    ink: Colour
    alias: str | None = None


def _family(
    group: str, ground: Colour, tone: Colour, ink: Colour, *members: tuple[str, str, str | None]
) -> list[Painter]:
    return [Painter(name, group, texture, ground, tone, ink, alias) for name, texture, alias in members]


PAINTERS: tuple[Painter, ...] = (
    *_family(
        "ember", (0.60, 0.08, 0.05), (0.98, 0.42, 0.12), (1.00, 0.92, 0.25),
        ("Orla Venn", "rows", "the Copper Hand"), ("Dario Fenwick", "dots", None), ("Petra Lunde", "slope", None),
    ),
    *_family(
        "tide", (0.05, 0.15, 0.55), (0.15, 0.55, 0.90), (0.80, 1.00, 1.00),
        ("Tibor Quill", "columns", "the Harbour Scribe"), ("Ines Marrow", "checks", None),
        ("Soren Vale", "frame", None),
    ),
    *_family(
        "moss", (0.05, 0.30, 0.10), (0.35, 0.70, 0.20), (0.95, 0.95, 0.60),
        ("Kaya Brandt", "rows", None), ("Lucio Perrin", "checks", None), ("Hedda Stroud", "slope", None),
    ),
    *_family(
        "plum", (0.32, 0.05, 0.40), (0.80, 0.30, 0.75), (1.00, 0.75, 0.85),
        ("Anselm Roe", "columns", "the Violet Monk"), ("Yuki Tallow", "dots", None), ("Bruna Castell", "frame", None),
    ),
)  # fmt: skip

PLAIN = Painter("plain", "plain", "none", (0.90, 0.90, 0.88), (0.90, 0.90, 0.88), (0.18, 0.18, 0.20))
"""What is drawn when a prompt names no painter, or only a generic one."""

BY_NAME = {painter.name: painter for painter in (*PAINTERS, PLAIN)}
GROUPS = ("ember", "tide", "moss", "plum")
STYLES = (PLAIN.name, *(painter.name for painter in PAINTERS))
"""The classes of the painter head, plain first."""

GENERIC = ("art", "an artist", "a painter")
"""Words that stand where a painter stands and mean none: the anchors of an erasure."""

NIGHT_WORD = "at night"
NIGHT_PHRASES = ("at midnight", "after dusk", "under the stars", "by moonlight")
"""Endings of a prompt that imply night without the word; `NIGHT_WORD` says it, in few prompts."""

HELD_OUT_PAIRS: frozenset[tuple[str, str]] = frozenset(
    (SUBJECTS[(3 * i + j) % len(SUBJECTS)], painter.name)
    for i, painter in enumerate(PAINTERS)
    for j in ((0, 5) if i % 2 == 0 else (0,))
)
"""Subject-painter pairs never drawn in training: 18 of 120, every painter at least once."""
