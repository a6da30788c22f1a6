"""`python -m benchmarks.name_probe`: does `probe --name` tell the demo model's painters from names
that it has not learned?

Four groups of names are read as the known names of one probe, in three prompts each: painters of
the demo model; real painters, which its training used as words that mean no painter; real people
and invented names, which its training did not use. About 700 prompts, less than a minute.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.demo.packed_model import known_names, write_checkpoint
from speed_erase.speed_ops.name_probe import probe_name
from speed_erase.speed_ops.text.invented import invented_names
from speed_erase.speed_ops.text.retain_set import builtin_retain, retain_from_names

from .demo_model.prompts import strangers
from .figures import markdown_table

COUNT = 35
"""Names of each group but the first, which has all of the model's painters."""
LABELS = {
    "painters": "its painters and their aliases",
    "plain": "real painters, trained as words without a style",
    "people": "real people, not in its training",
    "invented": "invented names, not in its training",
}


def names_to_test(count: int) -> dict[str, tuple[str, ...]]:
    """All groups of names."""
    known = known_names()
    plain = strangers("artists")
    people = [name for name in strangers("people") if name not in plain]
    invented = invented_names("Orla Venn", count, builtin_retain("artists").names, seed=1)
    return {
        "painters": (*known["painters"], *known["aliases"]),
        "plain": tuple(plain[:: len(plain) // count][:count]),
        "people": tuple(people[:: len(people) // count][:count]),
        "invented": invented,
    }


def auc(high: Sequence[float], low: Sequence[float]) -> float:
    """Chance that a value of the first group is above one of the second."""
    wins = sum((a > b) + (a == b) / 2 for a in high for b in low)
    return wins / (len(high) * len(low))


def run(groups: dict[str, tuple[str, ...]]) -> dict[str, list[float]]:
    """The size of every name: one call, for the first painter, with all others as known names."""
    names = [name for group in groups.values() for name in group]
    with tempfile.TemporaryDirectory() as folder:
        source = ModelSource.open(write_checkpoint(Path(folder) / "demo.safetensors"))
        encoder, weights = TextSetup().encoder(source), source.model("KV").weights
        report = probe_name(encoder, weights, names[0], known=retain_from_names(names, "all"))
    sizes = report.known_sizes | {report.name: report.size}
    return {group: [sizes[name] for name in members] for group, members in groups.items()}


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m benchmarks.name_probe", description=__doc__
    ).parse_args()
    sizes = run(names_to_test(COUNT))
    painters = sizes["painters"]
    rows = [
        (
            LABELS[group],
            str(len(values)),
            f"{min(values):.2f}",
            f"{statistics.median(values):.2f}",
            f"{max(values):.2f}",
            "" if group == "painters" else f"{auc(painters, values):.3f}",
        )
        for group, values in sizes.items()
    ]
    print(markdown_table(("", "names", "smallest", "median", "largest", "AUC"), rows))


if __name__ == "__main__":
    main()
