"""The recipe: everything needed to repeat an erasure on another checkpoint, and nothing model-sized.

With a salt, names become hashes: such a recipe documents an erasure without saying what was erased.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..concepts.names import MAX_ALIASES, MAX_CONCEPTS, MAX_LISTS, MAX_NAMES
from ..errors import FileError, SettingsError
from .atomic import write_bytes
from .untrusted import Fields, check_version, dump_json, load_json

_MARK = "redacted:"


class Redactor:
    """Replaces names under one salt; the same name gives the same hash, whatever its case and spacing."""

    def __init__(self, salt: bytes | str) -> None:
        self._salt = salt.encode() if isinstance(salt, str) else bytes(salt)
        if not self._salt:
            raise SettingsError(
                "The salt is empty: give some secret text, or names could be guessed from their hashes."
            )

    def __call__(self, name: str) -> str:
        """The hash that stands for `name`; the empty name and hashes stay as they are."""
        if not name or name.startswith(_MARK):
            return name
        folded = " ".join(name.casefold().split())
        return _MARK + hmac.new(self._salt, folded.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]

    def everywhere(self, value: Any, names: Iterable[str]) -> Any:
        """A JSON value with `names` replaced wherever they stand in its texts (not in keys): certificates name them."""
        text = json.dumps(value, ensure_ascii=False, default=str).lower()
        # Only the names that occur: a retain list of 100,000 would make a pattern that takes minutes.
        ordered = sorted({name for name in names if name and _quoted(name) in text}, key=len, reverse=True)
        if not ordered:
            return value
        pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, ordered))})(?!\w)", re.IGNORECASE)
        return self._replace(value, pattern)

    def _replace(self, value: Any, pattern: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: self(match[0]), value)
        if isinstance(value, dict):
            return {key: self._replace(item, pattern) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._replace(item, pattern) for item in value]
        return value


def _quoted(name: str) -> str:
    """A name as it stands in lowered JSON text."""
    return json.dumps(name, ensure_ascii=False)[1:-1].lower()


SCHEMA = "speed.recipe"
VERSION = "1.0"
MAX_BYTES = 16_000_000
_MAX_CONTEXTS = 1_000
"""Templates; a job has a few dozen."""

_KNOWN = (
    "schema",
    "version",
    "concepts",
    "contexts",
    "rows",
    "retain",
    "settings",
    "seed",
    "package_version",
    "family",
)

_KNOWN_HASHES = ("base_hash", "encoder_hash", "redacted")


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
    """The names themselves for a user's list, which nobody else has; None for a built-in one."""


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
    unknown: tuple[str, ...] = field(default=(), compare=False)
    """Fields of a newer version that were not understood; a caller should mention them."""

    def to_json(self) -> str:
        """One line of ASCII with sorted keys: equal recipes give equal text."""
        content: dict[str, Any] = {"schema": SCHEMA, "version": VERSION, "redacted": self.redacted, "seed": self.seed}
        content["concepts"] = [vars(concept) for concept in self.concepts]
        content["retain"] = [
            {name: value for name, value in vars(part).items() if value is not None} for part in self.retain
        ]
        for name in ("settings", "contexts", "rows", "family", "package_version", "base_hash", "encoder_hash"):
            content[name] = getattr(self, name)
        return dump_json(content, "The recipe", MAX_BYTES)

    @classmethod
    def from_json(cls, content: str | bytes, what: str = "The recipe") -> Recipe:
        """Read a recipe that anybody may have written; newer minor versions and unknown fields are accepted."""
        fields = Fields.of(load_json(content, what, MAX_BYTES), what)
        if fields.values.get("schema") != SCHEMA:
            raise FileError(f"{what} is not a recipe: its `schema` is not {SCHEMA!r}.")
        check_version(fields.values.get("version"), VERSION, what)
        concepts = tuple(_concept(item) for item in fields.objects("concepts", MAX_CONCEPTS))
        if not concepts:
            raise FileError(f"{what} names no concept to erase.")
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
            unknown=fields.unknown((*_KNOWN, *_KNOWN_HASHES)),
        )

    @classmethod
    def read(cls, path: Path | str) -> Recipe:
        """Read a recipe file."""
        try:
            with Path(path).open("rb") as handle:
                content = handle.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            raise FileError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
        return cls.from_json(content, str(path))

    def write(self, path: Path | str, *, force: bool = False) -> None:
        """Write a recipe file, atomically."""
        write_bytes(path, self.to_json().encode(), force=force)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a redacted file must not show: targets, aliases, anchors, and users' own kept names."""
        of_concepts = [name for concept in self.concepts for name in (concept.target, concept.anchor, *concept.aliases)]
        return tuple(dict.fromkeys([*of_concepts, *(name for part in self.retain for name in part.names or ())]))

    def redacted_with(self, salt: bytes | str) -> Recipe:
        """The recipe with salted hashes for names. The salt is not stored: who has it can check a name, nobody else."""
        redact = Redactor(salt)
        concepts = tuple(
            RecipeConcept(redact(one.target), redact(one.anchor), one.kind, tuple(map(redact, one.aliases)))
            for one in self.concepts
        )
        retain = tuple(
            part
            if part.names is None
            else replace(
                part, label=redact(part.label), sha256=redact(part.sha256), names=tuple(map(redact, part.names))
            )
            for part in self.retain
        )
        return replace(self, concepts=concepts, retain=retain, redacted=True)


def _concept(fields: Fields) -> RecipeConcept:
    target = fields.text("target")
    if not target.strip():
        raise FileError(f"{fields.what} has an empty target.")
    return RecipeConcept(
        target, fields.text("anchor", ""), fields.text("kind", ""), fields.texts("aliases", MAX_ALIASES)
    )


def _retain(fields: Fields) -> RecipeRetain:
    values: Mapping[str, Any] = fields.values
    names = fields.texts("names", MAX_NAMES) if values.get("names") is not None else None
    return RecipeRetain(fields.text("label"), fields.text("sha256", ""), fields.text("kind", ""), names)
