"""What a model shows in which text enters at one layer: which rows matter, which text input, in
which words, whether values inside add anything, and which side effects show first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..figures import markdown_table
from ..storage import save_json
from .answers import HARMED, Runs, Table, agreement, bars, by_limit, cases_of, percent
from .methods import CURVED, DEFAULT, INPUTS_ALONE, METHODS, NONE
from .run import Runner
from .tasks import TASKS
from .wording import REWORDED

ROWS = (DEFAULT, "rows_text", "rows_all", "rows_name", "rows_last")
INPUTS = (NONE.name, DEFAULT, *INPUTS_ALONE)
INNER = (DEFAULT, "inner_too", "inner_alone")


def tables(results: Sequence[Mapping[str, Any]]) -> dict[str, Table]:
    """One table per question, from the results of all runs."""
    drawn = [dict(result) for result in results if "refused" not in result]
    known = {(result["task"], result["method"]): result for result in drawn}
    runs = Runs.of(drawn)
    cases = cases_of(runs)
    worded = [name for base in CURVED for name in (base, *REWORDED) if name.startswith(base)]
    return {
        "Which rows? Acc_e / Acc_r": _compared(known, CURVED, ROWS),
        "Which text input, in which words? Acc_e / Acc_r": _compared(known, worded, INPUTS),
        "Values inside? Acc_e / Acc_r": _compared(known, CURVED, INNER),
        "Every limit: Acc_e": by_limit(runs)[0],
        f"Verdicts. {agreement(cases)}": bars(cases, []),
        "Which drift shows first?": drift_by_kind(runs),
    }


def _compared(
    known: Mapping[tuple[str, str], Mapping[str, Any]], tasks: Sequence[str], names: Sequence[str]
) -> Table:
    """Methods by tasks; a task without a run is left out."""
    every = TASKS | REWORDED
    tasks = [task for task in tasks if (task, DEFAULT) in known]
    lines = []
    for name in names:
        found = [known.get((task, name)) for task in tasks]
        shares = [f"{percent(r['acc_e'])} / {percent(r['acc_r'])}" if r else "-" for r in found]
        lines.append([METHODS[name].label, *shares])
    return ["edited", *(every[task].label for task in tasks)], lines


def drift_by_kind(runs: Runs) -> Table:
    """By kind of concept: the largest drift at which the rest is still recognized, and the
    smallest at which it is not.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for result in runs.results:
        before = runs.get(result["task"], NONE.name)
        if before is None or result.get("drift") is None:
            continue
        lost = before["acc_r"] - result["acc_r"]
        kind = " and ".join(sorted(set(result["kinds"].values())))
        found.setdefault(kind, []).append((result["drift"], lost))
    harm = f"lost over {HARMED:.0%}"
    head = ["kind", "runs", "largest drift", harm, f"smallest drift that {harm}", "worst loss"]
    lines = []
    for kind, pairs in found.items():
        harmful = [drift for drift, lost in pairs if lost > HARMED]
        first = f"{min(harmful):.2f}" if harmful else "none"
        largest, worst = max(drift for drift, _ in pairs), max(lost for _, lost in pairs)
        counts = [str(len(pairs)), f"{largest:.2f}", str(len(harmful))]
        lines.append([kind, *counts, first, percent(worst)])
    return head, lines


def answer(runner: Runner) -> str:
    """The tables as text; they are stored as JSON next to the runs' folder."""
    found = tables(runner.results())
    stored = {title: {"head": head, "lines": lines} for title, (head, lines) in found.items()}
    save_json(runner.crowd.folder / "answers.json", stored)
    return "\n\n".join(f"{title}\n\n{markdown_table(*table)}" for title, table in found.items())
