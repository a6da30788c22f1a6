"""A recipe: the stored form of a job, in JSON or YAML. It repeats an erasure on another model.

An erase writes one in full; a person may write one by hand, where everything but `concepts` has a
default. For `speed-erase run`, it may also name the model and where the results go (`RunFields`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .engine.settings import EraseSettings, priority_of
from .errors import PACKAGE_VERSION, FileError, SettingsError, suggestion
from .files.atomic import write_bytes
from .files.header import MAX_HEADER_BYTES
from .files.schema import Fields, check_version, dump_json, load_json, load_yaml, read_bounded
from .job import Job, check_strength, default_lists, host_settings
from .text.concept_list import (
    Concept,
    ConceptList,
    concept_strength,
    parse_concepts,
    read_concepts,
)
from .text.kinds import kind_of
from .text.names import (
    MAX_ALIASES,
    MAX_CONCEPTS,
    MAX_LISTS,
    MAX_NAMES,
    clean_name,
    fold,
    has_invisible,
    invisible_note,
    quoted,
)
from .text.plan import RowPlan
from .text.retain_set import (
    RetainSet,
    builtin_retain,
    builtin_retain_sets,
    read_retain,
    retain_from_names,
    retain_from_texts,
    union,
)
from .text.tokens import Position

SCHEMA = "speed.recipe"
VERSION = "1.0"
MAX_BYTES = 16_000_000
MAX_HISTORY = 50
"""Most earlier recipes that a recipe remembers."""
_MAX_CONTEXTS = 1_000
_MAX_PATHS = 10_000
_OWN_HEADER = 1_000_000
"""Bytes of a header that are left to a model whose own header is not known."""
_POSITIONS = ("positions", "retain_positions")
_TEXTS = ("family", "package_version", "base_hash", "encoder_hash")
_STORED = (
    *("schema", "version", "concepts", "retain", "settings", "contexts", "rows", "strength"),
    *("clip_skip", "names", "history", "blocklists", *_TEXTS),
)
_WRITTEN_BY_HAND = ("kind", "retain_limit")
_RUN = (
    *("model", "output", "save", "name", "force", "strict", "no_names"),
    *("text_encoders", "tokenizer", "cache"),
)
_CONCEPT = ("target", "anchor", "kind", "aliases", "strength")
_RETAIN = ("label", "sha256", "kind", "names")


@dataclass(frozen=True)
class RecipeConcept:
    target: str
    anchor: str
    kind: str
    aliases: tuple[str, ...] = ()
    strength: float = 1.0
    """Left out of the stored form where it is 1."""

    def content(self) -> dict[str, Any]:
        """Its stored form."""
        values = dict(vars(self))
        if self.strength == 1:
            del values["strength"]
        return values


@dataclass(frozen=True)
class RecipeRetain:
    """One list of names that must survive."""

    label: str
    """Name of a built-in list, or what the user's list was called."""
    sha256: str
    """Of its names, to detect that a list has changed."""
    kind: str = ""
    names: tuple[str, ...] | None = None
    """The names of a user's list; None for a built-in one. In a history, empty: the hash identifies
    the list."""


@dataclass(frozen=True)
class RunFields:
    """What `speed-erase run` also reads from a recipe. Never stored in a file that we write."""

    models: tuple[Path, ...] = ()
    output: Path | None = None
    """Folder for the results."""
    save: tuple[str, ...] = ()
    """Products to write; empty means all."""
    name: str = ""
    force: bool = False
    strict: bool = False
    no_names: bool = False
    text_encoders: tuple[Path, ...] = ()
    tokenizer: Path | None = None
    cache: bool = True


@dataclass(frozen=True)
class Recipe:
    """See `to_json` for the stored form; every field but `concepts` and `settings` may be empty."""

    concepts: tuple[RecipeConcept, ...]
    settings: dict[str, Any]
    """Plain values of the solver's settings."""
    contexts: tuple[str, ...] = ()
    """Templates the rows were taken from, with `{name}` for the name."""
    rows: dict[str, Any] = field(default_factory=dict)
    """Plain values of the choice of token rows."""
    retain: tuple[RecipeRetain, ...] = ()
    strength: float = 1.0
    clip_skip: int | None = None
    family: str = ""
    package_version: str = ""
    base_hash: str = ""
    encoder_hash: str = ""
    has_names: bool = True
    """False for a recipe made by `without_names`: it documents an erasure and cannot repeat it."""
    history: tuple[Recipe, ...] = ()
    """What had been erased from the model before, the oldest first: see `as_earlier`."""
    blocklists: tuple[str, ...] = ()
    """Lists that concepts came from in a fixed version: `name@sha256:digest`."""
    retain_limit: int | None = None
    """Most names to keep; only in recipes written by hand."""
    run: RunFields = RunFields()
    unknown: tuple[str, ...] = field(default=(), compare=False)
    """Fields of a newer version that were not understood; a caller should mention them."""
    newer: bool = field(default=False, compare=False)
    """Whether a newer version of this program wrote it."""

    def to_json(self) -> str:
        """One line of ASCII with sorted keys: equal recipes give equal text. Refuses what could not
        be read back.
        """
        content = self._content() | {"schema": SCHEMA, "version": VERSION}
        text = dump_json(content, "The recipe", MAX_BYTES)
        Recipe._from_fields(Fields(content, "The recipe"))
        return text

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = {name: getattr(self, name) for name in _TEXTS}
        content |= {"settings": self.settings, "contexts": self.contexts, "rows": self.rows}
        content |= {"strength": self.strength, "clip_skip": self.clip_skip}
        content["concepts"] = [concept.content() for concept in self.concepts]
        content["retain"] = [
            {name: value for name, value in vars(entry).items() if value is not None}
            for entry in self.retain
        ]
        if self.blocklists:
            content["blocklists"] = self.blocklists
        if not self.has_names:
            content["names"] = False
        if self.history:
            content["history"] = [earlier._content() for earlier in self.history]
        return content

    @classmethod
    def read(cls, path: Path | str) -> Recipe:
        """Reads a recipe file: YAML by its suffix, else JSON. Paths in it are relative to it."""
        path = Path(path)
        parse = cls.from_yaml if path.suffix.lower() in (".yaml", ".yml") else cls.from_json
        return parse(read_bounded(path, MAX_BYTES), str(path), path.parent)

    @classmethod
    def from_yaml(cls, content: str | bytes, title: str, folder: Path) -> Recipe:
        """Reads a recipe in YAML.

        Args:
            content: The text.
            title: What it is called in messages.
            folder: Where its relative paths start.
        """
        return cls._from_fields(Fields.of(load_yaml(content, title), title), folder)

    @classmethod
    def from_json(
        cls, content: str | bytes, title: str = "The recipe", folder: Path | None = None
    ) -> Recipe:
        """Reads a recipe in JSON.

        Args:
            content: The text.
            title: What it is called in messages.
            folder: Where its relative paths start; without it, the recipe may name no files.
        """
        return cls._from_fields(Fields.of(load_json(content, title, MAX_BYTES), title), folder)

    @classmethod
    def _from_fields(cls, fields: Fields, folder: Path | None = None) -> Recipe:
        if fields.values.get("schema", SCHEMA) != SCHEMA:
            raise FileError(f"{fields.title} is not a recipe: its `schema` is not {SCHEMA!r}.")
        newer = check_version(fields.values.get("version", VERSION), VERSION, fields.title)
        expected = (*_STORED, *_WRITTEN_BY_HAND, *(_RUN if folder is not None else ()))
        if not newer:
            fields.refuse_unknown(expected)
        history = tuple(
            cls._of(item, None, newer) for item in fields.objects("history", MAX_HISTORY)
        )
        return replace(
            cls._of(fields, folder, newer),
            history=history,
            run=RunFields() if folder is None else _run_fields(fields, folder),
            unknown=fields.unknown(expected),
            newer=newer,
        )

    @classmethod
    def _of(cls, fields: Fields, folder: Path | None, newer: bool) -> Recipe:
        """The recipe without its history."""
        kind = fields.text("kind", "style")
        concepts = tuple(
            concept
            for number, item in enumerate(fields.items("concepts", MAX_CONCEPTS), 1)
            for concept in _read_concept(
                item, f"{fields.title}, concept {number}", kind, folder, newer
            )
        )
        if not concepts:
            raise FileError(f"{fields.title} names no concept to erase. Add one below `concepts`.")
        if "retain" in fields.values:
            retain = tuple(
                _read_retain(item, f"{fields.title}, retain {number}", folder, newer)
                for number, item in enumerate(fields.items("retain", MAX_LISTS), 1)
            )
        else:
            retain = tuple(
                RecipeRetain(label, "") for label in default_lists(item.kind for item in concepts)
            )
        return cls(
            concepts=concepts,
            settings=fields.plain("settings"),
            contexts=fields.texts("contexts", _MAX_CONTEXTS),
            rows=fields.plain("rows"),
            retain=retain,
            strength=fields.number("strength", 1.0),
            clip_skip=fields.whole("clip_skip", -100, 100),
            has_names=fields.flag("names", True),
            blocklists=fields.texts("blocklists", MAX_LISTS),
            retain_limit=fields.whole("retain_limit", 0, MAX_NAMES),
            family=fields.text("family", ""),
            package_version=fields.text("package_version", ""),
            base_hash=fields.text("base_hash", ""),
            encoder_hash=fields.text("encoder_hash", ""),
        )

    def write(self, path: Path | str, *, force: bool = False) -> None:
        write_bytes(path, self.to_json().encode(), force=force)

    def check_size(self, source_header: int = _OWN_HEADER) -> None:
        """Refuses, before the work, lists so long that no header could hold the recipe and the
        certificate.
        """
        stored = len(json.dumps(self.to_json()))
        targets = sum(len(json.dumps(json.dumps(item.target))) for item in self.concepts)
        certificate = 2 * (targets + 500 * len(self.concepts)) + 500_000
        if stored + certificate > MAX_HEADER_BYTES - source_header:
            raise FileError(
                f"With these lists the recipe and the report are {stored / 1e6:.1f} MB, too"
                " long for a file header. Shorten them."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a file without names must not contain: targets, aliases, anchors, and
        the user's own kept names.
        """
        names: dict[str, None] = {}
        for recipe in (self, *self.history):
            if recipe.has_names:
                for concept in recipe.concepts:
                    names.update(dict.fromkeys((concept.target, concept.anchor, *concept.aliases)))
                for entry in recipe.retain:
                    names.update(dict.fromkeys(entry.names or ()))
        return tuple(filter(None, names))

    def as_earlier(self) -> Recipe:
        """This recipe in a later one's history, where hashes identify users' lists."""
        retain = tuple(
            entry if entry.names is None else replace(entry, names=()) for entry in self.retain
        )
        return replace(self, retain=retain, contexts=(), history=(), run=RunFields(), unknown=())

    def without_names(self) -> Recipe:
        """The recipe with numbers instead of names."""
        history = tuple(earlier.without_names() for earlier in self.history)
        if not self.has_names:
            return replace(self, history=history)
        concepts = []
        for number, concept in enumerate(self.concepts, 1):
            aliases = (f"concept {number}, alias {i + 1}" for i in range(len(concept.aliases)))
            anchor = f"anchor {number}" if concept.anchor else ""
            target = f"concept {number}"
            concepts.append(replace(concept, target=target, anchor=anchor, aliases=tuple(aliases)))
        retain, count = [], 0
        for number, entry in enumerate(self.retain, 1):
            if entry.names is not None:
                names = tuple(f"name {count + i}" for i in range(1, len(entry.names) + 1))
                entry = RecipeRetain(f"list {number}", "", entry.kind, names)
                count += len(names)
            retain.append(entry)
        return replace(
            self,
            concepts=tuple(concepts),
            retain=tuple(retain),
            history=history,
            has_names=False,
            blocklists=(),
        )


def _read_concept(
    item: object, title: str, kind: str, folder: Path | None, newer: bool
) -> list[RecipeConcept]:
    """The concepts of one entry: a typed line, an object, or a file of them."""
    if isinstance(item, (int, float)):
        raise FileError(f"{title} must be text. Put it in quotes.")
    if isinstance(item, str):
        return [_stored_concept(concept) for concept in parse_concepts(item, kind, title)]
    fields = Fields.of(item, title)
    if "file" in fields.values and folder is not None:
        fields.refuse_unknown(("file",))
        listed = read_concepts(_path(fields.text("file"), folder), kind)
        return [_stored_concept(concept) for concept in listed]
    if not newer:
        fields.refuse_unknown(_CONCEPT)
    target = fields.text("target")
    if not fold(target):
        raise FileError(f"{title} has an empty target. Write the name to erase.")
    kind = fields.text("kind", kind)
    anchor = fields.text("anchor") if "anchor" in fields.values else kind_of(kind).anchor
    aliases = fields.texts("aliases", MAX_ALIASES)
    strength = fields.number("strength", 1.0)
    return [RecipeConcept(target, anchor, kind, aliases, concept_strength(f"{strength:g}", title))]


def _read_retain(item: object, title: str, folder: Path | None, newer: bool) -> RecipeRetain:
    """One entry: the name of a built-in list, an object, or a file."""
    if isinstance(item, str):
        labels = builtin_retain_sets()
        if item not in labels:
            raise FileError(
                f"{title}: there is no built-in list {item[:100]!r}{suggestion(item, labels)}."
                f" Choose from {', '.join(labels)}."
            )
        return RecipeRetain(item, "")
    fields = Fields.of(item, title)
    if "file" in fields.values and folder is not None:
        fields.refuse_unknown(("file", "column", "kind"))
        names = read_retain(_path(fields.text("file"), folder), fields.text("column", ""))
        source = names.sources[0]
        return RecipeRetain(source.label, source.sha256, fields.text("kind", ""), names.names)
    if not newer:
        fields.refuse_unknown(_RETAIN)
    stored = fields.values.get("names") is not None
    return RecipeRetain(
        fields.text("label", "typed" if stored else None),
        fields.text("sha256", ""),
        fields.text("kind", ""),
        fields.texts("names", MAX_NAMES) if stored else None,
    )


def _run_fields(fields: Fields, folder: Path) -> RunFields:
    models, text_encoders = (
        tuple(_path(text, folder) for text in fields.texts(name, _MAX_PATHS))
        for name in ("model", "text_encoders")
    )
    output, tokenizer = (
        _path(fields.text(name), folder) if name in fields.values else None
        for name in ("output", "tokenizer")
    )
    return RunFields(
        models=models,
        output=output,
        save=fields.texts("save", 10),
        name=fields.text("name", ""),
        force=fields.flag("force"),
        strict=fields.flag("strict"),
        no_names=fields.flag("no_names"),
        text_encoders=text_encoders,
        tokenizer=tokenizer,
        cache=fields.flag("cache", True),
    )


def _path(text: str, folder: Path) -> Path:
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:  # ~name of a user that does not exist
        raise FileError(
            f"There is no home folder for {text[:80]!r}. Write the whole path."
        ) from None


@dataclass(frozen=True)
class StoredJob:
    """A job, and what a recipe adds about carrying it out."""

    job: Job
    strength: float = 1.0
    clip_skip: int | None = None
    notes: tuple[str, ...] = ()
    """What differs from the day the recipe was written, one sentence each."""


def recipe_of(
    job: Job,
    *,
    strength: float = 1.0,
    clip_skip: int | None = None,
    family: str = "",
    history: Sequence[Recipe] = (),
) -> Recipe:
    """Everything that determines the edit, and which kind of model it is for.

    Args:
        job: What was asked for.
        strength: What the edit is applied with.
        clip_skip: Hidden layer of the text encoder; None for the model's default.
        family: Name of the model's architecture.
        history: Recipes of what was erased from the model before.
    """
    return Recipe(
        concepts=tuple(map(_stored_concept, job.concepts)),
        settings=job.settings.to_dict(),
        contexts=_contexts(job),
        rows=_plan_values(job.plan),
        retain=_stored_retain(job.retain),
        strength=float(strength),
        clip_skip=clip_skip,
        family=family,
        package_version=PACKAGE_VERSION,
        history=tuple(history),
        blocklists=job.blocklists,
    )


def job_of(recipe: Recipe, title: str = "The recipe") -> StoredJob:
    """The job that a recipe describes. Every value is checked before any work."""
    if not recipe.has_names:
        raise FileError(
            f"{title} was written without names, so it cannot be repeated. Use the recipe that has"
            " them."
        )
    notes = [f"{title} has an unknown field {name!r}, which is ignored." for name in recipe.unknown]
    notes += _history_notes(recipe, title)
    concepts = ConceptList(
        tuple(_concept(item, number, title) for number, item in enumerate(recipe.concepts, 1))
    )
    settings = _settings(recipe, title, notes)
    retain = _retain(recipe.retain, title, notes)
    if recipe.retain_limit is not None:
        retain = retain.limit(recipe.retain_limit)
    cleaned = [name for concept in concepts for name in concept.cleaned]
    notes += [*([invisible_note(cleaned)] if cleaned else ()), *retain.notes]
    job = Job.of(tuple(concepts), retain, settings)
    plan = _plan(recipe.rows, job.plan, title)
    job = replace(job, plan=plan, blocklists=recipe.blocklists)
    if recipe.contexts and recipe.contexts != _contexts(job):
        notes.append(
            f"{title} was written with other prompt templates: the result will differ a little."
        )
    clip_skip = recipe.clip_skip
    with _titled(title):
        strength = check_strength(recipe.strength)
        if clip_skip == 0:
            raise SettingsError(
                "Invalid clip_skip 0. Use 1 for the last layer, 2 for the one before."
            )
    return StoredJob(job, strength, clip_skip and -abs(clip_skip), tuple(notes))


@contextmanager
def _titled(title: str) -> Iterator[None]:
    """Settings errors begin with the title of the recipe."""
    try:
        yield
    except SettingsError as fault:
        raise SettingsError(f"{title}: {fault}") from fault


def same_form(first: Recipe, second: Recipe) -> bool:
    """Whether two recipes are equal up to the model and the program version: with names they ask
    for the same edit; without names, different jobs can have equal recipes.
    """
    contents = []
    for recipe in (first, second):
        content = replace(recipe, history=())._content()
        contents.append({name: content[name] for name in content if name not in _TEXTS})
    return contents[0] == contents[1]


def _history_notes(recipe: Recipe, title: str) -> list[str]:
    count, recipes = sum(len(earlier.concepts) for earlier in recipe.history), len(recipe.history)
    if not count:
        return []
    concepts_text = "another concept" if count == 1 else f"{count:,} other concepts"
    recipes_text = "that recipe" if recipes == 1 else f"those {recipes} recipes"
    return [
        f"{title} was made on a model from which {concepts_text} had been erased before: for the"
        f" same result, apply {recipes_text} first."
    ]


def _contexts(job: Job) -> tuple[str, ...]:
    """All templates that the model's family may choose from."""
    kinds = [kind_of(kind) for kind in dict.fromkeys(concept.kind for concept in job.concepts)]
    plans = [job.plan.prompted(usual) for usual in ("sentences", "tags", "at-tags", "mixed")]
    texts = (t.text for plan in plans for kind in kinds for t in plan.solve_templates(kind))
    return tuple(dict.fromkeys(texts))


def _stored_concept(concept: Concept) -> RecipeConcept:
    return RecipeConcept(
        concept.target, concept.anchor, concept.kind, concept.aliases, concept.strength
    )


def _concept(stored: RecipeConcept, number: int, title: str) -> Concept:
    where = f"{title}, concept {number}"
    kind_of(stored.kind)
    written = (stored.target, stored.anchor, *stored.aliases)
    target, anchor, *aliases = [clean_name(name, where) for name in written]
    cleaned = tuple(fold(name) for name in written if has_invisible(name))
    names = tuple(filter(None, aliases))
    concept = Concept(target, anchor, stored.kind, names, number, title, cleaned)
    return replace(concept, strength=stored.strength)


def _settings(recipe: Recipe, title: str, notes: list[str]) -> EraseSettings:
    """The stored settings over those of their preset."""
    values = dict(recipe.settings)
    preset = values.pop("preset", values.pop("preset_name", "auto"))
    budget = values.pop("priority", values.get("drift_budget"))
    if budget is not None:
        values["drift_budget"] = priority_of(budget) if isinstance(budget, str) else budget
    if recipe.newer:
        expected = {item.name for item in dataclasses.fields(EraseSettings)}
        for name in sorted(values.keys() - expected):
            notes.append(f"{title} has an unknown setting {name!r}, which is ignored.")
            del values[name]
    with _titled(title):
        return host_settings(str(preset), **values)


def _stored_retain(retain: RetainSet) -> tuple[RecipeRetain, ...]:
    """Built-in lists by name where that gives the same set again; users' lists, and shortened ones,
    in full.
    """

    def in_full(index: int) -> RecipeRetain:
        source, origins = retain.sources[index], zip(retain.names, retain.origins, strict=True)
        names = [name for name, origin in origins if origin == index]
        subset = retain_from_names(names, source.label, source.kind)
        return RecipeRetain(source.label, subset.sources[0].sha256, source.kind, subset.names)

    builtin = builtin_retain_sets()
    by_name = tuple(
        RecipeRetain(source.label, source.sha256, source.kind)
        if source.label in builtin
        else in_full(index)
        for index, source in enumerate(retain.sources)
    )
    notes: list[str] = []
    if _retain(by_name, "", notes).names == retain.names and not notes:
        return by_name
    return tuple(map(in_full, range(len(retain.sources))))


def _retain(stored: tuple[RecipeRetain, ...], title: str, notes: list[str]) -> RetainSet:
    sets = []
    for entry in stored:
        label = quoted(entry.label)
        if entry.names is not None:
            lines = [(f"{title}, retain list {label}", name) for name in entry.names]
            sets.append(retain_from_texts(lines, entry.label, entry.kind))
            continue
        sets.append(builtin_retain(entry.label))
        if entry.sha256 and sets[-1].sources[0].sha256 != entry.sha256:
            notes.append(f"The built-in list {label} has changed since {title} was written.")
    return union(sets)


def _plan_values(plan: RowPlan) -> dict[str, Any]:
    values = {item.name: getattr(plan, item.name) for item in dataclasses.fields(plan)}
    for name in _POSITIONS:
        values[name] = [position.name for position in Position if position in values[name]]
    return values


def _plan(values: Mapping[str, Any], base: RowPlan, title: str) -> RowPlan:
    """The stored choice of rows over that of the settings."""
    changes: dict[str, Any] = {}
    with _titled(title):
        for item in dataclasses.fields(base):
            if item.name not in values:
                continue
            value = values[item.name]
            if item.name in _POSITIONS:
                value = _positions(value)
            if type(value) is not type(getattr(base, item.name)):
                raise SettingsError(
                    f"{item.name!r} is {str(value)[:40]!r}, which is the wrong type of value."
                )
            changes[item.name] = value
        return replace(base, **changes)


def _positions(value: Any) -> Position:
    expected = {position.name: position for position in Position}
    total = Position(0)
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str) or name not in expected:
            raise SettingsError(
                f"{str(name)[:40]!r} is not a token position. Choose from"
                f" {', '.join(map(str, expected))}."
            )
        total |= expected[name]
    return total
