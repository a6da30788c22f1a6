"""`solve`: embeddings and weights in, a low-rank edit with its certificate out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .adversarial import edited_moments, leak, leaking_rows, original_moment
from .auto import settle_rows, settle_threshold
from .certificate import Round
from .erasure import Erasure, LayerEdit
from .errors import InputError
from .layer_solver import LayerSolver, SolvedLayer, Stopwatch
from .measuring import Measurer
from .pairs import ErasePairs
from .problem import Problem, check_weights, prepare, widen
from .rows import Rows
from .settings import EraseSettings

Progress = Callable[[str, int, int], None]

# A round that lowers the leak by less than this has found nothing worth its rank.
_WORTH_A_ROUND = 0.01


def solve(
    weights: Mapping[str, Tensor],
    targets: Tensor | Rows,
    anchors: Tensor | Rows,
    retain: Tensor | Rows | None = None,
    invariants: Tensor | None = None,
    settings: EraseSettings | None = None,
    *,
    target_names: Sequence[str] | None = None,
    retain_names: Sequence[str] | None = None,
    hold: Tensor | Rows | None = None,
    probes: tuple[Rows, Rows] | None = None,
    progress: Progress | None = None,
) -> Erasure:
    """Erases targets from the layers and says what that did.

    `weights`: {layer key: `o x d`}, read one at a time. `targets`, `anchors` (`n x d`) and `retain` (`N x d`): one
    concept a row, or `Rows` for several rows a concept. `invariants` (`k x d`): every row of the empty prompt, SOT
    first. `hold`: targets of an earlier erasure that `weights` already contain. `probes`: target and anchor rows in
    contexts that the solve does not see, for the certificate. `progress(stage, done, total)` may raise to interrupt:
    nothing is half done.
    """
    settings = settle_rows(settings or EraseSettings(), _concepts(targets))
    report = progress or _silent
    watch = Stopwatch()
    report("prepare", 0, 1)
    with watch.stage("prepare"):
        problem = prepare(
            targets,
            anchors,
            retain,
            invariants,
            settings,
            target_names=target_names,
            retain_names=retain_names,
            hold=hold,
            probes=probes,
        )
        check_weights(weights, problem.targets.width)
        problem = settle_threshold(problem)
    report("prepare", 1, 1)

    def load(key: str) -> Tensor:
        return widen(weights[key], key, problem.targets.values)

    try:
        solved, rounds = _solve_rounds(problem, list(weights), load, watch, report)
    except torch.linalg.LinAlgError as fault:
        ridges = f"lam {settings.lam:g} and mu {settings.mu:g}"
        raise InputError(f"The closed form has no stable solution with {ridges}: raise them.") from fault
    _check_moved(problem, solved)
    measurer = Measurer(problem)
    for done, (key, layer) in enumerate(solved.items()):
        report("certificate", done, len(solved))
        with watch.stage("certificate"):
            measurer.measure(key, load(key), layer)
    report("certificate", len(solved), len(solved))
    certificate = measurer.certificate(rounds, watch.seconds)
    edits = {key: layer.edit for key, layer in solved.items()}
    return Erasure(edits, certificate, problem.settings, problem.targets, problem.anchors)


def _solve_rounds(
    problem: Problem, keys: list[str], load: Callable[[str], Tensor], watch: Stopwatch, report: Progress
) -> tuple[dict[str, SolvedLayer], list[Round]]:
    """The edit, then rounds of adding what still leaks and solving again from the original weights."""
    settings = problem.settings
    directions: dict[str, Tensor] = {}
    solved = _solve_layers(problem, problem.pairs, keys, load, watch, report, directions)
    wanted = max(1, settings.adversarial_rounds) if settings.method == "rece" else settings.adversarial_rounds
    rounds: list[Round] = []
    if not wanted:
        return solved, rounds
    fresh = problem.pairs.without_held()
    found: list[ErasePairs] = []
    with watch.stage("adversarial"):
        original = original_moment(load(key) for key in keys)
    for number in range(wanted + 1):
        report("adversarial", number, wanted + 1)
        with watch.stage("adversarial"):
            moments = edited_moments(original, load, {key: layer.edit for key, layer in solved.items()})
            leaking = leaking_rows(moments, fresh.targets, settings.adversarial_reg)
            size = leak(moments, fresh.targets, fresh.change, leaking)
        rounds.append(Round(number, float(size.mean()), float(size.max())))
        falls = number == 0 or rounds[-1].mean_leak < rounds[-2].mean_leak - _WORTH_A_ROUND
        if number == wanted or not falls:
            break
        found.append(replace(fresh, targets=leaking, change=fresh.targets + fresh.change - leaking))
        solved = _solve_layers(problem, problem.pairs.with_sets(found), keys, load, watch, report, directions)
    return solved, rounds


def _solve_layers(
    problem: Problem,
    pairs: ErasePairs,
    keys: list[str],
    load: Callable[[str], Tensor],
    watch: Stopwatch,
    report: Progress,
    directions: dict[str, Tensor],
) -> dict[str, SolvedLayer]:
    solver = LayerSolver(pairs, problem.retain, problem.constraints, problem.settings, watch, directions)
    solved = {}
    for done, key in enumerate(keys):
        report("layers", done, len(keys))
        solved[key] = solver.solve(key, load(key))
    report("layers", len(keys), len(keys))
    return solved


def _check_moved(problem: Problem, solved: Mapping[str, SolvedLayer]) -> None:
    """Refuses to hand out an edit that does nothing although the anchors differ from the targets."""
    for key, layer in solved.items():
        edit: LayerEdit = layer.edit
        if not bool(torch.isfinite(edit.up).all() & torch.isfinite(edit.down).all()):
            raise InputError(f"The edit of {key} is not finite: raise lam, which is {problem.settings.lam:g}.")
    wanted = problem.pairs.change.abs().max()
    # Below this the target rows lie in the retained span to rounding: any edit would be noise.
    reach = max(float((layer.edit.down @ problem.pairs.targets.T).abs().max()) for layer in solved.values())
    if float(wanted) > 0 and reach < 1e-9:
        raise InputError(
            "The retain set and the invariants fill the embedding space: nothing can be erased without touching them. "
            "Use fewer retain names, switch IPF on, or raise the threshold."
        )


def _concepts(targets: Tensor | Rows) -> int:
    return max(1, len(targets.names if isinstance(targets, Rows) else targets))


def _silent(stage: str, done: int, total: int) -> None:
    """Progress for callers that asked for none."""
