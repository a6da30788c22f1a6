"""What to generate: prompts, seeds and settings, from a setup of the package, from concepts, or
from a file of the user.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import FileError, InputError, UsageError, suggestion
from ..files.schema import load_json, read_bounded
from ..text.concept_list import Concept
from ..text.kinds import KINDS, PLACEHOLDER, kind_of
from ..text.names import (
    WordIndex,
    cell,
    content_lines,
    find_column,
    read_text_file,
    same_name_key,
    table_rows,
)
from ..text.retain_set import builtin_retain

Role = Literal["erase", "keep"]
FOLDER = Path(__file__).parent / "setups"
CAPTIONS, OWN_CAPTIONS = "MS-COCO", "captions of ours"
"""The group of general captions: the user's list, or our own scenes without one."""
_POOLED: dict[Role, str] = {"erase": "erased names", "keep": "protected names"}
"""Groups of setups with hundreds of names: a single name has too few images."""
_PROMPT_COLUMNS = (
    *("prompt", "text", "caption"),
    *("adv_prompt", "adversarial prompt", "sensitive prompt"),
)
_SEED_COLUMNS = ("seed", "sd_seed", "evaluation_seed", "case_seed")
_ROLES: dict[str, Role] = {"erase": "erase", "keep": "keep", "retain": "keep"}
_MAX_CAPTION_BYTES, _MAX_CAPTIONS = 200 << 20, 5_000_000
MAX_IMAGES = 1_000_000


@dataclass(frozen=True)
class Sampling:
    """How an image is generated, in ComfyUI's terms."""

    width: int = 512
    height: int = 512
    steps: int = 20
    cfg: float = 7.5
    sampler: str = "dpmpp_2m"
    scheduler: str = "normal"
    negative: str = ""


@dataclass(frozen=True)
class ImageSpec:
    """One image that every model generates."""

    group: str
    """What it is counted with: a name, or a list of prompts."""
    role: Role
    prompt: str
    seed: int
    concept: str = ""
    """What the original's image should show; empty: nothing that has a name."""


@dataclass(frozen=True)
class PaperTable:
    """Published values, and ours in the same columns."""

    source: str
    columns: tuple[tuple[str, str], ...]
    """(group, measure); the group is empty for measures over all groups."""
    paper: Mapping[str, Sequence[float | None]]
    """Method -> a value per column; None where the paper has none."""
    ours: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Model of this run -> the same."""


@dataclass(frozen=True)
class Setup:
    """Everything to generate, and how to score it."""

    name: str
    title: str
    specs: tuple[ImageSpec, ...]
    labels: Mapping[str, str]
    """Name or anchor -> the text that CLIP compares images with."""
    sampling: Sampling = Sampling()
    table: PaperTable | None = None
    notes: tuple[str, ...] = ()
    missing_lists: Mapping[str, str] = field(default_factory=dict)
    """List that the user could supply -> the group that is left out without it; empty where our own
    list takes its place."""

    def __post_init__(self) -> None:
        count = len(self.specs)
        if not count:
            raise InputError(
                "There is nothing to generate. Give concepts, a setup or a file of prompts.",
                images=0,
            )
        if count > MAX_IMAGES:
            raise InputError(
                f"There are {count:,} images to generate. Generate at most {MAX_IMAGES:,} in one"
                " run.",
                images=count,
            )

    def limited(self, prompts: int | None, seeds: int | None) -> Setup:
        """The first `prompts` prompts of each group, and the first `seeds` seeds of each prompt."""
        retained = []
        counts = dict[str, Counter[str]]()
        for spec in self.specs:
            group = counts.setdefault(spec.group, Counter())
            if spec.prompt not in group and prompts is not None and len(group) >= prompts:
                continue
            group[spec.prompt] += 1
            if seeds is None or group[spec.prompt] <= seeds:
                retained.append(spec)
        return replace(self, specs=tuple(retained))


def available() -> dict[str, str]:
    """The setups that come with the package: name/case -> description."""
    setups = {}
    for file in sorted(FOLDER.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        for case, facts in content["cases"].items():
            erased = facts["erase"]
            names = f"{erased} names" if isinstance(erased, int) else ", ".join(erased)
            setups[f"{file.stem}/{case}"] = (
                f"{content['title']}; erase {names}. {content['source']}."
            )
    return setups


def setup_of_paper(name: str, lists: Mapping[str, Path]) -> Setup:
    """One of the setups that come with the package: tables of papers, and a ladder of prompts.

    Args:
        name: As in `available`.
        lists: Name of a list that we cannot ship -> the user's file of it.
    """
    names = available()
    if name not in names:
        near = suggestion(name, names)
        raise UsageError(f"There is no setup {name!r}{near}. Choose from {', '.join(names)}.")
    stem, case = name.split("/")
    content = json.loads((FOLDER / f"{stem}.json").read_text(encoding="utf-8"))
    facts, extra_lists = content["cases"][case], content.get("lists", {})
    readable: dict[str, str] = dict(extra_lists)
    readable |= {"names": ""} if "pool" in content else {}
    readable |= {"templates": ""} if "names" not in lists else {}  # names come with their prompts
    readable |= {"captions": ""} if content["captions"] else {}
    if unknown := sorted(set(lists) - set(readable)):
        raise UsageError(
            f"The setup {name} reads no list {unknown[0]!r}. Use {', '.join(sorted(readable))}.",
            list=unknown[0],
            lists=sorted(readable),
        )
    specs, erased = _named_specs(content, facts["erase"], lists)
    for group, texts in facts.get("ladder", {}).items():
        for text in texts:
            specs += _seeded(ImageSpec(group, "erase", text, 0, *erased), content["seeds"])
    for list_name, group in extra_lists.items():
        for row in _table_specs(lists[list_name], group) if list_name in lists else ():
            specs.append(replace(row, group=group, role="erase", concept="", seed=row.seed or 1))
    if content["captions"]:
        shipped = "captions" not in lists
        texts = builtin_retain("scenes").names if shipped else _texts(lists["captions"])
        for seed, text in enumerate(texts[: content["captions"]], 1):
            specs.append(ImageSpec(OWN_CAPTIONS if shipped else CAPTIONS, "keep", text, seed))
    kinds, anchors = content.get("kinds", {}), content.get("anchors", {})
    labels = dict[str, str]()
    for concept in dict.fromkeys(spec.concept for spec in specs if spec.concept):
        anchor = anchors.get(concept, content["anchor"]) if concept in erased else ""
        labels |= _labels(concept, kinds.get(concept, content["kind"]), anchor)
    columns = tuple((group, measure) for group, measure in content["columns"])
    return Setup(
        name,
        content["title"],
        tuple(specs),
        labels,
        Sampling(**content["sampling"]),
        PaperTable(content["source"], columns, facts["figures"]),
        (content["about"],),
        {listed: group for listed, group in readable.items() if listed not in lists},
    )


def _named_specs(
    content: Mapping[str, Any], erased: Any, lists: Mapping[str, Path]
) -> tuple[list[ImageSpec], tuple[str, ...]]:
    """The images of a setup's names, and which of the names are erased."""
    if "names" in lists:
        specs = [
            replace(row, group=_POOLED[row.role], seed=row.seed or 1)
            for row in _table_specs(lists["names"])
        ]
        targets = (spec.concept for spec in specs if spec.role == "erase" and spec.concept)
        return specs, tuple(dict.fromkeys(targets))
    if "templates" in lists:
        templates = _texts(lists["templates"])
    else:  # every text with every combination of `{0}`, `{1}`, ... filled in
        rule = content["templates"]
        combinations = itertools.product(rule["texts"], itertools.product(*rule["parts"]))
        templates = tuple(text.format(*words, name=PLACEHOLDER) for text, words in combinations)
    pool = content.get("pool")
    names, seeds = content["names"], dict.fromkeys(content["names"], content["seeds"])
    if pool:  # the first names of one of our lists, in alphabetical order
        listed = sorted(builtin_retain(pool["list"]).names, key=same_name_key)
        erased, kept = listed[:erased], listed[erased : erased + pool["keep"]]
        names = erased + kept
        for members in (erased, kept):
            images = pool["pictures"] // (len(templates) * len(members))
            seeds |= dict.fromkeys(members, max(1, images))
    specs = []
    for name in names:
        role: Role = "erase" if name in erased else "keep"
        group = _POOLED[role] if pool else name
        for template in templates:
            prompt = template.replace(PLACEHOLDER, name)
            specs += _seeded(ImageSpec(group, role, prompt, 0, name), seeds[name])
    return specs, tuple(erased)


def _seeded(spec: ImageSpec, seeds: int) -> list[ImageSpec]:
    return [replace(spec, seed=seed) for seed in range(1, seeds + 1)]


def _labels(name: str, kind: str, anchor: str) -> dict[str, str]:
    """The texts for a name and for what takes its place."""
    neutral = anchor or KINDS[kind].anchor or "something"
    text = "a picture in the style of " if kind == "style" else "a picture of "
    return {label: text + label for label in (name, neutral)}


def setup_of_concepts(
    concepts: Sequence[Concept], kept: Sequence[str], seeds: int, captions: int = 8
) -> Setup:
    """Each concept and alias in prompts that no edit is made from, kept names in the same prompts,
    and some captions.

    Args:
        concepts: What was erased.
        kept: Names that must look as before.
        seeds: Images per prompt.
        captions: Number of general captions.
    """
    specs = list[ImageSpec]()
    labels = dict[str, str]()
    for concept in concepts:
        kind = kind_of(concept.kind)
        target = concept.target
        labels |= _labels(target, kind.name, concept.anchor)
        for phrase in concept.phrases:
            for template in kind.probe_templates:
                prompt = template.fill(phrase).text
                specs += _seeded(ImageSpec(target, "erase", prompt, 0, target), seeds)
    kept_kind = kind_of(concepts[0].kind if concepts else "style")
    for name in kept:
        labels |= _labels(name, kept_kind.name, "")
        for template in kept_kind.probe_templates:
            specs += _seeded(ImageSpec(name, "keep", template.fill(name).text, 0, name), seeds)
    scenes = builtin_retain("scenes").names
    step = max(1, len(scenes) // max(captions, 1))
    for text in scenes[::step][:captions]:
        specs += _seeded(ImageSpec(OWN_CAPTIONS, "keep", text, 0), seeds)
    targets = ", ".join(concept.target for concept in concepts[:3])
    targets += " and others" if len(concepts) > 3 else ""
    title = f"Is it gone, and is the rest still there? {targets}"
    return Setup("concepts", title, tuple(specs), labels)


def setup_of_file(path: Path, concepts: Sequence[Concept], seeds: int) -> Setup:
    """Prompts of a file: one per line, or a table with a column `prompt` and optional columns
    `concept`, `type`, `seed` and `group`. Without a type, a prompt that names a concept asks for
    it, and any other prompt is kept.

    Args:
        path: The file.
        concepts: What was erased.
        seeds: Images per prompt without a seed.
    """
    index = WordIndex(phrase for concept in concepts for phrase in concept.phrases)
    by_phrase = {
        same_name_key(phrase): concept.target for concept in concepts for phrase in concept.phrases
    }
    specs = list[ImageSpec]()
    for spec in _table_specs(path, "prompts"):
        match = index.match(spec.prompt)
        if match is not None and not spec.concept:
            target = by_phrase[same_name_key(match)]
            spec = replace(spec, role="erase", concept=target, group=target)
        specs += [spec] if spec.seed else _seeded(spec, seeds)
    by_target = {concept.target: concept for concept in concepts}
    labels = dict[str, str]()
    for name in dict.fromkeys(spec.concept for spec in specs if spec.concept):
        concept = by_target.get(name) or Concept(name, "", "object")
        labels |= _labels(name, concept.kind, concept.anchor)
    return Setup(path.stem, f"The prompts of {path.name}", tuple(specs), labels)


def _texts(path: Path) -> tuple[str, ...]:
    """Texts of a file: one per line, a column of a table, or the captions of COCO's annotations."""
    if path.suffix.lower() == ".json":
        limit = _MAX_CAPTION_BYTES
        content = load_json(read_bounded(path, limit), str(path), limit, containers=_MAX_CAPTIONS)
        rows = content.get("annotations") if isinstance(content, dict) else content
        rows = rows if isinstance(rows, list) else []
        texts = [row.get("caption") if isinstance(row, dict) else row for row in rows]
    else:
        texts = [spec.prompt for spec in _table_specs(path)]
    stripped = tuple(text.strip() for text in texts if isinstance(text, str))
    if not texts or len(stripped) < len(texts):
        raise FileError(f"There are no texts in {path}. Give COCO's annotations, or lines of text.")
    return stripped


def _table_specs(path: Path, group: str = "") -> Iterator[ImageSpec]:
    """One image per row. Seed 0: the row has none. Without a group, the concept is the group."""
    text = read_text_file(path)
    if path.suffix.lower() not in (".csv", ".tsv"):
        for _, line in content_lines(text, comments=False):
            yield ImageSpec(group, "keep", line, 0)
        return
    header, rows = table_rows(text, path.name)
    prompt_column = find_column(header, _PROMPT_COLUMNS, path.name)
    seed_column = next((header.index(name) for name in _SEED_COLUMNS if name in header), None)
    columns = {name: header.index(name) for name in ("concept", "type", "group") if name in header}
    for number, row in rows:
        concept = cell(row, columns.get("concept")).strip()
        role = cell(row, columns.get("type")).strip().casefold()
        if role and role not in _ROLES:
            reason = f"the type is {role!r}; write erase or keep"
            raise InputError(f"{path.name}, line {number}: {reason}.", line=number, type=role)
        text = cell(row, seed_column)
        try:
            seed = int(float(text)) if text.strip() else 0  # some programs write `7.0`
        except (ValueError, OverflowError):
            seed = -1
        if not 0 <= seed < 2**63:
            reason = f"the seed is {text!r}: use one from 0 to {2**63 - 1}"
            raise InputError(f"{path.name}, line {number}: {reason}.", line=number, seed=text)
        yield ImageSpec(
            group=cell(row, columns.get("group")).strip() or concept or group,
            role=_ROLES.get(role, "keep"),
            prompt=cell(row, prompt_column).strip(),
            seed=seed,
            concept=concept,
        )
