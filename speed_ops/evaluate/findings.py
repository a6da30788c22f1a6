"""What an evaluation found: every measure of every model, a verdict for every prompt, and the
paper's table beside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..progress import Progress
from ..provenance import package_version
from ..text.names import same_name_key
from .judges import GivenClassifier, Judgements, Lpips, NudeNet, Seer, hashed
from .measures import (
    STILL_THERE,
    Figure,
    Frame,
    Pixels,
    Rows,
    Verdict,
    cosines,
    frame_fault,
    frechet,
    mean,
    nearest,
    of_features,
    overall,
    share,
    verdict_on_drift,
    verdict_on_erased,
    verdict_on_kept,
)
from .painters import Model
from .pictures import Album, picture_key
from .setup import PaperTable, Setup, Shot

VERSION = "1.0"
ORIGINAL = "original"
_AT_ONCE = 32
"""Pictures in memory at a time."""
_NUDITY = ("", "nudity", "nude", "naked")
"""Concepts that are there when NudeNet finds something; nothing: prompts of a list that aims at
it.
"""
_OF_PAIRS = ("FID", "drift", "LPIPS")
"""Measures that compare a model with the original."""
_PERCENT = ("Acc_e", "Acc_r", "H_o")
"""Measures that the paper's tables give in percent."""


@dataclass(frozen=True)
class Judges:
    """Who is asked; each may be missing, and its measures with it."""

    clip: Seer | None = None
    """Scores, drift, and recognition where there is no classifier."""
    features: Seer | None = None
    """For the Frechet distance; CLIP's features where there are none."""
    classifier: GivenClassifier | None = None
    nudity: NudeNet | None = None
    lpips: Lpips | None = None

    def about(self) -> dict[str, str]:
        """What each of them is."""
        found = {
            "CS, drift": self.clip.about if self.clip else "",
            "recognition": (
                self.classifier.about
                if self.classifier
                else (
                    f"zero-shot by {self.clip.about}"
                    if self.clip is not None and self.clip.joint
                    else ""
                )
            ),
            self.distance: (self.features or self.clip).about if self.features or self.clip else "",  # type: ignore[union-attr]
            "nudity": self.nudity.about if self.nudity else "",
            "LPIPS": self.lpips.about if self.lpips else "",
        }
        return {name: text for name, text in found.items() if text}

    @property
    def distance(self) -> str:
        """What the Frechet distance is called: only one of features that were given may stand
        beside published ones.
        """
        return "FID" if self.features is not None else "Frechet (CLIP)"


@dataclass
class _Seen:
    """What the judges say about single pictures, by their keys."""

    frames: dict[str, Frame] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    """Of the pixels, for what is kept of earlier judgements."""
    clip: dict[str, Rows] = field(default_factory=dict)
    features: dict[str, Rows] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """What a picture shows, folded for comparison."""
    exposed: dict[str, bool] = field(default_factory=dict)
    texts: dict[str, Rows] = field(default_factory=dict)


@dataclass(frozen=True)
class _Pair:
    """The same prompt and seed, drawn by the original and by an erased model."""

    shot: Shot
    before: str
    after: str


def evaluate(
    setup: Setup,
    original: Model,
    erased: Sequence[Model],
    album: Album,
    judges: Judges,
    known: Judgements,
    *,
    headers: Mapping[str, Mapping[str, Any]],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Everything that was found, as plain values. `headers`: label -> what the model's file says
    about its erasure.
    """
    models = [original, *erased]
    keys = {
        model.label: [picture_key(model, shot, setup.sampling) for shot in setup.shots]
        for model in models
    }
    every = list(dict.fromkeys(key for found in keys.values() for key in found))
    seen = _look(setup, every, album, judges, known, progress)
    results = {}
    for model in models:
        pairs = [
            _Pair(*three)
            for three in zip(setup.shots, keys[original.label], keys[model.label], strict=True)
        ]
        apart = _apart(pairs, seen, judges, album, known)
        results[model.label] = _result(pairs, seen, judges, apart)
    return {
        "version": VERSION,
        "package_version": package_version(),
        "setup": {
            "name": setup.name,
            "title": setup.title,
            "notes": list(setup.notes),
            "anchors": dict(setup.anchors),
        },
        "sampling": vars(setup.sampling),
        "judges": judges.about(),
        "models": [_model_facts(model, headers.get(model.label, {})) for model in models],
        "results": results,
        "table": None if setup.table is None else _table(setup.table, results, models, headers),
        "distance": judges.distance,
        "still_there": STILL_THERE,
    }


def _look(
    setup: Setup,
    keys: Sequence[str],
    album: Album,
    judges: Judges,
    known: Judgements,
    progress: Progress | None,
) -> _Seen:
    """Shows every picture to every judge, a few at a time; faulty frames are shown to nobody."""
    seen = _Seen()
    labels: Rows | None = None
    if judges.clip is not None and judges.clip.joint:
        prompts = list(dict.fromkeys(shot.prompt for shot in setup.shots))
        seen.texts = dict(zip(prompts, _text_rows(judges.clip, prompts, known), strict=True))
        if judges.classifier is None and len(setup.labels) > 1:
            labels = np.stack(_text_rows(judges.clip, list(setup.labels.values()), known))
    for start in range(0, len(keys), _AT_ONCE):
        if progress is not None:
            progress("judge", start, len(keys))
        pictures = dict[str, Pixels]()
        for key in keys[start : start + _AT_ONCE]:
            drawn = album.get(key)
            seen.frames[key], seen.seconds[key] = (
                frame_fault(drawn.pixels, drawn.finite),
                drawn.seconds,
            )
            if seen.frames[key] == "fine":
                pictures[key] = drawn.pixels
                seen.hashes[key] = hashed(drawn.pixels)
        if pictures:
            _ask(judges, pictures, seen, known)
        if labels is not None and pictures:
            best, names = (
                nearest(np.stack([seen.clip[key] for key in pictures]), labels),
                list(setup.labels),
            )
            seen.names |= {
                key: same_name_key(names[place]) for key, place in zip(pictures, best, strict=True)
            }
    if progress is not None:
        progress("judge", len(keys), len(keys))
    return seen


def _text_rows(clip: Seer, texts: Sequence[str], known: Judgements) -> list[Rows]:
    ask = [hashed(text) for text in texts]
    return known.of(
        f"texts {clip.identity}",
        ask,
        lambda places: list(clip.texts([texts[place] for place in places])),
    )


def _ask(judges: Judges, pictures: Mapping[str, Pixels], seen: _Seen, known: Judgements) -> None:
    """What every judge says about these pictures, by their keys."""
    ask, pixels = [seen.hashes[key] for key in pictures], list(pictures.values())

    def said(judge: str, call: Callable[[list[Pixels]], Sequence[Any]]) -> dict[str, Rows]:
        found = known.of(judge, ask, lambda places: call([pixels[place] for place in places]))
        return dict(zip(pictures, found, strict=True))

    if (clip := judges.clip) is not None:
        seen.clip |= said(clip.identity, lambda some: list(clip.pictures(some)))
    if (features := judges.features) is not None:
        seen.features |= said(features.identity, lambda some: list(features.pictures(some)))
    if (classifier := judges.classifier) is not None:
        names = said(f"names {classifier.identity}", classifier.names)
        seen.names |= {key: same_name_key(str(name)) for key, name in names.items()}
    if (nudity := judges.nudity) is not None:
        exposed = said(nudity.about, lambda some: [nudity.exposed(one) for one in some])
        seen.exposed |= {key: bool(one) for key, one in exposed.items()}


def _apart(
    pairs: Sequence[_Pair], seen: _Seen, judges: Judges, album: Album, known: Judgements
) -> dict[tuple[str, str], float]:
    """The perceptual distance of pairs of pictures that are both fine, by their keys."""
    lpips = judges.lpips
    if lpips is None:
        return {}
    two = [
        (pair.before, pair.after)
        for pair in pairs
        if pair.before in seen.hashes and pair.after in seen.hashes
    ]

    def measure(places: list[int]) -> list[float]:
        return [lpips.distance(*(album.get(key).pixels for key in two[place])) for place in places]

    things = [hashed(" ".join(seen.hashes[key] for key in keys)) for keys in two]
    return dict(
        zip(two, (float(one) for one in known.of(lpips.about, things, measure)), strict=True)
    )


def _result(
    pairs: Sequence[_Pair], seen: _Seen, judges: Judges, apart: Mapping[tuple[str, str], float]
) -> dict[str, Any]:
    groups = dict[str, list[_Pair]]()
    for pair in pairs:
        groups.setdefault(pair.shot.group, []).append(pair)
    prompts = [_prompt(found, seen, judges) for found in _by_prompt(pairs)]
    verdicts = Counter(one["verdict"] for one in prompts)
    recognised = {role: [seen.names[pair.after] == same_name_key(pair.shot.concept)
                         for pair in pairs
                         if pair.shot.role == role and pair.shot.concept and pair.after in seen.names]
                  for role in ("erase", "keep")}  # fmt: skip
    gone, stays = recognised["erase"], recognised["keep"]
    return {
        "groups": [_group(name, found, seen, judges, apart) for name, found in groups.items()],
        "overall": {
            "Acc_e": _plain(share(sum(gone), len(gone))),
            "Acc_r": _plain(share(sum(stays), len(stays))),
            "H_o": _plain(overall(gone, stays)),
        },
        "verdicts": dict(verdicts),
        "prompts": prompts,
    }


def _group(
    name: str,
    pairs: Sequence[_Pair],
    seen: _Seen,
    judges: Judges,
    apart: Mapping[tuple[str, str], float],
) -> dict[str, Any]:
    """The measures of one group. Pairs with a faulty frame are left out of all but the count of
    those.
    """
    fine = [pair for pair in pairs if seen.frames[pair.before] == seen.frames[pair.after] == "fine"]
    faults = {when: dict(Counter(frame for pair in pairs if (frame := seen.frames[getattr(pair, when)]) != "fine"))
              for when in ("before", "after")}  # fmt: skip
    found: dict[str, Figure | None] = {}
    if judges.clip is not None and fine:
        before, after = (
            np.stack([seen.clip[getattr(pair, when)] for pair in fine])
            for when in ("before", "after")
        )
        prompts = np.stack([seen.texts[pair.shot.prompt] for pair in fine]) if seen.texts else None
        found |= of_features(before, after, prompts)
    source = seen.features if judges.features is not None else seen.clip
    if source and fine:
        found[judges.distance] = frechet(
            *(
                np.stack([source[getattr(pair, when)] for pair in fine])
                for when in ("before", "after")
            )
        )
    concept = [pair for pair in fine if pair.shot.concept]
    if seen.names and concept:
        for word, when in (("recognised before", "before"), ("recognised", "after")):
            hits = sum(
                seen.names[getattr(pair, when)] == same_name_key(pair.shot.concept)
                for pair in concept
            )
            found[word] = share(hits, len(concept))
    if seen.exposed and fine:
        for word, when in (("nudity before", "before"), ("nudity", "after")):
            found[word] = share(sum(seen.exposed[getattr(pair, when)] for pair in fine), len(fine))
    if apart and fine:
        found["LPIPS"] = mean([apart[pair.before, pair.after] for pair in fine])
    found["seconds"] = mean(
        [seen.seconds[pair.after] for pair in pairs if seen.seconds[pair.after] > 0]
    )
    return {
        "group": name,
        "role": pairs[0].shot.role,
        "pictures": len(pairs),
        "faults": faults,
        "measures": {word: _plain(figure) for word, figure in found.items() if figure is not None},
    }


def _by_prompt(pairs: Sequence[_Pair]) -> Iterator[list[_Pair]]:
    found = dict[tuple[str, str], list[_Pair]]()
    for pair in pairs:
        found.setdefault((pair.shot.group, pair.shot.prompt), []).append(pair)
    yield from found.values()


def _prompt(pairs: Sequence[_Pair], seen: _Seen, judges: Judges) -> dict[str, Any]:
    """One prompt with all its seeds."""
    shots = []
    for pair in pairs:
        one: dict[str, Any] = {"seed": pair.shot.seed, "before": pair.before, "after": pair.after}
        one["frames"] = [seen.frames[pair.before], seen.frames[pair.after]]
        if pair.before in seen.clip and pair.after in seen.clip:
            one["drift"] = max(
                0.0,
                float(1 - cosines(seen.clip[pair.before][None], seen.clip[pair.after][None])[0]),
            )
        if one["frames"] == ["fine", "fine"] and (sight := _sight(pair, seen)) is not None:
            one["seen"] = list(sight)
        shots.append(one)
    shot = pairs[0].shot
    verdict = _verdict(shot, shots, seen, judges)
    facts = {"group": shot.group, "role": shot.role, "prompt": shot.prompt, "concept": shot.concept}
    return {**facts, "verdict": verdict, "pictures": shots}


def _sight(pair: _Pair, seen: _Seen) -> tuple[bool, bool] | None:
    """Whether what the prompt asks for is seen, before and after; None where nobody can tell."""
    if pair.shot.concept and seen.names:
        wanted = same_name_key(pair.shot.concept)
        return seen.names[pair.before] == wanted, seen.names[pair.after] == wanted
    if pair.shot.role == "erase" and seen.exposed and same_name_key(pair.shot.concept) in _NUDITY:
        return seen.exposed[pair.before], seen.exposed[pair.after]
    return None


def _verdict(
    shot: Shot, shots: Sequence[Mapping[str, Any]], seen: _Seen, judges: Judges
) -> Verdict:
    pairs = [one["seen"] for one in shots if "seen" in one]
    if pairs:
        judge = verdict_on_erased if shot.role == "erase" else verdict_on_kept
        return judge([before for before, _ in pairs], [after for _, after in pairs])
    if shot.role == "keep" and judges.clip is not None:
        return verdict_on_drift([one["drift"] for one in shots if "drift" in one])
    judged = bool(seen.names or seen.exposed)
    return (
        "unclear"
        if judged and all(one["frames"] != ["fine", "fine"] for one in shots)
        else "unjudged"
    )


def _table(
    table: PaperTable,
    results: Mapping[str, Any],
    models: Sequence[Model],
    headers: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """The paper's rows and ours under the same columns."""
    ours = []
    for model in models:
        seconds = (headers.get(model.label, {}).get("certificate") or {}).get("seconds") or {}
        values = [_cell(results[model.label], column, seconds) for column in table.columns]
        if model is models[0]:  # whose distance from itself says nothing
            values = [None if measure in _OF_PAIRS else value
                      for value, (_, measure) in zip(values, table.columns, strict=True)]  # fmt: skip
        ours.append({"method": model.label, "values": values})
    return {
        "source": table.source,
        "columns": [list(column) for column in table.columns],
        "paper": [
            {"method": method, "values": list(values)} for method, values in table.figures.items()
        ],
        "ours": ours,
    }


def _cell(
    result: Mapping[str, Any], column: tuple[str, str], seconds: Mapping[str, Any]
) -> dict[str, Any] | None:
    """A figure of ours in the units of the paper's column; None where it was not measured."""
    group, measure = column
    if measure == "seconds to erase":
        spent = [value for value in seconds.values() if isinstance(value, (int, float))]
        return _plain(Figure(sum(spent), None, None, 1, "none")) if spent else None
    found = result["overall"].get(measure) if not group else None
    for one in result["groups"]:
        if one["group"] == group:
            found = one["measures"].get(measure)
    if found is None or measure not in _PERCENT:
        return found
    return {
        **found,
        **{
            key: None if found[key] is None else 100 * found[key]
            for key in ("value", "low", "high")
        },
    }


def _model_facts(model: Model, header: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "label": model.label,
        "kind": model.kind,
        "name": model.name,
        "identity": model.identity,
        "strength": model.strength,
        "certificate": dict(header.get("certificate") or {}),
        "concepts": list(header.get("concepts") or []),
    }


def _plain(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else asdict(figure)
