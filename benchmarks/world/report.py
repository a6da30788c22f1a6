"""docs/proof/tidy/README.md from the stored runs: every number with the command that made it, none
typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from speed_erase.speed_ops.certificate.certificate import BARS

from .figures import Points, before_after, concept_curve, curve_points, curves
from .findings import HARDER, MAIN, findings
from .judge import accuracy
from .matrix import task_named
from .measures import wilson
from .methods import METHODS
from .run import Runner
from .storage import load_json, write_whole
from .tasks import TASKS
from .truth import GONE, Truth, truth

COMMAND = "python -m benchmarks.world"


def write_report(runner: Runner, out: Path) -> Path:
    """Tables, curves and pictures; also all results as one JSON file."""
    results = [_labelled(load_json(path)) for path in sorted(runner.folder.glob("*.json"))]
    checks = truth(results)
    attacks = [
        _labelled(load_json(path)) for path in sorted((runner.folder / "attacks").glob("*.json"))
    ]
    parts = [_head(runner, results), findings(results, attacks, checks), _evaluated(runner)]
    images = [
        before_after(runner, "one", ("uce_bare", "speed_few", "targets", "auto"), out),
        *(
            before_after(runner, task, ("uce_bare", "speed_few", "auto"), out)
            for task in ("three", *HARDER)
        ),
    ]
    words = {"none": "before", "auto": "after erasing\nOrla Venn"}
    before_after(runner, "one", ("auto",), out, labels=words)  # for the project's first page
    parts.append("## Before and after\n")
    parts += [f"![before and after]({path.name})\n" for path in images if path]
    parts += [*_task_tables(results), _splits(results)]
    points = curve_points(runner)
    if path := curves(points, out):
        parts.append(f"## Which rows and which settings\n\n{CURVES}\n![curves]({path.name})\n")
        parts.append(_curve_table(points))
    if path := concept_curve(results, out):
        parts.append(
            f"## From one concept to many\n\n`{COMMAND} sweep`\n\n![number of"
            f" concepts]({path.name})\n"
        )
    parts += [_attacks(attacks), _confirmed(runner), _truth(checks)]
    text = "\n".join(part for part in parts if part)
    write_whole(
        out / "README.md", lambda part: part.write_text(text.rstrip() + "\n", encoding="utf-8")
    )
    short = [
        {key: value for key, value in result.items() if key != "settings"} for result in results
    ]
    blob = json.dumps(short, indent=1)
    write_whole(out / "runs.json", lambda part: part.write_text(blob + "\n", encoding="utf-8"))
    return out / "README.md"


CURVES = f"""\
`{COMMAND} sweep`: one setting of the preset `context` varied at a time on three painters (of `auto`, on the task named,
where the curve says so). Residual and drift by the weights alone, on unseen prompts; H_o where pictures were drawn.
"""


def _curve_table(points: Points) -> str:
    lines = [
        [curve, "; ".join(_point(at, result) for at, result in found)]
        for curve, found in points.items()
    ]
    return _table(
        ["setting", "value: residual / drift / Acc_e in %, where pictures were drawn"], lines
    )


def _point(at: str, result: dict[str, Any]) -> str:
    values = result["values"]
    seen = f" / {_share(result['acc_e'])}" if "acc_e" in result else ""
    return f"{at}: {values['residual']:.3f} / {values['drift']:.3f}{seen}"


def _labelled(result: dict[str, Any]) -> dict[str, Any]:
    """The method's name as it is now, not as it was when the run was made."""
    known = METHODS.get(result["method"])
    return result | {"label": known.label} if known else result


def _head(runner: Runner, results: Sequence[dict[str, Any]]) -> str:
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.1%}" for name, value in accuracy().items())
    training = runner.world.folder / "training.json"
    steps = load_json(training)["step"] if training.exists() else "?"
    return (
        "# Proof on a living model\n\nA small model that draws (SD1.x layout, trained from"
        " scratch), its concepts erased by many methods, its pictures judged by the nearest"
        f" rendering.\n\n- Weights `{runner.folder.name}`, {steps} training steps; {len(results)}"
        f" runs of about {runner.count} pictures of the erased and as many of the kept; the same"
        f" prompts and seeds for every method.\n- The judge on fresh renderings: {shown}.\n- Made"
        f" by `{COMMAND} train`, `{COMMAND} compare`, `{COMMAND} sweep`, `{COMMAND} attack`,"
        f" `{COMMAND} confirm`, `{COMMAND} report`.\n\nAcc_e: pictures of the erased that are still"
        " recognised (lower is better). Acc_r: kept painters and plain prompts recognised. H_o:"
        " harmonic mean of 1 - Acc_e and Acc_r, times 100. Near: kept painters that share a"
        " palette or a texture with an erased one. Change: mean absolute change of colours on"
        " paired seeds, 0 to 2; far painters are the noise floor. Residual and drift come from the"
        " weights alone, on all rows of unseen prompts.\n"
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*rows, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def _share(value: float | None) -> str:
    return "-" if value is None or value != value else f"{100 * value:.1f}"


def _task_tables(results: Sequence[dict[str, Any]]) -> list[str]:
    parts = []
    head = [
        "method",
        "Acc_e",
        "Acc_r",
        "H_o",
        "near",
        "subject kept",
        "change: erased / near / far / plain",
    ]
    head += ["Frechet", "residual", "drift", "certificate"]
    for name in dict.fromkeys((*TASKS, *(r["task"] for r in results))):
        # Points of a curve stand in the curves, not among the methods.
        own = [
            r for r in results if r["task"] == name and not (name in MAIN and "." in r["method"])
        ]
        if not own:
            continue
        own.sort(key=lambda result: (-result["h_o"], result.get("frechet_kept", 0)))
        label = task_named(name).label
        count = own[0]["counts"]
        low, high = wilson(0.5, count["erased"])
        floor = _floor(own)
        parts.append(
            f"## {label[0].upper()}{label[1:]}\n\n`{COMMAND} compare`; {count['erased']} pictures"
            f" of the erased, {count['kept']} of the kept, so a share of one half is known to"
            f" {50 * (high - low):.0f} points.{floor}\n"
        )
        parts.append(_table(head, (_line(result) for result in own)))
    return parts


def _floor(own: Sequence[dict[str, Any]]) -> str:
    """Where chance alone brings the erased back, how often."""
    found = next((r["floor"] for r in own if r["method"] == "none"), {})
    named = ", ".join(f"{name} in {_share(share)} %" for name, share in found.items() if share)
    return (
        f" Told the anchor instead, the untouched model shows {named}: so much is chance."
        if named
        else ""
    )


def _line(result: dict[str, Any]) -> list[str]:
    change = result.get("change", {})
    moved = " / ".join(
        f"{change[n]:.2f}" if n in change else "-" for n in ("erased", "near", "far", "plain")
    )
    values, certificate = result["values"], result.get("certificate")
    shares = [
        _share(result.get(name))
        for name in ("acc_e", "acc_r", "h_o", "acc_near", "subject_of_erased")
    ]
    numbers = [
        f"{max(0.0, result.get('frechet_kept', 0)):.2f}",
        f"{values['residual']:.3f}",
        f"{values['drift']:.3f}",
    ]
    return [
        result["label"],
        *shares,
        moved,
        *numbers,
        f"{certificate['probe']:.2f}" if certificate else "-",
    ]


def _splits(results: Sequence[dict[str, Any]]) -> str:
    names = ("solved templates", "unseen templates", "unseen pairs", "aliases")
    own = [r for r in results if r["task"] in ("one", "three", "half") and "." not in r["method"]]
    if not own:
        return ""
    lines = [
        [r["task"], r["label"], *(_share(r["splits"].get(name)) for name in names)] for r in own
    ]
    return "## Still recognised, by what the solve had seen\n\n" + _table(
        ["task", "method", *names], lines
    )


def _attacks(found: Sequence[dict[str, Any]]) -> str:
    if not found:
        return ""
    lines = []
    for result in found:
        leak = " ".join(f"{mean:.2f}" for _, mean, _ in result["rounds"])
        for start, attack in result["attacks"].items():
            shares = [_share(attack["before"]), _share(attack["after"])]
            lines.append([result["label"], start, *shares, f"{attack['size']:.2f}", leak])
    head = [
        "method",
        "attack starts from",
        "recognised before",
        "after",
        "size of the offset",
        "leak by round",
    ]
    return (
        f"## White-box attack\n\n`{COMMAND} attack`: rows optimised by gradient against the edited"
        " model, within a radius given as a share of a row's norm.\n\n" + _table(head, lines)
    )


def _evaluated(runner: Runner) -> str:
    path = runner.world.folder / "evaluation.json"
    if not path.exists():
        return ""
    scores = load_json(path)["untouched"]
    lines = [
        [
            name,
            *(_share(score[head]) for head in ("style", "subject", "night")),
            str(score["count"]),
        ]
        for name, score in scores.items()
    ]
    head = ["prompts", "style right", "subject right", "night right", "pictures"]
    return (
        f"## The untouched model\n\n`{COMMAND} evaluate --comfy DIR`: stock loader, KSampler and"
        " prompts in ComfyUI.\n\n" + _table(head, lines)
    )


def _confirmed(runner: Runner) -> str:
    found = [load_json(path) for path in sorted((runner.folder / "confirmed").glob("*.json"))]
    if not found:
        return ""
    names = ("acc_e", "acc_r", "h_o")
    lines = [
        [
            r["task"],
            r["method"],
            *(_share(r[side][n]) for side in ("ours", "comfyui") for n in names),
        ]
        for r in found
    ]
    head = [
        "task",
        "method",
        *(f"{n} {where}" for where in ("in process", "in ComfyUI") for n in names),
    ]
    return (
        f"## The same in ComfyUI\n\n`{COMMAND} confirm --comfy DIR`: stock loader, KSampler.\n\n"
        + _table(head, lines)
    )


def _truth(found: Truth | None) -> str:
    if found is None:
        return ""
    lines = [
        [c.task, c.method, c.concept, f"{c.probe:.2f}", _share(c.seen), _share(c.floor)]
        for c in found.wrong
    ]
    text = (
        f"## Does the certificate tell the truth?\n\n{len(found.cases)} erased concepts with"
        " certificate and pictures. Rank correlation of residual and recognised share:"
        f" {found.rank:.2f}. With the bars at {BARS['style'].erased:g} (painters),"
        f" {BARS['object'].erased:g} (the subject) and {BARS['implicit'].erased:g} (the night), and"
        f" a concept counted as gone when at most {GONE:.0%} more of its pictures are recognised"
        " than when the untouched model is told the anchor instead, the two agree in"
        f" {found.agreement:.1%}; of single bars for all, those from {found.best_bar[0]:.2f} to"
        f" {found.best_bar[1]:.2f} agree best ({found.best_agreement:.1%}). Of the"
        f" {len(found.wrong)} cases where they do not, the certificate says erased and the pictures"
        f" say no in {found.unsafe}, the other way round in {len(found.wrong) - found.unsafe}. Rank"
        f" correlation of drift and change of the kept pictures: {found.drift_rank:.2f}. "
    )
    if found.unharmed_drift is not None:
        text += f"Largest drift without harm: {found.unharmed_drift:.3f}. "
    if found.harmed_drift is not None:
        text += f"Smallest drift with harm: {found.harmed_drift:.3f}. "
    head = ["task", "method", "concept", "residual", "still recognised", "told the anchor"]
    return (
        text.rstrip() + "\n" + ("\nWhere they disagree:\n\n" + _table(head, lines) if lines else "")
    )
