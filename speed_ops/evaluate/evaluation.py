"""Evaluates generated images: scores them, and turns the scores into measures and verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..progress import Progress
from ..provenance import Provenance
from ..text.names import same_name_key
from .album import Album, image_key
from .backend import ModelRef
from .measures import (
    Features,
    Pixels,
    clip_measures,
    drift,
    frame_state,
    frechet,
    harmonic_measure,
    mean,
    nearest,
    share,
    verdict_on_drift,
    verdict_on_erased,
    verdict_on_kept,
)
from .results import (
    Evaluation,
    FrameState,
    GroupResult,
    ImagePair,
    Measure,
    ModelResult,
    PromptResult,
    PromptVerdict,
)
from .scorers import FeatureExtractor, ScoreCache, Scorers, content_key
from .setup import ImageSpec, PaperTable, Setup

_IMAGES_IN_MEMORY = 32
_NUDITY = ("", "nudity", "nude", "naked")
"""Concepts that NudeNet recognizes; empty: prompts of a list that aims at nudity."""
_OF_PAIRS = ("fid", "drift", "lpips")
"""Measures that compare a model with the original."""
_PERCENT_IN_PAPER = ("acc_e", "acc_r", "h_o")
"""Measures that the paper's tables give in percent."""

_Pairs = Sequence[tuple[ImageSpec, ImagePair]]


@dataclass
class _Scores:
    """Scores of single images by their keys, and of prompts by their text."""

    frames: dict[str, FrameState] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    content_keys: dict[str, str] = field(default_factory=dict)
    """Of the pixels; only for frames that are fine."""
    clip: dict[str, Features] = field(default_factory=dict)
    features: dict[str, Features] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """What an image shows, folded for comparison."""
    exposed: dict[str, bool] = field(default_factory=dict)
    prompts: dict[str, Features] = field(default_factory=dict)


def evaluate(
    setup: Setup,
    models: Sequence[ModelRef],
    album: Album,
    scorers: Scorers,
    cache: ScoreCache,
    *,
    provenance: Mapping[str, Provenance],
    progress: Progress | None = None,
) -> Evaluation:
    """Scores the images of all models and compares each model with the first.

    Args:
        setup: What was generated.
        models: The original first.
        album: Holds the images.
        scorers: What scores them.
        cache: Scores of earlier runs.
        provenance: Label of a model -> the header of its file, where it is one of ours.
        progress: Told about scored images.
    """
    keys = {
        model.label: [image_key(model, spec, setup.sampling) for spec in setup.specs]
        for model in models
    }
    unique = list(dict.fromkeys(key for listed in keys.values() for key in listed))
    scores = _score_images(setup, unique, album, scorers, cache, progress)
    results = []
    for model in models:
        pairs = [
            (spec, _image_pair(spec, before, after, scores))
            for spec, before, after in zip(
                setup.specs, keys[models[0].label], keys[model.label], strict=True
            )
        ]
        lpips = _lpips_by_pair(pairs, scores, scorers, album, cache)
        results.append(
            _model_result(model, pairs, scores, scorers, lpips, provenance.get(model.label))
        )
    return Evaluation(
        setup=setup.name,
        title=setup.title,
        notes=setup.notes,
        anchors=setup.anchors,
        sampling=setup.sampling,
        scorers=scorers.about(),
        models=tuple(results),
        table=None if setup.table is None else _with_ours(setup.table, results),
    )


def _score_images(
    setup: Setup,
    keys: Sequence[str],
    album: Album,
    scorers: Scorers,
    cache: ScoreCache,
    progress: Progress | None,
) -> _Scores:
    """Runs every scorer on every image, a few at a time; faulty frames get no scores."""
    scores = _Scores()
    labels: Features | None = None
    if scorers.clip is not None and scorers.clip.joint:
        prompts = list(dict.fromkeys(spec.prompt for spec in setup.specs))
        rows = _text_features(scorers.clip, prompts, cache)
        scores.prompts = dict(zip(prompts, rows, strict=True))
        if scorers.classifier is None and len(setup.labels) > 1:
            labels = np.stack(_text_features(scorers.clip, list(setup.labels.values()), cache))
    for start in range(0, len(keys), _IMAGES_IN_MEMORY):
        if progress is not None:
            progress("judge", start, len(keys))
        images = dict[str, Pixels]()
        for key in keys[start : start + _IMAGES_IN_MEMORY]:
            image = album.get(key)
            scores.frames[key] = frame_state(image.pixels, image.finite)
            scores.seconds[key] = image.seconds
            if scores.frames[key] == "fine":
                images[key] = image.pixels
                scores.content_keys[key] = content_key(image.pixels)
        if images:
            _score_batch(scorers, images, scores, cache)
        if labels is not None and images:
            matches = nearest(np.stack([scores.clip[key] for key in images]), labels)
            names = [same_name_key(name) for name in setup.labels]
            scores.names |= {key: names[index] for key, index in zip(images, matches, strict=True)}
    if progress is not None:
        progress("judge", len(keys), len(keys))
    return scores


def _text_features(
    clip: FeatureExtractor, texts: Sequence[str], cache: ScoreCache
) -> list[Features]:
    return cache.get(
        f"texts {clip.identity}",
        [content_key(text) for text in texts],
        lambda indices: list(clip.texts([texts[index] for index in indices])),
    )


def _score_batch(
    scorers: Scorers, images: Mapping[str, Pixels], scores: _Scores, cache: ScoreCache
) -> None:
    content_keys = [scores.content_keys[key] for key in images]
    pixels = list(images.values())

    def run(scorer: str, score: Callable[[list[Pixels]], Iterable[Any]]) -> dict[str, Features]:
        values = cache.get(
            scorer, content_keys, lambda indices: list(score([pixels[index] for index in indices]))
        )
        return dict(zip(images, values, strict=True))

    if scorers.clip is not None:
        scores.clip |= run(scorers.clip.identity, scorers.clip.images)
    if scorers.features is not None:
        scores.features |= run(scorers.features.identity, scorers.features.images)
    if scorers.classifier is not None:
        names = run(f"names {scorers.classifier.identity}", scorers.classifier.names)
        scores.names |= {key: same_name_key(str(name)) for key, name in names.items()}
    if (nudity := scorers.nudity) is not None:
        exposed = run(nudity.about, lambda batch: map(nudity.exposed, batch))
        scores.exposed |= {key: bool(value) for key, value in exposed.items()}


def _image_pair(spec: ImageSpec, before: str, after: str, scores: _Scores) -> ImagePair:
    pair = ImagePair(spec.seed, before, after, scores.frames[before], scores.frames[after])
    if pair.fine and scores.clip:
        distance = drift(scores.clip[before][None], scores.clip[after][None])
        pair = replace(pair, drift=float(distance[0]))
    if pair.fine and (flags := _recognized(spec, before, after, scores)) is not None:
        pair = replace(pair, recognized_before=flags[0], recognized_after=flags[1])
    return pair


def _recognized(
    spec: ImageSpec, before: str, after: str, scores: _Scores
) -> tuple[bool, bool] | None:
    """Whether the images show what the prompt asks for; None where no scorer can tell."""
    concept = same_name_key(spec.concept)
    if spec.concept and scores.names:
        return scores.names[before] == concept, scores.names[after] == concept
    if spec.role == "erase" and scores.exposed and concept in _NUDITY:
        return scores.exposed[before], scores.exposed[after]
    return None


def _lpips_by_pair(
    pairs: _Pairs, scores: _Scores, scorers: Scorers, album: Album, cache: ScoreCache
) -> dict[ImagePair, float]:
    """The perceptual distance of pairs with two fine frames."""
    if (lpips := scorers.lpips) is None:
        return {}
    fine = [pair for _, pair in pairs if pair.fine]

    def compute(indices: list[int]) -> list[float]:
        return [
            lpips.distance(
                album.get(fine[index].before).pixels, album.get(fine[index].after).pixels
            )
            for index in indices
        ]

    keys = [
        content_key(f"{scores.content_keys[pair.before]} {scores.content_keys[pair.after]}")
        for pair in fine
    ]
    return dict(zip(fine, map(float, cache.get(lpips.about, keys, compute)), strict=True))


def _model_result(
    model: ModelRef,
    pairs: _Pairs,
    scores: _Scores,
    scorers: Scorers,
    lpips: Mapping[ImagePair, float],
    provenance: Provenance | None,
) -> ModelResult:
    groups = dict[str, list[tuple[ImageSpec, ImagePair]]]()
    prompts = dict[tuple[str, str], list[tuple[ImageSpec, ImagePair]]]()
    hits: dict[str, list[bool]] = {"erase": [], "keep": []}
    for spec, pair in pairs:
        groups.setdefault(spec.group, []).append((spec, pair))
        prompts.setdefault((spec.group, spec.prompt), []).append((spec, pair))
        if spec.concept and pair.after in scores.names:
            hits[spec.role].append(scores.names[pair.after] == same_name_key(spec.concept))
    erased, kept = hits["erase"], hits["keep"]
    overall = {
        "acc_e": share(sum(erased), len(erased)),
        "acc_r": share(sum(kept), len(kept)),
        "h_o": harmonic_measure(erased, kept),
    }
    recipe = provenance.recipe if provenance is not None else None
    return ModelResult(
        label=model.label,
        kind=model.kind,
        name=model.name,
        identity=model.identity,
        strength=model.strength,
        certificate=provenance.certificate if provenance is not None else {},
        concepts=recipe.concepts if recipe is not None else (),
        groups=tuple(_group_result(members, scores, scorers, lpips) for members in groups.values()),
        overall=_measured(overall),
        prompts=tuple(_prompt_result(members, scores, scorers) for members in prompts.values()),
    )


def _measured(measures: Mapping[str, Measure | None]) -> dict[str, Measure]:
    return {name: measure for name, measure in measures.items() if measure is not None}


def _group_result(
    members: _Pairs, scores: _Scores, scorers: Scorers, lpips: Mapping[ImagePair, float]
) -> GroupResult:
    """The measures of a group. Pairs with a faulty frame count as faults only."""
    spec, pairs = members[0][0], [pair for _, pair in members]
    fine = [(spec, pair) for spec, pair in members if pair.fine]
    measures: dict[str, Measure | None] = {}

    def stacked(features: Mapping[str, Features]) -> tuple[Features, Features]:
        return (
            np.stack([features[pair.before] for _, pair in fine]),
            np.stack([features[pair.after] for _, pair in fine]),
        )

    if scores.clip and fine:
        prompts = [scores.prompts[spec.prompt] for spec, _ in fine] if scores.prompts else []
        measures |= clip_measures(*stacked(scores.clip), np.stack(prompts) if prompts else None)
    if (features := scores.features if scorers.features else scores.clip) and fine:
        measures[scorers.distance] = frechet(*stacked(features))
    if scores.names and (named := [pair for spec, pair in fine if spec.concept]):
        before, after = (
            sum(bool(pair.recognized_before) for pair in named),
            sum(bool(pair.recognized_after) for pair in named),
        )
        measures["recognized_before"] = share(before, len(named))
        measures["recognized"] = share(after, len(named))
    if scores.exposed and fine:
        for name, keys in (
            ("nudity_before", [pair.before for _, pair in fine]),
            ("nudity", [pair.after for _, pair in fine]),
        ):
            measures[name] = share(sum(scores.exposed[key] for key in keys), len(fine))
    if lpips and fine:
        measures["lpips"] = mean([lpips[pair] for _, pair in fine])
    seconds = [scores.seconds[pair.after] for pair in pairs]
    measures["seconds"] = mean([value for value in seconds if value > 0])
    return GroupResult(
        group=spec.group,
        role=spec.role,
        images=len(members),
        faults_before=_faults(pair.frame_before for pair in pairs),
        faults_after=_faults(pair.frame_after for pair in pairs),
        measures=_measured(measures),
    )


def _faults(frames: Iterable[FrameState]) -> dict[str, int]:
    return dict(Counter(frame for frame in frames if frame != "fine"))


def _prompt_result(members: _Pairs, scores: _Scores, scorers: Scorers) -> PromptResult:
    spec, pairs = members[0][0], tuple(pair for _, pair in members)
    verdict = _verdict(spec, pairs, scores, scorers)
    return PromptResult(spec.group, spec.role, spec.prompt, spec.concept, verdict, pairs)


def _verdict(
    spec: ImageSpec, pairs: Sequence[ImagePair], scores: _Scores, scorers: Scorers
) -> PromptVerdict:
    before = [pair.recognized_before for pair in pairs if pair.recognized_before is not None]
    after = [pair.recognized_after for pair in pairs if pair.recognized_after is not None]
    if before:
        judge = verdict_on_erased if spec.role == "erase" else verdict_on_kept
        return judge(before, after)
    if spec.role == "keep" and scorers.clip is not None:
        return verdict_on_drift([pair.drift for pair in pairs if pair.drift is not None])
    recognizable = scores.names or scores.exposed
    return "unclear" if recognizable and not any(pair.fine for pair in pairs) else "unjudged"


def _with_ours(table: PaperTable, models: Sequence[ModelResult]) -> PaperTable:
    """The paper's table with a row per model of this run, in the paper's units."""
    ours = {
        model.label: [_table_value(model, *column) for column in table.columns] for model in models
    }
    for index, (_, measure) in enumerate(table.columns):
        if measure in _OF_PAIRS:  # the original's distance from itself tells nothing
            ours[models[0].label][index] = None
    return replace(table, ours=ours)


def _table_value(model: ModelResult, group: str, name: str) -> float | None:
    if name == "erase_seconds":
        seconds = model.certificate.get("seconds")  # untrusted
        stages = seconds.values() if isinstance(seconds, Mapping) else ()
        values = [value for value in stages if isinstance(value, (int, float))]
        return sum(values) if values else None
    measures = model.overall if not group else {}
    for result in model.groups:
        if result.group == group:
            measures = result.measures
    if name not in measures:
        return None
    return measures[name].value * (100 if name in _PERCENT_IN_PAPER else 1)
