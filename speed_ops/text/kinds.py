"""Kinds of concepts: each has an anchor, prompts around a name, and names to keep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path

from ..errors import SettingsError, suggestion
from ..inputs import Prompting

PLACEHOLDER = "{name}"
TAG_PLACEHOLDER = "{tag}"
"""A name in lower case with underscores."""
TRIAL_TEMPLATES = 3
"""The last templates of each kind, which no edit is made from."""


@dataclass(frozen=True)
class Prompt:
    """A prompt and where its name is."""

    text: str
    subject_end: int
    """Number of characters up to the end of the name, or of the words that replace it."""
    subject_start: int | None = None
    """Number of characters before the name; None where there is no name."""

    @classmethod
    def bare(cls, name: str) -> Prompt:
        """The name and nothing else."""
        return cls(name, len(name), 0)


@dataclass(frozen=True)
class Template:
    """A prompt with a placeholder for a name, and the same prompt without a name."""

    text: str
    """Contains `{name}` or `{tag}` once."""
    plain: str
    """The prompt with the name left out. `{}` marks the end of the words that replace it."""

    def fill(self, name: str) -> Prompt:
        """The prompt with a name in it; an empty name is left out."""
        if name and TAG_PLACEHOLDER in self.text:
            head, tail = self.text.split(TAG_PLACEHOLDER)
            name = "_".join(name.lower().split())
        else:
            head, tail = self.text.split(PLACEHOLDER) if name else self.plain.split("{}")
        return Prompt(head + name + tail, len(head + name), len(head) if name else None)


BARE = Template(PLACEHOLDER, "{}")
"""The name alone: what the paper encodes."""


@dataclass(frozen=True)
class Kind:
    """What concepts of one kind have in common."""

    name: str
    anchor: str
    """What a target becomes when its line has no anchor; empty: the name is left out."""
    retain_sets: tuple[str, ...]
    """Built-in retain sets used when the user gives none."""
    templates: tuple[Template, ...]
    """Contexts that edits are made from, most different first: the first few are a fair sample. The
    last `TRIAL_TEMPLATES` are reserved for `auto`, which uses them to choose how far to go.
    """
    probe_templates: tuple[Template, ...]
    """Contexts for the certificate. No edit is ever made from them."""
    descriptions: tuple[str, ...]
    """Ways to ask for the concept with more than its name; each contains `{name}`."""
    whole_prompt: bool = False
    """Whether the paper represents it by every row of the bare name's prompt."""
    tags: tuple[Template, ...] = ()
    """As `templates`, for models that are prompted with tags."""
    probe_tags: tuple[Template, ...] = ()
    neighbors: tuple[str, ...] = ()
    """Everyday words that go with such concepts. They are protected, so that erasing an idea does
    not take its neighborhood.
    """

    def prompted(self, prompting: Prompting) -> Kind:
        """The same kind with the templates of a way of prompting."""
        if prompting in ("auto", "sentences") or not self.tags:
            return self
        tags, probes = self.tags, self.probe_tags
        if prompting == "at-tags" and self.name == "style":
            tags, probes = _called_by_at(tags), _called_by_at(probes)
        if prompting == "mixed":
            edit = _in_turn(self.templates[:-TRIAL_TEMPLATES], tags[:-TRIAL_TEMPLATES])
            trial = _in_turn(self.templates[-TRIAL_TEMPLATES:], tags[-TRIAL_TEMPLATES:])
            tags = (*edit, *trial[:TRIAL_TEMPLATES])
            probes = _in_turn(self.probe_templates, probes)
        return replace(self, templates=tags, probe_templates=probes)


def _called_by_at(templates: tuple[Template, ...]) -> tuple[Template, ...]:
    """Tags that call a name by an @ before it, with no other word for "artist"."""
    return tuple(
        Template(
            template.text.replace("artist:", "")
            .replace("by {name}", PLACEHOLDER)
            .replace(TAG_PLACEHOLDER, PLACEHOLDER)
            .replace(PLACEHOLDER, f"@{PLACEHOLDER}"),
            template.plain,
        )
        for template in templates
    )


def _in_turn(first: tuple[Template, ...], second: tuple[Template, ...]) -> tuple[Template, ...]:
    pairs = zip_longest(first, second)
    return tuple(template for template in chain.from_iterable(pairs) if template is not None)


def _read_templates() -> dict[str, tuple[Template, ...]]:
    """{kind, or kind and `unseen`: its templates} of the data file."""
    sections: dict[str, tuple[Template, ...]] = {}
    section = ""
    text = (Path(__file__).resolve().parent / "templates.txt").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            with_name, plain = line.split(" | ")
            sections[section] = (*sections.get(section, ()), Template(with_name, plain))
    return sections


_TEMPLATES = _read_templates()
_NEIGHBORS = {
    "style": ("painting", "drawing", "portrait", "landscape", "canvas", "brush", "museum"),
    "person": ("person", "man", "woman", "face", "portrait", "actor", "smile"),
    "character": ("cartoon", "comic", "toy", "costume", "animal", "child"),
    "object": ("room", "table", "street", "animal", "food", "tool"),
    "theme": (
        "person",
        "woman",
        "man",
        "skin",
        "beach",
        "statue",
        "body",
        "dress",
        "couple",
        "bed",
    ),
}

KINDS: dict[str, Kind] = {
    name: Kind(
        *(name, anchor, retain_sets, _TEMPLATES[name], _TEMPLATES[f"{name} unseen"], descriptions),
        whole_prompt=name == "theme",
        tags=_TEMPLATES[f"{name} tags"],
        probe_tags=_TEMPLATES[f"{name} tags unseen"],
        neighbors=_NEIGHBORS[name],
    )
    for name, anchor, retain_sets, descriptions in (
        (
            "style",
            "art",
            ("artists", "styles", "scenes"),
            ("a picture that imitates {name}", "brushwork and colours like those of {name}"),
        ),
        (
            "person",
            "person",
            ("people", "scenes"),
            ("someone who looks just like {name}", "a double of {name}"),
        ),
        (
            "character",
            "cartoon character",
            ("characters", "scenes"),
            ("a figure drawn to look like {name}", "a costume of {name}"),
        ),
        (
            "object",
            # The right anchor is the next broader word ("golf ball -> ball"), which needs a
            # thesaurus. "object" is broader than everything: never wrong, only vague.
            "object",
            ("objects", "scenes"),
            ("something that looks like {name}", "a thing with the shape of {name}"),
        ),
        (
            "theme",
            "",
            ("scenes", "people", "objects"),
            ("a scene that suggests {name}", "a hint of {name}"),
        ),
    )
}
"""Kinds a concept may have."""
CAPTION = Kind("caption", "", (), (BARE,), (BARE,), (PLACEHOLDER,))
"""For retain texts that are whole prompts and take no template. Not a kind of concept."""

BUILTIN_KINDS = {
    "artists": "style",
    "styles": "style",
    "people": "person",
    "characters": "character",
    "objects": "object",
    "scenes": "caption",
}
"""Kind whose templates fit the names of each built-in retain set."""


def kind_of(name: str) -> Kind:
    """The kind of concept with this name; the error for an unknown one suggests the nearest."""
    if name not in KINDS:
        near = suggestion(str(name), KINDS)
        raise SettingsError(
            f"There is no type of concept '{name}'{near}. Choose one of {', '.join(KINDS)}."
        )
    return KINDS[name]


def context_kind(name: str) -> Kind:
    """As `kind_of`, for kept names: these may also be whole captions."""
    return CAPTION if name == CAPTION.name else kind_of(name)
