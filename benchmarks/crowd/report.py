"""docs/research/image-tests: one table per question, from runs that are stored next to the page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..figures import markdown_table
from ..storage import load_json, save_json, save_text
from . import answers, entry
from .answers import Runs, Table, percent
from .figures import before_after, painters_sheet, score_and_seen, trade_off
from .measures import h_o_interval, wilson
from .methods import DEFAULT, METHODS, NONE
from .run import Runner
from .signals import measure_runs, separation
from .tasks import TASKS
from .world import FIGURES, PAINTERS, SUBJECTS

TEXT = Path(__file__).parent / "page.md"
WORLDS = {
    "a": "U-Net, two-way encoder",
    "b": "U-Net, causal encoder",
    "c": "transformer",
    "a2": "U-Net, trained again",
}
"""Every training, by the name of its stored runs."""
CONFIRMING = ("c", "a2")
"""Nothing was chosen on their images."""
SHOWN = {
    "a": ("painters10", "people4"),
    "c": ("painters10",),
}
"""Tasks whose images are on the page."""
HEADS = {"painter": "style", "subject or figure": "subject", "night": "night"}
UNUSED = ("became", "subject_of_erased", "drifts", "near_count", "far_count", "splits")


def store(runner: Runner, out: Path, world: str) -> None:
    """A world's runs, and the figures that need its images; `write_page` makes the rest."""
    out.mkdir(parents=True, exist_ok=True)
    results = [result for result in runner.results() if result["method"] in METHODS]
    judge = load_json(runner.crowd.folder / "judge.json")
    about = {
        "weights": runner.folder.name,
        "seed": runner.training["plan"]["seed"],
        "count": runner.count,
        "steps": runner.training["step"],
        "judge": judge,
    }
    save_text(stored_path(out, world), packed(about, results))
    runs = Runs.of(results)
    for task in SHOWN.get(world, ()):
        before_after(runner, runs, TASKS[task], out / f"images-{world}-{task}.png")


MEASURED = ("painters1", "painters10", "subjects3", "people4", "characters3")
"""Tasks on which all measures are compared."""


def store_signals(runner: Runner, out: Path) -> None:
    """How well each measure ranks what a world's images show, over its methods."""
    methods = [name for name in METHODS if METHODS[name].group in ("ours", "released", "aim")]
    entries = measure_runs(runner, MEASURED, methods)
    save_json(out / "signals.json", separation(entries))


def stored_path(out: Path, world: str) -> Path:
    """Where the runs of a world are."""
    return out / f"runs-{world}.json"


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


def stored_worlds(out: Path) -> dict[str, tuple[dict[str, Any], Runs]]:
    """Facts and runs of every world that is stored."""
    worlds = {}
    for world in WORLDS:
        if (path := stored_path(out, world)).exists():
            about, results = unpacked(path)
            worlds[world] = about, Runs.of(results)
    return worlds


def write_page(out: Path) -> Path:
    """The page, the plots and the table of all runs, from the stored runs alone."""
    worlds = stored_worlds(out)
    painters_sheet(out)
    trade_off(worlds["a"][1], out)
    cases = [case for _, runs in worlds.values() for case in answers.cases_of(runs)]
    score_and_seen(cases, out)
    save_text(out / "runs.csv", runs_csv({world: runs for world, (_, runs) in worlds.items()}))
    save_text(out / "README.md", page(out))
    return out / "README.md"


def page(out: Path) -> str:
    """The text in `page.md` next to this file, with its tables."""
    stored = stored_worlds(out)
    about, first = stored["a"]
    worlds = {WORLDS[name]: runs for name, (_, runs) in stored.items()}
    chosen, confirming = (
        [case for name in names for case in answers.cases_of(stored[name][1])]
        for confirms in (False, True)
        for names in ([name for name in stored if (name in CONFIRMING) == confirms],)
    )
    (near, middle) = (wilson(share, about["count"]) for share in (0.9, 0.5))
    tables = {
        "recognized": answers.recognized_by_world(worlds),
        "agreement": answers.agreement_by_world(worlds),
        "drift": (drift := answers.first_drift(list(worlds.values())))[0],
        "bars": answers.bars(chosen, confirming),
        "ablation": answers.ablation(first),
        "priors": answers.soft_and_hard(first),
        "judge": _judge(stored),
    }
    shares = load_json(path) if (path := out / "signals.json").exists() else {}
    facts = {
        "signals_drift": f"{shares.get('drift', 0):.2f}",
        "signals_edits": shares.get("edits", 0),
        "painters": len(PAINTERS),
        "subjects": len(SUBJECTS),
        "figures": len(FIGURES),
        "runs": sum(len(runs.results) for runs in worlds.values()),
        "images": sum(len(result["right"]) for runs in worlds.values() for result in runs.results),
        "near": 50 * (near[1] - near[0]),
        "middle": 50 * (middle[1] - middle[0]),
        "drift_said": drift[1],
        "trainings": "; ".join(
            f"{WORLDS[name]}: `{facts['weights']}`, {facts['steps']:,} steps"
            for name, (facts, _) in stored.items()
        ),
    }
    tables["signals"] = _signals(out / "signals.json")
    tables["aims"] = answers.aims(worlds)
    parts = {name: _shown(table) for name, table in tables.items()}
    inside = []
    if (path := stored_path(out, "c")).exists():
        inside = list(entry.tables(unpacked(path)[1]).values())
    for name, table in zip(("rows", "inputs", "inner"), inside, strict=False):
        parts[name] = _shown(table)
    for name in ("rows", "inputs", "inner"):
        parts.setdefault(name, "")
    for name in WORLDS:
        runs = stored[name][1] if name in stored else Runs(())
        parts[f"glance_{name}"] = _shown(answers.glance(runs))
        limits, better = answers.by_limit(runs)
        parts |= {f"limits_{name}": _shown(limits), f"better_{name}": better}
        parts |= _shares(f"{name}_", runs)
    return TEXT.read_text(encoding="utf-8").format_map(facts | parts)


def _shown(table: Table) -> str:
    """The table, or that there is nothing for it yet."""
    return markdown_table(*table) if table[1] else "Not run on these models yet."


def _shares(prefix: str, runs: Runs) -> dict[str, str]:
    """Acc_e, Acc_r and H_o of the default on every task, for sentences."""
    shares = {}
    for task in TASKS:
        result = runs.get(task, DEFAULT) or {}
        for name in ("acc_e", "acc_r", "h_o"):
            shares[f"{prefix}{task}_{name}"] = percent(result.get(name)).removesuffix(".0")
    return shares


def _judge(stored: Mapping[str, tuple[dict[str, Any], Runs]]) -> Table:
    """The judge's own accuracy, and what it sees in the untouched models' images."""
    judge = stored["a"][0]["judge"]
    rows = []
    for kind in ("clean", "rough"):
        shares = [percent(judge[f"{kind}_{head}"]) for head in HEADS.values()]
        rows.append([f"{judge['pictures']:,} {kind} renderings", *shares])
    for world, (_, runs) in stored.items():
        results = (runs.get(task, NONE.name) for task in TASKS if task != "night")
        seen = [result["seen"] for result in results if result]
        shares = []
        for head in HEADS.values():
            values = [share[head] for share in seen if share[head] is not None]
            shares.append(percent(sum(values) / len(values) if values else None))
        rows.append([f"original model, {WORLDS[world]}", *shares])
    return ["images", *HEADS], rows


def _signals(path: Path) -> Table:
    """Which measure ranks edits of any method as their images do."""
    shares = load_json(path) if path.exists() else {}
    words = {
        "remaining": "remaining: everything between the output and the replacement's",
        "distance": "distance: its part along the line to the replacement",
        "weighted": "distance, weighted by what separates names",
    }
    lines = [[words[name], percent(shares.get(name))] for name in words]
    return ["measure", "lower where the concept is gone (%)"], lines


def runs_csv(worlds: Mapping[str, Runs]) -> str:
    """One line per run, the best of each task first; intervals of 95%, shares in percent."""
    order, out = list(TASKS), io.StringIO()
    lines: list[dict[str, Any]] = []
    for world, runs in worlds.items():
        ranked = sorted(runs.results, key=lambda run: (order.index(run["task"]), -run["h_o"]))
        lines += [{"world": world} | _csv_line(run) for run in ranked]
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _csv_line(result: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {"task": result["task"], "method": METHODS[result["method"]].label}
    limits = {"h_o": h_o_interval(result)}
    for name, role in (("acc_e", "erased"), ("acc_r", "kept")):
        limits[name] = wilson(result[name], result["counts"][role])
    for name, (low, high) in limits.items():
        values = {name: result[name], f"{name}_low": low, f"{name}_high": high}
        line |= {key: percent(value) for key, value in values.items()}
    line |= {name: percent(result[name]) for name in ("near", "far")}
    line["frechet"] = f"{result['frechet']:.2f}"
    left = [value for value in result.get("left", {}).values() if value is not None]
    line["left"] = f"{sum(left) / len(left):.2f}" if left else ""
    line["drift"] = "" if result.get("drift") is None else f"{result['drift']:.3f}"
    return line | {"seconds": f"{result['seconds']['edit']:.1f}"}
