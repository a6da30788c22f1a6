"""docs/research/image-tests: one table per question, from runs that are stored next to the page."""

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
from .figures import before_after, painters_sheet, score_and_seen, trade_off
from .inception import with_inception
from .measures import h_o_interval, wilson
from .methods import DEFAULT, METHODS, NONE
from .run import Runner
from .tasks import TASKS
from .world import PAINTERS, SUBJECTS

TEXT = Path(__file__).parent / "page.md"
SHOWN = ("painters10", "subjects3", "night")
"""Tasks whose images are on the page."""
HEADS = {"painter": "style", "subject": "subject", "night": "night"}
UNUSED = ("became", "subject_of_erased", "drifts", "near_count", "far_count")


def store(runner: Runner, out: Path, second: Runner | None = None) -> None:
    """The runs and the figures that need a model; `write_page` makes the rest from the runs."""
    out.mkdir(parents=True, exist_ok=True)
    results, real = with_inception(runner, _known(runner))
    judge = load_json(runner.crowd.folder / "judge.json")
    features = "Inception v3's features" if real else "the judge's own features"
    about = {"steps": runner.training["step"], "features": features, "judge": judge}
    save_text(out / "runs.json", packed(_about(runner) | about, results))
    if second:
        save_text(out / "second.json", packed(_about(second), _known(second)))
    runs = Runs.of(results)
    for task in SHOWN:
        before_after(runner, runs, TASKS[task], out)


def _known(runner: Runner) -> list[dict[str, Any]]:
    """Results of today's methods; a folder may hold runs of others."""
    return [result for result in runner.results() if result["method"] in METHODS]


def _about(runner: Runner) -> dict[str, Any]:
    seed = runner.training["plan"]["seed"]
    return {"weights": runner.folder.name, "seed": seed, "count": runner.count}


def packed(about: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    """One line per run: numbers to six digits, images that were recognized as hexadecimal bits."""
    roles = {result["task"]: result["roles"] for result in results if "roles" in result}
    lines = []
    for result in results:
        kept = {key: value for key, value in result.items() if key not in (*UNUSED, "roles")}
        if "right" in kept:
            kept["right"] = f"{int(kept['right'], 2):x}"
        short = json.loads(json.dumps(kept), parse_float=lambda text: float(f"{float(text):.6g}"))
        lines.append(json.dumps(short, separators=(",", ":")))
    runs = ",\n".join(lines)
    head = f'{{"about":{json.dumps(about)},\n"roles":{json.dumps(roles, indent=0)},\n'
    return f'{head}"runs":[\n{runs}\n]}}\n'


def unpacked(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `packed` stored: facts about the training, and the results."""
    stored = load_json(path)
    for result in stored["runs"]:
        if "right" in result:
            result["roles"] = stored["roles"][result["task"]]
            result["right"] = f"{int(result['right'], 16):0{len(result['roles'])}b}"
    return stored["about"], stored["runs"]


def write_page(out: Path) -> Path:
    """The page, the plots and the table of all runs, from the stored runs alone."""
    _, results = unpacked(out / "runs.json")
    runs = Runs.of(results)
    painters_sheet(out)
    trade_off(runs, out)
    score_and_seen(answers.cases_of(runs), out)
    save_text(out / "runs.csv", runs_csv(results))
    save_text(out / "README.md", page(out))
    return out / "README.md"


def page(out: Path) -> str:
    """The text in `page.md` next to this file, with its tables."""
    about, results = unpacked(out / "runs.json")
    runs = Runs.of(results)
    again, other = Runs(()), {"weights": "none", "count": 0}
    if (out / "second.json").exists():
        other, stored = unpacked(out / "second.json")
        again = Runs.of(stored)
    cases = answers.cases_of(runs)
    (near, middle) = (wilson(share, about["count"]) for share in (0.9, 0.5))
    tables = {
        "second": answers.confirmed(runs, again),
        "glance": answers.glance(runs),
        "drift": (drift := answers.first_drift(runs))[0],
        "limits": (limits := answers.by_limit(runs))[0],
        "verdicts": answers.verdicts(cases),
        "bars": answers.bars(runs),
        "ablation": answers.ablation(runs),
        "priors": answers.soft_and_hard(runs),
        "judge": _judge(about["judge"], runs),
    }
    facts = {
        "painters": len(PAINTERS),
        "subjects": len(SUBJECTS),
        "refused": len(results) - len(runs.results),
        "runs": len(runs.results),
        "images": sum(len(result["right"]) for result in runs.results),
        "cases": len(cases),
        "wrong": sum(not case.agrees for case in cases),
        "near": 50 * (near[1] - near[0]),
        "middle": 50 * (middle[1] - middle[0]),
        "drift_said": drift[1],
        "limits_said": limits[1],
        "said": answers.agreement(cases),
        "second_said": answers.agreement(answers.cases_of(again)),
    }
    text = TEXT.read_text(encoding="utf-8")
    own = {f"second_{key}": value for key, value in other.items()}
    shares = _shares("", runs) | _shares("second_", again)
    made = {name: markdown_table(*table) for name, table in tables.items()}
    return text.format_map(about | own | facts | shares | made)


def _shares(prefix: str, runs: Runs) -> dict[str, str]:
    """Acc_e and Acc_r of the default on every task, for sentences."""
    found = {}
    for task in TASKS:
        result = runs.get(task, DEFAULT) or {}
        for name in ("acc_e", "acc_r"):
            found[f"{prefix}{task}_{name}"] = percent(result.get(name)).removesuffix(".0")
    return found


def _judge(judge: dict[str, float], runs: Runs) -> Table:
    """The judge's own accuracy, and what it sees in the untouched model's images."""
    rows = []
    for kind in ("clean", "rough"):
        shown = [percent(judge[f"{kind}_{head}"]) for head in HEADS.values()]
        rows.append([f"{judge['pictures']:,} {kind} renderings", *shown])
    seen = {task: runs.get(task, NONE.name) for task in TASKS}
    own = {task: result["seen"] for task, result in seen.items() if result}
    if night := own.pop("night", None):
        rows.append(["original model, night", *(percent(night[head]) for head in HEADS.values())])
    if own:
        least = [percent(min(shares[head] for shares in own.values())) for head in HEADS.values()]
        rows.append([f"original model, lowest of {len(own)} other tasks", *least])
    return ["images", *HEADS], rows


def runs_csv(results: Iterable[dict[str, Any]]) -> str:
    """One line per run, the best of each task first; intervals of 95%, shares in percent."""
    order, out = list(TASKS), io.StringIO()
    runs = sorted(results, key=lambda run: (order.index(run["task"]), -run.get("h_o", -1.0)))
    lines = [_csv_line(run) for run in runs]
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


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
