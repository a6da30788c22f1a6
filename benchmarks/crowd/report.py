"""docs/proof from the stored runs: one table per question, and the data as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..figures import markdown_table
from ..storage import load_json, save_text
from . import answers
from .answers import Runs, Table, percent
from .figures import before_after, drawn_and_meant, left_and_seen, trade_off, world_sheet
from .inception import with_inception
from .measures import h_o_interval, wilson
from .methods import METHODS, NONE
from .run import Runner
from .tasks import TASKS
from .world import PAINTERS, SUBJECTS

SECOND = (
    "A second training (below) took no part in the choice but for one thing: the budget was raised"
    " to 45 % after it had lost nothing by that, either."
)
REFUSED = """A dash: the engine refused, because the kept names leave no room for an edit \
([runs.csv](runs.csv))."""
COMMAND = "python -m benchmarks.crowd"
FOLDER = Path(__file__).parent
SHOWN = ("painters1", "painters10", "subjects3", "night")
"""Tasks whose pictures are on the page."""


def write_report(runner: Runner, out: Path, second: Runner | None = None) -> Path:
    """The page, its pictures, and every result as CSV and JSON; `second` has another training's."""
    every, real = with_inception(runner, _known(runner))
    runs = Runs.of(every)
    out.mkdir(parents=True, exist_ok=True)
    cases = answers.cases_of(runs)
    drift, said = answers.first_drift(runs)
    world_sheet(out)
    shots = [before_after(runner, runs, TASKS[task], out) for task in SHOWN]
    plots = {"trade": trade_off(runs, out), "verdicts": left_and_seen(cases, out)}
    parts = [
        _head(runner, runs, every, real, second),
        _section("The goals", answers.goals(runs)),
        _section("Does it hold where nothing was chosen?", *_again(runs, second)) if second else "",
        "\n".join(f"![before and after]({path.name})\n" for path in shots if path),
        _section("At a glance", answers.glance(runs), "All methods: [runs.csv](runs.csv)."),
        _image(plots["trade"], "erased against kept"),
        _section(
            "Does the point that `auto` chooses hold up in pictures?", answers.chosen_point(runs)
        ),
        _section("Which drift is the first that shows?", drift, said),
        _section("Which residual is gone?", answers.bars(runs), _disagreements(cases)),
        _image(plots["verdicts"], "certificate against pictures"),
        _section(
            "Do SPEED's filtering and augmentation help here?", answers.ablation(runs), REFUSED
        ),
        _section("How far apart are soft prior and null space?", answers.soft_and_hard(runs)),
        _untouched(runner, runs, out),
        (FOLDER / "tidy_world.md").read_text(encoding="utf-8"),
    ]
    save_text(out / "README.md", "\n".join(part for part in parts if part).rstrip() + "\n")
    save_text(out / "runs.csv", runs_csv(every))
    save_text(out / "runs.json", _stored(every))
    if cases:
        save_text(out / "disagreements.csv", disagreements_csv(cases))
    if second:
        save_text(out / "second.json", _stored(_known(second)))
    return out / "README.md"


def _known(runner: Runner) -> list[dict[str, Any]]:
    """Results of today's methods; a folder may hold runs of others."""
    return [result for result in runner.results() if result["method"] in METHODS]


def _stored(results: Sequence[dict[str, Any]]) -> str:
    """One line per run, numbers to six digits: three more than the page shows."""
    short = json.loads(json.dumps(results), parse_float=lambda text: float(f"{float(text):.6g}"))
    lines = (json.dumps(result, separators=(",", ":")) for result in short)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _section(title: str, made: Table, note: str = "") -> str:
    """Nothing where the runs for it are missing."""
    head, lines = made
    if not lines:
        return ""
    note = f"\n{note}\n" if note else ""
    return f"## {title}\n\n{markdown_table(head, lines)}\n{note}"


def _image(path: Path | None, alt: str) -> str:
    return f"![{alt}]({path.name})\n" if path else ""


def _again(runs: Runs, second: Runner) -> tuple[Table, str]:
    """The second training's figures."""
    made, said = answers.confirmed(runs, Runs.of(_known(second)))
    about = (
        f"Weights `{second.folder.name}`: the same world and prompts, another seed for the training"
        f" (`{COMMAND} --data SECOND train --seed {second.training['plan']['seed']}`) and for the"
        f" noise of every picture; {second.count} pictures on each side. "
    )
    return made, about + said


def _head(runner: Runner, runs: Runs, every: Sequence[dict], real: bool, second: object) -> str:
    """The text of `head.md` with its numbers."""
    near, middle = (wilson(share, runner.count) for share in (0.9, 0.5))
    return (
        (FOLDER / "head.md")
        .read_text(encoding="utf-8")
        .format(
            painters=len(PAINTERS),
            subjects=len(SUBJECTS),
            weights=runner.folder.name,
            steps=runner.training["step"],
            runs=len(runs.results),
            refused=len(every) - len(runs.results),
            pictures=sum(len(result["right"]) for result in runs.results),
            count=runner.count,
            near=50 * (near[1] - near[0]),
            middle=50 * (middle[1] - middle[0]),
            confirmed=SECOND if second else "Nothing confirms it yet.",
            features="Inception v3's features" if real else "the judge's own features",
        )
    )


def _untouched(runner: Runner, runs: Runs, out: Path) -> str:
    """The judge's own accuracy, and what it sees in the untouched model's pictures."""
    judge = load_json(runner.crowd.folder / "judge.json")
    heads = {"painter": "style", "subject": "subject", "night": "night"}
    rows = []
    for kind in ("clean", "rough"):
        shown = [percent(judge[f"{kind}_{head}"]) for head in heads.values()]
        rows.append([f"{kind} renderings", *shown, str(judge["pictures"])])
    for task in TASKS:
        if result := runs.get(task, NONE.name):
            shown = [percent(result["seen"][head]) for head in heads.values()]
            label = f"untouched model, {TASKS[task].label}"
            rows.append([label, *shown, str(len(result["right"]))])
    first = next((TASKS[task] for task in TASKS if runs.get(task, NONE.name)), None)
    image = _image(drawn_and_meant(runner, first, out), "drawn and meant") if first else ""
    note = "Right in % of fresh renderings, as drawn and roughened, and of the untouched model's"
    note += " pictures."
    table = (["pictures", *heads, "number"], rows)
    return _section("Judge and untouched model", table, note) + "\n" + image


def _disagreements(cases: Sequence[Any]) -> str:
    wrong = f"{sum(not case.agrees for case in cases)} of {len(cases)} concepts in runs"
    link = "[disagreements.csv](disagreements.csv)"
    return f"{wrong} where verdict and pictures disagree: {link}." if cases else ""


def _csv(lines: Iterable[dict[str, Any]]) -> str:
    rows, out = list(lines), io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def disagreements_csv(cases: Sequence[Any]) -> str:
    """Where verdict and pictures disagree: one line per concept and run."""
    return _csv(
        {
            "task": case.task,
            "method": METHODS[case.method].label,
            "concept": case.concept,
            "verdict": case.verdict,
            "left": f"{case.left:.2f}",
            "to_go": f"{case.to_go:.2f}",
            "recognized": percent(case.seen),
            "by_chance": percent(case.chance),
            "error": "unsafe" if case.unsafe else "cautious",
        }
        for case in cases
        if not case.agrees
    )


def runs_csv(results: Sequence[dict[str, Any]]) -> str:
    """One line per run, the best of each task first; intervals of 95 %, shares in percent."""
    order = list(TASKS)
    runs = sorted(results, key=lambda run: (order.index(run["task"]), -run.get("h_o", -1.0)))
    return _csv(_csv_line(run) for run in runs)


def _csv_line(result: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {"task": result["task"], "method": METHODS[result["method"]].label}
    columns = ("acc_e", "acc_r", "h_o", *("near", "far", "surnames"), "frechet", "left", "drift")
    empty = {key: "" for name in columns[:3] for key in (name, f"{name}_low", f"{name}_high")}
    line |= empty | dict.fromkeys((*columns[3:], "seconds", "refused"), "")
    if "refused" in result:
        return line | {"refused": result["refused"]}
    limits = {"h_o": h_o_interval(result)}
    for name, role in (("acc_e", "erased"), ("acc_r", "kept")):
        limits[name] = wilson(result[name], result["counts"][role])
    for name, (low, high) in limits.items():
        values = {name: result[name], f"{name}_low": low, f"{name}_high": high}
        line |= {key: percent(value) for key, value in values.items()}
    line |= {name: percent(result[name]) for name in ("near", "far")}
    line["surnames"] = percent(result["splits"].get("surnames"))
    line["frechet"] = f"{result['frechet']:.2f}"
    left = [value for value in result.get("left", {}).values() if value is not None]
    line["left"] = f"{sum(left) / len(left):.2f}" if left else ""
    if result.get("drift") is not None:
        line["drift"] = f"{result['drift']:.3f}"
    return line | {"seconds": f"{result['seconds']['edit']:.1f}"}
