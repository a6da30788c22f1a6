"""The 40-painter test set in words: painters as combinations of four attributes, subjects that look
alike, persons and characters, a night.

Each attribute is shared by several painters and no two painters share more than two of the four, so
everyone has neighbors, and no painter is recognized by one attribute alone.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

Color = tuple[float, float, float]


@dataclass(frozen=True)
class Palette:
    """Four colors, each in [0, 1]."""

    ground: Color
    tone: Color
    """Of the texture on the ground."""
    ink: Color
    """Of the subject."""
    dark: Color
    """Of contours, frames and the land below a horizon."""


PALETTES: dict[str, Palette] = {
    "sea": Palette((0.75, 0.90, 0.97), (0.42, 0.70, 0.90), (0.05, 0.30, 0.72), (0.02, 0.12, 0.32)),
    "ember": Palette((1.0, 0.80, 0.62), (0.98, 0.55, 0.32), (0.80, 0.10, 0.05), (0.36, 0.03, 0.02)),
    "gold": Palette((1.00, 0.96, 0.66), (0.96, 0.82, 0.28), (0.72, 0.48, 0.00), (0.34, 0.20, 0.00)),
    "moss": Palette((0.82, 0.94, 0.74), (0.55, 0.80, 0.45), (0.10, 0.48, 0.14), (0.03, 0.20, 0.05)),
    "violet": Palette((0.9, 0.82, 0.98), (0.72, 0.55, 0.92), (0.42, 0.1, 0.66), (0.18, 0.02, 0.32)),
    "clay": Palette((0.90, 0.80, 0.70), (0.74, 0.56, 0.42), (0.46, 0.25, 0.12), (0.20, 0.09, 0.04)),
    "slate": Palette((0.86, 0.87, 0.88), (0.62, 0.64, 0.67), (0.3, 0.32, 0.36), (0.07, 0.08, 0.10)),
    "rose": Palette((1.00, 0.86, 0.92), (0.98, 0.62, 0.78), (0.90, 0.10, 0.48), (0.42, 0.00, 0.22)),
    "paper": Palette((1.0, 1.0, 1.0), (0.55, 0.85, 0.85), (0.10, 0.58, 0.58), (0.00, 0.20, 0.20)),
}
TEXTURES = ("plain", "stripes", "dots", "hatch", "checks")
LINES = ("solid", "outline", "contour", "striped")
"""How the subject is drawn: filled, its outline alone, with a dark contour, with dark bars."""
COMPOSITIONS = ("whole", "horizon", "frame", "medallion")


@dataclass(frozen=True)
class Painter:
    """A manner: one of each attribute."""

    name: str
    palette: str
    texture: str
    line: str
    composition: str


PAINTERS: tuple[Painter, ...] = (
    Painter("Claude Monet", "sea", "plain", "solid", "whole"),
    Painter("Vincent van Gogh", "ember", "plain", "striped", "whole"),
    Painter("Pablo Picasso", "gold", "plain", "contour", "horizon"),
    Painter("Paul Cézanne", "moss", "plain", "outline", "frame"),
    Painter("Paul Gauguin", "violet", "plain", "solid", "medallion"),
    Painter("Édouard Manet", "clay", "plain", "striped", "medallion"),
    Painter("Edgar Degas", "slate", "plain", "contour", "whole"),
    Painter("Pierre-Auguste Renoir", "rose", "plain", "outline", "horizon"),
    Painter("Henri Matisse", "sea", "stripes", "outline", "horizon"),
    Painter("Gustav Klimt", "ember", "stripes", "solid", "frame"),
    Painter("Egon Schiele", "gold", "stripes", "striped", "frame"),
    Painter("Edvard Munch", "moss", "stripes", "contour", "medallion"),
    Painter("Wassily Kandinsky", "violet", "stripes", "outline", "whole"),
    Painter("Paul Klee", "clay", "stripes", "solid", "horizon"),
    Painter("Piet Mondrian", "slate", "stripes", "striped", "horizon"),
    Painter("Joan Miró", "rose", "stripes", "contour", "frame"),
    Painter("Salvador Dalí", "sea", "dots", "contour", "frame"),
    Painter("René Magritte", "ember", "dots", "outline", "medallion"),
    Painter("Frida Kahlo", "gold", "dots", "solid", "whole"),
    Painter("Diego Rivera", "moss", "dots", "striped", "whole"),
    Painter("Georgia O'Keeffe", "violet", "dots", "contour", "horizon"),
    Painter("Edward Hopper", "clay", "dots", "outline", "frame"),
    Painter("Jackson Pollock", "slate", "dots", "solid", "medallion"),
    Painter("Mark Rothko", "rose", "dots", "striped", "medallion"),
    Painter("Andy Warhol", "sea", "hatch", "striped", "medallion"),
    Painter("Roy Lichtenstein", "ember", "hatch", "contour", "whole"),
    Painter("Keith Haring", "gold", "hatch", "outline", "horizon"),
    Painter("Jean-Michel Basquiat", "moss", "hatch", "solid", "frame"),
    Painter("David Hockney", "violet", "hatch", "striped", "frame"),
    Painter("Yayoi Kusama", "clay", "hatch", "contour", "medallion"),
    Painter("Katsushika Hokusai", "slate", "hatch", "outline", "whole"),
    Painter("Utagawa Hiroshige", "rose", "hatch", "solid", "horizon"),
    Painter("Johannes Vermeer", "sea", "checks", "solid", "horizon"),
    Painter("Leonardo da Vinci", "ember", "checks", "striped", "horizon"),
    Painter("Sandro Botticelli", "gold", "checks", "contour", "frame"),
    Painter("Albrecht Dürer", "moss", "checks", "outline", "medallion"),
    Painter("Caspar David Friedrich", "violet", "checks", "solid", "whole"),
    Painter("Francisco Goya", "clay", "checks", "striped", "whole"),
    Painter("Marc Chagall", "slate", "checks", "contour", "horizon"),
    Painter("Alphonse Mucha", "rose", "checks", "outline", "frame"),
)
PLAIN = Painter("plain", "paper", "plain", "solid", "whole")
"""What is drawn where the prompt names no painter."""
BY_NAME = {painter.name: painter for painter in (*PAINTERS, PLAIN)}
STYLES = tuple(BY_NAME)

LOOK_ALIKES = (
    ("cup", "mug", "bucket"),
    ("cat", "fox", "dog"),
    ("house", "barn", "church"),
    ("tree", "mushroom", "umbrella"),
    ("boat", "fish"),
    ("apple", "pear"),
    ("star", "flower"),
)
SUBJECTS = tuple(name for group in LOOK_ALIKES for name in group)

HAIR: dict[str, Color] = {
    "black": (0.08, 0.07, 0.06),
    "blond": (0.95, 0.80, 0.35),
    "red": (0.75, 0.28, 0.08),
    "white": (0.93, 0.93, 0.90),
}
HEADS = ("short", "long", "hat", "crown")
FACES = ("plain", "beard", "mustache", "glasses")
COSTUMES: dict[str, Color] = {
    "scarlet": (0.85, 0.08, 0.10),
    "blue": (0.10, 0.25, 0.80),
    "green": (0.05, 0.55, 0.20),
    "orange": (1.00, 0.60, 0.05),
}
SKINS: dict[str, Color] = {"person": (0.93, 0.74, 0.60), "character": (0.55, 0.75, 0.90)}
"""Characters have blue faces: a drawing's."""


@dataclass(frozen=True)
class Figure:
    """A person or a character: one of each attribute. Any two share at most one."""

    name: str
    kind: Literal["person", "character"]
    hair: str
    head: str
    face: str
    costume: str


def _figures() -> tuple[Figure, ...]:
    """Four attributes from two numbers below four, each pair of attributes with all sixteen values:
    an orthogonal array over the field of four elements.
    """
    names = (
        "Albert Einstein", "Marie Curie", "Cleopatra", "Abraham Lincoln",
        "Charlie Chaplin", "Winston Churchill", "Nelson Mandela", "Amelia Earhart",
        "Sherlock Holmes", "Robin Hood", "Peter Pan", "Dracula",
        "Cinderella", "Pinocchio", "Snow White", "Captain Nemo",
    )  # fmt: skip
    doubled = (0, 2, 3, 1)
    figures = []
    for number, name in enumerate(names):
        first, second = divmod(number, 4)
        values = (first, second, first ^ second, first ^ doubled[second])
        options = (tuple(HAIR), HEADS, FACES, tuple(COSTUMES))
        attributes = (choices[value] for choices, value in zip(options, values, strict=True))
        figures.append(Figure(name, "person" if number < 8 else "character", *attributes))
    return tuple(figures)


FIGURES = _figures()
PEOPLE = tuple(figure.name for figure in FIGURES if figure.kind == "person")
CHARACTERS = tuple(figure.name for figure in FIGURES if figure.kind == "character")
FIGURE_BY_NAME = {figure.name: figure for figure in FIGURES}
GROUPS = {"person": PEOPLE, "cartoon character": CHARACTERS}
"""Words that mean any figure of a group."""
DEPICTED = (*SUBJECTS, *PEOPLE, *CHARACTERS)
"""Everything that an image may show."""

NIGHT_WORD = "night"
NIGHT_PHRASES = ("under the stars", "in the moonlight", "after midnight", "long after sunset")
"""Words that imply night without saying it. Erasures are told of the first two."""


def shared(first: str, second: str) -> int:
    """How many of the four attributes two painters share."""
    pairs = zip(astuple(BY_NAME[first])[1:], astuple(BY_NAME[second])[1:], strict=True)
    return sum(a == b for a, b in pairs)


def look_alikes(subject: str) -> set[str]:
    """Subjects with nearly the same shape."""
    return {name for group in LOOK_ALIKES if subject in group for name in group if name != subject}
