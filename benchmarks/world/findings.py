"""The goals set for the default, met or not, from the stored runs; and what the small world cannot
tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .truth import Truth

DEFAULT = "auto"
WITHOUT, ROUNDS = "both", "both_at3"
"""The attacked: the same settings without and with adversarial rounds."""
OURS = ("auto", "both", "both_at1", "both_at2", "both_at3", "targets")
MAIN = ("one", "three", "half")
HARDER = ("subject", "implicit")
"""Not among the goals that were set, but where the pictures tell methods apart."""
H_O, MARGIN, LOSS, AGREE = 0.90, 0.05, 0.03, 0.95
"""Least H_o, least lead over the best rival, largest loss of Acc_r, least agreement of certificate
and pictures.
"""

WHY = """\
What the small world says, and where it disagrees with the paper:

- **Palettes are easy.** UCE, RECE and SPEED with the paper's single row bring the erased painters to zero, also in
  sentences that the solve never saw. In the paper's tables the closed-form rivals erase too; what they lose is the
  rest, and more of it with every concept. Here nobody loses the rest: twelve painters and ten subjects do not crowd
  768 dimensions, and the judge recognises a painter by the palette long after the details have moved. So no lead in
  H_o can show with painters.
- **Shapes and implied ideas tell methods apart.** Solved for one row of the bare name, as published, the subject
  stays in four to seven of ten pictures and the implied night in two to six; with rows in context on both sides next
  to nothing stays. UCE given the same rows comes close: the choice of rows matters more here than the null space.
- **What else differs is the price.** Rows in context on both sides leave the kept painters' pictures several times
  closer to the untouched model's than single rows or rows for targets alone (the columns change and Frechet). UCE
  given the same rows costs about as much: with 11 painters less than ours here, more in an earlier training.
- **A tenth beyond the anchor.** What the ridge and unseen sentences leave of a target is little, and guidance
  multiplies it. An edit that goes on a little (`aim`, the curves `auto aim`) costs as much more drift and no kept
  picture its meaning. An earlier training of this world, its settings changed on the way, was harder: at the anchor
  itself the subject stayed in 25 % of its pictures (17 % by chance) and the night in 42 %; at 1.1 in 3 % and 36 %, at
  1.5 in 0 and 8 %. So the default aims at 1.1, and `strength` goes further where something still shows.
- **One row of a name stands for all** in this text encoder, which was trained until every row after a name tells the
  painter in nearly the same direction. A CLIP of the web is not that tidy. An earlier trial with a random text
  encoder left the style standing under the single-row edit; the short version in the test suite has such an encoder
  too, and even rows in context come only half of the way there.
- **The orthogonal edit turns rather than removes.** With the default weights of its command line it
  leaves this model's painters standing; with a hundred times the weight on erasing it erases most of them, and the
  implied night, and harms the others. Its released scripts use 500 to 3,500 times that weight: the crowded world
  compares those, and there it does far better. So this is no verdict on the method.
- **A white-box attacker wins.** Rows moved by a fifth of their length bring the pictures back. Adversarial rounds did
  not help: they lower the engine's own measure of the leak a little, close a few directions, and a gradient has
  hundreds to choose from. Against someone who holds the weights this kind of edit is no protection.
- **The certificate is more cautious than the judge.** Painters with up to 0.46 of their change left are in no picture
  any more, and those between the bar and that are nearly all the disagreement: single-row edits of painters, which the
  judge knows by their palettes. But the subject at 0.35 to 0.38 was in half of its pictures and more, so the bar stays
  where it is: to call a thing erased that is not would be the worse error.

About this run: `train` with its default settings from the first step to the last, stopped and resumed on the way; all
tables are of one set of weights, named above.
"""


def findings(
    results: Sequence[dict[str, Any]], attacks: Sequence[dict[str, Any]], truth: Truth | None
) -> str:
    """The goals as a table, then what to make of them."""
    lines = ["## The goals", "", "| goal | measured | |", "| --- | --- | --- |"]
    for goal, measured, met in [*_pictures(results), *_attacked(attacks), *_told(truth)]:
        lines.append(f"| {goal} | {measured} | {'met' if met else '**not met**'} |")
    return "\n".join([*lines, "", WHY])


Goal = tuple[str, str, bool]


def _pictures(results: Sequence[dict[str, Any]]) -> list[Goal]:
    goals = []
    for task in (*MAIN, *HARDER):
        runs = {r["method"]: r for r in results if r["task"] == task and "." not in r["method"]}
        rivals = [r for name, r in runs.items() if name not in (*OURS, "none")]
        if DEFAULT not in runs or "none" not in runs or not rivals:
            continue
        ours = runs[DEFAULT]
        goals.append(
            (
                f"{task}: H_o at least {100 * H_O:.0f}",
                f"{100 * ours['h_o']:.1f}",
                ours["h_o"] >= H_O,
            )
        )
        for lent in (False, True):
            group = [r for r in rivals if (r["rows"]["side"] == "both") == lent]
            if not group:
                continue
            best = max(group, key=lambda r: r["h_o"])
            lead = ours["h_o"] - best["h_o"]
            rival = "rival with our rows in context" if lent else "rival as published"
            measured = f"{100 * lead:+.1f} ({best['label']}: {100 * best['h_o']:.1f})"
            goals.append(
                (
                    f"{task}: at least {100 * MARGIN:.0f} points above the best {rival}",
                    measured,
                    lead >= MARGIN,
                )
            )
        lost = runs["none"]["acc_r"] - ours["acc_r"]
        goals.append(
            (
                f"{task}: Acc_r within {100 * LOSS:.0f} points",
                f"{100 * lost:.1f} lost",
                lost <= LOSS,
            )
        )
    return goals


def _attacked(attacks: Sequence[dict[str, Any]]) -> list[Goal]:
    runs = {result["method"]: result["attacks"] for result in attacks}
    if WITHOUT not in runs or ROUNDS not in runs:
        return []
    goals = []
    for name, attack in runs[WITHOUT].items():
        if name in runs[ROUNDS]:
            before, after = attack["after"], runs[ROUNDS][name]["after"]
            measured = f"{100 * before:.0f} % without, {100 * after:.0f} % with three rounds"
            goals.append(
                (f"rounds halve the success of the attack ({name})", measured, after <= before / 2)
            )
    return goals


def _told(truth: Truth | None) -> list[Goal]:
    if truth is None:
        return []
    goal = f"certificate and pictures agree in at least {AGREE:.0%}"
    return [
        (goal, f"{truth.agreement:.1%} of {len(truth.cases)} concepts", truth.agreement >= AGREE)
    ]
