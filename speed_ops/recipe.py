"""The recipe: everything needed to repeat an erasure on another checkpoint, and nothing
model-sized.

With a salt, names become hashes: such a recipe documents an erasure without saying what was erased.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .errors import FileError
from .files.atomic import write_bytes
from .files.redaction import Redactor, is_hash, refuse_leaks
from .files.untrusted import Fields, check_version, dump_json, load_json
from .text.names import MAX_ALIASES, MAX_CONCEPTS, MAX_LISTS, MAX_NAMES, fold

SCHEMA = "speed.recipe"
VERSION = "1.0"
MAX_BYTES = 16_000_000
_MAX_CONTEXTS = 1_000
"""Templates; a job has a few dozen."""
MAX_HISTORY = 50
"""Most earlier recipes that a recipe remembers."""

_PLAIN = ("settings", "contexts", "rows", "family", "package_version", "base_hash", "encoder_hash")
_KNOWN = ("schema", "version", "concepts", "retain", "seed", "redacted", "history", *_PLAIN)


@dataclass(frozen=True)
class RecipeConcept:
    """One thing to erase and what it becomes."""

    target: str
    anchor: str
    kind: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecipeRetain:
    """One list of names that must survive."""

    label: str
    """Name of a built-in list, or what the user's list was called."""
    sha256: str
    """Of its names: tells whether the list is still the one that was used."""
    kind: str = ""
    names: tuple[str, ...] | None = None
    """The names themselves for a user's list, which nobody else has; None for a built-in one.
    Earlier recipes have no names here: the hash tells which list it was."""


@dataclass(frozen=True)
class Recipe:
    """See `to_json` for the stored form; every field but `concepts` and `settings` may be empty."""

    concepts: tuple[RecipeConcept, ...]
    settings: dict[str, Any]
    """Plain values of the solver's settings."""
    seed: int = 0
    contexts: tuple[str, ...] = ()
    """Templates the rows were taken from, with `{name}` for the name."""
    rows: dict[str, Any] = field(default_factory=dict)
    """Plain values of the choice of token rows."""
    retain: tuple[RecipeRetain, ...] = ()
    family: str = ""
    package_version: str = ""
    base_hash: str = ""
    encoder_hash: str = ""
    redacted: bool = False
    """True when names are salted hashes: the recipe documents an erasure and cannot repeat it."""
    history: tuple[Recipe, ...] = ()
    """What had been erased from the model before, the oldest first: see `as_earlier`."""
    unknown: tuple[str, ...] = field(default=(), compare=False)
    """Fields of a newer version that were not understood; a caller should mention them."""

    def to_json(self) -> str:
        """One line of ASCII with sorted keys: equal recipes give equal text. What could not be read
        back is refused.
        """
        text = dump_json(
            self._content() | {"schema": SCHEMA, "version": VERSION}, "The recipe", MAX_BYTES
        )
        Recipe.from_json(text)
        return text

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = {"redacted": self.redacted, "seed": self.seed}
        content["concepts"] = [vars(concept) for concept in self.concepts]
        content["retain"] = [
            {name: value for name, value in vars(part).items() if value is not None}
            for part in self.retain
        ]
        if self.history:
            content["history"] = [earlier._content() for earlier in self.history]
        return content | {name: getattr(self, name) for name in _PLAIN}

    @classmethod
    def from_json(cls, content: str | bytes, what: str = "The recipe") -> Recipe:
        """Read a recipe that anybody may have written; newer minor versions and unknown fields are
        accepted.
        """
        fields = Fields.of(load_json(content, what, MAX_BYTES), what)
        if fields.values.get("schema") != SCHEMA:
            raise FileError(f"{what} is not a recipe: its `schema` is not {SCHEMA!r}.")
        check_version(fields.values.get("version"), VERSION, what)
        history = tuple(cls._of(item) for item in fields.objects("history", MAX_HISTORY))
        return replace(cls._of(fields), history=history, unknown=fields.unknown(_KNOWN))

    @classmethod
    def _of(cls, fields: Fields) -> Recipe:
        """One recipe, later or earlier, without its history."""
        concepts = tuple(_concept(item) for item in fields.objects("concepts", MAX_CONCEPTS))
        if not concepts:
            raise FileError(f"{fields.what} names no concept to erase.")
        return cls(
            concepts=concepts,
            settings=fields.plain("settings"),
            seed=fields.number("seed"),
            contexts=fields.texts("contexts", _MAX_CONTEXTS),
            rows=fields.plain("rows"),
            retain=tuple(_retain(item) for item in fields.objects("retain", MAX_LISTS)),
            family=fields.text("family", ""),
            package_version=fields.text("package_version", ""),
            base_hash=fields.text("base_hash", ""),
            encoder_hash=fields.text("encoder_hash", ""),
            redacted=fields.flag("redacted"),
        )

    @classmethod
    def read(cls, path: Path | str) -> Recipe:
        """Read a recipe file."""
        try:
            with Path(path).open("rb") as handle:
                content = handle.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            raise FileError(
                f"Cannot read {path}: {getattr(error, 'strerror', None) or error}."
            ) from error
        return cls.from_json(content, str(path))

    def write(self, path: Path | str, *, force: bool = False) -> None:
        """Write a recipe file, atomically."""
        write_bytes(path, self.to_json().encode(), force=force)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a redacted file must not show: targets, aliases, anchors, and users' own
        kept names.
        """
        found: dict[str, None] = {}
        for recipe in (self, *self.history):
            for one in recipe.concepts:
                found.update(dict.fromkeys((one.target, one.anchor, *one.aliases)))
            for part in recipe.retain:
                found.update(dict.fromkeys(part.names or ()))
        return tuple(name for name in found if name and not is_hash(name))

    def as_earlier(self) -> Recipe:
        """This recipe in a later one's history: without the names of users' lists, which their
        hashes stand for.
        """
        retain = tuple(
            part if part.names is None else replace(part, names=()) for part in self.retain
        )
        return replace(self, retain=retain, contexts=(), history=(), unknown=())

    def redacted_with(self, salt: bytes | str) -> Recipe:
        """The recipe with salted hashes for names. The salt is not stored: who has it can check a
        name, nobody else.
        """
        redact = Redactor(salt)
        hidden = replace(
            self._redacted(redact), history=tuple(one._redacted(redact) for one in self.history)
        )
        refuse_leaks(hidden.to_json(), self.names, "The redacted recipe", self._without_names())
        return hidden

    def _redacted(self, redact: Redactor) -> Recipe:
        concepts = tuple(
            RecipeConcept(
                redact(one.target), redact(one.anchor), one.kind, tuple(map(redact, one.aliases))
            )
            for one in self.concepts
        )
        retain = tuple(
            (
                part
                if part.names is None
                else replace(
                    part,
                    label=redact(part.label),
                    sha256=redact(part.sha256),
                    names=tuple(map(redact, part.names)),
                )
            )
            for part in self.retain
        )
        return replace(self, concepts=concepts, retain=retain, redacted=True)

    def _without_names(self) -> str:
        """The words of ours that stand in the recipe's text: kinds, settings, templates, built-in
        lists.
        """
        plain = [
            replace(
                recipe,
                concepts=tuple(RecipeConcept("", "", one.kind) for one in recipe.concepts),
                retain=tuple(
                    p if p.names is None else RecipeRetain("", "", p.kind, ())
                    for p in recipe.retain
                ),
                history=(),
            )._content()
            for recipe in (self, *self.history)
        ]
        return json.dumps({"schema": SCHEMA, "version": VERSION, "history": plain})


def _concept(fields: Fields) -> RecipeConcept:
    target = fields.text("target")
    if not fold(target):
        raise FileError(f"{fields.what} has an empty target.")
    return RecipeConcept(
        target,
        fields.text("anchor", ""),
        fields.text("kind", ""),
        fields.texts("aliases", MAX_ALIASES),
    )


def _retain(fields: Fields) -> RecipeRetain:
    values: Mapping[str, Any] = fields.values
    names = fields.texts("names", MAX_NAMES) if values.get("names") is not None else None
    return RecipeRetain(
        fields.text("label"), fields.text("sha256", ""), fields.text("kind", ""), names
    )
