"""An evaluation as one HTML file with its images: the values that `page.html` shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..certificate.verdicts import verdict_in_words
from ..files.atomic import write_bytes
from ..report.html import curve_facts, template
from .evaluation import Evaluation, ImagePair, ModelResult
from .measures import MEASURE_TITLES

PROMPTS_SHOWN = 6
"""Prompts with images per group; those that went wrong come first."""
SEEDS_SHOWN = 4
_WORDS = {
    "erased": "the concept is gone from these images",
    "leaking": "the concept is still there",
    "preserved": "the image still shows the prompt",
    "damaged": "the image no longer shows the prompt",
    "unclear": "the original did not show it either, or all images are broken",
    "unjudged": "no automatic check was run",
}
_WORST_FIRST = ("leaking", "damaged", "unclear", "unjudged", "erased", "preserved")


def write_evaluation(
    evaluation: Evaluation, folder: Path, thumbnail: Callable[[str], str]
) -> tuple[Path, Path]:
    """Writes the page and the JSON file; returns their paths.

    Args:
        evaluation: The results.
        folder: Where the files go.
        thumbnail: Key of an image -> a small copy as a data URL.
    """
    page, data = folder / "report.html", folder / "evaluation.json"
    content = json.dumps(evaluation.to_json(), indent=1, ensure_ascii=False)
    write_bytes(data, content.encode(), force=True)
    write_bytes(page, _page(evaluation, thumbnail).encode(), force=True)
    return page, data


def _page(evaluation: Evaluation, thumbnail: Callable[[str], str]) -> str:
    erased, sampling = evaluation.erased, evaluation.sampling
    measured = {name for model in erased for group in model.groups for name in group.measures}
    facts = [
        ("Setup", evaluation.setup),
        (
            "Images",
            f"{sampling.width} x {sampling.height}, {sampling.steps} steps of"
            f" {sampling.sampler} / {sampling.scheduler}, guidance {sampling.cfg:g}",
        ),
    ]
    if sampling.negative:
        facts.append(("Negative prompt", sampling.negative))
    for model in evaluation.models:
        facts.append((f"Model: {model.label}", f"{model.kind} {model.name} ({model.identity})"))
    page = {
        "evaluation": evaluation,
        "erased": erased,
        "best_first": list(reversed(_WORST_FIRST)),
        "words": _WORDS,
        "titles": MEASURE_TITLES,
        "measures": [name for name in MEASURE_TITLES if name in measured],
        "sections": _sections(erased),
        "seeds": min(SEEDS_SHOWN, max(len(prompt.images) for prompt in erased[0].prompts)),
        "thumbnail": thumbnail,
        "hint": _hint,
        "scorers": [
            (MEASURE_TITLES.get(name, name), text) for name, text in evaluation.scorers.items()
        ],
        "certificates": [(model.label, *_certificate(model)) for model in erased],
        "facts": facts,
        "package_version": evaluation.package_version,
    }
    return str(template(Path(__file__).with_name("page.html")).render(page))


def _sections(erased: Sequence[ModelResult]) -> list[tuple[str, list[int], int]]:
    """Each group, the indices of the prompts that are shown, worst first, and how many are not."""
    groups = dict[str, list[int]]()
    for index, prompt in enumerate(erased[0].prompts):
        groups.setdefault(prompt.group, []).append(index)

    def badness(index: int) -> int:
        return min(_WORST_FIRST.index(model.prompts[index].verdict) for model in erased)

    return [
        (name, sorted(indices, key=badness)[:PROMPTS_SHOWN], max(0, len(indices) - PROMPTS_SHOWN))
        for name, indices in groups.items()
    ]


def _hint(pair: ImagePair, after: bool) -> str:
    hints = [f"seed {pair.seed}"]
    frame = pair.frame_after if after else pair.frame_before
    recognized = pair.recognized_after if after else pair.recognized_before
    if frame != "fine":
        hints.append(f"{frame} image")
    if recognized is not None:
        hints.append("recognized" if recognized else "not recognized")
    if after and pair.drift is not None:
        hints.append(f"drift {pair.drift:.3f}")
    return ", ".join(hints)


def _certificate(model: ModelResult) -> tuple[list[tuple[str, str]], Any]:
    """What the file claims about each concept, and its trade-off: untrusted."""
    claims = model.certificate.get("concepts")
    concepts = []
    for claim in claims if isinstance(claims, list) else []:
        if isinstance(claim, dict):
            concepts.append((str(claim.get("name")), verdict_in_words(claim.get("verdict"))))
    try:
        return concepts, curve_facts(model.certificate.get("curve"))
    except (KeyError, TypeError, ValueError, AttributeError):
        return concepts, None
