"""What kind of thing a name is: chooses its anchor, the prompts it is tried in and the names to
keep, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SettingsError, suggestion

HOLE = "{name}"
ON_TRIAL = 3
"""Templates of each kind, its last ones, that no edit is made from."""


@dataclass(frozen=True)
class Prompt:
    """A prompt and where in it the words end that a row stands for."""

    text: str
    subject_end: int
    """Number of characters of `text` up to the end of the name (or of the words that stand in for
    it).
    """
    subject_start: int | None = None
    """Number of characters before the name; None where no name has a place in it."""

    @classmethod
    def bare(cls, name: str) -> Prompt:
        """The name and nothing else."""
        return cls(name, len(name), 0)


@dataclass(frozen=True)
class Template:
    """A prompt with a hole for a name, and the same prompt as people write it without one."""

    text: str
    """Holds `{name}` once."""
    plain: str
    """The prompt with the name left out. `{}` marks the end of the words that stand where the name
    stood.
    """

    def fill(self, name: str) -> Prompt:
        """The prompt with a name in it; an empty name is left out."""
        head, tail = self.text.split(HOLE) if name else self.plain.split("{}")
        return Prompt(head + name + tail, len(head + name), len(head) if name else None)


BARE = Template(HOLE, "{}")
"""The name alone: what the paper encodes."""


@dataclass(frozen=True)
class Kind:
    """One row of the table below."""

    name: str
    anchor: str
    """What a target becomes when its line names no anchor; empty: the name is left out."""
    retain_sets: tuple[str, ...]
    """Built-in retain sets used when the user gives none."""
    templates: tuple[Template, ...]
    """Contexts that edits are made from, most different first: the first few are a fair sample. The
    last `ON_TRIAL` of them are spared for `auto`, which chooses by them how far to go."""
    probe_templates: tuple[Template, ...]
    """Contexts for the check afterwards. No edit is ever made from them."""
    descriptions: tuple[str, ...]
    """Ways to ask for the thing without saying its name alone; each holds `{name}`."""
    whole_prompt: bool = False
    """Whether the paper represents it by every row of the bare name's prompt instead of the name's
    last token.
    """


_STYLE = Kind(
    name="style",
    anchor="art",
    retain_sets=("artists", "styles", "scenes"),
    templates=(
        Template("a painting in the style of {name}", "a painting{}"),
        Template("{name} artwork of a harbour at noon", "artwork{} of a harbour at noon"),
        Template(
            "{name}'s still life with fruit on a table", "a still life{} with fruit on a table"
        ),
        Template("an old street painted by {name}, late evening", "an old street{}, late evening"),
        Template("a landscape by {name}", "a landscape{}"),
        Template(
            "a portrait of a woman, {name} style, highly detailed",
            "a portrait of a woman{}, highly detailed",
        ),
        Template("{name}, canvas, museum piece", "canvas{}, museum piece"),
        Template("a house and two trees, art by {name}", "a house and two trees, art{}"),
        Template("a cat, by {name}", "a cat{}"),
        Template("{name} sketch", "a sketch{}"),
        Template("a vase of flowers painted by {name}", "a vase of flowers{}"),
        Template("a city skyline in the manner of {name}", "a city skyline{}"),
        Template(
            "a poster that {name} made for a theatre in Paris", "a poster{} for a theatre in Paris"
        ),
        Template(
            "a ship in a storm by {name}, oil on canvas", "a ship in a storm{}, oil on canvas"
        ),
        Template(
            "by {name}, a kitchen with a cat asleep on a chair",
            "a picture{}, a kitchen with a cat asleep on a chair",
        ),
        Template("a drawing by {name}", "a drawing{}"),
        Template("a horse in a field, in {name}'s style", "a horse in a field{}"),
        Template(
            "what {name} would paint if it were raining today",
            "what one would paint{} if it were raining today",
        ),
        Template("a forest path, digital art by {name}", "a forest path, digital art{}"),
        Template(
            "{name} picture of two children playing in a garden",
            "a picture{} of two children playing in a garden",
        ),
    ),
    probe_templates=(
        Template(
            "a mountain village as {name} would have painted it",
            "a mountain village{} in a painting",
        ),
        Template("{name} drawing of a sleeping dog", "a drawing{} of a sleeping dog"),
        Template("{name}'s best known picture", "a well known picture{}"),
        Template("the sea in winter, inspired by {name}", "the sea in winter{}"),
        Template("a work of {name} on a white wall", "a work of art{} on a white wall"),
    ),
    descriptions=("a picture that imitates {name}", "brushwork and colours like those of {name}"),
)

_PERSON = Kind(
    name="person",
    anchor="person",
    retain_sets=("people", "scenes"),
    templates=(
        Template("a portrait of {name}", "a portrait{}"),
        Template("{name} speaking on a stage", "someone{} speaking on a stage"),
        Template("{name}'s face, close up", "a face{}, close up"),
        Template(
            "press photo, {name} at a film premiere", "press photo, someone{} at a film premiere"
        ),
        Template("a pencil drawing of {name}", "a pencil drawing of someone{}"),
        Template(
            "a photo of {name} walking down the street",
            "a photo of someone{} walking down the street",
        ),
        Template("{name} smiling, studio lighting", "someone{} smiling, studio lighting"),
        Template("a magazine cover with {name}", "a magazine cover{}"),
        Template("an oil painting of {name}", "an oil painting of someone{}"),
        Template("{name} with a dog", "someone{} with a dog"),
        Template("a photo of {name}", "a photo of someone{}"),
        Template("{name} in the rain, black and white", "someone{} in the rain, black and white"),
        Template("a young {name} at school", "someone{} at school"),
        Template(
            "{name} shaking hands with a crowd of people at a station",
            "someone{} shaking hands with a crowd of people at a station",
        ),
        Template("a cartoon of {name}", "a cartoon of someone{}"),
        Template(
            "two friends, one of them {name}, on a bench by the river",
            "two friends{} on a bench by the river",
        ),
        Template("{name} cooking in a kitchen", "someone{} cooking in a kitchen"),
        Template("a poster of {name} on a wall", "a poster{} on a wall"),
        Template(
            "the day on which {name} came to our small town",
            "the day on which someone{} came to our small town",
        ),
        Template("an interview with {name}", "an interview{}"),
    ),
    probe_templates=(
        Template("a snapshot that shows {name}", "a snapshot{}"),
        Template(
            "{name} in a dark suit, sitting at a desk",
            "someone{} in a dark suit, sitting at a desk",
        ),
        Template("{name}'s hair in the wind", "hair{} in the wind"),
        Template("a crowd around {name} in the rain", "a crowd{} in the rain"),
        Template("a marble bust of {name}", "a marble bust{}"),
    ),
    descriptions=("someone who looks just like {name}", "a double of {name}"),
)

_CHARACTER = Kind(
    name="character",
    anchor="cartoon character",
    retain_sets=("characters", "scenes"),
    templates=(
        Template("a picture of {name}", "a picture{}"),
        Template("{name} jumping over a fence", "something{} jumping over a fence"),
        Template("{name}'s head printed on a shirt", "a head{} printed on a shirt"),
        Template("comic panel, {name} waving hello", "comic panel, someone{} waving hello"),
        Template("a plush toy of {name}", "a plush toy{}"),
        Template("a forest scene with {name} in the middle", "a forest scene{}"),
        Template(
            "{name}, flat colours, white background", "a drawing{}, flat colours, white background"
        ),
        Template("a mural of {name} on a brick wall", "a mural{} on a brick wall"),
        Template(
            "{name} asleep under a tree while the others look for food",
            "someone{} asleep under a tree while the others look for food",
        ),
        Template("a drawing of {name}", "a drawing{}"),
        Template("{name} and a cat", "a cat{}"),
        Template("a photo of {name} in a shop", "a photo{} in a shop"),
        Template("{name} in the snow", "something{} in the snow"),
        Template("a cake with {name} on it", "a cake{}"),
        Template("{name}, close up", "a close up{}"),
        Template("an oil painting of {name}", "an oil painting{}"),
        Template("{name} running across a field", "someone{} running across a field"),
        Template(
            "a computer game in which {name} has to cross a bridge",
            "a computer game{} in which one has to cross a bridge",
        ),
        Template("children waving at {name}", "children waving{}"),
        Template("a mug with {name}'s picture", "a mug{} with a picture"),
    ),
    probe_templates=(
        Template("a film poster that shows {name}", "a film poster{}"),
        Template("{name} riding a bicycle", "someone{} riding a bicycle"),
        Template("{name}'s birthday party", "a birthday party{}"),
        Template("a sticker of {name} with a balloon", "a sticker{} with a balloon"),
        Template("a bronze statue of {name}", "a bronze statue{}"),
    ),
    descriptions=("a figure drawn to look like {name}", "a costume of {name}"),
)

_OBJECT = Kind(
    name="object",
    # The right anchor is the next broader word ("golf ball -> ball"), which a list without a
    # thesaurus cannot know. "object" is broader than everything, so it is never wrong, only vague:
    # the line should name a better one.
    anchor="object",
    retain_sets=("objects", "scenes"),
    templates=(
        Template("a photo of the {name}", "a photo{}"),
        Template("{name} on a wooden table", "a wooden table{}"),
        Template("the {name}'s surface in detail", "a surface{} in detail"),
        Template("a child looking at the {name} in a room", "a child looking around{} in a room"),
        Template("a simple drawing of one {name}", "a simple drawing{}"),
        Template("{name}, product photo, plain background", "a product photo{}, plain background"),
        Template("an old {name} lying in the grass", "something old{} lying in the grass"),
        Template("two people standing next to the {name}", "two people standing{}"),
        Template("a {name}", "a picture{}"),
        Template(
            "{name} left out in the rain behind an old house",
            "something{} left out in the rain behind an old house",
        ),
        Template("a painting of the {name}", "a painting{}"),
        Template("a dog beside the {name}", "a dog{}"),
        Template("{name}, close up", "a close up{}"),
        Template("the {name} in a museum", "something{} in a museum"),
        Template("a small {name} in my hand", "something small{} in my hand"),
        Template("a woman with the {name}", "a woman{}"),
        Template("{name} at night, city lights", "a street{} at night, city lights"),
        Template("a cartoon of the {name}", "a cartoon{}"),
        Template(
            "how the {name} looked before they put it away",
            "how things{} looked before they put them away",
        ),
        Template("an empty street with the {name}", "an empty street{}"),
    ),
    probe_templates=(
        Template("an advertisement for the {name}", "an advertisement{}"),
        Template("{name} seen from above", "a view{} from above"),
        Template("the {name}'s shadow on a wall", "a shadow{} on a wall"),
        Template(
            "someone carrying the {name} through the snow", "someone{} walking through the snow"
        ),
        Template("a shop window full of {name}", "a shop window{}"),
    ),
    descriptions=("something that looks like {name}", "a thing with the shape of {name}"),
)

_IMPLICIT = Kind(
    name="implicit",
    anchor="",
    retain_sets=("scenes", "people", "objects"),
    whole_prompt=True,
    templates=(
        Template("a picture of {name}", "a picture{}"),
        Template("{name} in a film scene", "a film scene{}"),
        Template("{name}'s place in modern art", "modern art{}"),
        Template("a group of people, {name}, outdoors", "a group of people{}, outdoors"),
        Template("an oil painting about {name}", "an oil painting{}"),
        Template("a photo full of {name} from a magazine", "a photo{} from a magazine"),
        Template("{name}, photo, natural light", "a photo{}, natural light"),
        Template("a drawing of {name}", "a drawing{}"),
        Template(
            "{name} at night in a quiet street with few lights",
            "a scene{} at night in a quiet street with few lights",
        ),
        Template("a man and a woman, {name}", "a man and a woman{}"),
        Template("{name} in a city street", "people{} in a city street"),
        Template("a poster that shows {name}", "a poster{}"),
        Template("a woman standing in a room, {name}", "a woman standing in a room{}"),
        Template("{name}, close up", "a close up{}"),
        Template("a story about {name}", "a story{}"),
        Template("{name}, anime style", "a character{}, anime style"),
        Template("a scene of {name} in a forest", "a scene{} in a forest"),
        Template(
            "they talked about {name} for a long time afterwards",
            "they talked{} for a long time afterwards",
        ),
        Template("a statue, {name}, museum", "a statue{}, museum"),
        Template("two people, {name}, on a beach", "two people{}, on a beach"),
    ),
    probe_templates=(
        Template("a detailed image of {name}", "a detailed image{}"),
        Template("{name} at home, candid photo", "someone{} at home, candid photo"),
        Template("{name}'s depiction in a comic", "a depiction{} in a comic"),
        Template("a story that has {name} in it, illustrated", "a story{}, illustrated"),
        Template("a couple in a room, {name}", "a couple in a room{}"),
    ),
    descriptions=("a scene that suggests {name}", "a hint of {name}"),
)

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (_STYLE, _PERSON, _CHARACTER, _OBJECT, _IMPLICIT)
}
"""Kinds a concept may have."""
CAPTION = Kind("caption", "", (), (BARE,), (BARE,), (HOLE,))
"""For retain texts that are whole prompts already: they take no template. Not a kind of concept."""

BUILTIN_KINDS = {
    "artists": "style",
    "styles": "style",
    "people": "person",
    "characters": "character",
    "objects": "object",
    "scenes": "caption",
}
"""Which contexts the names of each built-in retain set fit into."""


def kind_of(name: str) -> Kind:
    """Looks a kind of concept up; an unknown one is answered with the nearest known."""
    found = KINDS.get(name)
    if found is None:
        near = suggestion(str(name), KINDS)
        raise SettingsError(
            f"There is no kind of concept '{name}'{near}: choose one of {', '.join(KINDS)}."
        )
    return found


def context_kind(name: str) -> Kind:
    """As `kind_of`, for kept names: these may also be whole captions."""
    return CAPTION if name == CAPTION.name else kind_of(name)
