"""What is to be drawn: prompts, seeds and settings, from the paper's setups, from concepts, or from
a file of yours.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from ..errors import FileError, InputError, UsageError, suggestion
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
"""The group of general captions: the user's list of them, or our own scenes where there is none."""
_LABELS = {
    "style": "a picture in the style of {}",
    "person": "a picture of {}",
    "character": "a picture of {}",
    "object": "a picture of {}",
    "implicit": "a picture of {}",
}
"""What a judge that compares pictures with texts is asked, for each kind; in `{}` a name or an
anchor.
"""
_POOLED: dict[Role, str] = {"erase": "erased names", "keep": "kept names"}
"""Groups of a setup with so many names that each alone has too few pictures."""
_PROMPTS = ("prompt", "text", "caption", "adv_prompt", "adversarial prompt", "sensitive prompt")
_SEEDS = ("seed", "sd_seed", "evaluation_seed", "case_seed")
_ROLES: dict[str, Role] = {"erase": "erase", "keep": "keep", "retain": "keep"}
_COCO_BYTES = 200 << 20
MAX_SHOTS = 1_000_000


@dataclass(frozen=True)
class Sampling:
    """How a picture is drawn, in ComfyUI's words."""

    width: int = 512
    height: int = 512
    steps: int = 20
    cfg: float = 7.5
    sampler: str = "dpmpp_2m"
    scheduler: str = "normal"
    negative: str = ""


@dataclass(frozen=True)
class Shot:
    """One picture, to be drawn by every model."""

    group: str
    """What it is counted with: a name, or a list of prompts."""
    role: Role
    prompt: str
    seed: int
    concept: str = ""
    """What a judge should see in the original's picture; empty: nothing that has a name."""


@dataclass(frozen=True)
class PaperTable:
    """Published figures, to stand beside ours."""

    source: str
    columns: tuple[tuple[str, str], ...]
    """(group, measure); the group is empty for what is measured over all of them."""
    figures: Mapping[str, Sequence[float | None]]
    """Method -> a value for each column; None where the paper has none."""


@dataclass(frozen=True)
class Setup:
    """Everything to draw, and what to ask the judges."""

    name: str
    title: str
    shots: tuple[Shot, ...]
    labels: Mapping[str, str]
    """Name or anchor -> the text that says it, for judges that compare pictures with texts."""
    sampling: Sampling = Sampling()
    table: PaperTable | None = None
    notes: tuple[str, ...] = ()
    anchors: Mapping[str, str] = field(default_factory=dict)
    """Erased concept -> what it becomes."""

    def __post_init__(self) -> None:
        if not self.shots:
            raise InputError(
                "There is nothing to draw: give concepts, a setup or a file of prompts."
            )
        if len(self.shots) > MAX_SHOTS:
            raise InputError(
                f"There are {len(self.shots):,} pictures to draw: draw at most {MAX_SHOTS:,} in one"
                " run."
            )

    @property
    def groups(self) -> dict[str, Role]:
        """In the order in which they are drawn."""
        return {shot.group: shot.role for shot in self.shots}

    def limited(self, prompts: int | None, seeds: int | None) -> Setup:
        """At most so many different prompts in each group, and seeds for each prompt; the first of
        them.
        """
        kept, seen = [], dict[str, Counter[str]]()
        for shot in self.shots:
            known = seen.setdefault(shot.group, Counter())
            if shot.prompt not in known and prompts is not None and len(known) >= prompts:
                continue
            known[shot.prompt] += 1
            if seeds is None or known[shot.prompt] <= seeds:
                kept.append(shot)
        return replace(self, shots=tuple(kept))


def available() -> dict[str, str]:
    """The setups that come with the package: name/case -> what it is."""
    found = {}
    for file in sorted(FOLDER.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        for case, facts in content["cases"].items():
            erased = facts["erase"]
            what = f"{erased} names" if isinstance(erased, int) else ", ".join(erased)
            found[f"{file.stem}/{case}"] = f"{content['title']}; erase {what}. {content['source']}."
    return found


def setup_of_paper(name: str, lists: Mapping[str, Path]) -> Setup:
    """One of the paper's setups; `lists`: what the user has of the lists that are not ours to
    ship.
    """
    known = available()
    if name not in known:
        near = suggestion(name, known)
        raise UsageError(f"There is no setup {name!r}{near}: choose from {', '.join(known)}.")
    stem, case = name.split("/")
    content = json.loads((FOLDER / f"{stem}.json").read_text(encoding="utf-8"))
    wanted = {
        "captions",
        "templates",
        *content.get("lists", {}),
        *(["names"] if "pool" in content else []),
    }
    if unknown := sorted(set(lists) - wanted):
        raise UsageError(
            f"The setup {name} reads no list {unknown[0]!r}: it reads {', '.join(sorted(wanted))}."
        )
    facts, notes = content["cases"][case], [content["about"]]
    shots, erased = _named_shots(content, facts["erase"], lists)
    for list_name, group in content.get("lists", {}).items():
        if list_name in lists:
            rows = _table_shots(lists[list_name], group)
            shots += [
                replace(row, group=group, role="erase", concept="", seed=row.seed or 1)
                for row in rows
            ]
        else:
            notes.append(f"{group} was left out: give its prompts with --list {list_name}=FILE.")
    if content["captions"]:
        shots += _captions(content["captions"], lists.get("captions"), notes)
    kinds, own = content.get("kinds", {}), content.get("anchors", {})
    anchors = {one: own.get(one, content["anchor"]) for one in erased}
    labels = dict[str, str]()
    for one in dict.fromkeys(shot.concept for shot in shots if shot.concept):
        labels |= _labels(one, kinds.get(one, content["kind"]), anchors.get(one, ""))
    table = PaperTable(
        content["source"],
        tuple((group, what) for group, what in content["columns"]),
        facts["figures"],
    )
    sampling = Sampling(**content["sampling"])
    return Setup(
        name, content["title"], tuple(shots), labels, sampling, table, tuple(notes), anchors
    )


def _named_shots(
    content: Mapping[str, Any], erased: Any, lists: Mapping[str, Path]
) -> tuple[list[Shot], tuple[str, ...]]:
    """The pictures of a setup's names, and which of them are erased."""
    pool = content.get("pool")
    if "names" in lists:
        rows = [
            replace(row, group=_POOLED[row.role], seed=row.seed or 1)
            for row in _table_shots(lists["names"])
        ]
        return rows, names_of(rows, "erase")
    templates = (
        _lines(lists["templates"])
        if "templates" in lists
        else tuple(_templates(content["templates"]))
    )
    names, seeds = content["names"], dict.fromkeys(content["names"], content["seeds"])
    if pool:
        names, erased, seeds = _from_pool(pool, erased, len(templates))
    shots = []
    for one in names:
        role: Role = "erase" if one in erased else "keep"
        group = _POOLED[role] if pool else one
        for template in templates:
            prompt = template.replace(PLACEHOLDER, one)
            shots += [Shot(group, role, prompt, seed, one) for seed in range(1, seeds[one] + 1)]
    return shots, tuple(erased)


def _labels(name: str, kind: str, anchor: str) -> dict[str, str]:
    """What a judge is asked about a name, and about what would stand in its place."""
    neutral = anchor or KINDS[kind].anchor or "something"
    return {one: _LABELS[kind].format(one) for one in (name, neutral)}


def setup_of_concepts(
    concepts: Sequence[Concept], kept: Sequence[str], seeds: int, captions: int = 8
) -> Setup:
    """Each concept and each alias in prompts that no edit is made from, kept names in the same, and
    some captions.
    """
    shots, labels, anchors = [], dict[str, str](), dict[str, str]()
    seeds_used = range(1, seeds + 1)
    for concept in concepts:
        kind = kind_of(concept.kind)
        anchors[concept.target] = concept.anchor
        labels |= _labels(concept.target, kind.name, concept.anchor)
        for phrase in concept.phrases:
            for template in kind.probe_templates:
                prompt = template.fill(phrase).text
                shots += [
                    Shot(concept.target, "erase", prompt, seed, concept.target)
                    for seed in seeds_used
                ]
    first = kind_of(concepts[0].kind) if concepts else kind_of("style")
    for name in kept:
        labels |= _labels(name, first.name, "")
        for template in first.probe_templates:
            shots += [
                Shot(name, "keep", template.fill(name).text, seed, name) for seed in seeds_used
            ]
    scenes = builtin_retain("scenes").names
    step = max(1, len(scenes) // max(captions, 1))
    for text in scenes[::step][:captions]:
        shots += [Shot(OWN_CAPTIONS, "keep", text, seed) for seed in seeds_used]
    erased = ", ".join(concept.target for concept in concepts[:3]) + (
        " and others" if len(concepts) > 3 else ""
    )
    title = f"Is it gone, and is the rest still there? {erased}"
    return Setup("concepts", title, tuple(shots), labels, anchors=anchors)


def setup_of_file(path: Path, concepts: Sequence[Concept], seeds: int) -> Setup:
    """Prompts of a file: one a line, or a table with a column `prompt`, and `concept`, `type`,
    `seed`, `group` if there are any. Without a type, a prompt that names a concept asks for it, and
    any other is to stay as it is."""
    index = WordIndex(phrase for concept in concepts for phrase in concept.phrases)
    by_phrase = {
        same_name_key(phrase): concept.target for concept in concepts for phrase in concept.phrases
    }
    shots = []
    for shot in _table_shots(path, "prompts"):
        found = index.match(shot.prompt)
        if found is not None and not shot.concept:
            target = by_phrase[same_name_key(found)]
            shot = replace(shot, role="erase", concept=target, group=target)
        again = [shot.seed] if shot.seed else range(1, seeds + 1)
        shots += [replace(shot, seed=seed) for seed in again]
    kinds = {concept.target: concept for concept in concepts}
    labels = dict[str, str]()
    for name in dict.fromkeys(shot.concept for shot in shots if shot.concept):
        known = kinds.get(name)
        labels |= _labels(name, known.kind if known else "object", known.anchor if known else "")
    anchors = {concept.target: concept.anchor for concept in concepts}
    return Setup(path.stem, f"The prompts of {path.name}", tuple(shots), labels, anchors=anchors)


def _templates(rule: Mapping[str, Any]) -> Iterator[str]:
    """Every text with every combination of the parts in it: `{0}`, `{1}`, ..."""
    texts = [rule["text"]] if isinstance(rule["text"], str) else rule["text"]
    for text in texts:
        for parts in product(*rule["parts"]):
            filled = text
            for number, part in enumerate(parts):
                filled = filled.replace(f"{{{number}}}", part)
            yield filled


def _from_pool(
    pool: Mapping[str, Any], erased: int, templates: int
) -> tuple[list[str], list[str], dict[str, int]]:
    """Names to erase, names to keep and how many seeds each has, from a list of ours: the first by
    the alphabet.
    """
    people = sorted(builtin_retain(pool["list"]).names, key=same_name_key)
    gone, kept = people[:erased], people[erased : erased + pool["keep"]]
    seeds = {name: max(1, pool["pictures"] // (templates * erased)) for name in gone}
    return (
        gone + kept,
        gone,
        seeds | dict.fromkeys(kept, max(1, pool["pictures"] // (templates * len(kept)))),
    )


def _captions(count: int, path: Path | None, notes: list[str]) -> list[Shot]:
    if path is None:
        notes.append(
            "General captions are ours: give MS-COCO's with --list captions=FILE to compare with"
            " the paper."
        )
        texts: Sequence[str] = builtin_retain("scenes").names
    else:
        texts = _lines(path)
    group = OWN_CAPTIONS if path is None else CAPTIONS
    return [Shot(group, "keep", text, number) for number, text in enumerate(texts[:count], 1)]


def _lines(path: Path) -> tuple[str, ...]:
    """Texts of a file: one a line, a column of a table, or the captions of COCO's annotations."""
    if path.suffix.lower() != ".json":
        return tuple(shot.prompt for shot in _table_shots(path))
    try:
        if path.stat().st_size > _COCO_BYTES:
            raise FileError(f"{path} is larger than {_COCO_BYTES >> 20} MB: it was not read.")
        content = json.loads(path.read_bytes())
        rows = content["annotations"] if isinstance(content, dict) else content
        return tuple(str(row["caption"] if isinstance(row, dict) else row).strip() for row in rows)
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise FileError(
            f"Cannot read captions from {path} ({fault}): give COCO's annotations, or text."
        ) from fault


def _table_shots(path: Path, group: str = "") -> Iterator[Shot]:
    """One shot a row. A seed of 0 stands for none, an empty group for the concept's."""
    text = read_text_file(path)
    if path.suffix.lower() not in (".csv", ".tsv"):
        yield from (Shot(group, "keep", line, 0) for _, line in content_lines(text, comments=False))
        return
    header, rows = table_rows(text, path.name)
    prompts = find_column(header, _PROMPTS, path.name)
    seeds = next((header.index(name) for name in _SEEDS if name in header), None)
    others = {
        name: header.index(name) if name in header else None
        for name in ("concept", "type", "group")
    }
    for number, row in rows:
        concept, kind = (
            cell(row, others["concept"]).strip(),
            cell(row, others["type"]).strip().casefold(),
        )
        if kind and kind not in _ROLES:
            raise InputError(
                f"{path.name}, line {number}: the type is {kind!r}; write erase or keep."
            )
        yield Shot(
            group=cell(row, others["group"]).strip() or concept or group,
            role=_ROLES.get(kind, "keep"),
            prompt=cell(row, prompts).strip(),
            seed=_seed(cell(row, seeds), f"{path.name}, line {number}"),
            concept=concept,
        )


def _seed(text: str, where: str) -> int:
    try:
        seed = int(float(text)) if text.strip() else 0
    except (ValueError, OverflowError):
        raise InputError(f"{where}: the seed is {text!r}, which is not a number.") from None
    if not 0 <= seed < 2**63:
        raise InputError(f"{where}: the seed is {seed}: use one from 0 to {2**63 - 1}.")
    return seed


def names_of(shots: Iterable[Shot], role: Role) -> tuple[str, ...]:
    """The names that pictures of one role show, each once."""
    return tuple(
        dict.fromkeys(shot.concept for shot in shots if shot.role == role and shot.concept)
    )
